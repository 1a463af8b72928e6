//! State in a backend of any type that the engine supports. The resource sets the type and all arguments.

use alustan_api::BackendSpec;

use crate::backend::{Backend, Config, Owner, text};

pub(crate) struct Generic;

/// Arguments that determine the location of the state, by type. None of them is secret.
const PLACES: &[(&str, &[&str])] = &[
    ("consul", &["address", "path"]),
    ("cos", &["bucket", "prefix", "key"]),
    ("oss", &["bucket", "prefix", "key"]),
];

impl Backend for Generic {
    fn name(&self) -> &'static str {
        "generic"
    }

    fn kind<'a>(&self, spec: &'a BackendSpec) -> &'a str {
        spec.kind.as_deref().unwrap_or_default()
    }

    fn config(&self, _: &BackendSpec, _: Owner<'_>) -> Config {
        Config::new()
    }
}

/// Returns the location of a state of type `kind`; `None` if [`PLACES`] does not contain the type.
pub(crate) fn location(kind: &str, config: &Config) -> Option<String> {
    let (_, names) = PLACES.iter().find(|(known, _)| *known == kind)?;
    Some(
        names
            .iter()
            .filter_map(|name| text(config, name))
            .collect::<Vec<_>>()
            .join("/"),
    )
}

/// Whether a location of type `kind` refers to the same state in every pod.
pub(crate) fn is_shared(kind: &str) -> bool {
    matches!(kind, "cos" | "oss")
}
