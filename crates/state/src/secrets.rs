//! Reads Secrets by name and writes them by compare-and-swap.

use std::collections::BTreeMap;
use std::time::Duration;

use async_trait::async_trait;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use k8s_openapi::api::core::v1::Secret;
use kube::api::{Patch, PatchParams};
use kube::{Api, Client};
use serde_json::{Value, json};

use crate::error_text::{chain, place_in_json};

/// Timeout of one call to the API server.
const CALL_TIMEOUT: Duration = Duration::from_secs(20);

/// Maximum data size of one Secret, in bytes: the limit of the API server.
pub const MAX_SECRET_BYTES: usize = 1024 * 1024;

/// A Secret at one resource version.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Snapshot {
    /// `resourceVersion` of the Secret.
    pub version: String,
    /// Decoded `data` of the Secret.
    pub data: BTreeMap<String, Vec<u8>>,
}

/// Keys to set in the data of a Secret, or to remove with `None`. Other keys are unchanged.
pub type Changes = BTreeMap<String, Option<Vec<u8>>>;

impl Snapshot {
    /// Returns the snapshot after a [`Secrets::swap`] of `changes` that returned `version`.
    #[must_use]
    pub fn swapped(mut self, version: String, changes: Changes) -> Self {
        for (key, value) in changes {
            match value {
                Some(value) => self.data.insert(key, value),
                None => self.data.remove(&key),
            };
        }
        self.version = version;
        self
    }

    /// Returns the size of all values after `changes` are applied, in bytes.
    pub fn size_with(&self, changes: &Changes) -> usize {
        let kept: usize = self
            .data
            .iter()
            .filter(|(key, _)| !changes.contains_key(*key))
            .map(|(_, value)| value.len())
            .sum();
        let set: usize = changes.values().flatten().map(Vec::len).sum();
        kept + set
    }
}

/// Error of a read or write of a Secret.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The Secret does not exist.
    #[error("Secret {0} does not exist")]
    Missing(String),
    /// The resource version has changed since the read.
    #[error("Secret {0} was changed by another client")]
    Conflict(String),
    /// Permanent failure: a retry cannot succeed.
    #[error("the API server refused the request for Secret {name}: {text}")]
    Refused {
        /// Name of the Secret.
        name: String,
        /// Message of the API server.
        text: String,
    },
    /// Transient failure: the API server is unreachable or returned an error. The write may have been applied.
    #[error("request for Secret {name} failed: {text}")]
    Unavailable {
        /// Name of the Secret.
        name: String,
        /// Text of the error.
        text: String,
    },
}

impl StoreError {
    /// Returns true if the failure is transient.
    pub fn is_passing(&self) -> bool {
        matches!(self, Self::Unavailable { .. })
    }
}

/// Reads Secrets by name, and writes them by compare-and-swap.
#[async_trait]
pub trait Secrets: Send + Sync {
    /// Reads a Secret.
    ///
    /// # Errors
    ///
    /// [`StoreError::Missing`] if the Secret does not exist.
    async fn read(&self, name: &str) -> Result<Snapshot, StoreError>;

    /// Applies `changes` to a Secret at resource version `version`. Returns the new resource version.
    ///
    /// # Errors
    ///
    /// [`StoreError::Conflict`] if the Secret has another resource version.
    async fn swap(&self, name: &str, version: &str, changes: Changes)
    -> Result<String, StoreError>;

    /// Replaces the value of `key` if it is `before`, at any resource version. Returns the Secret after the write.
    ///
    /// # Errors
    ///
    /// [`StoreError::Conflict`] if the Secret has another value.
    async fn replace(
        &self,
        name: &str,
        key: &str,
        before: &[u8],
        after: &[u8],
    ) -> Result<Snapshot, StoreError>;
}

/// Secrets of one namespace, accessed through the API server.
pub struct KubeSecrets {
    api: Api<Secret>,
    rights: Rights,
}

/// Whether a Forbidden response is transient.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Rights {
    /// A Forbidden response is transient, because a new Role takes effect with a delay.
    New,
    /// A Forbidden response is permanent.
    Settled,
}

impl KubeSecrets {
    /// Creates a client for Secrets of `namespace`. The Role of the client may be new, so a Forbidden response is transient.
    pub fn new(client: Client, namespace: &str) -> Self {
        Self {
            api: Api::namespaced(client, namespace),
            rights: Rights::New,
        }
    }

    /// Creates a client for Secrets of `namespace` with the permissions of a user. A Forbidden response is permanent.
    pub fn for_people(client: Client, namespace: &str) -> Self {
        Self {
            rights: Rights::Settled,
            ..Self::new(client, namespace)
        }
    }

    async fn in_time<T>(
        &self,
        name: &str,
        call: impl Future<Output = Result<T, kube::Error>>,
    ) -> Result<T, StoreError> {
        match tokio::time::timeout(CALL_TIMEOUT, call).await {
            Ok(Ok(value)) => Ok(value),
            Ok(Err(error)) => Err(store_error(name, &error, self.rights)),
            Err(_) => Err(StoreError::Unavailable {
                name: name.to_owned(),
                text: format!("no response within {} s", CALL_TIMEOUT.as_secs()),
            }),
        }
    }
}

#[async_trait]
impl Secrets for KubeSecrets {
    async fn read(&self, name: &str) -> Result<Snapshot, StoreError> {
        self.in_time(name, self.api.get(name)).await.map(snapshot)
    }

    async fn swap(
        &self,
        name: &str,
        version: &str,
        changes: Changes,
    ) -> Result<String, StoreError> {
        let patch = Patch::Merge(merge_patch(version, changes));
        let params = PatchParams::default();
        self.in_time(name, self.api.patch(name, &params, &patch))
            .await
            .map(|secret| snapshot(secret).version)
    }

    async fn replace(
        &self,
        name: &str,
        key: &str,
        before: &[u8],
        after: &[u8],
    ) -> Result<Snapshot, StoreError> {
        let Ok(patch) = serde_json::from_value(json_patch(key, before, after)) else {
            return Err(StoreError::Conflict(name.to_owned()));
        };
        let (params, patch) = (PatchParams::default(), Patch::<()>::Json(patch));
        let replaced = self.in_time(name, self.api.patch(name, &params, &patch));
        match replaced.await {
            // The API server responds with 422 Unprocessable Entity if operation `test` fails.
            Err(StoreError::Refused { name, .. }) => Err(StoreError::Conflict(name)),
            replaced => replaced.map(snapshot),
        }
    }
}

/// Builds the JSON patch that replaces the value `before` of `key`, which is a key without the characters `~` and `/`, by `after`.
fn json_patch(key: &str, before: &[u8], after: &[u8]) -> Value {
    let path = format!("/data/{key}");
    json!([
        {"op": "test", "path": path, "value": STANDARD.encode(before)},
        {"op": "replace", "path": path, "value": STANDARD.encode(after)},
    ])
}

/// Builds the merge patch of `changes`. The API server responds with a conflict if the resource version is no longer `version`.
fn merge_patch(version: &str, changes: Changes) -> Value {
    let data: serde_json::Map<String, Value> = changes
        .into_iter()
        .map(|(key, value)| {
            (
                key,
                value.map_or(Value::Null, |bytes| STANDARD.encode(bytes).into()),
            )
        })
        .collect();
    json!({ "metadata": { "resourceVersion": version }, "data": data })
}

fn snapshot(secret: Secret) -> Snapshot {
    let data = secret.data.unwrap_or_default();
    Snapshot {
        version: secret.metadata.resource_version.unwrap_or_default(),
        data: data
            .into_iter()
            .map(|(key, value)| (key, value.0))
            .collect(),
    }
}

fn store_error(name: &str, error: &kube::Error, rights: Rights) -> StoreError {
    let name = name.to_owned();
    match error {
        kube::Error::Api(status) if status.is_forbidden() && rights == Rights::Settled => {
            StoreError::Refused {
                name,
                text: status.message.clone(),
            }
        }
        kube::Error::Api(status) if status.is_not_found() => StoreError::Missing(name),
        kube::Error::Api(status) if status.is_conflict() => StoreError::Conflict(name),
        kube::Error::Api(status) if matches!(status.code, 400 | 413 | 422) => StoreError::Refused {
            name,
            text: status.message.clone(),
        },
        kube::Error::SerdeError(error) => StoreError::Unavailable {
            name,
            text: format!("the response is not a Secret: {}", place_in_json(error)),
        },
        other => StoreError::Unavailable {
            name,
            text: chain(other),
        },
    }
}

/// Serializes a value as JSON. Serialization cannot fail: the types of this project have string keys.
pub fn to_json<T: serde::Serialize>(value: &T) -> Vec<u8> {
    serde_json::to_vec(value).unwrap_or_default()
}
