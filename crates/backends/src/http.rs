//! State on a server with the `http` protocol of the engine (<https://developer.hashicorp.com/terraform/language/backend/http>).

use alustan_api::BackendSpec;
use serde_json::json;

use crate::backend::{Backend, Config, Environment, Owner, text};

pub(crate) struct Http;

impl Backend for Http {
    fn name(&self) -> &'static str {
        "http"
    }

    fn kind<'a>(&self, _: &'a BackendSpec) -> &'a str {
        "http"
    }

    fn fields(&self) -> &'static [(&'static str, &'static str)] {
        &[
            ("address", "address"),
            ("lock_address", "lockAddress"),
            ("unlock_address", "unlockAddress"),
        ]
    }

    fn config(&self, spec: &BackendSpec, _: Owner<'_>) -> Config {
        let mut config = Config::from([("address".to_owned(), json!(spec.address))]);
        if let Some(lock) = &spec.lock_address {
            let unlock = spec.unlock_address.as_ref().unwrap_or(lock);
            config.insert("lock_address".to_owned(), json!(lock));
            config.insert("unlock_address".to_owned(), json!(unlock));
        }
        config
    }

    fn location(&self, config: &Config, _: &Environment) -> Option<String> {
        path(text(config, "address")?)
    }

    fn location_field(&self) -> &'static str {
        "address"
    }

    fn has_workspaces(&self) -> bool {
        false
    }

    /// Returns false for a loopback address: it refers to a different server in each pod.
    fn is_shared(&self, location: &str) -> bool {
        let host = location.split(['/', ':']).next().unwrap_or_default();
        !matches!(host, "" | "localhost" | "127.0.0.1" | "[")
    }
}

/// Returns host, port and path of a URL, without user and query, which may be secret.
pub(crate) fn path(url: &str) -> Option<String> {
    let (_, rest) = url.split_once("://")?;
    let rest = rest.split(['?', '#']).next()?;
    let (authority, path) = rest.split_once('/').unwrap_or((rest, ""));
    let host = authority
        .rsplit_once('@')
        .map_or(authority, |(_, host)| host);
    let path = format!("{host}/{path}");
    Some(path.trim_end_matches('/').to_owned())
}

/// Returns host and port of a URL.
pub(crate) fn host(url: &str) -> Option<String> {
    let path = path(url)?;
    path.split('/').next().map(str::to_owned)
}
