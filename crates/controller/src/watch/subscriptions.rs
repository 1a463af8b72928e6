//! Which resources refer to which objects, and the watches that these references need.
//!
//! Each operation on one resource costs the references of that resource, regardless of the number of other resources.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use tokio::time::Instant;

use crate::resource::Ref;
use crate::watch::object_selector::{NameOrLabels, ObjectSelector};

/// Maximum number of watches for the resources of one namespace. Each watch takes a connection.
pub(super) const MAX_WATCHES: usize = 100;

/// Maximum number of different selectors of the resources of one namespace.
pub(super) const MAX_SELECTORS: usize = 1_000;

/// Maximum number of single objects of one kind and namespace that have a watch each. If resources name more of them, one watch of the kind in
/// the namespace replaces these watches.
pub(super) const MAX_SINGLE_WATCHES: usize = 3;

/// Time after which a refused watch of a collection is tried again. The API server may refuse it for a moment, for example after its start.
const FORBIDDEN_RETRY: Duration = Duration::from_mins(10);

/// All objects of one kind in one namespace. The namespace of a cluster-scoped kind is empty.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Collection {
    pub(super) api_version: String,
    pub(super) kind: String,
    pub(super) namespace: String,
}

impl Collection {
    pub(super) fn of(selector: &ObjectSelector) -> Self {
        Self {
            api_version: selector.api_version.clone(),
            kind: selector.kind.clone(),
            namespace: selector.namespace.clone(),
        }
    }

    /// Returns the selector of `objects` of this collection.
    pub(super) fn selector(&self, objects: NameOrLabels) -> ObjectSelector {
        ObjectSelector {
            api_version: self.api_version.clone(),
            kind: self.kind.clone(),
            namespace: self.namespace.clone(),
            objects,
        }
    }
}

/// Objects of one watch.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Target {
    Collection(Collection),
    Selector(ObjectSelector),
}

/// Version of an object: its resource version, or that the object does not exist.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Version {
    Absent,
    Exists(String),
}

/// References of resources to objects. `W` is a watch, which ends when it is dropped.
pub(super) struct Subscriptions<W> {
    collections: HashMap<Collection, CollectionState<W>>,
    /// Collections that the operator may not watch as a whole, and when the API server refused the watch.
    forbidden: HashMap<Collection, Instant>,
    selectors: HashMap<Ref, HashSet<ObjectSelector>>,
    usage: HashMap<String, Usage>,
    /// Number of subscriptions that were added or removed, or looked at to find these.
    #[cfg(test)]
    pub(super) visits: usize,
}

struct CollectionState<W> {
    objects: HashMap<NameOrLabels, Subscribers<W>>,
    /// Number of names in `objects`.
    names: usize,
    /// Watch of the collection, which serves all names. The names that had a watch before keep it until the first list of this watch.
    shared: Option<W>,
}

struct Subscribers<W> {
    /// Version that each resource has read last, if known. By namespace and name of the resource.
    versions: HashMap<String, HashMap<String, Option<Version>>>,
    /// Watch of only these objects. `None` for a name if the watch of the collection serves it.
    watch: Option<W>,
}

/// Selectors of the resources of one namespace.
#[derive(Default)]
struct Usage {
    labels: usize,
    /// Number of names by collection.
    names: HashMap<Collection, usize>,
    selectors: usize,
}

impl<W> Default for Subscriptions<W> {
    fn default() -> Self {
        Self {
            collections: HashMap::new(),
            forbidden: HashMap::new(),
            selectors: HashMap::new(),
            usage: HashMap::new(),
            #[cfg(test)]
            visits: 0,
        }
    }
}

impl<W> Default for CollectionState<W> {
    fn default() -> Self {
        Self {
            objects: HashMap::new(),
            names: 0,
            shared: None,
        }
    }
}

impl<W> Default for Subscribers<W> {
    fn default() -> Self {
        Self {
            versions: HashMap::new(),
            watch: None,
        }
    }
}

impl<W> Subscribers<W> {
    /// Returns the resources that have not read `version`. Without `version`, returns all resources.
    fn outdated(&self, version: Option<&Version>) -> impl Iterator<Item = Ref> {
        self.versions.iter().flat_map(move |(namespace, names)| {
            let outdated = names
                .iter()
                .filter(move |(_, read)| version.is_none() || read.as_ref() != version);
            outdated.map(|(name, _)| Ref::new(name).within(namespace))
        })
    }
}

impl<W> Subscriptions<W> {
    /// Subscribes `subscriber` to the objects that `selector` selects. `start` starts a watch if the selector needs a new one. Returns whether the
    /// objects are watched: not if the namespace of the subscriber has reached [`MAX_WATCHES`] or [`MAX_SELECTORS`].
    pub(super) fn subscribe(
        &mut self,
        selector: &ObjectSelector,
        subscriber: &Ref,
        start: impl FnOnce(Target) -> W,
    ) -> bool {
        #[cfg(test)]
        {
            self.visits += 1;
        }
        let (collection, namespace) = (Collection::of(selector), namespace_of(subscriber));
        let refused = self.forbidden.get(&collection);
        if refused.is_some_and(|refused| refused.elapsed() >= FORBIDDEN_RETRY) {
            self.forbidden.remove(&collection);
        }
        let objects = self.subscribers(selector);
        let is_known = objects.is_some_and(|objects| objects.versions.contains_key(&namespace));
        if !is_known {
            if !self.has_room(&namespace, selector, &collection) {
                return false;
            }
            let usage = self.usage.entry(namespace.clone()).or_default();
            usage.selectors += 1;
            match &selector.objects {
                NameOrLabels::Name(_) => *usage.names.entry(collection.clone()).or_default() += 1,
                NameOrLabels::Labels(_) => usage.labels += 1,
            }
        }
        let selectors = self.selectors.entry(subscriber.clone()).or_default();
        selectors.insert(selector.clone());
        let is_forbidden = self.forbidden.contains_key(&collection);
        let state = self.collections.entry(collection.clone()).or_default();
        let is_new = !state.objects.contains_key(&selector.objects);
        let objects = state.objects.entry(selector.objects.clone()).or_default();
        let of_namespace = objects.versions.entry(namespace).or_default();
        of_namespace.entry(subscriber.name.clone()).or_default();
        let is_served = match &selector.objects {
            NameOrLabels::Labels(_) => false,
            NameOrLabels::Name(_) => {
                state.names += usize::from(is_new);
                if state.shared.is_none() && !is_forbidden && state.names > MAX_SINGLE_WATCHES {
                    state.shared = Some(start(Target::Collection(collection)));
                    return true;
                }
                state.shared.is_some()
            }
        };
        if is_new && !is_served {
            objects.watch = Some(start(Target::Selector(selector.clone())));
        }
        true
    }

    /// Whether the resources of `namespace` may use one more selector, and the watch that it needs.
    fn has_room(
        &self,
        namespace: &str,
        selector: &ObjectSelector,
        collection: &Collection,
    ) -> bool {
        let Some(usage) = self.usage.get(namespace) else {
            return true;
        };
        let watches = |collection: &Collection, names: usize| {
            if self.forbidden.contains_key(collection) {
                names
            } else {
                names.min(MAX_SINGLE_WATCHES)
            }
        };
        let names = usage.names.get(collection).copied().unwrap_or_default();
        let needs_watch = match selector.objects {
            NameOrLabels::Labels(_) => true,
            NameOrLabels::Name(_) => watches(collection, names + 1) > watches(collection, names),
        };
        let used = || {
            let of_names = usage.names.iter();
            let of_names = of_names.map(|(collection, names)| watches(collection, *names));
            usage.labels + of_names.sum::<usize>()
        };
        usage.selectors < MAX_SELECTORS && (!needs_watch || used() < MAX_WATCHES)
    }

    /// Records the version of the object that `subscriber` has read. Then only another version of the object concerns the subscriber. `is_first`:
    /// whether it is the first read in a reconcile. If a later read returns another version, the reconcile used two versions, and each change
    /// concerns the subscriber.
    pub(super) fn record_read(
        &mut self,
        selector: &ObjectSelector,
        subscriber: &Ref,
        version: Version,
        is_first: bool,
    ) {
        let state = self.collections.get_mut(&Collection::of(selector));
        let objects = state.and_then(|state| state.objects.get_mut(&selector.objects));
        let names = objects.and_then(|objects| objects.versions.get_mut(&namespace_of(subscriber)));
        if let Some(read) = names.and_then(|names| names.get_mut(&subscriber.name)) {
            *read = (is_first || read.as_ref() == Some(&version)).then_some(version);
        }
    }

    /// Unsubscribes `subscriber` from selectors that are not in `used`. A watch without subscribers ends. Returns whether `subscriber` is
    /// subscribed to all selectors in `used`.
    pub(super) fn keep(&mut self, subscriber: &Ref, used: &HashSet<ObjectSelector>) -> bool {
        let Some(selectors) = self.selectors.get(subscriber) else {
            return used.is_empty();
        };
        #[cfg(test)]
        {
            self.visits += selectors.len();
        }
        let unused: Vec<_> = selectors.difference(used).cloned().collect();
        for selector in &unused {
            self.unsubscribe(selector, subscriber);
        }
        let selectors = self.selectors.get(subscriber);
        selectors.map_or(0, HashSet::len) == used.len()
    }

    /// Unsubscribes `subscriber` from the objects that `selector` selects. A watch without subscribers ends.
    pub(super) fn unsubscribe(&mut self, selector: &ObjectSelector, subscriber: &Ref) {
        #[cfg(test)]
        {
            self.visits += 1;
        }
        if let Some(selectors) = self.selectors.get_mut(subscriber) {
            selectors.remove(selector);
            if selectors.is_empty() {
                self.selectors.remove(subscriber);
            }
        }
        let (collection, namespace) = (Collection::of(selector), namespace_of(subscriber));
        let Some(state) = self.collections.get_mut(&collection) else {
            return;
        };
        let Some(objects) = state.objects.get_mut(&selector.objects) else {
            return;
        };
        let names = objects.versions.get_mut(&namespace);
        let is_last = names.is_some_and(|names| {
            names.remove(&subscriber.name);
            names.is_empty()
        });
        if !is_last {
            return;
        }
        objects.versions.remove(&namespace);
        if objects.versions.is_empty() {
            state.objects.remove(&selector.objects);
            if matches!(selector.objects, NameOrLabels::Name(_)) {
                state.names -= 1;
            }
            if state.names == 0 {
                state.shared = None;
            }
            if state.objects.is_empty() {
                self.collections.remove(&collection);
                self.forbidden.remove(&collection);
            }
        }
        self.release(&namespace, selector, &collection);
    }

    /// Removes a selector from the usage of `namespace`.
    fn release(&mut self, namespace: &str, selector: &ObjectSelector, collection: &Collection) {
        let Some(usage) = self.usage.get_mut(namespace) else {
            return;
        };
        usage.selectors -= 1;
        match &selector.objects {
            NameOrLabels::Labels(_) => usage.labels -= 1,
            NameOrLabels::Name(_) => {
                if let Some(names) = usage.names.get_mut(collection) {
                    *names -= 1;
                    if *names == 0 {
                        usage.names.remove(collection);
                    }
                }
            }
        }
        if usage.selectors == 0 {
            self.usage.remove(namespace);
        }
    }

    /// Ends the watch of a collection that the operator may not watch as a whole. Unsubscribes all resources that name objects without a watch of
    /// their own, and returns these resources. When they subscribe again, each object gets its own watch.
    pub(super) fn forbid(&mut self, collection: &Collection) -> Vec<Ref> {
        let Some(state) = self.collections.get_mut(collection) else {
            return Vec::new();
        };
        state.shared = None;
        let unwatched = state.objects.iter();
        let unwatched = unwatched.filter(|(_, objects)| objects.watch.is_none());
        let unwatched = unwatched.flat_map(|(objects, subscribers)| {
            let selector = collection.selector(objects.clone());
            subscribers
                .outdated(None)
                .map(move |subscriber| (selector.clone(), subscriber))
        });
        let unwatched: Vec<_> = unwatched.collect();
        for (selector, subscriber) in &unwatched {
            self.unsubscribe(selector, subscriber);
        }
        self.forbidden.insert(collection.clone(), Instant::now());
        unwatched
            .into_iter()
            .map(|(_, subscriber)| subscriber)
            .collect()
    }

    /// Whether a resource names the object `name` of `target`.
    pub(super) fn is_named(&self, target: &Target, name: &str) -> bool {
        let name = NameOrLabels::Name(name.to_owned());
        match target {
            Target::Collection(collection) => {
                let state = self.collections.get(collection);
                state.is_some_and(|state| state.objects.contains_key(&name))
            }
            Target::Selector(selector) => selector.objects == name,
        }
    }

    /// Returns the resources that the version of the object `name` of `target` concerns.
    pub(super) fn changed(&self, target: &Target, name: &str, version: &Version) -> Vec<Ref> {
        match target {
            Target::Selector(selector) => match &selector.objects {
                NameOrLabels::Labels(_) => self.of_selector(selector, None),
                NameOrLabels::Name(_) => self.of_selector(selector, Some(version)),
            },
            Target::Collection(collection) => {
                let state = self.collections.get(collection);
                let objects =
                    state.and_then(|state| state.objects.get(&NameOrLabels::Name(name.to_owned())));
                let outdated = objects.map(|objects| objects.outdated(Some(version)));
                outdated.into_iter().flatten().collect()
            }
        }
    }

    /// Returns the resources that a complete list of `target` concerns. `listed`: versions of the listed objects, by name. The watch of a
    /// collection then replaces those of its single objects.
    pub(super) fn listed(
        &mut self,
        target: &Target,
        listed: &HashMap<String, Version>,
    ) -> Vec<Ref> {
        let version = |name: &str| listed.get(name).unwrap_or(&Version::Absent);
        match target {
            Target::Selector(selector) => match &selector.objects {
                NameOrLabels::Labels(_) => self.of_selector(selector, None),
                NameOrLabels::Name(name) => self.of_selector(selector, Some(version(name))),
            },
            Target::Collection(collection) => {
                let state = self.collections.get_mut(collection);
                let objects = state.into_iter().flat_map(|state| &mut state.objects);
                let outdated = objects.filter_map(|(objects, subscribers)| match objects {
                    NameOrLabels::Name(name) => {
                        subscribers.watch = None;
                        Some(subscribers.outdated(Some(version(name))))
                    }
                    NameOrLabels::Labels(_) => None,
                });
                outdated.flatten().collect()
            }
        }
    }

    /// Returns the resources that refer to `selector` and have not read `version`.
    fn of_selector(&self, selector: &ObjectSelector, version: Option<&Version>) -> Vec<Ref> {
        let objects = self.subscribers(selector);
        let outdated = objects.map(|objects| objects.outdated(version));
        outdated.into_iter().flatten().collect()
    }

    fn subscribers(&self, selector: &ObjectSelector) -> Option<&Subscribers<W>> {
        let state = self.collections.get(&Collection::of(selector))?;
        state.objects.get(&selector.objects)
    }
}

fn namespace_of(subscriber: &Ref) -> String {
    subscriber.namespace.clone().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn selector(kind: &str, objects: NameOrLabels) -> ObjectSelector {
        ObjectSelector {
            api_version: "v1".to_owned(),
            kind: kind.to_owned(),
            namespace: "team".to_owned(),
            objects,
        }
    }

    fn named(i: usize) -> ObjectSelector {
        selector("ConfigMap", NameOrLabels::Name(format!("m{i}")))
    }

    fn labelled(i: usize) -> ObjectSelector {
        selector("ConfigMap", NameOrLabels::Labels(format!("a={i}")))
    }

    fn subscriber(i: usize) -> Ref {
        Ref::new(&format!("r{i}")).within("team")
    }

    fn only(selector: ObjectSelector) -> HashSet<ObjectSelector> {
        HashSet::from([selector])
    }

    /// Returns the targets of all active watches.
    fn watches(subscriptions: &Subscriptions<Target>) -> Vec<&Target> {
        let states = subscriptions.collections.values();
        let watches = states.flat_map(|state| {
            let single = state.objects.values();
            let single = single.filter_map(|objects| objects.watch.as_ref());
            state.shared.iter().chain(single)
        });
        watches.collect()
    }

    fn is_empty(subscriptions: &Subscriptions<Target>) -> bool {
        let Subscriptions {
            collections,
            forbidden,
            selectors,
            usage,
            ..
        } = subscriptions;
        collections.is_empty() && forbidden.is_empty() && selectors.is_empty() && usage.is_empty()
    }

    #[test]
    fn watch_of_a_collection_replaces_watches_of_its_objects() {
        let mut subscriptions = Subscriptions::default();
        for i in 0..MAX_SINGLE_WATCHES {
            assert!(subscriptions.subscribe(&named(i), &subscriber(i), |target| target));
        }
        assert_eq!(watches(&subscriptions).len(), MAX_SINGLE_WATCHES);
        for i in 0..100 {
            assert!(subscriptions.subscribe(&named(i), &subscriber(i), |target| target));
        }
        let collection = Target::Collection(Collection::of(&named(0)));
        assert_eq!(watches(&subscriptions).len(), MAX_SINGLE_WATCHES + 1);
        subscriptions.listed(&collection, &HashMap::new());
        assert_eq!(watches(&subscriptions), [&collection]);
        subscriptions.subscribe(&labelled(0), &subscriber(0), |target| target);
        assert_eq!(watches(&subscriptions).len(), 2);
        for i in 0..100 {
            subscriptions.keep(&subscriber(i), &only(labelled(0)));
        }
        assert_eq!(watches(&subscriptions), [&Target::Selector(labelled(0))]);
        subscriptions.keep(&subscriber(0), &HashSet::new());
        assert!(is_empty(&subscriptions));
    }

    #[test]
    fn resources_of_one_namespace_have_a_limited_number_of_watches() {
        let mut subscriptions = Subscriptions::default();
        let mut subscribe = |selector: &ObjectSelector, subscriber: &Ref| {
            subscriptions.subscribe(selector, subscriber, |target| target)
        };
        for i in 0..2 * MAX_WATCHES {
            // Each resource refers to 20 selectors.
            let is_watched = subscribe(&labelled(i), &subscriber(i / 20));
            assert_eq!(is_watched, i < MAX_WATCHES);
        }
        let elsewhere = Ref::new("r0").within("other");
        assert!(subscribe(&labelled(MAX_WATCHES), &elsewhere));
        assert!(
            !subscribe(&named(0), &subscriber(0)),
            "it needs another watch"
        );
        assert!(
            subscribe(&labelled(0), &subscriber(99)),
            "it needs no other watch"
        );
        assert_eq!(watches(&subscriptions).len(), MAX_WATCHES + 1);
        assert!(!subscriptions.keep(&subscriber(9), &only(labelled(199))));
        assert!(subscriptions.keep(&subscriber(0), &only(labelled(0))));
        assert_eq!(watches(&subscriptions).len(), MAX_WATCHES + 1 - 19);
        assert!(subscriptions.subscribe(&named(0), &subscriber(0), |target| target));
    }

    #[test]
    fn resources_of_one_namespace_name_a_limited_number_of_objects() {
        let mut subscriptions = Subscriptions::default();
        for i in 0..2 * MAX_SELECTORS {
            let is_watched =
                subscriptions.subscribe(&named(i), &subscriber(i / 20), |target| target);
            assert_eq!(is_watched, i < MAX_SELECTORS);
        }
        assert_eq!(watches(&subscriptions).len(), MAX_SINGLE_WATCHES + 1);
        let state = subscriptions.collections.values().next().unwrap();
        assert_eq!(state.objects.len(), MAX_SELECTORS);
    }

    /// Subscribes twice as many resources as may have a watch, each to an object of its own. Returns the number of watched objects.
    fn subscribe_many(subscriptions: &mut Subscriptions<Target>) -> usize {
        let names = (0..2 * MAX_WATCHES)
            .filter(|i| subscriptions.subscribe(&named(*i), &subscriber(*i), |target| target));
        names.count()
    }

    #[test]
    fn objects_of_a_forbidden_collection_have_a_limited_number_of_watches() {
        let mut subscriptions = Subscriptions::default();
        assert_eq!(subscribe_many(&mut subscriptions), 2 * MAX_WATCHES);
        subscriptions.subscribe(&labelled(0), &subscriber(0), |target| target);
        let collection = Collection::of(&named(0));
        subscriptions.listed(&Target::Collection(collection.clone()), &HashMap::new());
        let woken = subscriptions.forbid(&collection);
        assert_eq!(woken.len(), 2 * MAX_WATCHES);
        assert_eq!(watches(&subscriptions), [&Target::Selector(labelled(0))]);
        assert_eq!(subscribe_many(&mut subscriptions), MAX_WATCHES - 1);
        assert_eq!(watches(&subscriptions).len(), MAX_WATCHES);
        for i in 0..2 * MAX_WATCHES {
            subscriptions.keep(&subscriber(i), &HashSet::new());
        }
        assert!(is_empty(&subscriptions));
    }

    #[tokio::test(start_paused = true)]
    async fn forbidden_collection_is_watched_again_after_some_time() {
        let mut subscriptions = Subscriptions::default();
        let collection = Collection::of(&named(0));
        let shared = Target::Collection(collection.clone());
        subscribe_many(&mut subscriptions);
        subscriptions.forbid(&collection);
        assert_eq!(subscribe_many(&mut subscriptions), MAX_WATCHES);
        for _ in 0..2 {
            tokio::time::advance(FORBIDDEN_RETRY).await;
            subscriptions.subscribe(&named(0), &subscriber(0), |target| target);
            assert!(watches(&subscriptions).contains(&&shared));
            // The objects that have a watch keep it until the new watch has a list.
            assert_eq!(watches(&subscriptions).len(), MAX_WATCHES + 1);
            assert_eq!(subscribe_many(&mut subscriptions), 2 * MAX_WATCHES);
            assert_eq!(subscriptions.forbid(&collection).len(), MAX_WATCHES);
            assert_eq!(watches(&subscriptions).len(), MAX_WATCHES);
            assert_eq!(subscribe_many(&mut subscriptions), MAX_WATCHES);
        }
        tokio::time::advance(FORBIDDEN_RETRY).await;
        assert_eq!(subscribe_many(&mut subscriptions), 2 * MAX_WATCHES);
        subscriptions.listed(&shared, &HashMap::new());
        assert_eq!(watches(&subscriptions), [&shared]);
        assert_eq!(subscriptions.forbid(&collection).len(), 2 * MAX_WATCHES);
        assert_eq!(subscribe_many(&mut subscriptions), MAX_WATCHES);
    }

    #[test]
    fn watch_ends_with_its_last_subscriber() {
        let mut subscriptions = Subscriptions::default();
        for i in 0..2 {
            subscriptions.subscribe(&named(0), &subscriber(i), |target| target);
        }
        subscriptions.unsubscribe(&named(0), &subscriber(0));
        assert!(!subscriptions.keep(&subscriber(0), &only(named(0))));
        assert!(subscriptions.keep(&subscriber(1), &only(named(0))));
        subscriptions.unsubscribe(&named(0), &subscriber(1));
        assert!(is_empty(&subscriptions));
    }

    #[test]
    fn reconcile_that_read_two_versions_is_repeated_after_each_change() {
        let mut subscriptions = Subscriptions::default();
        subscriptions.subscribe(&named(0), &subscriber(0), |target| target);
        let version = |text: &str| Version::Exists(text.to_owned());
        let mut is_concerned = |reads: &[&str]| {
            for (i, read) in reads.iter().enumerate() {
                let (subscriber, version) = (subscriber(0), version(read));
                subscriptions.record_read(&named(0), &subscriber, version, i == 0);
            }
            let target = Target::Selector(named(0));
            !subscriptions
                .changed(&target, "m0", &version("2"))
                .is_empty()
        };
        assert!(is_concerned(&["1", "1"]));
        assert!(is_concerned(&["1", "2"]));
        assert!(is_concerned(&["1", "2", "2"]));
        assert!(!is_concerned(&["2", "2"]));
    }

    #[test]
    fn reconcile_of_one_resource_costs_its_own_subscriptions() {
        let visits = |resources: usize| {
            let mut subscriptions = Subscriptions::default();
            for i in 0..resources {
                subscriptions.subscribe(&named(i), &subscriber(i), |target| target);
                assert!(subscriptions.keep(&subscriber(i), &only(named(i))));
            }
            subscriptions.visits
        };
        assert_eq!(visits(800), 2 * visits(400));
    }
}
