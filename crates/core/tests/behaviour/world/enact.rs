//! Executes the steps of a decision in the simulated cluster, as the controller does.

use alustan_api::labels::Component;
use alustan_api::run::{Pin, RunProgress, RunRecord, key};
use alustan_api::{Reason, names};
use alustan_core::decide::decide;
use alustan_core::model::{admission, image, progress};
use alustan_core::objects::{outputs, secrets};
use alustan_core::observed::{
    BuildState, CacheSeen, Ownership, RecordSeen, ReportedProgress, Seen,
};
use alustan_core::status::notifications;
use alustan_core::status::render::with_failure;
use alustan_core::step::{Decision, Keep, Object, Step, Swap, TakeOver};
use k8s_openapi::api::batch::v1 as batch;
use k8s_openapi::api::core::v1::{Container, PodSpec, Secret, Volume};
use kube::ResourceExt;

use super::{Build, Class, Config, Job, Ledger, Look, Looked, World};

/// Why a reconcile ended early.
enum Ended {
    Conflict,
    Crash,
    /// A quota denied an object. The next reconcile observes the denial.
    Full,
    /// The API server refused a Job for this reason.
    Refused(Reason),
}

/// Message of the API server when an exhausted quota denies a Job.
const FULL: &str = "jobs.batch \"web\" is forbidden: exceeded quota: small, requested: count/jobs.batch=1, \
                    used: count/jobs.batch=2, limited: count/jobs.batch=2";

/// Progress in the execution of the steps of a decision.
struct Pass {
    /// Resource version of the run record that the next swap replaces.
    version: Option<String>,
    /// Resource version of the run report that the next swap replaces.
    report_version: Option<String>,
    /// Number of writes until the controller crashes. `None`: it does not crash.
    left: Option<usize>,
    wrote: bool,
    wanted: Option<Config>,
}

impl World {
    /// Reconciles the resource. Checks the decision, unless the observed run record is outdated.
    pub(crate) fn look(&mut self, look: Look) -> Looked {
        let seen = self.observe(look.stale.unwrap_or_default());
        let decision = decide(self.tf(), &seen, &self.settings, self.now);
        if look.stale.is_none() {
            self.check(&decision, &seen);
        }
        self.carry_out(look, &seen, decision)
    }

    /// Executes `decision`, based on `seen`.
    pub(crate) fn carry_out(&mut self, look: Look, seen: &Seen, decision: Decision) -> Looked {
        if self.tf().spec.suspend {
            self.ledger.class(Class::Suspended);
        }
        if has_ready_reason(&decision.status, "NotConverging") {
            self.ledger.class(Class::NotConverging);
        }
        let mut pass = Pass {
            version: seen.record.as_ref().map(|record| record.version.clone()),
            report_version: seen
                .record
                .as_ref()
                .and_then(|record| record.report_version.clone()),
            left: look.crash,
            wrote: false,
            wanted: self.wanted(seen),
        };
        let mut started = false;
        let mut done = self.enact_all(&decision.steps, seen, &mut pass);
        if let (Ok(()), Some(start)) = (&done, &decision.start) {
            if self.room {
                started = true;
                done = self.enact_all(&start.steps, seen, &mut pass);
            } else {
                self.ledger.class(Class::NoRoom);
            }
        }
        let status = decision.start.as_ref().filter(|_| started);
        let status = status
            .map_or(&decision.status, |start| &start.status)
            .clone();
        if done.is_ok() && pass.left == Some(0) {
            done = Err(Ended::Crash);
        }
        match done {
            Ok(()) => pass.wrote |= self.report_status(status),
            Err(Ended::Conflict) => self.ledger.class(Class::Conflict),
            Err(Ended::Full) => self.ledger.class(Class::Refused),
            Err(Ended::Crash) => {
                self.ledger.class(if started {
                    Class::CrashMidStart
                } else {
                    Class::Crash
                });
                self.restart();
            }
            Err(Ended::Refused(reason)) => {
                let why = "no; next attempt within a minute";
                let status = with_failure(self.tf(), status, reason, why, self.now);
                pass.wrote |= self.report_status(status);
            }
        }
        Looked {
            decision,
            started,
            wrote: pass.wrote,
        }
    }

    fn report_status(&mut self, status: alustan_api::TerraformStatus) -> bool {
        let Some(tf) = &mut self.tf else { return false };
        let changed = tf.status.as_ref() != Some(&status);
        notifications::note(&mut self.notices, tf, &status, &self.notified, self.now);
        tf.status = Some(status);
        changed
    }

    fn enact_all(&mut self, steps: &[Step], seen: &Seen, pass: &mut Pass) -> Result<(), Ended> {
        steps
            .iter()
            .try_for_each(|step| self.enact(step, seen, pass))
    }

    fn enact(&mut self, step: &Step, seen: &Seen, pass: &mut Pass) -> Result<(), Ended> {
        if let Step::CleanUp { kept } = step {
            return self.clean_up(kept, pass);
        }
        pass.count()?;
        match step {
            Step::AddFinalizer => {
                let tf = self.tf.as_mut().unwrap();
                tf.metadata.finalizers = Some(vec![alustan_api::FINALIZER.to_owned()]);
                let uid = tf.metadata.uid.clone().unwrap();
                let annotations = tf.metadata.annotations.get_or_insert_default();
                annotations.insert(alustan_api::KEPT.to_owned(), uid);
            }
            Step::CreateRecord(secret) => self.create_record(secret)?,
            Step::TakeOver(left) => self.take_over(left)?,
            // A check fails like a swap if the run record has changed since it was observed.
            Step::SwapRecord(swap) | Step::CheckRecord(swap) => self.swap_record(swap, pass)?,
            Step::SwapReport(progress) => self.swap_report(progress, pass)?,
            Step::Ensure(object) if self.full && matches!(**object, Object::Claim(_)) => {
                return Err(Ended::Full);
            }
            Step::Ensure(object) => self.ensure(object, seen),
            Step::PushContext => {
                let place = image::artifact(self.tf(), seen.source.value().unwrap());
                self.artifacts.insert(place.clone());
                self.memory.asked |= self.memory.pushed.insert(place);
            }
            Step::CreateJob(job) if self.full && !self.has_job(&job.name_any()) => {
                self.memory.refused = admission::refusal(FULL).map(|why| (job.name_any(), why));
                return Err(Ended::Full);
            }
            Step::CreateJob(job) => match self.refuses_jobs {
                Some(reason) => return Err(Ended::Refused(reason)),
                None => self.create_job(job),
            },
            Step::CreateBuildSecret(secret) => {
                let build = self.builds.get_mut(&secret.name_any());
                if let Some(build) = build.filter(|it| matches!(it.state, BuildState::Active(_))) {
                    build.build_secret = Some((**secret).clone());
                }
            }
            Step::DeleteBuildSecret(lent) => {
                let build = self.builds.get_mut(&lent.name);
                if let Some(build) = build.filter(|it| format!("lent-to-{}", it.uid) == lent.uid) {
                    build.build_secret = None;
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
            Step::CleanUp { .. } => {}
            Step::RemoveFinalizer => {
                // Before a restore, the real objects belong to the earlier resource and not to this one.
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
        self.earlier.push(None);
        let record: RunRecord = parse(key::RECORD);
        let history = serde_json::from_slice(&data[key::HISTORY].0).unwrap();
        let version = self.fresh().to_string();
        self.own = record.clone();
        let report = self.progress.is_some().then(|| self.fresh().to_string());
        self.record = Some(RecordSeen {
            version,
            report_version: report,
            key: b"a key of this resource".to_vec(),
            record,
            inputs: None,
            report: None,
            outputs: None,
            unsaved: false,
            history,
        });
        Ok(())
    }

    fn take_over(&mut self, left: &TakeOver) -> Result<(), Ended> {
        let found = self.left_behind.take();
        if found.is_none_or(|found| found.version != left.version) {
            return Err(Ended::Conflict);
        }
        let report = self.progress.is_some().then(|| self.fresh().to_string());
        self.store(RecordSeen {
            version: String::new(),
            report_version: report,
            key: b"a key of this resource".to_vec(),
            record: left.record.clone(),
            inputs: None,
            report: None,
            outputs: None,
            unsaved: false,
            history: left.history.clone(),
        });
        Ok(())
    }

    /// Stores a new version of the run record.
    pub(crate) fn store(&mut self, mut next: RecordSeen) {
        next.version = self.fresh().to_string();
        self.own = next.record.clone();
        self.put(next);
    }

    /// Stores a new version of the run report.
    pub(crate) fn store_report(&mut self, mut next: RecordSeen, progress: RunProgress) {
        next.report_version = Some(self.fresh().to_string());
        self.progress = Some(progress);
        self.put(next);
    }

    fn put(&mut self, next: RecordSeen) {
        self.earlier.push(self.record.replace(next));
        self.believe();
    }

    /// Whether the current run has a Job or a pod that has not terminated.
    pub(crate) fn has_job_of_run(&self) -> bool {
        let run = self.own.run.as_ref();
        run.is_some_and(|run| {
            let mut pods = self.pods.iter();
            self.jobs.contains_key(&run.job)
                || pods.any(|pod| pod.job == run.job && pod.stage.is_alive())
        })
    }

    /// Merges the progress of the report into the record.
    pub(crate) fn believe(&mut self) {
        let told = match &self.progress {
            Some(progress) => ReportedProgress::Progress(Box::new(progress.clone())),
            None => ReportedProgress::Absent,
        };
        let has_job = self.has_job_of_run();
        if let Some(record) = &mut self.record {
            record.record = progress::merge_progress(&self.own, &told, has_job);
        }
    }

    fn swap_report(&mut self, progress: &RunProgress, pass: &mut Pass) -> Result<(), Ended> {
        let current = self.record.clone();
        let Some(mut next) = current.filter(|now| now.report_version == pass.report_version) else {
            return Err(Ended::Conflict);
        };
        (next.report, next.outputs) = (None, None);
        self.store_report(next, progress.clone());
        let record = self.record.as_ref();
        pass.report_version = record.and_then(|record| record.report_version.clone());
        Ok(())
    }

    fn swap_record(&mut self, swap: &Swap, pass: &mut Pass) -> Result<(), Ended> {
        let current = self.record.clone();
        let Some(mut next) = current.filter(|now| Some(&now.version) == pass.version.as_ref())
        else {
            return Err(Ended::Conflict);
        };
        if swap.record.cancel && !next.record.cancel {
            self.ledger.class(Class::Cancelled);
        }
        if swap.record.given_up.is_some() && next.record.given_up.is_none() {
            self.ledger.lost(swap.record.number);
        }
        let before = next.record.number;
        next.record = swap.record.clone();
        if let Some(history) = &swap.history {
            if history.reconcile_at != next.history.reconcile_at {
                self.ledger.new_budget();
            }
            next.history = history.clone();
        }
        if swap.record.number > before {
            self.ledger.decide(&swap.record, pass.wanted.as_ref());
        }
        match &swap.inputs {
            Keep::Same => {}
            Keep::Set(inputs) => next.inputs = Some((**inputs).clone()),
            Keep::Drop => next.inputs = None,
        }
        self.ledger.record(&next);
        self.store(next);
        pass.version = self.record.as_ref().map(|record| record.version.clone());
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
        let theirs = "wrote over somebody's object";
        match object {
            Object::Secret(secret) if name == outputs::name(self.tf()) => {
                assert!(seen.outputs.secret != Ownership::Foreign, "{theirs}");
                self.outputs.secret = Ownership::Ours;
                self.handed_on = secret.clone();
            }
            Object::ConfigMap(map) => {
                assert!(seen.outputs.config_map != Ownership::Foreign, "{theirs}");
                self.outputs.config_map = Ownership::Ours;
                self.told = map.clone();
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
        let (uid, now) = (format!("job-{}", self.fresh()), self.now);
        let template = &job.spec.as_ref().unwrap().template;
        let pod = template.spec.as_ref().unwrap();
        let container = &pod.containers[0];
        if job.labels().contains_key(alustan_api::labels::IMAGE_TAG) {
            let named = self.tf().spec.container_registry.secret_ref.is_some();
            let elsewhere = job.metadata.namespace != self.tf().metadata.namespace;
            let volumes = || pod.volumes.iter().flatten();
            let borrows = elsewhere && volumes().any(wants_a_secret);
            self.builds.entry(name).or_insert_with(|| Build {
                uid,
                destination: destination(container),
                credentials: !named || volumes().any(|volume| volume.name == "docker"),
                borrows,
                build_secret: None,
                created_at: now,
                unborn: false,
                state: BuildState::Active(None),
            });
            return;
        }
        let volumes = pod.volumes.iter().flatten();
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
            volume: volumes
                .into_iter()
                .any(|it| it.persistent_volume_claim.is_some()),
            cloud: container
                .env_from
                .iter()
                .flatten()
                .filter_map(|from| from.secret_ref.as_ref())
                .any(|secret| secret.optional != Some(true)),
            spawned: false,
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

    fn clean_up(&mut self, kept: &[Component], pass: &mut Pass) -> Result<(), Ended> {
        for name in self.jobs.keys().cloned().collect::<Vec<_>>() {
            pass.count()?;
            self.delete_job(&name);
        }
        pass.count()?;
        self.objects
            .retain(|name| kept.contains(&Component::State) && name.contains("-state"));
        for is_record in [self.record_first, !self.record_first] {
            pass.count()?;
            if !is_record {
                self.pin = None;
                if !kept.contains(&Component::Cache) {
                    self.cache = CacheSeen::Absent;
                }
            } else if !kept.contains(&Component::Record) {
                self.earlier.push(self.record.take());
                self.progress = None;
                self.ledger.forget_runs();
            }
        }
        Ok(())
    }
}

impl Pass {
    fn count(&mut self) -> Result<(), Ended> {
        match &mut self.left {
            Some(0) => return Err(Ended::Crash),
            Some(left) => *left -= 1,
            None => {}
        }
        self.wrote = true;
        Ok(())
    }
}

/// Whether `Ready` has this reason.
fn has_ready_reason(status: &alustan_api::TerraformStatus, reason: &str) -> bool {
    let mut conditions = status.conditions.iter();
    conditions.any(|it| it.type_ == "Ready" && it.reason == reason)
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
    let place = kaniko.or(append).unwrap();
    let (image, tag) = place.rsplit_once(':').unwrap();
    (image.to_owned(), tag.to_owned())
}

/// Whether a pod with `volume` cannot start without a Secret.
fn wants_a_secret(volume: &Volume) -> bool {
    let whole = volume.secret.iter().map(|secret| secret.optional);
    let projected = volume.projected.iter().flat_map(|it| &it.sources).flatten();
    let projected = projected.filter_map(|source| source.secret.as_ref());
    let projected = projected.map(|secret| secret.optional);
    whole
        .chain(projected)
        .any(|optional| optional != Some(true))
}
