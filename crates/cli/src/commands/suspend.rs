//! `suspend` and `resume`: whether new runs begin.

use clap::Args;
use serde_json::json;

use crate::cluster::Cluster;
use crate::error::Error;
use crate::selection::Selection;

/// Begin no new runs, neither to apply nor to destroy nor to look for drift.
#[derive(Debug, Args)]
pub(crate) struct Suspend {
    #[command(flatten)]
    selection: Selection,
}

impl Suspend {
    /// Suspends them.
    pub(crate) async fn run(&self, cluster: &Cluster) -> Result<(), Error> {
        let change = json!({"spec": {"suspend": true}});
        self.selection.change(cluster, &change, "suspended").await
    }
}

/// Let runs begin again.
#[derive(Debug, Args)]
pub(crate) struct Resume {
    #[command(flatten)]
    selection: Selection,
}

impl Resume {
    /// Resumes them.
    pub(crate) async fn run(&self, cluster: &Cluster) -> Result<(), Error> {
        let change = json!({"spec": {"suspend": false}});
        self.selection.change(cluster, &change, "resumed").await
    }
}
