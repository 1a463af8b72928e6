//! Two replicas of the operator on one API server: leader election, takeover of the runs that the previous leader started, and the
//! responses of each replica to `/readyz` and to webhooks.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::process::{Child, Command};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use alustan_api::Terraform;
use futures::StreamExt;
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::Secret;
use k8s_openapi::jiff::Timestamp;
use kube::ResourceExt;
use kube::api::{Api, DeleteParams, ListParams, Patch, PatchParams, WatchEvent, WatchParams};
use serde_json::{Value, json};

use crate::pinned::reports;
use crate::server::{Loopback, Server, built, free_ports, spawn_guarded, until};
use crate::space::{Space, resource, with_all};

/// Number of resources that are destroyed while the leader is killed.
const MANY: usize = 24;
/// Namespace of the operator and its Lease.
const SYSTEM: &str = "alustan-system";
const LEASE: &str = "alustan";
/// Token that webhooks send in `x-gitlab-token`.
const SECRET: &str = "a secret";

/// A replica: a process of the operator with its own ServiceAccount, by which the audit log distinguishes the replicas.
struct Replica {
    name: &'static str,
    /// URL of its HTTP server.
    url: String,
    process: Child,
}

/// API server of the two replicas of a test.
struct Pair {
    server: Arc<Server>,
}

impl Pair {
    async fn new() -> Self {
        Self::on(Loopback::V4).await
    }

    /// Starts an API server at an address of `loopback`, and grants the rights of the operator to the `ServiceAccount`s `a` and `b`.
    async fn on(loopback: Loopback) -> Self {
        let server = Server::of_its_own_on(loopback).await;
        for name in ["a", "b"] {
            let account = format!("--serviceaccount={SYSTEM}:{name}");
            let role = ["--clusterrole=alustan-controller", &account];
            let create = ["create", "clusterrolebinding", name];
            server.kubectl(&[&create[..], &role].concat()).unwrap();
            let role = ["--role=alustan-controller-lease", &account, "-n", SYSTEM];
            let create = ["create", "rolebinding", name];
            server.kubectl(&[&create[..], &role].concat()).unwrap();
        }
        let secrets = server.folder().join("hooks");
        std::fs::create_dir(&secrets).unwrap();
        std::fs::write(secrets.join("any"), SECRET).unwrap();
        Self { server }
    }

    async fn space(&self) -> Space {
        Space::of(&self.server, json!({})).await
    }

    /// Starts the replica `name`. [`Replica::end`] sends `signal` to it.
    fn start(&self, name: &'static str, signal: &str, more: &[&str]) -> Replica {
        let program = built("alustan-controller").unwrap();
        let [port] = free_ports();
        let (folder, loopback) = (self.server.folder(), self.server.loopback);
        let mut operator = Command::new(program);
        operator
            .args(["--base-image", "127.0.0.1:1/base:1"])
            .args(["--operator-image", "127.0.0.1:1/operator:1"])
            .args(["--insecure-registry", "127.0.0.1:1"])
            .args([
                "--listen",
                &SocketAddr::new(loopback.ip(), port).to_string(),
            ])
            .args(["--pod-ip", &loopback.ip().to_string(), "--pod-name", name])
            .arg("--hook-secrets")
            .arg(folder.join("hooks"))
            .arg("--cache-dir")
            .arg(folder.join(format!("cache-{name}")))
            .args(more)
            .env("KUBECONFIG", self.server.kubeconfig_file_of(&user(name)))
            .env("SIGNAL", signal);
        let process = spawn_guarded(&mut operator, &folder.join(format!("{name}.log")));
        Replica {
            name,
            url: loopback.url("http", port),
            process,
        }
    }

    fn log(&self, replica: &Replica) -> String {
        let file = self.server.folder().join(format!("{}.log", replica.name));
        std::fs::read_to_string(file).unwrap()
    }

    async fn lease(&self) -> Lease {
        let api: Api<Lease> = Api::namespaced(self.server.client().await, SYSTEM);
        api.get(LEASE).await.unwrap()
    }

    /// Returns time, verb and URI of each write request of the replica `name`, except writes of the Lease.
    fn writes(&self, name: &str) -> Vec<(Timestamp, String)> {
        let user = user(name);
        self.server
            .audit()
            .into_iter()
            .filter(|call| {
                let reads = ["get", "list", "watch"];
                call["impersonatedUser"]["username"] == user
                    && !reads.contains(&call["verb"].as_str().unwrap())
                    && call["objectRef"]["resource"] != "leases"
            })
            .map(|call| {
                let at = call["requestReceivedTimestamp"].as_str().unwrap();
                let request = format!("{} {}", call["verb"], call["requestURI"]);
                (at.parse().unwrap(), request)
            })
            .collect()
    }
}

/// Counts the Jobs that are created in a namespace from now on, by name. Includes Jobs that a replica created before it was killed, even if
/// the replica did not receive the response.
async fn made(space: &Space) -> Arc<Mutex<BTreeMap<String, usize>>> {
    let made: Arc<Mutex<BTreeMap<String, usize>>> = Arc::default();
    let counted = Arc::clone(&made);
    let jobs = space.api::<Job>();
    let none_yet = jobs.list(&ListParams::default()).await.unwrap();
    let mut events = jobs
        .watch(
            &WatchParams::default(),
            &none_yet.metadata.resource_version.unwrap(),
        )
        .await
        .unwrap()
        .boxed();
    tokio::spawn(async move {
        while let Some(event) = events.next().await {
            match event.unwrap() {
                WatchEvent::Added(job) => {
                    *counted.lock().unwrap().entry(job.name_any()).or_default() += 1;
                }
                WatchEvent::Error(error) => panic!("the watch of Jobs ended: {error:?}"),
                _ => {}
            }
        }
    });
    made
}

fn user(name: &str) -> String {
    format!("system:serviceaccount:{SYSTEM}:{name}")
}

impl Replica {
    async fn get(&self, path: &str) -> Result<String, String> {
        let url = format!("{}{path}", self.url);
        let answer = reqwest::get(url).await.map_err(|error| error.to_string())?;
        answer.text().await.map_err(|error| error.to_string())
    }

    /// Waits until `/readyz` of the replica reports `role`.
    async fn is(&self, role: &str) {
        until(&format!("{} to tell: {role}", self.name), async || {
            let body = self.get("/readyz").await?;
            let is = body.starts_with("ok: ") && body.contains(role);
            is.then_some(()).ok_or(body)
        })
        .await;
    }

    /// Sends the signal that was passed to [`Pair::start`].
    fn end(&mut self) {
        // `leash.sh` sends the signal when its stdin is closed.
        drop(self.process.stdin.take());
    }

    /// Ends the replica and waits until its process has ended, at most 30 s.
    async fn ended(&mut self) {
        self.end();
        let deadline = Instant::now() + Duration::from_secs(30);
        while self.process.try_wait().unwrap().is_none() {
            assert!(Instant::now() < deadline, "{} does not end", self.name);
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    /// Returns the response of the replica to a push to `repository`.
    async fn send_push(&self, repository: &str) -> (u16, Value) {
        let push = json!({
            "ref": "refs/heads/main",
            "project": {"git_http_url": repository, "default_branch": "main"},
        });
        let sent = reqwest::Client::new()
            .post(format!("{}/hooks/gitlab", self.url))
            .header("content-type", "application/json")
            .header("x-gitlab-token", SECRET)
            .header("x-gitlab-event", "Push Hook")
            .header("x-gitlab-event-uuid", Timestamp::now().to_string())
            .body(push.to_string());
        let answer = sent.send().await.unwrap();
        let code = answer.status().as_u16();
        let body = answer.bytes().await.unwrap();
        (code, serde_json::from_slice(&body).unwrap())
    }
}

/// Simulates the runner: writes a report of success for every destroy run that has a Job.
async fn all_run(space: &Space) {
    let secrets = space.api::<Secret>();
    for job in space.list::<Job>().await {
        let name = job.name_any();
        let name = name.strip_suffix("-destroy-2").expect("the first destroy");
        let _known_already = reports(&secrets, name, 2).await;
    }
}

#[tokio::test]
async fn ha_standby_replaces_a_killed_leader_without_duplicate_runs() {
    let pair = Pair::new().await;
    let space = pair.space().await;
    let names: Vec<String> = (0..MANY).map(|number| format!("web{number}")).collect();
    for name in &names {
        space.applied(name).await;
    }
    let mut first = pair.start("a", "KILL", &[]);
    first.is("this replica is the leader").await;
    let second = pair.start("b", "TERM", &[]);
    second.is("on standby; the leader is a").await;
    assert!(
        second
            .get("/metrics")
            .await
            .unwrap()
            .contains("alustan_leader 0\n")
    );
    assert!(
        first
            .get("/metrics")
            .await
            .unwrap()
            .contains("alustan_leader 1\n")
    );

    let made = made(&space).await;
    // Deletes all resources. The leader is killed when it has created a few of the destroy Jobs.
    let api = space.raw();
    for name in &names {
        api.delete(name, &DeleteParams::default()).await.unwrap();
    }
    until("a few Jobs", async || {
        let made = space.list::<Job>().await.len();
        (made >= 3)
            .then_some(())
            .ok_or_else(|| format!("{made} Jobs"))
    })
    .await;
    first.ended().await;
    let killed = Timestamp::now();
    assert!(pair.writes("b").is_empty(), "{:?}", pair.writes("b"));
    second.is("this replica is the leader").await;
    until("all to be gone", async || {
        all_run(&space).await;
        let count = api.list(&ListParams::default()).await.unwrap().items.len();
        (count == 0)
            .then_some(())
            .ok_or_else(|| format!("{count} left"))
    })
    .await;
    let (began, request) = pair.writes("b").remove(0);
    let took = began.duration_since(killed);
    assert!(
        took.as_secs() < 20,
        "{request} came {took:?} after the death of a"
    );
    let late = pair.writes("a").into_iter().filter(|(at, _)| *at >= began);
    assert_eq!(late.count(), 0, "a dead replica writes");

    let made = made.lock().unwrap().clone();
    assert_eq!(made.len(), MANY, "{made:?}");
    assert!(made.values().all(|times| *times == 1), "{made:?}");
    let transitions = pair.lease().await.spec.unwrap().lease_transitions;
    assert_eq!(transitions, Some(1));
}

#[tokio::test]
async fn ha_terminating_leader_releases_its_lease() {
    let pair = Pair::new().await;
    let mut first = pair.start("a", "TERM", &[]);
    first.is("this replica is the leader").await;
    let second = pair.start("b", "TERM", &[]);
    second.is("on standby; the leader is a").await;
    let since = Instant::now();
    first.ended().await;
    second.is("this replica is the leader").await;
    assert!(
        since.elapsed() < Duration::from_secs(8),
        "{:?}",
        since.elapsed()
    );
    assert!(
        pair.log(&first).contains("released"),
        "{}",
        pair.log(&first)
    );
    // A restarted replica is on standby.
    let third = pair.start("a", "TERM", &[]);
    third.is("on standby; the leader is b").await;
}

#[tokio::test]
async fn ha_restarted_leader_leads_again_before_lease_expiry() {
    let pair = Pair::new().await;
    let mut first = pair.start("a", "KILL", &[]);
    first.is("this replica is the leader").await;
    first.ended().await;
    let since = Instant::now();
    let next = pair.start("a", "TERM", &[]);
    next.is("this replica is the leader").await;
    assert!(
        since.elapsed() < Duration::from_secs(8),
        "{:?}",
        since.elapsed()
    );
}

#[tokio::test]
async fn ha_leader_that_loses_its_lease_exits_and_writes_nothing() {
    let pair = Pair::new().await;
    let space = pair.space().await;
    space.applied("web").await;
    let mut only = pair.start("a", "TERM", &[]);
    only.is("this replica is the leader").await;
    let api: Api<Lease> = Api::namespaced(pair.server.client().await, SYSTEM);
    let taken = Patch::Merge(json!({"spec": {"holderIdentity": "somebody_1"}}));
    let edit = PatchParams::default();
    api.patch(LEASE, &edit, &taken).await.unwrap();
    until("it to notice", async || {
        let log = pair.log(&only);
        let is_logged = log.contains("lost leadership to somebody");
        is_logged.then_some(()).ok_or(log)
    })
    .await;
    only.ended().await;
    let before = pair.writes("a").len();
    let raw = space.raw();
    raw.delete("web", &DeleteParams::default()).await.unwrap();
    tokio::time::sleep(Duration::from_secs(3)).await;
    assert_eq!(pair.writes("a").len(), before);
}

/// A cluster with IPv6 only: the addresses of API server, replicas, git server and registry are IPv6 addresses.
#[tokio::test]
async fn ha_push_reaches_the_leader_over_ipv6() {
    let pair = Pair::on(Loopback::V6).await;
    push_reaches_the_leader(&pair).await;
    let leader = pair.start("a", "TERM", &[]);
    leader.is("this replica is the leader").await;
    let holder = pair.lease().await;
    let address = &holder.metadata.annotations.unwrap()["alustan.io/address"];
    assert!(address.starts_with("[::1]:"), "{address}");
    let space = pair.space().await;
    let image = "[::1]:1/team/infra";
    let values =
        json!({"/gitRepo/url": "https://[::1]:1/a/b", "/containerRegistry/imageName": image});
    space
        .apply(&with_all(resource("new"), values))
        .await
        .unwrap();
    let api = space.api::<Terraform>();
    until("an answer about the repository", async || {
        let status = api.get("new").await.unwrap().status;
        let conditions = status.map(|status| status.conditions).unwrap_or_default();
        let text = serde_json::to_string(&conditions).unwrap();
        let is_reported = text.contains("RepositoryUnreachable") && text.contains("[::1]:1");
        is_reported.then_some(()).ok_or(text)
    })
    .await;
}

#[tokio::test]
async fn ha_push_to_any_replica_reaches_the_leader() {
    push_reaches_the_leader(&Pair::new().await).await;
}

async fn push_reaches_the_leader(pair: &Pair) {
    let space = pair.space().await;
    space.applied("web").await;
    let mut first = pair.start("a", "KILL", &[]);
    first.is("this replica is the leader").await;
    let second = pair.start("b", "TERM", &[]);
    second.is("on standby; the leader is a").await;
    let repository = "https://127.0.0.1:1/team/infra";
    // A push matches a resource only after the first reconcile of the resource, so the test repeats the push.
    until("the leader to know who follows", async || {
        let (code, response) = first.send_push(repository).await;
        let known = (code, &response["resources"]) == (202, &json!(1));
        known.then_some(()).ok_or_else(|| response.to_string())
    })
    .await;
    let (code, response) = second.send_push(repository).await;
    assert_eq!(
        (code, &response["resources"]),
        (202, &json!(1)),
        "{response}"
    );
    first.ended().await;
    let (code, response) = second.send_push(repository).await;
    assert_eq!(
        (code, &response["reason"]),
        (503, &json!("NotLeader")),
        "{response}"
    );
    second.is("this replica is the leader").await;
    let (code, _) = second.send_push(repository).await;
    assert_eq!(code, 202);
}
