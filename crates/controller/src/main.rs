//! The operator: watches `Terraform` resources and applies the decisions of [`alustan_core`].

mod apply;
mod args;
mod attempt;
mod background_tasks;
mod call;
mod cli_config;
mod clock;
#[cfg(test)]
mod complexity;
mod consistent_list;
mod context;
mod context_builder;
mod error;
mod evaluator;
mod events;
mod fail_point;
#[cfg(test)]
mod fake_api;
#[cfg(test)]
mod footprint;
mod forget;
mod github_app;
mod health;
mod http;
mod indexed_store;
mod leader;
mod lenient;
mod logging;
mod memory;
#[cfg(test)]
mod memory_cluster;
mod metacontroller;
mod metrics;
mod mirrors;
mod native_driver;
mod notify;
mod observe;
mod pod_defaults;
mod push_events;
mod queue;
mod recent_reads;
mod reconcile;
mod reconciliation;
mod remote;
mod requeue;
mod resource;
mod response_body;
mod run_history_limits;
mod run_retention;
#[cfg(test)]
mod self_signed;
mod signing;
mod slots;
mod standard_webhooks;
mod status;
mod step_name;
#[cfg(test)]
mod stories;
mod unreadable;
mod upstream_activity;
mod verified_objects;
mod version;
#[cfg(test)]
mod visits;
mod wait_index;
mod watch;
mod wiring;
mod write_through_cache;

use anyhow::{Context as _, Result};
use clap::Parser;

fn main() -> Result<()> {
    // The evaluator starts this executable as a child process, with this argument only and without environment variables.
    if std::env::args_os()
        .nth(1)
        .is_some_and(|argument| argument == evaluator::ARGUMENT)
    {
        return evaluator::evaluate_request();
    }
    operate()
}

#[tokio::main]
async fn operate() -> Result<()> {
    let config = args::Config::parse();
    let level = logging::start(&config)?;
    tokio::spawn(level.follow());
    config.check()?;
    if rustls::crypto::ring::default_provider()
        .install_default()
        .is_err()
    {
        anyhow::bail!("a TLS provider is already installed");
    }
    Box::pin(wiring::run(config))
        .await
        .context("failed to run the operator")
}
