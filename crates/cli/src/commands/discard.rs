//! `discard`: discards the pending plan.

use alustan_api::{DISCARD_PLAN, ObjectKey};
use clap::Args;
use serde_json::json;

use crate::cluster::{Cluster, FIELD_MANAGER};
use crate::error::Error;
use crate::pending::announce;
use crate::print;

/// Discard the plan that waits for approval. It can then not be approved.
#[derive(Debug, Args)]
pub(crate) struct Discard {
    /// Name of the resource.
    name: String,
    /// Id of the plan. Refused if another plan waits for approval. Default: the plan that waits for approval.
    #[arg(value_name = "PLAN-ID")]
    plan: Option<String>,
}

impl Discard {
    /// Sets annotation [`DISCARD_PLAN`] to the id of the pending plan.
    pub(crate) async fn run(&self, cluster: &Cluster) -> Result<(), Error> {
        let (tf, pending) = announce(cluster, &self.name, self.plan.as_deref()).await?;
        let key = ObjectKey::of(&tf);
        let change = json!({"metadata": {"annotations": {DISCARD_PLAN: pending.id}}});
        cluster.change(&tf, FIELD_MANAGER, &change).await?;
        print::line(&format!(
            "discarded; for a new plan, change the module or the resource, or: kubectl alustan reconcile {} -n {}",
            key.name, key.namespace
        ))
    }
}
