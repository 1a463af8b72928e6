//! The few Secrets that a runner may read and write, by name, with compare-and-swap.

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

/// How long one call to the API server may take.
const CALL_TIMEOUT: Duration = Duration::from_secs(20);

/// How many bytes of data the API server takes in one Secret.
pub const LARGEST: usize = 1024 * 1024;

/// A Secret as it was read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Snapshot {
    /// Its `resourceVersion`.
    pub version: String,
    /// Its data.
    pub data: BTreeMap<String, Vec<u8>>,
}

/// Keys to set, or with `None` to remove; other keys stay as they are.
pub type Changes = BTreeMap<String, Option<Vec<u8>>>;

impl Snapshot {
    /// The Secret after a swap of `changes`, which made it `version`.
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

    /// How many bytes of data it has after `changes`.
    pub fn size_with(&self, changes: &Changes) -> usize {
        let kept = self
            .data
            .iter()
            .filter(|(key, _)| !changes.contains_key(*key));
        let kept: usize = kept.map(|(_, value)| value.len()).sum();
        let set: usize = changes.values().flatten().map(Vec::len).sum();
        kept + set
    }
}

/// Why a Secret could not be read or written.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// There is no such Secret.
    #[error("secret {0} does not exist")]
    Missing(String),
    /// It changed since it was read.
    #[error("secret {0} was changed by somebody else")]
    Conflict(String),
    /// It cannot succeed, however often it is tried.
    #[error("secret {name} was refused: {text}")]
    Refused {
        /// The Secret.
        name: String,
        /// What the API server says.
        text: String,
    },
    /// The API server cannot be reached, or not now. The write may have happened.
    #[error("secret {name} cannot be reached: {text}")]
    Unavailable {
        /// The Secret.
        name: String,
        /// What came back.
        text: String,
    },
}

impl StoreError {
    /// Whether a later try may succeed without anybody doing anything.
    pub fn is_passing(&self) -> bool {
        matches!(self, Self::Unavailable { .. })
    }
}

/// Read and compare-and-swap of Secrets by name.
#[async_trait]
pub trait Secrets: Send + Sync {
    /// Reads a Secret.
    async fn read(&self, name: &str) -> Result<Snapshot, StoreError>;

    /// Changes a Secret that still has `version`; gives its new version.
    async fn swap(&self, name: &str, version: &str, changes: Changes)
    -> Result<String, StoreError>;
}

/// Secrets of one namespace of a cluster.
pub struct KubeSecrets {
    api: Api<Secret>,
    rights: Rights,
}

/// What is made of a refusal for want of rights.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Rights {
    /// It passes: a Role that was just written takes a moment.
    New,
    /// It stays.
    Settled,
}

impl KubeSecrets {
    /// Secrets of `namespace`, reached by `client` with the rights of a new Role.
    pub fn new(client: Client, namespace: &str) -> Self {
        Self {
            api: Api::namespaced(client, namespace),
            rights: Rights::New,
        }
    }

    /// Secrets of `namespace`, reached by `client` with the rights of a person.
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
                text: format!("no answer within {} s", CALL_TIMEOUT.as_secs()),
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
            .map(|it| snapshot(it).version)
    }
}

/// The merge patch of `changes`; the API server refuses it when the version has moved.
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
            text: format!("the answer is no Secret: {}", place_in_json(error)),
        },
        other => StoreError::Unavailable {
            name,
            text: chain(other),
        },
    }
}

/// JSON of a value that always has one: our own types with string keys.
pub fn to_json<T: serde::Serialize>(value: &T) -> Vec<u8> {
    serde_json::to_vec(value).unwrap_or_default()
}
