//! Dependency graph of the resources (rules 13, 14 and 17).

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::{Arc, OnceLock};

use alustan_api::report::Failure;
use alustan_api::{OutputsRef, Reason, Terraform, TerraformStatus};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use kube_core::ResourceExt;
use kube_core::Selector;

use crate::dns_names::{is_label_key, is_label_value};
use crate::observed::{DependencySeen, Readiness};
use alustan_api::ObjectKey;

/// Maximum number of label comparisons to resolve the selectors of one graph. This number of comparisons takes about 20 ms.
const COMPARISONS: usize = 200_000;
/// Maximum number of labels and values in one selector.
const SELECTOR_TERMS: usize = 50;

/// A reference to a resource.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reference {
    /// Field with the reference, such as `spec.dependsOn[0]`.
    pub field: String,
    /// The referenced resource.
    pub key: ObjectKey,
    /// Whether a change of the outputs of the referenced resource starts a run.
    pub trigger: bool,
}

/// Returns the references of `tf` by name, also to resources that do not exist.
pub fn named_references(tf: &Terraform) -> Vec<Reference> {
    let own_namespace = tf.namespace().unwrap_or_default();
    let namespace_or_own =
        |namespace: &Option<String>| namespace.clone().unwrap_or_else(|| own_namespace.clone());
    let depends_on = tf
        .spec
        .depends_on
        .iter()
        .enumerate()
        .map(|(i, reference)| Reference {
            field: format!("spec.dependsOn[{i}]"),
            key: ObjectKey::new(namespace_or_own(&reference.namespace), &reference.name),
            trigger: false,
        });
    let variables_from = outputs_refs(tf).filter_map(|(i, reference)| {
        Some(Reference {
            field: format!("spec.variablesFrom[{i}].terraformRef"),
            key: ObjectKey::new(
                namespace_or_own(&reference.namespace),
                reference.name.as_ref()?,
            ),
            trigger: reference.trigger,
        })
    });
    depends_on.chain(variables_from).collect()
}

/// Returns the entries of `spec.variablesFrom` with outputs of other resources, and their indexes.
pub fn outputs_refs(tf: &Terraform) -> impl Iterator<Item = (usize, &OutputsRef)> {
    let entries = tf.spec.variables_from.iter().enumerate();
    entries.filter_map(|(i, entry)| Some((i, entry.terraform_ref.as_ref()?)))
}

/// Returns the namespaces in which `spec.variablesFrom` of `tf` selects resources by labels.
pub fn selected_namespaces(tf: &Terraform) -> impl Iterator<Item = String> {
    let selectors = outputs_refs(tf).filter(|(_, reference)| reference.selector.is_some());
    selectors.map(|(_, reference)| {
        let namespace = reference.namespace.clone().or_else(|| tf.namespace());
        namespace.unwrap_or_default()
    })
}

/// Returns the resources among `resources` that the selector of `reference`, an entry of `spec.variablesFrom` of `tf`, matches, sorted by
/// name. Excludes `tf` and resources that are being deleted.
///
/// # Errors
/// The selector is invalid.
pub fn selected<'a>(
    tf: &Terraform,
    reference: &OutputsRef,
    resources: impl IntoIterator<Item = &'a Terraform>,
) -> Result<Vec<&'a Terraform>, String> {
    selector(reference.selector.as_ref())?;
    let resources = resources.into_iter();
    let mut selected: Vec<_> = resources
        .filter(|resource| selects(tf, reference, resource))
        .collect();
    selected.sort_by_key(|resource| resource.name_any());
    Ok(selected)
}

/// Whether the selector of `reference`, an entry of `spec.variablesFrom` of `tf`, matches `candidate`. Does not copy the selector, because
/// this function is called for the selectors of all resources after each event.
fn selects(tf: &Terraform, reference: &OutputsRef, candidate: &Terraform) -> bool {
    let (own_metadata, metadata) = (&tf.metadata, &candidate.metadata);
    let is_self =
        metadata.name == own_metadata.name && metadata.namespace == own_metadata.namespace;
    let namespace = reference
        .namespace
        .as_ref()
        .or(own_metadata.namespace.as_ref());
    let Some(selector) = reference.selector.as_ref() else {
        return false;
    };
    metadata.namespace.as_ref() == namespace
        && !is_self
        && metadata.deletion_timestamp.is_none()
        && matches(selector, candidate.labels())
}

/// Whether `selector` matches `labels`. An invalid selector matches nothing:
/// <https://kubernetes.io/docs/concepts/overview/working-with-objects/labels/#label-selectors>.
fn matches(selector: &LabelSelector, labels: &BTreeMap<String, String>) -> bool {
    let mut match_labels = selector.match_labels.iter().flatten();
    let mut expressions = selector.match_expressions.iter().flatten();
    match_labels.all(|(key, value)| labels.get(key) == Some(value))
        && expressions.all(|requirement| {
            let label = labels.get(&requirement.key);
            let mut values = requirement.values.iter().flatten();
            match requirement.operator.as_str() {
                "In" => label.is_some_and(|label| values.any(|value| value == label)),
                "NotIn" => label.is_none_or(|label| !values.any(|value| value == label)),
                "Exists" => label.is_some(),
                "DoesNotExist" => label.is_none(),
                _ => false,
            }
        })
}

/// Parses a label selector of the API.
///
/// # Errors
/// The selector is invalid, or has more than 50 labels and values.
pub fn selector(selector: Option<&LabelSelector>) -> Result<Selector, String> {
    let terms = selector.map_or(0, terms);
    if terms > SELECTOR_TERMS {
        return Err(format!(
            "selector: {terms} labels and values exceed the limit of {SELECTOR_TERMS}"
        ));
    }
    let selector = selector.cloned().unwrap_or_default();
    check_labels(&selector).map_err(|problem| format!("selector: {problem}"))?;
    Selector::try_from(selector).map_err(|error| format!("selector: {error}"))
}

/// Checks that `selector` has only keys and values of labels. The API server refuses a request with another one.
fn check_labels(selector: &LabelSelector) -> Result<(), String> {
    let labels = selector.match_labels.iter().flatten();
    let expressions = selector.match_expressions.iter().flatten();
    let keys = labels
        .clone()
        .map(|(key, _)| key)
        .chain(expressions.clone().map(|requirement| &requirement.key));
    let values = labels
        .map(|(_, value)| value)
        .chain(expressions.flat_map(|requirement| requirement.values.iter().flatten()));
    if let Some(key) = keys.into_iter().find(|key| !is_label_key(key)) {
        return Err(format!("{} is not the key of a label", quoted(key)));
    }
    values
        .into_iter()
        .find(|value| !is_label_value(value))
        .map_or(Ok(()), |value| {
            Err(format!("{} is not the value of a label", quoted(value)))
        })
}

/// Returns the beginning of `text` with escaped control characters.
fn quoted(text: &str) -> String {
    const MAX: usize = 63;
    format!("{:?}", text.chars().take(MAX).collect::<String>())
}

/// Returns the number of labels and values in `selector`.
fn terms(selector: &LabelSelector) -> usize {
    let labels = selector.match_labels.as_ref().map_or(0, BTreeMap::len);
    let expressions = selector.match_expressions.iter().flatten();
    let values = expressions.map(|requirement| 1 + requirement.values.as_ref().map_or(0, Vec::len));
    labels + values.sum::<usize>()
}

/// All resources and the references between them. The references of a resource are resolved once, when they are first needed.
pub struct DependencyGraph<'a> {
    resources: Vec<&'a Terraform>,
    /// Index of `resources`. Built at the first use, because most resources have no references.
    by_key: OnceLock<BTreeMap<ObjectKey, &'a Terraform>>,
    references: BTreeMap<ObjectKey, Arc<[Reference]>>,
    /// Number of label comparisons that may still be made, at first [`COMPARISONS`].
    comparisons: usize,
}

/// Error: resolving the references requires more than [`COMPARISONS`] label comparisons.
#[derive(Debug)]
struct TooMany;

impl<'a> DependencyGraph<'a> {
    /// Builds the graph of `resources`. Resolves no reference yet.
    pub fn new(resources: impl IntoIterator<Item = &'a Terraform>) -> Self {
        Self {
            resources: resources.into_iter().collect(),
            by_key: OnceLock::new(),
            references: BTreeMap::new(),
            comparisons: COMPARISONS,
        }
    }

    fn by_key(&self) -> &BTreeMap<ObjectKey, &'a Terraform> {
        self.by_key.get_or_init(|| {
            self.resources
                .iter()
                .map(|resource| (ObjectKey::of(resource), *resource))
                .collect()
        })
    }

    /// Returns the resource `key`; `None` if it does not exist.
    pub fn get(&self, key: &ObjectKey) -> Option<&'a Terraform> {
        self.by_key().get(key).copied()
    }

    /// Returns the resources in `namespace`, sorted by name.
    pub fn in_namespace(&self, namespace: &str) -> impl Iterator<Item = &'a Terraform> {
        let from_namespace = self.by_key().range(ObjectKey::new(namespace, "")..);
        let in_namespace = from_namespace.take_while(move |(key, _)| key.namespace == namespace);
        in_namespace.map(|(_, tf)| *tf)
    }

    /// Returns the resources that `tf` references by name or selects, without duplicates.
    fn resolve(&mut self, tf: &Terraform) -> Result<Arc<[Reference]>, TooMany> {
        let own_key = ObjectKey::of(tf);
        if let Some(references) = self.references.get(&own_key) {
            return Ok(Arc::clone(references));
        }
        let mut references = named_references(tf);
        for (i, outputs_ref) in
            outputs_refs(tf).filter(|(_, outputs_ref)| outputs_ref.selector.is_some())
        {
            let namespace = outputs_ref.namespace.as_ref().unwrap_or(&own_key.namespace);
            let terms = outputs_ref.selector.as_ref().map_or(0, terms);
            let cost = self.in_namespace(namespace).count() * terms.max(1);
            self.comparisons = self.comparisons.checked_sub(cost).ok_or(TooMany)?;
            let selected =
                selected(tf, outputs_ref, self.in_namespace(namespace)).unwrap_or_default();
            references.extend(selected.into_iter().map(|reference| Reference {
                field: format!("spec.variablesFrom[{i}].terraformRef"),
                key: ObjectKey::of(reference),
                trigger: outputs_ref.trigger,
            }));
        }
        let triggers = references.iter().filter(|reference| reference.trigger);
        let triggers: BTreeSet<ObjectKey> =
            triggers.map(|reference| reference.key.clone()).collect();
        let mut seen = BTreeSet::new();
        references.retain(|reference| seen.insert(reference.key.clone()));
        for reference in &mut references {
            reference.trigger = triggers.contains(&reference.key);
        }
        let references = Arc::from(references);
        self.references.insert(own_key, Arc::clone(&references));
        Ok(references)
    }

    /// Returns the resources that `tf` references or selects. Empty if resolving the references requires too many label comparisons;
    /// [`Self::check`] returns an error in this case.
    pub fn references(&mut self, tf: &Terraform) -> Arc<[Reference]> {
        self.resolve(tf).unwrap_or_default()
    }

    /// Returns the resources that `tf` references in entries of `spec.variablesFrom` with `trigger: true`.
    pub(crate) fn sources(&mut self, tf: &Terraform) -> BTreeSet<ObjectKey> {
        let references = self.references(tf);
        let sources = references.iter().filter(|reference| reference.trigger);
        sources.map(|reference| reference.key.clone()).collect()
    }

    /// Returns the dependencies of `tf` with their readiness, without duplicates.
    pub fn dependencies(&mut self, tf: &Terraform) -> Vec<DependencySeen> {
        let namespace = tf.namespace().unwrap_or_default();
        let causes = self.causes(tf);
        let references = self.references(tf);
        let dependency = |reference: &Reference| DependencySeen {
            readiness: self.readiness_of(&reference.key, &causes, &namespace),
            name: reference.key.seen_from(&namespace),
            field: reference.field.clone(),
        };
        references.iter().map(dependency).collect()
    }

    /// Returns the readiness of resource `key`, for messages in namespace `namespace`. If the resource waits for its own dependencies, the
    /// message names the root cause.
    fn readiness_of(
        &self,
        key: &ObjectKey,
        causes: &BTreeMap<ObjectKey, (ObjectKey, String)>,
        namespace: &str,
    ) -> Readiness {
        let Some(tf) = self.get(key) else {
            return Readiness::Missing;
        };
        match readiness(tf) {
            Readiness::NotReady { reason, .. } if reason == Reason::DependencyNotReady => {
                let message = causes.get(key).map_or_else(
                    || "its status is outdated".to_owned(),
                    |(key, reason)| format!("waiting for {}: {reason}", key.seen_from(namespace)),
                );
                Readiness::NotReady { reason, message }
            }
            readiness => readiness,
        }
    }

    /// Returns the root cause for each direct or transitive dependency of `tf` that is not ready. The root cause is the nearest resource
    /// that is missing, or that is not ready for another reason than its dependencies. The value contains the root cause and the reason why
    /// it is not ready.
    fn causes(&mut self, tf: &Terraform) -> BTreeMap<ObjectKey, (ObjectKey, String)> {
        let mut waiting = BTreeMap::from([(ObjectKey::of(tf), Vec::new())]);
        let mut stack = vec![tf];
        let mut roots = VecDeque::new();
        while let Some(tf) = stack.pop() {
            for Reference { key, .. } in &*self.references(tf) {
                if let Some(dependents) = waiting.get_mut(key) {
                    dependents.push(ObjectKey::of(tf));
                    continue;
                }
                waiting.insert(key.clone(), vec![ObjectKey::of(tf)]);
                let reason = match self
                    .get(key)
                    .map(|resource| (resource, readiness(resource)))
                {
                    None => Reason::DependencyNotFound.into(),
                    Some((resource, Readiness::NotReady { reason, .. }))
                        if reason == Reason::DependencyNotReady =>
                    {
                        stack.push(resource);
                        continue;
                    }
                    Some((_, Readiness::NotReady { reason, .. })) => reason,
                    Some(_) => continue,
                };
                roots.push_back((key.clone(), (key.clone(), reason)));
            }
        }
        let mut causes = BTreeMap::new();
        while let Some((key, cause)) = roots.pop_front() {
            for dependent in waiting.remove(&key).unwrap_or_default() {
                roots.push_back((dependent, cause.clone()));
            }
            causes.entry(key).or_insert(cause);
        }
        causes
    }

    /// Returns the resources that reference `target` by name and must be destroyed first. Excludes resources that only select `target` by
    /// labels, because they continue without `target`; resources on a dependency cycle with `target`, because `target` would wait forever;
    /// and, if `cross_namespace` is false, resources of other namespaces.
    pub fn dependents(&mut self, target: &Terraform, cross_namespace: bool) -> Vec<ObjectKey> {
        let key = ObjectKey::of(target);
        let referencing = self
            .resources
            .iter()
            .filter(|resource| references_by_name(resource, target));
        let referencing = referencing
            .map(|resource| ObjectKey::of(resource))
            .filter(|other| *other != key);
        let mut dependents: Vec<_> = referencing
            .filter(|dependent| cross_namespace || dependent.namespace == key.namespace)
            .collect();
        dependents.sort();
        if !dependents.is_empty() {
            let reachable = self.reachable(target);
            dependents.retain(|key| !reachable.contains(key));
        }
        dependents
    }

    /// Returns the resources that `tf` depends on, directly or transitively.
    fn reachable(&mut self, tf: &Terraform) -> BTreeSet<ObjectKey> {
        let mut reachable = BTreeSet::new();
        let mut stack = vec![tf];
        while let Some(current) = stack.pop() {
            for Reference { key, .. } in &*self.references(current) {
                if reachable.insert(key.clone()) {
                    stack.extend(self.get(key));
                }
            }
        }
        reachable
    }

    /// Validates the references of `tf`. Also resolves the references of all resources that `tf` depends on.
    ///
    /// # Errors
    /// An invalid selector, a dependency cycle, selectors that lead to too many resources, or a reference to another namespace without
    /// `cross_namespace`; the message names the field.
    pub fn check(&mut self, tf: &Terraform, cross_namespace: bool) -> Result<(), Failure> {
        if !cross_namespace && let Some((field, namespace)) = foreign_namespace(tf) {
            return Err(Failure::user(
                Reason::CrossNamespaceReference,
                format!(
                    "{field}.namespace: {namespace} is another namespace; references to it require \
                     the operator flag --allow-cross-namespace-refs"
                ),
            ));
        }
        for (i, reference) in outputs_refs(tf) {
            selector(reference.selector.as_ref()).map_err(|error| {
                let field = format!("spec.variablesFrom[{i}].terraformRef");
                Failure::user(Reason::InvalidSelector, format!("{field}.{error}"))
            })?;
        }
        // The failure is transient, because references of other resources may be the cause.
        let too_many = |TooMany| {
            let message = format!(
                "spec.variablesFrom: finding all dependencies of the resource requires more than \
                 {COMPARISONS} label comparisons; use name instead of selector, also in the \
                 dependencies"
            );
            Failure::transient(Reason::TooManyDependencies, message)
        };
        let cycle = self.cycle(tf).map_err(too_many)?;
        let Some((field, path)) = cycle else {
            return Ok(());
        };
        let namespace = tf.namespace().unwrap_or_default();
        let path: Vec<_> = path.iter().map(|key| key.seen_from(&namespace)).collect();
        Err(Failure::user(
            Reason::DependencyCycle,
            format!(
                "{field}: dependency cycle: {}; remove one of these references",
                path.join(" -> ")
            ),
        ))
    }

    /// Returns the shortest path from `tf` along references back to `tf`, including both ends, and the field with the first reference on
    /// the path.
    fn cycle(&mut self, tf: &Terraform) -> Result<Option<(String, Vec<ObjectKey>)>, TooMany> {
        let own_key = ObjectKey::of(tf);
        let mut came_from: BTreeMap<ObjectKey, (ObjectKey, String)> = BTreeMap::new();
        let mut queue = VecDeque::from([tf]);
        while let Some(current) = queue.pop_front() {
            for Reference { key, field, .. } in &*self.resolve(current)? {
                if came_from.contains_key(key) {
                    continue;
                }
                came_from.insert(key.clone(), (ObjectKey::of(current), field.clone()));
                if *key == own_key {
                    return Ok(Some(cycle_path(&own_key, &came_from)));
                }
                queue.extend(self.get(key));
            }
        }
        Ok(None)
    }
}

/// Returns the path from `key` back to `key`, and the field with the first reference on the path. `came_from`: for each resource on the
/// path, the previous resource and its field with the reference.
fn cycle_path(
    key: &ObjectKey,
    came_from: &BTreeMap<ObjectKey, (ObjectKey, String)>,
) -> (String, Vec<ObjectKey>) {
    let mut path = VecDeque::from([key.clone()]);
    let mut current = key;
    let mut first_field = String::new();
    while let Some((previous, field)) = came_from.get(current) {
        path.push_front(previous.clone());
        first_field.clone_from(field);
        if previous == key {
            break;
        }
        current = previous;
    }
    (first_field, path.into())
}

/// Returns the readiness of `tf` for its dependents.
pub fn readiness(tf: &Terraform) -> Readiness {
    readiness_with(tf, tf.status.as_ref())
}

/// Returns the readiness of `tf` with `status` for its dependents.
pub(crate) fn readiness_with(tf: &Terraform, status: Option<&TerraformStatus>) -> Readiness {
    let not_ready = |reason: String, message: &str| Readiness::NotReady {
        reason,
        message: message.to_owned(),
    };
    if tf.metadata.deletion_timestamp.is_some() {
        return not_ready(Reason::Deleted.into(), "the resource is being deleted");
    }
    let mut conditions = status.into_iter().flat_map(|status| &status.conditions);
    let Some(ready) = conditions.find(|condition| condition.type_ == "Ready") else {
        return not_ready(
            Reason::AwaitingProcessing.into(),
            "the resource has no status yet",
        );
    };
    let is_current =
        status.and_then(|condition| condition.observed_generation) == tf.metadata.generation;
    match (ready.status.as_str(), is_current) {
        // With `spec.mode: PlanOnly`, the changes of which the dependents expect the result are not applied.
        ("True", true) if ready.reason == Reason::ChangesPlanned => {
            not_ready(ready.reason.clone(), &ready.message)
        }
        ("True", true) => Readiness::Ready,
        ("True", false) => not_ready(
            Reason::AwaitingProcessing.into(),
            "the latest spec is not reconciled",
        ),
        _ => not_ready(ready.reason.clone(), &ready.message),
    }
}

/// Returns the resources among `resources` that reference or select `target`. They are reconciled when `target` changes.
pub fn followers<'a>(
    target: &Terraform,
    resources: impl IntoIterator<Item = &'a Terraform>,
) -> Vec<ObjectKey> {
    let related = resources
        .into_iter()
        .filter(|resource| references_by_name(resource, target) || selects_any(resource, target));
    related
        .map(ObjectKey::of)
        .filter(|related_key| *related_key != ObjectKey::of(target))
        .collect()
}

fn selects_any(tf: &Terraform, target: &Terraform) -> bool {
    outputs_refs(tf).any(|(_, reference)| selects(tf, reference, target))
}

/// Whether `tf` references `target` by name.
fn references_by_name(tf: &Terraform, target: &Terraform) -> bool {
    let is_target = |name: &String, namespace: &Option<String>| {
        let namespace = namespace.as_ref().or(tf.metadata.namespace.as_ref());
        Some(name) == target.metadata.name.as_ref()
            && namespace == target.metadata.namespace.as_ref()
    };
    let mut depends_on = tf.spec.depends_on.iter();
    let mut outputs =
        outputs_refs(tf).filter_map(|(_, reference)| Some((reference.name.as_ref()?, reference)));
    depends_on.any(|reference| is_target(&reference.name, &reference.namespace))
        || outputs.any(|(name, reference)| is_target(name, &reference.namespace))
}

/// Returns the first field of `tf` with a reference to another namespace, and that namespace.
fn foreign_namespace(tf: &Terraform) -> Option<(String, String)> {
    let spec = &tf.spec;
    let from = spec
        .variables_from
        .iter()
        .enumerate()
        .flat_map(|(i, source)| {
            let outputs = source
                .terraform_ref
                .as_ref()
                .map(|reference| ("terraformRef", &reference.namespace));
            let object = source
                .object_ref
                .as_ref()
                .map(|reference| ("objectRef", &reference.namespace));
            let references = outputs.into_iter().chain(object);
            references.map(move |(name, namespace)| {
                (format!("spec.variablesFrom[{i}].{name}"), namespace)
            })
        });
    let fields = from
        .chain(indexed("dependsOn", &spec.depends_on, |dependency| {
            &dependency.namespace
        }))
        .chain(indexed("waitFor", &spec.wait_for, |test| &test.namespace))
        .chain(indexed("destroyWaitFor", &spec.destroy_wait_for, |test| {
            &test.namespace
        }))
        .chain(indexed("healthChecks", &spec.health_checks, |test| {
            &test.namespace
        }));
    let mut with_namespace =
        fields.filter_map(|(field, namespace)| Some((field, namespace.clone()?)));
    with_namespace.find(|(_, namespace)| tf.namespace().as_ref() != Some(namespace))
}

fn indexed<'a, T>(
    list: &'static str,
    entries: &'a [T],
    namespace: impl Fn(&'a T) -> &'a Option<String> + 'a,
) -> impl Iterator<Item = (String, &'a Option<String>)> {
    let entries = entries.iter().enumerate();
    entries.map(move |(i, entry)| (format!("spec.{list}[{i}]"), namespace(entry)))
}
