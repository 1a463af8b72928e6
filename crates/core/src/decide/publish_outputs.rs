//! Publication of outputs to a Secret and a ConfigMap.

use alustan_api::report::Failure;
use alustan_api::run::{Output, Outputs, PublishedOutputs};
use alustan_api::{Reason, Terraform, labels};

use crate::digest;
use crate::objects::outputs::{self, Chosen};
use crate::observed::{OutputsSeen, Whose};
use crate::step::{Object, OutputsObject, Step};

/// Maximum size of the values of a Secret or ConfigMap, in bytes.
const LARGEST: usize = 1024 * 1024;
/// Maximum size of the annotations of an object, in bytes.
const LARGEST_ANNOTATIONS: usize = 256 * 1024;

/// Returns the steps that write the outputs.
///
/// # Errors
///
/// Fails if an output is missing, unreadable, or sensitive and selected for an annotation; if the outputs are too large; or if the Secret
/// or ConfigMap exists and does not belong to `tf`.
pub(crate) fn hand_on(
    tf: &Terraform,
    outputs: &Outputs,
    seen: OutputsSeen,
) -> Result<Vec<Step>, Failure> {
    let chosen = choose(tf, outputs)?;
    let secret = outputs::secret(tf, &chosen);
    let data = secret.data.iter().flatten();
    let data = data.map(|(key, value)| (key, value.0.len()));
    fit("the values", data, LARGEST)?;
    let annotations = secret.metadata.annotations.iter().flatten();
    let annotations = annotations.map(|(name, text)| (name, name.len() + text.len()));
    fit("the annotations", annotations, LARGEST_ANNOTATIONS)?;

    let PublishedOutputs {
        secret: name,
        config_map,
        ..
    } = outputs::wanted(tf);
    not_taken(seen.secret, "Secret", &name, "secretName")?;
    let mut objects = vec![Object::Secret(secret)];
    if let Some(name) = config_map {
        not_taken(seen.config_map, "ConfigMap", &name, "configMapName")?;
        objects.push(Object::ConfigMap(outputs::config_map(tf, name, &chosen)));
    }
    let ensure = |object| Step::Ensure(Box::new(object));
    Ok(objects.into_iter().map(ensure).collect())
}

/// Returns the steps that delete the objects that `before` names and `now` does not.
pub(crate) fn left_behind(before: &PublishedOutputs, now: &PublishedOutputs) -> Vec<Step> {
    let secret = (before.secret != now.secret).then(|| before.secret.clone());
    let config_map = before.config_map.clone();
    let config_map = config_map.filter(|_| before.config_map != now.config_map);
    let secret = secret.map(OutputsObject::Secret);
    let left = secret
        .into_iter()
        .chain(config_map.map(OutputsObject::ConfigMap));
    left.map(Step::DeleteOutputs).collect()
}

/// Returns the key of the failure counter for the publication of outputs. `subject`: key of the failure counter of the run. A change of
/// `spec.outputs` starts a new counter.
pub(crate) fn subject(subject: &str, tf: &Terraform) -> String {
    let wanted = digest::plain(&outputs::wanted(tf));
    let wanted: String = wanted.chars().take(12).collect();
    format!("{subject} handed on as {wanted}")
}

/// Selects the outputs that `spec.outputs` names.
fn choose(tf: &Terraform, all: &Outputs) -> Result<Chosen, Failure> {
    let spec = tf.spec.outputs.clone().unwrap_or_default();
    let chosen = spec.keys.iter().map(|(key, name)| {
        let output = find(all, &format!("keys.{key}"), name)?;
        Ok((key.clone(), output.clone()))
    });
    let outputs = if spec.keys.is_empty() {
        all.clone()
    } else {
        chosen.collect::<Result<_, _>>()?
    };
    if let Some(name) = outputs.keys().find(|name| !is_key(name)) {
        let why = format!(
            "output {name:?} is not a valid key of a Secret: only letters, digits, '-', '_' and \
             '.' are allowed"
        );
        return Err(Failure::module(
            Reason::OutputsUnreadable,
            unpublished(&why),
        ));
    }
    let annotations = spec.annotations.iter().map(|(annotation, name)| {
        let field = format!("annotations.{annotation}");
        let output = find(all, &field, name)?;
        if output.sensitive {
            let why = format!(
                "spec.outputs.{field}: output {name} is sensitive and must not be published in an \
                 annotation; use spec.outputs.keys"
            );
            return Err(Failure::user(Reason::OutputSensitive, unpublished(&why)));
        }
        Ok((annotation.clone(), outputs::text(&output.value)))
    });
    Ok(Chosen {
        annotations: annotations.collect::<Result<_, _>>()?,
        outputs,
    })
}

fn find<'a>(all: &'a Outputs, field: &str, name: &str) -> Result<&'a Output, Failure> {
    all.get(name).ok_or_else(|| {
        let there: Vec<_> = all.keys().map(String::as_str).collect();
        let there = match there.as_slice() {
            [] => "none".to_owned(),
            there => there.join(", "),
        };
        let why = format!(
            "spec.outputs.{field}: the module has no output {name}, or its value is null (outputs: \
             {there})"
        );
        Failure::user(Reason::OutputNotFound, unpublished(&why))
    })
}

/// Whether `name` is a valid key of a Secret (<https://kubernetes.io/docs/concepts/configuration/secret/>).
fn is_key(name: &str) -> bool {
    let legal = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    (1..=253).contains(&name.len()) && name.chars().all(legal)
}

/// Checks that the total size of `parts` is at most `most` bytes.
fn fit<'a>(
    what: &str,
    parts: impl Iterator<Item = (&'a String, usize)> + Clone,
    most: usize,
) -> Result<(), Failure> {
    let size: usize = parts.clone().map(|(_, size)| size).sum();
    match parts.max_by_key(|(_, size)| *size) {
        Some((name, largest)) if size > most => {
            let why = format!(
                "{what} have {size} bytes and exceed the limit of {most} bytes; the largest is \
                 {name} ({largest} bytes); select fewer outputs in spec.outputs, or make them \
                 smaller"
            );
            Err(Failure::user(Reason::OutputsTooLarge, unpublished(&why)))
        }
        _ => Ok(()),
    }
}

fn not_taken(seen: Whose, kind: &str, name: &str, field: &str) -> Result<(), Failure> {
    if seen != Whose::Foreign {
        return Ok(());
    }
    let why = format!(
        "{kind} {name} exists and does not belong to this resource (no label {}); set another \
         spec.outputs.{field}",
        labels::UID,
    );
    Err(Failure::module(
        Reason::OutputsOwnershipConflict,
        unpublished(&why),
    ))
}

/// Returns the message of an apply whose outputs are not published.
fn unpublished(why: &str) -> String {
    format!("apply succeeded, but the outputs cannot be published: {why}")
}
