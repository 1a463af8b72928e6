//! `reconcile`: requests a reconciliation and resets the retry budget.

use alustan_api::{APPLY_AT, RECONCILE_AT};
use clap::Args;
use k8s_openapi::jiff::Timestamp;
use serde_json::json;

use crate::cluster::Cluster;
use crate::error::Error;
use crate::selection::Selection;

/// Request a reconciliation and reset the retry budget.
#[derive(Debug, Args)]
pub(crate) struct Reconcile {
    #[command(flatten)]
    selection: Selection,
    /// Correct drift even with `driftDetection.mode: Report` or `Ignore`. Without this flag, the requested run only
    /// checks for drift in these modes.
    #[arg(long)]
    apply: bool,
}

impl Reconcile {
    /// Sets annotation [`RECONCILE_AT`]. With `--apply`, sets [`APPLY_AT`] to the same value. Without `--apply`,
    /// removes [`APPLY_AT`].
    pub(crate) async fn run(&self, cluster: &Cluster) -> Result<(), Error> {
        let now = Timestamp::now().to_string();
        let applies = self.apply.then_some(&now);
        let change = json!({"metadata": {"annotations": {RECONCILE_AT: now, APPLY_AT: applies}}});
        self.selection
            .change(cluster, &change, "reconcile requested")
            .await
    }
}
