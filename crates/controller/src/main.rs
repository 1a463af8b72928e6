//! The operator: watches `Terraform` resources and does what [`alustan_core`] decides.

mod allowed;
mod backoff;
mod config;
mod context;
mod contexts;
mod dispatch;
mod enact;
mod error;
mod evaluator;
mod fail_point;
#[cfg(test)]
mod fake_api;
mod followers;
mod http;
mod leader;
mod logging;
mod looks;
mod lookups;
mod metrics;
mod mirror;
mod notifier;
mod objects;
mod observe;
mod pruning;
mod pushes;
mod questions;
mod reconcile;
mod references;
mod report;
mod run;
mod signing;
mod sync;
mod unreadable;
mod version;
mod watches;
mod webhook;

use std::sync::Arc;

use alustan_api::{Terraform, labels};
use anyhow::{Context as _, Result};
use clap::Parser;
use kube::ResourceExt;
use kube::core::DeserializeGuard;
use kube::runtime::reflector::ObjectRef;

/// A resource that may be unreadable: one of those does not stop the watch of the others.
pub(crate) type Guarded = DeserializeGuard<Terraform>;
/// The name of a resource.
pub(crate) type Ref = ObjectRef<Guarded>;

/// Those of `all` that can be read.
pub(crate) fn readable(all: &[Arc<Guarded>]) -> impl Iterator<Item = &Terraform> {
    all.iter().filter_map(|it| it.0.as_ref().ok())
}

/// Whether `object` was made for `tf`: not by somebody else, and not for an earlier resource of the
/// same name. Of objects elsewhere only builds are, and what is lent to them.
pub(crate) fn is_made_for(tf: &Terraform, object: &impl ResourceExt) -> bool {
    object.labels().get(labels::UID) == tf.metadata.uid.as_ref()
        && object.namespace() == tf.namespace()
}

fn main() -> Result<()> {
    // A child process has neither flags nor environment.
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
    let config = config::Config::parse();
    let level = logging::start(&config)?;
    tokio::spawn(level.follow());
    config.check()?;
    if rustls::crypto::ring::default_provider()
        .install_default()
        .is_err()
    {
        anyhow::bail!("a TLS provider is installed already");
    }
    Box::pin(run::run(config)).await.context("run the operator")
}
