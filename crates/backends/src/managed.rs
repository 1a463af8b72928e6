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

    /// Address and password are environment variables, because they differ per run.
    fn config(&self, _: &BackendSpec, _: Owner<'_>) -> Config {
        Config::new()
    }

    fn managed(&self) -> bool {
        true
    }
}
