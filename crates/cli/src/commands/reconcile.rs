//! `reconcile`: asks the operator to try again now, with a new budget.

use alustan_api::{APPLY_AT, RECONCILE_AT};
use clap::Args;
use k8s_openapi::jiff::Timestamp;
use serde_json::json;

use crate::cluster::Cluster;
use crate::error::Error;
use crate::selection::Selection;

/// Ask for a new look now, with a new retry budget.
#[derive(Debug, Args)]
pub(crate) struct Reconcile {
    #[command(flatten)]
    selection: Selection,
    /// Apply also what `driftDetection.mode: Report` and `Ignore` leave as it is; without it, these are looked at only.
    #[arg(long)]
    apply: bool,
}

impl Reconcile {
    /// Asks for it.
    pub(crate) async fn run(&self, cluster: &Cluster) -> Result<(), Error> {
        let now = Timestamp::now().to_string();
        let applies = self.apply.then_some(&now);
        let change = json!({"metadata": {"annotations": {RECONCILE_AT: now, APPLY_AT: applies}}});
        self.selection
            .change(cluster, &change, "asked to reconcile")
            .await
    }
}
