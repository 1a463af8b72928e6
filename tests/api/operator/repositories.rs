//! Number of requests to repositories.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use alustan_api::run::{RunRecord, key};
use alustan_api::{Terraform, names};
use k8s_openapi::api::core::v1::Secret;
use kube::api::{Api, DeleteParams};
use serde_json::json;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};

use super::{Operator, condition, reason, wait};
use crate::outside::Outside;
use crate::server::until;
use crate::space::{resource, with, with_all};

const MANY: usize = 100;
/// Branches and tags that the resources follow. None of them exists in the repository.
const REFERENCES: [(&str, &str); 3] = [
    ("/gitRepo/branch", "gone"),
    ("/gitRepo/branch", "away"),
    ("/gitRepo/tag", "v0"),
];
const INTERVAL: Duration = Duration::from_secs(2);

/// Git server with one branch, `main`. Speaks version 0 of the git protocol, in which `git ls-remote` sends one request.
struct CountingServer {
    address: String,
    request_count: Arc<AtomicUsize>,
    task: tokio::task::JoinHandle<()>,
}

impl CountingServer {
    async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = format!("http://{}", listener.local_addr().unwrap());
        let requests = Arc::new(AtomicUsize::new(0));
        let counter = requests.clone();
        let task = tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(answer(stream, counter.clone()));
            }
        });
        Self {
            address,
            request_count: requests,
            task,
        }
    }

    fn request_count(&self) -> usize {
        self.request_count.load(Ordering::SeqCst)
    }

    fn host(&self) -> &str {
        self.address.trim_start_matches("http://")
    }

    /// Waits for `times` further requests.
    async fn wait_for_requests(&self, times: usize) {
        let before = self.request_count();
        until("further requests", async || {
            let requests = self.request_count();
            (requests >= before + times)
                .then_some(())
                .ok_or_else(|| format!("{requests} requests"))
        })
        .await;
    }
}

impl Drop for CountingServer {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn answer(mut stream: TcpStream, counter: Arc<AtomicUsize>) {
    let mut request = Vec::new();
    while !request.ends_with(b"\r\n\r\n") {
        match stream.read_u8().await {
            Ok(byte) => request.push(byte),
            Err(_) => return,
        }
    }
    counter.fetch_add(1, Ordering::SeqCst);
    let line = |text: &str| format!("{:04x}{text}", text.len() + 4);
    let id = "a".repeat(40);
    let body = [
        line("# service=git-upload-pack\n"),
        "0000".to_owned(),
        line(&format!("{id} HEAD\0symref=HEAD:refs/heads/main\n")),
        line(&format!("{id} refs/heads/main\n")),
        "0000".to_owned(),
    ]
    .concat();
    let head = format!(
        "HTTP/1.1 200 OK\r\nContent-Type: application/x-git-upload-pack-advertisement\r\n\
         Content-Length: {}\r\nConnection: close\r\n\r\n",
        body.len()
    );
    let _gone = stream.write_all(format!("{head}{body}").as_bytes()).await;
}

/// Writes a module with 100,000 hard links to one file.
fn write_names(repository: &Path) {
    let names = repository.join("names");
    std::fs::create_dir_all(names.join("b")).unwrap();
    std::fs::write(names.join("b/main.tf"), "").unwrap();
    std::fs::write(
        names.join("main.tf"),
        "module \"a\" { source = \"./b\" }\n".repeat(150),
    )
    .unwrap();
    let mut linked = names.join("main.tf");
    for number in 1..100_000 {
        let name = names.join(format!("{number}.tf"));
        // ext4 allows at most 65,000 links to a file.
        if number % 50_000 == 0 {
            std::fs::copy(&linked, &name).unwrap();
            linked = name;
        } else {
            std::fs::hard_link(&linked, name).unwrap();
        }
    }
}

/// Writes modules with large files: 200,000 calls of modules that do not exist, a list nested 1,048,576 levels deep,
/// and a map with 200,000 keys.
fn write_large_files(repository: &Path) {
    let folder = |name: &str| {
        let folder = repository.join(name);
        std::fs::create_dir(&folder).unwrap();
        folder
    };
    let calls =
        (0..200_000).map(|number| format!("module \"m{number}\" {{ source = \"./{number}\" }}\n"));
    std::fs::write(folder("calls").join("main.tf"), calls.collect::<String>()).unwrap();
    let deep = format!(
        "locals {{ a = {}{} }}\n",
        "[".repeat(1 << 20),
        "]".repeat(1 << 20)
    );
    std::fs::write(folder("deep").join("main.tf"), deep).unwrap();
    let wide = (0..200_000).map(|number| format!("  a{number} = 1\n"));
    let wide = format!("locals {{\n a = {{\n{} }}\n}}\n", wide.collect::<String>());
    std::fs::write(folder("wide").join("main.tf"), wide).unwrap();
}

/// The operator runs at most eight git calls concurrently, so the test has eight hostile repositories.
#[tokio::test]
async fn hostile_repositories_delay_no_other() {
    const COPIES: usize = 2;
    // A scanner with quadratic run time would take minutes for each of the hostile files.
    const PATIENCE: Duration = Duration::from_mins(1);
    let operator = Operator::shared().await;
    let (space, folder) = (operator.space().await, tempfile::tempdir().unwrap());
    let names = Outside::with_files(&folder.path().join("names"), write_names).await;
    let large = Outside::with_files(&folder.path().join("large"), write_large_files).await;
    let honest = Outside::start(folder.path()).await;
    // Hostile modules, each with the expected status and reason of `SourceReady`.
    let modules = [
        ("names", &names, ("False", "ContextTooLarge")),
        ("calls", &large, ("False", "ModuleNotFound")),
        ("deep", &large, ("True", "Fetched")),
        ("wide", &large, ("True", "Fetched")),
    ];
    for number in 0..COPIES {
        for (module, server, _) in modules {
            let url = format!("http://{}/team/{module}-{number}", server.address);
            let mut web = with_all(
                resource("x"),
                json!({"/gitRepo/url": url, "/gitRepo/path": module}),
            );
            web["metadata"]["name"] = format!("{module}-{number}").into();
            space.apply(&web).await.unwrap();
        }
    }
    let api: Api<Terraform> = space.api();
    let since = Instant::now();
    for number in 0..5 {
        let url = json!(format!("http://{}/team/infra-{number}", honest.address));
        let mut web = with(resource("x"), "/gitRepo/url", Some(url));
        let name = format!("other-{number}");
        web["metadata"]["name"] = name.as_str().into();
        space.apply(&web).await.unwrap();
        until("the source of another resource", async || {
            let tf = api.get(&name).await.unwrap();
            let condition = condition(&tf, "SourceReady");
            (condition.0 == "True")
                .then_some(())
                .ok_or_else(|| format!("{condition:?}"))
        })
        .await;
    }
    let took = since.elapsed();
    assert!(took < PATIENCE, "{took:?}");
    for (module, _, wanted) in modules {
        for number in 0..COPIES {
            let name = format!("{module}-{number}");
            until(&format!("{wanted:?} for {name}"), async || {
                let tf = api.get(&name).await.unwrap();
                let (status, reason, message) = condition(&tf, "SourceReady");
                ((&*status, &*reason) == wanted)
                    .then_some(())
                    .ok_or_else(|| format!("{status} {reason}: {message}"))
            })
            .await;
        }
    }
    println!(
        "5 resources were read in {took:?} beside {} hostile ones",
        COPIES * modules.len()
    );
}

/// 100 resources refer to two branches and a tag of one repository. Each resource has a different `gitRepo.path`.
#[tokio::test]
async fn resources_of_one_repository_share_one_request_per_interval() {
    let operator = Operator::shared().await;
    let (space, server) = (operator.space().await, CountingServer::start().await);
    let url = format!("{}/team/infra", server.address);
    let web = with_all(
        resource("x"),
        json!({"/gitRepo/url": url, "/gitRepo/interval": "2s"}),
    );
    let since = Instant::now();
    for number in 0..MANY {
        let path = json!(format!("stacks/{number}"));
        let (field, name) = REFERENCES[number % REFERENCES.len()];
        let mut web = with_all(web.clone(), json!({"/gitRepo/path": path, field: name}));
        web["metadata"]["name"] = format!("many-{number}").into();
        space.apply(&web).await.unwrap();
    }
    until("an answer for all", async || {
        let all: Vec<Terraform> = space.list().await;
        let is_not_found = |tf: &&Terraform| condition(tf, "SourceReady").1.ends_with("NotFound");
        let done = all.iter().filter(is_not_found).count();
        let not_yet = || format!("{done} of {MANY} have an answer");
        (done == MANY).then_some(()).ok_or_else(not_yet)
    })
    .await;
    server.wait_for_requests(3).await;
    let intervals = since.elapsed().as_secs_f64() / INTERVAL.as_secs_f64();
    // The operator first sends one request per reference, and then one shared request per interval for all three references
    // (`concurrent_queries_share_one_request`). The test permits two requests per interval, because on a loaded machine some queries are
    // not concurrent. Without sharing, the operator sends three requests per interval.
    let [firsts, requests] =
        [REFERENCES.len(), server.request_count()].map(|count| u32::try_from(count).unwrap());
    let most = 2.0 * intervals.ceil() + f64::from(firsts);
    println!("{MANY} resources, {intervals:.1} intervals: asked {requests} times");
    assert!(
        f64::from(requests) <= most,
        "{requests} questions in {intervals} intervals"
    );
}

/// A second counting server simulates the registry. Its responses are not valid registry responses.
#[tokio::test]
async fn suspended_resource_queries_neither_git_nor_registry() {
    let operator = Operator::shared().await;
    let space = operator.space().await;
    let (git, registry) = (CountingServer::start().await, CountingServer::start().await);
    let clock = CountingServer::start().await;
    let follow = |name: &str, git: &CountingServer| {
        let url = format!("{}/team/infra", git.address);
        with_all(
            resource(name),
            json!({"/gitRepo/url": url, "/gitRepo/interval": "1s"}),
        )
    };
    let images = json!({
        "imageName": format!("{}/team/infra", registry.host()),
        "baseImage": format!("{}/base:1", registry.host()),
        "insecure": true,
    });
    let web = with(follow("web", &git), "/containerRegistry", Some(images));
    let suspended = with(web.clone(), "/suspend", Some(json!(true)));
    space.apply(&follow("clock", &clock)).await.unwrap();
    let api: Api<Terraform> = space.api();
    let is_suspended = async || {
        let applied = space.apply(&suspended).await.unwrap();
        let generation = applied["metadata"]["generation"].as_i64();
        wait(&api, "web", "Suspended", |tf| {
            let observed = tf
                .status
                .as_ref()
                .and_then(|status| status.observed_generation);
            condition(tf, "Ready").1 == "Suspended" && observed == generation
        })
        .await
    };

    let tf = is_suspended().await;
    assert_eq!(condition(&tf, "SourceReady").1, "Suspended");
    clock.wait_for_requests(3).await;
    assert_eq!((git.request_count(), registry.request_count()), (0, 0));

    space.apply(&web).await.unwrap();
    until("requests once it is resumed", async || {
        let requests = (git.request_count(), registry.request_count());
        (requests.0 > 0 && requests.1 > 0)
            .then_some(())
            .ok_or_else(|| format!("{requests:?}"))
    })
    .await;

    is_suspended().await;
    let before = (git.request_count(), registry.request_count());
    clock.wait_for_requests(3).await;
    api.delete("web", &DeleteParams::default()).await.unwrap();
    until("the end of the resource", async || {
        let tf = api.get_opt("web").await.unwrap();
        tf.is_none().then_some(()).ok_or_else(|| "there".to_owned())
    })
    .await;
    assert_eq!((git.request_count(), registry.request_count()), before);
}

#[tokio::test]
async fn first_run_after_a_suspension_has_the_newest_commit() {
    let operator = Operator::shared().await;
    let (space, folder) = (operator.space().await, tempfile::tempdir().unwrap());
    let outside = Outside::start(folder.path()).await;
    let address = &outside.address;
    let images = json!({
        "imageName": format!("{address}/present"), "baseImage": format!("{address}/base:1"), "insecure": true,
    });
    let web = with_all(
        resource("web"),
        json!({
            "/gitRepo/url": format!("http://{address}/team/infra"),
            "/gitRepo/interval": "1s",
            "/containerRegistry": images,
        }),
    );
    let api: Api<Terraform> = space.api();
    let revision = |tf: &Terraform| Some(tf.status.as_ref()?.source.as_ref()?.revision.clone());

    // No run starts before the suspension, because the dependency does not exist.
    let blocked = with(web.clone(), "/dependsOn", Some(json!([{"name": "gone"}])));
    space.apply(&blocked).await.unwrap();
    let tf = wait(&api, "web", "a commit", |tf| revision(tf).is_some()).await;
    let before = revision(&tf);
    space
        .apply(&with(blocked, "/suspend", Some(json!(true))))
        .await
        .unwrap();
    wait(&api, "web", "Suspended", reason("Ready", "Suspended")).await;
    let pushed = outside.commit("output \"a\" { value = 2 }\n").await;
    assert_ne!(before.as_ref(), Some(&pushed));

    space.apply(&web).await.unwrap();
    let secrets: Api<Secret> = space.api();
    let run = until("a run", async || {
        let secret = secrets.get_opt(&names::record("web")).await.unwrap();
        let data = secret.and_then(|secret| secret.data).unwrap_or_default();
        let record = data.get(key::RECORD).ok_or("no run record")?;
        let record: RunRecord = serde_json::from_slice(&record.0).unwrap();
        record.run.ok_or_else(|| "no run".to_owned())
    })
    .await;
    assert_eq!(run.revision, Some(pushed));
}
