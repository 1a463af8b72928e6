//! Secret arguments of a backend. They come from `spec.backend.secretRef` and never appear in the resource.

use std::collections::BTreeMap;

use alustan_api::BackendSpec;
use serde_json::Value;

use crate::backend::{Backend, Environment, Invalid};

/// Substrings of argument names that mark a secret value.
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

/// Substring of the names of arguments for a key management service. The value of such an argument is the name of a key, not a secret.
const KEPT: &str = "kms";

/// Suffixes of argument names whose value is a reference to a secret, not the secret.
const HARMLESS: &[&str] = &[
    "_arn", "_file", "_files", "_id", "_name", "_path", "_paths", "_suffix", "_url",
];

/// Splits the Secret of `spec.backend.secretRef` into environment variables of the engine and arguments of the backend block. Names in
/// lower case are arguments, except `*_proxy`.
pub(crate) fn split(secret: Environment) -> (Environment, BTreeMap<String, String>) {
    let is_variable = |name: &str| name.ends_with("_proxy") || !is_argument(name);
    secret.into_iter().partition(|(name, _)| is_variable(name))
}

fn is_argument(name: &str) -> bool {
    let mut letters = name.bytes();
    letters
        .next()
        .is_some_and(|letter| letter.is_ascii_lowercase())
        && letters
            .all(|letter| letter.is_ascii_lowercase() || letter.is_ascii_digit() || letter == b'_')
}

/// Refuses an entry of `spec.config` if its name is not a valid argument name, if another field of `spec` sets the argument, or if its
/// value looks like a secret.
pub(crate) fn validate(backend: &dyn Backend, spec: &BackendSpec) -> Result<(), Invalid> {
    for (name, value) in &spec.config {
        let path = format!("config.{name}");
        if !is_argument(name) {
            let why = "is not an argument of a backend block: use lower case letters, digits and \
                       '_'";
            return Err(Invalid::new(path, why));
        }
        let field = backend.fields().iter().find(|(field, _)| field == name);
        if let Some((_, field)) = field {
            let why = format!("must not be set; set spec.backend.{field} instead");
            return Err(Invalid::new(path, why));
        }
        refuse(&path, name, &value.value())?;
    }
    Ok(())
}

/// Refuses backend arguments that both the Secret and the resource set: the Secret would silently override the resource.
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
            let why = format!(
                "key {name} of the Secret and spec.backend.{field} set the same argument; remove \
                 one of them"
            );
            return Err(Invalid::new("secretRef", why));
        }
    }
    Ok(())
}

/// Refuses a value of the argument `name` that looks like a secret. `path` is the field of `spec` with the value.
pub(crate) fn refuse(path: &str, name: &str, value: &Value) -> Result<(), Invalid> {
    match value {
        Value::Object(fields) => fields
            .iter()
            .try_for_each(|(name, value)| refuse(&format!("{path}.{name}"), name, value)),
        Value::Array(items) => items.iter().try_for_each(|item| refuse(path, name, item)),
        Value::String(text) if is_secret(name) || has_user(text) => Err(Invalid::new(
            path,
            "looks like a secret, and every user with read access to the resource can read it. \
             Move the value to the Secret of spec.backend.secretRef. As the key, use the name of \
             this argument, or of the environment variable that the engine reads for it",
        )),
        Value::String(_) | Value::Null | Value::Bool(_) | Value::Number(_) => Ok(()),
    }
}

fn is_secret(name: &str) -> bool {
    let name = name.to_ascii_lowercase();
    let harmless = name.contains(KEPT) || HARMLESS.iter().any(|end| name.ends_with(end));
    !harmless && SECRET.iter().any(|part| name.contains(part))
}

/// Whether a URL contains user information.
fn has_user(text: &str) -> bool {
    let rest = text.split_once("://").map(|(_, rest)| rest);
    let authority = rest.and_then(|rest| rest.split(['/', '?', '#']).next());
    authority.is_some_and(|authority| authority.contains('@'))
}
