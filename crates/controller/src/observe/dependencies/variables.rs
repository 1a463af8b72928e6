//! Values of `spec.variablesFrom`.

use std::collections::BTreeMap;

use alustan_api::report::Failure;
use alustan_api::run::{Output, Outputs};
use alustan_api::{KeysRef, OutputsRef, ValuesRef, VariablesFrom};
use alustan_core::dependency_graph;
use alustan_core::objects::outputs;
use alustan_core::observed::{FoundInput, FoundValue, Key, VariablesSeen};
use k8s_openapi::ByteString;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use kube::ResourceExt;
use serde_json::Value;

use crate::error::{Error, Found};
use crate::observe::dependencies::evaluation::{Stack, wrong};
use crate::observe::inputs::{Reader, waits};
use crate::watch::dynamic::{Of, Query, Which};

/// Maximum size of values from other objects, in bytes of JSON. The run record holds them twice, and a Secret holds 1 MiB.
pub(crate) const LARGEST_VALUES: usize = 256 * 1024;

impl Stack<'_> {
    pub(super) async fn variables(&mut self) -> Result<VariablesSeen, Error> {
        let tf = self.session.tf;
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
            "{field}: one of secretRef, configMapRef, terraformRef and objectRef must be given"
        );
        Ok(Err(wrong("InvalidReference", message)))
    }

    fn reader(&self) -> Reader<'_> {
        Reader {
            cx: self.session.cx,
            namespace: self.session.tf.namespace().unwrap_or_default(),
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
                    let message = format!("{field}: key {key} of Secret {} is no text", keys.name);
                    return Ok(Err(wrong("NotText", message)));
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

    fn outputs(&self, field: &str, of: &OutputsRef) -> Result<FoundInput, Failure> {
        let tf = self.session.tf;
        let here = tf.namespace().unwrap_or_default();
        let trigger = of.trigger;
        if let Some(name) = &of.name {
            let namespace = of.namespace.clone().unwrap_or_else(|| here.clone());
            let key = Key::new(namespace, name);
            let (of_it, from) = self.outputs_of(field, &key)?;
            let values = of.outputs.iter().map(|(variable, output)| {
                let value = output_of(field, &of_it, &from, output)?;
                Ok((
                    variable.clone(),
                    found(value.value.clone(), value.sensitive),
                ))
            });
            return Ok(FoundInput {
                of: format!("Terraform {of_it}"),
                values: values.collect::<Result<_, _>>()?,
                trigger,
            });
        }
        let selected = dependency_graph::selected(tf, of, self.all.iter().copied());
        let selected =
            selected.map_err(|error| wrong("InvalidSelector", format!("{field}.{error}")))?;
        if selected.is_empty() {
            let message = format!(
                "{field}.selector: it selects no Terraform resource; once there is one, this goes on by itself"
            );
            return Err(waits("DependencyNotFound", message));
        }
        let all = selected
            .iter()
            .map(|it| self.outputs_of(field, &Key::of(it)));
        let all: Vec<_> = all.collect::<Result<_, _>>()?;
        let mut values = BTreeMap::new();
        for (variable, output) in &of.outputs {
            let each = all
                .iter()
                .map(|(name, from)| output_of(field, name, from, output));
            let each: Vec<_> = each.collect::<Result<_, _>>()?;
            let secret = each.iter().any(|output| output.sensitive);
            let list = each
                .into_iter()
                .map(|output| output.value.clone())
                .collect();
            values.insert(variable.clone(), found(list, secret));
        }
        let selector = of.selector.as_ref().map(described).unwrap_or_default();
        Ok(FoundInput {
            of: format!("Terraform with {selector}"),
            values,
            trigger,
        })
    }

    /// Returns the outputs of a resource, and its name.
    fn outputs_of(&self, field: &str, key: &Key) -> Result<(String, Outputs), Failure> {
        let here = self.session.tf.namespace().unwrap_or_default();
        let name = key.seen_from(&here);
        let tf = self.all.iter().find(|it| Key::of(it) == *key).ok_or_else(|| {
            let message = format!("{field}: there is no Terraform resource {name}; once there is, this goes on by itself");
            waits("DependencyNotFound", message)
        })?;
        let secret = self.outputs_secret(tf).ok_or_else(|| {
            let message = format!(
                "{field}: Terraform {name} has no outputs yet; once it has, this goes on by itself"
            );
            waits("OutputNotFound", message)
        })?;
        Ok((name, outputs::read(&secret)))
    }

    async fn values(&mut self, field: &str, of: &ValuesRef) -> Found<FoundInput> {
        let which = Which {
            api_version: of.api_version.clone(),
            kind: of.kind.clone(),
            namespace: self.namespace(of.namespace.as_ref()),
            of: Of::Name(of.name.clone()),
        };
        if which.kind == "Secret" && which.api_version == "v1" {
            let message = format!("{field}.kind: Secrets are read with secretRef");
            return Ok(Err(wrong("InvalidReference", message)));
        }
        let here = self.session.tf.namespace().unwrap_or_default();
        let named = which.named(&here);
        let page = found!(self.find(field, &which, Query::Page(None)).await?);
        let Some(object) = page.items.into_iter().next() else {
            let message =
                format!("{field}: {named} does not exist; once it does, this goes on by itself");
            return Ok(Err(waits("ObjectNotFound", message)));
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

/// Returns the keys of `texts` that `keys` selects.
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

fn output_of<'a>(
    field: &str,
    name: &str,
    from: &'a Outputs,
    output: &str,
) -> Result<&'a Output, Failure> {
    from.get(output).ok_or_else(|| {
        let there: Vec<_> = from.keys().map(String::as_str).collect();
        let there = if there.is_empty() { "none".to_owned() } else { there.join(", ") };
        let message = format!(
            "{field}.outputs: Terraform {name} has no output {output}, or it is null (it has: {there}); once \
             it has a value, this goes on by itself"
        );
        waits("OutputNotFound", message)
    })
}

fn described(selector: &LabelSelector) -> String {
    dependency_graph::selector(Some(selector)).map_or_else(|error| error, |it| it.to_string())
}

fn too_large(field: &str, of: &str, size: usize) -> Failure {
    wrong(
        "InputTooLarge",
        format!(
            "{field}: with {of} the values have {size} bytes; a run takes {LARGEST_VALUES} at most: \
             choose fewer keys, or hand on a reference instead of the content"
        ),
    )
}
