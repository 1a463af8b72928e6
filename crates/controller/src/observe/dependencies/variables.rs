//! Values of `spec.variablesFrom`.

use std::collections::BTreeMap;

use alustan_api::ObjectKey;
use alustan_api::report::Failure;
use alustan_api::run::Output;
use alustan_api::{KeysRef, OutputsRef, Reason, ValuesRef, VariablesFrom};
use alustan_core::dependency_graph;
use alustan_core::objects::outputs::Stored;
use alustan_core::observed::{FoundInput, FoundValue, VariablesSeen};
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use kube::ResourceExt;
use serde_json::Value;

use crate::error::{Error, ReadResult};
use crate::observe::dependencies::evaluation::{Dependencies, outputs_secret};
use crate::observe::inputs::Reader;
use crate::watch::dynamic::ListQuery;
use crate::watch::object_selector::{NameOrLabels, ObjectSelector};
use crate::watch::trim::MAX_VALUES_BYTES;

/// Maximum size of the outputs Secrets that one reconcile reads, in bytes.
const MAX_OUTPUTS_BYTES: usize = 64 << 20;

impl Dependencies<'_> {
    pub(super) async fn variables(&mut self) -> Result<VariablesSeen, Error> {
        let tf = self.observer.tf;
        let mut seen = VariablesSeen::default();
        let mut size = 0;
        for (i, from) in tf.spec.variables_from.iter().enumerate() {
            let field = format!("spec.variablesFrom[{i}]");
            match self.entry(&field, from).await? {
                Ok(input) => {
                    let values = input.values.values();
                    size += values
                        .map(|input| input.value.to_string().len())
                        .sum::<usize>();
                    if size > MAX_VALUES_BYTES {
                        let failure = too_large(&field, &input.of, size);
                        seen.missing.get_or_insert(failure);
                        continue;
                    }
                    seen.found.push(input);
                }
                Err(failure) => {
                    seen.missing.get_or_insert(failure);
                }
            }
        }
        Ok(seen)
    }

    async fn entry(&mut self, field: &str, from: &VariablesFrom) -> ReadResult<FoundInput> {
        if let Some(keys) = &from.secret_ref {
            return self.secret(&format!("{field}.secretRef"), keys).await;
        }
        if let Some(keys) = &from.config_map_ref {
            return self
                .config_map(&format!("{field}.configMapRef"), keys)
                .await;
        }
        if let Some(reference) = &from.terraform_ref {
            return Ok(self.outputs(&format!("{field}.terraformRef"), reference));
        }
        if let Some(reference) = &from.object_ref {
            return self.values(&format!("{field}.objectRef"), reference).await;
        }
        let message = format!(
            "{field}: one of secretRef, configMapRef, terraformRef and objectRef is required"
        );
        Ok(Err(Failure::user(Reason::InvalidReference, message)))
    }

    fn reader(&self) -> Reader<'_> {
        Reader {
            observer: self.observer,
            namespace: self.observer.tf.namespace().unwrap_or_default(),
        }
    }

    async fn secret(&self, field: &str, keys: &KeysRef) -> ReadResult<FoundInput> {
        let reader = self.reader();
        let data = match reader.secret(field, &keys.name).await? {
            Ok(secret) => secret.data.unwrap_or_default(),
            Err(_) if keys.optional => BTreeMap::new(),
            Err(missing) => return Ok(Err(missing)),
        };
        let mut texts = BTreeMap::new();
        for (key, ByteString(bytes)) in data {
            if keys.keys.is_empty() || keys.keys.values().any(|wanted| *wanted == key) {
                let Ok(text) = String::from_utf8(bytes) else {
                    let message = format!(
                        "{field}: key {key} of Secret {} is not valid UTF-8",
                        keys.name
                    );
                    return Ok(Err(Failure::user(Reason::ValueNotUTF8, message)));
                };
                texts.insert(key, text);
            }
        }
        Ok(select_keys(&reader, field, "Secret", keys, &texts))
    }

    async fn config_map(&self, field: &str, keys: &KeysRef) -> ReadResult<FoundInput> {
        let reader = self.reader();
        let texts = match reader.config_map(field, &keys.name).await? {
            Ok(map) => map.data.unwrap_or_default(),
            Err(_) if keys.optional => BTreeMap::new(),
            Err(missing) => return Ok(Err(missing)),
        };
        Ok(select_keys(&reader, field, "ConfigMap", keys, &texts))
    }

    /// Returns the outputs that `outputs_ref` selects: the outputs of one resource, or for each variable a list of the outputs of all selected
    /// resources.
    fn outputs(&mut self, field: &str, outputs_ref: &OutputsRef) -> Result<FoundInput, Failure> {
        let tf = self.observer.tf;
        let own_namespace = tf.namespace().unwrap_or_default();
        let namespace = outputs_ref.namespace.as_ref().unwrap_or(&own_namespace);
        if let Some(name) = &outputs_ref.name {
            let key = ObjectKey::new(namespace, name);
            return Ok(FoundInput {
                of: format!("Terraform {}", key.seen_from(&own_namespace)),
                values: self.outputs_of(field, &key, outputs_ref)?,
                trigger: outputs_ref.trigger,
            });
        }
        let selected =
            dependency_graph::selected(tf, outputs_ref, self.graph.in_namespace(namespace));
        let selected = selected
            .map_err(|error| Failure::user(Reason::InvalidSelector, format!("{field}.{error}")))?;
        if selected.is_empty() {
            let message = format!(
                "{field}.selector: no Terraform resource matches the selector; reconciliation \
                 resumes automatically once one exists"
            );
            return Err(Failure::transient(Reason::DependencyNotFound, message));
        }
        let description = outputs_ref
            .selector
            .as_ref()
            .map(describe_labels)
            .unwrap_or_default();
        let description = format!("Terraform with {description}");
        let mut lists: BTreeMap<String, (Vec<Value>, bool)> = BTreeMap::new();
        let mut size = 0;
        for source in selected {
            for (variable, FoundValue { value, secret }) in
                self.outputs_of(field, &ObjectKey::of(source), outputs_ref)?
            {
                size += value.to_string().len();
                let (list, is_secret) = lists.entry(variable).or_default();
                list.push(value);
                *is_secret |= secret;
            }
            if size > MAX_VALUES_BYTES {
                return Err(too_large(field, &description, size));
            }
        }
        let values = lists.into_iter().map(|(variable, (list, secret))| {
            let value = found_value(Value::Array(list), secret);
            (variable, value)
        });
        Ok(FoundInput {
            of: description,
            values: values.collect(),
            trigger: outputs_ref.trigger,
        })
    }

    /// Returns the outputs that `outputs_ref` selects from the outputs of the resource `key`, by variable.
    fn outputs_of(
        &mut self,
        field: &str,
        key: &ObjectKey,
        outputs_ref: &OutputsRef,
    ) -> Result<BTreeMap<String, FoundValue>, Failure> {
        let own_namespace = self.observer.tf.namespace().unwrap_or_default();
        let name = key.seen_from(&own_namespace);
        let tf = self.graph.get(key).ok_or_else(|| {
            let message = format!(
                "{field}: Terraform {name} does not exist; reconciliation resumes automatically \
                 once it exists"
            );
            Failure::transient(Reason::DependencyNotFound, message)
        })?;
        let secret = outputs_secret(self.observer.ctx, tf).ok_or_else(|| {
            let message = format!(
                "{field}: Terraform {name} has no outputs yet; reconciliation resumes \
                 automatically once it has outputs"
            );
            Failure::transient(Reason::OutputNotFound, message)
        })?;
        self.outputs_read += size_of_outputs(&secret);
        if self.outputs_read > MAX_OUTPUTS_BYTES {
            let message = format!(
                "{field}: the outputs Secrets of the selected resources exceed {} MiB (at \
                 Terraform {name}). Select fewer resources, or publish fewer outputs with \
                 spec.outputs.keys",
                MAX_OUTPUTS_BYTES >> 20
            );
            return Err(Failure::user(Reason::InputTooLarge, message));
        }
        let stored = Stored::in_secret(&secret);
        let values = outputs_ref.outputs.iter().map(|(variable, output)| {
            let output = output_of(field, &name, &stored, output)?;
            Ok((
                variable.clone(),
                found_value(output.value, output.sensitive),
            ))
        });
        values.collect()
    }

    async fn values(&mut self, field: &str, values_ref: &ValuesRef) -> ReadResult<FoundInput> {
        let selector = ObjectSelector {
            api_version: values_ref.api_version.clone(),
            kind: values_ref.kind.clone(),
            namespace: self.namespace(values_ref.namespace.as_ref()),
            objects: NameOrLabels::Name(values_ref.name.clone()),
        };
        if selector.kind == "Secret" && selector.api_version == "v1" {
            let message = format!("{field}.kind: must not be Secret; use secretRef");
            return Ok(Err(Failure::user(Reason::InvalidReference, message)));
        }
        let own_namespace = self.observer.tf.namespace().unwrap_or_default();
        let description = selector.describe(&own_namespace);
        let page = value_or_return!(self.find(field, &selector, ListQuery::Page(None)).await?);
        let Some(object) = page.items.into_iter().next() else {
            let message = format!(
                "{field}: {description} does not exist; reconciliation resumes automatically once it \
                 exists"
            );
            return Ok(Err(Failure::transient(Reason::ObjectNotFound, message)));
        };
        let mut values = BTreeMap::new();
        for (variable, expression) in &values_ref.values {
            let value_field = format!("{field}.values.{variable}");
            let value = value_or_return!(
                self.evaluate(&value_field, &description, expression, &object)
                    .await
            );
            values.insert(variable.clone(), found_value(value, false));
        }
        Ok(Ok(FoundInput {
            of: description,
            values,
            trigger: values_ref.trigger,
        }))
    }
}

/// Returns the entries of `texts` that `keys` selects.
fn select_keys(
    reader: &Reader<'_>,
    field: &str,
    kind: &str,
    keys: &KeysRef,
    texts: &BTreeMap<String, String>,
) -> Result<FoundInput, Failure> {
    let secret = kind == "Secret";
    let text = |text: &String| found_value(Value::String(text.clone()), secret);
    let mut values = BTreeMap::new();
    if keys.keys.is_empty() {
        values.extend(
            texts
                .iter()
                .map(|(key, text_value)| (key.clone(), text(text_value))),
        );
    }
    for (variable, key) in &keys.keys {
        match texts.get(key) {
            Some(text_value) => {
                values.insert(variable.clone(), text(text_value));
            }
            None if keys.optional => {}
            None => return Err(reader.missing_key(field, kind, &keys.name, key)),
        }
    }
    Ok(FoundInput {
        of: format!("{kind} {}", keys.name),
        values,
        trigger: keys.trigger,
    })
}

fn found_value(value: Value, secret: bool) -> FoundValue {
    FoundValue { value, secret }
}

fn output_of(
    field: &str,
    name: &str,
    stored: &Stored<'_>,
    output: &str,
) -> Result<Output, Failure> {
    stored.get(output).ok_or_else(|| {
        let existing_names: Vec<_> = stored.names().collect();
        let existing_names = if existing_names.is_empty() {
            "none".to_owned()
        } else {
            existing_names.join(", ")
        };
        let message = format!(
            "{field}.outputs: output {output} of Terraform {name} does not exist or is null \
             (existing outputs: {existing_names}); reconciliation resumes automatically once it has a value"
        );
        Failure::transient(Reason::OutputNotFound, message)
    })
}

/// Returns the size of the values and annotations of an outputs Secret, in bytes.
fn size_of_outputs(secret: &Secret) -> usize {
    let values = secret.data.iter().flatten().map(|(_, value)| value.0.len());
    let annotations = secret.annotations().values().map(String::len);
    values.chain(annotations).sum()
}

fn describe_labels(selector: &LabelSelector) -> String {
    dependency_graph::selector(Some(selector))
        .map_or_else(|error| error, |selector| selector.to_string())
}

fn too_large(field: &str, source: &str, size: usize) -> Failure {
    Failure::user(
        Reason::InputTooLarge,
        format!(
            "{field}: the values including {source} are {size} bytes, more than the limit of \
             {MAX_VALUES_BYTES} bytes for a run. Select fewer keys, or pass a reference instead of \
             the content"
        ),
    )
}
