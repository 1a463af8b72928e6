//! `cancel`: cancels the active run.

use alustan_api::{CANCEL_RUN, ObjectKey, Terraform};
use clap::Args;
use k8s_openapi::api::batch::v1::Job;
use kube::ResourceExt;
use serde_json::json;

use crate::cluster::{Cluster, FIELD_MANAGER, call, of_runs};
use crate::commands::logs::number;
use crate::condition::situation;
use crate::error::Error;
use crate::print;

/// Cancel the active run. A plan or a drift check ends. A started apply or destroy is interrupted, and its state is saved.
#[derive(Debug, Args)]
pub(crate) struct Cancel {
    /// Name of the resource.
    name: String,
    /// Number of the run. The command has no effect on another run. Default: the active run.
    run: Option<i64>,
}

impl Cancel {
    /// Sets annotation [`CANCEL_RUN`] to the number of the run.
    pub(crate) async fn run(&self, cluster: &Cluster) -> Result<(), Error> {
        let tf = cluster.resource(&self.name).await?;
        let run = match self.run {
            Some(run) => run,
            None => self.active_run(cluster, &tf).await?,
        };
        let change = json!({"metadata": {"annotations": {CANCEL_RUN: run.to_string()}}});
        cluster.change(&tf, FIELD_MANAGER, &change).await?;
        let key = ObjectKey::of(&tf);
        print::line(&format!(
            "cancellation of run {run} of {key} requested: if the run has not changed any object, it ends; \
             otherwise the engine is interrupted, and the state is saved"
        ))?;
        print::line(&format!(
            "no run follows until the configuration changes, or: kubectl alustan reconcile {} -n {}",
            key.name, key.namespace
        ))
    }

    /// Returns the number of the active run: that of the last Job that has not finished. If the user may not list Jobs, that in the
    /// status, which omits drift checks of the applied configuration.
    ///
    /// # Errors
    /// If no run is active, or its number is unknown.
    async fn active_run(&self, cluster: &Cluster, tf: &Terraform) -> Result<i64, Error> {
        let list = of_runs(&self.name);
        let action = format!("list the Jobs of {}", cluster.key(&self.name));
        let active = match call(&action, cluster.api::<Job>().list(&list)).await {
            Ok(jobs) => last_active(&jobs.items),
            Err(error) if error.is_forbidden() => {
                return active_in_status(tf).ok_or_else(|| {
                    Error::Refused(format!(
                        "{}; to cancel a run, name it: kubectl alustan cancel {} RUN -n {}; current state: {}",
                        error.chain(),
                        self.name,
                        cluster.namespace,
                        situation(tf)
                    ))
                });
            }
            Err(error) => return Err(error),
        };
        active.ok_or_else(|| {
            Error::Refused(format!(
                "no run of {} is active; current state: {}",
                ObjectKey::of(tf),
                situation(tf)
            ))
        })
    }
}

/// Returns the highest run number of the Jobs that have not finished.
fn last_active(jobs: &[Job]) -> Option<i64> {
    let active = jobs.iter().filter(|job| !is_finished(job));
    active.filter_map(|job| number(&job.name_any())).max()
}

fn is_finished(job: &Job) -> bool {
    let status = job.status.as_ref();
    let conditions = status.and_then(|status| status.conditions.as_ref());
    conditions.into_iter().flatten().any(|condition| {
        matches!(condition.type_.as_str(), "Complete" | "Failed") && condition.status == "True"
    })
}

/// Returns the number of the active run in the status.
fn active_in_status(tf: &Terraform) -> Option<i64> {
    let active = tf.status.as_ref()?.active_run.as_ref()?;
    Some(active.number)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn job(name: &str, condition: &str) -> Job {
        serde_json::from_value(json!({
            "metadata": {"name": name},
            "status": {"conditions": [{"type": condition, "status": "True"}]},
        }))
        .unwrap()
    }

    #[test]
    fn active_run_is_that_of_the_last_unfinished_job() {
        let finished = [job("web-apply-9", "Complete"), job("web-plan-8", "Failed")];
        assert_eq!(last_active(&finished), None);
        let active = job("web-drift-10", "SuccessCriteriaMet");
        assert_eq!(last_active(&[&finished[..], &[active]].concat()), Some(10));
    }
}
