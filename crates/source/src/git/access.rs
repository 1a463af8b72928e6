//! Access to private repositories for an engine, which calls git to fetch modules.

use std::{collections::BTreeMap, ffi::OsString, path::Path};

use tempfile::TempDir;

use super::session::{
    cache_error, line_for, private_folder, ssh_command, trusted_with, write_private,
};
use crate::{
    credentials::Credentials,
    error::Error,
    known_hosts, ssh_key,
    url::{RepositoryUrl, Scheme},
};

/// Private folder with credentials, and environment variables with which git uses the credentials. The folder is removed on drop.
pub struct GitAccess {
    _folder: TempDir,
    environment: BTreeMap<String, String>,
}

impl GitAccess {
    /// Writes `credentials` of `url` into a new folder in `root`. Git sends user name and password only to the host of `url`: over HTTPS, and over
    /// plain HTTP only if `url` uses plain HTTP. ssh offers the key to every host in `known_hosts`. Git continues to trust the certificates to
    /// which the variables in `environment` refer.
    ///
    /// # Errors
    /// If the ssh key is invalid, or if the folder cannot be written.
    pub fn open(
        root: &Path,
        url: &RepositoryUrl,
        credentials: &Credentials,
        environment: &BTreeMap<String, String>,
    ) -> Result<Self, Error> {
        let folder = private_folder(root)
            .map_err(|source| cache_error("create a private directory in", root, source))?;
        let write = |name: &str, bytes: &[u8]| {
            let path = folder.path().join(name);
            write_private(&path, bytes).map_err(|source| cache_error("write", &path, source))?;
            Ok::<_, Error>(path.display().to_string())
        };
        let mut variables = BTreeMap::from([("GIT_TERMINAL_PROMPT".to_owned(), "0".to_owned())]);
        if let Some(key) = &credentials.ssh_key {
            write("key", ssh_key::normalise(key)?.expose())?;
            let hosts = known_hosts::effective(credentials.known_hosts.as_deref());
            write("known_hosts", hosts.as_bytes())?;
            variables.insert("GIT_SSH_COMMAND".to_owned(), ssh_command(folder.path()));
        }
        if let Some(https) = &credentials.https {
            let mut lines = line_for(Scheme::Https, &authority(url, Scheme::Https), https);
            if url.scheme() == Scheme::Http {
                lines.push_str(&line_for(
                    Scheme::Http,
                    &authority(url, Scheme::Http),
                    https,
                ));
            }
            let file = write("credentials", lines.as_bytes())?;
            // The first value is empty, which removes the credential helpers of other git configuration.
            let settings = ["", &format!("store --file={file}")].map(str::to_owned);
            variables.insert("GIT_CONFIG_COUNT".to_owned(), settings.len().to_string());
            for (number, setting) in settings.into_iter().enumerate() {
                variables.insert(
                    format!("GIT_CONFIG_KEY_{number}"),
                    "credential.helper".to_owned(),
                );
                variables.insert(format!("GIT_CONFIG_VALUE_{number}"), setting);
            }
        }
        if let Some(bundle) = &credentials.ca_bundle {
            let named: BTreeMap<String, OsString> = environment
                .iter()
                .map(|(name, value)| (name.clone(), value.into()))
                .collect();
            let file = write("ca.pem", trusted_with(&named, bundle).as_bytes())?;
            variables.insert("GIT_SSL_CAINFO".to_owned(), file);
        }
        Ok(Self {
            _folder: folder,
            environment: variables,
        })
    }

    /// Returns the environment variables for programs that call git. Their values contain no secrets.
    pub fn environment(&self) -> &BTreeMap<String, String> {
        &self.environment
    }
}

/// Returns the host of `url` and, if `url` has the scheme `scheme`, its port.
fn authority(url: &RepositoryUrl, scheme: Scheme) -> String {
    if url.scheme() == scheme {
        return url
            .remote()
            .split('/')
            .nth(2)
            .unwrap_or_default()
            .to_owned();
    }
    if url.host().contains(':') {
        format!("[{}]", url.host())
    } else {
        url.host().to_owned()
    }
}

/// Whether user name and password of the repository `given_for` may be sent to the host of `url`. The host must be the same. If the schemes are
/// equal, the port must be the same. Otherwise, `url` must use HTTPS without an explicit port.
pub(crate) fn is_for(given_for: &RepositoryUrl, url: &RepositoryUrl) -> bool {
    let schemes = url.scheme() == Scheme::Https || url.scheme() == given_for.scheme();
    schemes && authority(given_for, url.scheme()) == authority(url, url.scheme())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{HttpsCredentials, SecretBytes, SecretString};
    use rstest::rstest;

    fn credentials() -> Credentials {
        let key = "-----BEGIN PRIVATE KEY-----\nAA==\n-----END PRIVATE KEY-----";
        Credentials {
            ssh_key: Some(SecretBytes::new(key)),
            https: Some(HttpsCredentials {
                username: SecretString::new("me"),
                password: SecretString::new("hunter2"),
            }),
            ca_bundle: Some("OWN".to_owned()),
            ..Credentials::default()
        }
    }

    #[rstest]
    #[case("https://host/o/r", "https://me:hunter2@host\n")]
    #[case("https://host:8443/o/r", "https://me:hunter2@host:8443\n")]
    #[case("git@host:o/r", "https://me:hunter2@host\n")]
    #[case("ssh://git@host:2222/o/r", "https://me:hunter2@host\n")]
    #[case(
        "http://host:80/r",
        "https://me:hunter2@host\nhttp://me:hunter2@host:80\n"
    )]
    fn password_is_limited_to_the_host_of_the_repository(#[case] url: &str, #[case] lines: &str) {
        let root = tempfile::tempdir().unwrap();
        let url = RepositoryUrl::parse(url).unwrap();
        let access = GitAccess::open(root.path(), &url, &credentials(), &BTreeMap::new())
            .ok()
            .unwrap();
        let variables = access.environment();
        let file = variables["GIT_CONFIG_VALUE_1"]
            .strip_prefix("store --file=")
            .unwrap()
            .to_owned();
        assert_eq!(std::fs::read_to_string(&file).unwrap(), lines);
        assert!(variables["GIT_SSH_COMMAND"].contains("StrictHostKeyChecking=yes"));
        assert!(!format!("{variables:?}").contains("hunter2"));
        drop(access);
        assert!(!Path::new(&file).exists());
    }

    #[test]
    fn missing_credentials_set_no_environment() {
        let root = tempfile::tempdir().unwrap();
        let url = RepositoryUrl::parse("https://host/r").unwrap();
        let access = GitAccess::open(root.path(), &url, &Credentials::default(), &BTreeMap::new())
            .ok()
            .unwrap();
        assert_eq!(
            access.environment().keys().collect::<Vec<_>>(),
            ["GIT_TERMINAL_PROMPT"]
        );
    }
}
