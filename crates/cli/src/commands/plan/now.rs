//! `plan --now`: requests a plan without an apply, and waits for its result.

use std::time::{Duration, Instant};

use alustan_api::conditions::Kind;
use alustan_api::report::RunResult;
use alustan_api::run::PLAN_REQUESTED;
use alustan_api::{ObjectKey, PLAN_AT, RunStatus, State, Terraform};
use futures::StreamExt;
use k8s_openapi::jiff::Timestamp;
use kube::runtime::WatchStreamExt;
use kube::runtime::watcher::watch_object;
use serde_json::json;

use crate::cluster::{Cluster, FIELD_MANAGER};
use crate::commands::wait::{describe, forbidden, gone};
use crate::condition::{holds, situation};
use crate::error::Error;
use crate::print;

/// Interval of the check of [`STALLED`].
const TICK: Duration = Duration::from_secs(1);
/// Time for which a resource may stay stalled before the command ends: a stalled resource plans if its configuration is valid.
const STALLED: Duration = Duration::from_secs(30);

/// Requests a plan of the resource `name`. Returns the time of the request, which is the value of annotation [`PLAN_AT`].
///
/// # Errors
/// If the resource is deleted or suspended, because no run starts then.
pub(super) async fn request(cluster: &Cluster, name: &str) -> Result<Timestamp, Error> {
    let tf = cluster.resource(name).await?;
    check(&tf)?;
    let now = Timestamp::now();
    let change = json!({"metadata": {"annotations": {PLAN_AT: now.to_string()}}});
    cluster.change(&tf, FIELD_MANAGER, &change).await?;
    let key = ObjectKey::of(&tf);
    let queued = if is_running(&tf) {
        "; it starts after the current run"
    } else {
        ""
    };
    print::note(&format!("plan of {key} requested{queued}"));
    Ok(now)
}

/// Fails if no run of `tf` can start.
fn check(tf: &Terraform) -> Result<(), Error> {
    let ObjectKey { namespace, name } = ObjectKey::of(tf);
    if tf.metadata.deletion_timestamp.is_some() {
        return Err(Error::Refused(format!(
            "cannot plan {namespace}/{name}: it is being deleted"
        )));
    }
    if tf.spec.suspend {
        return Err(Error::Refused(format!(
            "cannot plan {namespace}/{name}: it is suspended; to resume it: kubectl alustan resume \
             {name} -n {namespace}"
        )));
    }
    Ok(())
}

fn is_running(tf: &Terraform) -> bool {
    let state = tf.status.as_ref().map(|status| status.state);
    matches!(state, Some(State::Planning | State::Applying))
}

/// Waits for the result of the plan that was requested at `requested`, for at most `timeout`.
pub(super) async fn wait(
    cluster: &Cluster,
    name: &str,
    requested: Timestamp,
    timeout: Duration,
) -> Result<(Terraform, RunStatus), Error> {
    let mut last = None;
    let watched = tokio::time::timeout(timeout, watch(cluster, name, requested, &mut last)).await;
    watched.unwrap_or_else(|_| {
        let situation = last
            .as_ref()
            .map_or_else(|| "unknown".to_owned(), situation);
        Err(Error::Refused(format!(
            "the plan of {} did not end within {timeout:?}; current state: {situation}",
            cluster.key(name)
        )))
    })
}

async fn watch(
    cluster: &Cluster,
    name: &str,
    requested: Timestamp,
    last: &mut Option<Terraform>,
) -> Result<(Terraform, RunStatus), Error> {
    let seen = watch_object(cluster.api::<Terraform>(), name).default_backoff();
    let mut seen = std::pin::pin!(seen);
    let mut tick = tokio::time::interval(TICK);
    let (mut progress, mut stalled_since) = (String::new(), None);
    loop {
        tokio::select! {
            _ = tick.tick() => {
                let is_over = stalled_since.is_some_and(|since: Instant| since.elapsed() >= STALLED);
                if let Some(tf) = last.as_ref().filter(|_| is_over) {
                    let key = ObjectKey::of(tf);
                    return Err(Error::Refused(format!("{key} cannot plan: {}", situation(tf))));
                }
            }
            found = seen.next() => match found {
                Some(Err(error)) => match forbidden(&error) {
                    Some(why) => {
                        let key = cluster.key(name);
                        return Err(Error::Refused(format!("cannot watch {key}: {why}")));
                    }
                    None => print::note(&format!("watch failed, retrying: {error}")),
                },
                Some(Ok(Some(tf))) => {
                    if let Some(run) = result(&tf, requested) {
                        let run = run.clone();
                        return Ok((tf, run));
                    }
                    check(&tf)?;
                    let now = describe(&tf);
                    if now != progress {
                        print::note(&now);
                        progress = now;
                    }
                    stalled_since = holds(&tf, Kind::Stalled)
                        .then(|| stalled_since.unwrap_or_else(Instant::now));
                    *last = Some(tf);
                }
                Some(Ok(None)) | None => return Err(gone(&cluster.key(name))),
            },
        }
    }
}

/// Returns the run that was requested at `requested` or later. Ignores a cancelled run, because the operator repeats it.
fn result(tf: &Terraform, requested: Timestamp) -> Option<&RunStatus> {
    let runs = &tf.status.as_ref()?.runs;
    runs.iter().find(|run| {
        let at = run.trigger.strip_prefix(PLAN_REQUESTED);
        let at = at.and_then(|at| at.parse::<Timestamp>().ok());
        run.result != RunResult::Cancelled.as_str() && at.is_some_and(|at| at >= requested)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    fn planned(trigger: &str, result: &str) -> Terraform {
        serde_json::from_value(json!({
            "apiVersion": "alustan.io/v1alpha1", "kind": "Terraform", "metadata": {"name": "web"},
            "spec": {
                "gitRepo": {"url": "https://127.0.0.1:1/a/b"},
                "containerRegistry": {"imageName": "127.0.0.1:1/a/b"},
            },
            "status": {"runs": [{
                "number": 3, "kind": "drift", "trigger": trigger, "result": result, "seconds": 1,
                "job": "web-drift-3",
            }]},
        }))
        .unwrap()
    }

    #[rstest]
    #[case::own("plan requested 2026-01-01T00:00:01Z", "Changes", true)]
    #[case::later("plan requested 2026-01-01T00:00:01.5Z", "NoChanges", true)]
    #[case::failed("plan requested 2026-01-01T00:00:01Z", "Failed", true)]
    #[case::earlier("plan requested 2026-01-01T00:00:00.9Z", "Changes", false)]
    #[case::cancelled("plan requested 2026-01-01T00:00:01Z", "Cancelled", false)]
    #[case::by_hand("plan requested now", "Changes", false)]
    #[case::drift_check("interval", "Changes", false)]
    fn result_is_that_of_the_request(
        #[case] trigger: &str,
        #[case] run_result: &str,
        #[case] is_found: bool,
    ) {
        let requested = "2026-01-01T00:00:01Z".parse().unwrap();
        let tf = planned(trigger, run_result);
        assert_eq!(result(&tf, requested).is_some(), is_found);
    }
}
