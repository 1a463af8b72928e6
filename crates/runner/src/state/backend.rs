//! Writes the backend configuration for the engine (rule 11), and reads the configuration that `init` resolved.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use alustan_api::report::Failure;
use alustan_api::run::{BackendInputs, OwnBackend};
use alustan_api::{EngineName, Reason};
use alustan_state::secrets::to_json;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use crate::file_system::write_private;
use crate::module::files::{Content, json_blocks, read_module_files};

/// File with the `backend` block that the runner writes for a module without a `backend` block. The name is not that of an override file
/// (`*_override.tf.json`), because an override file would replace a `backend` block of the module.
pub const BLOCK_FILE: &str = "zzz-alustan-backend.tf.json";
/// File, in the module folder of the image, that records the backend with which the build ran `init`.
pub const MARKER: &str = ".terraform/alustan.json";
/// File in which `init` stores the resolved backend configuration.
const RESOLVED: &str = ".terraform/terraform.tfstate";

/// Content of [`MARKER`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Prepared {
    /// Type of the backend.
    pub backend: String,
    /// Engine that ran `init`: `terraform` or `tofu`.
    pub engine: String,
}

/// Writes [`BLOCK_FILE`] with a `backend` block of type `kind`. With `None`, removes the file if it exists.
pub fn write_block(directory: &Path, kind: Option<&str>) -> io::Result<()> {
    let file = directory.join(BLOCK_FILE);
    match kind {
        Some(kind) => {
            let block = json!({ "terraform": { "backend": { kind: {} } } });
            fs::write(file, block.to_string())
        }
        None if file.exists() => fs::remove_file(file),
        None => Ok(()),
    }
}

/// Writes the partial backend configuration, including its secret part, to a file for `-backend-config`. Returns `None` if the
/// configuration is empty.
pub fn write_config(work: &Path, inputs: &BackendInputs) -> io::Result<Option<PathBuf>> {
    let config = inputs.whole_config();
    if config.is_empty() {
        return Ok(None);
    }
    let file = work.join("backend-config.json");
    write_private(&file, &to_json(&config), 0o600)?;
    Ok(Some(file))
}

/// Whether the image build ran `init` for this backend, so that the run skips `init`. True only for a `managed` backend without a partial
/// configuration.
pub fn is_prepared(directory: &Path, inputs: &BackendInputs) -> bool {
    let marker = fs::read(directory.join(MARKER)).ok();
    let prepared = marker.and_then(|bytes| serde_json::from_slice::<Prepared>(&bytes).ok());
    let same =
        prepared.is_some_and(|prepared| Some(prepared.backend.as_str()) == inputs.kind.as_deref());
    same && inputs.managed.is_some() && inputs.config.is_empty() && has_resolved(directory)
}

/// Whether `init` has resolved a backend in `directory`.
pub fn has_resolved(directory: &Path) -> bool {
    directory.join(RESOLVED).exists()
}

/// Whether the module in `directory` declares a `backend` or `cloud` block, apart from [`BLOCK_FILE`].
pub fn has_own_block(directory: &Path) -> bool {
    let files = read_module_files(directory, EngineName::VARIANTS);
    files
        .iter()
        .filter(|file| file.name != BLOCK_FILE)
        .any(|file| has_block(&file.content))
}

fn has_block(content: &Content) -> bool {
    match content {
        Content::Hcl(body) => body
            .get_blocks("terraform")
            .any(|block| block.body.has_blocks("backend") || block.body.has_blocks("cloud")),
        Content::Json(file) => json_blocks(file, "terraform")
            .iter()
            .any(|block| block.get("backend").is_some() || block.get("cloud").is_some()),
    }
}

/// Prepends advice to the message of a failure with reason `BackendMissing`. Also prepends advice to a failure with reason `InitFailed` if
/// the cause is an unsupported argument of the backend, missing credentials or a missing connection string.
pub fn with_advice(failure: Failure, inputs: &BackendInputs) -> Failure {
    let kind = inputs.kind.as_deref().unwrap_or_default();
    let advice = match Reason::from_stored(&failure.reason) {
        Some(Reason::BackendMissing) => missing(kind, inputs),
        Some(Reason::InitFailed) => match refused_argument(&failure.message) {
            Some(argument) => unknown(kind, argument),
            None => match unopened(kind, &failure.message) {
                Some(advice) => advice.to_owned(),
                None => return failure,
            },
        },
        _ => return failure,
    };
    let message = format!("{advice}. {}", failure.message);
    crate::failure::failure(failure.class, &failure.reason, message)
}

fn missing(kind: &str, inputs: &BackendInputs) -> String {
    let bucket = inputs.config.get("bucket").and_then(Value::as_str);
    let place = format!("spec.backend: bucket {}", bucket.unwrap_or_default());
    match &inputs.bootstrap {
        Some(_) => format!(
            "{place} contained the state of this resource and no longer exists. Restore the \
             bucket: a new one would be empty"
        ),
        None if kind == "s3" => format!(
            "{place} or its lock table does not exist. Create the missing one, or set \
             spec.backend.bootstrap: true to create bucket and table"
        ),
        None => format!("{place} does not exist. Create it"),
    }
}

/// Extracts, from an error of the engine, the name of the argument that the backend does not support.
fn refused_argument(message: &str) -> Option<&str> {
    let (_, rest) = message.split_once("No argument or block type is named \"")?;
    Some(rest.split_once('"')?.0)
}

fn unknown(kind: &str, argument: &str) -> String {
    match (kind, argument) {
        ("s3", "use_lockfile") => {
            "Locks in the bucket require Terraform or OpenTofu 1.10 or later: use a newer engine, \
             or set spec.backend.dynamoDB"
                .to_owned()
        }
        ("s3", "endpoints") => {
            "spec.backend.endpoint requires Terraform or OpenTofu 1.6 or later".to_owned()
        }
        _ => format!(
            "spec.backend.config.{argument}, or key {argument} of spec.backend.secretRef: backend \
             type {kind} does not support the argument"
        ),
    }
}

/// Returns advice if `message` shows that the credentials of an `s3` backend or the connection string of a `pg` backend are missing.
fn unopened(kind: &str, message: &str) -> Option<&'static str> {
    let nobody = message.contains("No valid credential sources");
    let nowhere = message.contains("connection refused");
    match kind {
        "s3" if nobody => Some(
            "No credentials for the backend. Set spec.backend.secretRef to a Secret with \
             AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or use workload identity",
        ),
        "pg" if nowhere => Some(
            "Set spec.backend.secretRef to a Secret with conn_str or PG_CONN_STR; without it, the \
             engine connects to a database in the pod",
        ),
        _ => None,
    }
}

/// Returns the address of the state from the backend configuration that the engine resolved, and the workspace in `inputs`.
pub fn address(directory: &Path, inputs: &BackendInputs) -> Option<String> {
    let OwnBackend { kind, config } = resolved(directory)?;
    let workspace = inputs.workspace.as_deref();
    let environment = &inputs.environment;
    Some(alustan_backends::address(
        &kind,
        &config,
        environment,
        workspace,
    ))
}

/// Returns the backend configuration that the engine resolved, without `null` values.
pub fn resolved(directory: &Path) -> Option<OwnBackend> {
    let bytes = fs::read(directory.join(RESOLVED)).ok()?;
    let resolved: Value = serde_json::from_slice(&bytes).ok()?;
    let backend = resolved.get("backend")?;
    let config = backend
        .get("config")
        .and_then(Value::as_object)
        .into_iter()
        .flatten();
    let set = config.filter(|(_, value)| !value.is_null());
    Some(OwnBackend {
        kind: backend.get("type")?.as_str()?.to_owned(),
        config: set
            .map(|(name, value)| (name.clone(), without_nulls(value)))
            .collect(),
    })
}

fn without_nulls(value: &Value) -> Value {
    match value {
        Value::Object(fields) => {
            let set = fields.iter().filter(|(_, value)| !value.is_null());
            set.map(|(name, value)| (name.clone(), without_nulls(value)))
                .collect::<Map<_, _>>()
                .into()
        }
        Value::Array(items) => items.iter().map(without_nulls).collect(),
        other => other.clone(),
    }
}

/// Writes a module that contains only the `backend` block of `backend`. A migration uses the module to read the state in the previous
/// backend.
pub fn write_bare_module(directory: &Path, backend: &OwnBackend) -> io::Result<()> {
    fs::create_dir_all(directory)?;
    let block = json!({ "terraform": { "backend": { (&backend.kind): backend.config } } });
    write_private(&directory.join(BLOCK_FILE), &to_json(&block), 0o600)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;
    use std::collections::BTreeMap;

    #[rstest]
    #[case("main.tf", "terraform {\n  backend \"s3\" {}\n}", true)]
    #[case("main.tf", "terraform {\n cloud {}\n}", true)]
    #[case("main.tf", "terraform { required_version = \"1\" }", false)]
    #[case("main.tf.json", r#"{"terraform":[{"backend":{"s3":{}}}]}"#, true)]
    #[case("main.tf.json", r#"{"terraform":{"required_version":"1"}}"#, false)]
    #[case(BLOCK_FILE, r#"{"terraform":{"backend":{"http":{}}}}"#, false)]
    fn backend_block_of_the_module_is_detected(
        #[case] name: &str,
        #[case] text: &str,
        #[case] own: bool,
    ) {
        let directory = tempfile::tempdir().unwrap();
        fs::write(directory.path().join(name), text).unwrap();
        assert_eq!(has_own_block(directory.path()), own);
    }

    fn s3(bootstrap: bool) -> BackendInputs {
        let bootstrap = bootstrap.then(|| alustan_api::run::Bootstrap {
            bucket: "b".into(),
            region: "r".into(),
            table: None,
            endpoint: None,
        });
        BackendInputs {
            kind: Some("s3".into()),
            write_block: true,
            config: [("bucket".to_owned(), "b".into())].into(),
            environment: BTreeMap::new(),
            secret_config: BTreeMap::new(),
            bootstrap,
            workspace: None,
            managed: None,
        }
    }

    #[rstest]
    #[case(
        false,
        Reason::BackendMissing,
        "gone",
        "set spec.backend.bootstrap: true"
    )]
    #[case(true, Reason::BackendMissing, "gone", "bucket b contained the state")]
    #[case(
        false,
        Reason::InitFailed,
        "No argument or block type is named \"use_lockfile\"",
        "spec.backend.dynamoDB"
    )]
    #[case(
        false,
        Reason::InitFailed,
        "{\"use_lockfile\":true}: No argument or block type is named \"colour\"",
        "spec.backend.config.colour"
    )]
    #[case(
        false,
        Reason::InitFailed,
        "No valid credential sources found",
        "spec.backend.secretRef"
    )]
    fn backend_failure_message_contains_advice(
        #[case] bootstrap: bool,
        #[case] reason: Reason,
        #[case] message: &str,
        #[case] advice: &str,
    ) {
        let failure = crate::failure::user(reason, message);
        let output = with_advice(failure, &s3(bootstrap)).message;
        assert!(
            output.contains(advice) && output.contains(message),
            "{output}"
        );
        let failure = crate::failure::user(Reason::PlanFailed, message);
        assert_eq!(with_advice(failure.clone(), &s3(bootstrap)), failure);
    }

    #[test]
    fn state_address_contains_no_secret() {
        let directory = tempfile::tempdir().unwrap();
        fs::create_dir(directory.path().join(".terraform")).unwrap();
        let resolved = json!({"backend": {"type": "s3", "config":
            {"bucket": "b", "key": "team/web.tfstate", "secret_key": "hidden", "region": null}}});
        fs::write(directory.path().join(RESOLVED), resolved.to_string()).unwrap();
        assert_eq!(
            address(directory.path(), &s3(false)).as_deref(),
            Some("s3://b/team/web.tfstate")
        );
        let config = super::resolved(directory.path()).unwrap().config;
        assert!(!config.contains_key("region"), "it is not set");
    }
}
