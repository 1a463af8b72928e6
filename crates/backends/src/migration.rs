//! Comparison of the locations of a state, to detect a migration between backends.

use alustan_api::run::BackendInputs;

use crate::address::{address_of, is_known};
use crate::backend::Config;

/// Whether a state has to be migrated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Migration {
    /// The location is the same.
    No,
    /// The location is different.
    Yes,
    /// Only the engine knows whether the location is the same: the old or the new configuration comes from the `backend` block of the module.
    Unknown,
}

/// Returns whether a change of the backend from `from` to `to` requires a migration of the state.
pub fn migration(from: &BackendInputs, to: &BackendInputs) -> Migration {
    // Also a migration if the address is unknown: the engine then cannot detect that the state is in another workspace.
    if from.workspace != to.workspace {
        return Migration::Yes;
    }
    let is_configured = |backend: &BackendInputs| backend.write_block;
    let moves = match (&from.managed, &to.managed) {
        (Some(from), Some(to)) => from.pointer != to.pointer,
        (Some(_), None) | (None, Some(_)) => true,
        (None, None) if !is_configured(from) || !is_configured(to) => return Migration::Unknown,
        (None, None) => comparable_location(from) != comparable_location(to),
    };
    if moves { Migration::Yes } else { Migration::No }
}

/// Returns the value by which two locations of a state are compared. `Ok`: the address. `Err`, if the address is unknown: backend type and
/// configuration without secrets.
fn comparable_location(backend: &BackendInputs) -> Result<String, (Option<&str>, &Config)> {
    address_of(backend)
        .filter(|address| is_known(address))
        .ok_or((backend.kind.as_deref(), &backend.config))
}

/// Returns the location of a state for messages: `s3://bucket/key`, `Secret NAME-state`, or a description if only the engine knows the location.
pub fn location(backend: &BackendInputs) -> String {
    if let Some(managed) = &backend.managed {
        return format!("Secret {}", managed.pointer);
    }
    let address = address_of(backend);
    let is_complete = address.as_deref().is_some_and(is_known);
    let address = address.unwrap_or_else(|| "the module's own backend".to_owned());
    match &backend.workspace {
        Some(workspace) if !is_complete => format!("workspace {workspace} of {address}"),
        Some(_) | None => address,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::Environment;
    use alustan_api::run::ManagedState;
    use serde_json::{Value, json};

    fn backend_inputs(kind: &str, config: &Value) -> BackendInputs {
        BackendInputs {
            kind: Some(kind.to_owned()),
            write_block: true,
            config: serde_json::from_value(config.clone()).unwrap(),
            environment: Environment::new(),
            secret_config: Environment::new(),
            bootstrap: None,
            workspace: None,
            managed: None,
        }
    }

    fn s3(key: &str) -> BackendInputs {
        backend_inputs(
            "s3",
            &json!({"bucket": "b", "key": key, "region": "us-east-1"}),
        )
    }

    fn staging(backend: BackendInputs) -> BackendInputs {
        BackendInputs {
            workspace: Some("staging".to_owned()),
            ..backend
        }
    }

    fn managed() -> BackendInputs {
        BackendInputs {
            managed: Some(ManagedState {
                pointer: "web-state".to_owned(),
                slots: Vec::new(),
            }),
            ..backend_inputs("http", &json!({}))
        }
    }

    fn own(kind: Option<&str>) -> BackendInputs {
        BackendInputs {
            kind: kind.map(str::to_owned),
            write_block: false,
            ..s3("a")
        }
    }

    #[test]
    fn state_migrates_when_its_location_changes() {
        let table = [
            ("nowhere", s3("a"), s3("a"), Migration::No),
            ("to another key", s3("a"), s3("b"), Migration::Yes),
            (
                "to another lock",
                s3("a"),
                backend_inputs(
                    "s3",
                    &json!({"bucket": "b", "key": "a", "dynamodb_table": "t"}),
                ),
                Migration::No,
            ),
            (
                "to another kind",
                s3("a"),
                backend_inputs("gcs", &json!({"bucket": "b", "prefix": "a"})),
                Migration::Yes,
            ),
            (
                "to another server",
                backend_inputs("http", &json!({"address": "a"})),
                backend_inputs("http", &json!({"address": "b"})),
                Migration::Yes,
            ),
            (
                "to another workspace",
                s3("a"),
                staging(s3("a")),
                Migration::Yes,
            ),
            (
                "within a workspace",
                staging(s3("a")),
                staging(s3("a")),
                Migration::No,
            ),
            (
                "to another workspace at an unknown address",
                backend_inputs("pg", &json!({})),
                staging(backend_inputs("pg", &json!({}))),
                Migration::Yes,
            ),
            (
                "to another workspace within the module",
                own(None),
                staging(own(None)),
                Migration::Yes,
            ),
            ("into Secrets", s3("a"), managed(), Migration::Yes),
            ("out of Secrets", managed(), s3("a"), Migration::Yes),
            ("within Secrets", managed(), managed(), Migration::No),
            (
                "out of Secrets into the module",
                managed(),
                own(None),
                Migration::Yes,
            ),
            (
                "out of the module into Secrets",
                own(None),
                managed(),
                Migration::Yes,
            ),
            ("into the module", s3("a"), own(None), Migration::Unknown),
            (
                "out of the module",
                own(Some("s3")),
                s3("a"),
                Migration::Unknown,
            ),
            (
                "within the module",
                own(None),
                own(None),
                Migration::Unknown,
            ),
        ];
        for (name, from, to, wanted) in table {
            assert_eq!(migration(&from, &to), wanted, "{name}");
        }
    }

    #[test]
    fn state_location_has_a_display_name() {
        assert_eq!(location(&s3("a/b")), "s3://b/a/b");
        assert_eq!(location(&managed()), "Secret web-state");
        assert_eq!(location(&own(None)), "the module's own backend");
        assert_eq!(location(&staging(s3("a"))), "s3://b/env:/staging/a");
        assert_eq!(
            location(&staging(own(None))),
            "workspace staging of the module's own backend"
        );
    }
}
