//! Joins the watches of several namespaces into one watch. The first list of the joined watch is complete once the first list of each
//! namespace is complete.

use std::collections::{HashMap, VecDeque};

use futures::stream::{self, BoxStream, SelectAll, StreamExt};
use kube::ResourceExt;
use kube::runtime::watcher::{self, Event};

/// Item in the stream of a watch: an event, or the error of the watch.
pub(crate) type Events<K> = Result<K, watcher::Error>;

/// Event stream of a watch.
type WatchStream<K> = BoxStream<'static, Events<Event<K>>>;

/// Joins the event streams of `watches`. A single watch is returned unchanged. The objects of the first lists arrive between one `Init` and
/// one `InitDone`. A repeated list of one watch arrives as events of the changed objects, so that a failure and a new list of one watch do
/// not interrupt the other watches.
pub(super) fn joined<K: ResourceExt + Clone + Send + 'static>(
    mut watches: Vec<WatchStream<K>>,
) -> WatchStream<K> {
    match watches.pop() {
        Some(only) if watches.is_empty() => return only,
        last => watches.extend(last),
    }
    let parts = watches.iter().map(|_| NamespaceState::new()).collect();
    let numbered = watches.into_iter().enumerate();
    let numbered = numbered.map(|(number, watch)| watch.map(move |event| (number, event)).boxed());
    let joined = Joined {
        parts,
        open: stream::select_all(numbered),
        due: VecDeque::from([Ok(Event::Init)]),
        later: Some(Vec::new()),
    };
    stream::unfold(joined, |mut joined| async move {
        let event = joined.next().await?;
        Some((event, joined))
    })
    .boxed()
}

struct Joined<K> {
    parts: Vec<NamespaceState<K>>,
    /// Event streams of the watches that have not ended. Each event has the index of its namespace in `parts`.
    open: SelectAll<BoxStream<'static, (usize, Events<Event<K>>)>>,
    /// Events to return next.
    due: VecDeque<Events<Event<K>>>,
    /// Changes that arrived before the first lists were complete, to return after `InitDone`. `None` after `InitDone`.
    later: Option<Vec<Event<K>>>,
}

/// State of the watch of one namespace.
struct NamespaceState<K> {
    /// Whether the first list is complete.
    listed: bool,
    /// Objects of the last complete list and of later events, by name.
    known: HashMap<String, K>,
    /// Objects of the current, incomplete list.
    list: HashMap<String, K>,
}

impl<K: ResourceExt + Clone + Send + 'static> Joined<K> {
    /// Returns the next event; `None` once all watches have ended.
    async fn next(&mut self) -> Option<Events<Event<K>>> {
        loop {
            if let Some(event) = self.due.pop_front() {
                return Some(event);
            }
            let (part, event) = self.open.next().await?;
            self.process(part, event);
        }
    }

    /// Processes `event` of the watch of `parts[number]`.
    fn process(&mut self, number: usize, event: Events<Event<K>>) {
        let Some(part) = self.parts.get_mut(number) else {
            return;
        };
        match event {
            Ok(Event::Init) => part.list.clear(),
            Ok(Event::InitApply(object)) => drop(part.list.insert(object.name_any(), object)),
            Ok(Event::InitDone) if part.listed => {
                let changes = part.changes();
                self.emit(changes);
            }
            Ok(Event::InitDone) => {
                part.listed = true;
                part.known = std::mem::take(&mut part.list);
                let objects = part.known.values().cloned();
                self.due.extend(objects.map(Event::InitApply).map(Ok));
                self.complete_first_list();
            }
            Ok(Event::Apply(object)) => {
                part.known.insert(object.name_any(), object.clone());
                self.emit([Event::Apply(object)]);
            }
            Ok(Event::Delete(object)) => {
                part.known.remove(&object.name_any());
                self.emit([Event::Delete(object)]);
            }
            Err(error) => self.due.push_back(Err(error)),
        }
    }

    fn emit(&mut self, changes: impl IntoIterator<Item = Event<K>>) {
        match &mut self.later {
            Some(later) => later.extend(changes),
            None => self.due.extend(changes.into_iter().map(Ok)),
        }
    }

    /// Emits `InitDone` once the first list of each namespace is complete, and then the events in `later`.
    fn complete_first_list(&mut self) {
        if !self.parts.iter().all(|part| part.listed) {
            return;
        }
        self.due.push_back(Ok(Event::InitDone));
        let later = self.later.take();
        self.emit(later.into_iter().flatten());
    }
}

impl<K: ResourceExt + Clone> NamespaceState<K> {
    fn new() -> Self {
        Self {
            listed: false,
            known: HashMap::new(),
            list: HashMap::new(),
        }
    }

    /// Replaces the known objects by the objects of the complete list. Returns the differences as events.
    fn changes(&mut self) -> Vec<Event<K>> {
        let list = std::mem::take(&mut self.list);
        let mut before = std::mem::replace(&mut self.known, list);
        let mut changes = Vec::new();
        for (name, object) in &self.known {
            let old = before.remove(name);
            if old.is_none_or(|old| old.resource_version() != object.resource_version()) {
                changes.push(Event::Apply(object.clone()));
            }
        }
        changes.extend(before.into_values().map(Event::Delete));
        changes
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;

    use futures::channel::mpsc::{UnboundedSender, unbounded};
    use k8s_openapi::api::core::v1::ConfigMap;
    use kube::runtime::watcher::Error;

    use super::*;

    type EventSender = UnboundedSender<Events<Event<ConfigMap>>>;

    /// Joined watch, and the senders of the events of its namespaces.
    struct Watches {
        senders: Vec<EventSender>,
        watch: WatchStream<ConfigMap>,
    }

    /// Returns an object. `text`: one character, the name, and the resource version, if any. Example: `a2` is object `a` at version 2.
    fn object(text: &str) -> ConfigMap {
        let (name, version) = text.split_at(1);
        let mut object = ConfigMap::default();
        object.metadata.name = Some(name.to_owned());
        object.metadata.resource_version = Some(version.to_owned());
        object
    }

    fn text(object: &ConfigMap) -> String {
        object.name_any() + &object.resource_version().unwrap()
    }

    impl Watches {
        fn new(namespaces: usize) -> Self {
            let parts = (0..namespaces).map(|_| unbounded());
            let (senders, watches): (Vec<_>, Vec<_>) = parts.unzip();
            let watches = watches.into_iter().map(StreamExt::boxed).collect();
            let watch = joined(watches);
            Self { senders, watch }
        }

        fn send(&self, part: usize, event: Events<Event<ConfigMap>>) {
            self.senders[part].unbounded_send(event).unwrap();
        }

        fn list(&self, part: usize, objects: &[&str]) {
            self.send(part, Ok(Event::Init));
            for text in objects {
                self.send(part, Ok(Event::InitApply(object(text))));
            }
            self.send(part, Ok(Event::InitDone));
        }

        /// Returns pending events as text; events of the same kind in a row are sorted.
        fn events(&mut self) -> Vec<String> {
            let mut watch = pin!(&mut self.watch);
            let mut events = Vec::new();
            while let Some(Some(event)) = futures::FutureExt::now_or_never(watch.next()) {
                events.push(match event {
                    Ok(Event::Init) => "init".to_owned(),
                    Ok(Event::InitApply(object)) => format!("has {}", text(&object)),
                    Ok(Event::InitDone) => "done".to_owned(),
                    Ok(Event::Apply(object)) => format!("apply {}", text(&object)),
                    Ok(Event::Delete(object)) => format!("delete {}", text(&object)),
                    Err(_) => "error".to_owned(),
                });
            }
            for same in events.chunk_by_mut(|a, b| a.split(' ').next() == b.split(' ').next()) {
                same.sort_unstable();
            }
            events
        }
    }

    #[test]
    fn events_during_initial_lists_follow_the_joined_list() {
        let mut parts = Watches::new(2);
        assert_eq!(parts.events(), ["init"]);
        parts.list(1, &["b", "c"]);
        parts.send(1, Ok(Event::Delete(object("b"))));
        assert_eq!(parts.events(), ["has b", "has c"]);
        parts.list(0, &["a"]);
        assert_eq!(parts.events(), ["has a", "done", "delete b"]);
        parts.send(0, Ok(Event::Apply(object("a2"))));
        parts.send(1, Ok(Event::Apply(object("c2"))));
        assert_eq!(parts.events(), ["apply a2", "apply c2"]);
    }

    #[test]
    fn incomplete_list_emits_no_objects() {
        let mut parts = Watches::new(2);
        parts.send(1, Ok(Event::Init));
        parts.send(1, Ok(Event::InitApply(object("o"))));
        parts.send(1, Err(Error::NoResourceVersion));
        parts.list(1, &["n"]);
        parts.list(0, &[]);
        assert_eq!(parts.events(), ["init", "error", "has n", "done"]);
    }

    #[test]
    fn relist_of_one_watch_becomes_changes_and_delays_no_other() {
        let mut parts = Watches::new(2);
        parts.list(0, &["a", "b", "c"]);
        parts.list(1, &["d"]);
        parts.events();
        parts.send(0, Ok(Event::Apply(object("c2"))));
        parts.send(0, Ok(Event::Init));
        parts.send(0, Ok(Event::InitApply(object("a"))));
        parts.send(1, Ok(Event::Apply(object("d2"))));
        assert_eq!(parts.events(), ["apply c2", "apply d2"]);
        parts.send(0, Ok(Event::InitApply(object("c3"))));
        parts.send(0, Ok(Event::InitApply(object("e"))));
        parts.send(0, Ok(Event::InitDone));
        assert_eq!(parts.events(), ["apply c3", "apply e", "delete b"]);
    }

    #[test]
    fn relist_during_initial_lists_follows_the_joined_list() {
        let mut parts = Watches::new(2);
        parts.list(0, &["a", "b", "c"]);
        parts.send(0, Ok(Event::Delete(object("a"))));
        parts.send(0, Ok(Event::Apply(object("b2"))));
        parts.list(0, &["a3", "b4"]);
        assert_eq!(parts.events(), ["init", "has a", "has b", "has c"]);
        parts.list(1, &[]);
        let changes = ["delete a", "apply a3", "apply b2", "apply b4", "delete c"];
        let events = parts.events();
        assert_eq!(
            (events[0].as_str(), &events[1..]),
            ("done", &changes.map(str::to_owned)[..])
        );
    }

    #[test]
    fn failed_watch_delays_only_the_initial_list() {
        let mut parts = Watches::new(2);
        parts.list(0, &["a"]);
        assert_eq!(parts.events(), ["init", "has a"]);
        parts.send(1, Err(Error::NoResourceVersion));
        assert_eq!(parts.events(), ["error"]);
        parts.list(1, &["b"]);
        assert_eq!(parts.events(), ["has b", "done"]);
        parts.send(1, Ok(Event::Init));
        parts.send(1, Err(Error::NoResourceVersion));
        assert_eq!(parts.events(), ["error"]);
        parts.send(0, Ok(Event::Apply(object("a2"))));
        assert_eq!(parts.events(), ["apply a2"]);
    }

    #[test]
    fn single_namespace_watch_is_passed_through() {
        let mut parts = Watches::new(1);
        parts.list(0, &["a"]);
        assert_eq!(parts.events(), ["init", "has a", "done"]);
        parts.list(0, &["a2"]);
        assert_eq!(parts.events(), ["init", "has a2", "done"]);
    }
}
