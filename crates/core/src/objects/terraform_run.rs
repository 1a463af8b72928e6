//! The `TerraformRun`: the record of a finished run.

use alustan_api::change_set::ChangeSet;
use alustan_api::labels::{self, BYTES, Component, WRITTEN_AT};
use alustan_api::report::{RunReport, RunResult};
use alustan_api::run::{ApprovalGiven, RecordedRun, RunDetails, RunSpec};
use alustan_api::{
    MAX_RUN_BYTES, RecordedValues, RunApproval, RunLog, Terraform, TerraformRef, TerraformRun,
    TerraformRunSpec, TerraformRunStatus, run_name,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
use k8s_openapi::jiff::Unit;
use kube_core::ResourceExt;

use crate::model::progress::json_size;
use crate::model::summary::change_counts;

/// Inputs of [`terraform_run`].
pub struct RunFacts<'a> {
    /// Inputs of the run.
    pub run: &'a RunSpec,
    /// Validated report of the run.
    pub report: &'a RunReport,
    /// Validated details of the run.
    pub details: Option<RunDetails>,
    /// Last approval for which a run was started.
    pub approval: Option<&'a ApprovalGiven>,
    /// Content of the record.
    pub values: RecordedValues,
}

/// Builds the record of a run of `tf`. `record`: number in its name, and the number of runs for which it stands.
pub fn terraform_run(tf: &Terraform, facts: RunFacts<'_>, record: &RecordedRun) -> TerraformRun {
    let RunFacts { run, report, .. } = facts;
    let (name, uid) = (tf.name_any(), tf.uid().unwrap_or_default());
    let details = facts.details.unwrap_or_default();
    let (failure, asks) = (report.failure.as_ref(), report.asks.as_ref());
    let changes = details.changes.or_else(|| report.changes.clone());
    // Also a retry applies an approved plan.
    let approval = facts
        .approval
        .filter(|approval| approval.run == report.number);
    let duration = report.finished_at.duration_since(report.started_at);
    let mut written = TerraformRun {
        metadata: ObjectMeta {
            name: Some(run_name(&name, &uid, record.number)),
            namespace: tf.namespace(),
            labels: Some(labels::of(&name, &uid, Component::History)),
            ..ObjectMeta::default()
        },
        spec: TerraformRunSpec {
            terraform: TerraformRef { name, uid },
            number: record.number,
            kind: run.kind,
            trigger: run.trigger.to_string(),
            revision: run.revision.clone(),
            commit: run.commit.clone(),
            image: Some(run.image.clone()),
            approval: approval.map(|approval| RunApproval {
                plan: approval.plan.clone(),
                by: approval.user.clone(),
                at: approval.at.map(Time),
            }),
            job: run.job.clone(),
            started_at: Time(report.started_at),
        },
        status: Some(TerraformRunStatus {
            result: report.result.as_str().to_owned(),
            reason: failure.map(|failure| failure.reason.clone()),
            message: failure.map(|failure| message(&failure.message, facts.values)),
            count: record.count,
            last_number: report.number,
            finished_at: Time(report.finished_at),
            seconds: duration
                .round(Unit::Second)
                .map_or(0, |took| took.as_secs()),
            steps: report.took,
            engine: report.engine.clone().or_else(|| run.engine.clone()),
            summary: changes.as_ref().map(change_counts),
            approval_reasons: asks.map(|asks| asks.because.clone()).unwrap_or_default(),
            plan_id: asks
                .filter(|_| report.result == RunResult::Changes)
                .map(|asks| asks.id.clone()),
            changes,
            plan: details.plan,
            log: details.log,
        }),
    };
    let bytes = shorten(&mut written).to_string();
    let annotations = written.annotations_mut();
    annotations.insert(BYTES.to_owned(), bytes);
    annotations.insert(WRITTEN_AT.to_owned(), report.finished_at.to_string());
    written
}

/// Returns the message of a failure. With [`RecordedValues::Names`] its first line: the other lines are output of the engine.
fn message(message: &str, values: RecordedValues) -> String {
    match values {
        RecordedValues::Full => message.to_owned(),
        RecordedValues::Names => message.lines().next().unwrap_or_default().to_owned(),
    }
}

/// Shortens texts of `run` until it has at most [`MAX_RUN_BYTES`] as JSON, in which a character may take several bytes. Returns its size.
fn shorten(run: &mut TerraformRun) -> usize {
    // Labels, annotations and fields that the API server adds.
    const METADATA: usize = 2 * 1024;
    let steps: [fn(&mut TerraformRunStatus); 4] = [
        |status| cut_log(&mut status.log),
        |status| status.plan.iter_mut().for_each(cut_plan),
        |status| status.changes = status.changes.as_ref().map(ChangeSet::summary),
        |status| (status.plan, status.log) = (None, RunLog::default()),
    ];
    for step in steps {
        if json_size(run) <= MAX_RUN_BYTES - METADATA {
            break;
        }
        run.status.iter_mut().for_each(step);
    }
    json_size(run)
}

/// Keeps the last quarter of the end of a log.
fn cut_log(log: &mut RunLog) {
    let start = log.tail.ceil_char_boundary(log.tail.len() / 4 * 3);
    log.tail.drain(..start);
    log.omitted_bytes = log
        .omitted_bytes
        .saturating_add(i64::try_from(start).unwrap_or(i64::MAX));
}

/// Keeps the first quarter of the text of a plan.
fn cut_plan(plan: &mut String) {
    let end = plan.floor_char_boundary(plan.len() / 4);
    let omitted = plan.len() - end;
    plan.truncate(end);
    let note = format!("\n[{omitted} more bytes of the plan are not stored]");
    plan.push_str(&note);
}
