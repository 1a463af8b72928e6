//! Tokens of registries of modules and providers (`spec.terraformRegistries`).
//!
//! Only the container of `init` mounts the tokens. `init` gets them as environment variables, which work for hosts with a port and for
//! internationalized hosts, and together with any CLI configuration: in `credentials` blocks, the engine refuses the ASCII form of
//! internationalized hosts.

use std::fs;
use std::path::Path;

use alustan_api::report::{Failure, MAX_TEXT};
use alustan_api::{Reason, parse_registry_token};

use super::leak::{MIN_MARK_BYTES, Mark};
use crate::failure::{cut, transient};
use crate::paths::Vars;

/// Prefix of the environment variables with which the engine gets tokens
/// (<https://developer.hashicorp.com/terraform/cli/config/config-file#environment-variable-credentials>).
const VARIABLE_PREFIX: &str = "TF_TOKEN_";

/// Tokens of registries. Does not implement `Debug`, so that the tokens cannot be printed.
pub(super) struct RegistryTokens(Vec<RegistryToken>);

struct RegistryToken {
    /// Host of the registry, with its port.
    host: String,
    /// Field of the resource, for messages.
    field: String,
    /// Content of the file with the token. `None` if the Secret does not have the key.
    bytes: Option<Vec<u8>>,
}

impl RegistryTokens {
    /// Reads the tokens in the mounted Secrets.
    pub(super) fn read(vars: &Vars) -> Self {
        let folder = vars.get("ALUSTAN_REGISTRY_TOKENS").map(Path::new);
        let hosts = vars.get("ALUSTAN_REGISTRY_HOSTS");
        let hosts = hosts.iter().flat_map(|hosts| hosts.split(','));
        let tokens = hosts.enumerate().map(|(index, host)| RegistryToken {
            host: host.to_owned(),
            field: format!("spec.terraformRegistries[{index}]"),
            bytes: folder.and_then(|folder| fs::read(folder.join(index.to_string())).ok()),
        });
        Self(tokens.collect())
    }

    /// Returns the tokens, which must not be printed.
    pub(super) fn secrets(&self) -> Vec<String> {
        let bytes = self.0.iter().filter_map(|token| token.bytes.as_deref());
        bytes
            .map(|bytes| String::from_utf8_lossy(bytes.trim_ascii()).into_owned())
            .collect()
    }

    /// Returns the environment variables with which the engine authenticates.
    ///
    /// # Errors
    /// If a token is invalid.
    pub(super) fn environment(&self) -> Result<Vars, Failure> {
        let mut environment = Vars::new();
        for RegistryToken { host, field, bytes } in &self.0 {
            let Some(bytes) = bytes else {
                crate::log!(
                    "{field}.secretRef: the Secret has no token for {host}; init runs without a token"
                );
                continue;
            };
            let token = parse_registry_token(bytes).map_err(|why| {
                transient(
                    Reason::TerraformTokenInvalid,
                    format!("{field}.secretRef: token for {host}: {why}"),
                )
            })?;
            environment.insert(variable(host), token.to_owned());
        }
        Ok(environment)
    }

    /// Returns a mark for each token of at least [`MIN_MARK_BYTES`] bytes.
    pub(super) fn marks(&self) -> Vec<Mark> {
        let tokens = self.0.iter().filter_map(|token| {
            let text = parse_registry_token(token.bytes.as_deref()?).ok()?;
            (text.len() >= MIN_MARK_BYTES).then(|| Mark {
                origin: format!("the token in {} ({})", token.field, token.host),
                text: text.to_owned(),
            })
        });
        tokens.collect()
    }

    /// Adds, to a failure with reason `TerraformRegistryUnauthorized`, the field with the token that the registry refused.
    pub(super) fn explain(&self, failure: Failure) -> Failure {
        if failure.reason != Reason::TerraformRegistryUnauthorized {
            return failure;
        }
        let named = self
            .0
            .iter()
            .find(|token| names(&failure.message, &token.host));
        let advice = match named {
            Some(RegistryToken { host, field, bytes: Some(_) }) => format!(
                "{field}.secretRef: registry {host} refused the token; update the Secret, or grant the token access"
            ),
            Some(RegistryToken { host, field, bytes: None }) => {
                format!("{field}.secretRef: registry {host} requires a token, and the Secret has none; add it")
            }
            None => "a registry requires a token; add its host and a Secret with the token to spec.terraformRegistries".to_owned(),
        };
        let room = MAX_TEXT.saturating_sub(advice.chars().count() + 2);
        Failure {
            message: format!("{advice}: {}", cut(&failure.message, room)),
            ..failure
        }
    }
}

/// Whether `message` contains `host` as a whole word.
fn names(message: &str, host: &str) -> bool {
    let is_part = |byte: u8| byte.is_ascii_alphanumeric() || b"-.:".contains(&byte);
    message.match_indices(host).any(|(at, _)| {
        let before = message.get(..at).and_then(|text| text.bytes().next_back());
        let mut rest = message.get(at + host.len()..).unwrap_or_default().bytes();
        // A colon or a full stop may follow the host in a sentence.
        let after = match (rest.next(), rest.next()) {
            (Some(b':' | b'.'), next) => next.filter(|byte| is_part(*byte)),
            (byte, _) => byte.filter(|byte| is_part(*byte)),
        };
        !before.is_some_and(is_part) && after.is_none()
    })
}

/// Returns the name of the environment variable with the token of `host`.
fn variable(host: &str) -> String {
    let name = host.replace('-', "__").replace('.', "_");
    format!("{VARIABLE_PREFIX}{name}")
}

#[cfg(test)]
mod tests {
    use alustan_api::report::FailureClass;

    use super::*;
    use crate::failure::failure;

    /// Returns the tokens of hosts, each with the content of its file.
    fn tokens(entries: &[(&str, Option<&str>)]) -> RegistryTokens {
        let folder = tempfile::tempdir().unwrap();
        for (index, (_, token)) in entries.iter().enumerate() {
            if let Some(token) = token {
                fs::write(folder.path().join(index.to_string()), token).unwrap();
            }
        }
        let hosts: Vec<_> = entries.iter().map(|(host, _)| *host).collect();
        RegistryTokens::read(&Vars::from([
            (
                "ALUSTAN_REGISTRY_TOKENS".to_owned(),
                folder.path().display().to_string(),
            ),
            ("ALUSTAN_REGISTRY_HOSTS".to_owned(), hosts.join(",")),
        ]))
    }

    #[test]
    fn token_variables_encode_the_host() {
        let tokens = tokens(&[
            ("my-registry.example.com:8443", Some("token-1\n")),
            ("xn--80akhbyknj4f.test", Some("token-2")),
            ("absent.test", None),
        ]);
        let wanted = [
            ("TF_TOKEN_my__registry_example_com:8443", "token-1"),
            ("TF_TOKEN_xn____80akhbyknj4f_test", "token-2"),
        ];
        let wanted = wanted.map(|(name, token)| (name.to_owned(), token.to_owned()));
        assert_eq!(tokens.environment(), Ok(wanted.into()));
        assert_eq!(tokens.secrets(), ["token-1", "token-2"]);
        let none = RegistryTokens::read(&Vars::new());
        assert_eq!(none.environment(), Ok(Vars::new()));
        assert!(none.secrets().is_empty() && none.marks().is_empty());
    }

    #[test]
    fn invalid_token_is_reported_without_its_value() {
        let tokens = tokens(&[("a.test", Some("first second"))]);
        let failure = tokens.environment().unwrap_err();
        assert_eq!(failure.reason, Reason::TerraformTokenInvalid);
        assert!(
            failure
                .message
                .starts_with("spec.terraformRegistries[0].secretRef: token for a.test: ")
        );
        assert!(!failure.message.contains("second"));
    }

    #[test]
    fn only_long_tokens_are_leak_markers() {
        let tokens = tokens(&[
            ("a.test", Some("short")),
            ("b.test", Some("0123456789ab\n")),
        ]);
        let marks: Vec<_> = tokens.marks().into_iter().map(|mark| mark.text).collect();
        assert_eq!(marks, ["0123456789ab"]);
    }

    #[test]
    fn refused_token_is_reported_with_its_field() {
        let tokens = tokens(&[
            ("test", Some("x")),
            ("a.test", Some("x")),
            ("a.test:8443", Some("x")),
            ("b.test", None),
        ]);
        let explained = |message: &str| {
            let refused = failure(
                FailureClass::Module,
                Reason::TerraformRegistryUnauthorized,
                message,
            );
            tokens.explain(refused).message
        };
        for (message, start) in [
            (
                "from\na.test:8443: error looking up",
                "spec.terraformRegistries[2].secretRef: registry a.test:8443 refused the token",
            ),
            (
                "from a.test: error looking up",
                "spec.terraformRegistries[1].secretRef: registry a.test refused the token",
            ),
            (
                "host b.test requires",
                "spec.terraformRegistries[3].secretRef: registry b.test requires a token, and the Secret has none",
            ),
            (
                "host c.test rejected",
                "a registry requires a token; add its host",
            ),
        ] {
            let explained = explained(message);
            assert!(explained.starts_with(start), "{explained}");
            assert!(explained.ends_with(message), "{explained}");
        }
        assert_eq!(explained(&"x".repeat(9_000)).chars().count(), MAX_TEXT);
        let other = failure(FailureClass::Module, Reason::InitFailed, "a.test");
        assert_eq!(tokens.explain(other.clone()), other);
    }
}
