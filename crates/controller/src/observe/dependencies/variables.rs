//! Values of `spec.variablesFrom`.

use std::collections::BTreeMap;

use alustan_api::report::Failure;
use alustan_api::run::Output;
use alustan_api::{KeysRef, OutputsRef, Reason, ValuesRef, VariablesFrom};
use alustan_core::dependency_graph;
use alustan_core::objects::outputs::Stored;
use alustan_core::observed::{FoundInput, FoundValue, Key, VariablesSeen};
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use kube::ResourceExt;
use serde_json::Value;

use crate::error::{Error, Found};
use crate::observe::dependencies::evaluation::{Stack, outputs_secret};
use crate::observe::inputs::Reader;
use crate::watch::dynamic::{Of, Query, Which};
use crate::watch::trim::LARGEST_VALUES;

/// Maximum size of the outputs Secrets that one reconcile reads, in bytes.
const LARGEST_OUTPUTS: usize = 64 << 20;

impl Stack<'_> {
    pub(super) async fn variables(&mut self) -> Result<VariablesSeen, Error> {
        let tf = self.observer.tf;
        let mut seen = VariablesSeen::default();
        let mut size = 0;
        for (i, from) in tf.spec.variables_from.iter().enumerate() {
            let field = format!("spec.variablesFrom[{i}]");
            match self.entry(&field, from).await? {
                Ok(found) => {
                    let values = found.values.values();
                    size += values
                        .map(|found| found.value.to_string().len())
                        .sum::<usize>();
                    if size > LARGEST_VALUES {
                        let failure = too_large(&field, &found.of, size);
                        seen.missing.get_or_insert(failure);
                        continue;
                    }
                    seen.found.push(found);
                }
                Err(failure) => {
                    seen.missing.get_or_insert(failure);
                }
            }
        }
        Ok(seen)
    }

    async fn entry(&mut self, field: &str, from: &VariablesFrom) -> Found<FoundInput> {
        if let Some(keys) = &from.secret_ref {
            return self.secret(&format!("{field}.secretRef"), keys).await;
        }
        if let Some(keys) = &from.config_map_ref {
            return self
                .config_map(&format!("{field}.configMapRef"), keys)
                .await;
        }
        if let Some(of) = &from.terraform_ref {
            return Ok(self.outputs(&format!("{field}.terraformRef"), of));
        }
        if let Some(of) = &from.object_ref {
            return self.values(&format!("{field}.objectRef"), of).await;
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

    async fn secret(&self, field: &str, keys: &KeysRef) -> Found<FoundInput> {
        let reader = self.reader();
        let data = match reader.secret(field, &keys.name).await? {
            Ok(secret) => secret.data.unwrap_or_default(),
            Err(_) if keys.optional => BTreeMap::new(),
            Err(missing) => return Ok(Err(missing)),
        };
        let mut texts = BTreeMap::new();
        for (key, ByteString(bytes)) in data {
            if keys.keys.is_empty() || keys.keys.values().any(|it| *it == key) {
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
        Ok(chosen(&reader, field, "Secret", keys, &texts))
    }

    async fn config_map(&self, field: &str, keys: &KeysRef) -> Found<FoundInput> {
        let reader = self.reader();
        let texts = match reader.config_map(field, &keys.name).await? {
            Ok(map) => map.data.unwrap_or_default(),
            Err(_) if keys.optional => BTreeMap::new(),
            Err(missing) => return Ok(Err(missing)),
        };
        Ok(chosen(&reader, field, "ConfigMap", keys, &texts))
    }

    /// Returns the outputs that `of` takes: those of one resource, or for each variable a list of the outputs of all selected resources.
    fn outputs(&mut self, field: &str, of: &OutputsRef) -> Result<FoundInput, Failure> {
        let tf = self.observer.tf;
        let here = tf.namespace().unwrap_or_default();
        let namespace = of.namespace.as_ref().unwrap_or(&here);
        if let Some(name) = &of.name {
            let key = Key::new(namespace, name);
            return Ok(FoundInput {
                of: format!("Terraform {}", key.seen_from(&here)),
                values: self.outputs_of(field, &key, of)?,
                trigger: of.trigger,
            });
        }
        let selected = dependency_graph::selected(tf, of, self.graph.in_namespace(namespace));
        let selected = selected
            .map_err(|error| Failure::user(Reason::InvalidSelector, format!("{field}.{error}")))?;
        if selected.is_empty() {
            let message = format!(
                "{field}.selector: no Terraform resource matches the selector; reconciliation \
                 resumes automatically once one exists"
            );
            return Err(Failure::transient(Reason::DependencyNotFound, message));
        }
        let described = of.selector.as_ref().map(described).unwrap_or_default();
        let described = format!("Terraform with {described}");
        let mut lists: BTreeMap<String, (Vec<Value>, bool)> = BTreeMap::new();
        let mut size = 0;
        for each in selected {
            for (variable, FoundValue { value, secret }) in
                self.outputs_of(field, &Key::of(each), of)?
            {
                size += value.to_string().len();
                let (list, is_secret) = lists.entry(variable).or_default();
                list.push(value);
                *is_secret |= secret;
            }
            if size > LARGEST_VALUES {
                return Err(too_large(field, &described, size));
            }
        }
        let values = lists.into_iter().map(|(variable, (list, secret))| {
            let value = found(Value::Array(list), secret);
            (variable, value)
        });
        Ok(FoundInput {
            of: described,
            values: values.collect(),
            trigger: of.trigger,
        })
    }

    /// Returns the outputs of the resource `key` that `of` takes, by variable.
    fn outputs_of(
        &mut self,
        field: &str,
        key: &Key,
        of: &OutputsRef,
    ) -> Result<BTreeMap<String, FoundValue>, Failure> {
        let here = self.observer.tf.namespace().unwrap_or_default();
        let name = key.seen_from(&here);
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
        if self.outputs_read > LARGEST_OUTPUTS {
            let message = format!(
                "{field}: the outputs Secrets of the selected resources exceed {} MiB (at \
                 Terraform {name}). Select fewer resources, or publish fewer outputs with \
                 spec.outputs.keys",
                LARGEST_OUTPUTS >> 20
            );
            return Err(Failure::user(Reason::InputTooLarge, message));
        }
        let stored = Stored::in_secret(&secret);
        let values = of.outputs.iter().map(|(variable, output)| {
            let output = output_of(field, &name, &stored, output)?;
            Ok((variable.clone(), found(output.value, output.sensitive)))
        });
        values.collect()
    }

    async fn values(&mut self, field: &str, of: &ValuesRef) -> Found<FoundInput> {
        let which = Which {
            api_version: of.api_version.clone(),
            kind: of.kind.clone(),
            namespace: self.namespace(of.namespace.as_ref()),
            of: Of::Name(of.name.clone()),
        };
        if which.kind == "Secret" && which.api_version == "v1" {
            let message = format!("{field}.kind: must not be Secret; use secretRef");
            return Ok(Err(Failure::user(Reason::InvalidReference, message)));
        }
        let here = self.observer.tf.namespace().unwrap_or_default();
        let named = which.named(&here);
        let page = found!(self.find(field, &which, Query::Page(None)).await?);
        let Some(object) = page.items.into_iter().next() else {
            let message = format!(
                "{field}: {named} does not exist; reconciliation resumes automatically once it \
                 exists"
            );
            return Ok(Err(Failure::transient(Reason::ObjectNotFound, message)));
        };
        let mut values = BTreeMap::new();
        for (variable, expression) in &of.values {
            let place = format!("{field}.values.{variable}");
            let value = found!(self.evaluate(&place, &named, expression, &object).await);
            values.insert(variable.clone(), found(value, false));
        }
        Ok(Ok(FoundInput {
            of: named,
            values,
            trigger: of.trigger,
        }))
    }
}

/// Returns the entries of `texts` that `keys` selects.
fn chosen(
    reader: &Reader<'_>,
    field: &str,
    kind: &str,
    keys: &KeysRef,
    texts: &BTreeMap<String, String>,
) -> Result<FoundInput, Failure> {
    let secret = kind == "Secret";
    let text = |text: &String| found(Value::String(text.clone()), secret);
    let mut values = BTreeMap::new();
    if keys.keys.is_empty() {
        values.extend(texts.iter().map(|(key, it)| (key.clone(), text(it))));
    }
    for (variable, key) in &keys.keys {
        match texts.get(key) {
            Some(it) => {
                values.insert(variable.clone(), text(it));
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

fn found(value: Value, secret: bool) -> FoundValue {
    FoundValue { value, secret }
}

fn output_of(
    field: &str,
    name: &str,
    stored: &Stored<'_>,
    output: &str,
) -> Result<Output, Failure> {
    stored.get(output).ok_or_else(|| {
        let there: Vec<_> = stored.names().collect();
        let there = if there.is_empty() {
            "none".to_owned()
        } else {
            there.join(", ")
        };
        let message = format!(
            "{field}.outputs: output {output} of Terraform {name} does not exist or is null \
             (existing outputs: {there}); reconciliation resumes automatically once it has a value"
        );
        Failure::transient(Reason::OutputNotFound, message)
    })
}

/// Returns the size of the values and annotations of an outputs Secret, in bytes.
fn size_of_outputs(secret: &Secret) -> usize {
    let values = secret.data.iter().flatten().map(|(_, it)| it.0.len());
    let annotations = secret.annotations().values().map(String::len);
    values.chain(annotations).sum()
}

fn described(selector: &LabelSelector) -> String {
    dependency_graph::selector(Some(selector)).map_or_else(|error| error, |it| it.to_string())
}

fn too_large(field: &str, of: &str, size: usize) -> Failure {
    Failure::user(
        Reason::InputTooLarge,
        format!(
            "{field}: the values including {of} are {size} bytes, more than the limit of \
             {LARGEST_VALUES} bytes for a run. Select fewer keys, or pass a reference instead of \
             the content"
        ),
    )
}
