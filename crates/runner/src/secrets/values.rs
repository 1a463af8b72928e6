//! Determines which values are secret and never printed (rule 15).
//!
//! The origin of a value determines whether it is secret: a Secret, the credentials of the backend, a variable that the module marks as
//! sensitive, the user information of a URL. The origin of environment variables from the settings of the operator is not known, so the
//! name of the variable determines whether the value is secret.
//!
//! Values of fewer than four bytes are not masked: they occur by chance in many places of the log, and the masked places would reveal the
//! values. Words like `true` in environment variables are not masked either. The text `user:password` in a URL is also masked as a whole,
//! so that a password of fewer than four bytes is not visible in the URL.

use std::collections::{BTreeMap, BTreeSet};

use alustan_api::run::{BackendInputs, OwnBackend, RunInputs};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::Value;

use crate::module::declarations::Declared;
use crate::module::variables::{Values, texts};
use crate::paths::Vars;

/// Values of environment variables that are not masked, even if the variable comes from a Secret.
const PLAIN: &[&str] = &["true", "false", "null", "none"];

/// Minimum length of a user name that is masked if the URL contains no password, in bytes: a long user name may be a token.
const MIN_TOKEN_BYTES: usize = 8;

/// Returns all known secret values: credentials of the backend and of the pod, the password of the HTTP server for the managed state, and
/// the values of variables that come from Secrets or that the module marks as sensitive.
pub fn of_run(
    inputs: &RunInputs,
    container: &Vars,
    server: &Vars,
    values: &Values,
    declared: &BTreeMap<String, Declared>,
) -> Vec<String> {
    let backends = std::iter::once(&inputs.backend).chain(&inputs.migrate);
    let mut secrets: Vec<String> = backends.flat_map(of_backend).collect();
    secrets.extend(server.get("TF_HTTP_PASSWORD").cloned());
    secrets.extend(of_environment(container, &inputs.secret_environment));
    let given = inputs.environment.keys().cloned().collect();
    secrets.extend(of_environment(&inputs.environment, &given));
    let secret = |name: &str| {
        declared
            .get(name)
            .is_some_and(|declared| declared.sensitive)
            || inputs.secret_variables.contains(name)
    };
    secrets.extend(texts(values, secret));
    secrets
}

/// Returns the secret values in the backend block of the module: values of arguments whose names indicate a credential, and the user
/// information in URLs.
pub fn of_own_backend(backend: &OwnBackend) -> Vec<String> {
    let fields = backend.config.iter();
    fields
        .flat_map(|(name, value)| of_field(name, value))
        .collect()
}

fn of_field(name: &str, value: &Value) -> Vec<String> {
    match value {
        Value::String(text) => {
            let whole = looks_secret(name, text).then(|| text.clone());
            whole.into_iter().chain(of_urls("", text)).collect()
        }
        Value::Object(fields) => fields
            .iter()
            .flat_map(|(name, value)| of_field(name, value))
            .collect(),
        Value::Array(items) => items.iter().flat_map(|item| of_field(name, item)).collect(),
        Value::Null | Value::Bool(_) | Value::Number(_) => Vec::new(),
    }
}

/// Returns the secret values in the inputs of a backend, and the user information in URLs.
fn of_backend(backend: &BackendInputs) -> Vec<String> {
    let (environment, config) = (&backend.environment, &backend.secret_config);
    let values = environment.values().chain(config.values());
    values
        .flat_map(|value| std::iter::once(value.clone()).chain(of_urls("", value)))
        .collect()
}

/// Returns the secret values in the environment of a container: variables in `from_secrets`, variables whose name indicates a credential,
/// and the user information in URLs.
pub fn of_environment(container: &Vars, from_secrets: &BTreeSet<String>) -> Vec<String> {
    let mut secrets = Vec::new();
    for (name, value) in container {
        let from_secret = from_secrets.contains(name) && !is_plain(value);
        if from_secret || looks_secret(name, value) {
            secrets.push(value.clone());
        }
        secrets.extend(of_urls(name, value));
    }
    secrets
}

fn is_plain(value: &str) -> bool {
    PLAIN
        .iter()
        .any(|word| value.trim().eq_ignore_ascii_case(word))
}

/// Whether the name of an environment variable or of a backend argument indicates a credential. False for values of fewer than eight bytes,
/// and for values that are absolute paths.
fn looks_secret(name: &str, value: &str) -> bool {
    const WORDS: &[&str] = &[
        "SECRET",
        "TOKEN",
        "PASSWORD",
        "PASSWD",
        "PRIVATE_KEY",
        "CREDENTIAL",
        "API_KEY",
        "ACCESS_KEY",
    ];
    let name = name.to_ascii_uppercase();
    let named = WORDS.iter().any(|word| name.contains(word)) && !name.ends_with("_FILE");
    named && value.len() >= 8 && !value.starts_with('/')
}

/// Returns the user information of all URLs in `value`. The URL of a proxy may have no scheme.
fn of_urls(name: &str, value: &str) -> Vec<String> {
    let proxy = name.to_ascii_uppercase().ends_with("_PROXY");
    let skipped = usize::from(!proxy || value.contains("://"));
    value
        .split("://")
        .skip(skipped)
        .filter_map(|rest| {
            let end = rest.find(['/', '?', '#', ' ', '\n', '"', '\'']);
            let (user, _) = rest.get(..end.unwrap_or(rest.len()))?.rsplit_once('@')?;
            Some(of_user(user))
        })
        .flatten()
        .collect()
}

/// Returns the forms of the user information `user:password`: as in the URL, decoded, in base64 as in Basic authentication, and the
/// password alone. Without a password, returns the user name if it has at least [`MIN_TOKEN_BYTES`] bytes.
fn of_user(user: &str) -> Vec<String> {
    let Some((_, password)) = user.split_once(':') else {
        let token = Some(user).filter(|user| user.len() >= MIN_TOKEN_BYTES);
        return token.map(str::to_owned).into_iter().collect();
    };
    let decoded = without_escapes(user);
    vec![
        user.to_owned(),
        STANDARD.encode(&decoded),
        decoded,
        password.to_owned(),
        without_escapes(password),
    ]
}

/// Decodes percent-encoded bytes (`%XX`).
fn without_escapes(text: &str) -> String {
    let mut parts = text.split('%');
    let mut bytes = parts.next().unwrap_or_default().as_bytes().to_vec();
    for part in parts {
        let byte = part
            .get(..2)
            .and_then(|digits| u8::from_str_radix(digits, 16).ok());
        match (byte, part.get(2..)) {
            (Some(byte), Some(rest)) => {
                bytes.push(byte);
                bytes.extend(rest.as_bytes());
            }
            _ => bytes.extend(format!("%{part}").into_bytes()),
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::secrets::redact::Redactor;
    use rstest::rstest;

    /// Returns `text` with masked secret values if the environment variable `name` has `value`.
    fn printed(name: &str, value: &str, from_secret: bool, text: &str) -> String {
        let vars = Vars::from([(name.to_owned(), value.to_owned())]);
        let named = from_secret.then(|| name.to_owned()).into_iter().collect();
        Redactor::new(of_environment(&vars, &named)).text(text)
    }

    #[rstest]
    #[case("PGUSER", "alice", true, "as (redacted)")]
    #[case("PGUSER", "alice", false, "as alice")]
    #[case("PIN", "1234", true, "as (redacted)")]
    #[case("PIN", "123", true, "as 123")]
    #[case("KUBE_INSECURE", "true", true, "as true")]
    #[case("DB_PASSWORD", "long-enough", false, "as (redacted)")]
    #[case("DB_PASSWORD_FILE", "long-enough", false, "as long-enough")]
    #[case("DB_PASSWORD_FILE", "long-enough", true, "as (redacted)")]
    fn value_from_a_secret_is_masked_regardless_of_name(
        #[case] name: &str,
        #[case] value: &str,
        #[case] from_secret: bool,
        #[case] wanted: &str,
    ) {
        assert_eq!(
            printed(name, value, from_secret, &format!("as {value}")),
            wanted
        );
    }

    #[rstest]
    #[case::in_url("http://me:p%40ssword@proxy:3128", "http://(redacted)@proxy:3128")]
    #[case::password("refused: p%40ssword", "refused: (redacted)")]
    #[case::decoded("refused: p@ssword", "refused: (redacted)")]
    #[case::basic_authorization("Basic bWU6cEBzc3dvcmQ=", "Basic (redacted)")]
    #[case::user("me at proxy:3128", "me at proxy:3128")]
    fn the_password_of_a_proxy_is_masked_in_every_form(#[case] text: &str, #[case] wanted: &str) {
        for value in [
            "http://me:p%40ssword@proxy:3128",
            "me:p%40ssword@proxy:3128",
        ] {
            assert_eq!(printed("https_proxy", value, false, text), wanted);
        }
    }

    #[rstest]
    #[case("HTTP_PROXY", "http://proxy:3128", "http://proxy:3128")]
    #[case("HTTP_PROXY", "http://me:pw@proxy", "http://(redacted)@proxy")]
    #[case("REPOSITORY", "ssh://git@host/x", "ssh://git@host/x")]
    #[case("REPOSITORY", "https://ghp_0123@host/x", "https://(redacted)@host/x")]
    #[case(
        "MIRRORS",
        "https://a/b@c,https://u:pass@d/",
        "https://a/b@c,https://(redacted)@d/"
    )]
    #[case("ADDRESS", "me:word@host", "me:word@host")]
    #[case("BROKEN", "http://u:%zz%4@h", "http://(redacted)@h")]
    fn url_credentials_are_masked_except_plain_user_names(
        #[case] name: &str,
        #[case] value: &str,
        #[case] wanted: &str,
    ) {
        assert_eq!(printed(name, value, false, value), wanted);
    }
}
