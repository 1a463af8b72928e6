//! The run record and the pin, as the mirror has them.

use std::sync::Arc;

use alustan_api::run::{Pin, key};
use alustan_api::{Terraform, labels, names};
use alustan_core::objects::secrets;
use alustan_core::seen::RecordSeen;
use k8s_openapi::api::core::v1::Secret;
use kube::ResourceExt;
use kube::api::Api;
use serde::de::DeserializeOwned;
use tracing::error;

use crate::context::Context;
use crate::enact::call;
use crate::error::Error;

/// The run record and the pin of `tf`. Before a deleted resource is let go for the lack of both,
/// the API server is asked itself.
pub(super) async fn both(
    cx: &Context,
    tf: &Terraform,
) -> Result<(Option<RecordSeen>, Option<Pin>), Error> {
    let namespace = tf.namespace().unwrap_or_default();
    let (record, pin) = (names::record(&tf.name_any()), names::pin(&tf.name_any()));
    let mut seen = (
        cx.secrets.get(&namespace, &record),
        cx.secrets.get(&namespace, &pin),
    );
    if tf.metadata.deletion_timestamp.is_some() && seen.0.is_none() {
        let api: Api<Secret> = Api::namespaced(cx.client.clone(), &namespace);
        let live = call("read the run record", api.get_opt(&record)).await?;
        seen = (
            live.map(Arc::new),
            call("read the pin", api.get_opt(&pin)).await?.map(Arc::new),
        );
    }
    let ours = |secret: &Arc<Secret>| secret.labels().get(labels::UID) == tf.uid().as_ref();
    Ok((
        seen.0.filter(ours).and_then(|secret| decode(&secret)),
        seen.1
            .filter(ours)
            .and_then(|secret| decoded(&secret, secrets::PIN)),
    ))
}

fn decode(secret: &Secret) -> Option<RecordSeen> {
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
