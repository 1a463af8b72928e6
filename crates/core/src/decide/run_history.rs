//! Records finished runs as `TerraformRun`.

use alustan_api::Terraform;
use alustan_api::report::{RunReport, RunResult};
use alustan_api::run::{
    History, PLAN_REQUESTED, RecordedRun, RunDetails, RunKind, RunSpec, Trigger,
};
use alustan_api::run_name;
use kube_core::ResourceExt;

use crate::model::run_details;
use crate::objects::terraform_run::{RunFacts, terraform_run};
use crate::step::Step;

/// Returns the steps that record `report` as `TerraformRun`, and that delete the oldest records beyond `spec.history.runs`. Adds the record to
/// `next`. `history`: the history before the run. A repeated failure, or a repeated drift check with the same differences, updates the last
/// record.
pub(super) fn record_run(
    tf: &Terraform,
    run: &RunSpec,
    report: &RunReport,
    details: Option<&RunDetails>,
    history: &History,
    next: &mut History,
) -> Vec<Step> {
    let limit = usize::try_from(tf.spec.history.runs).unwrap_or(1);
    let last = history.records.first().filter(|_| {
        let last = history.reports.first();
        let is_repeated = !run.is_requested_plan() && is_repeated(last, report);
        is_repeated || is_same_failure(last, run, report)
    });
    let record = RecordedRun {
        number: last.map_or(report.number, |last| last.number),
        count: last.map_or(1, |last| last.count.saturating_add(1)),
    };
    let details = details.filter(|details| details.number == report.number);
    let facts = RunFacts {
        run,
        report,
        details: details
            .map(|details| run_details::details(details.clone(), tf.spec.history.values)),
        approval: history.approved.as_ref(),
        values: tf.spec.history.values,
    };
    let mut steps = vec![Step::RecordRun(Box::new(terraform_run(tf, facts, &record)))];
    next.records.retain(|other| other.number != record.number);
    next.records.insert(0, record);
    let (name, uid) = (tf.name_any(), tf.uid().unwrap_or_default());
    let excess = next.records.split_off(limit.min(next.records.len()));
    let excess = excess.iter().map(|old| run_name(&name, &uid, old.number));
    steps.extend(excess.map(Step::DeleteRun));
    steps
}

/// Whether `run` is a retry that failed for the same reason as the last run. Messages of the same failure may differ, for example by the name
/// of the pod.
fn is_same_failure(last: Option<&RunReport>, run: &RunSpec, report: &RunReport) -> bool {
    let is_retry = matches!(run.trigger, Trigger::Retry { .. });
    is_retry
        && report.result == RunResult::Failed
        && last.is_some_and(|last| {
            let reason = |report: &RunReport| {
                let failure = report.failure.as_ref();
                failure.map(|failure| (failure.class, failure.reason.clone()))
            };
            last.kind == report.kind && reason(last) == reason(report)
        })
}

fn digest(report: &RunReport) -> Option<&String> {
    Some(&report.changes.as_ref()?.digest)
}

/// Whether `report` and `last` are reports of drift checks that found the same differences. `report` then replaces `last`, so that repeated
/// drift checks do not displace the reports of other runs from the history.
pub(super) fn is_repeated(last: Option<&RunReport>, report: &RunReport) -> bool {
    last.is_some_and(|last| {
        !last.trigger.starts_with(PLAN_REQUESTED)
            && (last.kind, last.result) == (RunKind::Drift, RunResult::Changes)
            && (report.kind, report.result) == (last.kind, last.result)
            && digest(last) == digest(report)
    })
}
