//! State in Secrets of the resource's namespace, served to the engine by the runner (rule 12).

use std::collections::BTreeMap;

use alustan_api::BackendSpec;
use serde_json::Value;

use crate::{Backend, Owner};

pub(crate) struct Managed;

impl Backend for Managed {
    fn kind(&self) -> &'static str {
        "http"
    }

    /// Address and password come by environment: they differ from run to run.
    fn config(&self, _: &BackendSpec, _: Owner<'_>) -> BTreeMap<String, Value> {
        BTreeMap::new()
    }

    fn managed(&self) -> bool {
        true
    }
}
