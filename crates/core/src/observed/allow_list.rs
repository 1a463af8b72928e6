//! Allow lists: the ConfigMap `alustan-allowed`, in which an administrator restricts what resources may use.

use std::collections::BTreeMap;

/// Keys of ConfigMap `alustan-allowed`.
pub const KEYS: [&str; 6] = [
    "registries",
    "repositories",
    "builders",
    "serviceAccounts",
    "approval",
    "destroy",
];

/// Wildcard entry that matches everything.
pub(crate) const ANY: &str = "*";

/// Parsed allow lists.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Allowed {
    pub(crate) registries: Vec<String>,
    pub(crate) repositories: Vec<String>,
    pub(crate) builders: Vec<String>,
    /// Allowed `ServiceAccounts`. `None` if no list is set: a ServiceAccount is then allowed if it has the annotation
    /// `alustan.io/allow-runs: "true"`.
    pub(crate) accounts: Option<Vec<String>>,
    /// Whether every apply requires approval.
    pub(crate) approval: bool,
    /// Whether every destroy requires approval.
    pub(crate) destroy: bool,
}

impl Default for Allowed {
    fn default() -> Self {
        Self::read(&BTreeMap::new())
    }
}

impl Allowed {
    /// Parses the data of the ConfigMap. A missing key sets no limit. A list that exists allows only the values on its lines.
    pub fn read(data: &BTreeMap<String, String>) -> Self {
        let list = |key: &str| data.get(key).map(|text| lines(text));
        let any = || vec![ANY.to_owned()];
        // An unknown mode is read as `Manual`, the stricter of the two modes.
        let manual = |key: &str| {
            data.get(key)
                .is_some_and(|mode| !["", "Auto"].contains(&mode.trim()))
        };
        Self {
            registries: list("registries").unwrap_or_else(any),
            repositories: list("repositories").unwrap_or_else(any),
            builders: list("builders").unwrap_or_else(any),
            accounts: list("serviceAccounts"),
            approval: manual("approval"),
            destroy: manual("destroy"),
        }
    }
}

impl Allowed {
    /// Returns the URL prefixes of the allowed repositories.
    pub fn repositories(&self) -> &[String] {
        &self.repositories
    }

    /// Whether `url` is in an allowed repository.
    pub fn has_repository(&self, url: &str) -> bool {
        is_in_repository(self, url)
    }
}

pub(crate) fn lines(text: &str) -> Vec<String> {
    let lines = text.split('\n').map(str::trim);
    lines
        .filter(|line| !line.is_empty())
        .map(str::to_owned)
        .collect()
}

/// Whether `list` contains `name` or [`ANY`].
pub(crate) fn contains_name(list: &[String], name: &str) -> bool {
    list.iter().any(|entry| entry == ANY || entry == name)
}

/// Whether `image` is in an allowed registry. Entries match whole path segments: `registry.test/team` does not match `registry.test/teams`.
/// An entry with a repository also matches its tags and digests. An entry that is only a host does not match the host with a port.
pub(crate) fn is_in_registry(allowed: &Allowed, image: &str) -> bool {
    allowed.registries.iter().any(|entry| {
        let rest = image.strip_prefix(entry.as_str());
        let is_within = |rest: &str| {
            rest.is_empty()
                || entry.ends_with('/')
                || rest.starts_with('/')
                || entry.contains('/') && rest.starts_with([':', '@'])
        };
        entry == ANY || rest.is_some_and(is_within)
    })
}

/// Whether `url` is in an allowed repository. A URL with `..` or `%` matches only [`ANY`], because it may refer to a path outside the
/// allowed prefix.
pub(crate) fn is_in_repository(allowed: &Allowed, url: &str) -> bool {
    let contains = |prefix: &String| {
        let is_within = |rest: &str| {
            matches!(rest, "" | ".git")
                || prefix.ends_with(['/', ':'])
                || rest.starts_with('/')
                || rest.starts_with(".git/")
        };
        url.strip_prefix(prefix.as_str()).is_some_and(is_within)
    };
    let allows_any = allowed.repositories.iter().any(|prefix| prefix == ANY);
    allows_any
        || !url.contains("..") && !url.contains('%') && allowed.repositories.iter().any(contains)
}
