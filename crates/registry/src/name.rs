//! Names of repositories in registries. Performs no I/O.

use std::fmt;

use crate::error::Error;

/// Default registry, for image names without a registry.
pub(crate) const DOCKER_HUB: &str = "docker.io";
/// API host of Docker Hub.
pub(crate) const HUB_HOST: &str = "index.docker.io";
/// Other host names of Docker Hub.
const DOCKER_HUB_ALIASES: [&str; 3] = [HUB_HOST, "registry-1.docker.io", "registry.hub.docker.com"];
/// Maximum length of a repository name, in bytes: <https://distribution.github.io/distribution/spec/api/#overview>.
const MAX_NAME_BYTES: usize = 255;

/// A repository in a registry, without tag and digest: `host[:port]/path`.
///
/// Short forms are expanded as in Docker: `alpine` is `docker.io/library/alpine`.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ImageName {
    registry: String,
    repository: String,
}

impl ImageName {
    /// Parses the name of a repository.
    ///
    /// # Errors
    /// Returns [`Error::InvalidImageName`] with the reason.
    pub fn parse(text: &str) -> Result<Self, Error> {
        read(text).map_err(|why| invalid(text, why))
    }

    /// Returns host and port of the registry; `docker.io` for Docker Hub.
    pub fn registry(&self) -> &str {
        &self.registry
    }

    /// Returns the path of the repository in the registry, with the prefix `library/` for official images of Docker Hub.
    pub fn repository(&self) -> &str {
        &self.repository
    }
}

impl fmt::Display for ImageName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.registry, self.repository)
    }
}

pub(crate) fn invalid(text: &str, why: impl Into<String>) -> Error {
    Error::InvalidImageName {
        name: text.escape_debug().to_string(),
        why: why.into(),
    }
}

fn read(text: &str) -> Result<ImageName, String> {
    refuse_odd_text(text)?;
    if text.contains('@') {
        return Err(
            "the name contains a digest; set only the repository, because the operator sets the tag"
                .into(),
        );
    }
    let last = text.rsplit('/').next().unwrap_or_default();
    if last.contains(':') {
        return Err(
            "the name contains a tag; set only the repository, because the operator sets the tag"
                .into(),
        );
    }
    split(text)
}

/// Fails if `text` is empty, or if it contains a URL scheme, white space or control characters: no image reference may contain them.
pub(crate) fn refuse_odd_text(text: &str) -> Result<(), String> {
    if text.is_empty() {
        return Err("the name is empty".into());
    }
    if text.contains("://") {
        return Err("the name contains a URL scheme; expected `host/path`".into());
    }
    if text.chars().any(|c| c.is_whitespace() || c.is_control()) {
        return Err(
            "the name contains white space or control characters; expected `host/path`".into(),
        );
    }
    Ok(())
}

/// Splits a name into registry and path as Docker does, and validates both.
pub(crate) fn split(text: &str) -> Result<ImageName, String> {
    let (registry, path) = match text.split_once('/') {
        Some((first, path)) if is_registry(first) => (first, path),
        _ => (DOCKER_HUB, text),
    };
    check_host(registry)?;
    check_path(path)?;
    let hub = is_docker_hub(registry);
    let repository = if hub && !path.contains('/') {
        format!("library/{path}")
    } else {
        path.to_owned()
    };
    let registry = if hub {
        DOCKER_HUB.to_owned()
    } else {
        registry.to_owned()
    };
    Ok(ImageName {
        registry,
        repository,
    })
}

/// Whether the first part of a name is a host: it contains a dot or a port, or is `localhost`.
fn is_registry(first: &str) -> bool {
    first == "localhost" || first.contains(['.', ':'])
}

pub(crate) fn is_docker_hub(host: &str) -> bool {
    host == DOCKER_HUB || DOCKER_HUB_ALIASES.contains(&host)
}

fn check_host(registry: &str) -> Result<(), String> {
    let (host, port) = match registry
        .strip_prefix('[')
        .and_then(|rest| rest.split_once(']'))
    {
        Some((inner, port)) => {
            inner
                .parse::<std::net::Ipv6Addr>()
                .map_err(|_| format!("the host `{inner}` is not an IPv6 address"))?;
            ("v6", port)
        }
        None => registry.split_at(registry.find(':').unwrap_or(registry.len())),
    };
    let label = |label: &str| {
        let plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
        !label.is_empty()
            && label.chars().all(plain)
            && !label.starts_with('-')
            && !label.ends_with('-')
    };
    if host.chars().any(|c| c.is_ascii_uppercase()) {
        return Err(format!("the host `{host}` contains upper case letters"));
    }
    if !host.split('.').all(label) {
        return Err(format!("`{host}` is not a host name"));
    }
    let number = port
        .strip_prefix(':')
        .and_then(|port| port.parse::<u16>().ok());
    if port.is_empty() || number.is_some() {
        Ok(())
    } else {
        Err(format!("`{port}` is not a port"))
    }
}

fn check_path(path: &str) -> Result<(), String> {
    if path.chars().any(|c| c.is_ascii_uppercase()) {
        return Err(
            "the path contains upper case letters; registries allow only lower case".into(),
        );
    }
    if path.len() > MAX_NAME_BYTES {
        return Err(format!(
            "the path is longer than {MAX_NAME_BYTES} characters"
        ));
    }
    match path.split('/').find(|part| !is_path_part(part)) {
        None => Ok(()),
        Some("") => Err("the path contains an empty component".into()),
        Some(part) => Err(format!(
            "the path contains the invalid component `{part}`: use lower case letters and digits, \
             separated by single `.`, `_` or `-`"
        )),
    }
}

/// Whether `part` matches `[a-z0-9]+((\.|_|__|-+)[a-z0-9]+)*`: <https://github.com/opencontainers/distribution-spec/blob/main/spec.md>.
fn is_path_part(part: &str) -> bool {
    let alphanumeric = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
    let ends = part.starts_with(alphanumeric) && part.ends_with(alphanumeric);
    let separators = part
        .split(alphanumeric)
        .filter(|separator| !separator.is_empty());
    ends && separators.into_iter().all(|separator| {
        [".", "_", "__"].contains(&separator) || separator.chars().all(|c| c == '-')
    })
}

#[cfg(test)]
mod tests;
