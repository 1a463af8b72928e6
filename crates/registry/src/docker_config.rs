//! Credentials in the Docker config format, which Kubernetes uses in image pull secrets. Performs no I/O.

use std::collections::BTreeMap;

use alustan_api::json_size;
use base64::prelude::*;
use serde_json::{Map, Value, json};

use crate::{
    credential::Credential,
    error::Error,
    name::{DOCKER_HUB, ImageName, is_docker_hub},
};

/// Key of the entry for Docker Hub that all clients support.
const HUB_KEY: &str = "https://index.docker.io/v1/";

/// Credentials by registry, from `config.json` (`auths`) or the older `.dockercfg`. Has no `Debug`, so that it cannot be logged.
///
/// Keys are hosts, optionally with a scheme, a path, or `*` in a label, as in the kubelet:
/// <https://kubernetes.io/docs/concepts/containers/images/#config-json>. Of the keys that match a repository, the key with the longest path
/// has precedence.
#[derive(Clone)]
pub struct DockerConfig {
    entries: BTreeMap<Key, Credential>,
    /// Credential helpers by registry (`credHelpers`). The operator never executes them, because they are programs on the machine on which
    /// the config was written.
    helpers: BTreeMap<Key, String>,
    /// Credential helper for registries without an entry in `credHelpers` (`credsStore`). The operator never executes it.
    store: Option<String>,
    universal: bool,
}

/// Two configs are equal if they have the same credentials for the same registries, even if the keys or credentials are written
/// differently. Credential helpers are not compared.
impl PartialEq for DockerConfig {
    fn eq(&self, other: &Self) -> bool {
        self.entries == other.entries
    }
}

impl Eq for DockerConfig {}

/// Key of an entry: host with port, and path prefix of the repositories. A DNS label of the host may contain `*`.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Key {
    host: String,
    path: String,
}

impl DockerConfig {
    /// Parses a Docker config, the value of a key in a Secret.
    ///
    /// # Errors
    /// [`Error::InvalidCredentials`] if the config is invalid. The message contains no content of the Secret except names of registries and
    /// credential helpers.
    pub fn parse(bytes: &[u8]) -> Result<Self, Error> {
        let values = json_size::values(bytes);
        if values > json_size::VALUES {
            return Err(refuse(format!(
                "the Docker config has {values} JSON values, more than the limit of {}",
                json_size::VALUES
            )));
        }
        let root: Value = serde_json::from_slice(bytes).map_err(|error| {
            refuse(format!(
                "the Docker config is invalid JSON (line {}, column {})",
                error.line(),
                error.column()
            ))
        })?;
        let root = root
            .as_object()
            .ok_or_else(|| refuse("the Docker config is not a JSON object"))?;
        let helpers = read_helpers(root)?;
        let store = root
            .get("credsStore")
            .and_then(Value::as_str)
            .filter(|name| !name.is_empty())
            .map(str::to_owned);
        let none = Map::new();
        let (auths, current) = match root.get("auths") {
            Some(auths) => {
                let auths = auths.as_object();
                (
                    auths.ok_or_else(|| refuse("`auths` is not a JSON object"))?,
                    true,
                )
            }
            None if root.contains_key("credsStore") || root.contains_key("credHelpers") => {
                (&none, true)
            }
            None => (root, false),
        };
        let entries = auths
            .iter()
            .filter_map(|(key, entry)| {
                Some(
                    read_entry(key, entry)
                        .transpose()?
                        .map(|credential| (Key::parse(key), credential)),
                )
            })
            .collect::<Result<BTreeMap<_, _>, _>>()?;
        if entries.is_empty() {
            let program = store.as_ref().or_else(|| helpers.values().next());
            return Err(program.map_or_else(
                || refuse("the Docker config contains no credentials; expected `{\"auths\": {\"host\": {\"auth\": …}}}`"),
                |program| refuse(format!("no credentials: {}", asks_for(program))),
            ));
        }
        let hub = |key: &String| Key::parse(key).host == DOCKER_HUB && key != HUB_KEY;
        Ok(Self {
            entries,
            helpers,
            store,
            universal: current && !auths.keys().any(hub),
        })
    }

    /// Whether every client, including kaniko, can use the config unchanged. kaniko supports only one key for Docker Hub,
    /// `https://index.docker.io/v1/`, and does not read `.dockercfg`.
    pub fn is_universal(&self) -> bool {
        self.universal
    }

    /// Returns the credential for a repository; `None` for anonymous access.
    ///
    /// # Errors [`Error::InvalidCredentials`] if the config refers to a credential helper for the repository. The operator does not execute
    /// the helper, because it is a program on another machine.
    pub fn open(&self, image: &ImageName) -> Result<Option<&Credential>, Error> {
        if let Some(credential) = self.credentials_for(image) {
            return Ok(Some(credential));
        }
        let helper = self.helpers.iter().find(|(key, _)| key.fits(image));
        match helper.map(|(_, program)| program).or(self.store.as_ref()) {
            None => Ok(None),
            Some(program) => Err(refuse(format!(
                "no credentials for `{}`: {}",
                image.registry(),
                asks_for(program)
            ))),
        }
    }

    /// Returns the credential of the key that matches the repository and has the longest path. Of two keys with the same path, a host
    /// without `*` has precedence.
    pub fn credentials_for(&self, image: &ImageName) -> Option<&Credential> {
        self.entries
            .iter()
            .filter(|(key, _)| key.fits(image))
            .max_by_key(|(key, _)| (key.path.len(), !key.host.contains('*')))
            .map(|(_, credential)| credential)
    }

    /// Returns the config as `.dockerconfigjson`. Configs with equal content give equal bytes. The result contains credentials.
    pub fn to_dockerconfigjson(&self) -> Vec<u8> {
        let auths: Map<String, Value> = self
            .entries
            .iter()
            .map(|(key, credential)| (key.text(), write_entry(credential)))
            .collect();
        json!({ "auths": auths }).to_string().into_bytes()
    }
}

impl Key {
    fn parse(text: &str) -> Self {
        let text = text.trim();
        let text = text.split_once("://").map_or(text, |(_, rest)| rest);
        let (host, path) = text.split_once('/').unwrap_or((text, ""));
        let path = path.trim_matches('/');
        // `v1` and `v2` are API versions, not path prefixes of repositories.
        let path = if ["v1", "v2"].contains(&path) {
            ""
        } else {
            path
        };
        let host = host.to_ascii_lowercase();
        let host = if is_docker_hub(&host) {
            DOCKER_HUB.to_owned()
        } else {
            host
        };
        Self {
            host,
            path: path.to_owned(),
        }
    }

    fn text(&self) -> String {
        match (self.host.as_str(), self.path.as_str()) {
            (DOCKER_HUB, "") => HUB_KEY.to_owned(),
            (host, "") => host.to_owned(),
            (host, path) => format!("{host}/{path}"),
        }
    }

    fn fits(&self, image: &ImageName) -> bool {
        let path = image.repository().strip_prefix(&self.path);
        let below = self.path.is_empty()
            || path.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'));
        below && host_fits(&self.host, image.registry())
    }
}

/// Compares DNS labels one by one. Each `*` matches any part of a label.
fn host_fits(pattern: &str, host: &str) -> bool {
    let (patterns, labels): (Vec<_>, Vec<_>) =
        (pattern.split('.').collect(), host.split('.').collect());
    patterns.len() == labels.len()
        && patterns
            .iter()
            .zip(labels)
            .all(|(pattern, label)| label_fits(pattern, label))
}

/// Whether `label` matches `pattern`. Matches each text between two `*` at its first occurrence, without backtracking, in linear time.
fn label_fits(pattern: &str, label: &str) -> bool {
    let Some((start, rest)) = pattern.split_once('*') else {
        return pattern == label;
    };
    let (middle, end) = rest.rsplit_once('*').unwrap_or(("", rest));
    let inner = label
        .strip_prefix(start)
        .and_then(|label| label.strip_suffix(end));
    inner
        .and_then(|inner| {
            middle.split('*').try_fold(inner, |rest, part| {
                rest.split_once(part).map(|(_, rest)| rest)
            })
        })
        .is_some()
}

fn read_helpers(root: &Map<String, Value>) -> Result<BTreeMap<Key, String>, Error> {
    let Some(helpers) = root.get("credHelpers") else {
        return Ok(BTreeMap::new());
    };
    let helpers = helpers
        .as_object()
        .ok_or_else(|| refuse("`credHelpers` is not a JSON object"))?;
    Ok(helpers
        .iter()
        .filter_map(|(key, program)| Some((Key::parse(key), program.as_str()?.to_owned())))
        .collect())
}

fn asks_for(program: &str) -> String {
    format!(
        "the Docker config refers to the credential helper `{}`, which the operator does not \
         execute. Set user name and password in `auths`, or, for a cloud registry, set \
         `containerRegistry.provider`",
        program.escape_debug()
    )
}

/// Reads the credential of an entry; `None` for the empty entries that docker leaves after a logout.
fn read_entry(key: &str, entry: &Value) -> Result<Option<Credential>, Error> {
    let named = |why: &str| refuse(format!("invalid entry of `{}`: {why}", key.escape_debug()));
    let entry = entry.as_object().ok_or_else(|| named("not an object"))?;
    let text = |name: &str| {
        entry
            .get(name)
            .and_then(Value::as_str)
            .filter(|text| !text.is_empty())
    };
    if let Some(token) = text("identitytoken") {
        return Ok(Some(Credential::Identity(token.to_owned())));
    }
    if let Some(token) = text("registrytoken") {
        return Ok(Some(Credential::Bearer(token.to_owned())));
    }
    if let Some(auth) = text("auth") {
        return decode(auth)
            .map(Some)
            .ok_or_else(|| named("`auth` is not base64 of `user:password`"));
    }
    match (text("username"), text("password")) {
        (Some(username), Some(password)) => Ok(Some(Credential::Basic {
            username: username.to_owned(),
            password: password.to_owned(),
        })),
        (None, None) => Ok(None),
        _ => Err(named("`username` or `password` is missing; set both")),
    }
}

fn decode(auth: &str) -> Option<Credential> {
    let plain: String = auth.split_whitespace().collect();
    let plain = plain.trim_end_matches('=');
    let bytes = BASE64_STANDARD_NO_PAD.decode(plain).ok()?;
    let text = String::from_utf8(bytes).ok()?;
    let (username, password) = text.split_once(':')?;
    // Docker pads old entries with zero bytes.
    let password = password.trim_end_matches('\0');
    Some(Credential::Basic {
        username: username.to_owned(),
        password: password.to_owned(),
    })
}

fn write_entry(credential: &Credential) -> Value {
    match credential {
        Credential::Basic { username, password } => {
            json!({ "auth": BASE64_STANDARD.encode(format!("{username}:{password}")) })
        }
        Credential::Identity(token) => json!({ "identitytoken": token }),
        Credential::Bearer(token) => json!({ "registrytoken": token }),
    }
}

fn refuse(why: impl Into<String>) -> Error {
    Error::InvalidCredentials { why: why.into() }
}

#[cfg(test)]
mod tests;
