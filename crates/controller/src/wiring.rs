//! Startup and shutdown of the operator: leader election, watches, caches, controller and HTTP server.

use std::sync::Arc;
use std::time::Duration;

use alustan_core::leader_election::Identity;
use alustan_core::queue::SlotLimits;
use anyhow::{Context as _, Result, bail};
use futures::StreamExt;
use futures::stream::{self, Stream};
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{ConfigMap, PersistentVolumeClaim, Pod, Secret};
use kube::api::PartialObjectMeta;
use kube::client::retry::{InvalidBackoff, RetryPolicy};
use kube::client::{Body, ClientBuilder};
use kube::runtime::{Controller, controller};
use kube::{Client, ResourceExt};
use parking_lot::Mutex;
use ring::rand::{SecureRandom, SystemRandom};
use tokio::sync::{mpsc, watch};
use tower::buffer::BufferLayer;
use tower::retry::RetryLayer;
use tower::util::MapRequestLayer;
use tracing::{debug, info};

use crate::args::Config;
use crate::background_tasks::{
    clean_up_deleted, mark_jobs_beyond_limit, reconcile_all_when_leading, refresh_queue_positions,
    set_ready_when_listed, sweep_git_cache,
};
use crate::clock::Clock;
use crate::consistent_list;
use crate::context::Context;
use crate::context_builder::{ContextParts, context};
use crate::health::Health;
use crate::http::{self, Listeners, MetricsSources, PushRequest, WebhookEndpoints};
use crate::leader::election_thread::run_with_election;
use crate::leader::{Election, Fence, Leader};
use crate::metacontroller::SyncHandler;
use crate::metrics::{CallCounter, Metrics};
use crate::mirrors::Mirrors;
use crate::native_driver::{MAX_CONCURRENT_RECONCILES, reconcile, retry};
use crate::push_events::poll_after_pushes;
use crate::queue::Dispatcher;
use crate::resource::Ref;
use crate::run_retention::sweep_runs;
use crate::shutdown::{SHUTDOWN_TIMEOUT, shutdown_signal};
use crate::signing::Signer;
use crate::watch::keys::ResourceKey;
use crate::watch::mapping::{consumers_of_outputs, key_of, owner, to_ref};
use crate::watch::trim;
use crate::watch::used_objects::UsedKind;
use crate::watch::{Events, ResourceName, ResourceNames, Watches};
use crate::watch_pace::WatchPace;
use crate::write_through_cache::WriteThroughCache;
use alustan_api::labels::JOB_NAME;

/// Debounce time of watch events. Short, because users wait for the reconcile.
const DEBOUNCE: Duration = Duration::from_millis(20);

/// Delay before the first retry of a request. The delay doubles, with jitter, up to [`MAX_RETRY_DELAY`].
const MIN_RETRY_DELAY: Duration = Duration::from_millis(20);
const MAX_RETRY_DELAY: Duration = Duration::from_secs(10);
/// Number of retries of a request. Then the backoff of the reconcile or of the watch begins.
const MAX_RETRIES: u32 = 15;

/// Maximum number of requests that wait for the client, as in the client of kube.
const MAX_QUEUED_REQUESTS: usize = 1024;

/// Maximum number of queued push events from webhooks.
const MAX_QUEUED_PUSHES: usize = 100;

/// Runs the operator until SIGTERM or SIGINT.
pub(crate) async fn run(config: Config) -> Result<()> {
    let listeners = Listeners::bind(&config).await?;
    let metrics = Metrics::new();
    let leader = Leader::new(identity(&config)?);
    let (lists, listed) = watch::channel(0);
    let election = election(
        config.clone(),
        leader.clone(),
        metrics.clone(),
        listed.clone(),
    );
    let client = fenced_client(&metrics, &leader)
        .await
        .context("failed to connect to the API server")?;
    let health = Health::new(leader.clone());
    let (stop, stopped) = watch::channel(false);
    tokio::spawn(async move {
        shutdown_signal().await;
        info!("shutting down; active runs continue");
        let _ = stop.send(true);
    });
    let (wake, woken) = mpsc::unbounded_channel::<Ref>();
    let namespaces = config.watch_namespaces.clone();
    if !namespaces.is_empty() {
        info!(
            ?namespaces,
            "watching only these namespaces; the operator does not label them \
             alustan.io/holds-state, so a namespace with applied resources is not protected from \
             deletion"
        );
    }
    let watches = Watches::new(client.clone(), namespaces, wake.clone(), lists);
    let places = SlotLimits::new(config.max_concurrent_runs, config.max_runs_per_namespace);
    let dispatcher = Dispatcher::new(places, wake.clone());
    let (push, pushes) = mpsc::channel(MAX_QUEUED_PUSHES);
    let signer = signer(&config, &metrics).await?;
    let context_parts = ContextParts {
        client,
        clock: Clock::system(),
        signer: Arc::new(signer),
        wake,
        health: health.clone(),
        metrics: metrics.clone(),
        leader: leader.clone(),
        dispatcher: Arc::new(dispatcher),
    };
    let dispatcher = context_parts.dispatcher.clone();
    let inputs = ControllerInputs {
        context_parts,
        woken,
        pushes,
        listed,
        sync_handler: Arc::new(SyncHandler::new(config.watch_namespaces.clone())),
    };
    let routes = http::RouteState {
        hooks: WebhookEndpoints::new(config.hook_secrets.clone(), push, leader.clone())?,
        metrics_sources: MetricsSources {
            metrics,
            resources: watches.0.resources(),
            dispatcher,
            health: health.clone(),
            leader,
        },
        health,
        sync_handler: inputs.sync_handler.clone(),
    };
    let server = {
        let (config, stopped) = (config.clone(), stopped.clone());
        let stop = move || wait_for_stop(stopped.clone());
        tokio::spawn(async move { listeners.serve(&config, routes, stop).await })
    };
    let work = Box::pin(run_controller(
        inputs,
        &config,
        watches,
        wait_for_stop(stopped),
    ));
    run_with_election(election, work).await?;
    // An HTTP request that does not end must not delay the exit of this process.
    match tokio::time::timeout(SHUTDOWN_TIMEOUT, server).await {
        Ok(ended) => ended.context("the HTTP server failed"),
        Err(_) => Ok(()),
    }
}

/// Returns the identity of this replica in the Lease: pod name and a random id of the process.
fn identity(config: &Config) -> Result<Identity> {
    let mut process = [0_u8; 4];
    if SystemRandom::new().fill(&mut process).is_err() {
        bail!("failed to generate a random identity for this replica");
    }
    Ok(Identity::new(config.pod_name.clone(), hex::encode(process)))
}

/// Creates the [`Election`] of this replica. The election has its own client, so that other calls do not delay calls for the Lease. The
/// client does not retry, so that no write of the Lease is sent late.
async fn election(
    config: Config,
    leader: Leader,
    metrics: Arc<Metrics>,
    listed: watch::Receiver<usize>,
) -> Result<Election> {
    let mut client_config = kube::Config::infer().await?;
    client_config.default_retry = false;
    Ok(Election::new(
        leader,
        unfenced_client(client_config, &metrics)?,
        &config.lease,
        config.address(),
        listed,
    ))
}

/// Loads the key that signs run records and pins. Standby replicas verify signatures, too, and may create the key.
async fn signer(config: &Config, metrics: &Arc<Metrics>) -> Result<Signer> {
    let client = unfenced_client(kube::Config::infer().await?, metrics)?;
    let name = format!("{}-signing-key", config.lease);
    Signer::load(&client, &name)
        .await
        .with_context(|| format!("failed to load the signing key from Secret {name}"))
}

/// Builds a client without the [`Fence`], which refuses writes of a replica that is not the leader.
fn unfenced_client(config: kube::Config, metrics: &Arc<Metrics>) -> Result<Client> {
    let client = ClientBuilder::try_from(config)?.with_layer(&CallCounter::new(metrics.clone()));
    Ok(client.build())
}

/// Components of the operator that are created before the watches start.
struct ControllerInputs {
    context_parts: ContextParts,
    woken: mpsc::UnboundedReceiver<Ref>,
    pushes: mpsc::Receiver<PushRequest>,
    listed: watch::Receiver<usize>,
    sync_handler: Arc<SyncHandler>,
}

/// Builds a client that counts its calls and writes only while this replica leads.
async fn fenced_client(metrics: &Arc<Metrics>, leader: &Leader) -> Result<Client> {
    let mut config = kube::Config::infer().await?;
    config.default_retry = false;
    let builder = ClientBuilder::try_from(config)?
        .with_layer(&BufferLayer::new(MAX_QUEUED_REQUESTS))
        .with_layer(&RetryLayer::new(retries()?))
        .with_layer(&WatchPace::default())
        .with_layer(&CallCounter::new(metrics.clone()))
        .with_layer(&MapRequestLayer::new(
            consistent_list::without_version::<Body>,
        ));
    Ok(builder.with_layer(&Fence::new(leader.clone())).build())
}

/// Returns the retries of a request that the API server refuses with status 429, 503 or 504. They heed `Retry-After`. The retries of kube by
/// default have delays of up to four minutes, in which a watch misses all changes although the API server may be available again.
fn retries() -> Result<RetryPolicy, InvalidBackoff> {
    RetryPolicy::new(MIN_RETRY_DELAY, MAX_RETRY_DELAY, MAX_RETRIES, true)
}

async fn wait_for_stop(mut stopped: watch::Receiver<bool>) {
    // `wait_for` fails only if the sender was dropped, which also stops the operator.
    let _ = stopped.wait_for(|stopped| *stopped).await;
}

async fn run_controller(
    inputs: ControllerInputs,
    config: &Config,
    (watches, names): (
        Watches,
        ResourceNames<impl Stream<Item = Events<ResourceName>> + Send + 'static>,
    ),
    stop: impl Future<Output = ()> + Send + Sync + 'static,
) -> Result<()> {
    let ControllerInputs {
        woken,
        pushes,
        sync_handler,
        listed,
        context_parts,
    } = inputs;
    let (health, wake) = (context_parts.health.clone(), context_parts.wake.clone());
    let resources = watches.resources();
    let builds = watches.including(config.build_namespace.as_ref());
    let (secrets, secret_events) = builds.secrets();
    let (config_maps, map_events) = watches.mirrored::<PartialObjectMeta<_>, _>(trim::metadata);
    let (claims, claim_events) = watches.mirrored::<PersistentVolumeClaim, _>(trim::metadata);
    let (jobs, job_events) = builds.mirrored::<Job, _>(trim::job_metadata);
    let (pods, pod_events) = builds.mirrored::<Pod, _>(trim::metadata);
    let mirrors = Mirrors {
        secrets: WriteThroughCache::new(secrets),
        config_maps: WriteThroughCache::new(config_maps),
        claims: WriteThroughCache::new(claims),
        jobs: WriteThroughCache::new(jobs),
        pods: WriteThroughCache::new(pods),
        read: Mutex::default(),
        listed,
    };
    let ctx = Arc::new(context(context_parts, config, mirrors, resources.clone())?);
    sync_handler.begin(ctx.clone());
    watches.follow_run_objects(&ctx.verified_objects);
    let (secret_ctx, map_ctx, claim_ctx) = (ctx.clone(), ctx.clone(), ctx.clone());
    let (job_ctx, pod_ctx) = (ctx.clone(), ctx.clone());
    let (input_secret_ctx, input_map_ctx) = (ctx.clone(), ctx.clone());
    let controller = Controller::for_stream(names.events, names.store)
        .with_config(controller_config())
        .watches_stream(secret_events, move |secret| {
            secret_ctx.mirrors.secrets.record_event(&secret);
            let mut affected = users_of_secret(&secret_ctx, &secret);
            affected.extend(consumers_of_outputs(
                &secret_ctx.settings,
                &secret_ctx.resources,
                &secret,
            ));
            affected.extend(owner(&secret_ctx.settings, &secret));
            affected
        })
        .watches_stream(map_events, move |map| {
            map_ctx.mirrors.config_maps.record_event(&map);
            let mut affected = users_of_config_map(&map_ctx, &map);
            affected.extend(owner(&map_ctx.settings, &map));
            affected
        })
        .watches_stream(claim_events, move |claim| {
            claim_ctx.mirrors.claims.record_event(&claim);
            owner(&claim_ctx.settings, &claim)
        })
        .watches_stream(job_events, move |job| {
            job_ctx.mirrors.jobs.record_event(&job);
            affected_resources(&job_ctx, &job, &job.name_any())
        })
        .watches_stream(pod_events, move |pod| {
            let job = pod.labels().get(JOB_NAME).cloned();
            affected_resources(&pod_ctx, &pod, &job.unwrap_or_default())
        })
        .watches_stream(watches.used::<Secret>(UsedKind::SECRETS), move |secret| {
            users_of_secret(&input_secret_ctx, &secret)
        })
        .watches_stream(
            watches.used::<ConfigMap>(UsedKind::CONFIG_MAPS),
            move |map| users_of_config_map(&input_map_ctx, &map),
        )
        .reconcile_on(stream_of(woken))
        .graceful_shutdown_on(stop);
    info!(driver = ?config.driver, "watching resources");
    let mut reconciles = std::pin::pin!(controller.run(reconcile, retry, ctx.clone()));
    let mut tick = tokio::time::interval(Duration::from_secs(10));
    tokio::spawn(reconcile_all_when_leading(ctx.clone(), wake.clone()));
    tokio::spawn(mark_jobs_beyond_limit(ctx.clone(), wake.clone()));
    tokio::spawn(ctx.allowed.clone().follow(ctx.resources.clone(), wake));
    let listed = ctx.mirrors.listed.clone();
    tokio::spawn(set_ready_when_listed(listed, health.clone()));
    tokio::spawn(sweep_git_cache(ctx.git.clone()));
    tokio::spawn(sweep_runs(ctx.clone(), config.watch_namespaces.clone()));
    tokio::spawn(refresh_queue_positions(ctx.dispatcher.clone()));
    tokio::spawn(poll_after_pushes(ctx.clone(), pushes));
    loop {
        tokio::select! {
            result = reconciles.next() => match result {
                Some(Ok(_)) => {}
                Some(Err(controller::Error::ObjectNotFound(deleted))) => {
                    let namespace = deleted.namespace.unwrap_or_default();
                    clean_up_deleted(&ctx, &config.watch_namespaces, Ref::new(&deleted.name).within(&namespace));
                }
                Some(Err(error)) => debug!(%error, "reconcile failed"),
                None => return Ok(()),
            },
            _ = tick.tick() => ctx.expire_reads(),
        }
        health.record_iteration();
    }
}

fn controller_config() -> controller::Config {
    controller::Config::default()
        .debounce(DEBOUNCE)
        .concurrency(MAX_CONCURRENT_RECONCILES)
}

fn stream_of(woken: mpsc::UnboundedReceiver<Ref>) -> impl Stream<Item = Ref> {
    stream::unfold(woken, |mut woken| async move {
        let resource = woken.recv().await?;
        Some((resource, woken))
    })
}

/// Drops the last read of a changed Secret. Returns the resources that use the Secret.
fn users_of_secret(ctx: &Context, secret: &impl ResourceExt) -> Vec<Ref> {
    let key = key_of(secret);
    ctx.inputs.secrets.forget(&to_ref(&key));
    ctx.resources.references_with(&ResourceKey::Secret(key))
}

/// Drops the last read of a changed `ConfigMap`. Returns the resources that use the `ConfigMap`.
fn users_of_config_map(ctx: &Context, map: &impl ResourceExt) -> Vec<Ref> {
    let key = key_of(map);
    ctx.inputs.config_maps.forget(&to_ref(&key));
    ctx.resources.references_with(&ResourceKey::ConfigMap(key))
}

/// Returns the resources to reconcile after an event of a Job or its pod: the owner, and all resources that wait for the build `job`.
fn affected_resources(ctx: &Context, object: &impl ResourceExt, job: &str) -> Vec<Ref> {
    let namespace = object.namespace().unwrap_or_default();
    let mut resources = ctx.memory.waiting_for_build(&format!("{namespace}/{job}"));
    resources.extend(owner(&ctx.settings, object));
    resources
}

#[cfg(test)]
mod tests {
    use axum::http::{Request, Response};
    use tokio::time::Instant;
    use tower::{BoxError, Layer, ServiceExt, service_fn};

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn request_is_retried_at_least_every_ten_seconds() {
        let times = Arc::new(Mutex::new(Vec::new()));
        let sent = times.clone();
        let server = service_fn(move |_: Request<Body>| {
            sent.lock().push(Instant::now());
            let refusal = Response::builder().status(503).body(());
            async move { refusal.map_err(BoxError::from) }
        });
        let client = RetryLayer::new(retries().unwrap()).layer(server);
        let request = Request::new(Body::empty());
        assert_eq!(client.oneshot(request).await.unwrap().status(), 503);
        let times = times.lock();
        assert_eq!(times.len(), 1 + usize::try_from(MAX_RETRIES).unwrap());
        let waits = times.windows(2).map(|pair| pair[1] - pair[0]);
        let longest = waits.max().unwrap();
        assert_eq!(longest.as_secs(), MAX_RETRY_DELAY.as_secs());
    }
}
