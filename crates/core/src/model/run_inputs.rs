//! Inputs of a run and the config hash (rule 3).

use std::collections::{BTreeMap, BTreeSet};

use alustan_api::run::{BackendInputs, EngineArguments, RunInputs, TimeLimits};
use alustan_api::{KeysRef, Terraform, names};
use alustan_backends::{Error, Owner};
use k8s_openapi::jiff::SignedDuration;
use kube_core::ResourceExt;
use serde_json::{Value, json};

use crate::digest;
use crate::model::config_hash::Config;
use crate::model::state_slots::managed_state;
use crate::model::{approval_policy, facts, orphans, pod_options};
use crate::observed::{FoundInput, InputsSeen, Seen, SourceSeen, VariablesSeen};

/// Returns the inputs of a run of `tf` at `source`. `variables_from`: values of `spec.variablesFrom`. `slots`: number of state slots.
/// `max_timeout`: upper bound of each time limit.
///
/// # Errors
///
/// Fails if the backend of `tf` is invalid or conflicts with the backend of the module (rule 11).
pub fn run_inputs(
    tf: &Terraform,
    source: &SourceSeen,
    seen: &InputsSeen,
    variables_from: &VariablesSeen,
    slots: u32,
    max_timeout: SignedDuration,
) -> Result<RunInputs, Error> {
    let variables_from = effective_values(tf, variables_from);
    Ok(RunInputs {
        path: source.path.clone(),
        own_variables: variables(tf).into_keys().collect(),
        strict_variables: tf.spec.strict_variables,
        var_files: tf.spec.var_files.clone(),
        secret_variables: secrets(&variables_from),
        variables: all_variables(tf, &variables_from),
        secret_environment: seen
            .runner
            .values()
            .flat_map(BTreeMap::keys)
            .chain(&seen.pod_secret_variables)
            .cloned()
            .collect(),
        scripts: seen.scripts.clone(),
        wrapper: tf.spec.wrapper(),
        backend: backend(tf, source.backend.as_deref(), seen, slots)?,
        timeouts: time_limits(tf, max_timeout),
        engine_arguments: engine_arguments(tf),
        approval: approval_policy::inputs(tf, false),
        adopt: orphans::adopts(tf),
        migrate: None,
        engine_before: None,
        applied_before: facts::status_has_apply(tf),
        plan_secret: approval_policy::may_need_approval(tf, false)
            .then(|| names::plan(&tf.name_any())),
        environment: BTreeMap::new(),
        service_account: service_account(tf).map(str::to_owned),
    })
}

/// Returns the ServiceAccount that the spec names for runs.
pub(crate) fn service_account(tf: &Terraform) -> Option<&str> {
    let runner = tf.spec.runner.as_ref()?;
    runner.service_account_name.as_deref()
}

/// Returns the time limits of runs of `tf`, each at most `max`.
pub(crate) fn time_limits(tf: &Terraform, max: SignedDuration) -> TimeLimits {
    TimeLimits::of(&tf.spec.timeouts, max.unsigned_abs().as_secs())
}

/// Returns the arguments of engine commands of `tf`.
pub(crate) fn engine_arguments(tf: &Terraform) -> EngineArguments {
    let engine = tf.spec.engine.as_ref();
    engine.map(EngineArguments::of).unwrap_or_default()
}

/// Returns the backend of `tf`. `module`: type of the backend in the module.
///
/// # Errors
///
/// Fails if the backend is invalid, conflicts with the backend of the module, or does not have the workspace of `tf`.
pub(crate) fn backend(
    tf: &Terraform,
    module: Option<&str>,
    seen: &InputsSeen,
    slots: u32,
) -> Result<BackendInputs, Error> {
    let name = tf.name_any();
    let namespace = tf.namespace().unwrap_or_default();
    let spec = tf.spec.backend.as_ref();
    let inputs = alustan_backends::inputs(
        spec,
        module,
        Owner {
            namespace: &namespace,
            name: &name,
        },
        seen.backend.clone(),
        &managed_state(&name, slots),
    )?;
    let mut secrets = std::iter::once(&seen.backend).chain(seen.runner.values());
    let variable = secrets.find_map(|secret| secret.get("TF_WORKSPACE"));
    let variable = variable.map(String::as_str);
    alustan_backends::check_workspace(spec, module, tf.spec.workspace.as_deref(), variable)?;
    Ok(BackendInputs {
        workspace: tf.spec.workspace().map(str::to_owned),
        ..inputs
    })
}

/// Returns the type of the `backend` block in the module. If the type is unknown, returns a phrase for messages instead. `None` if the
/// module has no `backend` block; the runner then writes the block.
pub(crate) fn module_backend(backend: &BackendInputs) -> Option<&str> {
    let kind = backend.kind.as_deref().unwrap_or("of the module's own");
    (!backend.write_block).then_some(kind)
}

/// Returns the variables in `spec.variables`, without prefix `TF_VAR_`.
fn variables(tf: &Terraform) -> BTreeMap<String, Value> {
    let variables = tf.spec.variables.iter();
    variables
        .map(|(name, value)| (without_prefix(name).to_owned(), value.value()))
        .collect()
}

/// Returns the names of the variables of runs: those with a value, and those that `spec.variablesFrom` requires.
pub fn variable_names(tf: &Terraform, seen: &VariablesSeen) -> BTreeSet<String> {
    let keys = |keys: &Option<KeysRef>| {
        let keys = keys.iter().filter(|keys| !keys.optional);
        keys.flat_map(|keys| keys.keys.keys().cloned())
            .collect::<Vec<_>>()
    };
    let required = tf.spec.variables_from.iter().flat_map(|from| {
        let outputs = from.terraform_ref.iter();
        let values = from.object_ref.iter();
        keys(&from.secret_ref)
            .into_iter()
            .chain(keys(&from.config_map_ref))
            .chain(outputs.flat_map(|from| from.outputs.keys().cloned()))
            .chain(values.flat_map(|from| from.values.keys().cloned()))
    });
    let found = seen.found.iter().flat_map(|input| input.values.keys());
    required
        .chain(found.chain(tf.spec.variables.keys()).cloned())
        .map(|name| without_prefix(&name).to_owned())
        .collect()
}

fn without_prefix(name: &str) -> &str {
    name.strip_prefix("TF_VAR_").unwrap_or(name)
}

/// Value of a variable from `spec.variablesFrom`, and the object with the value.
struct EffectiveValue<'a> {
    value: &'a Value,
    secret: bool,
    from: &'a FoundInput,
}

/// Returns the effective values of `spec.variablesFrom`, by variable. Later entries override earlier ones; `spec.variables` overrides all.
fn effective_values<'a>(
    tf: &Terraform,
    seen: &'a VariablesSeen,
) -> BTreeMap<&'a str, EffectiveValue<'a>> {
    let mut effective = BTreeMap::new();
    for input in &seen.found {
        for (name, value) in &input.values {
            let (json, secret) = (&value.value, value.secret);
            effective.insert(
                without_prefix(name),
                EffectiveValue {
                    value: json,
                    secret,
                    from: input,
                },
            );
        }
    }
    for variable in tf.spec.variables.keys() {
        effective.remove(without_prefix(variable));
    }
    effective
}

fn secrets(values: &BTreeMap<&str, EffectiveValue<'_>>) -> BTreeSet<String> {
    let secret = values.iter().filter(|(_, values)| values.secret);
    secret.map(|(name, _)| (*name).to_owned()).collect()
}

fn all_variables(
    tf: &Terraform,
    values: &BTreeMap<&str, EffectiveValue<'_>>,
) -> BTreeMap<String, Value> {
    let values = values.iter();
    let mut merged: BTreeMap<_, _> = values
        .map(|(name, values)| ((*name).to_owned(), values.value.clone()))
        .collect();
    merged.extend(variables(tf));
    merged
}

/// Updates the variables in `inputs`, which come from a pin, with the current values of `spec.variables` and `spec.variablesFrom`.
pub(crate) fn refresh(tf: &Terraform, seen: &VariablesSeen, inputs: &mut RunInputs) {
    let values = effective_values(tf, seen);
    inputs.variables.extend(all_variables(tf, &values));
    inputs.secret_variables.extend(secrets(&values));
}

/// Returns the digests of a run of `tf` with `inputs`. `content`: digest of the image content. `key`: HMAC key of the resource.
pub fn config(
    tf: &Terraform,
    key: &[u8],
    content: &str,
    inputs: &RunInputs,
    seen: &Seen,
) -> Config {
    let backend = &inputs.backend;
    let effective = effective_values(tf, &seen.stack.variables);
    let own_variables: BTreeMap<_, _> = inputs
        .variables
        .iter()
        .filter(|(name, _)| !effective.contains_key(name.as_str()))
        .collect();
    let mut backend_parts = vec![
        json!(backend.kind),
        json!(backend.write_block),
        json!(backend.config),
        json!(backend.environment),
    ];
    backend_parts.extend((!backend.secret_config.is_empty()).then(|| json!(backend.secret_config)));
    backend_parts.extend(backend.bootstrap.as_ref().map(|bootstrap| json!(bootstrap)));
    let mut own_values = json!({
        "image": content,
        "path": inputs.path,
        "variables": own_variables,
        "scripts": inputs.scripts,
        "backend": backend_parts,
        "runner": seen.found().runner,
    });
    let runner = tf.spec.runner.as_ref();
    let tokens = runner.map_or(&[][..], |runner| runner.tokens.as_slice());
    let has_identity = inputs.service_account.is_some() || !tokens.is_empty();
    if let (true, Some(object)) = (has_identity, own_values.as_object_mut()) {
        object.insert(
            "identity".to_owned(),
            json!([inputs.service_account, tokens]),
        );
    }
    if let (true, Some(object)) = (inputs.strict_variables, own_values.as_object_mut()) {
        object.insert("strictVariables".to_owned(), true.into());
    }
    if let (Some(pod), Some(object)) = (pod_options::hashed(tf), own_values.as_object_mut()) {
        object.insert("pod".to_owned(), pod);
    }
    if let (false, Some(object)) = (inputs.var_files.is_empty(), own_values.as_object_mut()) {
        object.insert("varFiles".to_owned(), json!(inputs.var_files));
    }
    if let (Some(wrapper), Some(object)) = (inputs.wrapper, own_values.as_object_mut()) {
        object.insert("wrapper".to_owned(), json!(wrapper));
    }
    let skips_refresh = inputs.engine_arguments.skips_refresh;
    if let (true, Some(object)) = (skips_refresh, own_values.as_object_mut()) {
        object.insert("refresh".to_owned(), false.into());
    }
    if let (Some(workspace), Some(object)) = (&backend.workspace, own_values.as_object_mut()) {
        object.insert("workspace".to_owned(), json!(workspace));
    }
    let own_hash = digest::keyed(key, &own_values);
    let mut values: BTreeMap<&str, BTreeMap<&str, &Value>> = BTreeMap::new();
    for (name, value) in effective.iter().filter(|(_, value)| value.from.trigger) {
        let object_values = values.entry(&value.from.of).or_default();
        object_values.insert(name, value.value);
    }
    let object_hashes: BTreeMap<_, _> = values
        .into_iter()
        .map(|(object, values)| (object.to_owned(), digest::keyed(key, &values)))
        .collect();
    let hash = if object_hashes.is_empty() {
        own_hash.clone()
    } else {
        digest::keyed(key, &json!([own_hash, object_hashes]))
    };
    // A change of the list `variablesFrom` is a change of the spec, even if the values are the same.
    let from = &tf.spec.variables_from;
    let own_hash = if from.is_empty() {
        own_hash
    } else {
        digest::keyed(key, &json!([own_hash, from]))
    };
    Config {
        hash,
        own_hash,
        found: object_hashes,
    }
}
