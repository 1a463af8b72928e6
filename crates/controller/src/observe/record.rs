//! The run record and the pin, as the mirror has them.

use alustan_api::run::{Pin, key};
use alustan_api::{Terraform, names};
use alustan_core::objects::secrets;
use alustan_core::seen::RecordSeen;
use k8s_openapi::api::core::v1::Secret;
use kube::ResourceExt;
use serde::de::DeserializeOwned;
use tracing::error;

use crate::context::Context;

/// The run record of `tf`.
pub(super) fn record(cx: &Context, tf: &Terraform) -> Option<RecordSeen> {
    let secret = cx
        .secrets
        .get(&tf.namespace()?, &names::record(&tf.name_any()))?;
    Some(RecordSeen {
        version: secret.resource_version()?,
        key: secret.data.as_ref()?.get(key::KEY)?.0.clone(),
        record: decoded(&secret, key::RECORD).unwrap_or_default(),
        inputs: decoded(&secret, key::INPUTS),
        report: decoded(&secret, key::REPORT),
        outputs: decoded(&secret, key::OUTPUTS),
        history: decoded(&secret, key::HISTORY).unwrap_or_default(),
    })
}

/// The pin of `tf`.
pub(super) fn pin(cx: &Context, tf: &Terraform) -> Option<Pin> {
    let secret = cx
        .secrets
        .get(&tf.namespace()?, &names::pin(&tf.name_any()))?;
    decoded(&secret, secrets::PIN)
}

fn decoded<T: DeserializeOwned>(secret: &Secret, key: &str) -> Option<T> {
    let bytes = secret.data.as_ref()?.get(key)?;
    serde_json::from_slice(&bytes.0)
        .inspect_err(|error| error!(secret = secret.name_any(), key, %error, "unreadable"))
        .ok()
}
