//! State in a file on the cache volume. The state is lost with the volume, so this provider is never the default (rule 2).

use alustan_api::{BackendSpec, paths};
use serde_json::json;

use crate::backend::{Backend, Config, Environment, Owner, text};

pub(crate) struct Local;

/// Path of the state file.
fn file() -> String {
    format!("{}/state/terraform.tfstate", paths::CACHE)
}

impl Backend for Local {
    fn name(&self) -> &'static str {
        "local"
    }

    fn kind<'a>(&self, _: &'a BackendSpec) -> &'a str {
        "local"
    }

    fn config(&self, _: &BackendSpec, _: Owner<'_>) -> Config {
        Config::from([("path".to_owned(), json!(file()))])
    }

    fn location(&self, config: &Config, _: &Environment) -> Option<String> {
        text(config, "path").map(str::to_owned)
    }

    /// Returns false: the engine stores the state of other workspaces in the working directory, which is deleted with the pod.
    fn has_workspaces(&self) -> bool {
        false
    }

    /// Returns false: each resource has its own cache volume.
    fn is_shared(&self, _: &str) -> bool {
        false
    }
}
