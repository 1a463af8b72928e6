//! What a run is started with, and the hash that tells whether it changed (rule 3).

use std::collections::BTreeMap;

use alustan_api::run::{BackendInputs, ManagedState, RunInputs, TimeLimits};
use alustan_api::{Terraform, names};
use alustan_backends::{Conflict, Owner};
use kube::ResourceExt;
use kube::core::Duration;
use serde_json::{Value, json};

use crate::approval;
use crate::delete;
use crate::digest;
use crate::seen::{InputsSeen, SourceSeen};

/// State slots of a new resource: the current version, the previous one, and the next.
const SLOTS: u32 = 3;

/// The inputs of a run of `tf` at `source`.
pub fn run_inputs(
    tf: &Terraform,
    source: &SourceSeen,
    seen: &InputsSeen,
    slots_wanted: u32,
) -> Result<RunInputs, Conflict> {
    Ok(RunInputs {
        path: source.path.clone(),
        variables: variables(tf),
        secret_environment: seen
            .runner
            .values()
            .flat_map(BTreeMap::keys)
            .cloned()
            .collect(),
        scripts: seen.scripts.clone(),
        backend: backend(tf, source.backend.as_deref(), seen, slots_wanted)?,
        timeouts: time_limits(tf),
        approval: approval::inputs(tf, false),
        adopt: tf.spec.backend.as_ref().is_some_and(|it| it.adopt),
        applied_before: delete::says_applied(tf),
        plan_secret: approval::may_ask(tf, false).then(|| names::plan(&tf.name_any())),
        environment: BTreeMap::new(),
    })
}

/// The time limits of runs of `tf`.
pub fn time_limits(tf: &Terraform) -> TimeLimits {
    let seconds = |duration: Duration| std::time::Duration::from(duration).as_secs();
    let timeouts = &tf.spec.timeouts;
    TimeLimits {
        plan: seconds(timeouts.plan),
        apply: seconds(timeouts.apply),
        destroy: seconds(timeouts.destroy),
    }
}

/// The backend of `tf`, whose module has one of the type `module`.
pub(crate) fn backend(
    tf: &Terraform,
    module: Option<&str>,
    seen: &InputsSeen,
    slots_wanted: u32,
) -> Result<BackendInputs, Conflict> {
    let name = tf.name_any();
    let namespace = tf.namespace().unwrap_or_default();
    alustan_backends::inputs(
        tf.spec.backend.as_ref(),
        module,
        Owner {
            namespace: &namespace,
            name: &name,
        },
        seen.backend.clone(),
        &managed_state(&name, slots_wanted),
    )
}

/// The Secrets of the managed state of the resource `name`.
pub fn managed_state(name: &str, slots_wanted: u32) -> ManagedState {
    ManagedState {
        pointer: names::state(name),
        slots: (0..slots_wanted.max(SLOTS))
            .map(|slot| names::state_slot(name, slot))
            .collect(),
    }
}

/// The variables by the names that the module gives them.
pub fn variables(tf: &Terraform) -> BTreeMap<String, Value> {
    tf.spec
        .variables
        .iter()
        .map(|(name, value)| {
            (
                name.strip_prefix("TF_VAR_").unwrap_or(name).to_owned(),
                value.0.clone(),
            )
        })
        .collect()
}

/// Digest of everything that the result of an apply depends on (rule 3), keyed, since some of it
/// is secret. `tag` stands for all that is in the image.
pub fn config_hash(key: &[u8], tag: &str, inputs: &RunInputs, seen: &InputsSeen) -> String {
    let backend = &inputs.backend;
    digest::keyed(
        key,
        &json!({
            "image": tag,
            "path": inputs.path,
            "variables": inputs.variables,
            "scripts": inputs.scripts,
            "backend": [json!(backend.kind), json!(backend.write_block), json!(backend.config), json!(backend.environment)],
            "runner": seen.runner,
        }),
    )
}
