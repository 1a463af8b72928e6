//! Publication of outputs to a Secret and a ConfigMap.

use std::collections::BTreeMap;

use alustan_api::report::Failure;
use alustan_api::run::{Output, Outputs, PublishedOutputs, StatusOutputs};
use alustan_api::{Reason, Terraform, labels};

use crate::digest;
use crate::objects::outputs::{self, SelectedOutputs};
use crate::observed::{OutputsSeen, Ownership};
use crate::step::{Object, OutputsObject, Step};

/// Maximum size of the values of a Secret or ConfigMap, in bytes.
const MAX_SIZE: usize = 1024 * 1024;
/// Maximum size of the annotations of an object, in bytes.
const MAX_ANNOTATIONS_SIZE: usize = 256 * 1024;

/// Published outputs of an apply.
pub(super) struct Published {
    /// Secret and `ConfigMap` with the outputs.
    pub(super) objects: PublishedOutputs,
    /// Outputs for the status.
    pub(super) status: StatusOutputs,
}

/// Returns the steps that write the outputs.
///
/// # Errors
///
/// Fails if an output is missing, unreadable, or sensitive and selected for an annotation; if the outputs are too large; or if the Secret
/// or ConfigMap exists and does not belong to `tf`.
pub(super) fn publish(
    tf: &Terraform,
    outputs: &Outputs,
    seen: OutputsSeen,
) -> Result<Vec<Step>, Failure> {
    let chosen = select(tf, outputs)?;
    let secret = outputs::secret(tf, &chosen);
    let value_sizes = secret.data.iter().flatten();
    let value_sizes = value_sizes.map(|(key, value)| (key, value.0.len()));
    check_size("the values", value_sizes, MAX_SIZE)?;
    let annotation_sizes = secret.metadata.annotations.iter().flatten();
    let annotation_sizes = annotation_sizes.map(|(name, text)| (name, name.len() + text.len()));
    check_size("the annotations", annotation_sizes, MAX_ANNOTATIONS_SIZE)?;

    let PublishedOutputs {
        secret: name,
        config_map,
        ..
    } = outputs::published_objects(tf);
    check_owner(seen.secret, "Secret", &name, "secretName")?;
    let mut objects = vec![Object::Secret(secret)];
    if let Some(name) = config_map {
        check_owner(seen.config_map, "ConfigMap", &name, "configMapName")?;
        objects.push(Object::ConfigMap(outputs::config_map(tf, name, &chosen)));
    }
    let ensure = |object| Step::Ensure(Box::new(object));
    Ok(objects.into_iter().map(ensure).collect())
}

/// Returns the steps that delete the objects that `previous` names and `wanted` does not name.
pub(super) fn delete_unlisted(previous: &PublishedOutputs, wanted: &PublishedOutputs) -> Vec<Step> {
    let secret = (previous.secret != wanted.secret).then(|| previous.secret.clone());
    let config_map = previous.config_map.clone();
    let config_map = config_map.filter(|_| previous.config_map != wanted.config_map);
    let secret = secret.map(OutputsObject::Secret);
    let objects = secret
        .into_iter()
        .chain(config_map.map(OutputsObject::ConfigMap));
    objects.map(Step::DeleteOutputs).collect()
}

/// Returns the key under which failed publications of outputs are counted. `run_key`: key under which failures of the run are counted.
/// After a change of `spec.outputs`, the count starts again.
pub(super) fn failure_key(run_key: &str, tf: &Terraform) -> String {
    let digest = digest::plain(&outputs::published_objects(tf));
    let digest: String = digest.chars().take(12).collect();
    format!("{run_key} handed on as {digest}")
}

/// Selects the outputs that `spec.outputs` names.
fn select(tf: &Terraform, outputs: &Outputs) -> Result<SelectedOutputs, Failure> {
    let spec = tf.spec.outputs.clone().unwrap_or_default();
    if let Some((field, annotation)) = spec.reserved_annotation() {
        let message = format!(
            "spec.outputs.{field}.{annotation}: this annotation is reserved for the operator or for \
             Kubernetes; remove it"
        );
        return Err(Failure::user(
            Reason::OutputAnnotationReserved,
            unpublished(&message),
        ));
    }
    let by_key = spec.keys.iter().map(|(key, name)| {
        let output = find(outputs, &format!("keys.{key}"), name)?;
        Ok((key.clone(), output.clone()))
    });
    let selected = if spec.keys.is_empty() {
        outputs.clone()
    } else {
        by_key.collect::<Result<_, _>>()?
    };
    if let Some(name) = selected.keys().find(|name| !is_key(name)) {
        let message = format!(
            "output {name:?} is not a valid key of a Secret: only letters, digits, '-', '_' and \
             '.' are allowed"
        );
        return Err(Failure::module(
            Reason::OutputsUnreadable,
            unpublished(&message),
        ));
    }
    let annotations = spec.annotations.iter().map(|(annotation, name)| {
        let field = format!("annotations.{annotation}");
        let output = find(outputs, &field, name)?;
        if output.sensitive {
            let message = format!(
                "spec.outputs.{field}: output {name} is sensitive and must not be published in an \
                 annotation; use spec.outputs.keys"
            );
            return Err(Failure::user(
                Reason::OutputSensitive,
                unpublished(&message),
            ));
        }
        Ok((annotation.clone(), outputs::text(&output.value)))
    });
    let mut annotations: BTreeMap<_, _> = annotations.collect::<Result<_, _>>()?;
    annotations.extend(spec.constant_annotations);
    Ok(SelectedOutputs {
        annotations,
        outputs: selected,
    })
}

fn find<'a>(outputs: &'a Outputs, field: &str, name: &str) -> Result<&'a Output, Failure> {
    outputs.get(name).ok_or_else(|| {
        let names: Vec<_> = outputs.keys().map(String::as_str).collect();
        let names = match names.as_slice() {
            [] => "none".to_owned(),
            names => names.join(", "),
        };
        let message = format!(
            "spec.outputs.{field}: the module has no output {name}, or its value is null (outputs: \
             {names})"
        );
        Failure::user(Reason::OutputNotFound, unpublished(&message))
    })
}

/// Whether `name` is a valid key of a Secret (<https://kubernetes.io/docs/concepts/configuration/secret/>).
fn is_key(name: &str) -> bool {
    let is_valid = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    (1..=253).contains(&name.len()) && name.chars().all(is_valid)
}

/// Checks that the total size of `sizes` is at most `limit` bytes.
fn check_size<'a>(
    subject: &str,
    sizes: impl Iterator<Item = (&'a String, usize)> + Clone,
    limit: usize,
) -> Result<(), Failure> {
    let size: usize = sizes.clone().map(|(_, size)| size).sum();
    match sizes.max_by_key(|(_, size)| *size) {
        Some((name, largest)) if size > limit => {
            let message = format!(
                "{subject} have {size} bytes and exceed the limit of {limit} bytes; the largest is \
                 {name} ({largest} bytes); select fewer outputs in spec.outputs, or make them \
                 smaller"
            );
            Err(Failure::user(
                Reason::OutputsTooLarge,
                unpublished(&message),
            ))
        }
        _ => Ok(()),
    }
}

fn check_owner(owner: Ownership, kind: &str, name: &str, field: &str) -> Result<(), Failure> {
    if owner != Ownership::Foreign {
        return Ok(());
    }
    let message = format!(
        "{kind} {name} exists and does not belong to this resource (no label {}); set another \
         spec.outputs.{field}",
        labels::UID,
    );
    Err(Failure::module(
        Reason::OutputsOwnershipConflict,
        unpublished(&message),
    ))
}

/// Returns the message of an apply whose outputs are not published.
fn unpublished(cause: &str) -> String {
    format!("apply succeeded, but the outputs cannot be published: {cause}")
}
