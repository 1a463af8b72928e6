//! Builds the [`Context`] from the flags of the operator.

use std::num::NonZero;
use std::sync::Arc;

use alustan_core::job_retention::JobRetention;
use alustan_core::run_retention::RunRetention;
use alustan_source::{CacheOptions, FairSemaphore, GitCache};
use anyhow::{Context as _, Result};
use kube::Client;
use parking_lot::Mutex;
use tokio::sync::mpsc;

use crate::apply::pruning::MAX_CONCURRENT_PRUNINGS;
use crate::args::Config;
use crate::clock::Clock;
use crate::context::Context;
use crate::evaluator::Evaluator;
use crate::fail_point::FailPoint;
use crate::github_app::{self, AppTokens};
use crate::health::Health;
use crate::indexed_store::IndexedStore;
use crate::leader::Leader;
use crate::metrics::Metrics;
use crate::mirrors::Mirrors;
use crate::notify::{self, Notifier};
use crate::queue::Dispatcher;
use crate::recent_reads::RecentInputs;
use crate::remote::answers::Answers;
use crate::remote::context_store::ContextStore;
use crate::remote::git_refs::References;
use crate::resource::{Guarded, Ref};
use crate::run_history_limits::RunHistoryLimits;
use crate::signing::Signer;
use crate::upstream_activity::UpstreamActivity;
use crate::watch::allow_lists::AllowLists;
use crate::watch::dynamic::DynamicWatches;

/// Components that become fields of the [`Context`].
pub(crate) struct ContextParts {
    pub(crate) client: Client,
    pub(crate) clock: Clock,
    pub(crate) signer: Arc<Signer>,
    pub(crate) wake: mpsc::UnboundedSender<Ref>,
    pub(crate) health: Health,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) leader: Leader,
    pub(crate) dispatcher: Arc<Dispatcher>,
}

#[cfg(test)]
impl ContextParts {
    /// Returns the parts of an operator that leads, with `client`, one slot and a fixed signing key.
    pub(crate) fn of_test(client: Client) -> Self {
        use alustan_core::queue::SlotLimits;

        let (wake, _) = mpsc::unbounded_channel();
        Self {
            client,
            clock: Clock::system(),
            signer: Arc::new(Signer::new("alustan-signing-key", &[7; 32])),
            wake: wake.clone(),
            health: Health::new(Leader::leading()),
            leader: Leader::leading(),
            metrics: Metrics::new(),
            dispatcher: Arc::new(Dispatcher::new(SlotLimits::new(1, 0), wake)),
        }
    }
}

/// Returns the context of an operator with `parts`, the git cache in folder `cache`, base image `registry.test/base:1`, `mirrors` and `resources`.
#[cfg(test)]
pub(crate) fn context_of_test(
    parts: ContextParts,
    cache: &std::path::Path,
    mirrors: Mirrors,
    resources: IndexedStore<Guarded>,
) -> Arc<Context> {
    use clap::Parser as _;

    let _ = rustls::crypto::ring::default_provider().install_default();
    let flags = [
        "alustan",
        "--base-image=registry.test/base:1",
        "--operator-image=registry.test/operator:1",
    ];
    let cache = format!("--cache-dir={}", cache.display());
    let config = Config::try_parse_from(flags.into_iter().chain([&*cache])).unwrap();
    Arc::new(context(parts, &config, mirrors, resources).unwrap())
}

/// Returns the maximum number of concurrent git processes that access servers: `configured`, or with 0 four per core, at most 8. They mostly wait
/// for the network, but each may use 48 MiB of memory.
fn git_concurrency(configured: u16) -> usize {
    if configured > 0 {
        return configured.into();
    }
    let cores = std::thread::available_parallelism().map_or(1, NonZero::get);
    (4 * cores).min(8)
}

/// Builds the [`Context`]: opens the caches on disk, and creates the clients and in-memory caches.
///
/// # Errors
/// If the cache directory is unusable, or a flag or environment variable is invalid.
pub(crate) fn context(
    context_parts: ContextParts,
    config: &Config,
    mirrors: Mirrors,
    resources: IndexedStore<Guarded>,
) -> Result<Context> {
    let ContextParts {
        client,
        clock,
        signer,
        wake,
        health,
        metrics,
        leader,
        dispatcher,
    } = context_parts;
    let options = CacheOptions {
        cache_bytes: config.git_cache_mib << 20,
        at_once: git_concurrency(config.git_concurrency),
        ..CacheOptions::default()
    };
    let git = GitCache::with_options(config.cache_dir.join("repositories"), options);
    let git = Arc::new(git.with_context(|| {
        format!(
            "--cache-dir: failed to open the git cache in {}",
            config.cache_dir.display()
        )
    })?);
    let contexts = ContextStore::new(git.contexts());
    let settings = config.settings()?;
    let instance = std::env::var("HOSTNAME").unwrap_or_else(|_| "alustan".to_owned());
    let notifier = Notifier::new(notify::NotifierParts {
        kube: client.clone(),
        instance: instance.clone(),
        receivers: config.notifications.clone(),
        ca_pem: settings.ca_bundle.as_deref(),
        page_url: config.page_url.clone(),
        resources: resources.clone(),
        wake: wake.clone(),
    })?;
    let program =
        std::env::current_exe().context("failed to find the executable of the operator")?;
    let registry = alustan_registry::Registry::new(alustan_registry::Options {
        insecure_hosts: settings.insecure_registries.clone(),
        ca_pem: settings.ca_bundle.iter().cloned().collect(),
        ..alustan_registry::Options::default()
    })
    .context("failed to create the registry client")?;
    let app_tokens = AppTokens::new(
        clock.clone(),
        Box::new(|app, now| Box::pin(async move { github_app::request(&app, now).await })),
    );
    Ok(Context {
        instance,
        client: client.clone(),
        clock,
        settings,
        driver: config.driver,
        registry,
        leader,
        signer,
        dispatcher,
        mirrors: Arc::new(mirrors),
        resources,
        references: References::new(git.clone()),
        git,
        app_tokens,
        contexts: Arc::new(contexts),
        prunings: FairSemaphore::new(MAX_CONCURRENT_PRUNINGS),
        artifacts: Arc::default(),
        answers: Answers::new(&wake, &metrics),
        notifier,
        allowed: Arc::new(AllowLists::open(config.allowed.clone())?),
        objects: DynamicWatches::new(client, wake.clone()),
        inputs: RecentInputs::new(),
        evaluator: Evaluator::new(program),
        upstream_activity: UpstreamActivity::new(wake),
        memory: Arc::default(),
        run_history: RunHistoryLimits::new(RunRetention {
            keep_deleted: config.keep_deleted_runs,
            max_bytes: config.run_history_bytes,
        }),
        job_retention: Mutex::new(JobRetention::new(config.keep_jobs)),
        verified_objects: Arc::default(),
        fail_point: FailPoint::from_environment()?,
        health,
        metrics,
    })
}
