//! Builds the run requests of destroys.

use std::collections::BTreeMap;

use alustan_api::run::{BackendInputs, Pin, RunInputs, RunKind, RunRecord, Trigger};
use alustan_api::{Architecture, Terraform, names};
use kube_core::ResourceExt;

use crate::decide::case::ReconcileCase;
use crate::decide::deletion::pin_fallback;
use crate::decide::image_build::image_by_digest;
use crate::decide::restore;
use crate::decide::start_run::RunRequest;
use crate::decide::target::RunConfig;
use crate::model::config_hash::Config;
use crate::model::image::{self, ImagePlan};
use crate::model::{allow_lists, approval_policy, facts, run_inputs, state_slots};
use crate::observed::{Answer, InputsSeen, SourceSeen};

/// Returns the destroy run that uses the pin of the last apply. `None` without a pin.
pub(super) fn from_pin(case: &ReconcileCase<'_>) -> Option<RunRequest> {
    let pin = case.seen.pin.as_ref()?;
    let pin = pin.of_what_exists(case.current.attempted).clone();
    let inputs = live_inputs(case, &pin);
    let config = run_inputs::config(case.tf, &case.record.key, &pin.tag, &inputs, case.seen);
    let base = image::base_of_destroy(case.tf, &pin, &case.history, case.settings);
    let run = RunRequest {
        kind: RunKind::Destroy,
        trigger: Trigger::Deleted,
        inputs,
        image: pin.image,
        architecture: pin.architecture,
        tag: pin.tag,
        revision: pin.revision,
        commit: None,
        context: pin.context,
        artifact: pin.artifact,
        unpack: false,
        config: destroy_config(config),
    };
    Some(match base {
        Some((base, architecture)) => in_base_image(case, run, base, architecture),
        None => run,
    })
}

/// Returns the destroy run that uses the current spec and the runner image `digest`.
pub(super) fn from_spec(
    case: &ReconcileCase<'_>,
    source: SourceSeen,
    wanted: RunConfig,
    image: &ImagePlan,
    digest: &str,
) -> RunRequest {
    let mut inputs = wanted.inputs;
    set_approval_policy(case, &mut inputs);
    RunRequest {
        kind: RunKind::Destroy,
        trigger: Trigger::Deleted,
        inputs,
        image: image_by_digest(case.tf, digest),
        architecture: image.architecture,
        tag: image.tag.clone(),
        artifact: Some(image::artifact(case.tf, &source)),
        revision: Some(source.revision),
        commit: source.commit,
        context: Some(source.context),
        unpack: false,
        config: destroy_config(wanted.config),
    }
}

fn destroy_config(config: Config) -> Config {
    Config {
        hash: format!("destroy {}", config.hash),
        ..config
    }
}

/// Returns `run` with the base image `base` instead of the runner image. The pod of the run unpacks the context from the registry. Returns
/// `run` unchanged if no digest of the context in the registry is known.
fn in_base_image(
    case: &ReconcileCase<'_>,
    run: RunRequest,
    base: String,
    architecture: Architecture,
) -> RunRequest {
    let pushed = case.image.artifact.as_ref().and_then(Answer::value);
    let artifact = pushed.filter(|_| is_in_repository(case, &run)).cloned();
    match artifact.or_else(|| run.artifact.clone()) {
        Some(artifact) => RunRequest {
            image: base,
            architecture,
            artifact: Some(artifact),
            unpack: true,
            ..run
        },
        None => run,
    }
}

/// Whether the context of `run` is the context of the current commit. If so, the operator can push the context to the registry again.
pub(super) fn is_in_repository(case: &ReconcileCase<'_>, run: &RunRequest) -> bool {
    let source = case.image.source.value();
    source.is_some_and(|source| run.context.as_ref() == Some(&source.context))
}

/// Returns the trigger of a destroy without an approved plan.
pub(super) fn trigger(case: &ReconcileCase<'_>, failure_key: &str) -> Trigger {
    let failures = &case.history.failures;
    if facts::asked(case.tf, &case.history) {
        Trigger::Requested
    } else if failures.of == failure_key && failures.at.is_some() {
        facts::again(failures)
    } else {
        Trigger::Deleted
    }
}

/// Returns the inputs of a destroy: the current values where they exist, otherwise the values in the pin. So a destroy script that a user
/// fixes after the deletion of the resource takes effect.
fn live_inputs(case: &ReconcileCase<'_>, pin: &Pin) -> RunInputs {
    let mut inputs = pin.inputs.clone();
    let seen = case.seen.found();
    run_inputs::refresh(case.tf, &case.seen.stack.variables, &mut inputs);
    let secret_names = seen.runner.values().flat_map(BTreeMap::keys);
    let secret_names = secret_names.chain(&seen.pod_secret_variables);
    inputs.secret_environment.extend(secret_names.cloned());
    inputs.environment = pin_fallback::environment(case.tf, seen, case.settings);
    inputs.scripts.clone_from(&seen.scripts);
    // The run keeps the ServiceAccount in the pin if the allow lists do not permit the ServiceAccount in the spec.
    if allow_lists::runner_account_violation(case.tf, &case.seen.allowed, &case.seen.accounts)
        .is_none()
    {
        inputs.service_account = run_inputs::service_account(case.tf).map(str::to_owned);
    }
    if let Some(live) = same_backend(case, seen, &inputs.backend) {
        inputs.backend.environment = live.environment;
        inputs.backend.secret_config = live.secret_config;
    }
    inputs.timeouts = run_inputs::time_limits(case.tf, case.settings.max_timeout);
    inputs.engine_arguments = run_inputs::engine_arguments(case.tf);
    set_approval_policy(case, &mut inputs);
    slots(case.tf, &case.current, &mut inputs);
    inputs
}

/// Sets the approval policy of a destroy, and clears the inputs that only an apply uses.
fn set_approval_policy(case: &ReconcileCase<'_>, inputs: &mut RunInputs) {
    inputs.approval = approval_policy::inputs(case.tf, true);
    inputs.approval.restored = restore::restored_at(&case.history);
    inputs
        .approval
        .discarded
        .clone_from(&case.history.discarded);
    inputs.plan_secret =
        approval_policy::may_need_approval(case.tf, true).then(|| names::plan(&case.tf.name_any()));
    inputs.adopt = false;
    inputs.migrate = None;
    inputs.engine_before = None;
    inputs.applied_before = facts::status_has_apply(case.tf);
}

/// Returns the backend in the current spec if its type, configuration and workspace are those of the pin. Otherwise `None`, because the credentials in
/// the current spec may be for another state.
fn same_backend(
    case: &ReconcileCase<'_>,
    seen: &InputsSeen,
    pinned: &BackendInputs,
) -> Option<BackendInputs> {
    let module = run_inputs::module_backend(pinned);
    let live = run_inputs::backend(case.tf, module, seen, state_slots::slots(&case.current));
    live.ok().filter(|live| {
        (&live.kind, &live.config, &live.workspace)
            == (&pinned.kind, &pinned.config, &pinned.workspace)
    })
}

/// Adds state slots that were created after the pin was written.
fn slots(tf: &Terraform, current: &RunRecord, inputs: &mut RunInputs) {
    if let Some(managed) = &mut inputs.backend.managed {
        let wanted = state_slots::managed_state(&tf.name_any(), state_slots::slots(current));
        if wanted.slots.len() > managed.slots.len() {
            *managed = wanted;
        }
    }
}
