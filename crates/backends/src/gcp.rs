//! State in a bucket of Google Cloud Storage
//! (<https://developer.hashicorp.com/terraform/language/backend/gcs>).

use alustan_api::BackendSpec;
use serde_json::json;

use crate::backend::{Backend, Config, Environment, Owner, text};

pub(crate) struct Gcp;

impl Backend for Gcp {
    fn name(&self) -> &'static str {
        "gcp"
    }

    fn kind<'a>(&self, _: &'a BackendSpec) -> &'a str {
        "gcs"
    }

    fn fields(&self) -> &'static [(&'static str, &'static str)] {
        &[("bucket", "gcs"), ("prefix", "prefix")]
    }

    fn config(&self, spec: &BackendSpec, owner: Owner<'_>) -> Config {
        let prefix = spec.prefix.clone().unwrap_or_else(|| owner.path());
        Config::from([
            ("bucket".to_owned(), json!(spec.gcs)),
            ("prefix".to_owned(), json!(prefix)),
        ])
    }

    fn location(&self, config: &Config, _: &Environment) -> Option<String> {
        let endpoint = text(config, "storage_custom_endpoint").and_then(crate::http::host);
        let parts: Vec<_> = [
            endpoint.as_deref(),
            Some(text(config, "bucket")?),
            text(config, "prefix"),
        ]
        .into_iter()
        .flatten()
        .collect();
        Some(parts.join("/"))
    }

    fn location_field(&self) -> &'static str {
        "prefix"
    }
}
