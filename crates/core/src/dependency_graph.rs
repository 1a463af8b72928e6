//! Dependency graph of the resources (rules 13, 14 and 17).

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::{Arc, OnceLock};

use alustan_api::report::Failure;
use alustan_api::{OutputsRef, Reason, Terraform, TerraformStatus};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use kube::ResourceExt;
use kube::core::Selector;

use crate::observed::{DependencySeen, Key, Standing};

/// Maximum number of label comparisons to resolve the selectors of one graph. They take about 20 ms.
const COMPARISONS: usize = 200_000;
/// Maximum number of labels and values in one selector.
const SELECTOR_TERMS: usize = 50;

/// A reference to a resource.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Named {
    /// Field with the reference: `spec.dependsOn[0]`.
    pub field: String,
    /// The referenced resource.
    pub key: Key,
    /// Whether a change of the outputs of the referenced resource starts a run.
    pub trigger: bool,
}

/// Returns the references of `tf` by name, also to resources that do not exist.
pub fn named(tf: &Terraform) -> Vec<Named> {
    let here = tf.namespace().unwrap_or_default();
    let there = |namespace: &Option<String>| namespace.clone().unwrap_or_else(|| here.clone());
    let depends = tf.spec.depends_on.iter().enumerate().map(|(i, of)| Named {
        field: format!("spec.dependsOn[{i}]"),
        key: Key::new(there(&of.namespace), &of.name),
        trigger: false,
    });
    let taken = outputs_refs(tf).filter_map(|(i, of)| {
        Some(Named {
            field: format!("spec.variablesFrom[{i}].terraformRef"),
            key: Key::new(there(&of.namespace), of.name.as_ref()?),
            trigger: of.trigger,
        })
    });
    depends.chain(taken).collect()
}

/// Returns the entries of `spec.variablesFrom` with outputs of other resources, and their indexes.
pub fn outputs_refs(tf: &Terraform) -> impl Iterator<Item = (usize, &OutputsRef)> {
    let entries = tf.spec.variables_from.iter().enumerate();
    entries.filter_map(|(i, entry)| Some((i, entry.terraform_ref.as_ref()?)))
}

/// Returns the resources among `all` that the selector of `of`, an entry of `spec.variablesFrom` of `tf`, matches, sorted by name. Excludes
/// `tf` and resources that are being deleted.
///
/// # Errors
/// The selector is invalid.
pub fn selected<'a>(
    tf: &Terraform,
    of: &OutputsRef,
    all: impl IntoIterator<Item = &'a Terraform>,
) -> Result<Vec<&'a Terraform>, String> {
    selector(of.selector.as_ref())?;
    let all = all.into_iter();
    let mut selected: Vec<_> = all.filter(|it| selects(tf, of, it)).collect();
    selected.sort_by_key(|it| it.name_any());
    Ok(selected)
}

/// Whether the selector of `of`, an entry of `spec.variablesFrom` of `tf`, matches `it`. Does not copy the selector, because each event of
/// a resource is compared with the selectors of all resources.
fn selects(tf: &Terraform, of: &OutputsRef, it: &Terraform) -> bool {
    let (own, other) = (&tf.metadata, &it.metadata);
    let is_own = other.name == own.name && other.namespace == own.namespace;
    let namespace = of.namespace.as_ref().or(own.namespace.as_ref());
    let Some(selector) = of.selector.as_ref() else {
        return false;
    };
    other.namespace.as_ref() == namespace
        && !is_own
        && other.deletion_timestamp.is_none()
        && matches(selector, it.labels())
}

/// Whether `selector` matches `labels`. An invalid selector matches nothing:
/// <https://kubernetes.io/docs/concepts/overview/working-with-objects/labels/#label-selectors>.
fn matches(selector: &LabelSelector, labels: &BTreeMap<String, String>) -> bool {
    let mut equal = selector.match_labels.iter().flatten();
    let mut expressions = selector.match_expressions.iter().flatten();
    equal.all(|(key, value)| labels.get(key) == Some(value))
        && expressions.all(|it| {
            let label = labels.get(&it.key);
            let mut values = it.values.iter().flatten();
            match it.operator.as_str() {
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
    Selector::try_from(selector).map_err(|error| format!("selector: {error}"))
}

/// Returns the number of labels and values in `selector`.
fn terms(selector: &LabelSelector) -> usize {
    let labels = selector.match_labels.as_ref().map_or(0, BTreeMap::len);
    let expressions = selector.match_expressions.iter().flatten();
    let values = expressions.map(|it| 1 + it.values.as_ref().map_or(0, Vec::len));
    labels + values.sum::<usize>()
}

/// All resources and the references between them. The references of a resource are resolved once, when they are first needed.
pub struct DependencyGraph<'a> {
    all: Vec<&'a Terraform>,
    /// The resources of `all` by key. Built when it is first needed, because most resources have no references.
    by_key: OnceLock<BTreeMap<Key, &'a Terraform>>,
    references: BTreeMap<Key, Arc<[Named]>>,
    /// Remaining label comparisons.
    comparisons: usize,
}

/// Resolving the references requires more than [`COMPARISONS`] label comparisons.
#[derive(Debug)]
struct TooMany;

impl<'a> DependencyGraph<'a> {
    /// Builds the graph of `resources`. Resolves no reference yet.
    pub fn new(resources: impl IntoIterator<Item = &'a Terraform>) -> Self {
        Self {
            all: resources.into_iter().collect(),
            by_key: OnceLock::new(),
            references: BTreeMap::new(),
            comparisons: COMPARISONS,
        }
    }

    fn by_key(&self) -> &BTreeMap<Key, &'a Terraform> {
        self.by_key
            .get_or_init(|| self.all.iter().map(|it| (Key::of(it), *it)).collect())
    }

    /// Returns the resource `key`; `None` if it does not exist.
    pub fn get(&self, key: &Key) -> Option<&'a Terraform> {
        self.by_key().get(key).copied()
    }

    /// Returns the resources in `namespace`, sorted by name.
    pub fn in_namespace(&self, namespace: &str) -> impl Iterator<Item = &'a Terraform> {
        let all = self.by_key().range(Key::new(namespace, "")..);
        let there = all.take_while(move |(key, _)| key.namespace == namespace);
        there.map(|(_, tf)| *tf)
    }

    /// Returns the resources that `tf` references by name or selects, without duplicates.
    fn resolve(&mut self, tf: &Terraform) -> Result<Arc<[Named]>, TooMany> {
        let own = Key::of(tf);
        if let Some(known) = self.references.get(&own) {
            return Ok(Arc::clone(known));
        }
        let mut found = named(tf);
        for (i, of) in outputs_refs(tf).filter(|(_, of)| of.selector.is_some()) {
            let namespace = of.namespace.as_ref().unwrap_or(&own.namespace);
            let terms = of.selector.as_ref().map_or(0, terms);
            let cost = self.in_namespace(namespace).count() * terms.max(1);
            self.comparisons = self.comparisons.checked_sub(cost).ok_or(TooMany)?;
            let selected = selected(tf, of, self.in_namespace(namespace)).unwrap_or_default();
            found.extend(selected.into_iter().map(|it| Named {
                field: format!("spec.variablesFrom[{i}].terraformRef"),
                key: Key::of(it),
                trigger: of.trigger,
            }));
        }
        let triggers = found.iter().filter(|it| it.trigger);
        let triggers: BTreeSet<Key> = triggers.map(|it| it.key.clone()).collect();
        let mut seen = BTreeSet::new();
        found.retain(|it| seen.insert(it.key.clone()));
        for reference in &mut found {
            reference.trigger = triggers.contains(&reference.key);
        }
        let references = Arc::from(found);
        self.references.insert(own, Arc::clone(&references));
        Ok(references)
    }

    /// Returns the resources that `tf` references or selects. Empty if their search requires too many label comparisons; [`Self::check`]
    /// returns an error in this case.
    pub fn references(&mut self, tf: &Terraform) -> Arc<[Named]> {
        self.resolve(tf).unwrap_or_default()
    }

    /// Returns the resources whose outputs `tf` takes with `trigger: true`.
    pub(crate) fn sources(&mut self, tf: &Terraform) -> BTreeSet<Key> {
        let references = self.references(tf);
        let sources = references.iter().filter(|it| it.trigger);
        sources.map(|it| it.key.clone()).collect()
    }

    /// Returns the dependencies of `tf` with their readiness, without duplicates.
    pub fn dependencies(&mut self, tf: &Terraform) -> Vec<DependencySeen> {
        let here = tf.namespace().unwrap_or_default();
        let causes = self.causes(tf);
        let references = self.references(tf);
        let dependency = |it: &Named| DependencySeen {
            standing: self.standing_of(&it.key, &causes, &here),
            name: it.key.seen_from(&here),
            field: it.field.clone(),
        };
        references.iter().map(dependency).collect()
    }

    /// Returns the readiness of resource `key`, for messages in namespace `here`. If the resource waits for its own dependencies, the
    /// message names the root cause.
    fn standing_of(
        &self,
        key: &Key,
        causes: &BTreeMap<Key, (Key, String)>,
        here: &str,
    ) -> Standing {
        let Some(tf) = self.get(key) else {
            return Standing::Missing;
        };
        match standing(tf) {
            Standing::NotReady { reason, .. } if reason == Reason::DependencyNotReady => {
                let message = causes.get(key).map_or_else(
                    || "its status is outdated".to_owned(),
                    |(key, why)| format!("waiting for {}: {why}", key.seen_from(here)),
                );
                Standing::NotReady { reason, message }
            }
            other => other,
        }
    }

    /// Returns, for each dependency of `tf` that waits for its own dependencies, the root cause: the nearest resource that is missing or
    /// not ready for another reason, and this reason.
    fn causes(&mut self, tf: &Terraform) -> BTreeMap<Key, (Key, String)> {
        let mut waiting = BTreeMap::from([(Key::of(tf), Vec::new())]);
        let mut next = vec![tf];
        let mut roots = VecDeque::new();
        while let Some(at) = next.pop() {
            for Named { key, .. } in &*self.references(at) {
                if let Some(dependents) = waiting.get_mut(key) {
                    dependents.push(Key::of(at));
                    continue;
                }
                waiting.insert(key.clone(), vec![Key::of(at)]);
                let why = match self.get(key).map(|it| (it, standing(it))) {
                    None => Reason::DependencyNotFound.into(),
                    Some((it, Standing::NotReady { reason, .. }))
                        if reason == Reason::DependencyNotReady =>
                    {
                        next.push(it);
                        continue;
                    }
                    Some((_, Standing::NotReady { reason, .. })) => reason,
                    Some(_) => continue,
                };
                roots.push_back((key.clone(), (key.clone(), why)));
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

    /// Returns the resources that reference `of` by name and must be destroyed first. Excludes resources that only select `of`, because
    /// they continue without it; resources on a cycle with `of`, because `of` would wait forever; and resources of other namespaces unless
    /// `cross_namespace`.
    pub fn dependents(&mut self, of: &Terraform, cross_namespace: bool) -> Vec<Key> {
        let own = Key::of(of);
        let naming = self.all.iter().filter(|it| names_it(it, of));
        let naming = naming.map(|it| Key::of(it)).filter(|it| *it != own);
        let mut dependents: Vec<_> = naming
            .filter(|it| cross_namespace || it.namespace == own.namespace)
            .collect();
        dependents.sort();
        if !dependents.is_empty() {
            let reachable = self.reachable(of);
            dependents.retain(|key| !reachable.contains(key));
        }
        dependents
    }

    /// Returns the resources that `of` depends on, directly or transitively.
    fn reachable(&mut self, of: &Terraform) -> BTreeSet<Key> {
        let mut reachable = BTreeSet::new();
        let mut next = vec![of];
        while let Some(at) = next.pop() {
            for Named { key, .. } in &*self.references(at) {
                if reachable.insert(key.clone()) {
                    next.extend(self.get(key));
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
        if !cross_namespace && let Some((field, namespace)) = beyond(tf) {
            return Err(Failure::user(
                Reason::CrossNamespaceReference,
                format!(
                    "{field}.namespace: {namespace} is another namespace; references to it require \
                     the operator flag --allow-cross-namespace-refs"
                ),
            ));
        }
        for (i, of) in outputs_refs(tf) {
            selector(of.selector.as_ref()).map_err(|error| {
                let field = format!("spec.variablesFrom[{i}].terraformRef");
                Failure::user(Reason::InvalidSelector, format!("{field}.{error}"))
            })?;
        }
        // The failure is transient, because references of other resources may be the cause.
        let too_many = |TooMany| {
            let text = format!(
                "spec.variablesFrom: finding all dependencies of the resource requires more than \
                 {COMPARISONS} label comparisons; use name instead of selector, also in the \
                 dependencies"
            );
            Failure::transient(Reason::TooManyDependencies, text)
        };
        let cycle = self.cycle(tf).map_err(too_many)?;
        let Some((field, path)) = cycle else {
            return Ok(());
        };
        let here = tf.namespace().unwrap_or_default();
        let path: Vec<_> = path.iter().map(|it| it.seen_from(&here)).collect();
        Err(Failure::user(
            Reason::DependencyCycle,
            format!(
                "{field}: dependency cycle: {}; remove one of these references",
                path.join(" -> ")
            ),
        ))
    }

    /// Returns the shortest path from `tf` along references back to `tf`, including both ends, and the field of its first reference.
    fn cycle(&mut self, tf: &Terraform) -> Result<Option<(String, Vec<Key>)>, TooMany> {
        let own = Key::of(tf);
        let mut came_from: BTreeMap<Key, (Key, String)> = BTreeMap::new();
        let mut next = VecDeque::from([tf]);
        while let Some(at) = next.pop_front() {
            for Named { key, field, .. } in &*self.resolve(at)? {
                if came_from.contains_key(key) {
                    continue;
                }
                came_from.insert(key.clone(), (Key::of(at), field.clone()));
                if *key == own {
                    return Ok(Some(back_to(&own, &came_from)));
                }
                next.extend(self.get(key));
            }
        }
        Ok(None)
    }
}

/// Returns the path from `own` back to `own`, and the field of its first reference. `came_from`: for each resource on the path, the
/// previous resource and its field with the reference.
fn back_to(own: &Key, came_from: &BTreeMap<Key, (Key, String)>) -> (String, Vec<Key>) {
    let mut path = VecDeque::from([own.clone()]);
    let mut at = own;
    let mut first = String::new();
    while let Some((before, field)) = came_from.get(at) {
        path.push_front(before.clone());
        first.clone_from(field);
        if before == own {
            break;
        }
        at = before;
    }
    (first, path.into())
}

/// Returns the readiness of `tf` for its dependents.
pub fn standing(tf: &Terraform) -> Standing {
    standing_with(tf, tf.status.as_ref())
}

/// Returns the readiness of `tf` with `status` for its dependents.
pub(crate) fn standing_with(tf: &Terraform, status: Option<&TerraformStatus>) -> Standing {
    let not_ready = |reason: String, message: &str| Standing::NotReady {
        reason,
        message: message.to_owned(),
    };
    if tf.metadata.deletion_timestamp.is_some() {
        return not_ready(Reason::Deleted.into(), "the resource is being deleted");
    }
    let mut conditions = status.into_iter().flat_map(|status| &status.conditions);
    let Some(ready) = conditions.find(|it| it.type_ == "Ready") else {
        return not_ready(
            Reason::AwaitingProcessing.into(),
            "the resource has no status yet",
        );
    };
    let current = status.and_then(|it| it.observed_generation) == tf.metadata.generation;
    match (ready.status.as_str(), current) {
        ("True", true) => Standing::Ready,
        ("True", false) => not_ready(
            Reason::AwaitingProcessing.into(),
            "the latest spec is not reconciled",
        ),
        _ => not_ready(ready.reason.clone(), &ready.message),
    }
}

/// Returns the resources among `all` that reference or select `of`. They are reconciled when `of` changes.
pub fn followers<'a>(of: &Terraform, all: impl IntoIterator<Item = &'a Terraform>) -> Vec<Key> {
    let others = all
        .into_iter()
        .filter(|it| names_it(it, of) || selects_it(it, of));
    others
        .map(Key::of)
        .filter(|it| *it != Key::of(of))
        .collect()
}

fn selects_it(tf: &Terraform, it: &Terraform) -> bool {
    outputs_refs(tf).any(|(_, of)| selects(tf, of, it))
}

/// Whether `tf` references `it` by name.
fn names_it(tf: &Terraform, it: &Terraform) -> bool {
    let is_it = |name: &String, namespace: &Option<String>| {
        let namespace = namespace.as_ref().or(tf.metadata.namespace.as_ref());
        Some(name) == it.metadata.name.as_ref() && namespace == it.metadata.namespace.as_ref()
    };
    let mut depends_on = tf.spec.depends_on.iter();
    let mut outputs = outputs_refs(tf).filter_map(|(_, of)| Some((of.name.as_ref()?, of)));
    depends_on.any(|of| is_it(&of.name, &of.namespace))
        || outputs.any(|(name, of)| is_it(name, &of.namespace))
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
