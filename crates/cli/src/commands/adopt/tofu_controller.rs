//! Mapping of `Terraform` of tofu-controller (infra.contrib.fluxcd.io/v1alpha2).

mod rows;
mod variables;

use alustan_api::DEFAULT_WORKSPACE;
use serde_json::{Value, json};

use super::adoption::{Adoption, Options, Step, Stop};
use super::backend_block::BackendBlock;
use super::environment;
use super::fields::{Note, notes};
use super::git_source::{from_flux, from_options, set_path};
use super::object::{is_true, items, text, value};
use super::pod;
use super::state::Summary;
use super::values::{
    is_duration, is_identifier, is_key, is_namespace, is_object_name, is_workspace, path_from,
    relative_path, resource_type,
};

pub(crate) use rows::ROWS;

/// Name of the CRD.
pub(crate) const CRD: &str = "terraforms.infra.contrib.fluxcd.io";
/// Maximum length of the suffix of a state Secret, in bytes (CRD).
const MAX_SUFFIX: usize = 63;
/// Maximum number of entries of `varFiles` (CRD).
const MAX_VAR_FILES: usize = 20;

/// Location of the state of an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum StatePlace {
    /// Secret of the `kubernetes` backend in the namespace of the object.
    Secret { workspace: String, suffix: String },
    /// A workspace of the `backend` block of the module or of the object.
    Block { workspace: String },
    /// HCP Terraform or another cluster.
    Elsewhere,
}

impl StatePlace {
    /// Returns the name of the Secret with the state.
    pub(crate) fn secret(&self) -> Option<String> {
        match self {
            Self::Secret { workspace, suffix } => Some(format!("tfstate-{workspace}-{suffix}")),
            Self::Block { .. } | Self::Elsewhere => None,
        }
    }

    /// Whether the new resource can use the state at its current location.
    fn stays(&self) -> bool {
        match self {
            Self::Secret { workspace, suffix } => {
                // CEL rules of `spec.backend.secretSuffix`.
                let ends_in_number = suffix.rsplit('-').next().is_some_and(|end| {
                    !end.is_empty() && end.bytes().all(|byte| byte.is_ascii_digit())
                });
                is_workspace(workspace) && suffix.len() <= MAX_SUFFIX && !ends_in_number
            }
            Self::Block { workspace } => is_workspace(workspace),
            Self::Elsewhere => false,
        }
    }
}

/// Determines the location of the state of `object`.
///
/// # Errors
/// Suffix or workspace are not valid in the name of a Secret.
pub(crate) fn place(object: &Value) -> Result<StatePlace, String> {
    let config = |field: &str| text(object, &format!("/spec/backendConfig/{field}"));
    if value(object, "/spec/cloud").is_some() || config("configPath").is_some() {
        return Ok(StatePlace::Elsewhere);
    }
    let workspace = text(object, "/spec/workspace").unwrap_or(DEFAULT_WORKSPACE);
    let is_disabled = is_true(object, "/spec/backendConfig/disable");
    if is_disabled || config("customConfiguration").is_some() {
        return Ok(StatePlace::Block {
            workspace: workspace.to_owned(),
        });
    }
    let suffix = config("secretSuffix").or_else(|| text(object, "/metadata/name"));
    let place = StatePlace::Secret {
        workspace: workspace.to_owned(),
        suffix: suffix.unwrap_or_default().to_owned(),
    };
    match place.secret().filter(|name| is_object_name(name)) {
        Some(_) => Ok(place),
        None => {
            Err("workspace and suffix of the state do not form the name of a Secret".to_owned())
        }
    }
}

/// Maps `object`. `source` is its `GitRepository`, `state` the state in its Secret.
///
/// # Errors
/// Reason why the object cannot be adopted.
pub(crate) fn map(
    object: &Value,
    source: Option<&Value>,
    state: Option<&Summary>,
    options: &Options,
) -> Result<Adoption, String> {
    refuse(object)?;
    let mut adoption = Adoption::new(options);
    let spec = object.get("spec").unwrap_or(&Value::Null);
    adoption.notes = notes(ROWS, "spec.", spec);
    if !from_options(&mut adoption, options)? {
        let why = "spec.sourceRef is not a GitRepository: set --url to the git repository of the \
                   module";
        from_flux(&mut adoption, source.ok_or(why)?, options)?;
    }
    set_path(&mut adoption, "spec.path", text(spec, "/path"));
    set_backend(&mut adoption, object, &place(object)?)?;
    if let Some(state) = state {
        adoption.describe_state(state);
    }
    variables::set(&mut adoption, spec);
    environment::set(
        &mut adoption,
        spec,
        "/runnerPodTemplate/spec",
        "spec.runnerPodTemplate.spec",
    );
    let template = ("/runnerPodTemplate/spec", "/runnerPodTemplate/metadata");
    pod::set(&mut adoption, spec, template.0, template.1);
    set_var_files(&mut adoption, spec);
    set_engine_arguments(&mut adoption, spec);
    set_policy(&mut adoption, spec);
    set_times(&mut adoption, spec);
    set_dependencies(&mut adoption, spec);
    set_outputs(&mut adoption, spec);
    set_account(&mut adoption, spec);
    finish(&mut adoption, object, options);
    Ok(adoption)
}

fn refuse(object: &Value) -> Result<(), String> {
    let why = if value(object, "/metadata/deletionTimestamp").is_some() {
        "the object is being deleted"
    } else if is_true(object, "/spec/destroy") {
        "spec.destroy is true: the object destroys its infrastructure"
    } else {
        return Ok(());
    };
    Err(why.to_owned())
}

fn set_backend(adoption: &mut Adoption, object: &Value, place: &StatePlace) -> Result<(), String> {
    match place {
        StatePlace::Secret { workspace, suffix } if place.stays() => {
            adoption.set("backend.provider", json!("kubernetes"));
            adoption.set("backend.secretSuffix", json!(suffix));
            set_workspace(adoption, workspace);
            if let Some(labels) = value(object, "/spec/backendConfig/labels") {
                adoption.set("backend.config.labels", labels.clone());
            }
        }
        StatePlace::Secret { .. } => {
            let secret = place.secret().unwrap_or_default();
            let text = format!(
                "Copy the state from Secret {secret} to the managed state of the resource, because \
                 its workspace or suffix has no equivalent. The Secret is not changed"
            );
            let (namespace, _) = adoption.key();
            let pull = format!(
                "kubectl get secret {secret} -n {namespace} -o jsonpath='{{.data.tfstate}}' | \
                 base64 -d | gunzip"
            );
            adoption.push_state(&text, &pull);
        }
        StatePlace::Block { workspace } if place.stays() => {
            set_workspace(adoption, workspace);
            if let Some(block) = text(object, "/spec/backendConfig/customConfiguration") {
                set_block(adoption, block)?;
            }
        }
        StatePlace::Block { .. } | StatePlace::Elsewhere => {
            let text = "Pull the state in a folder of the module that is initialized for the \
                        present backend and workspace, and push it";
            adoption.push_state(text, "terraform state pull");
        }
    }
    set_backend_secret(adoption, object);
    Ok(())
}

fn set_workspace(adoption: &mut Adoption, workspace: &str) {
    if workspace != DEFAULT_WORKSPACE {
        adoption.set("workspace", json!(workspace));
    }
}

/// Sets the backend from a custom configuration. The state of a block of type `local` is lost with the runner pod of tofu-controller.
fn set_block(adoption: &mut Adoption, text: &str) -> Result<(), String> {
    let path = "spec.backendConfig.customConfiguration";
    let block = BackendBlock::parse(text).map_err(|why| format!("{path}: {why}"))?;
    if block.kind == "local" {
        return Err(format!(
            "{path}: the state of backend local is not reachable"
        ));
    }
    block.set(adoption, path);
    Ok(())
}

fn set_backend_secret(adoption: &mut Adoption, object: &Value) {
    let path = "spec.backendConfigsFrom";
    match items(object, "/spec/backendConfigsFrom") {
        [] => {}
        [one] if text(one, "/kind") == Some("Secret") && value(one, "/keys").is_none() => {
            let name = text(one, "/name").filter(|name| is_object_name(name));
            match name.filter(|_| adoption.get("backend.provider").is_some()) {
                Some(name) => adoption.set("backend.secretRef", json!({ "name": name })),
                None => adoption.note(Note::lacks(path, "is not copied: set `backend.provider`")),
            }
        }
        _ => adoption.note(Note::lacks(
            path,
            "is not copied: set the fields of `backend`",
        )),
    }
}

fn set_policy(adoption: &mut Adoption, spec: &Value) {
    let approve = text(spec, "/approvePlan");
    let is_plan_only = approve == Some("disable") || is_true(spec, "/planOnly");
    if is_plan_only {
        adoption.set("mode", json!("PlanOnly"));
    }
    adoption.approve_later(approve == Some("auto") && !is_plan_only);
    if is_true(spec, "/disableDriftDetection") {
        adoption.set("driftDetection.mode", json!("Ignore"));
    }
    let destroys = is_true(spec, "/destroyResourcesOnDeletion");
    let policy = if destroys { "Destroy" } else { "Orphan" };
    adoption.set("deletionPolicy", json!(policy));
    let path = "/remediation/retries";
    match spec.pointer(path).and_then(Value::as_i64) {
        None => {}
        Some(limit @ 1..=100) => adoption.set("retry.limit", json!(limit)),
        Some(_) => {
            let text = "is not between 1 and 100: the default of 5 failures applies. Transient \
                        failures are retried without limit";
            adoption.note(Note::differs("spec.remediation.retries", text));
        }
    }
}

fn set_times(adoption: &mut Adoption, spec: &Value) {
    let mut set = |from: &str, to: &str| {
        let Some(duration) = text(spec, &format!("/{from}")) else {
            return;
        };
        if is_duration(duration) {
            adoption.set(to, json!(duration));
        } else {
            let text = format!("is not a duration from 1s to 8760h: the default of {to} applies");
            adoption.note(Note::differs(format!("spec.{from}"), text));
        }
    };
    set("interval", "driftDetection.interval");
    set("retryInterval", "retry.minBackoff");
    match text(spec, "/retryStrategy") {
        Some("ExponentialBackoff") => set("maxRetryInterval", "retry.maxBackoff"),
        _ => set("retryInterval", "retry.maxBackoff"),
    }
}

/// Sets `varFiles`. Paths of tofu-controller start at the root of the repository, those of the resource in the folder of the module.
fn set_var_files(adoption: &mut Adoption, spec: &Value) {
    let files = items(spec, "/tfVarsFiles");
    let folder = adoption.get("gitRepo.path").and_then(Value::as_str);
    let folder = folder.unwrap_or_default().to_owned();
    let paths: Vec<String> = files
        .iter()
        .filter_map(|file| relative_path(file.as_str()?))
        .filter(|file| file.ends_with(".tfvars") || file.ends_with(".tfvars.json"))
        .map(|file| path_from(&folder, &file))
        .take(MAX_VAR_FILES)
        .collect();
    if paths.len() < files.len() {
        let text = "entries that are not paths of .tfvars or .tfvars.json files in the repository, and \
                    entries after the first 20, are not copied";
        adoption.note(Note::lacks("spec.tfVarsFiles[]", text));
    }
    if !paths.is_empty() {
        adoption.set("varFiles", json!(paths));
    }
}

fn set_engine_arguments(adoption: &mut Adoption, spec: &Value) {
    match value(spec, "/parallelism").and_then(Value::as_i64) {
        None | Some(0) => {}
        Some(parallelism @ 1..=256) => adoption.set("engine.parallelism", json!(parallelism)),
        Some(_) => {
            let text = "is not between 1 and 256: the default of the engine applies";
            adoption.note(Note::differs("spec.parallelism", text));
        }
    }
    match text(spec, "/tfstate/lockTimeout") {
        None | Some("0s") => {}
        Some(timeout) if is_duration(timeout) => adoption.set("engine.lockTimeout", json!(timeout)),
        Some(_) => {
            let text = "is not a duration from 1s to 8760h: a locked state is retried at once";
            adoption.note(Note::differs("spec.tfstate.lockTimeout", text));
        }
    }
}

fn set_dependencies(adoption: &mut Adoption, spec: &Value) {
    let reference = |item: &Value| {
        let name = text(item, "/name").filter(|name| is_object_name(name))?;
        match text(item, "/namespace") {
            None => Some(json!({ "name": name })),
            Some(namespace) if is_namespace(namespace) => {
                Some(json!({"name": name, "namespace": namespace}))
            }
            Some(_) => None,
        }
    };
    let dependencies = items(spec, "/dependsOn");
    let references: Vec<Value> = dependencies
        .iter()
        .filter_map(reference)
        .take(100)
        .collect();
    if references.len() < dependencies.len() {
        let text = "entries with an invalid name, and entries after the first 100, are not copied";
        adoption.note(Note::lacks("spec.dependsOn[]", text));
    }
    if !references.is_empty() {
        adoption.set("dependsOn", json!(references));
        let text = "Adopt the resources of spec.dependsOn first: the resource waits until they are \
                    Ready";
        adoption.steps.push(Step::new(text, []));
    }
}

fn set_outputs(adoption: &mut Adoption, spec: &Value) {
    let Some(secret) = text(spec, "/writeOutputsToSecret/name") else {
        return;
    };
    let path = "spec.writeOutputsToSecret";
    if !is_object_name(secret) {
        adoption.note(Note::lacks(
            path,
            "is not the name of an object and is not copied",
        ));
        return;
    }
    adoption.set("outputs.secretName", json!(secret));
    if let Some(labels) = value(spec, "/writeOutputsToSecret/labels") {
        adoption.set("outputs.labels", labels.clone());
    }
    let (namespace, _) = adoption.key();
    let text = format!(
        "Delete Secret {secret} of tofu-controller: outputs are not written to a Secret of another \
         owner. The first run creates it again"
    );
    let command = format!("kubectl delete secret {secret} -n {namespace}");
    adoption.steps.push(Step::new(text, [command]));
    set_output_keys(adoption, spec);
}

fn set_output_keys(adoption: &mut Adoption, spec: &Value) {
    let mut keys = serde_json::Map::new();
    for item in items(spec, "/writeOutputsToSecret/outputs") {
        let item = item.as_str().unwrap_or_default();
        let (output, key) = item.split_once(':').unwrap_or((item, item));
        if is_identifier(output) && is_key(key) && keys.len() < 100 {
            keys.insert(key.to_owned(), json!(output));
        } else {
            let path = "spec.writeOutputsToSecret.outputs[]";
            let text = "entries with an invalid name, and entries after the first 100, are not \
                        copied";
            adoption.note(Note::lacks(path, text));
        }
    }
    if !keys.is_empty() {
        adoption.set("outputs.keys", Value::Object(keys));
    }
}

fn set_account(adoption: &mut Adoption, spec: &Value) {
    let account = text(spec, "/serviceAccountName").unwrap_or("tf-runner");
    if !is_object_name(account) {
        let text = "is not the name of an object and is not copied";
        adoption.note(Note::lacks("spec.serviceAccountName", text));
        return;
    }
    adoption.set("runner.serviceAccountName", json!(account));
    adoption.allow_runs(account);
}

fn finish(adoption: &mut Adoption, object: &Value, options: &Options) {
    let is_pending = text(object, "/status/plan/pending").is_some();
    if is_pending {
        let text = "has a plan that is not applied: expect its changes in the first plan";
        adoption.note(Note::differs("status.plan.pending", text));
    }
    if text(object, "/status/lock/pending").is_some() {
        let text = "reports a locked state: runs wait until the lock is released";
        adoption.note(Note::differs("status.lock.pending", text));
    }
    adoption.stop = Some(Stop {
        patch: json!({"spec": {"suspend": true}}),
        effect: "suspended",
    });
    let theirs = text(object, "/metadata/name").unwrap_or_default();
    let namespace = &options.namespace;
    let text = "Delete the object of tofu-controller, without its finalizer. Never resume it: \
                while it is suspended, tofu-controller ignores the deletion, otherwise it deletes \
                the Secret with the outputs, and destroys the infrastructure if \
                spec.destroyResourcesOnDeletion is true";
    let commands = [
        format!("kubectl delete {CRD} {theirs} -n {namespace} --wait=false"),
        format!(
            "kubectl patch {CRD} {theirs} -n {namespace} --type merge -p '{{\"metadata\":{{\"finalizers\":null}}}}'"
        ),
    ];
    adoption.cleanup.push(Step::new(text, commands));
    let text = format!(
        "Both CRDs have the plural name terraforms and the short name tf. Use the full name {}",
        resource_type()
    );
    adoption.facts.push(text);
}

#[cfg(test)]
mod tests;
