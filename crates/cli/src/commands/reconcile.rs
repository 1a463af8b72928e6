//! `reconcile`: asks the operator to try again now, with a new budget.

use alustan_api::RECONCILE_AT;
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
}

impl Reconcile {
    /// Asks for it.
    pub(crate) async fn run(&self, cluster: &Cluster) -> Result<(), Error> {
        let now = Timestamp::now().to_string();
        let change = json!({"metadata": {"annotations": {RECONCILE_AT: now}}});
        self.selection
            .change(cluster, &change, "asked to reconcile")
            .await
    }
}
