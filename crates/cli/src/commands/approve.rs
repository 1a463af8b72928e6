//! `approve`: approves the pending plan.

use alustan_api::ObjectKey;
use clap::Args;
use serde_json::json;

use crate::cluster::{Cluster, FIELD_MANAGER};
use crate::error::Error;
use crate::pending::announce;
use crate::print;

/// Approve the plan that waits for approval.
#[derive(Debug, Args)]
pub(crate) struct Approve {
    /// Name of the resource.
    name: String,
    /// Id of the plan. Refused if another plan waits for approval. Default: the plan that waits for approval.
    #[arg(value_name = "PLAN-ID")]
    plan: Option<String>,
    /// Field manager of the change. It does not identify the user: `status.plan.approvedBy` contains the user as authenticated by the API server.
    #[arg(long, default_value = FIELD_MANAGER)]
    field_manager: String,
}

impl Approve {
    /// Sets `spec.approval` to the pending plan and the user.
    pub(crate) async fn run(&self, cluster: &Cluster) -> Result<(), Error> {
        let (tf, pending) = announce(cluster, &self.name, self.plan.as_deref()).await?;
        let key = ObjectKey::of(&tf);
        let user = cluster.user().await?;
        let approval = json!({"spec": {"approval": {"plan": pending.id, "by": user}}});
        cluster.change(&tf, &self.field_manager, &approval).await?;
        print::line(&format!(
            "approved; to wait for the apply: kubectl alustan wait {} -n {}",
            key.name, key.namespace
        ))
    }
}
