//! Where a state is, as far as it can be told from what the runner is told: whether it moves.

use alustan_api::run::BackendInputs;
use serde_json::Value;

/// Which values of a backend's configuration say where its state is; none of them is secret.
const PLACES: &[(&str, &[&str])] = &[
    ("s3", &["bucket", "key"]),
    ("gcs", &["bucket", "prefix"]),
    (
        "azurerm",
        &["storage_account_name", "container_name", "key"],
    ),
    ("kubernetes", &["namespace", "secret_suffix"]),
    ("local", &["path"]),
    ("consul", &["path"]),
    ("pg", &["schema_name"]),
    ("cos", &["bucket", "prefix", "key"]),
    ("oss", &["bucket", "prefix", "key"]),
];

/// Which values of the configuration of a backend of type `kind` say where its state is; none
/// where that is unknown.
pub(crate) fn names(kind: &str) -> &'static [&'static str] {
    let found = PLACES.iter().find(|(name, _)| *name == kind);
    found.map_or(&[], |(_, names)| names)
}

/// Whether a state moves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Move {
    /// It stays where it is.
    No,
    /// To another place.
    Yes,
    /// The engine knows: a part of the configuration is the module's own.
    Unknown,
}

/// Whether a state moves from one backend to another.
pub fn step(from: &BackendInputs, to: &BackendInputs) -> Move {
    let is_told = |backend: &BackendInputs| backend.write_block;
    let moves = match (&from.managed, &to.managed) {
        (Some(from), Some(to)) => from.pointer != to.pointer,
        (Some(_), None) | (None, Some(_)) => true,
        (None, None) if !is_told(from) || !is_told(to) => return Move::Unknown,
        (None, None) => from.kind != to.kind || values(from) != values(to),
    };
    if moves { Move::Yes } else { Move::No }
}

/// What tells the place of a state: of kinds that nobody knows, everything may.
fn values(backend: &BackendInputs) -> Vec<(&str, &Value)> {
    let names = names(backend.kind.as_deref().unwrap_or_default());
    let all = backend
        .config
        .iter()
        .map(|(name, value)| (name.as_str(), value));
    all.filter(|(name, _)| names.is_empty() || names.contains(name))
        .collect()
}

/// The place of a state as people read it: `s3://bucket/key`.
pub fn place(backend: &BackendInputs) -> String {
    if let Some(managed) = &backend.managed {
        return format!("Secret {}", managed.pointer);
    }
    let Some(kind) = backend.kind.as_deref() else {
        return "the module's own backend".to_owned();
    };
    let values = names(kind).iter();
    let values: Vec<_> = values
        .filter_map(|name| backend.config.get(*name)?.as_str())
        .collect();
    format!("{kind}://{}", values.join("/"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use alustan_api::run::ManagedState;
    use serde_json::json;
    use std::collections::BTreeMap;

    fn told(kind: &str, config: &Value) -> BackendInputs {
        BackendInputs {
            kind: Some(kind.to_owned()),
            write_block: true,
            config: serde_json::from_value(config.clone()).unwrap(),
            environment: BTreeMap::new(),
            managed: None,
        }
    }

    fn s3(key: &str) -> BackendInputs {
        told(
            "s3",
            &json!({"bucket": "b", "key": key, "region": "us-east-1"}),
        )
    }

    fn managed() -> BackendInputs {
        BackendInputs {
            managed: Some(ManagedState {
                pointer: "web-state".to_owned(),
                slots: Vec::new(),
            }),
            ..told("http", &json!({}))
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
    fn a_state_moves_where_its_place_changes() {
        let table = [
            ("nowhere", s3("a"), s3("a"), Move::No),
            ("to another key", s3("a"), s3("b"), Move::Yes),
            (
                "to another lock",
                s3("a"),
                told(
                    "s3",
                    &json!({"bucket": "b", "key": "a", "dynamodb_table": "t"}),
                ),
                Move::No,
            ),
            (
                "to another kind",
                s3("a"),
                told("gcs", &json!({"bucket": "b", "prefix": "a"})),
                Move::Yes,
            ),
            (
                "to another server",
                told("http", &json!({"address": "a"})),
                told("http", &json!({"address": "b"})),
                Move::Yes,
            ),
            ("into Secrets", s3("a"), managed(), Move::Yes),
            ("out of Secrets", managed(), s3("a"), Move::Yes),
            ("within Secrets", managed(), managed(), Move::No),
            (
                "out of Secrets into the module",
                managed(),
                own(None),
                Move::Yes,
            ),
            (
                "out of the module into Secrets",
                own(None),
                managed(),
                Move::Yes,
            ),
            ("into the module", s3("a"), own(None), Move::Unknown),
            ("out of the module", own(Some("s3")), s3("a"), Move::Unknown),
            ("within the module", own(None), own(None), Move::Unknown),
        ];
        for (name, from, to, wanted) in table {
            assert_eq!(step(&from, &to), wanted, "{name}");
        }
    }

    #[test]
    fn a_place_has_a_name_for_people() {
        assert_eq!(place(&s3("a/b")), "s3://b/a/b");
        assert_eq!(place(&managed()), "Secret web-state");
        assert_eq!(place(&own(None)), "the module's own backend");
    }
}
