//! `kubectl alustan`: commands for `Terraform` resources.

mod arguments;
mod cluster;
mod commands;
mod condition;
mod error;
mod finished_runs;
mod pending;
mod print;
mod record;
mod selection;
mod tree;

use std::process::ExitCode;

use clap::Parser;

use crate::arguments::Arguments;
use crate::error::Error;

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    match run(&Arguments::parse()).await {
        Ok(()) => ExitCode::SUCCESS,
        // Not a failure: the program that reads standard output, for example `head`, has read enough and closed the pipe.
        Err(error) if error.is_closed_pipe() => ExitCode::SUCCESS,
        Err(error) => {
            print::note(&format!("error: {}", error.chain()));
            ExitCode::FAILURE
        }
    }
}

async fn run(arguments: &Arguments) -> Result<(), Error> {
    // Ignore the result: `install_default` fails only if a crypto provider is already installed, and no other code of this program installs one.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let cluster = cluster::Cluster::connect(&arguments.cluster).await?;
    arguments.command.run(&cluster).await
}
