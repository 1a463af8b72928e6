//! Deletion of the Jobs of earlier runs.

use alustan_api::run::RunPhase;
use kube_core::ResourceExt;

use crate::decide::case::ReconcileCase;
use crate::job_retention::KEPT_PER_RESOURCE;
use crate::step::Step;

/// Returns the steps that delete finished runner Jobs beyond [`KEPT_PER_RESOURCE`], and those beyond the limit of all resources. The reports
/// of the deleted Jobs stay in the history. The Job of the pending plan is kept, because its log shows the plan to approve. A Job whose
/// engine container has terminated is deleted at once if a sidecar still runs, because the sidecar may never terminate.
pub(super) fn delete_old_jobs(case: &ReconcileCase<'_>) -> Vec<Step> {
    let current = &case.current;
    let pending_run = case.history.pending.as_ref().map(|plan| plan.run);
    let is_recorded = |number: i64| number < current.number || current.phase == RunPhase::Recorded;
    let (lingering, finished): (Vec<_>, Vec<_>) = case
        .seen
        .jobs
        .iter()
        .rev()
        .filter(|(number, job)| job.finished && is_recorded(**number))
        .partition(|(_, job)| job.lingers);
    let removable = finished
        .into_iter()
        .filter(|(number, _)| Some(**number) != pending_run)
        .enumerate()
        .filter(|(newer, (_, job))| *newer >= KEPT_PER_RESOURCE || job.is_beyond_limit)
        .map(|(_, numbered_job)| numbered_job);
    lingering
        .into_iter()
        .chain(removable)
        .map(|(_, job)| Step::DeleteJob {
            namespace: case.tf.namespace().unwrap_or_default(),
            name: job.name.clone(),
            uid: job.uid.clone(),
        })
        .collect()
}
