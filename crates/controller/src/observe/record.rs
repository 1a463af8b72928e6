//! The run record and the pin, as the mirror has them.

use std::sync::Arc;

use alustan_api::run::{Pin, key};
use alustan_api::{Terraform, names};
use alustan_core::delete::leaves_everything;
use alustan_core::objects::secrets;
use alustan_core::seen::{NothingLeft, RecordSeen};
use k8s_openapi::api::core::v1::{Namespace, Secret};
use kube::ResourceExt;
use kube::api::{Api, PartialObjectMeta};
use serde::de::DeserializeOwned;

use crate::context::Context;
use crate::enact::call;
use crate::error::Error;
use crate::is_made_for;

/// What is kept of a resource in Secrets.
pub(super) struct Kept {
    pub(super) record: Option<RecordSeen>,
    pub(super) pin: Option<Pin>,
    pub(super) nothing_left: Option<NothingLeft>,
}

/// The pin of the deleted `tf`.
pub(crate) async fn pin(cx: &Context, tf: &Terraform) -> Result<Option<Pin>, Error> {
    Ok(kept(cx, tf).await?.pin)
}

/// The run record and the pin of `tf`. Where a deleted resource seems to have no record, the API
/// server is asked itself. What cannot be read is as good as gone where everything is left as it is.
pub(super) async fn kept(cx: &Context, tf: &Terraform) -> Result<Kept, Error> {
    let namespace = tf.namespace().unwrap_or_default();
    let (record, pin) = (names::record(&tf.name_any()), names::pin(&tf.name_any()));
    let deleting = tf.metadata.deletion_timestamp.is_some();
    let mirrored = |name: &str| {
        let found = cx.mirrors.secrets.get(&namespace, name);
        found.filter(|secret| is_made_for(tf, &**secret))
    };
    let mut found = (mirrored(&record), mirrored(&pin));
    if found.0.is_none() && deleting {
        let api: Api<Secret> = Api::namespaced(cx.client.clone(), &namespace);
        let live =
            |found: Option<Secret>| found.filter(|secret| is_made_for(tf, secret)).map(Arc::new);
        found = (
            live(call("read the run record", api.get_opt(&record)).await?),
            live(call("read the pin", api.get_opt(&pin)).await?),
        );
    }
    let read_record = found.0.map(|secret| decode(&secret)).transpose();
    let read_pin = found
        .1
        .map(|secret| required(&secret, secrets::PIN))
        .transpose();
    let given_up = deleting && leaves_everything(tf) && (read_record.is_err() || read_pin.is_err());
    let (record, pin) = if given_up {
        (None, None)
    } else {
        (read_record?, read_pin?)
    };
    let nothing = deleting && record.is_none() && pin.is_none();
    let nothing_left = if nothing {
        Some(nothing_left(cx, &namespace).await?)
    } else {
        None
    };
    Ok(Kept {
        record,
        pin,
        nothing_left,
    })
}

async fn nothing_left(cx: &Context, namespace: &str) -> Result<NothingLeft, Error> {
    let api: Api<Namespace> = Api::all(cx.client.clone());
    let namespace = call("read the namespace", api.get_metadata_opt(namespace)).await?;
    let alive =
        |namespace: &PartialObjectMeta<Namespace>| namespace.metadata.deletion_timestamp.is_none();
    Ok(NothingLeft {
        namespace_terminating: !namespace.as_ref().is_some_and(alive),
    })
}

/// What cannot be read is no new beginning: it holds what was applied.
fn decode(secret: &Secret) -> Result<RecordSeen, Error> {
    let unreadable = |key: &'static str| Error::Unreadable {
        secret: secret.name_any(),
        key,
    };
    let key = secret.data.as_ref().and_then(|data| data.get(key::KEY));
    Ok(RecordSeen {
        version: secret.resource_version().unwrap_or_default(),
        key: key.ok_or_else(|| unreadable(key::KEY))?.0.clone(),
        record: required(secret, key::RECORD)?,
        inputs: decoded(secret, key::INPUTS)?,
        report: decoded(secret, key::REPORT)?,
        outputs: decoded(secret, key::OUTPUTS)?,
        history: required(secret, key::HISTORY)?,
    })
}

fn required<T: DeserializeOwned>(secret: &Secret, key: &'static str) -> Result<T, Error> {
    decoded(secret, key)?.ok_or_else(|| Error::Unreadable {
        secret: secret.name_any(),
        key,
    })
}

fn decoded<T: DeserializeOwned>(secret: &Secret, key: &'static str) -> Result<Option<T>, Error> {
    let Some(bytes) = secret.data.as_ref().and_then(|data| data.get(key)) else {
        return Ok(None);
    };
    serde_json::from_slice(&bytes.0)
        .map(Some)
        .map_err(|_| Error::Unreadable {
            secret: secret.name_any(),
            key,
        })
}
