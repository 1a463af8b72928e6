//! `state`: reads and writes a managed state.

mod check;
mod managed;
mod pull;
mod push;
mod slots;

use clap::{Args, Subcommand};

use crate::cluster::Cluster;
use crate::error::Error;

/// Read or write a managed state.
#[derive(Debug, Args)]
pub(crate) struct State {
    #[command(subcommand)]
    command: StateCommand,
}

#[derive(Debug, Subcommand)]
enum StateCommand {
    Pull(pull::Pull),
    Push(push::Push),
}

impl State {
    pub(crate) async fn run(&self, cluster: &Cluster) -> Result<(), Error> {
        match &self.command {
            StateCommand::Pull(pull) => pull.run(cluster).await,
            StateCommand::Push(push) => push.run(cluster).await,
        }
    }
}
