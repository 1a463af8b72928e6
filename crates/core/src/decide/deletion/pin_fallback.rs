//! Inputs of a destroy: the current values, or, where they are missing, the values in the pin (rule 13). Each missing value is replaced
//! separately, so that destroy works with any subset of the referenced objects.

use std::collections::BTreeMap;

use alustan_api::run::{Pin, ScriptTexts};
use alustan_api::{Script, Terraform};

use crate::objects::prepare;
use crate::observed::{InputsSeen, Seen};
use crate::settings::Settings;

/// Returns `seen` with all inputs that the spec of the deleted `tf` names. Missing inputs come from the pin of the last apply. `attempted`:
/// number of the last apply.
pub(super) fn with_pinned_inputs(tf: &Terraform, seen: &Seen, attempted: i64) -> Seen {
    let mut seen = seen.clone();
    if let Some(pin) = &seen.pin {
        let inputs = seen.found().clone();
        seen.inputs = Ok(fill(tf, inputs, pin.of_what_exists(attempted)));
    }
    seen
}

fn fill(tf: &Terraform, mut inputs: InputsSeen, pin: &Pin) -> InputsSeen {
    fill_scripts(tf, &mut inputs.scripts, &pin.inputs.scripts);
    fill_registry(tf, &mut inputs, pin);
    let backend = tf.spec.backend.as_ref();
    if inputs.backend.is_empty() && backend.is_some_and(|backend| backend.secret_ref.is_some()) {
        let pinned = &pin.inputs.backend;
        inputs.backend.clone_from(&pinned.environment);
        inputs.backend.extend(pinned.secret_config.clone());
    }
    for secret in tf
        .spec
        .runner
        .iter()
        .flat_map(|runner| &runner.env_from_secrets)
    {
        let name = &secret.name;
        if !inputs.runner.contains_key(name) {
            let pinned = pin.environment.get(name).cloned().unwrap_or_default();
            inputs.runner.insert(name.clone(), pinned);
            inputs.gone.insert(name.clone());
        }
    }
    inputs
}

fn fill_scripts(tf: &Terraform, live: &mut ScriptTexts, pinned: &ScriptTexts) {
    let Some(scripts) = &tf.spec.scripts else {
        return;
    };
    let fill = |script: &Option<Script>, live: &mut Option<String>, pinned: &Option<String>| {
        if script.is_some() && live.is_none() {
            live.clone_from(pinned);
        }
    };
    fill(&scripts.init, &mut live.init, &pinned.init);
    fill(&scripts.plan, &mut live.plan, &pinned.plan);
    fill(&scripts.apply, &mut live.apply, &pinned.apply);
    fill(&scripts.destroy, &mut live.destroy, &pinned.destroy);
}

/// Replaces a missing registry Secret by the docker configuration of the pin.
fn fill_registry(tf: &Terraform, inputs: &mut InputsSeen, pin: &Pin) {
    let has_secret = tf.spec.container_registry.secret_ref.is_some();
    if has_secret && inputs.docker_config.is_none() {
        inputs.docker_config.clone_from(&pin.docker_config);
        inputs.pull_config.clone_from(&pin.docker_config);
    }
}

/// Returns the environment variables of deleted Secrets in `runner.envFromSecrets`, from the pin. As with `envFrom` of a container, later
/// Secrets override earlier ones. Omits the variables that the operator sets according to `settings`, because they override all Secrets.
pub(super) fn environment(
    tf: &Terraform,
    inputs: &InputsSeen,
    settings: &Settings,
) -> BTreeMap<String, String> {
    let mut variables = BTreeMap::new();
    for secret in tf
        .spec
        .runner
        .iter()
        .flat_map(|runner| &runner.env_from_secrets)
    {
        let is_missing = inputs.gone.contains(&secret.name);
        let values = inputs.runner.get(&secret.name).into_iter().flatten();
        variables
            .extend(values.map(|(name, value)| (name.clone(), is_missing.then(|| value.clone()))));
    }
    for variable in prepare::environment(settings) {
        variables.remove(&variable.name);
    }
    let with_value = |(name, value): (String, Option<String>)| Some((name, value?));
    variables.into_iter().filter_map(with_value).collect()
}
