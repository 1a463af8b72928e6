//! What is secret about a backend: it comes from a Secret, and stands nowhere in the resource.

use std::collections::BTreeMap;

use alustan_api::BackendSpec;
use serde_json::Value;

use crate::backend::{Backend, Environment, Invalid};

/// Parts of names that give a secret away.
const SECRET: &[&str] = &[
    "access_key",
    "client_key",
    "conn_str",
    "credential",
    "customer_key",
    "encryption_key",
    "password",
    "passwd",
    "private_key",
    "secret",
    "token",
];

/// A key that a service keeps is named, and not given.
const KEPT: &str = "kms";

/// Ends of names that say where a secret is, or which one, but not what it is.
const HARMLESS: &[&str] = &[
    "_arn", "_file", "_files", "_id", "_name", "_path", "_paths", "_suffix", "_url",
];

/// The environment of the engine, and the part of the backend block: names of variables are in
/// capitals, but those of proxies may be in lower case.
pub(crate) fn split(secret: Environment) -> (Environment, BTreeMap<String, String>) {
    let is_variable = |name: &str| name.ends_with("_proxy") || !is_argument(name);
    secret.into_iter().partition(|(name, _)| is_variable(name))
}

fn is_argument(name: &str) -> bool {
    let mut letters = name.bytes();
    letters.next().is_some_and(|it| it.is_ascii_lowercase())
        && letters.all(|it| it.is_ascii_lowercase() || it.is_ascii_digit() || it == b'_')
}

/// Refuses what `spec.config` must not have.
pub(crate) fn validate(backend: &dyn Backend, spec: &BackendSpec) -> Result<(), Invalid> {
    for (name, value) in &spec.config {
        let path = format!("config.{name}");
        if !is_argument(name) {
            let why = "is no argument of a backend block: lower case letters, digits and '_'";
            return Err(Invalid::new(path, why));
        }
        let field = backend.fields().iter().find(|(field, _)| field == name);
        if let Some((_, field)) = field {
            let why = format!("is what spec.backend.{field} is for: set that");
            return Err(Invalid::new(path, why));
        }
        refuse_secrets(&path, name, &value.0)?;
    }
    Ok(())
}

/// Refuses keys of the Secret that stand for something else already: what is in the resource would
/// not be what counts.
pub(crate) fn validate_keys(
    backend: &dyn Backend,
    spec: &BackendSpec,
    secret: &BTreeMap<String, String>,
) -> Result<(), Invalid> {
    for name in secret.keys() {
        let field = backend.fields().iter().find(|(field, _)| field == name);
        let field = field.map(|(_, field)| (*field).to_owned());
        let own = || {
            spec.config
                .contains_key(name)
                .then(|| format!("config.{name}"))
        };
        if let Some(field) = field.or_else(own) {
            let why = format!("its key {name} is what spec.backend.{field} is for: leave one out");
            return Err(Invalid::new("secretRef", why));
        }
    }
    Ok(())
}

fn refuse_secrets(path: &str, name: &str, value: &Value) -> Result<(), Invalid> {
    match value {
        Value::Object(fields) => fields
            .iter()
            .try_for_each(|(name, value)| refuse_secrets(&format!("{path}.{name}"), name, value)),
        Value::Array(items) => items
            .iter()
            .try_for_each(|item| refuse_secrets(path, name, item)),
        Value::String(text) if is_secret(name) || has_user(text) => Err(Invalid::new(
            path,
            "looks like a secret, and who may read the resource reads it: put it into the Secret \
             of spec.backend.secretRef, by this name or as the engine's environment variable for it",
        )),
        Value::String(_) | Value::Null | Value::Bool(_) | Value::Number(_) => Ok(()),
    }
}

fn is_secret(name: &str) -> bool {
    let name = name.to_ascii_lowercase();
    let harmless = name.contains(KEPT) || HARMLESS.iter().any(|end| name.ends_with(end));
    !harmless && SECRET.iter().any(|part| name.contains(part))
}

/// Whether a URL names its user.
fn has_user(text: &str) -> bool {
    let rest = text.split_once("://").map(|(_, rest)| rest);
    let authority = rest.and_then(|rest| rest.split(['/', '?', '#']).next());
    authority.is_some_and(|it| it.contains('@'))
}
