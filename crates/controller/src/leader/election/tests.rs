use std::sync::Arc;

use axum::body::{Body, to_bytes};
use axum::http::{Method, Request, Response};
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::task::JoinHandle;
use tokio::time::{Instant, advance, sleep};
use tower::{BoxError, service_fn};

use super::*;
use crate::leader::Role;
use alustan_core::leader_election::Identity;

/// Fake API server that stores one Lease.
#[derive(Clone, Default)]
struct FakeApi(Arc<Mutex<StoredLease>>);

#[derive(Default)]
struct StoredLease {
    lease: Option<Value>,
    version: u64,
    down: bool,
}

impl FakeApi {
    fn client(&self) -> Client {
        let api = self.clone();
        let service = service_fn(move |request: Request<kube::client::Body>| {
            let api = api.clone();
            async move {
                let (parts, body) = request.into_parts();
                let body = to_bytes(Body::new(body), usize::MAX).await.unwrap();
                let body = serde_json::from_slice(&body).unwrap_or_default();
                if api.0.lock().down {
                    sleep(Duration::from_hours(1)).await;
                }
                let (code, response) = api.respond(&parts.method, parts.uri.path(), body);
                let response = Response::builder()
                    .status(code)
                    .body(Body::from(response.to_string()));
                Ok::<_, BoxError>(response?)
            }
        });
        Client::new(service, "alustan-system")
    }

    fn respond(&self, method: &Method, path: &str, mut body: Value) -> (u16, Value) {
        let mut stored = self.0.lock();
        let leases = "/apis/coordination.k8s.io/v1/namespaces/alustan-system/leases";
        let own = [leases.to_owned(), format!("{leases}/alustan")];
        assert!(own.contains(&path.to_owned()), "{path}");
        let stored_lease = stored.lease.clone();
        let version = stored_lease
            .as_ref()
            .map(|lease| &lease["metadata"]["resourceVersion"]);
        match (method.as_str(), version) {
            ("GET", Some(_)) => return (200, stored_lease.unwrap_or_default()),
            ("POST", None) => {}
            ("PUT", Some(version)) if *version == body["metadata"]["resourceVersion"] => {}
            ("GET" | "PUT", None) => return (404, refusal(404, "NotFound")),
            _ => return (409, refusal(409, "Conflict")),
        }
        stored.version += 1;
        body["metadata"]["resourceVersion"] = stored.version.to_string().into();
        stored.lease = Some(body.clone());
        (200, body)
    }

    fn lease(&self) -> Value {
        self.0.lock().lease.clone().unwrap_or_default()
    }

    fn set_down(&self, down: bool) {
        self.0.lock().down = down;
    }

    /// Starts a replica in `pod`, which other replicas reach at `address`.
    fn replica(&self, pod: &str, address: Option<&str>) -> Replica {
        let leader = Leader::new(Identity::new(Some(pod.to_owned()), "1"));
        let address = address.map(|address| address.parse().unwrap());
        self.start(leader, address, watch::channel(LISTS).1)
    }

    fn start(
        &self,
        leader: Leader,
        address: Option<SocketAddr>,
        listed: watch::Receiver<usize>,
    ) -> Replica {
        let client = self.client();
        let mut election = Election::new(leader.clone(), client, "alustan", address, listed);
        let task = tokio::spawn(async move { election.run().await });
        Replica { leader, task }
    }
}

fn refusal(code: u16, reason: &str) -> Value {
    json!({"kind": "Status", "status": "Failure", "reason": reason, "code": code, "message": reason})
}

struct Replica {
    leader: Leader,
    task: JoinHandle<Option<String>>,
}

impl Replica {
    /// Waits until the replica leads. Returns the duration of the wait, in seconds.
    async fn leads(&self) -> u64 {
        let since = Instant::now();
        self.leader.wait_for_leadership().await;
        assert!(self.leader.leads());
        since.elapsed().as_secs()
    }
}

#[tokio::test(start_paused = true)]
async fn standby_leads_only_after_the_leader_dies() {
    let api = FakeApi::default();
    let first = api.replica("a", Some("10.0.0.1:8080"));
    assert_eq!(first.leads().await, 0);
    let second = api.replica("b", None);
    sleep(Duration::from_mins(1)).await;
    assert!(first.leader.leads() && !second.leader.leads());
    let role = Role::Has("on standby; the leader is a".to_owned());
    assert_eq!(second.leader.role(), role);
    assert_eq!(
        second.leader.address(),
        Some("10.0.0.1:8080".parse().unwrap())
    );
    first.task.abort();
    let took = second.leads().await;
    assert!((10..=17).contains(&took), "{took}");
    let lease = api.lease();
    assert_eq!(lease["spec"]["holderIdentity"], "b_1");
    assert_eq!(lease["spec"]["leaseTransitions"], 1);
    assert_eq!(lease["spec"]["leaseDurationSeconds"], 15);
    assert!(
        lease["metadata"]["annotations"].get(ADDRESS).is_none(),
        "{lease}"
    );
}

#[tokio::test(start_paused = true)]
async fn replica_without_complete_lists_does_not_lead() {
    let api = FakeApi::default();
    let (lists, listed) = watch::channel(LISTS - 1);
    let leader = Leader::new(Identity::new(Some("cold".to_owned()), "1"));
    let cold = api.start(leader, None, listed);
    sleep(Duration::from_mins(1)).await;
    assert_eq!(api.lease(), Value::Null);
    let warm = api.replica("warm", None);
    warm.leads().await;
    sleep(Duration::from_secs(5)).await;
    assert_eq!(
        cold.leader.role(),
        Role::Has("on standby; the leader is warm".to_owned())
    );
    warm.task.abort();
    sleep(Duration::from_mins(1)).await;
    assert!(!cold.leader.leads());
    lists.send_replace(LISTS);
    assert!(cold.leads().await <= 1);
}

#[tokio::test(start_paused = true)]
async fn resigned_lease_is_acquired_within_two_seconds() {
    let api = FakeApi::default();
    let leader = Leader::new(Identity::new(Some("a".to_owned()), "1"));
    let listed = watch::channel(LISTS).1;
    let mut election = Election::new(leader.clone(), api.client(), "alustan", None, listed);
    let _elapsed = timeout(Duration::from_secs(5), election.run()).await;
    let second = api.replica("b", None);
    sleep(Duration::from_secs(1)).await;
    let guard = leader.begin_write().unwrap();
    let resigning = tokio::spawn(election.resign());
    sleep(Duration::from_secs(1)).await;
    assert!(leader.begin_write().is_err(), "it begins nothing new");
    assert_eq!(
        api.lease()["spec"]["holderIdentity"],
        "a_1",
        "a write goes on"
    );
    drop(guard);
    resigning.await.unwrap();
    assert!(second.leads().await <= 2);
}

#[tokio::test(start_paused = true)]
async fn leader_that_cannot_renew_stops_writes_and_can_lead_again() {
    let api = FakeApi::default();
    let only = api.replica("a", None);
    only.leads().await;
    api.set_down(true);
    advance(Duration::from_secs(13)).await;
    assert_eq!(only.leader.leadership(), Leadership::Doubts);
    assert!(only.leader.begin_write().is_err());
    sleep(Duration::from_mins(10)).await;
    api.set_down(false);
    assert!(only.leads().await <= 5);
    assert_eq!(api.lease()["spec"]["leaseTransitions"], 0);
}

#[tokio::test(start_paused = true)]
async fn leader_exits_if_the_lease_has_another_holder() {
    let api = FakeApi::default();
    let first = api.replica("a", None);
    first.leads().await;
    {
        let mut stored = api.0.lock();
        let lease = stored.lease.as_mut().unwrap();
        lease["spec"]["holderIdentity"] = "b_1".into();
        lease["metadata"]["resourceVersion"] = "900".into();
    }
    assert_eq!(first.task.await.unwrap(), Some("b_1".to_owned()));
    assert!(!first.leader.leads());
}

#[tokio::test(start_paused = true)]
async fn annotations_of_others_on_the_lease_are_kept() {
    let api = FakeApi::default();
    let lease = json!({
        "apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
        "metadata": {"name": "alustan", "annotations": {"example.com/a": "b"}, "resourceVersion": "7"},
        "spec": {},
    });
    api.0.lock().lease = Some(lease);
    api.replica("a", Some("10.0.0.1:8080")).leads().await;
    let lease = api.lease();
    let annotations = json!({"example.com/a": "b", ADDRESS: "10.0.0.1:8080"});
    assert_eq!(lease["metadata"]["annotations"], annotations);
    assert_eq!(lease["spec"]["leaseTransitions"], 0);
}

#[tokio::test(start_paused = true)]
async fn lease_with_maximum_transitions_is_acquired() {
    let api = FakeApi::default();
    let lease = json!({
        "apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
        "metadata": {"name": "alustan", "resourceVersion": "7"},
        "spec": {"leaseTransitions": i32::MAX},
    });
    api.0.lock().lease = Some(lease);
    let replica = api.replica("a", None);
    let led = timeout(Duration::from_mins(1), replica.leads()).await;
    assert!(led.is_ok());
    assert_eq!(api.lease()["spec"]["leaseTransitions"], i32::MAX);
}

#[tokio::test(start_paused = true)]
async fn unreadable_lease_is_reported() {
    let api = FakeApi::default();
    api.set_down(true);
    let only = api.replica("a", None);
    sleep(Duration::from_secs(10)).await;
    let role = Role::None("failed to read Lease alustan: request timed out".to_owned());
    assert_eq!(only.leader.role(), role);
}

#[test]
fn an_address_in_the_lease_is_an_ip_address_and_a_port() {
    let lease = |at: &str| Lease {
        metadata: ObjectMeta {
            annotations: Some([(ADDRESS.to_owned(), at.to_owned())].into()),
            ..ObjectMeta::default()
        },
        spec: None,
    };
    let right = Some("10.0.0.1:8080".parse().unwrap());
    assert_eq!(address(&lease("10.0.0.1:8080")), right);
    for wrong in ["evil.test:80", "http://10.0.0.1", "http://10.0.0.1:80", ""] {
        assert_eq!(address(&lease(wrong)), None, "{wrong}");
    }
}
