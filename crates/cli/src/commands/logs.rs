//! `logs`: prints the output of the engine in a run: from its pod, from the run report, or from the record of the finished run.

use std::collections::BTreeMap;
use std::io::Read;
use std::time::Duration;

use alustan_api::labels::JOB_NAME;
use alustan_api::names;
use alustan_api::run::key;
use alustan_api::{RunLog, Terraform, TerraformRun};
use alustan_core::objects::run_job::ENGINE_CONTAINER;
use clap::Args;
use flate2::read::GzDecoder;
use futures::AsyncReadExt;
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{ContainerStatus, Pod};
use kube::ResourceExt;
use kube::api::{ListParams, LogParams};

use crate::cluster::{Cluster, call, of_runs};
use crate::condition::situation;
use crate::error::Error;
use crate::finished_runs;
use crate::print::{self, Parts};
use crate::record::RecordHandle;

/// Poll interval while the command waits for a Job or a pod to start.
const PAUSE: Duration = Duration::from_millis(500);

/// Maximum size of a log printed from a run report, in bytes.
const MAX_BYTES: u64 = 1 << 20;

/// Print the log of a run. If its pod no longer exists, or the user may not read its log, print the beginning and the end of the log, which
/// remain after the run.
#[derive(Debug, Args)]
pub(crate) struct Logs {
    /// Name of the resource.
    name: String,
    /// Wait for the run to start, and stream its log until it ends.
    #[arg(short, long)]
    follow: bool,
    /// Number of the run. Default: the last run.
    #[arg(long)]
    run: Option<i64>,
}

impl Logs {
    pub(crate) async fn run(&self, cluster: &Cluster) -> Result<(), Error> {
        let tf = cluster.resource(&self.name).await?;
        let (pod, container) = match self.pod(cluster, &tf).await {
            Err(error) if !self.follow && is_refused_or_forbidden(&error) => {
                return self.print_stored(cluster, &tf, error).await;
            }
            other => other?,
        };
        let parameters = LogParams {
            follow: self.follow,
            container: Some(container),
            ..LogParams::default()
        };
        let action = format!("read the log of pod {}", cluster.key(&pod));
        let api = cluster.api::<Pod>();
        let log = call(&action, api.log_stream(&pod, &parameters)).await?;
        let mut log = std::pin::pin!(log);
        let mut buffer = vec![0; 64 * 1024];
        let mut parts = Parts::default();
        loop {
            let read = log
                .read(&mut buffer)
                .await
                .map_err(|error| Error::Refused(format!("cannot {action}: {error}")))?;
            match buffer.get(..read) {
                None | Some([]) => return parts.end(),
                Some(bytes) => parts.add(bytes)?,
            }
        }
    }

    /// Prints the log that remains after the run. `error`: why the log of the pod cannot be read.
    async fn print_stored(
        &self,
        cluster: &Cluster,
        tf: &Terraform,
        error: Error,
    ) -> Result<(), Error> {
        // `logs` is empty if the user has no permission to read the run report.
        let logs = RecordHandle::of(cluster, tf).reported().await;
        if let Some((run, log)) = self.kept_log(cluster, tf, &logs).await {
            print::note(&format!(
                "the pod of run {run} no longer exists; end of the log of the failed run, from the run report:"
            ));
            return print::bytes(&log);
        }
        let runs = finished_runs::list(cluster, tf).await.unwrap_or_default();
        let Some(run) = recorded(&runs, self.run.or_else(|| reported(tf))) else {
            return Err(Error::Refused(error.chain() + &others(logs.keys())));
        };
        print::note(&format!(
            "the pod of run {} cannot be read ({}); log of the run, from TerraformRun {}:",
            run.spec.number,
            error.chain(),
            run.name_any(),
        ));
        let log = run.status.as_ref().map(|status| &status.log);
        print::bytes(log.map(RunLog::text).unwrap_or_default().as_bytes())
    }

    /// Returns the name of the pod of the run, and the name of its container.
    async fn pod(&self, cluster: &Cluster, tf: &Terraform) -> Result<(String, String), Error> {
        let job = self.job(cluster, tf).await?;
        self.started(cluster, &job).await
    }

    /// Returns the number of the selected run and the end of its log, if the run report contains it. `logs` is the data of
    /// the run report.
    async fn kept_log(
        &self,
        cluster: &Cluster,
        tf: &Terraform,
        logs: &BTreeMap<String, Vec<u8>>,
    ) -> Option<(i64, Vec<u8>)> {
        let jobs = self.jobs(cluster).await.ok()?;
        let newest = reported(tf).max(last(&jobs).as_deref().and_then(number));
        let wanted = self.run.or(newest);
        let run = kept_run(wanted, logs.keys())?;
        let log = unpacked(logs.get(&key::log(run))?)?;
        Some((run, log))
    }

    /// Returns the name of the Job of the run. With `--follow`, waits until the Job exists.
    async fn job(&self, cluster: &Cluster, tf: &Terraform) -> Result<String, Error> {
        loop {
            let jobs = self.jobs(cluster).await?;
            let job = match self.run {
                Some(run) => job_of(&self.name, run, &jobs),
                None => last(&jobs).filter(|job| number(job) >= reported(tf)),
            };
            match job {
                Some(job) => return Ok(job),
                None if self.follow => tokio::time::sleep(PAUSE).await,
                None => return Err(self.no_job(cluster, tf, &jobs)),
            }
        }
    }

    /// Returns the names of the Jobs of the resource's runs.
    async fn jobs(&self, cluster: &Cluster) -> Result<Vec<String>, Error> {
        let list = of_runs(&self.name);
        let action = format!("list the Jobs of {}", cluster.key(&self.name));
        let jobs = call(&action, cluster.api::<Job>().list_metadata(&list)).await?;
        Ok(jobs.iter().map(ResourceExt::name_any).collect())
    }

    /// Returns the error for a run without a Job.
    fn no_job(&self, cluster: &Cluster, tf: &Terraform, jobs: &[String]) -> Error {
        let key = cluster.key(&self.name);
        let numbers: Vec<_> = jobs
            .iter()
            .filter_map(|job| Some(number(job)?.to_string()))
            .collect();
        let numbers = if numbers.is_empty() {
            "none".to_owned()
        } else {
            numbers.join(", ")
        };
        let reason = match self.run.or_else(|| reported(tf)) {
            Some(run) => {
                let error = tf
                    .status
                    .iter()
                    .flat_map(|status| &status.runs)
                    .find(|report| report.number == run)
                    .and_then(|report| report.error.as_ref());
                let error = error.map_or_else(String::new, |error| format!("; run error: {error}"));
                format!("run {run} of {key} has no Job; runs with a Job: {numbers}{error}")
            }
            None => format!(
                "{key} has no run; current state: {}. To wait for a run, use -f",
                situation(tf)
            ),
        };
        Error::Refused(reason)
    }

    /// Waits until the container of the pod of `job` has started. Returns the names of the pod and the container.
    /// Without `--follow`, returns an error if the container has not started.
    async fn started(&self, cluster: &Cluster, job: &str) -> Result<(String, String), Error> {
        let list = ListParams::default().labels(&format!("{JOB_NAME}={job}"));
        let action = format!("list the pods of Job {}", cluster.key(job));
        let mut last_message = String::new();
        loop {
            let pods = call(&action, cluster.api::<Pod>().list(&list)).await?;
            let newest = pods.iter().max_by_key(|pod| pod.creation_timestamp());
            let waits = match newest.map(|pod| (pod, start(pod))) {
                None => format!("Job {job} has no pod"),
                Some((pod, Start::Done(container))) => return Ok((pod.name_any(), container)),
                Some((pod, Start::NotYet(why))) => {
                    format!("pod {} has not started: {why}", pod.name_any())
                }
            };
            if !self.follow {
                return Err(Error::Refused(format!(
                    "{waits}. To wait until the pod has started, use -f; for details: kubectl \
                     describe -n {} job/{job}",
                    cluster.namespace
                )));
            }
            if waits != last_message {
                print::note(&format!("{waits}; waiting"));
                last_message = waits;
            }
            tokio::time::sleep(PAUSE).await;
        }
    }
}

/// Whether `error` is the answer that the log of the pod does not exist, or that the user may not read it.
fn is_refused_or_forbidden(error: &Error) -> bool {
    matches!(error, Error::Refused(_)) || error.is_forbidden()
}

/// Returns the record of run `wanted`, if it contains a log. Without `wanted`, the last one.
fn recorded(runs: &[TerraformRun], wanted: Option<i64>) -> Option<&TerraformRun> {
    let has_log = |run: &&TerraformRun| {
        let status = run.status.as_ref();
        let number = status.map(|status| status.last_number);
        let is_wanted = wanted.is_none() || wanted == number;
        is_wanted && status.is_some_and(|status| !status.log.head.is_empty())
    };
    runs.iter().find(has_log)
}

/// Whether the container of a pod has started.
#[derive(Debug, PartialEq, Eq)]
enum Start {
    /// The container with this name has started.
    Done(String),
    /// The container has not started, for this reason.
    NotYet(String),
}

fn start(pod: &Pod) -> Start {
    let statuses = pod
        .status
        .as_ref()
        .and_then(|status| status.container_statuses.as_ref())
        .map(Vec::as_slice)
        .unwrap_or_default();
    // `statuses` includes injected sidecars, so the container of the engine is selected by name.
    let engine = statuses
        .iter()
        .find(|container| container.name == ENGINE_CONTAINER);
    let Some(container) = engine.or_else(|| statuses.first()) else {
        let phase = pod.status.as_ref().and_then(|status| status.phase.clone());
        return Start::NotYet(phase.unwrap_or_else(|| "the pod has no status".to_owned()));
    };
    if has_started(container) {
        return Start::Done(container.name.clone());
    }
    let state = container.state.as_ref();
    let waiting = state.and_then(|state| state.waiting.as_ref()?.reason.clone());
    Start::NotYet(waiting.unwrap_or_else(|| "Waiting".to_owned()))
}

fn has_started(container: &ContainerStatus) -> bool {
    let state = container.state.as_ref();
    state.is_some_and(|state| state.running.is_some() || state.terminated.is_some())
}

/// Returns the name of the Job of run `run` of the resource `name`, if `jobs` contains it.
fn job_of(name: &str, run: i64, jobs: &[String]) -> Option<String> {
    names::run_jobs(name, run)
        .into_iter()
        .find(|job| jobs.contains(job))
}

/// Returns the run `wanted` if the run report contains its log. Without `wanted`, returns the last run with a log.
/// `keys` are the keys of the run report.
fn kept_run<'a>(wanted: Option<i64>, keys: impl Iterator<Item = &'a String>) -> Option<i64> {
    keys.filter_map(|key| key::log_of(key))
        .filter(|run| wanted.is_none_or(|wanted| wanted == *run))
        .max()
}

/// Formats the numbers of the runs whose logs the run report contains, as the end of a message. `keys` are the keys of
/// the run report.
fn others<'a>(keys: impl Iterator<Item = &'a String>) -> String {
    let mut runs: Vec<i64> = keys.filter_map(|key| key::log_of(key)).collect();
    runs.sort_unstable();
    let runs: Vec<String> = runs.iter().map(i64::to_string).collect();
    if runs.is_empty() {
        return String::new();
    }
    format!("; runs whose log is in the run report: {}", runs.join(", "))
}

/// Returns the highest run number in the status of `tf`.
fn reported(tf: &Terraform) -> Option<i64> {
    tf.status
        .iter()
        .flat_map(|status| &status.runs)
        .map(|run| run.number)
        .max()
}

/// Returns the name of the Job with the highest run number.
fn last(jobs: &[String]) -> Option<String> {
    jobs.iter()
        .filter_map(|job| Some((number(job)?, job)))
        .max()
        .map(|(_, job)| job.clone())
}

/// Returns the run number in the name of a Job.
pub(crate) fn number(job: &str) -> Option<i64> {
    job.rsplit_once('-')?.1.parse().ok()
}

/// Decompresses a log from the run report, up to [`MAX_BYTES`] bytes: module code can write any bytes into the run
/// report.
fn unpacked(packed: &[u8]) -> Option<Vec<u8>> {
    let mut log = Vec::new();
    let unpacked = GzDecoder::new(packed);
    unpacked.take(MAX_BYTES).read_to_end(&mut log).ok()?;
    Some(log)
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;
    use flate2::Compression;
    use flate2::write::GzEncoder;
    use rstest::rstest;
    use serde_json::{Value, json};

    fn jobs() -> Vec<String> {
        ["web-apply-9", "web-drift-10", "web-plan-8"]
            .map(str::to_owned)
            .to_vec()
    }

    #[test]
    fn the_last_run_has_the_highest_number() {
        assert_eq!(last(&jobs()).as_deref(), Some("web-drift-10"));
        assert_eq!(last(&[]), None);
    }

    #[rstest]
    #[case(None, Some(10))]
    #[case(Some(9), Some(9))]
    #[case(Some(8), None)]
    fn the_log_of_a_failed_run_is_found_in_the_report(
        #[case] wanted: Option<i64>,
        #[case] run: Option<i64>,
    ) {
        let keys = ["log-9", "log-10", "leftover", "progress"].map(str::to_owned);
        assert_eq!(kept_run(wanted, keys.iter()), run);
        assert_eq!(kept_run(wanted, [].iter()), None);
        assert_eq!(
            others(keys.iter()),
            "; runs whose log is in the run report: 9, 10"
        );
        assert_eq!(others([].iter()), "");
    }

    #[test]
    fn log_in_report_is_decompressed_up_to_1_mib() {
        let mut packed = GzEncoder::new(Vec::new(), Compression::fast());
        packed.write_all(&vec![b'x'; 2 << 20]).unwrap();
        let log = unpacked(&packed.finish().unwrap()).unwrap();
        assert_eq!(log, vec![b'x'; 1 << 20]);
    }

    #[rstest]
    #[case::whole(0, "first\nlast\n")]
    #[case::excerpt(7, "first\n\n[7 bytes are not stored]\nlast\n")]
    fn recorded_log_says_what_is_missing(#[case] omitted_bytes: i64, #[case] text: &str) {
        let (head, tail) = ("first\n".to_owned(), "last\n".to_owned());
        let log = RunLog {
            head,
            tail,
            omitted_bytes,
        };
        assert_eq!(log.text(), text);
    }

    #[rstest]
    #[case(8, Some("web-plan-8"))]
    #[case(9, Some("web-apply-9"))]
    #[case(1, None)]
    fn job_is_found_by_run_number(#[case] run: i64, #[case] wanted: Option<&str>) {
        assert_eq!(job_of("web", run, &jobs()).as_deref(), wanted);
    }

    #[rstest]
    #[case::fresh(json!({}), Err("the pod has no status"))]
    #[case::unscheduled(json!({"phase": "Pending"}), Err("Pending"))]
    #[case::pulling(json!({"containerStatuses": [status(&json!({"waiting": {"reason": "ImagePullBackOff"}}))]}), Err("ImagePullBackOff"))]
    #[case::running(json!({"containerStatuses": [status(&json!({"running": {}}))]}), Ok("terraform"))]
    #[case::ended(json!({"containerStatuses": [status(&json!({"terminated": {"exitCode": 1}}))]}), Ok("terraform"))]
    fn logs_are_read_once_the_container_has_started(
        #[case] seen: Value,
        #[case] wanted: Result<&str, &str>,
    ) {
        let pod: Pod = serde_json::from_value(json!({"status": seen})).unwrap();
        let wanted = match wanted {
            Ok(container) => Start::Done(container.to_owned()),
            Err(why) => Start::NotYet(why.to_owned()),
        };
        assert_eq!(start(&pod), wanted);
    }

    fn status(state: &Value) -> Value {
        json!({
            "name": "terraform", "image": "", "imageID": "", "ready": false, "restartCount": 0,
            "state": state,
        })
    }
}
