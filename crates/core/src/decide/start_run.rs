//! Writes that start a run or create its missing objects.

use alustan_api::run::{
    CacheVolume, Failures, History, PROTOCOL, Pin, PinnedImage, RunInputs, RunKind, RunPhase,
    RunProgress, RunRecord, RunSpec, Trigger,
};
use alustan_api::{Architecture, CANCEL_RUN, Commit, Terraform, names};
use k8s_openapi::jiff::Timestamp;
use kube_core::ResourceExt;
use serde_json::Value;

use crate::decide::cache_mount::PodRequest;
use crate::decide::case::ReconcileCase;
use crate::decide::{approval, flapping, opt_in, state_volume};
use crate::digest;
use crate::model::cache_location::{self, CacheMount};
use crate::model::config_hash::Config;
use crate::model::facts::requested;
use crate::model::pull_secret::{docker_secret, pull_secret};
use crate::model::state_slots::managed_state;
use crate::model::{approval_policy, pod_options, progress, user_request};
use crate::objects::run_job::{self, RunJobInputs};
use crate::objects::{cache_pvc, namespace, pod_disruption_budget, rbac, secrets};
use crate::observed::{CacheSeen, RecordSeen, Seen};
use crate::step::{Keep, Object, Step, Swap};

/// Maximum number of names of pods of earlier runs in the run record.
const EARLIER_PODS: usize = 10;

/// Properties of a run to start.
#[derive(Clone)]
pub(super) struct RunRequest {
    /// Kind of the run.
    pub(super) kind: RunKind,
    /// Cause of the run.
    pub(super) trigger: Trigger,
    /// Image of the run, by digest: runner image, or base image if `unpack` is set.
    pub(super) image: String,
    /// Architecture of the image.
    pub(super) architecture: Architecture,
    /// Tag of the runner image.
    pub(super) tag: String,
    /// Id of the commit.
    pub(super) revision: Option<String>,
    /// Subject and author of the commit.
    pub(super) commit: Option<Commit>,
    /// Digest of the context.
    pub(super) context: Option<String>,
    /// The context in the registry, by digest.
    pub(super) artifact: Option<String>,
    /// Whether the pod unpacks the context, because the image is a base image.
    pub(super) unpack: bool,
    /// Digests of the inputs (rule 3).
    pub(super) config: Config,
    /// Inputs of the run.
    pub(super) inputs: RunInputs,
}

impl RunRequest {
    /// Returns the writes that start the run, and its run record. Order: objects that the pod needs, run record, report, pin, label of the
    /// namespace, Job. The compare-and-swap of the run record ensures that only one run gets the number. The pin follows the run record, so
    /// that a stale reconcile cannot replace the pin of an active run. The pin precedes the Job, so that nothing is applied without a pin.
    pub(super) fn steps(&self, case: &ReconcileCase<'_>) -> (Vec<Step>, RunRecord) {
        let ReconcileCase {
            tf,
            seen,
            settings,
            now,
            record,
            current: previous,
            history,
            ..
        } = case;
        let number = previous.number + 1;
        let mount = self.cache_mount(case);
        let run = RunSpec {
            kind: self.kind,
            trigger: self.trigger.clone(),
            job: names::run_job(&tf.name_any(), self.kind, number),
            revision: self.revision.clone(),
            commit: self.commit.clone(),
            context: self.context.clone(),
            artifact: self.artifact.clone(),
            cache: mount != CacheMount::Scratch,
            cache_claim: mount.shared().map(str::to_owned),
            unpack: self.unpack,
            image: self.image.clone(),
            architecture: self.architecture,
            tag: self.tag.clone(),
            config_hash: self.config.hash.clone(),
            own_hash: self.config.own_hash.clone(),
            found: self.config.found.clone(),
            judged_by: approval_policy::policy_digest(tf, self.inputs.approval.destroy),
            pod: case.pod_digest(self.inputs.approval.destroy),
            destroys: self.inputs.approval.destroy,
            mode: tf.spec.mode,
            engine: history.base.as_ref().and_then(|base| base.engine.clone()),
            trace_id: trace_id(&record.key, tf, number, *now),
            protocol: PROTOCOL,
            started_at: *now,
        };
        let next = RunRecord {
            number,
            run: Some(run.clone()),
            phase: RunPhase::Starting,
            attempted: previous.attempted,
            attempted_before: previous.attempted,
            state_made: previous.state_made || self.inputs.backend.managed.is_some(),
            slots_wanted: previous.slots_wanted,
            lineage: previous.lineage.clone(),
            state_address: previous.state_address.clone(),
            own_backend: previous.own_backend.clone(),
            begun: previous.begun,
            begun_before: previous.begun,
            earlier_pods: earlier_pods(previous),
            ..RunRecord::default()
        };
        let mut steps = run_objects(case, self.kind, &self.inputs, &mount);
        let history = with_claim(history.clone(), &steps);
        let (mut history, empty_cache) = case.with_mount(history, &mount, number);
        steps.extend(empty_cache);
        history.waiting = None;
        history.cancel_run = user_request::value(tf, CANCEL_RUN);
        match &self.trigger {
            Trigger::PlanRequested { request } => history.plan_at = Some(request.clone()),
            _ => history.reconcile_at = requested(tf),
        }
        match self.trigger {
            Trigger::PlanRequested { .. } => {}
            Trigger::Requested => {
                history.failures = Failures::default();
                if self.kind != RunKind::Drift {
                    history.pending = approval::pending_after_request(&history);
                }
            }
            _ if opt_in::is_opted_in(tf, &history.failures) => {
                history.failures = Failures::default();
            }
            Trigger::Input { .. } => history.input_runs = flapping::next(&history.input_runs, *now),
            _ => {}
        }
        let pending = history.pending.as_ref();
        if let Some(plan) = pending.filter(|_| self.inputs.approval.approved.is_some()) {
            history.approved = Some(approval::approval_given(tf, plan, number));
        }
        steps.push(Step::SwapRecord(Box::new(Swap {
            record: next.clone(),
            history: Some(history.clone()),
            inputs: Keep::Set(Box::new(self.inputs.clone())),
        })));
        steps.push(Step::SwapReport(Box::new(RunProgress::of(&next))));
        steps.extend(pin(tf, seen, &next, history.base.as_ref(), &self.inputs));
        let namespace = Object::Namespace(namespace::marked(tf));
        let marks_namespace = settings.marks_namespaces && self.kind == RunKind::Apply;
        steps.extend(marks_namespace.then(|| ensure(namespace)));
        steps.extend(job(case, number, &run, &self.inputs));
        (steps, next)
    }

    /// Returns the cache volume of the pod. A destroy does not wait for a new volume, but mounts an existing one: the volume may contain the
    /// approved plan and an unsaved state, and its provider cache has the providers that the image lacks. If the pod does not start with the
    /// volume, the next attempt of the destroy runs without the volume. If the resource's own volume holds the only copy of a state, or the
    /// state of the run, every attempt mounts this volume. Any other drift check uses scratch space: it stores no plan, and its image has the
    /// providers.
    fn cache_mount(&self, case: &ReconcileCase<'_>) -> CacheMount {
        let (seen, history) = (case.seen, &case.history);
        let holds_state = state_volume::holds_only_copy(seen, history)
            || state_volume::is_used_by(&self.inputs.backend)
            || self
                .inputs
                .migrate
                .as_ref()
                .is_some_and(state_volume::is_used_by);
        if holds_state {
            return CacheMount::Own;
        }
        if self.kind == RunKind::Drift {
            return CacheMount::Scratch;
        }
        let is_first = self.kind == RunKind::Apply && self.trigger == Trigger::Created;
        let destroys = self.inputs.approval.destroy;
        let mount = case.cache_mount(PodRequest {
            waits_for_volume: !is_first && !destroys,
            tries_again: self.trigger == Trigger::Requested,
        });
        let usability = state_volume::usability(seen, history);
        if mount == CacheMount::Own && destroys && usability == CacheVolume::Unusable {
            return CacheMount::Scratch;
        }
        mount
    }
}

/// Returns `history` after `steps`. If a step replaces the `PersistentVolumeClaim` of the cache volume, the cache volume is recorded as
/// usable again.
pub(super) fn with_claim(history: History, steps: &[Step]) -> History {
    if steps.iter().any(|step| matches!(step, Step::DeleteClaim)) {
        return History {
            cache: CacheVolume::Usable,
            ..history
        };
    }
    history
}

/// Returns a trace id that is unique across runs and resources: 32 hexadecimal digits.
fn trace_id(key: &[u8], tf: &Terraform, number: i64, now: Timestamp) -> String {
    let mut id = digest::keyed(key, &("trace", tf.uid(), number, now));
    id.truncate(32);
    id
}

/// Returns the names of pods of earlier runs. These pods have ended when the next run starts, so the next run may release the state locks
/// of these pods (rule 9).
fn earlier_pods(previous: &RunRecord) -> Vec<String> {
    let last_pod = previous.claimed_by.iter().map(|claim| claim.pod.clone());
    let earlier = last_pod.chain(previous.earlier_pods.iter().cloned());
    earlier.take(EARLIER_PODS).collect()
}

/// Returns the step that writes the pin, with which destroy removes the objects that the run of `record` may create. `None` for drift
/// checks and destroy runs. The new pin contains the pin of the last apply: destroy uses the contained pin until the new run begins to
/// apply.
fn pin(
    tf: &Terraform,
    seen: &Seen,
    record: &RunRecord,
    base: Option<&PinnedImage>,
    inputs: &RunInputs,
) -> Option<Step> {
    let run = record
        .run
        .as_ref()
        .filter(|run| matches!(run.kind, RunKind::Apply | RunKind::Plan) && !run.destroys)?;
    let previous = seen
        .pin
        .as_ref()
        .map(|pin| pin.of_what_exists(record.attempted))
        .filter(|pin| pin.number <= record.attempted)
        .cloned();
    let available = seen.found();
    let pin = Pin {
        number: record.number,
        pull_secret: pull_secret(tf, seen),
        docker_config: available.docker_config.clone(),
        environment: available.runner.clone(),
        spec: pinned_spec(tf),
        base: base.map(|base| base.resolved.clone()),
        protocol: run.protocol,
        artifact: run.artifact.clone(),
        image: run.image.clone(),
        architecture: run.architecture,
        tag: run.tag.clone(),
        revision: run.revision.clone(),
        context: run.context.clone(),
        inputs: RunInputs {
            // The source of a state migration is not in the pin: only the run that copies the state needs it.
            migrate: None,
            ..inputs.clone()
        },
        before: previous.map(|pin| {
            Box::new(Pin {
                before: None,
                ..pin
            })
        }),
    };
    Some(ensure(Object::Secret(secrets::pin(tf, &pin))))
}

/// Returns the spec without variables, which are part of the inputs and may be large.
fn pinned_spec(tf: &Terraform) -> Value {
    let mut spec = tf.spec.clone();
    spec.variables.clear();
    spec.variables_from.clear();
    serde_json::to_value(spec).unwrap_or_default()
}

/// Returns the steps that apply all objects that a runner pod needs. Each run repeats these steps, so that deleted objects are restored.
/// Exception: a lost pointer of a managed state is not replaced, because with an empty pointer a run would create all real objects again.
fn run_objects(
    case: &ReconcileCase<'_>,
    kind: RunKind,
    inputs: &RunInputs,
    mount: &CacheMount,
) -> Vec<Step> {
    let ReconcileCase {
        tf,
        seen,
        current: previous,
        history,
        ..
    } = case;
    let state = inputs.backend.managed.as_ref();
    let writes_state = kind != RunKind::Drift || history.unsaved.is_some();
    let creates_account = inputs.service_account.is_none();
    let mut objects: Vec<Object> = creates_account
        .then(|| Object::Account(rbac::account(tf)))
        .into_iter()
        .collect();
    objects.push(Object::Role(rbac::role(tf, inputs)));
    objects.push(Object::Binding(rbac::binding(tf, inputs)));
    if kind.changes() {
        objects.push(Object::Budget(pod_disruption_budget::budget(tf)));
    }
    objects.extend(
        inputs
            .plan_secret
            .is_some()
            .then(|| Object::Secret(secrets::plan(tf))),
    );
    if let Some(state) = state {
        let pointer = (!previous.state_made).then(|| secrets::pointer(tf, state));
        // A drift check writes no state, so the state slots are created by the first run that may write one.
        let slots = writes_state.then(|| secrets::slots(tf, state));
        let slots = slots.into_iter().flatten();
        objects.extend(pointer.into_iter().chain(slots).map(Object::Secret));
    }
    let pull_config = seen
        .inputs
        .as_ref()
        .ok()
        .and_then(|inputs| inputs.pull_config.as_deref());
    objects.extend(pull_config.map(|config| Object::Secret(secrets::pull(tf, config))));
    // A destroy does not need a new volume, and must not wait for one.
    let mut steps = if inputs.approval.destroy {
        Vec::new()
    } else {
        cache(case, mount)
    };
    steps.extend(objects.into_iter().map(ensure));
    steps
}

/// Returns the steps that create the `PersistentVolumeClaim` of the resource's own cache volume, if the resource selects it and a pod with
/// `mount` mounts it. Replaces the `PersistentVolumeClaim` if the volume is lost, or if pods with the volume do not start. The content of
/// the cache volume is reproducible (rule 2). Exception: a cache volume with a state is not replaced.
pub(super) fn cache(case: &ReconcileCase<'_>, mount: &CacheMount) -> Vec<Step> {
    let (tf, seen, history) = (case.tf, case.seen, &case.history);
    let location = cache_location::location(tf, case.settings);
    if location != CacheMount::Own || *mount != CacheMount::Own {
        return Vec::new();
    }
    let claim = || ensure(Object::Claim(Box::new(cache_pvc::claim(tf))));
    let usability = state_volume::usability(seen, history);
    let cache = match seen.cache {
        CacheSeen::Bound if usability == CacheVolume::Unusable => CacheSeen::Lost,
        observed => observed,
    };
    match cache {
        CacheSeen::Pending | CacheSeen::Bound => Vec::new(),
        CacheSeen::Absent | CacheSeen::Lost if state_volume::is_irreplaceable(seen, history) => {
            Vec::new()
        }
        CacheSeen::Absent => vec![claim()],
        CacheSeen::Lost => vec![Step::DeleteClaim, claim()],
    }
}

fn ensure(object: Object) -> Step {
    Step::Ensure(Box::new(object))
}

/// Returns the steps that create the Job of a run, and the Secret with the token of the GitHub App if the pod executes `init`.
fn job(case: &ReconcileCase<'_>, number: i64, run: &RunSpec, inputs: &RunInputs) -> Vec<Step> {
    let ReconcileCase {
        tf,
        seen,
        settings,
        record,
        ..
    } = *case;
    let digest = digest::keyed(&record.key, inputs);
    let decision = digest::keyed(&record.key, &(run, inputs));
    let pinned = seen.pin.as_ref().and_then(|pin| pin.pull_secret.clone());
    let mut pull_secrets: Vec<String> = pull_secret(tf, seen).into_iter().chain(pinned).collect();
    pull_secrets.dedup();
    let docker = docker_secret(tf, seen);
    let attempted = record.record.attempted;
    let pin = seen.pin.as_ref().map(|pin| pin.of_what_exists(attempted));
    let pod = pod_options::of_run(tf, pin, run.destroys, &seen.shared_claims, settings);
    let token = run_token(case, run);
    let parts = RunJobInputs {
        number,
        run,
        inputs: &digest,
        decision: &decision,
        path: &inputs.path,
        pull_secrets: &pull_secrets,
        docker: docker.as_ref().map(|(name, key)| (name.as_str(), *key)),
        account: inputs.service_account.as_deref(),
        token_secret: token.as_ref().map(|_| run.job.as_str()),
        pod: &pod,
    };
    let job = Step::CreateJob(Box::new(run_job::job(tf, &parts, settings)));
    [job].into_iter().chain(token).collect()
}

/// Returns the step that creates the Secret with the token of the GitHub App for `run`. The Job must exist, because it becomes the owner. `None`
/// if the pod does not execute `init`, or without a token: destroy does not wait for GitHub.
fn run_token(case: &ReconcileCase<'_>, run: &RunSpec) -> Option<Step> {
    let token = case.image.git_token.as_ref().filter(|_| run.unpack)?;
    let secret = secrets::run_token(case.tf, &run.job, token.value()?);
    Some(Step::CreateBuildSecret(Box::new(secret)))
}

/// Returns the steps that create missing objects of an active run: pin and Job after a crash of the operator, and more state slots if the
/// run has requested them because its state does not fit in the existing slots.
pub(super) fn ensure_missing_objects(case: &ReconcileCase<'_>) -> Vec<Step> {
    let ReconcileCase {
        tf,
        seen,
        record: current,
        ..
    } = *case;
    let (Some(run), Some(inputs)) = (&current.record.run, &current.inputs) else {
        return Vec::new();
    };
    let mut steps = more_slots(tf, current, inputs);
    let has_started = current.record.claimed_by.is_some() || current.record.cancel;
    // The approval of a plan does not cover other pod options.
    let has_same_pod = run.destroys || run.pod == case.pod_digest(false);
    if seen.job.is_none() && seen.refused.is_none() && !has_started && has_same_pod {
        steps.push(Step::SwapRecord(Box::new(Swap::unchanged(&current.record))));
        if progress::has_own_report(run) {
            // If a pod has claimed the run since the observation, the compare-and-swap of the report fails and the claim stays.
            let reset = RunProgress::of(&current.record);
            steps.push(Step::SwapReport(Box::new(reset)));
        }
        let base = current.history.base.as_ref();
        steps.extend(pin(tf, seen, &current.record, base, inputs));
        steps.extend(job(case, current.record.number, run, inputs));
    }
    let has_token = seen
        .build_secrets
        .iter()
        .any(|secret| secret.name == run.job);
    if !has_started && !has_token && seen.job.as_ref().is_some_and(|job| !job.finished) {
        // The operator stopped between the creation of the Job and of its Secret.
        steps.extend(run_token(case, run));
    }
    steps
}

fn more_slots(tf: &Terraform, current: &RecordSeen, inputs: &RunInputs) -> Vec<Step> {
    let wanted = managed_state(&tf.name_any(), current.record.slots_wanted);
    let Some(managed) = &inputs.backend.managed else {
        return Vec::new();
    };
    if managed.slots.len() >= wanted.slots.len() {
        return Vec::new();
    }
    let mut steps: Vec<Step> = secrets::slots(tf, &wanted)
        .map(Object::Secret)
        .map(ensure)
        .collect();
    let mut inputs = inputs.clone();
    inputs.backend.managed = Some(wanted);
    steps.push(ensure(Object::Role(rbac::role(tf, &inputs))));
    steps.push(Step::SwapRecord(Box::new(Swap {
        record: current.record.clone(),
        history: None,
        inputs: Keep::Set(Box::new(inputs)),
    })));
    steps
}
