//! State in Secrets in the namespace of the resource, served to the engine by the runner (rule 12).

use alustan_api::BackendSpec;

use crate::backend::{Backend, Config, Owner};

pub(crate) struct Managed;

impl Backend for Managed {
    fn name(&self) -> &'static str {
        "managed"
    }

    fn kind<'a>(&self, _: &'a BackendSpec) -> &'a str {
        "http"
    }

    /// Returns no arguments: the runner passes address and password, which differ per run, as environment variables.
    fn config(&self, _: &BackendSpec, _: Owner<'_>) -> Config {
        Config::new()
    }

    fn managed(&self) -> bool {
        true
    }

    fn has_workspaces(&self) -> bool {
        false
    }
}
