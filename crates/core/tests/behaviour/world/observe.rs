//! Simulates what the controller observes.

use std::collections::{BTreeMap, BTreeSet};

use alustan_api::report::{Failure, FailureClass};
use alustan_api::run::{PinnedImage, ScriptTexts};
use alustan_api::{Anything, BackendSpec, Script, labels, names};
use alustan_core::decide::decide;
use alustan_core::decide::prepare::{Prepared, Query, prepare};
use alustan_core::model::admission;
use alustan_core::model::image::{self, ImagePlan, ImageSeen};
use alustan_core::model::pull_secret::docker_config;
use alustan_core::model::{allow_lists, cache_location, state_conflict};
use alustan_core::observed::{
    AccountSeen, Answer, BuildSecretSeen, BuildSeen, BuildState, GitToken, Incomplete, InputsSeen,
    JobSeen, NothingLeft, OwnJob, RecordSeen, Seen, SourceSeen, Waiting,
};
use alustan_core::status::notifications;
use alustan_core::step::Decision;
use k8s_openapi::jiff::Timestamp;
use kube_core::ResourceExt;

use super::{Config, Situation, Stage, World};
use crate::fixtures::failure;

/// Everything that a reconcile observes.
pub(crate) struct Observation {
    pub(crate) seen: Seen,
    pub(crate) image: ImageSeen,
}

/// Query results that the controller received since its start.
#[derive(Clone, Debug, Default)]
pub(crate) struct Memory {
    /// Time at which the controller started to lead.
    pub(crate) leading_since: Timestamp,
    /// Whether the last reconcile started a query. The next reconcile observes the result of the query.
    pub(crate) query_started: bool,
    queries: BTreeSet<String>,
    source: Option<SourceSeen>,
    /// Contexts that the controller has pushed to the registry.
    pub(crate) pushed: BTreeSet<String>,
    /// Name of the Job of the last run if the Job was denied, and the reason for the denial.
    pub(crate) denied_job: Option<(String, Waiting)>,
}

impl Memory {
    /// Returns whether the query `question` was made before, and records the query.
    fn is_answered(&mut self, question: String) -> bool {
        let new = self.queries.insert(question);
        self.query_started |= new;
        !new
    }

    /// Whether no query was made.
    pub(crate) fn has_no_query(&self) -> bool {
        self.queries.is_empty()
    }

    /// Forgets the commit, so that the next observation queries the repository again.
    fn forget_source(&mut self) {
        self.queries.remove("source");
        self.source = None;
    }
}

/// Message of the event that the Job controller creates for a pod that an exhausted quota denies.
const FULL: &str = "Error creating: pods \"web-x\" is forbidden: exceeded quota: small, requested: pods=1, \
                    used: pods=1, limited: pods=1";
const NAMESPACE: &str = "uid-of-team";
const NO_REGCRED: &str =
    "spec.containerRegistry.secretRef: Secret regcred does not exist; create it";

impl World {
    /// Returns the objects of the cluster that a reconcile observes. `stale`: age of the observed run record, in versions.
    pub(crate) fn observe(&mut self, stale: usize) -> Seen {
        let record = self.record_seen(stale);
        if let Some(record) = &record {
            notifications::restore_stored(&mut self.notices, &record.history.notices);
        }
        let nothing = self.is_deleted() && self.record.is_none() && self.pin.is_none();
        let nothing_left = nothing.then_some(NothingLeft {
            namespace_terminating: false,
            unreadable: false,
        });
        Seen {
            left_behind: self.left_behind.clone(),
            is_copy: self.is_copy && self.record.is_none(),
            nothing_left,
            leading_since: self.memory.leading_since,
            namespace_uid: NAMESPACE.to_owned(),
            inputs: self.inputs(),
            stack: self.stack.clone(),
            job: record.as_ref().and_then(|record| self.job(record)),
            refused: record.as_ref().and_then(|record| self.not_admitted(record)),
            jobs: self.own_jobs(),
            build_secrets: self.build_secrets(),
            cache: self.cache,
            shared_claim: self.shared_claim.clone(),
            shared_claims: cache_location::shared_claims([self.tf()], &self.settings),
            foreign_state: self.foreign_state,
            invalid: alustan_cel::invalid_expression(&self.tf().spec),
            allowed: self.allow_lists.clone(),
            accounts: self.accounts(),
            conflict: self.conflict(),
            outputs: self.outputs,
            notices: self.notices.clone(),
            notified: self.operator_events.clone(),
            pin: self.pin.clone(),
            pin_version: None,
            record,
        }
    }

    /// Returns the decision of a reconcile that observes `seen`, and what it is based on.
    pub(crate) fn decide(&mut self, seen: Seen) -> (Observation, Decision) {
        self.decide_with(seen, |image| image)
    }

    /// Like [`Self::decide`], with the answers to queries that `change` returns.
    pub(crate) fn decide_with(
        &mut self,
        seen: Seen,
        change: impl FnOnce(ImageSeen) -> ImageSeen,
    ) -> (Observation, Decision) {
        let (tf, settings) = (self.tf().clone(), self.settings.clone());
        let prepared = prepare(&tf, &seen, &settings, self.now);
        let image = change(self.query(&prepared));
        let decision = decide(prepared, &image);
        (Observation { seen, image }, decision)
    }

    /// Returns the answers to the queries of `prepared`.
    fn query(&mut self, prepared: &Prepared<'_>) -> ImageSeen {
        let source = self.source(prepared);
        let base = self.base(prepared);
        let plan = prepared.plan(&source, &base);
        let digest = plan
            .as_ref()
            .map_or(Answer::Pending, |plan| self.digest(prepared, plan));
        ImageSeen {
            git_token: prepared.needs_git_token(&digest).then(|| self.git_token()),
            digest,
            artifact: source.value().and_then(|source| self.artifact(source)),
            build: plan.as_ref().and_then(|plan| self.build(plan)),
            is_pruning_due: self.pruning_is_due,
            source,
            base,
            plan,
        }
    }

    fn accounts(&self) -> BTreeMap<String, AccountSeen> {
        let seen = |name: &str| self.accounts.get(name).copied();
        allow_lists::accounts(self.tf())
            .map(|(_, name)| (name.to_owned(), seen(name).unwrap_or(AccountSeen::Absent)))
            .collect()
    }

    fn conflict(&self) -> Option<Failure> {
        let attempted = self
            .record
            .as_ref()
            .map_or(0, |record| record.record.attempted);
        let pin = self.pin.as_ref().map(|pin| pin.of_what_exists(attempted));
        state_conflict::conflict(self.tf(), pin, &self.others)
    }

    fn record_seen(&mut self, stale: usize) -> Option<RecordSeen> {
        self.merge_progress();
        if stale == 0 || self.earlier_records.is_empty() {
            return self.record.clone();
        }
        self.ledger.reached(Situation::Stale);
        let index = self.earlier_records.len().saturating_sub(stale);
        self.earlier_records.get(index).cloned().flatten()
    }

    fn source(&mut self, prepared: &Prepared<'_>) -> Answer<SourceSeen> {
        if let Query::Answered(answer) = prepared.source_query(self.next_minute()) {
            if answer == Answer::Pending {
                self.memory.forget_source();
            }
            return answer;
        }
        if !self.memory.is_answered("source".to_owned()) {
            return Answer::Pending;
        }
        if !self.git_up {
            self.ledger.reached(Situation::Outage);
            return Answer::Failed {
                failure: failure(
                    FailureClass::Transient,
                    "RepositoryUnreachable",
                    "git ls-remote https://git.test/team/infra: no route to host",
                ),
                last: self.memory.source.clone(),
                retry_at: self.next_minute(),
            };
        }
        let (context, revision) = self.head;
        let source = SourceSeen {
            revision: format!("{revision:x}c0ffee0000"),
            context: format!("context-{context}"),
            artifact: format!("sha256:artifact-{context}"),
            path: "web".to_owned(),
            backend: self.module_backend.clone(),
            committed_at: crate::fixtures::at(0),
            commit: None,
        };
        self.memory.source = Some(source.clone());
        Answer::Known(source)
    }

    fn base(&mut self, prepared: &Prepared<'_>) -> Answer<PinnedImage> {
        let wanted = match prepared.base_query(self.next_minute()) {
            Query::Needed(wanted) => wanted,
            Query::Answered(answer) => return answer,
        };
        if !self
            .memory
            .is_answered(format!("base {}", wanted.reference))
        {
            return Answer::Pending;
        }
        if !self.registry_up {
            return self.registry_down(None);
        }
        let resolved = format!("{}@sha256:base-{}", wanted.reference, self.base_digest);
        Answer::Known(wanted.pinned(resolved))
    }

    fn digest(&mut self, prepared: &Prepared<'_>, plan: &ImagePlan) -> Answer<Option<String>> {
        if let Query::Answered(answer) = prepared.digest_query(plan) {
            return answer;
        }
        let image_and_tag = (
            self.tf().spec.container_registry.image_name.clone(),
            plan.tag.clone(),
        );
        if !self.memory.is_answered(format!("image {image_and_tag:?}")) {
            return Answer::Pending;
        }
        if !self.registry_up {
            return self.registry_down(None);
        }
        if self.registry_refuses {
            return Answer::Failed {
                failure: failure(
                    FailureClass::User,
                    "RegistryUnauthorized",
                    "spec.containerRegistry: refused",
                ),
                last: None,
                retry_at: self.next_minute(),
            };
        }
        let digest = self.images.get(&image_and_tag).cloned();
        let done = self
            .builds
            .get(&names::build_job(&plan.tag))
            .is_some_and(|build| matches!(build.state, BuildState::Done(_)));
        if digest.is_none() && done {
            return Answer::Failed {
                failure: failure(FailureClass::Transient, "ImageMissing", "it is not there"),
                last: None,
                retry_at: self.next_minute(),
            };
        }
        Answer::Known(digest)
    }

    fn git_token(&mut self) -> Answer<GitToken> {
        if !self.memory.is_answered("git token".to_owned()) {
            return Answer::Pending;
        }
        if self.git_up {
            return Answer::Known(GitToken::new("ghs_token"));
        }
        Answer::Failed {
            failure: failure(
                FailureClass::Transient,
                "RepositoryUnreachable",
                "POST https://api.git.test: no route to host",
            ),
            last: None,
            retry_at: self.next_minute(),
        }
    }

    /// Whether a build can push the image: a docker configuration exists, or none is required.
    fn may_push(&self) -> bool {
        let (tf, record) = (self.tf(), self.record.as_ref());
        let has_secret = tf.spec.container_registry.secret_ref.is_some();
        !has_secret || self.regcred || docker_config(tf, record, self.pin.as_ref()).is_some()
    }

    fn artifact(&mut self, source: &SourceSeen) -> Option<Answer<String>> {
        if !self.may_push() {
            return Some(Answer::Failed {
                failure: failure(FailureClass::Transient, "SecretNotFound", NO_REGCRED),
                last: None,
                retry_at: self.next_minute(),
            });
        }
        let reference = image::artifact(self.tf(), source);
        if !self.memory.pushed.contains(&reference) {
            return None;
        }
        if !self.memory.is_answered(format!("push {reference}")) {
            return Some(Answer::Pending);
        }
        if !self.registry_up {
            return Some(self.registry_down(None));
        }
        Some(Answer::Known(reference))
    }

    fn registry_down<T>(&mut self, last: Option<T>) -> Answer<T> {
        self.ledger.reached(Situation::Outage);
        let message = "GET https://registry.test/v2/: connection refused";
        Answer::Failed {
            failure: failure(FailureClass::Transient, "RegistryUnreachable", message),
            last,
            retry_at: self.next_minute(),
        }
    }

    fn next_minute(&self) -> Timestamp {
        Timestamp::from_second((self.now.as_second() / 60 + 1) * 60).unwrap()
    }

    fn inputs(&mut self) -> Result<InputsSeen, Box<Incomplete>> {
        let has_secret = self.tf().spec.container_registry.secret_ref.is_some();
        let (registry, cloud) = (has_secret && self.regcred, self.cloud);
        let runner = cloud.map(|cloud| {
            let value = BTreeMap::from([("TOKEN".to_owned(), cloud.to_string())]);
            ("cloud".to_owned(), value)
        });
        let inputs = InputsSeen {
            runner: runner.into_iter().collect(),
            registry_key: registry.then(|| ".dockerconfigjson".to_owned()),
            scripts: self.scripts(),
            backend: self.backend_secret.clone(),
            docker_config: registry.then(|| self.docker_config.clone()),
            pull_config: self.pull_config.clone().filter(|_| registry),
            registry_tokens: self.registry_tokens.clone(),
            ..InputsSeen::default()
        };
        let missing = |class, message: &str| failure(class, "SecretNotFound", message);
        let failure = if has_secret && !self.regcred {
            missing(FailureClass::User, NO_REGCRED)
        } else if cloud.is_none() {
            let message = "spec.runner.envFromSecrets[0]: Secret cloud does not exist; create it";
            missing(FailureClass::Transient, message)
        } else if self.tf().spec.scripts.is_some() && inputs.scripts == ScriptTexts::default() {
            let message =
                "spec.scripts.destroy.configMapRef: ConfigMap scripts does not exist; create it";
            missing(FailureClass::Transient, message)
        } else {
            return Ok(inputs);
        };
        self.ledger.reached(Situation::MissingSecret);
        Err(Box::new(Incomplete {
            failure,
            found: inputs,
        }))
    }

    /// Returns the texts of the scripts. A script in a missing ConfigMap is omitted.
    fn scripts(&self) -> ScriptTexts {
        let scripts = self.tf().spec.scripts.clone().unwrap_or_default();
        let text = |script: Option<Script>| {
            let Script {
                inline,
                config_map_ref,
            } = script?;
            inline.or_else(|| config_map_ref.and_then(|_| self.script.clone()))
        };
        ScriptTexts {
            init: text(scripts.init),
            plan: text(scripts.plan),
            apply: text(scripts.apply),
            destroy: text(scripts.destroy),
        }
    }

    fn build(&self, plan: &ImagePlan) -> Option<BuildSeen> {
        let job = names::build_job(&plan.tag);
        let build = self.builds.get(&job)?;
        let label = |key| build.labels.get(key).cloned().unwrap_or_default();
        Some(BuildSeen {
            job,
            uid: build.uid.clone(),
            created_at: build.created_at,
            started_by: label(labels::UID),
            pod_digest: label(labels::POD_OPTIONS),
            has_pod: !build.pod_denied,
            scheduled_at: self.scheduled_at,
            has_build_secret: build.secret.is_some(),
            state: match (&build.state, &build.obstacle) {
                (BuildState::Active(None), Some(obstacle)) => {
                    BuildState::Active(Some(obstacle.clone()))
                }
                (state, _) => state.clone(),
            },
        })
    }

    /// Returns the build Secrets of all active and finished builds.
    fn build_secrets(&self) -> Vec<BuildSecretSeen> {
        let with_secret = self
            .builds
            .iter()
            .filter(|(_, build)| build.secret.is_some());
        let seen = with_secret.map(|(name, build)| BuildSecretSeen {
            namespace: self.settings.build_namespace_of(self.tf()).to_owned(),
            name: name.clone(),
            uid: format!("secret-of-{}", build.uid),
            build_ended: !matches!(build.state, BuildState::Active(_)),
        });
        let of_runs = self.run_tokens.keys().map(|job| BuildSecretSeen {
            namespace: "team".to_owned(),
            name: job.clone(),
            uid: format!("secret-of-{job}"),
            build_ended: !self.jobs.contains_key(job) || self.is_finished(job),
        });
        seen.chain(of_runs).collect()
    }

    /// Returns the Job of the run in `record`, even if the Job is deleted and only its pod exists.
    fn job(&self, record: &RecordSeen) -> Option<JobSeen> {
        let name = &record.record.run.as_ref()?.job;
        let pods_alive = self
            .pods
            .iter()
            .any(|pod| pod.job == *name && pod.stage.is_alive());
        let job = self.jobs.get(name);
        (job.is_some() || pods_alive).then(|| JobSeen {
            uid: job.map_or_else(String::new, |job| job.uid.clone()),
            finished: self.is_finished(name),
            has_pod: job.is_none_or(|job| job.pod_created),
            scheduled_at: self.scheduled_at,
            pods_alive,
            waiting: self.waiting(name),
            ended: self.termination.clone(),
        })
    }

    /// Returns why the Job of the run in `record` was denied.
    fn not_admitted(&self, record: &RecordSeen) -> Option<Waiting> {
        let run = record.record.run.as_ref()?;
        let (job, denial) = self.memory.denied_job.as_ref()?;
        (*job == run.job).then(|| denial.clone())
    }

    fn is_finished(&self, name: &str) -> bool {
        let Some(job) = self.jobs.get(name) else {
            return true;
        };
        let alive = self
            .pods
            .iter()
            .any(|pod| pod.job_uid == job.uid && pod.stage.is_alive());
        job.pod_created && !alive
    }

    /// Returns why the pod of Job `name` does not start.
    fn waiting(&self, name: &str) -> Option<Waiting> {
        let unborn = self.jobs.get(name).is_some_and(|job| !job.pod_created);
        if self.quota_exhausted && unborn {
            return Some(admission::no_pod(FULL));
        }
        let mut pods = self.pods.iter();
        let pod = pods.find(|pod| pod.job == *name && pod.stage == Stage::Created)?;
        self.obstacle(pod)
    }

    fn own_jobs(&self) -> BTreeMap<i64, OwnJob> {
        let from_job = |(name, job): (&String, &super::Job)| {
            let own_job = OwnJob {
                name: name.clone(),
                uid: job.uid.clone(),
                finished: self.is_finished(name),
                lingers: false,
                is_beyond_limit: self.jobs_beyond_limit,
            };
            (job.number, own_job)
        };
        let living = self.pods.iter().filter(|pod| pod.stage.is_alive());
        let of_pods = living.map(|pod| {
            let own_job = OwnJob {
                name: pod.job.clone(),
                uid: pod.job_uid.clone(),
                finished: false,
                lingers: false,
                is_beyond_limit: false,
            };
            (pod.number, own_job)
        });
        of_pods.chain(self.jobs.iter().map(from_job)).collect()
    }

    /// Returns the configuration that the user wants, or `None` if the controller cannot derive it from `observation`.
    pub(crate) fn wanted(&self, observation: &Observation) -> Option<Config> {
        let Observation { seen, image } = observation;
        if seen.stack.variables.missing.is_some() {
            return None;
        }
        let context = if self.tf().spec.suspend {
            let git_repo = serde_json::to_value(&self.tf().spec.git_repo).unwrap();
            let pinned = self.pin.as_ref()?.spec.get("gitRepo");
            pinned.filter(|pinned| **pinned == git_repo)?;
            self.status().source?.context?
        } else {
            let source = image.source.value().or(self.memory.source.as_ref());
            source?.context.clone()
        };
        let inputs = seen.inputs.as_ref().ok()?;
        let cloud = inputs.runner.get("cloud")?.get("TOKEN")?;
        Some(self.config(context, cloud.parse().unwrap()))
    }

    /// Returns the configuration that the user wants now, even if the controller has not observed it.
    pub(crate) fn wanted_now(&self) -> Config {
        self.config(
            format!("context-{}", self.head.0),
            self.cloud.unwrap_or_default(),
        )
    }

    fn config(&self, context: String, cloud: u32) -> Config {
        let spec = &self.tf().spec;
        // A change of only `backend.migrate` is no change of the configuration.
        let backend = spec.backend.clone().map(|backend| BackendSpec {
            migrate: false,
            ..backend
        });
        let engine = spec.engine.as_ref();
        let refresh = engine.is_none_or(|engine| engine.refresh);
        let engine = engine
            .map(|engine| {
                let wrapper = (engine.wrapper, &engine.wrapper_version);
                (engine.requested(), &engine.version, wrapper)
            })
            .filter(|(name, _, (wrapper, _))| name.is_some() || wrapper.is_some());
        let base = &spec.container_registry.base_image;
        let runner = spec.runner.as_ref();
        let account = runner.and_then(|runner| runner.service_account_name.as_ref());
        let pod = runner
            .and_then(|runner| runner.pod.as_ref())
            .map(|pod| {
                serde_json::json!([
                    pod.env,
                    pod.env_from,
                    pod.volumes,
                    pod.volume_mounts,
                    pod.host_aliases,
                    pod.dns_config
                ])
            })
            .filter(|pod| *pod != serde_json::json!([[], [], [], [], [], null]));
        Config {
            context,
            size: spec
                .variables
                .get("size")
                .map(Anything::value)
                .unwrap_or_default(),
            cloud,
            image: spec.container_registry.image_name.clone(),
            other_inputs: serde_json::json!([
                backend,
                spec.scripts,
                self.trigger_values(),
                engine,
                base,
                account,
                pod,
                spec.var_files,
                spec.workspace(),
                refresh
            ]),
        }
    }

    /// Returns the name of the resource, even after the resource is deleted.
    pub(crate) fn name(&self) -> String {
        self.tf
            .as_ref()
            .map_or_else(|| "web".to_owned(), ResourceExt::name_any)
    }

    /// Returns the values of `spec.variablesFrom` that trigger runs.
    fn trigger_values(&self) -> BTreeMap<String, serde_json::Value> {
        let inputs = self
            .stack
            .variables
            .found
            .iter()
            .filter(|input| input.trigger);
        let values = inputs.flat_map(|input| &input.values);
        let values_by_name =
            values.map(|(name, value)| (name.trim_start_matches("TF_VAR_"), &value.value));
        let own_variables = &self.tf().spec.variables;
        values_by_name
            .filter(|(name, _)| !own_variables.contains_key(*name))
            .map(|(name, value)| (name.to_owned(), value.clone()))
            .collect()
    }
}
