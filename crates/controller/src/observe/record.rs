//! The run record and the pin, as the mirror has them.

use alustan_api::run::{Pin, key};
use alustan_api::{Terraform, labels, names};
use alustan_core::objects::secrets;
use alustan_core::seen::{NothingLeft, RecordSeen};
use k8s_openapi::api::core::v1::{Namespace, Secret};
use kube::ResourceExt;
use kube::api::{Api, PartialObjectMeta};
use serde::de::DeserializeOwned;
use tracing::error;

use crate::context::Context;
use crate::enact::call;
use crate::error::Error;

/// What is kept of a resource in Secrets.
pub(super) struct Kept {
    pub(super) record: Option<RecordSeen>,
    pub(super) pin: Option<Pin>,
    pub(super) nothing_left: Option<NothingLeft>,
}

/// The run record and the pin of `tf`. Where a deleted resource seems to have no record, the API
/// server is asked itself.
pub(super) async fn kept(cx: &Context, tf: &Terraform) -> Result<Kept, Error> {
    let namespace = tf.namespace().unwrap_or_default();
    let (record, pin) = (names::record(&tf.name_any()), names::pin(&tf.name_any()));
    let found = cx.secrets.get(&namespace, &record);
    if found.is_some() || tf.metadata.deletion_timestamp.is_none() {
        return Ok(Kept {
            record: found.and_then(|secret| decode(tf, &secret)),
            pin: cx
                .secrets
                .get(&namespace, &pin)
                .and_then(|secret| pinned(tf, &secret)),
            nothing_left: None,
        });
    }
    let api: Api<Secret> = Api::namespaced(cx.client.clone(), &namespace);
    let record = call("read the run record", api.get_opt(&record)).await?;
    let pin = call("read the pin", api.get_opt(&pin)).await?;
    let (record, pin) = (
        record.and_then(|secret| decode(tf, &secret)),
        pin.and_then(|secret| pinned(tf, &secret)),
    );
    let nothing_left = if record.is_none() && pin.is_none() {
        let api: Api<Namespace> = Api::all(cx.client.clone());
        let namespace = call("read the namespace", api.get_metadata_opt(&namespace)).await?;
        let alive = |namespace: &PartialObjectMeta<Namespace>| {
            namespace.metadata.deletion_timestamp.is_none()
        };
        Some(NothingLeft {
            namespace_terminating: !namespace.as_ref().is_some_and(alive),
        })
    } else {
        None
    };
    Ok(Kept {
        record,
        pin,
        nothing_left,
    })
}

fn pinned(tf: &Terraform, secret: &Secret) -> Option<Pin> {
    ours(tf, secret)
        .then(|| decoded(secret, secrets::PIN))
        .flatten()
}

/// A Secret of an earlier resource of the same name is none of ours.
fn ours(tf: &Terraform, secret: &Secret) -> bool {
    secret.labels().get(labels::UID) == tf.uid().as_ref()
}

fn decode(tf: &Terraform, secret: &Secret) -> Option<RecordSeen> {
    if !ours(tf, secret) {
        return None;
    }
    Some(RecordSeen {
        version: secret.resource_version()?,
        key: secret.data.as_ref()?.get(key::KEY)?.0.clone(),
        record: decoded(secret, key::RECORD).unwrap_or_default(),
        inputs: decoded(secret, key::INPUTS),
        report: decoded(secret, key::REPORT),
        outputs: decoded(secret, key::OUTPUTS),
        history: decoded(secret, key::HISTORY).unwrap_or_default(),
    })
}

fn decoded<T: DeserializeOwned>(secret: &Secret, key: &str) -> Option<T> {
    let bytes = secret.data.as_ref()?.get(key)?;
    serde_json::from_slice(&bytes.0)
        .inspect_err(|error| error!(secret = secret.name_any(), key, %error, "unreadable"))
        .ok()
}
