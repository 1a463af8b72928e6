//! `suspend` and `resume`: stop and allow new runs.

use clap::Args;
use serde_json::json;

use crate::cluster::Cluster;
use crate::error::Error;
use crate::selection::Selection;

/// Start no new runs: no apply, no destroy and no drift check.
#[derive(Debug, Args)]
pub(crate) struct Suspend {
    #[command(flatten)]
    selection: Selection,
}

impl Suspend {
    /// Suspends the selected resources.
    pub(crate) async fn run(&self, cluster: &Cluster) -> Result<(), Error> {
        let change = json!({"spec": {"suspend": true}});
        self.selection.change(cluster, &change, "suspended").await
    }
}

/// Allow new runs again.
#[derive(Debug, Args)]
pub(crate) struct Resume {
    #[command(flatten)]
    selection: Selection,
}

impl Resume {
    /// Resumes the selected resources.
    pub(crate) async fn run(&self, cluster: &Cluster) -> Result<(), Error> {
        let change = json!({"spec": {"suspend": false}});
        self.selection.change(cluster, &change, "resumed").await
    }
}
