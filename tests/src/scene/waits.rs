//! Waits for conditions, each with a deadline.

use std::fmt::Debug;
use std::future::Future;
use std::time::Duration;

use alustan_api::Terraform;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::ResourceExt;
use kube::api::{Api, DeleteParams, ListParams};
use kube::runtime::wait::await_condition;

use super::DEADLINE;
use crate::Scene;

/// Interval of polls for conditions that cannot be watched.
const POLL_INTERVAL: Duration = Duration::from_millis(200);

impl Scene {
    /// Waits until `wanted` holds for the resource `name`. Returns the resource.
    pub async fn wait(
        &self,
        name: &str,
        what: &str,
        wanted: impl Fn(&Terraform) -> bool,
    ) -> Terraform {
        let api: Api<Terraform> = self.api();
        let condition = |tf: Option<&Terraform>| tf.is_some_and(&wanted);
        let wait = tokio::time::timeout(
            DEADLINE,
            Box::pin(await_condition(api.clone(), name, condition)),
        );
        if let Ok(result) = wait.await {
            return result.expect("a watch").expect("a resource");
        }
        let status = api
            .get_opt(name)
            .await
            .ok()
            .flatten()
            .and_then(|tf| tf.status);
        panic!("{name}: waited {DEADLINE:?} for {what}; status {status:#?}")
    }

    /// Polls `query` until it returns a value.
    pub async fn until<T, F>(&self, what: &str, query: impl Fn() -> F) -> T
    where
        F: Future<Output = Option<T>>,
    {
        until(what, query).await
    }

    /// Waits until the resource `name` is Ready for its latest generation.
    pub async fn ready(&self, name: &str) -> Terraform {
        self.wait(name, "Ready", is_ready).await
    }

    /// Waits until the resource `name` is Ready and `run` is the number of its last run.
    pub async fn ready_after_run(&self, name: &str, run: i64) -> Terraform {
        self.wait(name, &format!("Ready after run {run}"), |tf| {
            is_ready(tf) && tf.status.as_ref().and_then(|status| status.run) == Some(run)
        })
        .await
    }

    /// Same as [`Self::ready_after_run`]. Panics after a failure: the status contains a retry or a run whose result is not `Done`.
    pub async fn ready_without_failures(&self, name: &str, run: i64) {
        let status = self.ready_after_run(name, run).await.status;
        let status = status.expect("a status");
        assert_eq!(status.retry, None, "{name}");
        let results: Vec<_> = status.runs.iter().map(|run| run.result.as_str()).collect();
        let done = results.iter().all(|result| *result == "Done");
        assert!(done, "{name}: {results:?}");
    }

    /// Waits until the resource `name` is Ready and `revision` is the last known commit.
    pub async fn ready_at(&self, name: &str, revision: &str) -> Terraform {
        self.wait(name, &format!("Ready at {revision}"), |tf| {
            let source = tf.status.as_ref().and_then(|status| status.source.as_ref());
            is_ready(tf) && source.is_some_and(|source| source.revision == revision)
        })
        .await
    }

    /// Returns the run number in the status of the resource `name`.
    pub async fn run_number(&self, name: &str) -> i64 {
        let api: Api<Terraform> = self.api();
        let status = api.get(name).await.expect("a resource").status;
        status.and_then(|status| status.run).expect("a run")
    }

    /// Waits until the message in the status of the resource `name` contains `text`.
    pub async fn wait_for_message(&self, name: &str, text: &str) -> Terraform {
        self.wait(name, text, |tf| {
            let status = tf.status.as_ref();
            status.is_some_and(|status| status.message.contains(text))
        })
        .await
    }

    /// Waits until condition `Ready` has `reason`. Returns its message.
    pub async fn reason(&self, name: &str, reason: &str) -> String {
        let tf = self
            .wait(name, reason, |tf| {
                condition(tf, "Ready").is_some_and(|ready| ready.reason == reason)
            })
            .await;
        condition(&tf, "Ready")
            .map(|ready| ready.message.clone())
            .unwrap_or_default()
    }

    /// Waits until condition `Stalled` is True. Returns reason and message of condition `Ready`.
    pub async fn stalled(&self, name: &str) -> (String, String) {
        let tf = self
            .wait(name, "Stalled", |tf| {
                condition(tf, "Stalled").is_some_and(|stalled| stalled.status == "True")
            })
            .await;
        let ready = condition(&tf, "Ready").expect("a condition");
        (ready.reason.clone(), ready.message.clone())
    }

    /// Waits for an event with `reason` about the resource `name`.
    pub async fn event(&self, name: &str, reason: &str) {
        self.until(&format!("an event {reason} about {name}"), async || {
            let events = self.events(name).await;
            events.contains(&reason.to_owned()).then_some(())
        })
        .await;
    }

    /// Waits until the log of the first pod of `job` contains `text`. Returns the log.
    pub async fn log(&self, job: &str, text: &str) -> String {
        let selector = format!("batch.kubernetes.io/job-name={job}");
        let of_job = ListParams::default().labels(&selector);
        let pods = self.api::<Pod>();
        self.until(&format!("{text:?} in the log of {job}"), async || {
            let pod = pods.list(&of_job).await.ok()?.items.into_iter().next()?;
            let mut log = String::new();
            for container in pod.spec.iter().flat_map(|spec| &spec.containers) {
                log += &self.pod_log(&pod.name_any(), &container.name).await;
            }
            log.contains(text).then_some(log)
        })
        .await
    }

    /// Waits until the runner of `job` has printed `text`. Reads the log on the node, without the API server.
    pub async fn printed(&self, job: &str, text: &str) {
        let pods = self.cluster.folder.join("log/pods");
        let own = format!("{}_{job}-", self.namespace);
        self.until(&format!("{text:?} in the log of {job}"), async || {
            let log = std::fs::read_dir(&pods)
                .expect("a folder")
                .flatten()
                .find(|entry| entry.file_name().to_string_lossy().starts_with(&own))?
                .path()
                .join("terraform/0.log");
            std::fs::read_to_string(log)
                .ok()?
                .contains(text)
                .then_some(())
        })
        .await;
    }

    /// Deletes the resource `name` and waits until it is gone.
    pub async fn delete(&self, name: &str, how: &DeleteParams) {
        let uid = self.begin_to_delete(name, how).await;
        self.deleted(name, &uid).await;
    }

    /// Starts the deletion of the resource `name`. Returns its uid.
    pub async fn begin_to_delete(&self, name: &str, how: &DeleteParams) -> String {
        let api: Api<Terraform> = self.api();
        let object = api.get(name).await.expect("a resource");
        api.delete(name, how).await.expect("delete the resource");
        object.uid().expect("a uid")
    }

    /// Waits until the resource `name` with `uid` is gone.
    pub async fn deleted(&self, name: &str, uid: &str) {
        self.gone::<Terraform>(name, uid).await;
    }

    /// Waits until the object `name` with `uid` is gone.
    pub async fn gone<K>(&self, name: &str, uid: &str)
    where
        K: kube::Resource<DynamicType = (), Scope = kube::core::NamespaceResourceScope>,
        K: Clone + Debug + serde::de::DeserializeOwned + Send + 'static,
    {
        let api: Api<K> = self.api();
        let deleted = kube::runtime::conditions::is_deleted(uid);
        let waited = tokio::time::timeout(
            DEADLINE,
            Box::pin(await_condition(api.clone(), name, deleted)),
        );
        if waited.await.is_err() {
            let last = api.get_opt(name).await.ok().flatten();
            panic!("{name}: still there after {DEADLINE:?}: {last:#?}");
        }
    }
}

/// Polls `query` until it returns a value.
pub(crate) async fn until<T, F>(what: &str, query: impl Fn() -> F) -> T
where
    F: Future<Output = Option<T>>,
{
    until_ok(what, async || query().await.ok_or_else(String::new)).await
}

/// Polls `query` until it succeeds. After the deadline, panics with `what` and the last error.
pub(super) async fn until_ok<T, F>(what: &str, query: impl Fn() -> F) -> T
where
    F: Future<Output = Result<T, String>>,
{
    let mut tick = tokio::time::interval(POLL_INTERVAL);
    let mut last_error = String::new();
    let poll = async {
        loop {
            tick.tick().await;
            match query().await {
                Ok(value) => return value,
                Err(error) => last_error = error,
            }
        }
    };
    tokio::time::timeout(DEADLINE, poll)
        .await
        .unwrap_or_else(|_| panic!("waited {DEADLINE:?} for {what}: {last_error}"))
}

/// Returns true if `tf` is Ready for its latest generation.
pub fn is_ready(tf: &Terraform) -> bool {
    let observed = tf
        .status
        .as_ref()
        .and_then(|status| status.observed_generation);
    condition(tf, "Ready").is_some_and(|ready| ready.status == "True")
        && observed == tf.metadata.generation
}

/// Returns a condition of a resource.
pub fn condition<'a>(tf: &'a Terraform, kind: &str) -> Option<&'a Condition> {
    let conditions = &tf.status.as_ref()?.conditions;
    conditions.iter().find(|condition| condition.type_ == kind)
}
