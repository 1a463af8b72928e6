//! State in a Secret that the engine writes (<https://developer.hashicorp.com/terraform/language/backend/kubernetes>). The engine lists the
//! Secrets of the namespace, so a Role with `resourceNames` is not sufficient.

use alustan_api::BackendSpec;
use serde_json::json;

use crate::backend::{Backend, Config, Environment, Owner, text};

pub(crate) struct Kubernetes;

impl Backend for Kubernetes {
    fn name(&self) -> &'static str {
        "kubernetes"
    }

    fn kind<'a>(&self, _: &'a BackendSpec) -> &'a str {
        "kubernetes"
    }

    fn fields(&self) -> &'static [(&'static str, &'static str)] {
        &[("secret_suffix", "secretSuffix")]
    }

    /// The default suffix is `NAME-state`, because `NAME` may end in a number. The engine would mistake this number for the index of one of
    /// the Secrets of a large state (<https://github.com/hashicorp/terraform/issues/33995>).
    fn config(&self, spec: &BackendSpec, owner: Owner<'_>) -> Config {
        let suffix = spec
            .secret_suffix
            .clone()
            .unwrap_or_else(|| format!("{}-state", owner.name));
        Config::from([
            ("namespace".to_owned(), json!(owner.namespace)),
            ("secret_suffix".to_owned(), json!(suffix)),
            ("in_cluster_config".to_owned(), json!(true)),
        ])
    }

    fn location(&self, config: &Config, _: &Environment) -> Option<String> {
        let suffix = text(config, "secret_suffix")?;
        let namespace = text(config, "namespace").unwrap_or("default");
        let host = text(config, "host");
        let host = host.map(|host| crate::http::host(host).unwrap_or_else(|| host.to_owned()));
        let parts = [host.as_deref(), Some(namespace), Some(suffix)];
        Some(parts.into_iter().flatten().collect::<Vec<_>>().join("/"))
    }

    /// The Secret is `tfstate-WORKSPACE-SUFFIX`. Different pairs of workspace and suffix can have the same Secret.
    fn location_in(&self, workspace: &str, location: &str, config: &Config) -> String {
        let suffix = text(config, "secret_suffix").unwrap_or_default();
        let namespace = location.strip_suffix(suffix).unwrap_or(location);
        let name = format!("{workspace}-{suffix}");
        match name.strip_prefix("default-") {
            Some(suffix) => format!("{namespace}{suffix}"),
            None => format!("{namespace}#{name}"),
        }
    }

    fn location_field(&self) -> &'static str {
        "secretSuffix"
    }
}
