//! An operator with its API server, git server and registry. The stand-in for builds and runs ends each Job.

use std::collections::{HashMap, HashSet};
use std::fs;
use std::io::{BufRead as _, BufReader};
use std::process::{Child, Command};
use std::sync::Arc;
use std::time::Duration;

use alustan_api::labels::{COMPONENT, Component, IMAGE_TAG, NAME};
use alustan_api::run::{Output, Outputs};
use alustan_api::{Terraform, TerraformStatus};
use alustan_runner::record::RecordError;
use alustan_tests::RunnerStandIn;
use futures::StreamExt;
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::jiff::Timestamp;
use kube::api::{Api, ApiResource, DynamicObject};
use kube::runtime::WatchStreamExt;
use kube::runtime::watcher::{Config, Event, watcher};
use kube::{Client, ResourceExt};
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::sync::watch;

use crate::calls;
use crate::mutate::seeds;
use crate::outside::Outside;
use crate::server::{OPERATOR, Server, built, free_ports, spawn_guarded};
use crate::space::{Space, resource, try_complete_job, with_all};

/// Maximum duration of each wait. The machine may be loaded.
const DEADLINE: Duration = Duration::from_mins(2);

/// Objects of a namespace, as the watches report them.
#[derive(Default)]
struct Seen {
    resources: HashMap<String, Arc<DynamicObject>>,
    active_jobs: HashSet<String>,
}

type Namespaces = Arc<Mutex<HashMap<String, watch::Sender<Seen>>>>;

pub(crate) struct World {
    pub(crate) server: Arc<Server>,
    pub(crate) outside: Arc<Outside>,
    namespaces: Namespaces,
    marker: Marker,
    operator: Child,
}

/// A suspended resource. A reconcile of it after an edit shows that the operator has received all earlier watch events. Calls of
/// [`World::mark`] at the same time share an edit.
struct Marker {
    space: Space,
    /// Number of edits that have started, and of those that the operator has reconciled.
    edits: watch::Sender<[usize; 2]>,
    turn: tokio::sync::Mutex<()>,
}

impl World {
    pub(crate) async fn new() -> Self {
        let server = Server::of_its_own().await;
        let outside = Outside::with_files(server.folder(), seeds::write_repository).await;
        outside
            .push_artifact("team/artifact", "1", "output \"a\" { value = 1 }\n")
            .await;
        let outside = Arc::new(outside);
        let namespaces = Namespaces::default();
        tokio::spawn(watch_resources(server.client().await, namespaces.clone()));
        let jobs = run_jobs(server.client().await, outside.clone(), namespaces.clone());
        tokio::spawn(jobs);
        let pods = server.folder().join("pod-defaults.yaml");
        fs::write(&pods, allowed_pod_options().to_string()).unwrap();
        let [port] = free_ports();
        let program = Command::new(built("alustan-controller").unwrap());
        let mut operator = calls::operator(program, &server, &outside, port);
        operator
            .args(["--max-concurrent-runs", "200"])
            .args(["--max-runs-per-namespace", "200"])
            .arg("--pod-defaults")
            .arg(&pods);
        let operator = spawn_guarded(&mut operator, &server.folder().join("operator.log"));
        let marker = Marker {
            space: Space::of(&server, json!({})).await,
            edits: watch::Sender::new([0, 0]),
            turn: tokio::sync::Mutex::default(),
        };
        Self {
            server,
            outside,
            namespaces,
            marker,
            operator,
        }
    }

    /// Waits until `wanted` returns a value for a resource and for whether all Jobs of its namespace have ended.
    ///
    /// # Errors
    /// The last error of `wanted` after [`DEADLINE`].
    pub(crate) async fn until<T>(
        &self,
        namespace: &str,
        name: &str,
        wanted: impl Fn(Option<&DynamicObject>, bool) -> Result<T, String>,
    ) -> Result<T, String> {
        let mut seen = of(&self.namespaces, namespace).subscribe();
        let check = |seen: &Seen| {
            let resource = seen.resources.get(name).map(Arc::as_ref);
            wanted(resource, seen.active_jobs.is_empty())
        };
        let reached = seen.wait_for(|seen| check(seen).is_ok());
        let _ = tokio::time::timeout(DEADLINE, reached).await;
        check(&of(&self.namespaces, namespace).borrow())
    }

    /// Returns a resource as of the last watch event.
    pub(crate) fn seen(&self, namespace: &str, name: &str) -> Option<Arc<DynamicObject>> {
        let namespace = of(&self.namespaces, namespace);
        namespace.borrow().resources.get(name).cloned()
    }

    /// Waits until the operator has processed the watch events before this call.
    ///
    /// # Errors
    /// The operator does not reconcile the marker.
    pub(crate) async fn mark(&self) -> Result<(), String> {
        const NAME: &str = "marker";
        let Marker { space, edits, turn } = &self.marker;
        let [needed, _] = edits.borrow().map(|edit| edit + 1);
        let _turn = turn.lock().await;
        if edits.borrow()[1] >= needed {
            return Ok(());
        }
        edits.send_modify(|[started, _]| *started += 1);
        let number = edits.borrow()[0];
        let marker = with_all(
            resource(NAME),
            json!({"/suspend": true, "/retry/limit": 1 + number % 50}),
        );
        let stored = space.apply(&marker).await?;
        let generation = stored["metadata"]["generation"].as_i64().unwrap();
        let reconciled =
            |resource: Option<&DynamicObject>, _| observed(resource, generation).map(drop);
        self.until(&space.namespace, NAME, reconciled).await?;
        edits.send_modify(|[_, reconciled]| *reconciled = number);
        Ok(())
    }

    /// Returns the lines of the operator's log about a panic, and whether the operator still runs.
    ///
    /// # Errors
    /// The end of the process, or the lines about panics.
    pub(crate) fn check_operator(&mut self) -> Result<(), String> {
        if let Some(status) = self.operator.try_wait().unwrap() {
            return Err(format!("the operator has ended: {status}"));
        }
        let log = fs::read_to_string(self.server.folder().join("operator.log")).unwrap();
        let panics: Vec<_> = log
            .lines()
            .filter(|line| line.contains("panicked"))
            .collect();
        if panics.is_empty() {
            Ok(())
        } else {
            Err(panics.join("\n"))
        }
    }

    /// Returns the writes of the operator: time, namespace and request.
    pub(crate) fn writes(&self) -> Vec<(Timestamp, String, String)> {
        let mut writes = Vec::new();
        for file in fs::read_dir(self.server.folder()).unwrap() {
            let path = file.unwrap().path();
            let name = path.file_name().unwrap().to_string_lossy();
            // The API server rotates the log.
            if !name.starts_with("audit") || path.extension().is_none_or(|ending| ending != "log") {
                continue;
            }
            let lines = BufReader::new(fs::File::open(&path).unwrap()).lines();
            for line in lines
                .map_while(Result::ok)
                .filter(|line| line.contains(OPERATOR))
            {
                let Ok(call) = serde_json::from_str::<Value>(&line) else {
                    continue;
                };
                let is_read = ["get", "list", "watch"].contains(&call["verb"].as_str().unwrap());
                let namespace = call["objectRef"]["namespace"].as_str();
                if let Some(namespace) = namespace.filter(|_| !is_read) {
                    let at = call["requestReceivedTimestamp"].as_str().unwrap();
                    let request = format!("{} {}", call["verb"], call["requestURI"]);
                    writes.push((at.parse().unwrap(), namespace.to_owned(), request));
                }
            }
        }
        writes
    }
}

/// Returns a file for `--pod-defaults` that allows all options in valid values of edits.
fn allowed_pod_options() -> Value {
    json!({"allowed": {
        "csiDrivers": ["text"], "persistentVolumeClaims": true,
        "priorityClassNames": ["text"], "runtimeClassNames": ["text"],
        "tolerations": [{}], "labels": ["*"], "annotations": ["*"],
    }})
}

/// Returns the typed status of a resource.
pub(crate) fn status(resource: &DynamicObject) -> TerraformStatus {
    let status = resource.data.get("status").cloned().unwrap_or_default();
    serde_json::from_value(status).unwrap_or_default()
}

fn of(namespaces: &Namespaces, namespace: &str) -> watch::Sender<Seen> {
    let mut namespaces = namespaces.lock();
    namespaces.entry(namespace.to_owned()).or_default().clone()
}

async fn watch_resources(client: Client, namespaces: Namespaces) {
    let kind = ApiResource::erase::<Terraform>(&());
    let api = Api::<DynamicObject>::all_with(client, &kind);
    let watched = watcher(api, Config::default()).default_backoff();
    let mut watched = std::pin::pin!(watched);
    while let Some(event) = watched.next().await {
        let (object, exists) = match event {
            Ok(Event::Apply(object) | Event::InitApply(object)) => (object, true),
            Ok(Event::Delete(object)) => (object, false),
            Ok(Event::Init | Event::InitDone) | Err(_) => continue,
        };
        of(&namespaces, &object.namespace().unwrap()).send_modify(|seen| {
            if exists {
                seen.resources.insert(object.name_any(), Arc::new(object));
            } else {
                seen.resources.remove(&object.name_any());
            }
        });
    }
}

/// Ends all Jobs, like the Job controller, the kubelet, the builder and the runner.
async fn run_jobs(client: Client, outside: Arc<Outside>, namespaces: Namespaces) {
    let watched = watcher(Api::<Job>::all(client.clone()), Config::default());
    let mut watched = std::pin::pin!(watched.default_backoff());
    let mut started = HashSet::new();
    while let Some(event) = watched.next().await {
        let (job, exists) = match event {
            Ok(Event::Apply(job) | Event::InitApply(job)) => (job, true),
            Ok(Event::Delete(job)) => (job, false),
            Ok(Event::Init | Event::InitDone) | Err(_) => continue,
        };
        let is_active = exists && !has_ended(&job);
        of(&namespaces, &job.namespace().unwrap()).send_modify(|seen| {
            if is_active {
                seen.active_jobs.insert(job.name_any());
            } else {
                seen.active_jobs.remove(&job.name_any());
            }
        });
        if is_active && started.insert(job.uid()) {
            tokio::spawn(end(client.clone(), outside.clone(), job));
        }
    }
}

/// Returns the resource if its status describes at least `generation`.
pub(crate) fn observed(
    resource: Option<&DynamicObject>,
    generation: i64,
) -> Result<&DynamicObject, String> {
    let resource = resource.ok_or("the resource does not exist")?;
    let observed = status(resource).observed_generation.unwrap_or_default();
    if observed >= generation && resource.metadata.generation.unwrap_or_default() >= generation {
        Ok(resource)
    } else {
        Err(format!(
            "the status describes generation {observed} instead of {generation}: {:?}",
            status(resource)
        ))
    }
}

fn has_ended(job: &Job) -> bool {
    let status = job.status.as_ref();
    status
        .and_then(|status| status.conditions.as_ref())
        .is_some_and(|conditions| !conditions.is_empty())
}

/// Pushes the image of a build, or reports the success of a run. Then completes `job`.
async fn end(client: Client, outside: Arc<Outside>, job: Job) {
    let namespace = job.namespace().unwrap();
    let name = job.name_any();
    if let Some(tag) = job.labels().get(IMAGE_TAG) {
        if let Some(repository) = destination(&job, tag) {
            outside.push_image(&repository, tag);
        }
    } else if job.labels().get(COMPONENT).map(String::as_str) == Some(Component::Run.as_str()) {
        let run = execute(&client, &namespace, &job.labels()[NAME], &name);
        if let Err(error) = run.await {
            // The operator cancels runs after an edit, and deletes their Jobs.
            eprintln!("{namespace}/{name}: {error}");
            return;
        }
    }
    let completed = try_complete_job(&Api::namespaced(client, &namespace), &name).await;
    if let Err(error) = completed {
        let is_deleted = matches!(&error, kube::Error::Api(status) if status.is_not_found());
        assert!(is_deleted, "{namespace}/{name}: {error}");
    }
}

/// Returns the repository to which the build `job` pushes the image `tag`, without the registry.
fn destination(job: &Job, tag: &str) -> Option<String> {
    let text = serde_json::to_string(job).unwrap();
    let (before, _) = text.split_once(&format!(":{tag}\""))?;
    let image = before.rsplit(['=', '"']).next()?;
    image.split_once('/').map(|(_, path)| path.to_owned())
}

/// Executes the run of `job`, like the runner.
async fn execute(
    client: &Client,
    namespace: &str,
    name: &str,
    job: &str,
) -> Result<(), RecordError> {
    let number = job.rsplit('-').next().unwrap().parse().unwrap();
    let runner = RunnerStandIn::of_run(client.clone(), namespace, name, number, job);
    let kind = runner.claim().await?.run.kind;
    if kind.changes() {
        runner.begin().await?;
    }
    let output = Output {
        value: json!(1),
        sensitive: false,
    };
    let outputs = Outputs::from([("a".to_owned(), output)]);
    runner.report(kind, &outputs).await
}
