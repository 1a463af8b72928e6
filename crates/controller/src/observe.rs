//! Reads the inputs of a reconcile in two steps: first Kubernetes objects from watch caches and the API server, then git repositories and
//! registries from the caches of polled queries. [`prepare`](alustan_core::decide::prepare::prepare) determines the queries.

/// Unwraps the value of a `Result`, or returns the failure from the calling function.
macro_rules! value_or_return {
    ($result:expr) => {
        match $result {
            Ok(value) => value,
            Err(failure) => return Ok(Err(failure)),
        }
    };
}

mod accounts;
mod builds;
mod cache_claims;
mod dependencies;
mod inputs;
mod job_events;
pub(crate) mod jobs;
pub(crate) mod observer;
pub(crate) mod pods;
pub(crate) mod record;
mod run_jobs;

use std::fmt::Debug;
use std::sync::Arc;
use std::time::Duration;

use alustan_api::report::{Failure, FailureClass};
use alustan_api::run::{Pin, PinnedImage, PublishedOutputs};
use alustan_api::{Reason, names};
use alustan_core::decide::prepare::{Prepared, Query};
use alustan_core::model::facts::{self, open_run};
use alustan_core::model::image::{self, ImagePlan, ImageSeen};
use alustan_core::model::pull_secret::docker_config;
use alustan_core::model::run_inputs;
use alustan_core::model::state_conflict;
use alustan_core::objects::{outputs, secrets};
use alustan_core::observed::{
    Answer, BuildSeen, BuildState, CacheSeen, ForeignState, GitToken, JobSeen, OutputsSeen,
    Ownership, RecordSeen, Seen, SourceSeen, Waiting,
};
use alustan_registry::DockerConfig;
use k8s_openapi::api::core::v1::Secret;
use k8s_openapi::jiff::Timestamp;
use kube::api::Api;
use kube::core::NamespaceResourceScope;
use kube::{Resource, ResourceExt};
use serde::de::DeserializeOwned;

use crate::call::call;
use crate::context::Context;
use crate::error::Error;
use crate::indexed_store::Indexed;
use crate::observe::observer::{ImageObservation, Observer, QueryCredentials};
use crate::remote::module_files::{self, ModuleFiles, SourceCredentials};
use crate::remote::polled_cache::PollInterval;
use crate::remote::prune_request::{PruneRequest, PruningSeen};
use crate::remote::push_request::PushRequest;
use crate::remote::queries;
use crate::resource::{is_made_for, readable};
use crate::watch::cached::CachedClaim;
use crate::watch::keys::ResourceKey;
use crate::write_through_cache::WriteThroughCache;
use inputs::Inputs;
use record::StoredRecord;

pub(crate) use record::{check_is_latest, pin};
pub(crate) use run_jobs::finished_jobs;

/// Interval at which a waiting build checks the lifetime of its token.
const TOKEN_INTERVAL: Duration = Duration::from_mins(5);

impl Observer<'_> {
    /// Whether the annotation `alustan.io/uid` ([`KEPT`](alustan_api::KEPT)) contains the uid of another resource that exists.
    fn is_copy(&self) -> bool {
        let uid = facts::other_uid(self.tf);
        uid.is_some_and(|uid| self.ctx.living_owner(self.tf, uid).is_some())
    }

    /// Returns a failure if the state of the resource belongs to another resource, so that no run may use the state.
    fn conflict(&self, record: Option<&RecordSeen>, pin: Option<&Pin>) -> Option<Failure> {
        let attempted = record.map_or(0, |record| record.record.attempted);
        let pin = pin.map(|pin| pin.of_what_exists(attempted));
        let address = state_conflict::address_in_use(self.tf, pin)?;
        let users = self.ctx.resources.with(&ResourceKey::State(address));
        state_conflict::conflict(self.tf, pin, readable(&users))
    }

    /// Reads the objects of the cluster, and the credentials for [`Self::query`].
    ///
    /// # Errors
    /// If a call of the API server fails, or the run record or pin is unreadable or forged.
    pub(crate) async fn observe(&self) -> Result<(Seen, QueryCredentials), Error> {
        let (ctx, tf) = (self.ctx, self.tf);
        let StoredRecord {
            record,
            pin,
            pin_version,
            left_behind,
            nothing_left,
        } = record::read(ctx, tf).await?;
        let docker = docker_config(tf, record.as_ref(), pin.as_ref());
        let Inputs {
            seen: inputs,
            credentials,
        } = inputs::read(self, docker).await?;
        let namespace_uid = self.namespace_uid().unwrap_or_default();
        let (allowed, accounts) = (ctx.allowed.now(), accounts::observe(self).await?);
        let job = self.job(record.as_ref()).await?;
        let outputs = self.outputs(record.as_ref()).await?;
        let foreign_state = self.foreign_state(record.as_ref()).await?;
        let (stack, refused) = dependencies::observe(self).await?;
        let recorded_notices = record.as_ref().map(|record| &record.history.notices);
        let notices = ctx.notifier.notices(self.resource, recorded_notices);
        let seen = Seen {
            left_behind,
            is_copy: record.is_none() && self.is_copy(),
            nothing_left,
            leading_since: ctx.dispatcher.begun_at().unwrap_or_default(),
            namespace_uid,
            invalid: self
                .unreadable
                .cloned()
                .or_else(|| module_files::check(tf).err())
                .or_else(|| ctx.memory.invalid_expression(self.resource, tf))
                .or(refused),
            allowed,
            accounts,
            conflict: self.conflict(record.as_ref(), pin.as_ref()),
            inputs,
            stack,
            job,
            refused: self.denied(record.as_ref()),
            jobs: run_jobs::own_jobs(ctx, tf),
            build_secrets: builds::build_secrets(ctx, tf),
            cache: self.cache(),
            shared_claim: cache_claims::observe(self).await?,
            shared_claims: cache_claims::names(ctx, tf),
            foreign_state,
            outputs,
            record,
            pin,
            pin_version,
            notices,
            notified: ctx.notifier.notified(),
        };
        Ok((seen, credentials))
    }

    /// Returns the answers to the queries of `prepared`, and the build of the image. Sends the queries that are not sent yet. Ends the polling of
    /// queries that this reconcile does not use.
    pub(crate) async fn query(
        &self,
        prepared: &Prepared<'_>,
        credentials: &QueryCredentials,
    ) -> ImageObservation {
        let files = self.module_files(prepared, credentials);
        let source = self.source(prepared, &files);
        let base = self.base(prepared, credentials);
        let plan = prepared.plan(&source, &base);
        let (build, digest, is_pinned) = match &plan {
            Some(plan) => {
                self.ctx.memory.set_planned_image(self.resource, &plan.tag);
                let build = self.build(plan).await;
                match prepared.digest_query(plan) {
                    Query::Answered(digest) => (build, digest, true),
                    Query::Needed(()) => {
                        let digest = self.image(plan, build.as_ref(), credentials);
                        (build, digest, false)
                    }
                }
            }
            None => (None, Answer::Pending, false),
        };
        let git_token = prepared
            .needs_git_token(&digest)
            .then(|| self.git_token(&files))
            .flatten();
        let deleted = self.tf.metadata.deletion_timestamp.is_some();
        let (push, artifact) = if deleted || !is_pinned {
            self.artifact(&source, &files, &credentials.docker)
        } else {
            (None, None)
        };
        let pruning = plan
            .as_ref()
            .filter(|_| is_pinned && !deleted)
            .and_then(|plan| self.pruning(plan, prepared.seen(), &credentials.docker));
        let used = self.used_queries.lock().clone();
        self.ctx.answers.keep(self.resource, &used);
        let seen = ImageSeen {
            source: if plan.is_none() && base.value().is_some() {
                pending_if_known(source)
            } else {
                source
            },
            base,
            plan,
            digest,
            artifact,
            git_token,
            build,
            is_pruning_due: matches!(pruning, Some(PruningSeen::Due(_))),
        };
        ImageObservation {
            seen,
            push,
            pruning,
        }
    }

    /// Returns the uid of the namespace. `None` until the API server has returned the uid.
    fn namespace_uid(&self) -> Option<String> {
        let namespace = self.tf.namespace().unwrap_or_default();
        let query = format!("namespace {namespace}");
        self.use_query(&query);
        let send = queries::namespace_uid(self.ctx.client.clone(), namespace);
        self.ctx
            .answers
            .namespaces
            .get(&query, self.resource, None, send)
            .value()
            .cloned()
    }

    /// Returns the commit and its context, or the previous commit while a new one is fetched. Without a commit, the operator also sends no query about
    /// the image, the build and the push of the context.
    fn source(
        &self,
        prepared: &Prepared<'_>,
        files: &Result<ModuleFiles, Failure>,
    ) -> Answer<SourceSeen> {
        if let Query::Answered(answer) = prepared.source_query(retry_at()) {
            if answer == Answer::Pending {
                // The resource is suspended. Drop the commit, so that runs after the suspension use the newest one.
                self.ctx.memory.forget_source(self.resource);
            }
            return answer;
        }
        let files = match files {
            Ok(files) => files,
            Err(failure) => return failed_answer(failure.clone()),
        };
        let query = files.revision_query();
        self.use_query(&query);
        let answers = &self.ctx.answers;
        let interval = self.tf.spec.module_source();
        let interval = interval
            .and_then(|source| source.interval())
            .and_then(|interval| files.poll_interval(interval.into()));
        let fetchers = self.ctx.fetchers();
        let send = files.revision_sender(&fetchers);
        let (revision, poll_failure) =
            match answers.revisions.get(&query, self.resource, interval, send) {
                Answer::Known(revision) => (revision, None),
                Answer::Failed {
                    failure,
                    last: Some(last),
                    retry_at,
                } => (last, Some((failure, retry_at))),
                Answer::Failed {
                    failure,
                    last: None,
                    retry_at,
                } => {
                    return Answer::Failed {
                        failure,
                        last: None,
                        retry_at,
                    };
                }
                Answer::Pending => return Answer::Pending,
            };
        let allowed = self.ctx.allowed.now();
        let module_query = files.module_query(&allowed);
        self.use_query(&module_query);
        let send = files.module_sender(&fetchers, allowed);
        let answer =
            answers
                .modules
                .get_with_argument(&module_query, revision, self.resource, None, send);
        if let Some(module_query) = answers.modules.key(&module_query) {
            answers
                .revisions
                .forward_to(&query, self.resource, module_query);
        }
        let module_identity = files.module_identity();
        match (answer, poll_failure) {
            (Answer::Known(source), None) => {
                self.ctx
                    .memory
                    .set_source(self.resource, &module_identity, source.clone());
                Answer::Known(source)
            }
            (Answer::Known(last), Some((failure, retry_at))) => Answer::Failed {
                failure,
                last: Some(last),
                retry_at,
            },
            (Answer::Pending, _) => self
                .ctx
                .memory
                .source(self.resource, &module_identity)
                .map_or(Answer::Pending, Answer::Known),
            (answer @ Answer::Failed { .. }, _) => {
                if let Answer::Failed { failure, .. } = &answer
                    && failure.class != FailureClass::Transient
                {
                    self.ctx.memory.forget_source(self.resource);
                }
                answer
            }
        }
    }

    /// Returns a token of the GitHub App for a pod that executes `init`. Keeps the token fresh while the pod has not started. `None` for a source
    /// other than git.
    fn git_token(&self, files: &Result<ModuleFiles, Failure>) -> Option<Answer<GitToken>> {
        let repository = match files {
            Ok(ModuleFiles::Git(repository)) => repository,
            Ok(ModuleFiles::Written(_) | ModuleFiles::Artifact(_)) => return None,
            Err(failure) => return Some(failed_answer(failure.clone())),
        };
        let query = repository.token_query();
        self.use_query(&query);
        let interval = Some(PollInterval::new(TOKEN_INTERVAL, &query));
        let tokens = &self.ctx.answers.tokens;
        let answer = tokens.get(&query, self.resource, interval, repository.token_sender());
        // The last token is not used: it has expired, or its repository was removed from the App.
        Some(answer.and_then(Answer::Known))
    }

    /// Returns the base image by digest. If the run record has no base image for the current spec, queries the registry for the digest.
    fn base(&self, prepared: &Prepared<'_>, credentials: &QueryCredentials) -> Answer<PinnedImage> {
        let wanted = match prepared.base_query(retry_at()) {
            Query::Needed(wanted) => wanted,
            Query::Answered(answer) => return answer,
        };
        let docker = match &credentials.docker {
            Ok(docker) => docker.as_ref(),
            Err(failure) => return failed_answer(failure.clone()),
        };
        let digest = match self.digest(&wanted.reference, None, docker) {
            Ok(digest) => digest,
            Err(failure) => return failed_answer(failure),
        };
        digest.and_then(|digest| match digest {
            Some(digest) => {
                let resolved = queries::by_digest(&wanted.reference, &digest);
                Answer::Known(wanted.pinned(resolved))
            }
            None => failed_answer(Failure::user(
                Reason::BaseImageNotFound,
                format!(
                    "{}: the registry does not have image {}",
                    wanted.selected_by(self.tf),
                    wanted.reference
                ),
            )),
        })
    }

    /// Returns the `PersistentVolumeClaim` of the cache volume. `None` if the `PersistentVolumeClaim` does not exist or is being deleted.
    fn claim(&self) -> Option<Arc<CachedClaim>> {
        let namespace = self.tf.namespace().unwrap_or_default();
        let claim = names::cache(&self.tf.name_any());
        let claim = self.ctx.mirrors.claims.get(&namespace, &claim);
        claim.filter(|claim| {
            is_made_for(self.tf, &**claim) && claim.metadata.deletion_timestamp.is_none()
        })
    }

    /// Detects state that no run of the resource wrote. Calls the API server only if the resource is being deleted and has never applied.
    async fn foreign_state(&self, record: Option<&RecordSeen>) -> Result<ForeignState, Error> {
        let tf = self.tf;
        let unapplied = record
            .filter(|record| record.record.attempted == 0 && record.history.applied.is_none());
        if unapplied.is_none() || tf.metadata.deletion_timestamp.is_none() {
            return Ok(ForeignState::default());
        }
        let name = names::state(&tf.name_any());
        let namespace = tf.namespace().unwrap_or_default();
        let api: Api<Secret> = Api::namespaced(self.ctx.client.clone(), &namespace);
        let pointer = call("read the state pointer", api.get_opt(&name)).await?;
        let pointer = pointer.filter(|pointer| is_made_for(tf, pointer));
        let created = &tf.metadata.creation_timestamp;
        let claim = self.claim();
        Ok(ForeignState {
            secrets: pointer.as_ref().is_some_and(secrets::has_version),
            claim: claim.is_some_and(|claim| claim.metadata.creation_timestamp < *created),
        })
    }

    fn cache(&self) -> CacheSeen {
        let Some(claim) = self.claim() else {
            return CacheSeen::Absent;
        };
        match claim.phase.as_deref() {
            Some("Bound") => CacheSeen::Bound,
            Some("Lost") => CacheSeen::Lost,
            Some(_) | None => CacheSeen::Pending,
        }
    }

    /// Returns the digest of the runner image. After a finished build, the registry is polled until it has the image.
    fn image(
        &self,
        plan: &ImagePlan,
        build: Option<&BuildSeen>,
        credentials: &QueryCredentials,
    ) -> Answer<Option<String>> {
        let docker = match &credentials.docker {
            Ok(docker) => docker.as_ref(),
            Err(failure) => return failed_answer(failure.clone()),
        };
        let reference = format!("{}:{}", image::repository(self.tf), plan.tag);
        let done = build.filter(|build| matches!(build.state, BuildState::Done(_)));
        self.digest(&reference, done.map(|build| build.job.as_str()), docker)
            .unwrap_or_else(failed_answer)
    }

    fn digest(
        &self,
        reference: &str,
        pushed_by: Option<&str>,
        docker: Option<&DockerConfig>,
    ) -> Result<Answer<Option<String>>, Failure> {
        let query = queries::digest(
            &self.ctx.registry,
            &self.ctx.settings,
            self.tf,
            reference,
            pushed_by,
            docker,
        )?;
        self.use_query(&query.key);
        Ok(self
            .ctx
            .answers
            .images
            .get(&query.key, self.resource, None, query.send))
    }

    /// Returns the push of the context and its result. The push is `None` if the context is unknown. The result is `None` if the push has not been
    /// started, and a failure if the push is impossible, for example because the registry credentials are invalid.
    fn artifact(
        &self,
        source: &Answer<SourceSeen>,
        files: &Result<ModuleFiles, Failure>,
        docker: &Result<Option<DockerConfig>, Failure>,
    ) -> (Option<PushRequest>, Option<Answer<String>>) {
        let Some(source) = source.value() else {
            return (None, None);
        };
        match self.push_request(source, files, docker) {
            Ok(push) => {
                self.use_query(&push.key);
                let artifacts = &self.ctx.answers.artifacts;
                let answer = artifacts.get_existing(&push.key, self.resource);
                (Some(push), answer)
            }
            Err(failure) => (None, Some(failed_answer(failure))),
        }
    }

    fn push_request(
        &self,
        source: &SourceSeen,
        files: &Result<ModuleFiles, Failure>,
        docker: &Result<Option<DockerConfig>, Failure>,
    ) -> Result<PushRequest, Failure> {
        let docker = docker.as_ref().map_err(Clone::clone)?.as_ref();
        let files = files.clone()?;
        PushRequest::new(&self.ctx.settings, self.tf, source, files, docker)
    }

    /// Returns the source of the files of the module.
    fn module_files(
        &self,
        prepared: &Prepared<'_>,
        credentials: &QueryCredentials,
    ) -> Result<ModuleFiles, Failure> {
        let git = credentials.git.as_ref().map_err(Clone::clone)?;
        let artifact = match &credentials.artifact {
            Ok(None) => credentials.docker.as_ref(),
            artifact => artifact.as_ref(),
        };
        let credentials = SourceCredentials {
            git,
            artifact: artifact.map_err(Clone::clone)?.as_ref(),
        };
        ModuleFiles::of(self.tf, credentials, || {
            run_inputs::variable_names(self.tf, &prepared.seen().stack.variables)
        })
    }

    /// Returns the pruning of the registry repository of the resource. Stays subscribed to the query of an active pruning, so that the pruning is not
    /// aborted. `plan`: newest image of the resource.
    fn pruning(
        &self,
        plan: &ImagePlan,
        seen: &Seen,
        docker: &Result<Option<DockerConfig>, Failure>,
    ) -> Option<PruningSeen> {
        let prune = self.tf.spec.container_registry.prune.as_ref()?;
        let docker = docker.as_ref().ok()?;
        let request = PruneRequest::new(
            &self.ctx.settings,
            self.tf,
            prune,
            plan,
            &seen.namespace_uid,
            docker.as_ref(),
            self.ctx.clock.now(),
        );
        let request = match request {
            Ok(request) => request,
            Err(failure) => return Some(PruningSeen::Impossible(failure)),
        };
        self.use_query(&request.key);
        let pruned = &self.ctx.answers.pruned;
        match pruned.get_existing(&request.key, self.resource) {
            None => Some(PruningSeen::Due(request)),
            Some(Answer::Known(pruned)) => Some(PruningSeen::Done(request.key, pruned)),
            Some(Answer::Pending | Answer::Failed { .. }) => None,
        }
    }

    /// Returns the build of the image, and subscribes the resource to its events.
    async fn build(&self, plan: &ImagePlan) -> Option<BuildSeen> {
        let namespace = self.ctx.settings.build_namespace_of(self.tf).to_owned();
        let name = names::build_job(&plan.tag);
        self.ctx
            .memory
            .wait_for_build(format!("{namespace}/{name}"), self.resource);
        let mut build = builds::build(self.ctx, &namespace, &name)?;
        if let (BuildState::Failed(failure, _), Some(pod)) = (&mut build.seen.state, &build.log_of)
        {
            let query = format!("log {namespace}/{pod}");
            self.use_query(&query);
            let send = queries::log(self.ctx.client.clone(), namespace.clone(), pod.clone());
            match self.ctx.answers.logs.get(&query, self.resource, None, send) {
                Answer::Known(log) => *failure = queries::explain(failure, &log),
                Answer::Pending => build.seen.state = BuildState::Active(None),
                Answer::Failed { .. } => {}
            }
        }
        let build = builds::with_pending_cause(self.ctx, &namespace, build).await;
        Some(build.seen)
    }

    async fn job(&self, record: Option<&RecordSeen>) -> Result<Option<JobSeen>, Error> {
        let Some(record) = record else {
            return Ok(None);
        };
        let Some(run) = &record.record.run else {
            return Ok(None);
        };
        let claimed = open_run(&record.record).is_some() && record.record.claimed_by.is_some();
        run_jobs::run(
            self.ctx,
            self.tf,
            &run.job,
            claimed && record.report.is_none(),
        )
        .await
    }

    /// Returns why this process could not create the Job of the current run.
    fn denied(&self, record: Option<&RecordSeen>) -> Option<Waiting> {
        let run = record?.record.run.as_ref()?;
        self.ctx.memory.denied(self.resource, &run.job)
    }

    /// Returns whether the Secret and the ConfigMap with the outputs exist and belong to the resource.
    async fn outputs(&self, record: Option<&RecordSeen>) -> Result<OutputsSeen, Error> {
        let PublishedOutputs {
            secret, config_map, ..
        } = outputs::published_objects(self.tf);
        let Context {
            mirrors, memory, ..
        } = self.ctx;
        let has_outputs = record.is_some_and(|record| record.outputs.is_some());
        // The apply that creates the outputs Secret detects a Secret of another owner, so usually no read is needed. If the outputs are also
        // published in a ConfigMap, Secret and ConfigMap are read before the apply: if an object of another owner has one of the two names, the
        // operator writes neither object.
        let read = has_outputs && (config_map.is_some() || memory.outputs_taken(self.resource));
        let secret = self.owner_of(&mirrors.secrets, &secret, read).await?;
        if read {
            memory.set_outputs_taken(self.resource, secret == Ownership::Foreign);
        }
        Ok(OutputsSeen {
            secret,
            config_map: match config_map {
                Some(name) => self.owner_of(&mirrors.config_maps, &name, read).await?,
                None => Ownership::Absent,
            },
        })
    }

    /// Returns whether the object `name` exists and belongs to the resource. The watch cache contains only objects with the managed-by label of the
    /// operator: an object of another owner is found only if `read` is set. Then the object is read from the API server.
    async fn owner_of<K>(
        &self,
        mirror: &WriteThroughCache<K>,
        name: &str,
        read: bool,
    ) -> Result<Ownership, Error>
    where
        K: Resource<DynamicType = (), Scope = NamespaceResourceScope> + Indexed,
        K: DeserializeOwned + Debug,
    {
        let namespace = self.tf.namespace().unwrap_or_default();
        let cached = mirror.get(&namespace, name);
        if cached.is_some_and(|object| is_made_for(self.tf, &*object)) {
            return Ok(Ownership::Ours);
        }
        if !read {
            return Ok(Ownership::Absent);
        }
        let api: Api<K> = Api::namespaced(self.ctx.client.clone(), &namespace);
        let operation = format!("read {} {name}", K::kind(&()));
        Ok(match call(&operation, api.get_metadata_opt(name)).await? {
            None => Ownership::Absent,
            Some(object) if is_made_for(self.tf, &object) => Ownership::Ours,
            Some(_) => Ownership::Foreign,
        })
    }
}

/// Returns the answer for a query that cannot be sent.
fn failed_answer<T>(failure: Failure) -> Answer<T> {
    Answer::Failed {
        failure,
        last: None,
        retry_at: retry_at(),
    }
}

/// Returns the time of the next attempt after a query could not be sent.
fn retry_at() -> Timestamp {
    Timestamp::now() + queries::RETRY_DELAY
}

/// Replaces a known commit by [`Answer::Pending`]. Called while the uid of the namespace is unknown, because the tag of the runner image depends on
/// that uid.
fn pending_if_known(source: Answer<SourceSeen>) -> Answer<SourceSeen> {
    match source {
        Answer::Known(_) => Answer::Pending,
        answer => answer,
    }
}
