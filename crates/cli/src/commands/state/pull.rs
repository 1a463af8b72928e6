//! `state pull`: prints the state.

use std::sync::Arc;

use clap::Args;

use super::managed::managed;
use super::slots::{NoSlots, open};
use crate::cluster::Cluster;
use crate::error::Error;
use crate::print;

/// Print the state; it contains secrets.
#[derive(Debug, Args)]
pub(crate) struct Pull {
    /// Name of the resource.
    name: String,
}

impl Pull {
    pub(crate) async fn run(&self, cluster: &Cluster) -> Result<(), Error> {
        let tf = cluster.resource(&self.name).await?;
        let record = managed(cluster, &tf).await?;
        let store = open(&record, Vec::new(), Arc::new(NoSlots), "pull")
            .await
            .map_err(|source| Error::State {
                what: format!("pull the state of {}", record.key),
                source,
            })?;
        if let Some(state) = store.get().await {
            return print::bytes(&state);
        }
        print::note(&format!("{} has no state", record.key));
        Ok(())
    }
}
