//! Allow lists: the ConfigMap `alustan-allowed`, with which an administrator of the operator limits what resources may use.

use std::collections::BTreeMap;

/// The keys of the `ConfigMap`.
pub const KEYS: [&str; 6] = [
    "registries",
    "repositories",
    "builders",
    "serviceAccounts",
    "approval",
    "destroy",
];

/// Stands for everything.
pub(crate) const ANY: &str = "*";

/// What resources may use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Allowed {
    pub(crate) registries: Vec<String>,
    pub(crate) repositories: Vec<String>,
    pub(crate) builders: Vec<String>,
    /// Without a list, the owners of the accounts say it.
    pub(crate) accounts: Option<Vec<String>>,
    /// Whether a person must approve what is applied.
    pub(crate) approval: bool,
    /// Whether a person must approve what is destroyed.
    pub(crate) destroy: bool,
}

impl Default for Allowed {
    fn default() -> Self {
        Self::read(&BTreeMap::new())
    }
}

impl Allowed {
    /// Reads what the `ConfigMap` has: a key that is not there allows everything, one that is there
    /// what its lines name.
    pub fn read(data: &BTreeMap<String, String>) -> Self {
        let list = |key: &str| data.get(key).map(|text| lines(text));
        let any = || vec![ANY.to_owned()];
        // What is no mode is rather too strict than nothing.
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
    /// The allowed repositories, by the beginning of their addresses.
    pub fn repositories(&self) -> &[String] {
        &self.repositories
    }

    /// Whether the repository at `url` is one of them.
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

/// Whether a list has exactly this, or everything.
pub(crate) fn names(list: &[String], name: &str) -> bool {
    list.iter().any(|it| it == ANY || it == name)
}

/// A part is a whole one: `registry.test/team` is not the beginning of `registry.test/teams`. A tag or
/// a digest may follow a repository, but no port follows a host.
pub(crate) fn is_in_registry(allowed: &Allowed, image: &str) -> bool {
    allowed.registries.iter().any(|it| {
        let rest = image.strip_prefix(it.as_str());
        let within = |rest: &str| {
            rest.is_empty()
                || it.ends_with('/')
                || rest.starts_with('/')
                || it.contains('/') && rest.starts_with([':', '@'])
        };
        it == ANY || rest.is_some_and(within)
    })
}

/// Nothing in the URL leads out of where it begins.
pub(crate) fn is_in_repository(allowed: &Allowed, url: &str) -> bool {
    let inside = |it: &String| {
        let within = |rest: &str| {
            matches!(rest, "" | ".git")
                || it.ends_with(['/', ':'])
                || rest.starts_with('/')
                || rest.starts_with(".git/")
        };
        url.strip_prefix(it.as_str()).is_some_and(within)
    };
    let any = allowed.repositories.iter().any(|it| it == ANY);
    any || !url.contains("..") && !url.contains('%') && allowed.repositories.iter().any(inside)
}
