//! View models of the queues: plans that wait for approval, and resources with drift.

use std::sync::Arc;

use k8s_openapi::jiff::Timestamp;
use serde::Serialize;

use crate::row::Row;
use crate::view::list::ListedRow;
use crate::view::moment::Moment;

/// Maximum number of resources in a queue.
const MAX_ENTRIES: usize = 500;

/// A resource in a queue.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct QueueEntry {
    /// The resource.
    #[serde(flatten)]
    pub(crate) listed: ListedRow,
    /// Time since which the resource is in the queue.
    pub(crate) queued_since: Option<Moment>,
}

/// View model of a queue, oldest entries first.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct QueueView {
    /// Number of resources.
    pub(crate) total: usize,
    /// Number of resources whose plan or drift destroys objects.
    pub(crate) destructive: usize,
    /// The first 500 resources.
    pub(crate) entries: Vec<QueueEntry>,
}

/// Builds the queue of the plans in `rows` that wait for approval.
pub(crate) fn approvals(rows: &[Arc<Row>], now: Timestamp) -> QueueView {
    let waiting = rows.iter().filter_map(|row| {
        let plan = row.pending.as_ref()?;
        Some((row, row.since, plan.destroy))
    });
    queue(waiting.collect(), now)
}

/// Builds the queue of the resources in `rows` with drift.
pub(crate) fn drift(rows: &[Arc<Row>], now: Timestamp) -> QueueView {
    let drifted = rows.iter().filter_map(|row| {
        let drift = row.drift.as_ref()?;
        Some((row, Some(drift.since), drift.destroy))
    });
    queue(drifted.collect(), now)
}

/// Builds a queue of resources, each with the time since which it is in the queue and the number of objects to destroy.
fn queue(mut queued: Vec<(&Arc<Row>, Option<Timestamp>, i64)>, now: Timestamp) -> QueueView {
    queued.sort_by_key(|(row, since, _)| (since.is_none(), *since, &row.namespace, &row.name));
    let entries = queued
        .iter()
        .take(MAX_ENTRIES)
        .map(|(row, since, _)| QueueEntry {
            listed: ListedRow::new(row, now),
            queued_since: since.map(|since| Moment::new(since, now)),
        });
    QueueView {
        total: queued.len(),
        destructive: queued.iter().filter(|(_, _, destroy)| *destroy > 0).count(),
        entries: entries.collect(),
    }
}
