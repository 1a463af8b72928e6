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
mod log_flags;
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
mod page;
mod page_url;
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
mod shutdown;
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
mod watch_pace;
mod wiring;
mod write_through_cache;

use anyhow::{Context as _, Result};
use clap::Parser;

fn main() -> Result<()> {
    let first = std::env::args_os().nth(1);
    // The evaluator starts this executable as a child process, with this argument only and without environment variables.
    if first
        .as_ref()
        .is_some_and(|argument| argument == evaluator::ARGUMENT)
    {
        return evaluator::evaluate_request();
    }
    if first.is_some_and(|argument| argument == page::ARGUMENT) {
        return serve_page();
    }
    operate()
}

#[tokio::main]
async fn operate() -> Result<()> {
    let config = args::Config::parse();
    let level = logging::start(&config.log)?;
    tokio::spawn(level.follow());
    config.check()?;
    install_tls_provider()?;
    Box::pin(wiring::run(config))
        .await
        .context("failed to run the operator")
}

#[tokio::main]
async fn serve_page() -> Result<()> {
    let arguments = page::PageArguments::parse_from(std::env::args_os().skip(1));
    let level = logging::start(&arguments.log)?;
    tokio::spawn(level.follow());
    install_tls_provider()?;
    page::run(arguments)
        .await
        .context("failed to serve the page")
}

fn install_tls_provider() -> Result<()> {
    if rustls::crypto::ring::default_provider()
        .install_default()
        .is_err()
    {
        anyhow::bail!("a TLS provider is already installed");
    }
    Ok(())
}
