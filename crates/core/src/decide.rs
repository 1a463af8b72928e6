//! Decides the next writes and the status of a resource from the observed state. Uses no client, no clock and no async code.

mod active_run;
mod applied;
mod approval;
mod case;
mod deletion;
mod deletion_hold;
mod dependencies;
mod flapping;
mod idle;
mod image_build;
mod missing_record;
mod next_action;
mod opt_in;
mod publish_outputs;
mod renew_hashes;
mod restore;
mod retry;
mod run_result;
mod start_run;
mod state_volume;

use alustan_api::conditions::{Convergence, update};
use alustan_api::report::{Failure, FailureClass};
use alustan_api::run::{BackendInputs, PinnedImage, RunKind, RunPhase, Trigger};
use alustan_api::{GitRepo, Reason, State, Terraform, TerraformStatus};
use k8s_openapi::jiff::Timestamp;
use kube_core::ResourceExt;

use self::image_build::ImageAvailability;
use self::next_action::NextAction;
use self::opt_in::engine_too_old;
use self::start_run::RunRequest;
use crate::decide::case::{
    CONFLICT, ImageWait, ReconcileCase, RunConfig, Runner, Target, has_finalizer,
};
use crate::model::image::{self, ImagePlan};
use crate::model::summary::{self, Summary, logs};
use crate::model::{
    admission, allow_lists, base_image, facts, progress, run_inputs, state_conflict, state_slots,
};
use crate::observed::{Answer, BuildState, OutputsSeen, Ownership, RecordSeen, Seen, SourceSeen};
use crate::queue::Class;
use crate::settings::Settings;
use crate::status::render::{ImageView, View};
use crate::step::{Decision, Keep, Start, Step, Swap};

/// Maximum number of finished runner Jobs kept for `kubectl logs`.
const KEPT_JOBS: usize = 3;

/// Returns the result of a reconcile of `tf` at `now`: writes, an optional run or build that waits for a slot, status and requeue time.
pub fn decide(tf: &Terraform, seen: &Seen, settings: &Settings, now: Timestamp) -> Decision {
    let manual_destroy = allow_lists::with_manual_destroy(tf, &seen.allowed);
    let tf = manual_destroy.as_ref().unwrap_or(tf);
    let deleting = tf.metadata.deletion_timestamp.is_some();
    let Some(record) = &seen.record else {
        let mut decision = missing_record::decide(tf, seen, settings, now);
        decision
            .steps
            .splice(0..0, image_build::delete_build_secrets(seen));
        return decision;
    };
    let manual_destroy = restore::with_manual_first_plan(tf, &record.history);
    let tf = manual_destroy.as_ref().unwrap_or(tf);
    let mut case = ReconcileCase {
        tf,
        seen,
        settings,
        now,
        record,
        current: record.record.clone(),
        history: record.history.clone(),
        outputs: seen.outputs,
        steps: Vec::new(),
    };
    if let Some(recorded) = run_result::record_result(tf, seen, now) {
        case.steps = recorded.steps;
        case.current = recorded.record;
        case.history = recorded.history;
        if recorded.outputs {
            case.outputs = OutputsSeen {
                secret: Ownership::Ours,
                config_map: Ownership::Ours,
            };
        }
    } else {
        case.clear_report();
    }
    case.store_notices();
    case.steps.extend(image_build::delete_build_secrets(seen));
    case.steps.extend(old_jobs(&case));
    if deleting {
        return deletion::decide(case);
    }
    if !has_finalizer(tf) {
        case.steps.push(Step::AddFinalizer);
    }
    case.decide()
}

/// Returns the steps that delete finished runner Jobs beyond [`KEPT_JOBS`]. The reports of the deleted Jobs stay in the history. The Job of
/// the pending plan is kept, because its log shows the plan to approve. A Job whose engine container has terminated is deleted at once if a
/// sidecar still runs, because the sidecar may never terminate.
fn old_jobs(case: &ReconcileCase<'_>) -> Vec<Step> {
    let current = &case.current;
    let pending_run = case.history.pending.as_ref().map(|plan| plan.run);
    let is_recorded = |number: i64| number < current.number || current.phase == RunPhase::Recorded;
    let ended = case.seen.jobs.iter().rev();
    let ended = ended.filter(|(number, job)| job.finished && is_recorded(**number));
    let (lingering, finished): (Vec<_>, Vec<_>) = ended.partition(|(_, job)| job.lingers);
    let removable = finished
        .into_iter()
        .filter(|(number, _)| Some(**number) != pending_run);
    lingering
        .into_iter()
        .chain(removable.skip(KEPT_JOBS))
        .map(|(_, job)| Step::DeleteJob {
            namespace: case.tf.namespace().unwrap_or_default(),
            name: job.name.clone(),
            uid: job.uid.clone(),
        })
        .collect()
}

/// Next action for a [`Target`].
enum Next {
    /// Starts a run.
    Run(Box<RunConfig>, RunKind, Trigger),
    /// Starts no run or build until something changes, or until the timestamp.
    Image(Summary),
    /// Starts nothing until a change, or until the timestamp.
    Idle(Summary, Option<Timestamp>),
}

impl ReconcileCase<'_> {
    fn decide(mut self) -> Decision {
        let target = self.target();
        if let Ok(Target {
            source,
            wanted: Ok(wanted),
            ..
        }) = &target
        {
            self.renew_hashes(source, wanted);
        }
        if self.seen.is_pruning_due && target.is_ok() {
            self.steps.push(Step::PruneImages);
        }
        let run = facts::open_run(&self.current).cloned();
        if self.tf.spec.suspend && self.current.phase.is_harmless() {
            return self.suspended(run.as_ref(), &target);
        }
        if let Some(status) = self.unchanged() {
            return self.keep_status(status);
        }
        if let Some(run) = run {
            return self.active(&run, target);
        }
        let target = match target {
            Ok(target) => target,
            Err(summary) => return self.cannot_start(&summary, None, None),
        };
        let Target { source, runner, .. } = &target;
        let next = match self.next(&target) {
            Next::Idle(summary, at) => return self.without_run(&summary, at),
            next @ (Next::Run(..) | Next::Image(_)) => next,
        };
        let waiting = self.image_wait(&next);
        let runner = match runner {
            Ok(runner) => runner.clone(),
            Err(summary) => {
                let summary = self.waiting_summary(waiting, summary);
                return self.cannot_start(&summary, None, None);
            }
        };
        self.store_base_image(runner.base);
        match image_build::image(&self, source, &runner.plan) {
            ImageAvailability::Ready(digest) => self.with_image(source, &runner.plan, next, digest),
            ImageAvailability::Missing(missing) => {
                self.without_image(&runner.plan, *missing, waiting)
            }
        }
    }

    /// Returns the next action for `target`, regardless of whether its image exists.
    fn next(&self, target: &Target) -> Next {
        let wanted = match &target.wanted {
            Ok(wanted) => wanted,
            Err(missing) => return self.without_values(&target.own_hash, missing),
        };
        match self.next_action(&target.source, &wanted.config) {
            NextAction::Run(kind, trigger) => Next::Run(Box::new(wanted.clone()), kind, trigger),
            NextAction::Wait(summary, at) => Next::Idle(summary, at),
        }
    }

    /// Returns the decision if no run is due. Status shows the image of the last run. `at`: latest requeue time.
    fn without_run(mut self, summary: &Summary, at: Option<Timestamp>) -> Decision {
        self.store_failing_test(&self.seen.stack.health_checks);
        let digest = self.last_digest();
        let mut decision = self.done(summary, None, digest);
        decision.requeue_at = earliest(decision.requeue_at, at);
        decision
    }

    /// Returns the image digest of the last run. `None` if that run used a base image.
    fn last_digest(&self) -> Option<String> {
        let run = self.current.run.as_ref().filter(|run| !run.unpack)?;
        let (_, digest) = run.image.split_once('@')?;
        Some(digest.to_owned())
    }

    /// Clears the report of a run that is already in the history: a replica may have stopped after it wrote the history and before it
    /// cleared the report.
    fn clear_report(&mut self) {
        let RecordSeen {
            record,
            report,
            outputs,
            ..
        } = self.record;
        let is_recorded = record.phase == RunPhase::Recorded;
        if is_recorded && (report.is_some() || outputs.is_some()) {
            let closed = progress::of(record);
            self.steps.push(Step::SwapReport(Box::new(closed)));
        }
    }

    /// Stores the notifications in the history, so that a new leader sends pending notifications and does not repeat delivered
    /// notifications.
    fn store_notices(&mut self) {
        if self.history.notices != self.seen.notices {
            self.history.notices.clone_from(&self.seen.notices);
            self.steps.push(self.store_history());
        }
    }

    /// Returns the configuration to apply.
    ///
    /// # Errors
    ///
    /// Returns a summary if the configuration is invalid, not allowed or not known yet.
    pub(crate) fn target(&self) -> Result<Target, Summary> {
        self.target_of(self.source())
    }

    /// Returns the configuration to apply with the commit and context in `source`.
    fn target_of(&self, source: Result<SourceSeen, Summary>) -> Result<Target, Summary> {
        if let Some(invalid) = &self.seen.invalid {
            return Err(summary::configuration_failure(invalid));
        }
        if let Some(violation) = image::settings_violation(self.tf, self.settings) {
            return Err(summary::configuration_failure(&violation));
        }
        if let Some(refusal) =
            allow_lists::refusal(self.tf, &self.seen.allowed, &self.seen.accounts)
        {
            return Err(self.not_allowed(&refusal));
        }
        let seen = self
            .seen
            .inputs
            .as_ref()
            .map_err(|incomplete| missing_input(&incomplete.failure))?;
        let source = source?;
        let base = self.base();
        let resolved_base = if base_image::is_selected(self.tf) {
            Some(base.clone()?.resolved)
        } else {
            None
        };
        let variables = &self.seen.stack.variables;
        let slots = state_slots::slots(&self.current);
        let mut inputs = run_inputs::run_inputs(
            self.tf,
            &source,
            seen,
            variables,
            slots,
            self.settings.max_timeout,
        )
        .map_err(|error| Summary::stalled(error.reason(), error.to_string()))?;
        if let Some(refused) = self.volume_lost(&inputs.backend) {
            return Err(refused);
        }
        let content = image::content(self.tf, &source, resolved_base.as_deref());
        let config = run_inputs::config(self.tf, &self.record.key, &content, &inputs, self.seen);
        if let Some(conflict) = self.conflict(&config.hash) {
            return Err(conflict);
        }
        self.check_opt_ins(&mut inputs)?;
        let missing = variables
            .missing
            .as_ref()
            .and_then(|_| self.missing_dependency());
        let runner = base.and_then(|base| self.runner(&source, base, &inputs.backend));
        let own_hash = config.own_hash.clone();
        let wanted = missing.map_or(Ok(RunConfig { inputs, config }), Err);
        Ok(Target {
            source,
            runner,
            own_hash,
            wanted,
        })
    }

    /// Returns the resolved base image; after a failed lookup, the last known base image.
    fn base(&self) -> Result<PinnedImage, Summary> {
        match &self.seen.base {
            Answer::Known(base)
            | Answer::Failed {
                last: Some(base), ..
            } => Ok(base.clone()),
            Answer::Pending => Err(Summary::busy(
                State::Building,
                Reason::ImageLookup,
                "looking up the base image in the registry",
            )),
            Answer::Failed {
                failure,
                retry_at,
                last: None,
            } => Err(summary::query_failure(failure, *retry_at, self.now)),
        }
    }

    /// Returns the runner image for `source`, based on `base`.
    ///
    /// # Errors
    ///
    /// Fails if a change to the engine in `base` requires `spec.engine.allowSwitch`, or if this engine is too old for the configuration of
    /// `backend`.
    fn runner(
        &self,
        source: &SourceSeen,
        base: PinnedImage,
        backend: &BackendInputs,
    ) -> Result<Runner, Summary> {
        let refused = self.engine_change_refusal(&base);
        if let Some(refused) = refused.or_else(|| engine_too_old(&base, backend)) {
            return Err(refused);
        }
        let uid = &self.seen.namespace_uid;
        let recorded = self.history.architecture;
        let architecture = self.settings.architecture_of(self.tf, recorded);
        let plan = image::plan(self.tf, source, &base, architecture, uid, self.settings);
        Ok(Runner { base, plan })
    }

    /// Returns the summary of `refusal`, a violation of the allow lists. If the spec names `ServiceAccount`s, requeues after the interval
    /// [`CONFLICT`], because the operator does not watch ServiceAccounts.
    fn not_allowed(&self, refusal: &Failure) -> Summary {
        let summary = match refusal.class {
            FailureClass::Transient => missing_input(refusal),
            FailureClass::User | FailureClass::Module => summary::configuration_failure(refusal),
        };
        Summary {
            requeue_at: (!self.seen.accounts.is_empty()).then(|| self.now + CONFLICT),
            ..summary
        }
    }

    /// Returns the summary of a conflict: the state at the same address belongs to another resource. If the address comes from the report
    /// of the last run, ignores the conflict if that run had another config hash: the current configuration may have another state address.
    fn conflict(&self, hash: &str) -> Option<Summary> {
        let last_run = self.current.run.as_ref();
        let same_config = last_run.is_some_and(|run| run.config_hash == hash) && !self.has_moved();
        let address_counts = same_config || !state_conflict::is_address_reported(self.tf);
        let conflict = self.seen.conflict.as_ref().filter(|_| address_counts)?;
        Some(Summary {
            requeue_at: Some(self.now + CONFLICT),
            ..summary::configuration_failure(conflict)
        })
    }

    /// Whether the latest reported state address differs from the address in status, which may be older.
    fn has_moved(&self) -> bool {
        let mut reports = self.history.reports.iter();
        let reported = reports.find_map(|report| report.state_address.as_ref());
        let in_status = self
            .tf
            .status
            .as_ref()
            .map(|status| status.state_address.as_ref());
        reported.is_some() && in_status != Some(reported)
    }

    /// Returns the status to keep while the commit is unknown: the query to the repository is pending, or failed without an earlier result.
    /// So a ready resource stays ready after a restart of the operator, and while the git server is unreachable. `None` if the status must
    /// be computed again.
    fn unchanged(&self) -> Option<TerraformStatus> {
        let source_unknown = match &self.seen.source {
            Answer::Pending => true,
            Answer::Failed {
                failure,
                last: None,
                ..
            } => failure.class == FailureClass::Transient,
            Answer::Known(_) | Answer::Failed { .. } => false,
        };
        let pending = source_unknown && self.seen.inputs.is_ok();
        if let Some(status) = self.waiting_status_while_querying() {
            return Some(status);
        }
        let quiet = match facts::open_run(&self.current) {
            Some(run) => self.keeps_ready(run.kind, &run.trigger, &run.config_hash),
            None => self
                .history
                .applied
                .as_ref()
                .is_some_and(|applied| self.is_applied(&applied.config_hash)),
        };
        let status = self.tf.status.as_ref().filter(|_| pending && quiet)?;
        let generation_observed = status.observed_generation == self.tf.metadata.generation;
        let is_idle = facts::open_run(&self.current).is_none();
        let source_applied = generation_observed || (is_idle && self.is_last_source_applied());
        (is_ready(status) && source_applied).then(|| {
            let view = self.view(None, None);
            if self.seen.source == Answer::Pending && generation_observed {
                return status.clone();
            }
            if is_idle {
                return TerraformStatus {
                    source: status.source.clone(),
                    image: status.image.clone(),
                    ..view.status(&self.idle_summary(), self.now)
                };
            }
            let (previous, generation) = (&status.conditions, status.observed_generation);
            let updated = [view.source_ready()];
            TerraformStatus {
                conditions: update(previous.clone(), previous, &updated, generation, self.now),
                ..status.clone()
            }
        })
    }

    /// Returns the unchanged status of a waiting resource ([`Self::waiting_status`]) while the query to the repository is pending, for
    /// example after a restart of the operator.
    fn waiting_status_while_querying(&self) -> Option<TerraformStatus> {
        let query_pending = self.seen.source == Answer::Pending && self.seen.inputs.is_ok();
        self.waiting_status().filter(|_| query_pending)
    }

    /// Returns the current status if the resource waits for an approval, a retry, a change of the spec or another object. `None` if the
    /// resource does not wait, or if its run record or generation has changed.
    fn waiting_status(&self) -> Option<TerraformStatus> {
        let changed =
            self.current != self.record.record || facts::open_run(&self.current).is_some();
        let status = self.tf.status.as_ref().filter(|_| !changed)?;
        let is_waiting = matches!(
            status.state,
            State::AwaitingApproval | State::Failed | State::Stalled
        ) || is_blocked(status);
        let generation_observed = status.observed_generation == self.tf.metadata.generation;
        (is_waiting && generation_observed).then(|| status.clone())
    }

    fn keep_status(mut self, status: TerraformStatus) -> Decision {
        if facts::open_run(&self.current).is_some() {
            self.steps.extend(start_run::ensure_missing_objects(
                self.tf,
                self.seen,
                self.settings,
            ));
        }
        Decision {
            steps: self.steps,
            start: None,
            status,
            requeue_at: None,
        }
    }

    /// Whether the last apply used the current spec and the last known context, and no run of this configuration has failed since.
    fn is_last_source_applied(&self) -> bool {
        let source = self.last_source().ok_or_else(fetching);
        let target = self.target_of(source);
        let wanted = target.and_then(|target| target.wanted);
        wanted.is_ok_and(|wanted| self.is_applied(&wanted.config.hash))
    }

    /// Returns the last known commit and context from status and pin. `None` if repository, reference or path in the spec have changed
    /// since. The commit may be outdated, so no run or build starts with it.
    fn last_source(&self) -> Option<SourceSeen> {
        let source = self.tf.status.as_ref()?.source.as_ref()?;
        let pin = self.seen.pin.as_ref()?;
        let context = source.context.clone()?;
        let backend = run_inputs::module_backend(&pin.inputs.backend);
        let artifact = pin.artifact.as_ref()?;
        let (_, digest) = artifact.split_once('@')?;
        let pinned: GitRepo = serde_json::from_value(pin.spec.get("gitRepo")?.clone()).ok()?;
        is_same_checkout(&pinned, &self.tf.spec.git_repo).then(|| SourceSeen {
            revision: source.revision.clone(),
            context,
            artifact: digest.to_owned(),
            path: pin.inputs.path.clone(),
            backend: backend.map(str::to_owned),
            committed_at: Timestamp::UNIX_EPOCH,
        })
    }

    /// Returns the commit and the context to use.
    ///
    /// # Errors
    ///
    /// Returns a summary if the query to the repository is pending or failed, and no earlier answer is usable.
    fn source(&self) -> Result<SourceSeen, Summary> {
        let has_active_run = facts::open_run(&self.current).is_some();
        match &self.seen.source {
            Answer::Pending if self.tf.spec.suspend || has_active_run => {
                self.last_source().ok_or_else(fetching)
            }
            Answer::Known(source) => Ok(source.clone()),
            Answer::Failed {
                failure,
                last: Some(last),
                ..
            } if failure.class == FailureClass::Transient => Ok(last.clone()),
            Answer::Failed {
                failure, retry_at, ..
            } => Err(summary::query_failure(failure, *retry_at, self.now)),
            Answer::Pending => Err(fetching()),
        }
    }

    /// Stores the resolved base image in the history; the next write of the run record includes the history. A base image is resolved once:
    /// a moved tag causes no build (rule 1).
    pub(crate) fn store_base_image(&mut self, base: PinnedImage) {
        if self.history.base.as_ref() != Some(&base) {
            self.history.base = Some(base);
        }
    }

    pub(crate) fn without_image(
        mut self,
        plan: &ImagePlan,
        missing: image_build::MissingImage,
        waiting: ImageWait,
    ) -> Decision {
        let image_build::MissingImage {
            steps,
            start,
            summary,
            history,
        } = missing;
        if let Some(history) = history {
            self.history = history;
            let swap = self.store_history();
            self.steps.push(swap);
        }
        self.steps.extend(steps);
        // A ready resource keeps the image of its last run in status.
        let keeps_last_image =
            waiting.keeps_ready && summary.convergence == Convergence::Converging;
        let (plan, digest) = if keeps_last_image {
            (None, self.last_digest())
        } else {
            (Some(plan), None)
        };
        let summary = self.waiting_summary(waiting, &summary);
        if start.is_empty() {
            return self.cannot_start(&summary, plan, digest);
        }
        let view = self.view(plan, digest.clone());
        let start = Start {
            class: waiting.class,
            steps: start,
            status: view.status(&summary, self.now),
        };
        let message = "waiting for a slot to build the runner image";
        let queued = Summary::busy(State::Pending, Reason::Queued, message);
        let queued = self.waiting_summary(waiting, &queued);
        Decision {
            start: Some(start),
            ..self.done(&queued, plan, digest)
        }
    }

    /// Returns the priority of `next` in the queue (change, plan or drift), and whether condition `Ready` stays unchanged while `next`
    /// waits for its image.
    fn image_wait(&self, next: &Next) -> ImageWait {
        match next {
            Next::Run(wanted, kind, trigger) => ImageWait {
                class: Class::of(*kind, trigger),
                keeps_ready: self.keeps_ready(*kind, trigger, &wanted.config.hash),
            },
            Next::Image(_) | Next::Idle(..) => ImageWait {
                class: Class::Plan,
                keeps_ready: false,
            },
        }
    }

    /// Returns the summary of a resource whose next run waits because of `cause`. If the configuration is already applied, the status and
    /// reason of condition `Ready` stay unchanged.
    fn waiting_summary(&self, image_wait: ImageWait, cause: &Summary) -> Summary {
        if !image_wait.keeps_ready {
            return cause.clone();
        }
        let applied = self.idle_summary();
        let message = if cause.convergence == Convergence::Converging {
            applied.message
        } else {
            format!("{}; the next run waits: {}", applied.message, cause.message)
        };
        Summary {
            message,
            retry_at: cause.retry_at,
            requeue_at: cause.requeue_at,
            ..applied
        }
    }

    /// Returns the decision with `summary` for a resource whose next run cannot start. While the registry is queried, a resource that
    /// already waits ([`Self::waiting_status`]) keeps its status. A ready resource gets the new status, because it may be ready with an
    /// earlier configuration.
    fn cannot_start(
        self,
        summary: &Summary,
        plan: Option<&ImagePlan>,
        digest: Option<String>,
    ) -> Decision {
        match self.waiting_status().filter(|status| !is_ready(status)) {
            Some(status) if summary.reason == Reason::ImageLookup => self.keep_status(status),
            _ => self.done(summary, plan, digest),
        }
    }

    /// Returns the step that writes run record and history.
    pub(crate) fn store_history(&self) -> Step {
        Step::SwapRecord(Box::new(Swap {
            record: self.current.clone(),
            history: Some(self.history.clone()),
            inputs: Keep::Same,
        }))
    }

    fn with_image(
        mut self,
        source: &SourceSeen,
        plan: &ImagePlan,
        next: Next,
        digest: String,
    ) -> Decision {
        let (wanted, kind, trigger) = match next {
            Next::Run(wanted, kind, trigger) => (*wanted, kind, trigger),
            Next::Image(summary) | Next::Idle(summary, _) => {
                return self.done(&summary, Some(plan), Some(digest));
            }
        };
        let hash = &wanted.config.hash;
        let quiet = self.keeps_ready(kind, &trigger, hash);
        if kind != RunKind::Drift
            && let Some(blocked) = self.blocked().or_else(|| self.upstream_wait(&trigger))
        {
            let summary = if quiet { self.idle_summary() } else { blocked };
            return self.done(&summary, Some(plan), Some(digest));
        }
        let mut inputs = wanted.inputs;
        if kind == RunKind::Apply
            && let Some(plan) = self.approved(hash)
        {
            approval::approve(&mut inputs.approval, plan);
        }
        let run = RunRequest {
            kind,
            trigger,
            image: image_build::image_by_digest(self.tf, &digest),
            architecture: plan.architecture,
            tag: plan.tag.clone(),
            artifact: Some(image::artifact(self.tf, source)),
            revision: Some(source.revision.clone()),
            unpack: false,
            context: Some(source.context.clone()),
            config: wanted.config,
            inputs,
        };
        self.run(&run, Some(plan), Some(digest))
    }

    /// Returns the next action while values of `spec.variablesFrom` are missing. `missing`: summary of the missing values. `own_hash`:
    /// digest of the configuration without these values. A resource whose configuration is applied stays ready and starts nothing. Only the
    /// image is built if the configuration is not applied, if `missing` is stalled, or if annotation `alustan.io/reconcile-at` requests a
    /// run.
    fn without_values(&self, own_hash: &str, missing: &Summary) -> Next {
        let applied = self.history.applied.as_ref();
        let unchanged = applied.is_some_and(|applied| {
            applied.own_hash == own_hash && self.is_applied(&applied.config_hash)
        });
        if missing.convergence == Convergence::Stalled
            || !unchanged
            || facts::asked(self.tf, &self.history)
        {
            return Next::Image(missing.clone());
        }
        let idle = self.idle_summary();
        let (idle_message, cause) = (&idle.message, &missing.message);
        let summary = Summary {
            message: format!("{idle_message}; the next run waits: {cause}"),
            requeue_at: missing.requeue_at,
            ..idle
        };
        Next::Idle(summary, None)
    }

    /// Returns a message suffix with the command that shows the log of the last run. If a quota or limit range denied that run, the command
    /// shows the quotas and limit ranges of the namespace instead.
    pub(crate) fn last_logs(&self) -> String {
        let Some(report) = self.history.reports.first() else {
            return String::new();
        };
        let failure = report.failure.as_ref();
        if failure.is_some_and(|failure| admission::is_refused(&failure.reason)) {
            let namespace = self.tf.namespace().unwrap_or_default();
            return format!("; see {}", admission::limits_of(&namespace));
        }
        format!("; see {}", logs(self.tf, &report.job))
    }

    /// Queues `run`; it starts once a slot is free and the pod of the previous run has ended.
    pub(crate) fn run(
        mut self,
        run: &RunRequest,
        plan: Option<&ImagePlan>,
        digest: Option<String>,
    ) -> Decision {
        let quiet = self.keeps_ready(run.kind, &run.trigger, &run.config.hash);
        let occupied = facts::occupied(self.seen.job.as_ref());
        let (reason, message) = if occupied {
            (
                Reason::AwaitingProcessing,
                "waiting for the pod of the previous run to end",
            )
        } else {
            (Reason::Queued, "waiting for a slot to start the run")
        };
        let waiting = match run.kind {
            _ if quiet => self.idle_summary(),
            RunKind::Destroy => Summary::busy(State::Destroying, reason, message),
            RunKind::Plan | RunKind::Apply | RunKind::Drift => {
                Summary::busy(State::Pending, reason, message)
            }
        };
        if occupied {
            return self.done(&waiting, plan, digest);
        }
        let (steps, next) = run.steps(&self);
        let status = self.view(plan, digest.clone()).status(&waiting, self.now);
        self.current = next;
        let running = self
            .view(plan, digest)
            .status(&self.running(quiet), self.now);
        Decision {
            steps: self.steps,
            start: Some(Start {
                class: Class::of(run.kind, &run.trigger),
                steps,
                status: running,
            }),
            status,
            requeue_at: None,
        }
    }

    pub(crate) fn view<'b>(
        &'b self,
        plan: Option<&'b ImagePlan>,
        digest: Option<String>,
    ) -> View<'b> {
        View {
            tf: self.tf,
            history: &self.history,
            record: Some(&self.current),
            source: &self.seen.source,
            stack: &self.seen.stack,
            image: ImageView {
                plan,
                digest,
                problem: self.image_problem(),
            },
        }
    }

    fn image_problem(&self) -> Option<(String, String)> {
        let problem = |failure: &Failure| (failure.reason.clone(), failure.message.clone());
        if let Answer::Failed {
            failure,
            last: None,
            ..
        } = &self.seen.base
        {
            return Some(problem(failure));
        }
        match (&self.seen.image, &self.seen.artifact, &self.seen.build) {
            (Answer::Failed { failure, .. }, _, _)
            | (_, Some(Answer::Failed { failure, .. }), _) => Some(problem(failure)),
            (_, _, Some(build)) => match &build.state {
                BuildState::Failed(failure, _) => Some(problem(failure)),
                BuildState::Active(_) | BuildState::Done(_) => None,
            },
            _ => None,
        }
    }

    pub(crate) fn done(
        self,
        summary: &Summary,
        plan: Option<&ImagePlan>,
        digest: Option<String>,
    ) -> Decision {
        let status = self.view(plan, digest).status(summary, self.now);
        Decision {
            steps: self.steps,
            start: None,
            status,
            requeue_at: summary.retry_at.or(summary.requeue_at),
        }
    }
}

/// Whether `pinned` and `current` select the same files at the same git reference.
fn is_same_checkout(pinned: &GitRepo, current: &GitRepo) -> bool {
    let GitRepo {
        url,
        branch,
        tag,
        commit,
        path,
        include,
        submodules,
        ..
    } = pinned;
    (url, branch, tag, commit) == (&current.url, &current.branch, &current.tag, &current.commit)
        && (path, include, submodules) == (&current.path, &current.include, &current.submodules)
}

/// Returns the summary of a pending query to the repository.
fn fetching() -> Summary {
    Summary::busy(
        State::Pending,
        Reason::Fetching,
        "fetching the module from the repository",
    )
}

/// Returns the summary of a missing object that the spec names. The summary has precedence over failures of repository and registry,
/// because missing credentials may cause these failures.
fn missing_input(failure: &Failure) -> Summary {
    Summary {
        state: State::Pending,
        ..summary::configuration_failure(failure)
    }
}

/// Whether `status` reports that the resource waits for another object, for example a dependency.
fn is_blocked(status: &TerraformStatus) -> bool {
    status.state == State::Pending && ready_is(status, "False")
}

fn is_ready(status: &TerraformStatus) -> bool {
    ready_is(status, "True")
}

fn ready_is(status: &TerraformStatus, value: &str) -> bool {
    let mut conditions = status.conditions.iter();
    conditions.any(|condition| condition.type_ == "Ready" && condition.status == value)
}

/// Returns the earlier of two timestamps.
fn earliest(first: Option<Timestamp>, second: Option<Timestamp>) -> Option<Timestamp> {
    first.into_iter().chain(second).min()
}
