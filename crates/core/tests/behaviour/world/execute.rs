//! Executes the steps of a decision in the simulated cluster, as the controller does.

use alustan_api::labels::Component;
use alustan_api::report::Failure;
use alustan_api::run::{Pin, RunPhase, RunProgress, RunRecord, key};
use alustan_api::{Reason, names};
use alustan_core::model::{admission, image, progress};
use alustan_core::objects::{outputs, secrets};
use alustan_core::observed::{
    BuildState, CacheSeen, Ownership, RecordSeen, ReportedProgress, Seen, SharedClaimSeen,
};
use alustan_core::status::notifications;
use alustan_core::status::render::with_failure;
use alustan_core::step::{Decision, Keep, Object, Step, Swap, TakeOver};
use k8s_openapi::api::batch::v1 as batch;
use k8s_openapi::api::core::v1::{Container, PodSpec, Secret, Volume};
use kube_core::ResourceExt;

use super::{
    Build, Config, Job, Ledger, Observation, ReconcileFaults, Reconciled, Situation, World,
};

/// Why a reconcile ended early.
enum Ended {
    Conflict,
    Crash,
    /// A quota denied an object. The next reconcile observes the denial.
    QuotaExhausted,
    /// The API server refused a Job for this reason.
    Refused(Reason),
}

/// Message of the API server when an exhausted quota denies a Job.
const FULL: &str = "jobs.batch \"web\" is forbidden: exceeded quota: small, requested: count/jobs.batch=1, \
                    used: count/jobs.batch=2, limited: count/jobs.batch=2";

/// Progress in the execution of the steps of a decision.
struct StepExecution {
    /// Resource version of the run record that the next swap replaces.
    version: Option<String>,
    /// Resource version of the run report that the next swap replaces.
    report_version: Option<String>,
    /// Number of writes until the controller crashes. `None`: it does not crash.
    remaining_writes: Option<usize>,
    wrote: bool,
    wanted: Option<Config>,
}

impl World {
    /// Reconciles the resource. If the observed run record is current, also checks the decision.
    pub(crate) fn reconcile_with(&mut self, faults: ReconcileFaults) -> Reconciled {
        let seen = self.observe(faults.stale.unwrap_or_default());
        let (observation, decision) = self.decide(seen);
        if faults.stale.is_none() {
            self.check(&decision, &observation);
        }
        self.execute(faults, &observation, decision)
    }

    /// Executes `decision`, based on `observation`.
    pub(crate) fn execute(
        &mut self,
        faults: ReconcileFaults,
        observation: &Observation,
        decision: Decision,
    ) -> Reconciled {
        let seen = &observation.seen;
        if self.tf().spec.suspend {
            self.ledger.reached(Situation::Suspended);
        }
        if has_ready_reason(&decision.status, "NotConverging") {
            self.ledger.reached(Situation::NotConverging);
        }
        let mut execution = StepExecution {
            version: seen.record.as_ref().map(|record| record.version.clone()),
            report_version: seen
                .record
                .as_ref()
                .and_then(|record| record.report_version.clone()),
            remaining_writes: faults.crash,
            wrote: false,
            wanted: self.wanted(observation),
        };
        let mut started = false;
        let mut result = self.execute_steps(&decision.steps, observation, &mut execution);
        if let (Ok(()), Some(start)) = (&result, &decision.start) {
            if self.has_free_slot {
                started = true;
                result = self.execute_steps(&start.steps, observation, &mut execution);
            } else {
                self.ledger.reached(Situation::NoRoom);
            }
        }
        let status = decision.start.as_ref().filter(|_| started);
        let status = status
            .map_or(&decision.status, |start| &start.status)
            .clone();
        if result.is_ok() && execution.remaining_writes == Some(0) {
            result = Err(Ended::Crash);
        }
        match result {
            Ok(()) => execution.wrote |= self.report_status(status),
            Err(Ended::Conflict) => self.ledger.reached(Situation::Conflict),
            Err(Ended::QuotaExhausted) => self.ledger.reached(Situation::Refused),
            Err(Ended::Crash) => {
                self.ledger.reached(if started {
                    Situation::CrashMidStart
                } else {
                    Situation::Crash
                });
                self.restart();
            }
            Err(Ended::Refused(reason)) => {
                let message = "no; next attempt within a minute";
                let status = with_failure(self.tf(), status, reason, message, self.now);
                execution.wrote |= self.report_status(status);
            }
        }
        Reconciled {
            decision,
            started,
            wrote: execution.wrote,
        }
    }

    fn report_status(&mut self, status: alustan_api::TerraformStatus) -> bool {
        let Some(tf) = &mut self.tf else { return false };
        let changed = tf.status.as_ref() != Some(&status);
        notifications::note(
            &mut self.notices,
            tf,
            &status,
            &self.operator_events,
            self.now,
        );
        tf.status = Some(status);
        changed
    }

    fn execute_steps(
        &mut self,
        steps: &[Step],
        observation: &Observation,
        execution: &mut StepExecution,
    ) -> Result<(), Ended> {
        steps
            .iter()
            .try_for_each(|step| self.execute_step(step, observation, execution))
    }

    fn execute_step(
        &mut self,
        step: &Step,
        observation: &Observation,
        execution: &mut StepExecution,
    ) -> Result<(), Ended> {
        if let Step::CleanUp { kept } = step {
            return self.clean_up(kept, execution);
        }
        execution.count()?;
        match step {
            Step::AddFinalizer => {
                let tf = self.tf.as_mut().unwrap();
                tf.metadata.finalizers = Some(vec![alustan_api::FINALIZER.to_owned()]);
                let uid = tf.metadata.uid.clone().unwrap();
                let annotations = tf.metadata.annotations.get_or_insert_default();
                annotations.insert(alustan_api::KEPT.to_owned(), uid);
            }
            Step::CreateRecord(secret) => self.create_record(secret)?,
            Step::TakeOver(take_over) => self.take_over(take_over)?,
            // `CheckRecord` also fails if the run record has changed since the reconcile observed it.
            Step::SwapRecord(swap) | Step::CheckRecord(swap) => {
                self.swap_record(swap, execution)?;
            }
            Step::SwapReport(progress) => self.swap_report(progress, execution)?,
            Step::Ensure(object)
                if self.quota_exhausted && matches!(**object, Object::Claim(_)) =>
            {
                return Err(Ended::QuotaExhausted);
            }
            Step::Ensure(object) => self.ensure(object, &observation.seen),
            Step::PushContext => {
                let source = observation.image.source.value().unwrap();
                let artifact = image::artifact(self.tf(), source);
                self.artifacts.insert(artifact.clone());
                self.memory.query_started |= self.memory.pushed.insert(artifact);
            }
            Step::CreateJob(job) if self.quota_exhausted && !self.has_job(&job.name_any()) => {
                self.memory.denied_job =
                    admission::limit_denial(FULL).map(|denial| (job.name_any(), denial));
                return Err(Ended::QuotaExhausted);
            }
            Step::CreateJob(job) => match self.refuses_jobs {
                Some(reason) => return Err(Ended::Refused(reason)),
                None => self.create_job(job),
            },
            Step::CreateBuildSecret(secret) if self.jobs.contains_key(&secret.name_any()) => {
                self.run_tokens
                    .insert(secret.name_any(), (**secret).clone());
            }
            Step::CreateBuildSecret(secret) => {
                let build = self.builds.get_mut(&secret.name_any());
                if let Some(build) =
                    build.filter(|build| matches!(build.state, BuildState::Active(_)))
                {
                    build.secret = Some((**secret).clone());
                }
            }
            Step::DeleteBuildSecret(secret) => {
                self.run_tokens.remove(&secret.name);
                let build = self.builds.get_mut(&secret.name);
                if let Some(build) =
                    build.filter(|build| format!("secret-of-{}", build.uid) == secret.uid)
                {
                    build.secret = None;
                }
            }
            Step::DeleteJob { name, uid, .. } => {
                let job = self.jobs.get(name).map(|job| &job.uid);
                let build = self.builds.get(name).map(|build| &build.uid);
                if job.or(build) == Some(uid) {
                    self.delete_job(name);
                }
            }
            Step::DeleteOutputs(object) => drop(self.objects.remove(object.name())),
            Step::DeleteClaim => {
                self.cache = CacheSeen::Absent;
                self.volume_unreachable = false;
                self.objects.remove(&names::cache(&self.name()));
            }
            Step::ReleaseClaim(_) => {
                self.shared_claim = SharedClaimSeen::Terminating {
                    has_finished_users: false,
                };
            }
            Step::RecordRun(_)
            | Step::DeleteRun(_)
            | Step::PruneImages
            | Step::EmptyCache(_)
            | Step::CleanUp { .. } => {}
            Step::RemoveFinalizer => {
                // Before a restore, the real objects belong to the earlier resource of the same name. The finalizer may then be removed
                // without a destroy.
                if self.left_behind.is_none() {
                    Ledger::released(&self.real, self.tf());
                }
                let finalizers = &mut self.tf.as_mut().unwrap().metadata.finalizers;
                let others = finalizers.take().unwrap_or_default().into_iter();
                *finalizers = Some(
                    others
                        .filter(|name| name != alustan_api::FINALIZER)
                        .collect(),
                );
                self.release();
            }
        }
        Ok(())
    }

    fn create_record(&mut self, secret: &Secret) -> Result<(), Ended> {
        if self.record.is_some() {
            return Err(Ended::Conflict);
        }
        let data = secret.data.as_ref().unwrap();
        let parse = |key: &str| serde_json::from_slice(&data[key].0).unwrap();
        self.earlier_records.push(None);
        let record: RunRecord = parse(key::RECORD);
        let history = serde_json::from_slice(&data[key::HISTORY].0).unwrap();
        let version = self.next_id().to_string();
        self.own_record = record.clone();
        let report = self.progress.is_some().then(|| self.next_id().to_string());
        self.record = Some(RecordSeen {
            version,
            report_version: report,
            key: b"a key of this resource".to_vec(),
            record,
            inputs: None,
            report: None,
            outputs: None,
            details: None,
            unsaved: false,
            history,
        });
        Ok(())
    }

    fn take_over(&mut self, step: &TakeOver) -> Result<(), Ended> {
        let left_behind = self.left_behind.take();
        if left_behind.is_none_or(|left_behind| left_behind.version != step.version) {
            return Err(Ended::Conflict);
        }
        let report = self.progress.is_some().then(|| self.next_id().to_string());
        self.write_record(RecordSeen {
            version: String::new(),
            report_version: report,
            key: b"a key of this resource".to_vec(),
            record: step.record.clone(),
            inputs: None,
            report: None,
            outputs: None,
            details: None,
            unsaved: false,
            history: step.history.clone(),
        });
        Ok(())
    }

    /// Stores a new version of the run record.
    pub(crate) fn write_record(&mut self, mut next: RecordSeen) {
        next.version = self.next_id().to_string();
        self.own_record = next.record.clone();
        self.replace_record(next);
    }

    /// Stores a new version of the run report.
    pub(crate) fn write_report(&mut self, mut next: RecordSeen, progress: RunProgress) {
        next.report_version = Some(self.next_id().to_string());
        self.progress = Some(progress);
        self.replace_record(next);
    }

    fn replace_record(&mut self, next: RecordSeen) {
        self.earlier_records.push(self.record.replace(next));
        self.merge_progress();
    }

    /// Whether the current run has a Job or a pod that has not terminated.
    pub(crate) fn has_job_of_run(&self) -> bool {
        let run = self.own_record.run.as_ref();
        run.is_some_and(|run| {
            let mut pods = self.pods.iter();
            self.jobs.contains_key(&run.job)
                || pods.any(|pod| pod.job == run.job && pod.stage.is_alive())
        })
    }

    /// Merges the progress of the report into the record.
    pub(crate) fn merge_progress(&mut self) {
        let reported = match &self.progress {
            Some(progress) => ReportedProgress::Progress(Box::new(progress.clone())),
            None => ReportedProgress::Absent,
        };
        let has_job = self.has_job_of_run();
        if let Some(record) = &mut self.record {
            record.record = progress::merge_progress(&self.own_record, &reported, has_job);
        }
    }

    fn swap_report(
        &mut self,
        progress: &RunProgress,
        execution: &mut StepExecution,
    ) -> Result<(), Ended> {
        let current = self.record.clone();
        let Some(mut next) =
            current.filter(|record| record.report_version == execution.report_version)
        else {
            return Err(Ended::Conflict);
        };
        (next.report, next.outputs) = (None, None);
        self.write_report(next, progress.clone());
        let record = self.record.as_ref();
        execution.report_version = record.and_then(|record| record.report_version.clone());
        Ok(())
    }

    fn swap_record(&mut self, swap: &Swap, execution: &mut StepExecution) -> Result<(), Ended> {
        let current = self.record.clone();
        let Some(mut next) =
            current.filter(|record| Some(&record.version) == execution.version.as_ref())
        else {
            return Err(Ended::Conflict);
        };
        if swap.record.cancel && !next.record.cancel {
            self.ledger.reached(Situation::Cancelled);
        }
        let is_by_user = |cause: &Failure| cause.reason == Reason::RunCancelled;
        let given_up = swap.record.given_up.as_ref();
        if given_up.is_some_and(|cause| !is_by_user(cause)) && next.record.given_up.is_none() {
            self.ledger.lost(swap.record.number);
        }
        let failures = swap.history.as_ref().map(|history| &history.failures);
        let is_recorded = swap.record.phase == RunPhase::Recorded
            && next.record.phase < RunPhase::Recorded
            && failures.is_some_and(|failures| failures.reason == Reason::RunCancelled);
        if given_up.is_some_and(is_by_user) && is_recorded {
            self.ledger.cancelled_by_user(swap.record.number);
        }
        let previous_number = next.record.number;
        next.record = swap.record.clone();
        if let Some(history) = &swap.history {
            if history.reconcile_at != next.history.reconcile_at {
                self.ledger.new_budget();
            }
            if history.discarded != next.history.discarded {
                self.ledger.discard(history.discarded.as_ref().unwrap());
            }
            next.history = history.clone();
        }
        if swap.record.number > previous_number {
            self.ledger.decide(&swap.record, execution.wanted.as_ref());
        }
        match &swap.inputs {
            Keep::Same => {}
            Keep::Set(inputs) => {
                if swap.record.number > previous_number {
                    self.ledger.may_start(inputs);
                }
                next.inputs = Some((**inputs).clone());
            }
            Keep::Drop => next.inputs = None,
        }
        self.ledger.record(&next);
        // As in the API server, a write that changes nothing keeps the resource version.
        let is_unchanged = self.record.as_ref().is_some_and(|stored| {
            (&self.own_record, &stored.history, &stored.inputs)
                == (&next.record, &next.history, &next.inputs)
        });
        if !is_unchanged {
            self.write_record(next);
        }
        execution.version = self.record.as_ref().map(|record| record.version.clone());
        Ok(())
    }

    fn ensure(&mut self, object: &Object, seen: &Seen) {
        let name = match object {
            Object::Secret(secret) => secret.name_any(),
            Object::ConfigMap(map) => map.name_any(),
            Object::Claim(claim) => claim.name_any(),
            Object::Account(account) => account.name_any(),
            Object::Role(role) => role.name_any(),
            Object::Binding(binding) => binding.name_any(),
            Object::Budget(budget) => budget.name_any(),
            Object::Namespace(namespace) => format!("namespace {}", namespace.name_any()),
        };
        if let (Object::Secret(secret), true) = (object, name == names::pin(&self.name())) {
            let pin: Pin =
                serde_json::from_slice(&secret.data.as_ref().unwrap()[secrets::PIN].0).unwrap();
            self.pin = Some(pin);
        }
        if matches!(object, Object::Claim(_)) && self.cache == CacheSeen::Absent {
            self.cache = CacheSeen::Pending;
        }
        let overwritten = "wrote over somebody's object";
        match object {
            Object::Secret(secret) if name == outputs::name(self.tf()) => {
                assert!(seen.outputs.secret != Ownership::Foreign, "{overwritten}");
                self.outputs.secret = Ownership::Ours;
                self.outputs_secret = secret.clone();
            }
            Object::ConfigMap(map) => {
                assert!(
                    seen.outputs.config_map != Ownership::Foreign,
                    "{overwritten}"
                );
                self.outputs.config_map = Ownership::Ours;
                self.outputs_config_map = map.clone();
            }
            _ => {}
        }
        self.objects.insert(name);
    }

    fn has_job(&self, name: &str) -> bool {
        self.jobs.contains_key(name) || self.builds.contains_key(name)
    }

    fn create_job(&mut self, job: &batch::Job) {
        let name = job.name_any();
        let (uid, now) = (format!("job-{}", self.next_id()), self.now);
        let template = &job.spec.as_ref().unwrap().template;
        let pod = template.spec.as_ref().unwrap();
        let container = &pod.containers[0];
        if job.labels().contains_key(alustan_api::labels::IMAGE_TAG) {
            let has_registry_secret = self.tf().spec.container_registry.secret_ref.is_some();
            let in_build_namespace = job.metadata.namespace != self.tf().metadata.namespace;
            let volumes = || pod.volumes.iter().flatten();
            // In the own namespace, the build Secret has only the token of a GitHub App.
            let sources =
                volumes().filter_map(|volume| volume.projected.as_ref()?.sources.as_ref());
            let mut secrets = sources
                .flatten()
                .filter_map(|source| source.secret.as_ref());
            let has_token = secrets.any(|secret| secret.name == name);
            let needs_build_secret =
                has_token || in_build_namespace && volumes().any(requires_secret);
            let own_claim = names::cache(&self.name());
            let mut claims = volumes().filter_map(|volume| volume.persistent_volume_claim.as_ref());
            let has_own_volume = claims.any(|claim| claim.claim_name == own_claim);
            let obstacle =
                (has_own_volume && self.volume_unreachable).then(super::runner::unreachable_volume);
            self.builds.entry(name).or_insert_with(|| Build {
                uid,
                destination: destination(container),
                credentials: !has_registry_secret
                    || volumes().any(|volume| volume.name == "docker"),
                needs_build_secret,
                secret: None,
                created_at: now,
                labels: job.labels().clone(),
                obstacle,
                pod_denied: false,
                state: BuildState::Active(None),
            });
            return;
        }
        let volumes = pod.volumes.iter().flatten();
        let claims = volumes.filter_map(|volume| volume.persistent_volume_claim.as_ref());
        let claim = claims.map(|claim| claim.claim_name.clone()).next();
        let own_claim = names::cache(&self.name());
        let mut env = container.env.iter().flatten();
        let number = env.find(|env| env.name == "ALUSTAN_RUN").unwrap();
        let number = number.value.as_ref().unwrap().parse().unwrap();
        let record = self.record.as_ref().unwrap();
        assert!(record.report.is_none() && record.outputs.is_none());
        self.ledger.job(number, &name);
        self.jobs.entry(name).or_insert_with(|| Job {
            uid,
            number,
            image: container.image.clone().unwrap(),
            labels: template.metadata.clone().unwrap().labels.unwrap(),
            unpacks: unpacks(pod),
            volume: claim.as_ref() == Some(&own_claim),
            shared_claim: claim.filter(|claim| *claim != own_claim),
            cloud: container
                .env_from
                .iter()
                .flatten()
                .filter_map(|from| from.secret_ref.as_ref())
                .any(|secret| secret.optional != Some(true)),
            pod_created: false,
        });
    }

    /// Deletes a Job and its pods. A pod that plans or applies terminates gracefully, so it can still progress.
    pub(crate) fn delete_job(&mut self, name: &str) {
        self.builds.remove(name);
        let Some(job) = self.jobs.remove(name) else {
            return;
        };
        for pod in self.pods.iter_mut().filter(|pod| pod.job_uid == job.uid) {
            if !pod.stage.is_working() {
                pod.stage = super::Stage::Dead;
            }
        }
    }

    fn clean_up(&mut self, kept: &[Component], execution: &mut StepExecution) -> Result<(), Ended> {
        for name in self.jobs.keys().cloned().collect::<Vec<_>>() {
            execution.count()?;
            self.delete_job(&name);
        }
        execution.count()?;
        self.objects
            .retain(|name| kept.contains(&Component::State) && name.contains("-state"));
        for is_record in [self.record_first, !self.record_first] {
            execution.count()?;
            if !is_record {
                self.pin = None;
                if !kept.contains(&Component::Cache) {
                    self.cache = CacheSeen::Absent;
                }
            } else if !kept.contains(&Component::Record) {
                self.earlier_records.push(self.record.take());
                self.progress = None;
                self.ledger.forget_runs();
            }
        }
        Ok(())
    }
}

impl StepExecution {
    fn count(&mut self) -> Result<(), Ended> {
        match &mut self.remaining_writes {
            Some(0) => return Err(Ended::Crash),
            Some(remaining) => *remaining -= 1,
            None => {}
        }
        self.wrote = true;
        Ok(())
    }
}

/// Whether `Ready` has this reason.
fn has_ready_reason(status: &alustan_api::TerraformStatus, reason: &str) -> bool {
    let mut conditions = status.conditions.iter();
    conditions.any(|condition| condition.type_ == "Ready" && condition.reason == reason)
}

/// Returns the context that the pod unpacks before the run.
fn unpacks(pod: &PodSpec) -> Option<String> {
    let mut init = pod.init_containers.iter().flatten();
    let pull = init.find(|container| container.name == "pull")?;
    let mut env = pull.env.iter().flatten();
    env.find(|env| env.name == "ALUSTAN_CONTEXT")?.value.clone()
}

/// Returns repository and tag that a builder pushes to.
fn destination(builder: &Container) -> (String, String) {
    let mut arguments = builder.args.iter().flatten();
    let kaniko = arguments.find_map(|argument| argument.strip_prefix("--destination="));
    let mut environment = builder.env.iter().flatten();
    let append = environment.find(|variable| variable.name == "ALUSTAN_IMAGE");
    let append = append.and_then(|variable| variable.value.as_deref());
    let image_reference = kaniko.or(append).unwrap();
    let (image, tag) = image_reference.rsplit_once(':').unwrap();
    (image.to_owned(), tag.to_owned())
}

/// Whether a pod with `volume` cannot start without a Secret.
fn requires_secret(volume: &Volume) -> bool {
    let secret_volumes = volume.secret.iter().map(|secret| secret.optional);
    let projected = volume
        .projected
        .iter()
        .flat_map(|volume| &volume.sources)
        .flatten();
    let projected = projected.filter_map(|source| source.secret.as_ref());
    let projected = projected.map(|secret| secret.optional);
    secret_volumes
        .chain(projected)
        .any(|optional| optional != Some(true))
}
