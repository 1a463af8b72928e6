//! Interface of a backend, with the types that each implementation uses.

use std::collections::BTreeMap;

use alustan_api::BackendSpec;
use alustan_api::run::Bootstrap;
use serde_json::Value;
use thiserror::Error;

/// Arguments of a backend block, by their names in the engine.
pub type Config = BTreeMap<String, Value>;
/// Environment variables by name.
pub type Environment = BTreeMap<String, String>;

/// Resource that owns a state.
#[derive(Clone, Copy, Debug)]
pub struct Owner<'a> {
    /// Namespace of the resource.
    pub namespace: &'a str,
    /// Name of the resource.
    pub name: &'a str,
}

impl Owner<'_> {
    /// Returns `NAMESPACE/NAME`: the default path prefix of the state in a shared location.
    pub(crate) fn path(self) -> String {
        format!("{}/{}", self.namespace, self.name)
    }

    /// Returns the key of the state: `spec.key`, or `NAMESPACE/NAME.tfstate`.
    pub(crate) fn key(self, spec: &BackendSpec) -> String {
        spec.key
            .clone()
            .unwrap_or_else(|| format!("{}.tfstate", self.path()))
    }
}

/// A type of backend. Implementations must provide `name`, `kind` and `config`.
pub(crate) trait Backend: Sync {
    /// Name of the provider in `spec.backend.provider`.
    fn name(&self) -> &'static str;

    /// Returns the type of the `backend` block, for example `s3`.
    fn kind<'a>(&self, spec: &'a BackendSpec) -> &'a str;

    /// Returns the arguments for the backend block, without `spec.config`. They contain no secrets.
    fn config(&self, spec: &BackendSpec, owner: Owner<'_>) -> Config;

    /// Pairs of a block argument and the field of the spec that sets it. `spec.config` must not contain these arguments.
    fn fields(&self) -> &'static [(&'static str, &'static str)] {
        &[]
    }

    /// Checks `spec` beyond the validation of the API server.
    fn validate(&self, _: &BackendSpec, _: Owner<'_>) -> Result<(), Invalid> {
        Ok(())
    }

    /// Returns the minimum engine version for a block with `config`, and the feature that requires it. `None` if every supported version
    /// accepts the block.
    fn since(&self, _: &Config) -> Option<Since> {
        None
    }

    /// Returns the bucket and the lock table to create if they do not exist.
    fn bootstrap(&self, _: &BackendSpec) -> Option<Bootstrap> {
        None
    }

    /// Returns the location of the state of a block with `config`, if known. It contains no secrets.
    fn location(&self, _: &Config, _: &Environment) -> Option<String> {
        None
    }

    /// Returns the location of the state in a workspace other than `default`. `location`: location of the state in the workspace `default`.
    fn location_in(&self, workspace: &str, location: &str, _: &Config) -> String {
        format!("{location}#{workspace}")
    }

    /// Whether the backend has workspaces other than `default`.
    fn has_workspaces(&self) -> bool {
        true
    }

    /// Field of `spec.backend` that sets the location of the state.
    fn location_field(&self) -> &'static str {
        "config"
    }

    /// Whether `location` refers to the same state in every pod.
    fn is_shared(&self, location: &str) -> bool {
        !location.is_empty()
    }

    /// Whether the runner serves the state from Secrets (rule 12).
    fn managed(&self) -> bool {
        false
    }
}

/// Minimum version of Terraform and `OpenTofu` for a backend configuration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Since {
    /// Minimum version, for example `1.10.0`.
    pub version: &'static str,
    /// Feature that requires the version, and the alternative to it.
    pub why: &'static str,
}

/// A field of `spec.backend` has an invalid value.
#[derive(Debug, Error, PartialEq, Eq)]
#[error("{field}: {why}")]
pub struct Invalid {
    /// Path of the field below `spec.backend`. Example: `config.region`.
    pub field: String,
    /// Reason why the value is invalid, and how to correct it.
    pub why: String,
}

impl Invalid {
    pub(crate) fn new(field: impl Into<String>, why: impl Into<String>) -> Self {
        Self {
            field: field.into(),
            why: why.into(),
        }
    }
}

/// Returns the arguments of the backend block, including `spec.config`.
pub(crate) fn config(backend: &dyn Backend, spec: &BackendSpec, owner: Owner<'_>) -> Config {
    let mut config = backend.config(spec, owner);
    config.extend(
        spec.config
            .iter()
            .map(|(name, value)| (name.clone(), value.value())),
    );
    config
}

/// Returns the value of a string argument; `None` if it is missing or empty.
pub(crate) fn text<'a>(config: &'a Config, name: &str) -> Option<&'a str> {
    let text = config.get(name).and_then(Value::as_str);
    text.filter(|text| !text.is_empty())
}
