//! Registry client of a build, and credentials for the images that it pulls and pushes.

use std::fs;
use std::path::Path;

use alustan_api::report::{Failure, FailureClass};
use alustan_registry::{Access, DockerConfig, ImageRef, Options, Registry};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD_NO_PAD;
use serde_json::Value;

use crate::certificates;
use crate::failure::{chain, failure};
use crate::paths::Vars;

/// Creates the registry client from environment variables.
pub(super) fn registry(vars: &Vars) -> Result<Registry, Failure> {
    let insecure = vars.get("ALUSTAN_INSECURE_REGISTRIES");
    let insecure = insecure.iter().flat_map(|hosts| hosts.split(','));
    let options = Options {
        insecure_hosts: insecure
            .map(str::trim)
            .filter(|host| !host.is_empty())
            .map(str::to_owned)
            .collect(),
        ca_pem: Vec::from_iter(vars.get(certificates::BUNDLE).cloned()),
        ..Options::default()
    };
    Registry::new(options).map_err(|error| of_registry(&error))
}

/// Returns the credentials for `image`. `own`: registry to which the build pushes. The credential helper is used only for images in `own`.
/// For images in other registries, the credentials come from the docker configuration, or the access is anonymous.
pub(super) fn access(image: &ImageRef, own: &str, vars: &Vars) -> Result<Access, Failure> {
    let same = image.name().registry() == own;
    let helper = vars.get("ALUSTAN_CREDENTIAL_HELPER").filter(|_| same);
    let config = configuration(vars)
        .map(|bytes| DockerConfig::parse(&bytes))
        .transpose()
        .map_err(|error| of_registry(&error))?;
    let login = config.as_ref().map(|config| config.open(image.name()));
    let credential = match login.transpose() {
        Err(error) if same && helper.is_none() => return Err(of_registry(&error)),
        login => login.ok().flatten().flatten().cloned(),
    };
    Ok(Access {
        credential,
        helper: helper.cloned(),
        ..Access::default()
    })
}

/// Reads the docker configuration that is mounted in the container.
fn configuration(vars: &Vars) -> Option<Vec<u8>> {
    let folder = Path::new(vars.get("DOCKER_CONFIG")?);
    fs::read(folder.join("config.json")).ok()
}

/// Returns the secret values of all entries in the mounted docker configuration, both in the key `auths` and, in the legacy format, at the
/// top level.
pub(super) fn secrets(vars: &Vars) -> Vec<String> {
    let root = configuration(vars).and_then(|bytes| serde_json::from_slice::<Value>(&bytes).ok());
    root.as_ref().map(of_value).unwrap_or_default()
}

fn of_value(value: &Value) -> Vec<String> {
    let Value::Object(fields) = value else {
        return Vec::new();
    };
    fields
        .iter()
        .flat_map(|(name, value)| match (name.as_str(), value) {
            ("auth", Value::String(auth)) => of_auth(auth),
            ("password" | "identitytoken" | "registrytoken", Value::String(secret)) => {
                vec![secret.clone()]
            }
            _ => of_value(value),
        })
        .collect()
}

/// Returns `auth` unchanged, its decoded form `user:password`, and the password alone. Zero bytes at the end are removed, because old
/// versions of Docker padded the entry.
fn of_auth(auth: &str) -> Vec<String> {
    let plain: String = auth.split_whitespace().collect();
    let bytes = STANDARD_NO_PAD.decode(plain.trim_end_matches('=')).ok();
    let text = bytes.map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
    let user = text.as_deref().map(|text| text.trim_end_matches('\0'));
    let password = user.and_then(|user| Some(user.split_once(':')?.1));
    let forms = [Some(auth), user, password];
    forms.into_iter().flatten().map(str::to_owned).collect()
}

/// Converts a registry error to a failure. The user must resolve an invalid image name, and credentials that are invalid or that the
/// registry refuses. Other errors that are not transient are retried within `retry.limit` (rule 10), because the next attempt may succeed.
pub(super) fn of_registry(error: &alustan_registry::Error) -> Failure {
    use alustan_registry::{Error, Failure as Refused};
    let class = match error {
        Error::InvalidImageName { .. }
        | Error::InvalidCredentials { .. }
        | Error::Request {
            failure: Refused::Unauthorized | Refused::Forbidden,
            ..
        } => FailureClass::User,
        Error::UploadFile { .. } => FailureClass::Transient,
        error if error.is_transient() => FailureClass::Transient,
        _ => FailureClass::Module,
    };
    failure(class, error.reason(), chain(error))
}

#[cfg(test)]
mod tests {
    use base64::engine::general_purpose::STANDARD;
    use rstest::rstest;
    use serde_json::json;

    use super::*;
    use crate::secrets::redact::Redactor;

    /// Returns `text` with masked secret values, for a container with the docker configuration `config`.
    fn printed(config: &str, text: &str) -> String {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("config.json"), config).unwrap();
        let path = folder.path().display().to_string();
        let vars = Vars::from([("DOCKER_CONFIG".to_owned(), path)]);
        Redactor::new(secrets(&vars)).text(text)
    }

    #[rstest]
    #[case::raw(&STANDARD.encode("me:hunter22"))]
    #[case::decoded("me:hunter22")]
    #[case::password_of_auth("hunter22")]
    #[case::password("swordfish")]
    #[case::identity("identity-token-1")]
    #[case::bearer("registry-token-1")]
    fn secrets_of_a_docker_configuration_are_masked(#[case] secret: &str) {
        let auths = json!({
            "a.test": {"auth": STANDARD.encode("me:hunter22")},
            "b.test": {"username": "somebody", "password": "swordfish"},
            "c.test": {"identitytoken": "identity-token-1", "registrytoken": "registry-token-1"},
        });
        let username = format!("as somebody: {secret} is refused");
        for config in [json!({"auths": auths}), auths] {
            let printed = printed(&config.to_string(), &username);
            assert_eq!(printed, "as somebody: (redacted) is refused");
        }
    }

    #[rstest]
    #[case::no_json("{")]
    #[case::no_object("[]")]
    #[case::no_base64(r#"{"auths": {"a.test": {"auth": "%"}}}"#)]
    fn unreadable_docker_configuration_has_no_secrets(#[case] config: &str) {
        assert_eq!(printed(config, "nothing is secret"), "nothing is secret");
        assert!(secrets(&Vars::new()).is_empty());
    }
}
