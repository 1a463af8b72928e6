//! Interface of a backend, with the types that each implementation uses.

use std::collections::BTreeMap;

use alustan_api::BackendSpec;
use alustan_api::run::Bootstrap;
use serde_json::Value;
use thiserror::Error;

/// Part of a backend block, by the engine's names.
pub type Config = BTreeMap<String, Value>;
/// Environment variables by name.
pub type Environment = BTreeMap<String, String>;

/// The resource that a state belongs to.
#[derive(Clone, Copy, Debug)]
pub struct Owner<'a> {
    /// Its namespace.
    pub namespace: &'a str,
    /// Its name.
    pub name: &'a str,
}

impl Owner<'_> {
    /// What tells its state from those of others in one place.
    pub(crate) fn path(self) -> String {
        format!("{}/{}", self.namespace, self.name)
    }

    /// The key of its state, where none is given.
    pub(crate) fn key(self, spec: &BackendSpec) -> String {
        let own = spec.key.clone();
        own.unwrap_or_else(|| format!("{}.tfstate", self.path()))
    }
}

/// One kind of backend. Only the first three are needed.
pub(crate) trait Backend: Sync {
    /// The provider's name in `spec.backend.provider`.
    fn name(&self) -> &'static str;

    /// The type of the engine's `backend` block.
    fn kind<'a>(&self, spec: &'a BackendSpec) -> &'a str;

    /// The partial configuration that goes with the block, without `spec.config`; nothing secret.
    fn config(&self, spec: &BackendSpec, owner: Owner<'_>) -> Config;

    /// Names of the block that fields of the spec stand for: `spec.config` may not give them.
    fn fields(&self) -> &'static [(&'static str, &'static str)] {
        &[]
    }

    /// What is wrong with `spec`, beyond what the API server refuses.
    fn validate(&self, _: &BackendSpec, _: Owner<'_>) -> Result<(), Invalid> {
        Ok(())
    }

    /// Since which version engines take a block with `config`, and what wants that.
    fn since(&self, _: &Config) -> Option<Since> {
        None
    }

    /// What is to be made before the first run.
    fn bootstrap(&self, _: &BackendSpec) -> Option<Bootstrap> {
        None
    }

    /// Where a block with `config` has its state, if that is known; nothing secret.
    fn place(&self, _: &Config, _: &Environment) -> Option<String> {
        None
    }

    /// The field of the spec that names another place.
    fn place_field(&self) -> &'static str {
        "config"
    }

    /// Whether `place` is the same for everybody.
    fn is_shared(&self, place: &str) -> bool {
        !place.is_empty()
    }

    /// Whether the state is kept in Secrets by the runner's own server.
    fn managed(&self) -> bool {
        false
    }
}

/// A version of Terraform and `OpenTofu`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Since {
    /// The version.
    pub version: &'static str,
    /// What wants it, and what does without it.
    pub why: &'static str,
}

/// A field says what cannot be.
#[derive(Debug, Error, PartialEq, Eq)]
#[error("{field}: {why}")]
pub struct Invalid {
    /// Its path below `spec.backend`.
    pub field: String,
    /// Why, and what to do.
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

/// Returns the configuration of the block, `spec.config` included.
pub(crate) fn config(backend: &dyn Backend, spec: &BackendSpec, owner: Owner<'_>) -> Config {
    let mut config = backend.config(spec, owner);
    let own = spec.config.iter();
    config.extend(own.map(|(name, value)| (name.clone(), value.0.clone())));
    config
}

/// Returns the text of an argument; an empty one is none.
pub(crate) fn text<'a>(config: &'a Config, name: &str) -> Option<&'a str> {
    let text = config.get(name).and_then(Value::as_str);
    text.filter(|it| !it.is_empty())
}
