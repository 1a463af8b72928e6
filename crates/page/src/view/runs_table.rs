//! Rows of the table of runs.

use alustan_api::{RunStatus, TerraformRun};
use k8s_openapi::jiff::Timestamp;
use serde::Serialize;

use crate::view::moment::Moment;

/// Maximum number of runs in the table.
const MAX_RUNS: usize = 100;

/// Row of the table of runs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct RunRow {
    /// Number of the run. With `count` above 1: of the last run.
    pub(crate) number: i64,
    /// Number of the first run that the row describes.
    pub(crate) first_number: i64,
    /// Number of runs with the same result that the row describes.
    pub(crate) count: i64,
    /// Kind of the run.
    pub(crate) kind: &'static str,
    /// Cause of the run.
    pub(crate) trigger: String,
    /// First line of the commit message.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) commit: Option<String>,
    /// Result of the run. `None`: the record has no result.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) result: Option<String>,
    /// Reason of the failure.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) reason: Option<String>,
    /// Summary of the changes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) summary: Option<String>,
    /// User who approved the plan.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) approved_by: Option<String>,
    /// End time.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) finished: Option<Moment>,
    /// Duration in seconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) seconds: Option<i64>,
}

/// Builds the rows of the table: the records in `runs`, and the entries of `status.runs` without a record, newest first.
pub(crate) fn rows(runs: &[TerraformRun], entries: &[RunStatus], now: Timestamp) -> Vec<RunRow> {
    let without_record = entries
        .iter()
        .filter(|entry| !runs.iter().any(|run| run.describes(entry.number)));
    let mut rows: Vec<RunRow> = runs
        .iter()
        .map(|run| of_record(run, now))
        .chain(without_record.map(|entry| of_entry(entry, now)))
        .collect();
    rows.sort_by_key(|row| std::cmp::Reverse(row.number));
    rows.truncate(MAX_RUNS);
    rows
}

fn of_record(run: &TerraformRun, now: Timestamp) -> RunRow {
    let status = run.status.as_ref();
    let approval = run.spec.approval.as_ref();
    RunRow {
        number: status.map_or(run.spec.number, |status| status.last_number),
        first_number: run.spec.number,
        count: status.map_or(1, |status| status.count),
        kind: run.spec.kind.as_str(),
        trigger: run.spec.trigger.clone(),
        commit: run
            .spec
            .commit
            .as_ref()
            .map(|commit| commit.subject.clone()),
        result: status.map(|status| status.result.clone()),
        reason: status.and_then(|status| status.reason.clone()),
        summary: status.and_then(|status| status.summary.clone()),
        approved_by: approval.and_then(|approval| approval.by.clone()),
        finished: status.map(|status| Moment::new(status.finished_at.0, now)),
        seconds: status.map(|status| status.seconds),
    }
}

fn of_entry(entry: &RunStatus, now: Timestamp) -> RunRow {
    RunRow {
        number: entry.number,
        first_number: entry.number,
        count: 1,
        kind: entry.kind.as_str(),
        trigger: entry.trigger.clone(),
        commit: None,
        result: Some(entry.result.clone()),
        reason: entry.reason.clone(),
        summary: entry.plan.clone(),
        approved_by: None,
        finished: entry.time.as_ref().map(|time| Moment::new(time.0, now)),
        seconds: Some(entry.seconds),
    }
}
