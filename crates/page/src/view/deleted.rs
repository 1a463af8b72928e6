//! Resource that does not exist, with the runs of deleted resources of its name.

use alustan_api::{ObjectKey, TerraformRun};
use k8s_openapi::jiff::Timestamp;
use serde::Serialize;

use crate::view::runs_table::{self, RunRow};

/// View model of a deleted resource.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct DeletedView {
    /// Namespace of the resource.
    pub(crate) namespace: String,
    /// Name of the resource.
    pub(crate) name: String,
    /// Runs, newest first.
    pub(crate) runs: Vec<RunRow>,
}

/// Builds the view model of the deleted resource `key` with the records `runs`.
pub(crate) fn deleted(key: ObjectKey, runs: &[TerraformRun], now: Timestamp) -> DeletedView {
    DeletedView {
        namespace: key.namespace,
        name: key.name,
        runs: runs_table::rows(runs, &[], now),
    }
}
