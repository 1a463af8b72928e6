//! Details of a run, which the runner writes to the run report for the [`TerraformRun`](crate::TerraformRun).

use serde::{Deserialize, Serialize};

use crate::change_set::ChangeSet;
use crate::terraform_run::RunLog;

/// Details of a run. They contain neither sensitive values nor known secret values.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct RunDetails {
    /// Number of the run.
    pub number: i64,
    /// Changes in the plan. `None` without a plan.
    pub changes: Option<ChangeSet>,
    /// Text of the plan, as the engine prints it.
    pub plan: Option<String>,
    /// Log of the run.
    pub log: RunLog,
}
