//! Builders of the Secrets of a resource.

use std::collections::BTreeMap;

use alustan_api::labels::Component;
use alustan_api::run::{History, ManagedState, Pin, RunProgress, RunRecord, key};
use alustan_api::{Terraform, names};
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube_core::ResourceExt;
use serde::Serialize;
use serde_json::Value;

use super::prepare::{COMPLETENESS_KEY, HTTPS_FILES};
use super::{meta, meta_of_build};
use crate::observed::{GitToken, InputsSeen};
use crate::settings::Settings;

/// Data key of the pin in the pin Secret.
pub const PIN: &str = "pin";

/// Data key in the pointer Secret. The runner writes the value, which names the state slots of the current version of the managed state.
const POINTER: &str = "pointer";

/// Builds a new run record without its HMAC key. The caller adds the key, because it is random and this crate generates no random values.
pub fn record(tf: &Terraform, record: &RunRecord, history: &History) -> Secret {
    let data = [(key::RECORD, json(record)), (key::HISTORY, json(history))];
    secret(tf, names::record(&tf.name_any()), Component::Record, data)
}

/// Builds the report Secret.
pub fn report(tf: &Terraform, progress: &RunProgress) -> Secret {
    let data = [(key::PROGRESS, json(progress))];
    secret(tf, names::report(&tf.name_any()), Component::Report, data)
}

/// Builds the Secret with the pin (rule 13).
pub fn pin(tf: &Terraform, pin: &Pin) -> Secret {
    secret(
        tf,
        names::pin(&tf.name_any()),
        Component::Pin,
        [(PIN, json(pin))],
    )
}

/// Builds the empty Secret for the text of the plan. The runner writes the text.
pub fn plan(tf: &Terraform) -> Secret {
    empty(tf, &names::plan(&tf.name_any()), Component::Plan)
}

/// Builds the empty pointer Secret of the managed state.
pub fn pointer(tf: &Terraform, state: &ManagedState) -> Secret {
    empty(tf, &state.pointer, Component::State)
}

/// Whether the pointer Secret names a version of the managed state. Also true if the pointer cannot be parsed.
pub fn has_version(pointer: &Secret) -> bool {
    let content = pointer.data.as_ref().and_then(|data| data.get(POINTER));
    let Some(content) = content.filter(|content| !content.0.is_empty()) else {
        return false;
    };
    match serde_json::from_slice::<Value>(&content.0) {
        Ok(pointer) => pointer
            .get("current")
            .is_some_and(|version| !version.is_null()),
        Err(_) => true,
    }
}

/// Builds the empty Secrets of the state slots. Server-side apply leaves existing data unchanged: the runner is the field manager of the
/// data, the operator of the labels.
pub fn slots(tf: &Terraform, state: &ManagedState) -> impl Iterator<Item = Secret> {
    let slots = state.slots.iter();
    slots.map(|name| empty(tf, name, Component::State))
}

fn empty(tf: &Terraform, name: &str, component: Component) -> Secret {
    Secret {
        metadata: meta(tf, name.to_owned(), component),
        type_: Some("Opaque".to_owned()),
        ..Secret::default()
    }
}

/// Builds a pull secret with the docker configuration `config`.
pub fn pull(tf: &Terraform, config: &str) -> Secret {
    let data = [(names::DOCKER_CONFIG_KEY, config.as_bytes().to_vec())];
    let name = names::pull_secret(&tf.name_any());
    Secret {
        type_: Some("kubernetes.io/dockerconfigjson".to_owned()),
        ..secret(tf, name, Component::Registry, data)
    }
}

/// User name for tokens of a GitHub App.
pub const TOKEN_USER: &str = "x-access-token";

/// Builds the build Secret for Job `job`. For a build in another namespace, it contains docker configuration, git credentials and tokens of
/// registries of modules and providers. In each namespace it contains `token`, the token of the GitHub App. Returns `None` if there are no
/// credentials. The Secret is immutable. The caller makes the Job the owner of the Secret, so that the Secret is deleted with the Job.
pub fn build_secret(
    tf: &Terraform,
    job: &str,
    inputs: &InputsSeen,
    token: Option<&GitToken>,
    settings: &Settings,
) -> Option<Secret> {
    let is_elsewhere = settings.builds_elsewhere(tf);
    let docker = inputs.docker_config.as_ref().filter(|_| is_elsewhere);
    let docker = docker.map(|config| {
        (
            names::DOCKER_CONFIG_KEY.to_owned(),
            config.clone().into_bytes(),
        )
    });
    let kind = if docker.is_some() {
        "kubernetes.io/dockerconfigjson"
    } else {
        "Opaque"
    };
    let git = inputs
        .git
        .iter()
        .map(|(file, text)| (file.clone(), text.clone()));
    let has_credentials = docker.is_some()
        || !inputs.git.is_empty()
        || !inputs.registry_tokens.is_empty()
        || tf.spec.has_git_credentials()
        || !tf.spec.terraform_registries.is_empty();
    let registry_tokens = inputs.registry_tokens.clone();
    let registry_tokens = registry_tokens.into_iter().filter(|_| is_elsewhere);
    let is_needed = is_elsewhere && has_credentials || token.is_some();
    let data = docker
        .into_iter()
        .chain(git)
        .chain(registry_tokens)
        .chain(token.into_iter().flat_map(login));
    let metadata = meta_of_build(tf, job.to_owned(), Component::BuildSecret, settings);
    is_needed.then(|| immutable(metadata, kind, data))
}

/// Builds the Secret with the token of the GitHub App for the run Job `job`, whose pod executes `init`. The caller makes the Job the owner of
/// the Secret.
pub fn run_token(tf: &Terraform, job: &str, token: &GitToken) -> Secret {
    let metadata = meta(tf, job.to_owned(), Component::BuildSecret);
    immutable(metadata, "Opaque", login(token).into_iter())
}

/// Returns the files with which git authenticates by `token`.
fn login(token: &GitToken) -> [(String, Vec<u8>); 2] {
    let [username, password, _] = HTTPS_FILES;
    [(username, TOKEN_USER), (password, token.expose())]
        .map(|(file, text)| (file.to_owned(), text.as_bytes().to_vec()))
}

/// Builds an immutable Secret of `data` and [`COMPLETENESS_KEY`].
fn immutable(
    metadata: ObjectMeta,
    kind: &str,
    data: impl Iterator<Item = (String, Vec<u8>)>,
) -> Secret {
    let completeness = (COMPLETENESS_KEY.to_owned(), Vec::new());
    let data: BTreeMap<_, _> = data
        .chain([completeness])
        .map(|(key, value)| (key, ByteString(value)))
        .collect();
    Secret {
        metadata,
        data: Some(data),
        immutable: Some(true),
        type_: Some(kind.to_owned()),
        ..Secret::default()
    }
}

pub(super) fn secret<'a>(
    tf: &Terraform,
    name: String,
    component: Component,
    data: impl IntoIterator<Item = (&'a str, Vec<u8>)>,
) -> Secret {
    let data: BTreeMap<_, _> = data
        .into_iter()
        .map(|(key, value)| (key.to_owned(), ByteString(value)))
        .collect();
    Secret {
        metadata: meta(tf, name, component),
        data: Some(data),
        type_: Some("Opaque".to_owned()),
        ..Secret::default()
    }
}

fn json(value: &impl Serialize) -> Vec<u8> {
    serde_json::to_vec(value).unwrap_or_default()
}
