//! Session of git calls: a private folder with the credentials, and a minimal environment.

use std::{
    collections::BTreeMap,
    ffi::{OsStr, OsString},
    fs::{File, OpenOptions, Permissions},
    io::{self, Write as _},
    os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _},
    path::{Path, PathBuf},
    sync::Arc,
};

use tempfile::TempDir;
use tokio::process::Command;

use super::{
    classify::{classify, last_lines},
    process::{self, Bounds, Finished, RunError},
};
use crate::{
    credentials::{Credentials, HttpsCredentials},
    error::Error,
    known_hosts, ssh_key,
    url::{RepositoryUrl, Scheme},
};

/// Environment variables of the operator that are passed to git: search path, certificates, proxies and time zone.
const PASSED_ON: [&str; 12] = [
    "PATH",
    "GIT_SSL_CAINFO",
    "SSL_CERT_FILE",
    "HTTP_PROXY",
    "http_proxy",
    "https_proxy",
    "HTTPS_PROXY",
    "all_proxy",
    "ALL_PROXY",
    "no_proxy",
    "NO_PROXY",
    "TZ",
];

/// Paths of the system certificate bundle in Linux distributions.
const SYSTEM: [&str; 3] = [
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/cert.pem",
];

/// Git configuration of every call.
const SETTINGS: [&str; 15] = [
    "core.hooksPath=/dev/null",
    "core.fsmonitor=false",
    "core.askPass=",
    // Git does not hold files above this size in memory.
    "core.bigFileThreshold=1m",
    "core.deltaBaseCacheLimit=8m",
    "credential.helper=",
    "fetch.recurseSubmodules=false",
    "gc.auto=0",
    "http.followRedirects=initial",
    "http.lowSpeedLimit=1",
    "http.lowSpeedTime=60",
    "maintenance.auto=false",
    "pack.threads=1",
    "protocol.ext.allow=never",
    "protocol.file.allow=never",
];

/// Timeout for an ssh connection, in seconds.
const CONNECT_SECONDS: u32 = 15;

/// Private folder and git configuration for calls on one repository. The folder is removed on drop.
pub(crate) struct Session {
    folder: TempDir,
    remote: String,
    scheme: Scheme,
    settings: Vec<String>,
    /// Environment variables that git gets from the operator.
    environment: BTreeMap<String, OsString>,
    /// Path of a bundle with the system certificates and the certificates for this repository.
    ca_bundle: Option<PathBuf>,
    /// Values to mask in error messages.
    secrets: Vec<String>,
}

impl Session {
    /// Creates a folder in `root` that only the user of this process can read, and writes the credentials for the transport of `url` into the folder.
    pub(crate) fn open(
        root: &Path,
        url: &RepositoryUrl,
        credentials: &Credentials,
        environment: &BTreeMap<String, OsString>,
    ) -> Result<Self, Error> {
        let folder = private_folder(root)
            .map_err(|source| cache_error("create a private directory in", root, source))?;
        let mut session = Self {
            folder,
            remote: url.remote().to_owned(),
            scheme: url.scheme(),
            settings: SETTINGS.map(str::to_owned).to_vec(),
            environment: environment.clone(),
            ca_bundle: None,
            secrets: Vec::new(),
        };
        match url.scheme() {
            Scheme::Ssh => session.prepare_ssh(credentials)?,
            Scheme::Http | Scheme::Https => session.prepare_http(url, credentials)?,
        }
        Ok(session)
    }

    fn prepare_ssh(&mut self, credentials: &Credentials) -> Result<(), Error> {
        let key = credentials
            .ssh_key
            .as_ref()
            .ok_or_else(|| Error::SshKeyMissing {
                remote: self.remote.clone(),
            })?;
        self.write("key", ssh_key::normalise(key)?.expose())?;
        let hosts = known_hosts::effective(credentials.known_hosts.as_deref());
        self.write("known_hosts", hosts.as_bytes())?;
        Ok(())
    }

    fn prepare_http(
        &mut self,
        url: &RepositoryUrl,
        credentials: &Credentials,
    ) -> Result<(), Error> {
        if let Some(bundle) = &credentials.ca_bundle {
            let trusted = trusted_with(&self.environment, bundle);
            self.ca_bundle = Some(self.write("ca.pem", trusted.as_bytes())?);
        }
        if let Some(https) = &credentials.https {
            let path = self.write("credentials", credential_line(url, https).as_bytes())?;
            // `git credential-store` returns the credentials in the file only for the scheme and host in the file, also after a redirect.
            self.settings
                .push(format!("credential.helper=store --file={}", path.display()));
            let password = https.password.expose();
            self.secrets
                .extend([password.to_owned(), percent_encode(password)]);
        }
        Ok(())
    }

    fn write(&self, name: &str, bytes: &[u8]) -> Result<PathBuf, Error> {
        let path = self.folder.path().join(name);
        write_private(&path, bytes).map_err(|source| cache_error("write", &path, source))?;
        Ok(path)
    }

    /// Runs `git --git-dir <repository> <arguments>`. An exit status other than 0 is an [`Error::Git`].
    pub(crate) async fn git(
        &self,
        repository: &Path,
        action: &'static str,
        arguments: &[&str],
        input: Vec<u8>,
        bounds: Bounds,
    ) -> Result<Vec<u8>, Error> {
        let command = self.command(repository, arguments, bounds.memory);
        let finished = process::run(command, input, bounds)
            .await
            .map_err(|error| self.run_error(action, error))?;
        if finished.status.success() {
            Ok(finished.stdout)
        } else {
            Err(self.git_error(repository, action, &finished))
        }
    }

    /// Runs git like [`Self::git`], except that `read` reads stdout as a stream, without the limit of `bounds`. `read` returns `None` if the output
    /// is malformed or incomplete. Its error precedes the error of git, which fails if its output is not read.
    pub(crate) async fn git_into<T: Send + 'static>(
        &self,
        repository: &Path,
        action: &'static str,
        arguments: &[&str],
        input: Vec<u8>,
        bounds: Bounds,
        read: impl FnOnce(File) -> Result<Option<T>, Error> + Send + 'static,
    ) -> Result<Option<T>, Error> {
        let command = self.command(repository, arguments, bounds.memory);
        let finished = process::run_into(command, input, bounds.time, read)
            .await
            .map_err(|error| self.run_error(action, error))?;
        if finished.stdout.is_ok() && !finished.status.success() {
            return Err(self.git_error(repository, action, &finished));
        }
        finished.stdout
    }

    fn command(&self, repository: &Path, arguments: &[&str], memory: u64) -> Command {
        let mut command = process::limited("git", memory);
        command.env_clear();
        command.envs(&self.environment);
        // libcurl reads only `http_proxy`, in lower case. Other programs also read `HTTP_PROXY`.
        if let Some(proxy) = self.environment.get("HTTP_PROXY")
            && !self.environment.contains_key("http_proxy")
        {
            command.env("http_proxy", proxy);
        }
        command.envs([
            ("GIT_TERMINAL_PROMPT", "0"),
            ("GIT_CONFIG_NOSYSTEM", "1"),
            ("GIT_CONFIG_GLOBAL", "/dev/null"),
            ("GIT_ATTR_NOSYSTEM", "1"),
            ("GIT_NO_REPLACE_OBJECTS", "1"),
            ("GIT_ALLOW_PROTOCOL", self.scheme.as_str()),
            ("GIT_SSH_VARIANT", "ssh"),
            ("LC_ALL", "C"),
        ]);
        command
            .env("HOME", self.folder.path())
            .env("GIT_SSH_COMMAND", ssh_command(self.folder.path()));
        // Sets the environment variable `GIT_SSL_CAINFO`, because it takes precedence over the git setting `http.sslCAInfo`.
        let own = self.ca_bundle.as_ref().map(|path| path.as_os_str());
        if let Some(path) = own.or_else(|| named_bundle(&self.environment)) {
            command.env("GIT_SSL_CAINFO", path);
        }
        // Not `Command::current_dir`: in a statically linked program, the standard library would then fork, which copies the page tables of the operator.
        command.arg("-C").arg(self.folder.path());
        command.arg("--git-dir").arg(repository);
        for setting in &self.settings {
            command.arg("-c").arg(setting);
        }
        command.args(arguments);
        command
    }

    fn run_error(&self, action: &'static str, error: RunError) -> Error {
        match error {
            RunError::Spawn(source) => Error::GitUnavailable {
                source: Arc::new(source),
            },
            RunError::Timeout(after) => Error::Timeout {
                action,
                remote: self.remote.clone(),
                after,
            },
            RunError::TooMuchOutput(limit) => Error::RepositoryTooLarge {
                remote: self.remote.clone(),
                limit,
            },
            RunError::Pipe(source) => cache_error("run git in", self.folder.path(), source),
        }
    }

    fn git_error<T>(
        &self,
        repository: &Path,
        action: &'static str,
        finished: &Finished<T>,
    ) -> Error {
        let failure = classify(&finished.stderr);
        let detail = self.redact(&last_lines(&finished.stderr));
        // Removes the local path of the repository, which does not help the reader of the message.
        let detail = detail.replace(&format!("{}/", repository.display()), "");
        Error::Git {
            action,
            remote: self.remote.clone(),
            failure,
            detail,
        }
    }

    fn redact(&self, text: &str) -> String {
        let folder = self.folder.path().display().to_string();
        let text = self
            .secrets
            .iter()
            .filter(|secret| !secret.is_empty())
            .fold(text.to_owned(), |text, secret| {
                text.replace(secret.as_str(), "***")
            });
        text.replace(&format!("{folder}/"), "")
    }
}

/// Returns the environment variables of this process that are in [`PASSED_ON`].
pub(crate) fn environment() -> BTreeMap<String, OsString> {
    PASSED_ON
        .iter()
        .filter_map(|name| Some(((*name).to_owned(), std::env::var_os(name)?)))
        .collect()
}

/// Returns the ssh command that uses the files `key` and `known_hosts` in `folder`. ssh reads no other configuration, never prompts and
/// offers no other key. The path needs no quotes: see [`Error::CacheRoot`].
pub(crate) fn ssh_command(folder: &Path) -> String {
    let folder = folder.display();
    format!(
        "ssh -F /dev/null -o IdentityFile={folder}/key -o IdentitiesOnly=yes -o IdentityAgent=none \
         -o BatchMode=yes -o PreferredAuthentications=publickey -o StrictHostKeyChecking=yes \
         -o UserKnownHostsFile={folder}/known_hosts -o GlobalKnownHostsFile=/dev/null \
         -o UpdateHostKeys=no -o ClearAllForwardings=yes -o ConnectTimeout={CONNECT_SECONDS} \
         -o ServerAliveInterval=15 -o ServerAliveCountMax=4"
    )
}

/// Returns the path of the certificate bundle that is set in `environment`.
fn named_bundle(environment: &BTreeMap<String, OsString>) -> Option<&OsStr> {
    environment
        .get("GIT_SSL_CAINFO")
        .or_else(|| environment.get("SSL_CERT_FILE"))
        .map(OsString::as_os_str)
}

/// Returns `bundle` together with the certificates of the bundle that `environment` names, or of the system bundle. Git reads only one file, and must
/// trust public CAs in addition to a private CA.
pub(crate) fn trusted_with(environment: &BTreeMap<String, OsString>, bundle: &str) -> String {
    let usual = named_bundle(environment)
        .into_iter()
        .chain(SYSTEM.iter().map(OsStr::new))
        .find_map(|path| std::fs::read_to_string(path).ok())
        .unwrap_or_default();
    format!("{}\n{}\n", usual.trim_end(), bundle.trim())
}

/// Returns the certificates that git trusts for a repository with `bundle`: see [`trusted_with`]. `None` if the bundle that `environment` names is
/// unreadable: git then fails, unless the repository has a `bundle`.
pub(crate) fn trusted_certificates(
    environment: &BTreeMap<String, OsString>,
    bundle: Option<&str>,
) -> Option<String> {
    match named_bundle(environment) {
        Some(path) if bundle.is_none() => std::fs::read_to_string(path).ok(),
        _ => Some(trusted_with(environment, bundle.unwrap_or_default())),
    }
}

/// Whether `environment` has a proxy for URLs with `scheme`. Ignores `NO_PROXY`.
pub(crate) fn has_proxy(environment: &BTreeMap<String, OsString>, scheme: Scheme) -> bool {
    let own = format!("{}_proxy", scheme.as_str());
    environment.iter().any(|(name, value)| {
        let is_proxy = name.eq_ignore_ascii_case(&own) || name.eq_ignore_ascii_case("all_proxy");
        is_proxy && !value.is_empty()
    })
}

/// Creates a folder that only the user of this process can access.
pub(crate) fn private_folder(root: &Path) -> io::Result<TempDir> {
    let mut builder = tempfile::Builder::new();
    builder
        .prefix("call-")
        .permissions(Permissions::from_mode(0o700));
    builder.tempdir_in(root)
}

/// Creates a file that only the user of this process can read.
pub(crate) fn write_private(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut file = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(path)?;
    file.write_all(bytes)
}

pub(crate) fn cache_error(action: &'static str, path: &Path, source: io::Error) -> Error {
    Error::Cache {
        action,
        path: path.to_owned(),
        source: Arc::new(source),
    }
}

/// Returns the line for `url` in the format of `git credential-store`: <https://git-scm.com/docs/git-credential-store#_storage_format>.
fn credential_line(url: &RepositoryUrl, https: &HttpsCredentials) -> String {
    let host = url.remote().split('/').nth(2).unwrap_or_default();
    line_for(url.scheme(), host, https)
}

pub(crate) fn line_for(scheme: Scheme, host: &str, https: &HttpsCredentials) -> String {
    let user = percent_encode(https.username.expose());
    let password = percent_encode(https.password.expose());
    format!("{}://{user}:{password}@{host}\n", scheme.as_str())
}

fn percent_encode(text: &str) -> String {
    let encode = |byte: u8| match byte {
        b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => {
            char::from(byte).to_string()
        }
        _ => format!("%{byte:02X}"),
    };
    text.bytes().map(encode).collect()
}

#[cfg(test)]
mod tests;
