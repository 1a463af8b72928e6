//! Deletion of the Jobs of earlier runs.

use alustan_api::run::RunPhase;
use kube_core::ResourceExt;

use crate::decide::case::ReconcileCase;
use crate::step::Step;

/// Maximum number of finished runner Jobs kept for `kubectl logs`.
const KEPT_JOBS: usize = 3;

/// Returns the steps that delete finished runner Jobs beyond [`KEPT_JOBS`]. The reports of the deleted Jobs stay in the history. The Job of
/// the pending plan is kept, because its log shows the plan to approve. A Job whose engine container has terminated is deleted at once if a
/// sidecar still runs, because the sidecar may never terminate.
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
        .filter(|(number, _)| Some(**number) != pending_run);
    lingering
        .into_iter()
        .chain(removable.skip(KEPT_JOBS))
        .map(|(_, job)| Step::DeleteJob {
            namespace: case.tf.namespace().unwrap_or_default(),
            name: job.name.clone(),
            uid: job.uid.clone(),
        })
        .collect()
}
