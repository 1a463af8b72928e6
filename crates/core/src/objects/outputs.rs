//! The module's outputs as an object, and back.

use std::collections::{BTreeMap, BTreeSet};

use alustan_api::labels::{self, Component};
use alustan_api::run::{Output, Outputs};
use alustan_api::{Terraform, names};
use k8s_openapi::api::core::v1::Secret;
use kube::ResourceExt;
use serde_json::Value;

use super::secrets;

/// The name of the outputs Secret of `tf`.
pub fn name(tf: &Terraform) -> String {
    tf.spec
        .outputs
        .as_ref()
        .and_then(|outputs| outputs.secret_name.clone())
        .unwrap_or_else(|| names::outputs(&tf.name_any()))
}

/// The outputs Secret of `tf`: strings as they are, everything else as JSON. Annotations say which
/// are which, and which are sensitive, so that other resources read them as they were.
pub fn secret(tf: &Terraform, outputs: &Outputs) -> Secret {
    let data = outputs.iter().map(|(name, output)| {
        let text = match &output.value {
            Value::String(text) => text.clone(),
            other => other.to_string(),
        };
        (name.as_str(), text.into_bytes())
    });
    let mut secret = secrets::secret(tf, name(tf), Component::Outputs, data);
    let annotations = [
        (
            labels::JSON_OUTPUTS,
            keys(outputs, |it| !it.value.is_string()),
        ),
        (labels::SENSITIVE_OUTPUTS, keys(outputs, |it| it.sensitive)),
    ];
    secret.metadata.annotations = Some(
        annotations
            .into_iter()
            .filter(|(_, keys)| !keys.is_empty())
            .map(|(name, keys)| (name.to_owned(), keys))
            .collect(),
    );
    secret
}

fn keys(outputs: &Outputs, which: impl Fn(&Output) -> bool) -> String {
    let keys = outputs.iter().filter(|(_, output)| which(output));
    let keys: Vec<_> = keys.map(|(name, _)| name.as_str()).collect();
    keys.join(",")
}

/// The outputs in a Secret that [`secret`] made.
pub fn read(secret: &Secret) -> Outputs {
    let listed = |annotation: &str| -> BTreeSet<&str> {
        let list = secret.annotations().get(annotation);
        list.into_iter().flat_map(|list| list.split(',')).collect()
    };
    let (json, sensitive) = (
        listed(labels::JSON_OUTPUTS),
        listed(labels::SENSITIVE_OUTPUTS),
    );
    let data = secret.data.iter().flatten();
    data.map(|(key, bytes)| {
        let text = || Value::String(String::from_utf8_lossy(&bytes.0).into_owned());
        let value = if json.contains(key.as_str()) {
            serde_json::from_slice(&bytes.0).unwrap_or_else(|_| text())
        } else {
            text()
        };
        let sensitive = sensitive.contains(key.as_str());
        (key.clone(), Output { value, sensitive })
    })
    .collect::<BTreeMap<_, _>>()
}
