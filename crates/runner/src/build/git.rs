//! Credentials of the git repository, for remote modules that the engine fetches with git.
//!
//! Only the container of `init` mounts the Secret with the credentials. The runner writes the credentials to `/tmp`, which the containers
//! of a build do not share. It removes the credentials before it collects the content of the image.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use alustan_api::report::{Failure, FailureClass};
use alustan_source::{GitAccess, HttpsCredentials, RepositoryUrl, SecretBytes, SecretString};

use super::leak::{MIN_MARK_BYTES, Mark};
use crate::failure::{chain, failure};
use crate::paths::Vars;

/// Environment variable with CA certificates (PEM) from `spec.gitRepo`.
pub(super) const BUNDLE: &str = "ALUSTAN_GIT_CA_BUNDLE";
/// Placeholder for the URL of the repository. The operator sets the URL only if the repository has credentials.
const NOBODY: &str = "https://localhost/none";

/// Credentials for git. Does not implement `Debug`, so that the credentials cannot be printed.
pub(super) struct GitCredentials {
    url: String,
    credentials: alustan_source::Credentials,
}

impl GitCredentials {
    /// Reads the credentials in the mounted Secret.
    pub(super) fn read(vars: &Vars) -> Self {
        let folder = vars.get("ALUSTAN_GIT_CREDENTIALS").map(Path::new);
        let bytes = |name: &str| fs::read(folder?.join(name)).ok();
        let text = |name: &str| Some(String::from_utf8_lossy(&bytes(name)?).into_owned());
        let own = vars.get(BUNDLE).cloned();
        let authorities: Vec<String> = own.into_iter().chain(text("ca.crt")).collect();
        let credentials = alustan_source::Credentials {
            ssh_key: bytes("ssh-key").map(SecretBytes::new),
            known_hosts: text("known_hosts"),
            https: text("password").map(|password| HttpsCredentials {
                username: SecretString::new(text("username").unwrap_or_else(|| "git".to_owned())),
                password: SecretString::new(password),
            }),
            ca_bundle: (!authorities.is_empty()).then(|| authorities.join("\n")),
            identity: None,
        };
        let url = vars.get("ALUSTAN_GIT_URL").cloned();
        Self {
            url: url.unwrap_or_else(|| NOBODY.to_owned()),
            credentials,
        }
    }

    /// Returns the credential values that must not be printed.
    pub(super) fn secrets(&self) -> Vec<String> {
        let key = self.credentials.ssh_key.as_ref();
        let key = key.map(|key| String::from_utf8_lossy(key.expose()).into_owned());
        let password = self.credentials.https.as_ref();
        let password = password.map(|https| https.password.expose().to_owned());
        key.into_iter().chain(password).collect()
    }

    /// Returns marks: the longest line of the password and the longest line of the ssh key. A line with fewer than [`MIN_MARK_BYTES`] bytes is
    /// omitted.
    pub(super) fn marks(&self) -> Vec<Mark> {
        self.secrets()
            .iter()
            .filter_map(|secret| {
                let lines = secret.lines().filter(|line| !line.starts_with("-----"));
                lines.max_by_key(|line| line.len())
            })
            .map(|line| line.trim().to_owned())
            .filter(|line| line.len() >= MIN_MARK_BYTES)
            .map(|text| Mark {
                origin: "the credentials in spec.gitRepo".to_owned(),
                text,
            })
            .collect()
    }

    /// Writes credentials and CA bundle to files that git processes read. Returns `None` if there are neither credentials nor a CA bundle.
    /// `environment`: environment variables of the git processes. The CA certificates to which the variables refer are added to the CA
    /// bundle.
    pub(super) fn open(&self, environment: &Vars) -> Result<Option<GitAccess>, Failure> {
        let credentials = &self.credentials;
        if credentials.ssh_key.is_none()
            && credentials.https.is_none()
            && credentials.ca_bundle.is_none()
        {
            return Ok(None);
        }
        let names: BTreeMap<String, String> = environment.clone().into_iter().collect();
        let url = RepositoryUrl::parse(&self.url);
        let access =
            url.and_then(|url| GitAccess::open(&std::env::temp_dir(), &url, credentials, &names));
        access.map(Some).map_err(|error| {
            let class = if error.is_transient() {
                FailureClass::Transient
            } else {
                FailureClass::User
            };
            failure(
                class,
                error.reason(),
                format!("spec.gitRepo: {}", chain(&error)),
            )
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn vars(folder: &Path, files: &[(&str, &str)]) -> Vars {
        for (name, text) in files {
            fs::write(folder.join(name), text).unwrap();
        }
        Vars::from([
            (
                "ALUSTAN_GIT_CREDENTIALS".to_owned(),
                folder.display().to_string(),
            ),
            ("ALUSTAN_GIT_URL".to_owned(), "https://host/o/r".to_owned()),
        ])
    }

    #[test]
    fn git_credentials_reach_git_and_are_listed_as_secret() {
        let folder = tempfile::tempdir().unwrap();
        let key = "-----BEGIN PRIVATE KEY-----\nAA==\n-----END PRIVATE KEY-----";
        let files = [
            ("ssh-key", key),
            ("known_hosts", "host k"),
            ("password", "hunter22"),
        ];
        let mut vars = vars(folder.path(), &files);
        vars.insert(BUNDLE.to_owned(), "OWN".to_owned());
        let credentials = GitCredentials::read(&vars);
        assert_eq!(credentials.secrets(), [key, "hunter22"]);
        let access = credentials.open(&Vars::new()).unwrap().unwrap();
        let environment = access.environment();
        assert!(environment["GIT_SSH_COMMAND"].starts_with("ssh "));
        let authorities = fs::read_to_string(&environment["GIT_SSL_CAINFO"]).unwrap();
        assert!(authorities.ends_with("\nOWN\n"));
        let store = environment["GIT_CONFIG_VALUE_1"]
            .strip_prefix("store --file=")
            .unwrap();
        assert_eq!(
            fs::read_to_string(store).unwrap(),
            "https://git:hunter22@host\n"
        );
    }

    #[test]
    fn long_passwords_and_key_lines_are_leak_markers() {
        let marks = |key: &str, password: &str| {
            let folder = tempfile::tempdir().unwrap();
            let files = [("ssh-key", key), ("password", password)];
            let marks = GitCredentials::read(&vars(folder.path(), &files)).marks();
            let texts: Vec<_> = marks.into_iter().map(|mark| mark.text).collect();
            texts
        };
        let key = "-----BEGIN PRIVATE KEY-----\nMIIEvQIBADAN\nBg==\n-----END PRIVATE KEY-----\n";
        let wanted = ["MIIEvQIBADAN", "glpat-0123456789"];
        assert_eq!(marks(key, "glpat-0123456789\n"), wanted);
        let empty = "-----BEGIN PRIVATE KEY-----\n-----END PRIVATE KEY-----\n";
        assert!(marks(empty, "hunter22").is_empty());
    }

    #[test]
    fn missing_git_credentials_set_no_environment() {
        let folder = tempfile::tempdir().unwrap();
        assert!(
            GitCredentials::read(&Vars::new())
                .open(&Vars::new())
                .unwrap()
                .is_none()
        );
        let vars = vars(folder.path(), &[]);
        assert!(
            GitCredentials::read(&vars)
                .open(&Vars::new())
                .unwrap()
                .is_none()
        );
    }

    #[test]
    fn invalid_ssh_key_is_a_user_failure() {
        let folder = tempfile::tempdir().unwrap();
        let vars = vars(folder.path(), &[("ssh-key", "hunter22")]);
        let failure = GitCredentials::read(&vars)
            .open(&Vars::new())
            .err()
            .unwrap();
        assert_eq!(
            (failure.class, failure.reason.as_str()),
            (FailureClass::User, "SshKeyInvalid")
        );
        assert!(!failure.message.contains("hunter22"));
    }
}
