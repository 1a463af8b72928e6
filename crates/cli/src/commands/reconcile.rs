//! `reconcile`: requests a reconcile with a new retry budget.

use alustan_api::{APPLY_AT, RECONCILE_AT};
use clap::Args;
use k8s_openapi::jiff::Timestamp;
use serde_json::json;

use crate::cluster::Cluster;
use crate::error::Error;
use crate::selection::Selection;

/// Request a reconcile with a new retry budget.
#[derive(Debug, Args)]
pub(crate) struct Reconcile {
    #[command(flatten)]
    selection: Selection,
    /// Also correct drift with `driftDetection.mode: Report` or `Ignore`; the default for these modes is only a drift
    /// check.
    #[arg(long)]
    apply: bool,
}

impl Reconcile {
    /// Sets the annotation `reconcile-at`. Sets `apply-at` with `--apply`, and removes it otherwise.
    pub(crate) async fn run(&self, cluster: &Cluster) -> Result<(), Error> {
        let now = Timestamp::now().to_string();
        let applies = self.apply.then_some(&now);
        let change = json!({"metadata": {"annotations": {RECONCILE_AT: now, APPLY_AT: applies}}});
        self.selection
            .change(cluster, &change, "reconcile requested")
            .await
    }
}
