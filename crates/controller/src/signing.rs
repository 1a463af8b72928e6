//! Signs run records and pins, which are Secrets in the namespaces of tenants. A user with permission to edit Secrets there must
//! not be able to forge an approval, an image or a ServiceAccount. The signing key is in the namespace of the operator.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use alustan_api::labels::{self, Component};
use alustan_api::run::key;
use alustan_core::signature::{self, SIGNED};
use anyhow::{Context as _, Result, bail};
use futures::{StreamExt, stream};
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret;
use kube::api::{Api, ObjectMeta, Patch, PatchParams, PostParams};
use kube::{Client, ResourceExt};
use ring::rand::{SecureRandom, SystemRandom};
use serde_json::json;
use tracing::{info, warn};

use crate::call::call;
use crate::error::Error;
use crate::watch::trim::{expected_name, is_content_removed};
use crate::write_through_cache::WriteThroughCache;

/// Size of a signing key, in bytes.
const KEY_SIZE: usize = 32;
/// Entry in `data` of the signing Secret that contains the signing key.
const KEY: &str = "key";
/// Entry in `data` of the signing Secret that is written after all existing run records and pins have been signed.
const ALL_SIGNED: &str = "all-signed";
/// Maximum number of concurrent writes while existing Secrets are signed.
const CONCURRENCY: usize = 16;
/// Maximum number of attempts to sign one existing Secret.
const ATTEMPTS: usize = 5;
/// Delay between two attempts to sign all existing Secrets.
const RETRY: Duration = Duration::from_secs(30);

/// Field `data` of a Secret.
pub(crate) type Data = BTreeMap<String, ByteString>;

/// Signs and verifies entries of run records and pins.
///
/// With a new signing key, the signer accepts existing Secrets without a valid signature: they were written by an operator version without
/// signatures, or the previous signing key was deleted with its namespace. The signer signs all of them once; from then on, it refuses
/// Secrets without a valid signature.
pub(crate) struct Signer {
    key: Vec<u8>,
    /// Name of the Secret with the key, in the namespace of the operator.
    secret: String,
    trusts_existing: AtomicBool,
}

impl Signer {
    /// Reads the key from Secret `name` in the namespace of the client. Creates the Secret if it does not exist.
    ///
    /// # Errors
    /// If the Secret cannot be read or created, or has no valid key.
    pub(crate) async fn load(client: &Client, name: &str) -> Result<Self> {
        let api: Api<Secret> = Api::default_namespaced(client.clone());
        let secret = match call("read the signing key", api.get_opt(name)).await? {
            Some(secret) => secret,
            None => create(&api, name).await?,
        };
        let data = secret.data.unwrap_or_default();
        let Some(bytes) = data.get(KEY).filter(|bytes| bytes.0.len() >= KEY_SIZE) else {
            bail!(
                "key {KEY} of Secret {name} in the namespace of the operator is not a signing key \
                 of {KEY_SIZE} bytes. Restore the Secret from a backup, or delete it, and the \
                 operator creates a new key"
            );
        };
        Ok(Self {
            trusts_existing: AtomicBool::new(!data.contains_key(ALL_SIGNED)),
            ..Self::new(name, &bytes.0)
        })
    }

    /// Creates a signer that refuses Secrets without a signature.
    pub(crate) fn new(secret: &str, key: &[u8]) -> Self {
        Self {
            key: key.to_vec(),
            secret: secret.to_owned(),
            trusts_existing: AtomicBool::new(false),
        }
    }

    /// Adds signatures to `data`, the content of a Secret that belongs to the resource with uid `uid`.
    pub(crate) fn sign(&self, uid: &str, data: &mut Data) {
        let signatures: Data = SIGNED
            .into_iter()
            .filter_map(|entry| {
                let content = data.get(entry)?;
                let signature = signature::of(&self.key, uid, entry, &content.0);
                Some((key::signature(entry), ByteString(signature.into_bytes())))
            })
            .collect();
        data.extend(signatures);
    }

    /// Verifies the signatures of `secret`, which belongs to the resource with uid `uid`. Accepts every Secret until all Secrets that
    /// existed when the signing key was created have been signed.
    ///
    /// # Errors
    /// [`Error::Forged`] if an entry has no valid signature.
    pub(crate) fn verify(&self, uid: &str, secret: &Secret) -> Result<(), Error> {
        match self.first_forged(uid, secret) {
            Some(key) if !self.trusts_existing.load(Ordering::Relaxed) => Err(Error::Forged {
                secret: secret.name_any(),
                key,
            }),
            _ => Ok(()),
        }
    }

    fn is_unsigned(&self, secret: &Secret) -> bool {
        uid(secret).is_some_and(|uid| self.first_forged(uid, secret).is_some())
    }

    fn first_forged(&self, uid: &str, secret: &Secret) -> Option<&'static str> {
        let data = secret.data.as_ref()?;
        if data.contains_key(key::UNSIGNED_HISTORY) {
            return Some(key::UNSIGNED_HISTORY);
        }
        SIGNED.into_iter().find(|entry| {
            data.get(*entry).is_some_and(|content| {
                let signature = data.get(&key::signature(entry));
                !signature.is_some_and(|signature| {
                    signature::is_valid(&self.key, uid, entry, &content.0, &signature.0)
                })
            })
        })
    }

    /// Signs existing Secrets if this key has not signed them yet. Retries until all are signed, because writes fail while this replica
    /// does not lead.
    pub(crate) async fn sign_existing(&self, client: &Client, secrets: &WriteThroughCache<Secret>) {
        while self.trusts_existing.load(Ordering::Relaxed) {
            match self.try_sign_existing(client, secrets).await {
                Ok(()) => self.trusts_existing.store(false, Ordering::Relaxed),
                Err(error) => {
                    warn!(
                        error = error.chain(),
                        "failed to sign the existing run records and pins; retrying in {} s",
                        RETRY.as_secs()
                    );
                    tokio::time::sleep(RETRY).await;
                }
            }
        }
    }

    async fn try_sign_existing(
        &self,
        client: &Client,
        secrets: &WriteThroughCache<Secret>,
    ) -> Result<(), Error> {
        // Sign only Secrets with the name of a run record or pin. If a Secret with another name were signed, a tenant could copy its
        // signature to a run record.
        let unsigned = secrets.filter(|secret| {
            uid(secret).is_some()
                && expected_name(secret).is_some_and(|name| name == secret.name_any())
                && (is_content_removed(secret) || self.is_unsigned(secret))
        });
        let count = unsigned.len();
        let mut results = stream::iter(unsigned)
            .map(|secret| self.sign_one(client, Arc::unwrap_or_clone(secret)))
            .buffer_unordered(CONCURRENCY);
        while let Some(result) = results.next().await {
            result?;
        }
        info!(count, "signed all existing run records and pins");
        let api: Api<Secret> = Api::default_namespaced(client.clone());
        let body = json!({"data": {ALL_SIGNED: ByteString(b"true".to_vec())}});
        let patch = Patch::Merge(&body);
        let parameters = PatchParams::default();
        let written = api.patch(&self.secret, &parameters, &patch);
        call("update the signing Secret", written).await.map(drop)
    }

    /// Signs an existing Secret. A Secret that the API server refuses to change stays unsigned.
    async fn sign_one(&self, client: &Client, mut secret: Secret) -> Result<(), Error> {
        let name = secret.name_any();
        let api: Api<Secret> =
            Api::namespaced(client.clone(), &secret.namespace().unwrap_or_default());
        if is_content_removed(&secret) {
            match call("read a run record", api.get_opt(&name)).await? {
                Some(current) if self.is_unsigned(&current) => secret = current,
                _ => return Ok(()),
            }
        }
        for _ in 0..ATTEMPTS {
            let Some(uid) = uid(&secret) else {
                return Ok(());
            };
            let version = secret.resource_version();
            let data = self.signatures_of_existing(uid, secret.data.clone().unwrap_or_default());
            let body = json!({"metadata": {"resourceVersion": version}, "data": data});
            let patch = Patch::Merge(&body);
            let parameters = PatchParams::default();
            let written = api.patch_metadata(&name, &parameters, &patch);
            match call("sign a run record", written).await {
                Err(error) if error.is_rejected_write() => {
                    warn!(
                        secret = name,
                        error = error.chain(),
                        "failed to sign a run record or pin"
                    );
                    return Ok(());
                }
                Err(error) if error.is_outdated_write() => {
                    match call("read a run record", api.get_opt(&name)).await? {
                        Some(current) => secret = current,
                        None => return Ok(()),
                    }
                }
                written => return written.map(drop),
            }
        }
        Err(Error::Conflict)
    }

    /// Returns the changes to `data`, the entries of an existing Secret, that sign the Secret. A change to `None` removes the entry.
    fn signatures_of_existing(
        &self,
        uid: &str,
        mut data: Data,
    ) -> BTreeMap<String, Option<ByteString>> {
        let unsigned = data.remove(key::UNSIGNED_HISTORY);
        let mut changes = BTreeMap::new();
        if let Some(unsigned) = unsigned {
            changes.insert(key::UNSIGNED_HISTORY.to_owned(), None);
            let history = data.entry(key::HISTORY.to_owned()).or_insert(unsigned);
            changes.insert(key::HISTORY.to_owned(), Some(history.clone()));
        }
        self.sign(uid, &mut data);
        let signatures = SIGNED.map(key::signature).into_iter();
        changes.extend(signatures.filter_map(|entry| {
            let signature = data.remove(&entry)?;
            Some((entry, Some(signature)))
        }));
        changes
    }
}

/// Returns the uid of the resource that `secret` belongs to, from its label. `None` if `secret` is neither a run record nor a pin.
fn uid(secret: &impl ResourceExt) -> Option<&str> {
    let component = secret.labels().get(labels::COMPONENT)?;
    [Component::Record, Component::Pin]
        .iter()
        .any(|signed| signed.as_str() == component)
        .then(|| secret.labels().get(labels::UID).map(String::as_str))?
}

/// Creates the Secret with a new key, or reads the Secret that another replica has created first.
async fn create(api: &Api<Secret>, name: &str) -> Result<Secret> {
    let mut random_key = [0_u8; KEY_SIZE];
    SystemRandom::new()
        .fill(&mut random_key)
        .map_err(|_| Error::RandomSourceUnavailable)?;
    let secret = Secret {
        metadata: ObjectMeta {
            name: Some(name.to_owned()),
            ..ObjectMeta::default()
        },
        data: Some(Data::from([(
            KEY.to_owned(),
            ByteString(random_key.to_vec()),
        )])),
        ..Secret::default()
    };
    match call(
        "create the signing key",
        api.create(&PostParams::default(), &secret),
    )
    .await
    {
        Err(error) if error.is_outdated_write() => call("read the signing key", api.get(name))
            .await
            .context("another replica has created the signing key"),
        created => Ok(created?),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    const UID: &str = "u-1";

    fn signer() -> Signer {
        Signer::new("alustan-signing-key", &[7; KEY_SIZE])
    }

    fn record() -> Value {
        json!({"number": 3, "run": {"kind": "apply", "image": "a@sha256:1"}, "lock": {"id": "l"}})
    }

    fn entry(value: &Value) -> ByteString {
        ByteString(value.to_string().into_bytes())
    }

    fn signed() -> Secret {
        let mut data = Data::from([
            (key::RECORD.to_owned(), entry(&record())),
            (
                key::INPUTS.to_owned(),
                entry(&json!({"approval": {"manual": true}})),
            ),
            (key::HISTORY.to_owned(), entry(&json!({"pending": null}))),
        ]);
        signer().sign(UID, &mut data);
        Secret {
            data: Some(data),
            ..Secret::default()
        }
    }

    fn with(change: impl FnOnce(&mut Data)) -> Secret {
        let mut secret = signed();
        change(secret.data.get_or_insert_default());
        secret
    }

    fn is_refused(secret: &Secret) -> bool {
        signer().verify(UID, secret).is_err()
    }

    #[test]
    fn signed_record_is_accepted() {
        assert!(!is_refused(&signed()));
        let without_inputs = with(|data| {
            data.remove(key::INPUTS);
        });
        assert!(
            !is_refused(&without_inputs),
            "inputs are dropped after a run"
        );
    }

    #[test]
    fn changed_signed_field_is_refused() {
        for path in ["/number", "/run/image"] {
            let mut forged = record();
            *forged.pointer_mut(path).unwrap() = json!(4);
            let forged = with(|data| drop(data.insert(key::RECORD.to_owned(), entry(&forged))));
            assert!(is_refused(&forged), "{path}");
        }
        for name in [key::INPUTS, key::HISTORY] {
            let forged = json!({"approval": {"manual": false}});
            let forged = with(|data| drop(data.insert(name.to_owned(), entry(&forged))));
            assert!(is_refused(&forged), "{name}");
        }
    }

    #[test]
    fn record_with_released_lock_is_accepted() {
        let mut unlocked = record();
        unlocked["lock"] = Value::Null;
        let unlocked = with(|data| drop(data.insert(key::RECORD.to_owned(), entry(&unlocked))));
        assert!(!is_refused(&unlocked));
    }

    #[test]
    fn missing_or_foreign_signature_is_refused() {
        for name in [key::RECORD, key::INPUTS, key::HISTORY] {
            let name = key::signature(name);
            let removed = with(|data| drop(data.remove(&name)));
            let other = with(|data| drop(data.insert(name.clone(), ByteString(b"00".to_vec()))));
            assert!(is_refused(&removed) && is_refused(&other), "{name}");
        }
        assert!(
            signer().verify("u-2", &signed()).is_err(),
            "of another resource"
        );
        let swapped = with(|data| {
            let inputs = data[key::INPUTS].clone();
            let signature = data[&key::signature(key::INPUTS)].clone();
            data.insert(key::HISTORY.to_owned(), inputs);
            data.insert(key::signature(key::HISTORY), signature);
        });
        assert!(is_refused(&swapped), "an entry in the place of another");
    }

    #[test]
    fn history_of_an_earlier_operator_is_renamed_and_signed() {
        let history = entry(&json!({"pending": null}));
        let mut data = Data::from([
            (key::RECORD.to_owned(), entry(&record())),
            (key::UNSIGNED_HISTORY.to_owned(), history.clone()),
        ]);
        for (entry, content) in signer().signatures_of_existing(UID, data.clone()) {
            match content {
                Some(content) => drop(data.insert(entry, content)),
                None => drop(data.remove(&entry)),
            }
        }
        assert_eq!(data.get(key::HISTORY), Some(&history));
        assert!(!data.contains_key(key::UNSIGNED_HISTORY));
        let signed = Secret {
            data: Some(data),
            ..Secret::default()
        };
        assert!(!is_refused(&signed));
        let forged = with(|data| drop(data.insert(key::UNSIGNED_HISTORY.to_owned(), history)));
        assert!(
            is_refused(&forged),
            "an unsigned entry beside the signed one"
        );
    }

    #[test]
    fn new_key_trusts_existing_secrets_until_all_are_signed() {
        let new = Signer {
            trusts_existing: AtomicBool::new(true),
            ..Signer::new("alustan-signing-key", &[8; KEY_SIZE])
        };
        assert!(new.verify(UID, &signed()).is_ok());
        new.trusts_existing.store(false, Ordering::Relaxed);
        assert!(new.verify(UID, &signed()).is_err());
    }
}
