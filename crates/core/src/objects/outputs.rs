//! Objects with the outputs of a module.

use std::collections::{BTreeMap, BTreeSet};

use alustan_api::labels::{self, Component};
use alustan_api::run::{Output, Outputs, PublishedOutputs};
use alustan_api::{Terraform, json_size, names};
use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube_core::ResourceExt;
use serde_json::{Value, json};

use super::{meta, secrets};
use crate::digest;

/// Outputs selected by `spec.outputs`.
#[derive(Default)]
pub struct SelectedOutputs {
    /// Outputs by their key in the data of the Secret or ConfigMap.
    pub outputs: Outputs,
    /// Annotations to set on the Secret and the ConfigMap, by name: outputs and constants.
    pub annotations: BTreeMap<String, String>,
}

/// Returns the name of the outputs Secret of `tf`.
pub fn name(tf: &Terraform) -> String {
    tf.spec
        .outputs
        .as_ref()
        .and_then(|outputs| outputs.secret_name.clone())
        .unwrap_or_else(|| names::outputs(&tf.name_any()))
}

/// Returns a description of the objects in `spec.outputs` of `tf`: their names, and a digest of the other fields of `spec.outputs`.
pub fn published_objects(tf: &Terraform) -> PublishedOutputs {
    let spec = tf.spec.outputs.clone().unwrap_or_default();
    // Without `status` and constants, the digest is that of earlier versions of the operator, so that an upgrade starts no run.
    let how = match (spec.status.is_empty(), spec.constant_annotations.is_empty()) {
        (true, true) => json!([spec.keys, spec.labels, spec.annotations]),
        (false, true) => json!([spec.keys, spec.labels, spec.annotations, spec.status]),
        (_, false) => json!([
            spec.keys,
            spec.labels,
            spec.annotations,
            spec.status,
            spec.constant_annotations
        ]),
    };
    PublishedOutputs {
        secret: name(tf),
        config_map: spec.config_map_name,
        how: digest::plain(&how),
    }
}

/// Builds the outputs Secret of `tf`. One annotation lists the outputs whose value is JSON, another the sensitive outputs. From these
/// annotations, [`read`] restores type and sensitivity of each output.
pub fn secret(tf: &Terraform, chosen: &SelectedOutputs) -> Secret {
    let outputs = &chosen.outputs;
    let data = outputs
        .iter()
        .map(|(key, output)| (key.as_str(), text(&output.value).into_bytes()));
    let secret = secrets::secret(tf, name(tf), Component::Outputs, data);
    let output_annotations = [
        (
            labels::JSON_OUTPUTS,
            keys(outputs, |output| !output.value.is_string()),
        ),
        (
            labels::SENSITIVE_OUTPUTS,
            keys(outputs, |output| output.sensitive),
        ),
    ];
    let output_annotations = output_annotations
        .into_iter()
        .filter(|(_, keys)| !keys.is_empty());
    let mut metadata = metadata(tf, name(tf), chosen);
    let annotations = metadata.annotations.get_or_insert_default();
    annotations.extend(output_annotations.map(|(name, keys)| (name.to_owned(), keys)));
    Secret { metadata, ..secret }
}

/// Builds the ConfigMap with the outputs that are not sensitive.
pub fn config_map(tf: &Terraform, name: String, chosen: &SelectedOutputs) -> ConfigMap {
    let public = chosen
        .outputs
        .iter()
        .filter(|(_, output)| !output.sensitive);
    let public = public.map(|(key, output)| (key.clone(), text(&output.value)));
    ConfigMap {
        metadata: metadata(tf, name, chosen),
        data: Some(public.collect()),
        ..ConfigMap::default()
    }
}

/// Metadata with the labels and annotations of `spec.outputs`. The labels of the operator have precedence.
fn metadata(tf: &Terraform, name: String, chosen: &SelectedOutputs) -> ObjectMeta {
    let own = meta(tf, name, Component::Outputs);
    let spec = tf.spec.outputs.as_ref();
    let mut labels = spec
        .map(|outputs| outputs.labels.clone())
        .unwrap_or_default();
    labels.extend(own.labels.into_iter().flatten());
    ObjectMeta {
        labels: Some(labels),
        annotations: Some(chosen.annotations.clone()),
        ..own
    }
}

/// Returns `value` as text: a string without quotes, any other value as JSON.
pub fn text(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        value => value.to_string(),
    }
}

fn keys(outputs: &Outputs, is_selected: impl Fn(&Output) -> bool) -> String {
    let keys = outputs.iter().filter(|(_, output)| is_selected(output));
    let keys: Vec<_> = keys.map(|(name, _)| name.as_str()).collect();
    keys.join(",")
}

/// Outputs in a Secret built by [`secret`]. [`Self::get`] parses the value of an output when it is called.
pub struct Stored<'a> {
    secret: &'a Secret,
    json: BTreeSet<&'a str>,
    sensitive: BTreeSet<&'a str>,
}

impl<'a> Stored<'a> {
    /// Reads which outputs of `secret` are JSON and which are sensitive.
    pub fn in_secret(secret: &'a Secret) -> Self {
        let keys_in = |annotation: &str| -> BTreeSet<&str> {
            let keys = secret.annotations().get(annotation);
            keys.into_iter().flat_map(|keys| keys.split(',')).collect()
        };
        Self {
            secret,
            json: keys_in(labels::JSON_OUTPUTS),
            sensitive: keys_in(labels::SENSITIVE_OUTPUTS),
        }
    }

    /// Returns the names of the outputs.
    pub fn names(&self) -> impl Iterator<Item = &'a str> {
        let data = self.secret.data.iter().flatten();
        data.map(|(name, _)| name.as_str())
    }

    /// Parses the output `name`.
    pub fn get(&self, name: &str) -> Option<Output> {
        let bytes = &self.secret.data.as_ref()?.get(name)?.0;
        let text = || Value::String(String::from_utf8_lossy(bytes).into_owned());
        let value = if self.json.contains(name) && json_size::is_small(bytes) {
            serde_json::from_slice(bytes).unwrap_or_else(|_| text())
        } else {
            text()
        };
        let sensitive = self.sensitive.contains(name);
        Some(Output { value, sensitive })
    }
}

/// Parses all outputs in a Secret built by [`secret`].
pub fn read(secret: &Secret) -> Outputs {
    let stored = Stored::in_secret(secret);
    let outputs = stored.names();
    outputs
        .filter_map(|name| Some((name.to_owned(), stored.get(name)?)))
        .collect()
}
