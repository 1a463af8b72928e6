//! Git repository of the module (`spec.gitRepo`).

use kube_core::Duration;
use kube_derive::KubeSchema;
use serde::{Deserialize, Serialize};

use crate::references::{KeyRef, NameRef};
use crate::spec::duration::{DURATION, DURATION_HELP, MAX_DURATION, seconds};

const REPOSITORY: &str = "self.all(name, name.matches('^[A-Za-z0-9._-]{1,100}$'))";
const REPOSITORY_HELP: &str = "must be names of repositories without their owner, for example modules: at most 100 letters, digits and the characters . _ -";
const COMMIT: &str = "self.matches('^([0-9a-fA-F]{40}|[0-9a-fA-F]{64})$')";
const COMMIT_HELP: &str = "must be a full commit id of 40 or 64 hexadecimal digits, as printed by `git rev-parse`: git servers do not resolve abbreviated ids";

/// Git repository that contains the module.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
#[x_kube(crates(kube_core = "::kube_core"))]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("[has(self.branch), has(self.tag), has(self.commit)].filter(given, given).size() <= 1").message("at most one of branch, tag and commit may be set"))]
#[x_kube(validation = Rule::new("!(has(self.githubApp) && has(self.credentialsSecret))").message("at most one of githubApp and credentialsSecret may be set"))]
#[x_kube(validation = Rule::new("!has(self.githubApp) || self.url.startsWith('https://')").message("githubApp requires a url that starts with https://"))]
pub struct GitRepo {
    /// URL of the repository: `https://host/owner/repo`, `ssh://git@host/owner/repo.git` or `git@host:owner/repo.git`. A suffix `//folder` is the
    /// folder of the module. On github.com and bitbucket.org, the path after `owner/repo` is also the folder. Example:
    /// `https://github.com/owner/repo/folder`.
    #[schemars(length(max = 2048))]
    #[x_kube(validation = Rule::new("self.size() > 0").message("must not be empty"))]
    pub url: String,
    /// Branch to follow. Default: the default branch of the repository.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 1024))]
    pub branch: Option<String>,
    /// Tag to follow. A moved tag is handled as a new commit. An annotated tag resolves to its commit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 1024))]
    #[x_kube(validation = Rule::new("self.size() > 0").message("must not be empty"))]
    pub tag: Option<String>,
    /// Full id of a commit. Later pushes have no effect. After the commit is fetched, the operator sends no further requests to the
    /// repository.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 64))]
    #[x_kube(validation = Rule::new(COMMIT).message(COMMIT_HELP))]
    pub commit: Option<String>,
    /// Folder of the module, relative to the folder of `url`. Default: the folder of `url`, else the root of the repository.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 1024))]
    pub path: Option<String>,
    /// Files and folders outside the module that the module reads. Example: `shared/policies`. They are part of the context: a commit that
    /// changes them is handled as a commit to the module. Local modules (`source = "../x"`) are included without an entry. At most 100 entries of at
    /// most 1,024 characters.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 100), inner(length(max = 1024)))]
    pub include: Vec<String>,
    /// Interval at which the operator checks the repository for new commits. Default: 1m.
    #[serde(default = "one_minute")]
    #[schemars(length(max = MAX_DURATION))]
    #[x_kube(validation = Rule::new(DURATION).message(DURATION_HELP))]
    pub interval: Duration,
    /// If true, the context contains the git submodules that the module needs. If false, a module that needs a submodule fails with a
    /// message. Default: false.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub submodules: bool,
    /// Key of a Secret with the private ssh key for the repository, and for modules that the build fetches by ssh. The optional key
    /// `known_hosts` of the same Secret contains trusted host keys. Default of `known_hosts`: built-in host keys of github.com, gitlab.com
    /// and bitbucket.org.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ssh_key_secret: Option<KeyRef>,
    /// Secret with credentials for https: `username`, and `password` or a token as `password`. They also apply to modules that the build
    /// fetches by https from the same host. The optional key `ca.crt` contains certificate authorities to trust in addition to those of the
    /// system.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub credentials_secret: Option<NameRef>,
    /// GitHub App whose installation has access to the repository. The operator creates tokens that expire after one hour, and uses them
    /// instead of a password. Requires an https URL, and excludes `credentialsSecret`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub github_app: Option<GitHubApp>,
    /// Certificate authorities in PEM format to trust in addition to those of the system. They apply to the repository and to modules that
    /// the build fetches with git by https. At most 65,536 characters.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 65536))]
    #[x_kube(validation = Rule::new("self.contains('-----BEGIN CERTIFICATE-----')").message("must contain certificates in PEM format: -----BEGIN CERTIFICATE-----"))]
    pub ca_bundle: Option<String>,
}

/// GitHub App that provides the credentials of a repository.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
#[x_kube(crates(kube_core = "::kube_core"))]
#[serde(rename_all = "camelCase")]
pub struct GitHubApp {
    /// Secret with the keys `githubAppID`, `githubAppInstallationID` and `githubAppPrivateKey` (PEM, as downloaded from GitHub). The
    /// optional key `githubAppBaseURL` is the URL of the API, on the host of the repository or on `api.HOST`. Default of `githubAppBaseURL`:
    /// `https://api.HOST` for github.com and ghe.com, else `https://HOST/api/v3`. The optional key `ca.crt` contains certificate authorities to
    /// trust in addition to those of the system.
    pub secret_ref: NameRef,
    /// Names of other repositories that the tokens can read, for submodules and private modules. They must have the owner of the
    /// repository in `url`, and the installation must have access to them. At most 50 names. Default: the tokens can only read the
    /// repository in `url`. Example: `[terraform-modules]`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("maxItems" = 50, "items" = {"type": "string", "maxLength": 100}))]
    #[x_kube(validation = Rule::new(REPOSITORY).message(REPOSITORY_HELP))]
    pub repositories: Vec<String>,
}

impl GitRepo {
    /// Whether requests to the repository use credentials.
    pub fn has_credentials(&self) -> bool {
        self.ssh_key_secret.is_some()
            || self.credentials_secret.is_some()
            || self.github_app.is_some()
    }
}

fn one_minute() -> Duration {
    seconds(60)
}
