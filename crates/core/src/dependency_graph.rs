//! Dependency graph of the resources (rules 13, 14 and 17).

use std::collections::{BTreeMap, BTreeSet};

use alustan_api::report::{Failure, FailureClass};
use alustan_api::{OutputsRef, Terraform, TerraformStatus};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use kube::ResourceExt;
use kube::core::{Selector, SelectorExt};

use crate::observed::{DependencySeen, Key, Standing};

/// Reason of a resource that waits for a resource that is not ready.
pub const NOT_READY: &str = "DependencyNotReady";
/// Reason of a resource that waits for a resource that does not exist.
pub(crate) const NOT_FOUND: &str = "DependencyNotFound";

/// A reference to a resource.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Named {
    /// Field with the reference: `spec.dependsOn[0]`.
    pub field: String,
    /// The referenced resource.
    pub key: Key,
}

/// Returns the references of `tf` by name, also to resources that do not exist.
pub fn named(tf: &Terraform) -> Vec<Named> {
    let here = tf.namespace().unwrap_or_default();
    let there = |namespace: &Option<String>| namespace.clone().unwrap_or_else(|| here.clone());
    let depends = tf.spec.depends_on.iter().enumerate().map(|(i, of)| Named {
        field: format!("spec.dependsOn[{i}]"),
        key: Key::new(there(&of.namespace), &of.name),
    });
    let taken = outputs_refs(tf).filter_map(|(i, of)| {
        Some(Named {
            field: format!("spec.variablesFrom[{i}].terraformRef"),
            key: Key::new(there(&of.namespace), of.name.as_ref()?),
        })
    });
    depends.chain(taken).collect()
}

/// Returns the entries of `spec.variablesFrom` with outputs of other resources, and their indexes.
pub fn outputs_refs(tf: &Terraform) -> impl Iterator<Item = (usize, &OutputsRef)> {
    let entries = tf.spec.variables_from.iter().enumerate();
    entries.filter_map(|(i, entry)| Some((i, entry.terraform_ref.as_ref()?)))
}

/// Returns the resources among `all` that the selector of `of`, an entry of `tf`, matches, sorted by name. Excludes `tf` and resources
/// that are being deleted.
///
/// # Errors
/// The selector is invalid.
pub fn selected<'a>(
    tf: &Terraform,
    of: &OutputsRef,
    all: impl IntoIterator<Item = &'a Terraform>,
) -> Result<Vec<&'a Terraform>, String> {
    let selector = selector(of.selector.as_ref())?;
    let namespace = of.namespace.clone().or_else(|| tf.namespace());
    let mut selected: Vec<_> = all
        .into_iter()
        .filter(|it| it.namespace() == namespace && Key::of(it) != Key::of(tf))
        .filter(|it| it.metadata.deletion_timestamp.is_none() && selector.matches(it.labels()))
        .collect();
    selected.sort_by_key(|it| it.name_any());
    Ok(selected)
}

/// Parses a label selector of the API.
///
/// # Errors
/// The selector is invalid.
pub fn selector(selector: Option<&LabelSelector>) -> Result<Selector, String> {
    let selector = selector.cloned().unwrap_or_default();
    Selector::try_from(selector).map_err(|error| format!("selector: {error}"))
}

/// Returns the resources whose outputs `tf` takes with `trigger: true`.
pub(crate) fn sources(tf: &Terraform, all: &BTreeMap<Key, &Terraform>) -> BTreeSet<Key> {
    let here = tf.namespace().unwrap_or_default();
    let triggers = outputs_refs(tf).filter(|(_, of)| of.trigger);
    let keys = triggers.flat_map(|(_, of)| match &of.name {
        Some(name) => vec![Key::new(of.namespace.as_ref().unwrap_or(&here), name)],
        None => selected(tf, of, all.values().copied())
            .unwrap_or_default()
            .into_iter()
            .map(Key::of)
            .collect(),
    });
    keys.collect()
}

/// Returns the references of `tf` by name, and the resources among `all` that it selects.
pub(crate) fn taken(tf: &Terraform, all: &BTreeMap<Key, &Terraform>) -> Vec<Named> {
    let by_selector = outputs_refs(tf).flat_map(|(i, of)| {
        let of = Some(of).filter(|of| of.selector.is_some());
        let selected = of.and_then(|of| selected(tf, of, all.values().copied()).ok());
        selected
            .unwrap_or_default()
            .into_iter()
            .map(move |it| Named {
                field: format!("spec.variablesFrom[{i}].terraformRef"),
                key: Key::of(it),
            })
    });
    let mut taken = named(tf);
    taken.extend(by_selector);
    taken
}

/// Returns the dependencies of `tf` with their readiness, without duplicates.
pub fn dependencies<'a>(
    tf: &Terraform,
    all: impl IntoIterator<Item = &'a Terraform>,
) -> Vec<DependencySeen> {
    if tf.spec.depends_on.is_empty() && tf.spec.variables_from.is_empty() {
        return Vec::new();
    }
    let here = tf.namespace().unwrap_or_default();
    let all: BTreeMap<Key, &Terraform> = all.into_iter().map(|it| (Key::of(it), it)).collect();
    let mut seen = BTreeSet::new();
    let mut named = taken(tf, &all);
    named.retain(|it| seen.insert(it.key.clone()));
    let dependency = |it: Named| DependencySeen {
        standing: standing_in(&it.key, &all, &here),
        name: it.key.seen_from(&here),
        field: it.field,
    };
    named.into_iter().map(dependency).collect()
}

/// Readiness of resource `key`, for messages in namespace `here`. For a resource that waits for others, the message names the root cause.
fn standing_in(key: &Key, all: &BTreeMap<Key, &Terraform>, here: &str) -> Standing {
    let Some(tf) = all.get(key) else {
        return Standing::Missing;
    };
    match standing(tf) {
        Standing::NotReady { reason, .. } if reason == NOT_READY => {
            let message = cause(tf, all).map_or_else(
                || "it has just waited for another".to_owned(),
                |(key, why)| format!("it waits for {}: {why}", key.seen_from(here)),
            );
            Standing::NotReady { reason, message }
        }
        other => other,
    }
}

/// Returns the resource that `tf` ultimately waits for, and the reason why that is not ready.
fn cause(tf: &Terraform, all: &BTreeMap<Key, &Terraform>) -> Option<(Key, String)> {
    let mut known = BTreeSet::from([Key::of(tf)]);
    let mut next = taken(tf, all);
    while let Some(Named { key, .. }) = next.pop() {
        if !known.insert(key.clone()) {
            continue;
        }
        let Some(it) = all.get(&key) else {
            return Some((key, NOT_FOUND.to_owned()));
        };
        match standing(it) {
            Standing::NotReady { reason, .. } if reason == NOT_READY => next.extend(taken(it, all)),
            Standing::NotReady { reason, .. } => return Some((key, reason)),
            Standing::Ready | Standing::Missing => {}
        }
    }
    None
}

/// Readiness of `tf` for its dependents.
pub fn standing(tf: &Terraform) -> Standing {
    standing_with(tf, tf.status.as_ref())
}

/// Readiness of `tf` with `status` for its dependents.
pub(crate) fn standing_with(tf: &Terraform, status: Option<&TerraformStatus>) -> Standing {
    let not_ready = |reason: &str, message: &str| Standing::NotReady {
        reason: reason.to_owned(),
        message: message.to_owned(),
    };
    if tf.metadata.deletion_timestamp.is_some() {
        return not_ready("Deleted", "it is being deleted");
    }
    let mut conditions = status.into_iter().flat_map(|status| &status.conditions);
    let Some(ready) = conditions.find(|it| it.type_ == "Ready") else {
        return not_ready("AwaitingProcessing", "nothing is known of it yet");
    };
    let current = status.and_then(|it| it.observed_generation) == tf.metadata.generation;
    match (ready.status.as_str(), current) {
        ("True", true) => Standing::Ready,
        ("True", false) => not_ready("AwaitingProcessing", "its spec has just changed"),
        _ => not_ready(&ready.reason, &ready.message),
    }
}

/// Returns the resources among `all` that reference `of` by name and must be destroyed first. Excluded are resources that only select
/// `of`, since they continue without it, resources on a cycle with `of`, since `of` would wait forever, and other namespaces unless
/// `cross_namespace`.
pub fn dependents<'a>(
    of: &Terraform,
    all: impl IntoIterator<Item = &'a Terraform>,
    cross_namespace: bool,
) -> Vec<Key> {
    let all: BTreeMap<Key, &Terraform> = all.into_iter().map(|it| (Key::of(it), it)).collect();
    let of = Key::of(of);
    all.iter()
        .filter(|(key, _)| cross_namespace || key.namespace == of.namespace)
        .filter(|(key, it)| **key != of && named(it).iter().any(|named| named.key == of))
        .filter(|(key, _)| path(&of, key, &all).is_none())
        .map(|(key, _)| key.clone())
        .collect()
}

/// Returns the resources among `all` that reference or select `of`. They are reconciled when `of` changes.
pub fn followers<'a>(of: &Terraform, all: impl IntoIterator<Item = &'a Terraform>) -> Vec<Key> {
    let key = Key::of(of);
    let follows = |it: &Terraform| {
        let selects = |(_, entry): (usize, &OutputsRef)| {
            entry.selector.is_some() && selected(it, entry, [of]).is_ok_and(|it| !it.is_empty())
        };
        named(it).iter().any(|named| named.key == key) || outputs_refs(it).any(selects)
    };
    let others = all.into_iter().filter(|it| Key::of(it) != key);
    others.filter(|it| follows(it)).map(Key::of).collect()
}

/// Validates the references of `tf`.
///
/// # Errors
/// An invalid selector, a dependency cycle, or a reference to another namespace without `cross_namespace`; the message names the field.
pub fn check<'a>(
    tf: &Terraform,
    all: impl IntoIterator<Item = &'a Terraform>,
    cross_namespace: bool,
) -> Result<(), Failure> {
    if !cross_namespace && let Some((field, namespace)) = beyond(tf) {
        return Err(wrong(
            "CrossNamespaceReference",
            format!(
                "{field}.namespace: {namespace} is another namespace; the operator reads there only \
                 with its flag --allow-cross-namespace-refs"
            ),
        ));
    }
    for (i, of) in outputs_refs(tf) {
        selector(of.selector.as_ref()).map_err(|error| {
            let field = format!("spec.variablesFrom[{i}].terraformRef");
            wrong("InvalidSelector", format!("{field}.{error}"))
        })?;
    }
    if tf.spec.depends_on.is_empty() && tf.spec.variables_from.is_empty() {
        return Ok(());
    }
    let all: BTreeMap<Key, &Terraform> = all.into_iter().map(|it| (Key::of(it), it)).collect();
    let named = taken(tf, &all);
    let (own, here) = (Key::of(tf), tf.namespace().unwrap_or_default());
    for Named { field, key } in named {
        let way = if key == own {
            Some(vec![key])
        } else {
            path(&key, &own, &all)
        };
        if let Some(way) = way {
            let path = std::iter::once(&own).chain(&way);
            let path: Vec<_> = path.map(|it| it.seen_from(&here)).collect();
            return Err(wrong(
                "DependencyCycle",
                format!(
                    "{field}: it depends on itself: {}; take out one of these references",
                    path.join(" -> ")
                ),
            ));
        }
    }
    Ok(())
}

fn wrong(reason: &str, message: String) -> Failure {
    Failure {
        class: FailureClass::User,
        reason: reason.to_owned(),
        message,
    }
}

/// Returns the first field of `tf` with a reference to another namespace, and that namespace.
fn beyond(tf: &Terraform) -> Option<(String, String)> {
    let spec = &tf.spec;
    let from = spec.variables_from.iter().enumerate().flat_map(|(i, it)| {
        let outputs = it
            .terraform_ref
            .as_ref()
            .map(|it| ("terraformRef", &it.namespace));
        let object = it
            .object_ref
            .as_ref()
            .map(|it| ("objectRef", &it.namespace));
        let both = outputs.into_iter().chain(object);
        both.map(move |(name, namespace)| (format!("spec.variablesFrom[{i}].{name}"), namespace))
    });
    let all = from
        .chain(indexed("dependsOn", &spec.depends_on, |it| &it.namespace))
        .chain(indexed("waitFor", &spec.wait_for, |it| &it.namespace))
        .chain(indexed("destroyWaitFor", &spec.destroy_wait_for, |it| {
            &it.namespace
        }))
        .chain(indexed("healthChecks", &spec.health_checks, |it| {
            &it.namespace
        }));
    let mut named = all.filter_map(|(field, namespace)| Some((field, namespace.clone()?)));
    named.find(|(_, namespace)| tf.namespace().as_ref() != Some(namespace))
}

fn indexed<'a, T>(
    list: &'static str,
    all: &'a [T],
    namespace: impl Fn(&'a T) -> &'a Option<String> + 'a,
) -> impl Iterator<Item = (String, &'a Option<String>)> {
    let all = all.iter().enumerate();
    all.map(move |(i, it)| (format!("spec.{list}[{i}]"), namespace(it)))
}

/// Returns the shortest path from `from` to `to` along references, including both ends.
fn path(from: &Key, to: &Key, all: &BTreeMap<Key, &Terraform>) -> Option<Vec<Key>> {
    let mut came_from: BTreeMap<Key, Option<Key>> = BTreeMap::from([(from.clone(), None)]);
    let mut next = std::collections::VecDeque::from([from.clone()]);
    while let Some(at) = next.pop_front() {
        if at == *to {
            let back = std::iter::successors(Some(at), |it| came_from.get(it).cloned().flatten());
            let mut way: Vec<_> = back.collect();
            way.reverse();
            return Some(way);
        }
        let tf = all.get(&at);
        for Named { key, .. } in tf.map(|tf| taken(tf, all)).unwrap_or_default() {
            if !came_from.contains_key(&key) {
                came_from.insert(key.clone(), Some(at.clone()));
                next.push_back(key);
            }
        }
    }
    None
}
