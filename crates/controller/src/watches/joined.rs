//! Several watches as one: each tells of one namespace, and who listens hears of all of them at once, as
//! of one list that is whole once every part is.

use std::collections::{HashMap, VecDeque};

use futures::stream::{self, BoxStream, SelectAll, StreamExt};
use kube::ResourceExt;
use kube::runtime::watcher::{Error, Event};

use super::Events;

/// What a watch of a namespace gives.
type Watch<K> = BoxStream<'static, Events<Event<K>>>;

/// The API server may refuse the list of a namespace at first, and give it later.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Access {
    Refused,
    Granted,
}

/// The events of watches, each with its namespace. One alone is itself. Of several, what their first lists
/// have comes between one `Init` and one `InitDone`; what a later list of one of them has differently comes
/// as changes, so that the others go on. A first list that is refused holds up the others only if all are:
/// `access` is told of it, and again once everything that it has was told.
pub(super) fn joined<K: ResourceExt + Clone + Send + 'static>(
    mut watches: Vec<(String, Watch<K>)>,
    access: impl FnMut(&str, Access) + Send + 'static,
) -> Watch<K> {
    if watches.len() == 1 {
        return watches.remove(0).1;
    }
    let (parts, open): (Vec<_>, Vec<_>) = watches
        .into_iter()
        .enumerate()
        .map(|(number, (namespace, watch))| {
            let watch = watch.map(move |event| (number, event)).boxed();
            (Part::new(namespace), watch)
        })
        .unzip();
    let joined = Joined {
        parts,
        open: stream::select_all(open),
        due: VecDeque::from([Due::Event(Ok(Event::Init))]),
        later: Some(Vec::new()),
        access,
    };
    stream::unfold(joined, |mut joined| async move {
        let event = joined.next().await?;
        Some((event, joined))
    })
    .boxed()
}

struct Joined<K, A> {
    parts: Vec<Part<K>>,
    open: SelectAll<BoxStream<'static, (usize, Events<Event<K>>)>>,
    /// What is to be told next.
    due: VecDeque<Due<K>>,
    /// What happens before the first lists are whole, and is told after them.
    later: Option<Vec<Event<K>>>,
    access: A,
}

enum Due<K> {
    Event(Events<Event<K>>),
    /// To the namespace of this part.
    Access(usize, Access),
}

/// One namespace.
struct Part<K> {
    namespace: String,
    first: First,
    /// What there is, by name.
    known: HashMap<String, K>,
    /// What the list that goes on has so far.
    list: HashMap<String, K>,
}

/// What became of the first list.
#[derive(Clone, Copy, PartialEq, Eq)]
enum First {
    Due,
    Refused,
    Done,
}

impl<K: ResourceExt + Clone + Send + 'static, A: FnMut(&str, Access)> Joined<K, A> {
    /// The next event; none once all watches have ended.
    async fn next(&mut self) -> Option<Events<Event<K>>> {
        loop {
            match self.due.pop_front() {
                Some(Due::Event(event)) => return Some(event),
                Some(Due::Access(part, access)) => {
                    (self.access)(&self.parts[part].namespace, access);
                }
                None => {
                    let (part, event) = self.open.next().await?;
                    self.take(part, event);
                }
            }
        }
    }

    /// What is due now that `event` came from the watch of this number.
    fn take(&mut self, number: usize, event: Events<Event<K>>) {
        let part = &mut self.parts[number];
        match event {
            Ok(Event::Init) => part.list.clear(),
            Ok(Event::InitApply(object)) => drop(part.list.insert(object.name_any(), object)),
            Ok(Event::InitDone) => {
                let changes = part.listed();
                let was = std::mem::replace(&mut part.first, First::Done);
                if self.later.is_some() {
                    let objects = changes.into_iter().map(|change| match change {
                        Event::Apply(object) => Event::InitApply(object),
                        other => other,
                    });
                    self.due.extend(objects.map(|it| Due::Event(Ok(it))));
                } else {
                    self.tell(changes);
                }
                if was == First::Refused {
                    self.due.push_back(Due::Access(number, Access::Granted));
                }
                self.whole();
            }
            Ok(Event::Apply(object)) => {
                part.known.insert(object.name_any(), object.clone());
                self.tell([Event::Apply(object)]);
            }
            Ok(Event::Delete(object)) => {
                part.known.remove(&object.name_any());
                self.tell([Event::Delete(object)]);
            }
            Err(error) => {
                if part.first == First::Due && is_refusal(&error) {
                    part.first = First::Refused;
                    self.due.push_back(Due::Access(number, Access::Refused));
                }
                self.due.push_back(Due::Event(Err(error)));
                self.whole();
            }
        }
    }

    fn tell(&mut self, changes: impl IntoIterator<Item = Event<K>>) {
        match &mut self.later {
            Some(later) => later.extend(changes),
            None => {
                let changes = changes.into_iter().map(|it| Due::Event(Ok(it)));
                self.due.extend(changes);
            }
        }
    }

    /// Ends the first lists once nobody's is awaited any more.
    fn whole(&mut self) {
        let all = || self.parts.iter().map(|part| part.first);
        if all().any(|first| first == First::Due) || all().all(|first| first == First::Refused) {
            return;
        }
        if let Some(later) = self.later.take() {
            self.due.push_back(Due::Event(Ok(Event::InitDone)));
            self.tell(later);
        }
    }
}

impl<K: ResourceExt + Clone> Part<K> {
    fn new(namespace: String) -> Self {
        Self {
            namespace,
            first: First::Due,
            known: HashMap::new(),
            list: HashMap::new(),
        }
    }

    /// What the list that is whole now has differently.
    fn listed(&mut self) -> Vec<Event<K>> {
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

/// Whether a list may not be read: not for now, as by a server that is busy, but until a role says so.
fn is_refusal(error: &Error) -> bool {
    matches!(error, Error::InitialListFailed(kube::Error::Api(status)) if status.code == 403)
}

#[cfg(test)]
mod tests {
    use std::pin::pin;
    use std::sync::{Arc, Mutex};

    use futures::channel::mpsc::{UnboundedSender, unbounded};
    use k8s_openapi::api::core::v1::ConfigMap;
    use kube::core::Status;

    use super::*;

    type Sender = UnboundedSender<Events<Event<ConfigMap>>>;

    /// The watches of namespaces, as a test drives them, and what was told by now.
    struct Parts {
        senders: Vec<Sender>,
        watch: Watch<ConfigMap>,
        access: Arc<Mutex<Vec<String>>>,
    }

    /// "a" is an object, "a2" the same one at another version.
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

    impl Parts {
        fn new(namespaces: usize) -> Self {
            let (mut senders, mut watches) = (Vec::new(), Vec::new());
            for number in 0..namespaces {
                let (sender, watch) = unbounded();
                senders.push(sender);
                watches.push((number.to_string(), watch.boxed()));
            }
            let access = Arc::<Mutex<Vec<String>>>::default();
            let heard = access.clone();
            let watch = joined(watches, move |namespace, access| {
                heard
                    .lock()
                    .unwrap()
                    .push(format!("{namespace} {access:?}"));
            });
            Self {
                senders,
                watch,
                access,
            }
        }

        fn say(&self, part: usize, event: Events<Event<ConfigMap>>) {
            self.senders[part].unbounded_send(event).unwrap();
        }

        fn list(&self, part: usize, objects: &[&str]) {
            self.say(part, Ok(Event::Init));
            for it in objects {
                self.say(part, Ok(Event::InitApply(object(it))));
            }
            self.say(part, Ok(Event::InitDone));
        }

        fn refuse(&self, part: usize) {
            let status = Status::failure("no role", "Forbidden").with_code(403);
            let refused = kube::Error::Api(status.boxed());
            self.say(part, Err(Error::InitialListFailed(refused)));
        }

        /// What is told by now, in words; what a list has, sorted.
        fn told(&mut self) -> Vec<String> {
            let mut watch = pin!(&mut self.watch);
            let mut told = Vec::new();
            while let Some(Some(event)) = futures::FutureExt::now_or_never(watch.next()) {
                told.push(match event {
                    Ok(Event::Init) => "init".to_owned(),
                    Ok(Event::InitApply(object)) => format!("has {}", text(&object)),
                    Ok(Event::InitDone) => "done".to_owned(),
                    Ok(Event::Apply(object)) => format!("apply {}", text(&object)),
                    Ok(Event::Delete(object)) => format!("delete {}", text(&object)),
                    Err(_) => "error".to_owned(),
                });
            }
            for same in told.chunk_by_mut(|a, b| a.split(' ').next() == b.split(' ').next()) {
                same.sort_unstable();
            }
            told
        }

        /// What was told of access by now.
        fn access(&self) -> Vec<String> {
            std::mem::take(&mut self.access.lock().unwrap())
        }
    }

    #[test]
    fn several_lists_are_one_and_what_happens_meanwhile_comes_after_it() {
        let mut parts = Parts::new(2);
        assert_eq!(parts.told(), ["init"]);
        parts.list(1, &["b", "c"]);
        parts.say(1, Ok(Event::Delete(object("b"))));
        assert_eq!(parts.told(), ["has b", "has c"]);
        parts.list(0, &["a"]);
        assert_eq!(parts.told(), ["has a", "done", "delete b"]);
        parts.say(0, Ok(Event::Apply(object("a2"))));
        parts.say(1, Ok(Event::Apply(object("c2"))));
        assert_eq!(parts.told(), ["apply a2", "apply c2"]);
    }

    #[test]
    fn a_list_that_fails_half_way_tells_nothing_twice() {
        let mut parts = Parts::new(2);
        parts.say(1, Ok(Event::Init));
        parts.say(1, Ok(Event::InitApply(object("o"))));
        parts.say(1, Err(Error::NoResourceVersion));
        parts.list(1, &["n"]);
        parts.list(0, &[]);
        assert_eq!(parts.told(), ["init", "error", "has n", "done"]);
    }

    #[test]
    fn what_one_lists_anew_comes_as_changes_and_the_others_go_on() {
        let mut parts = Parts::new(2);
        parts.list(0, &["a", "b", "c"]);
        parts.list(1, &["d"]);
        parts.told();
        parts.say(0, Ok(Event::Apply(object("c2"))));
        parts.say(0, Ok(Event::Init));
        parts.say(0, Ok(Event::InitApply(object("a"))));
        parts.say(1, Ok(Event::Apply(object("d2"))));
        assert_eq!(parts.told(), ["apply c2", "apply d2"]);
        parts.say(0, Ok(Event::InitApply(object("c3"))));
        parts.say(0, Ok(Event::InitApply(object("e"))));
        parts.say(0, Ok(Event::InitDone));
        assert_eq!(parts.told(), ["apply c3", "apply e", "delete b"]);
    }

    #[test]
    fn one_that_is_refused_holds_up_nobody_and_is_heard_of_once_it_is_not() {
        let mut parts = Parts::new(2);
        parts.refuse(0);
        assert_eq!(parts.told(), ["init", "error"]);
        assert_eq!(parts.access(), ["0 Refused"]);
        parts.list(1, &["b"]);
        assert_eq!(parts.told(), ["has b", "done"]);
        parts.refuse(0);
        assert_eq!(parts.told(), ["error"]);
        assert!(parts.access().is_empty());
        parts.list(0, &["a"]);
        assert_eq!(parts.told(), ["apply a"]);
        assert_eq!(parts.access(), ["0 Granted"]);
    }

    #[test]
    fn nothing_is_whole_while_all_are_refused_or_one_only_fails() {
        let mut parts = Parts::new(2);
        parts.refuse(0);
        parts.refuse(1);
        assert_eq!(parts.told(), ["init", "error", "error"]);
        parts.list(0, &["a"]);
        assert_eq!(parts.told(), ["has a", "done"]);
        let mut parts = Parts::new(2);
        parts.list(0, &["a"]);
        assert_eq!(parts.told(), ["init", "has a"]);
        parts.say(1, Err(Error::NoResourceVersion));
        assert_eq!(parts.told(), ["error"]);
        assert!(parts.access().is_empty());
    }

    #[test]
    fn one_namespace_is_its_own_watch() {
        let mut parts = Parts::new(1);
        parts.list(0, &["a"]);
        assert_eq!(parts.told(), ["init", "has a", "done"]);
        parts.list(0, &["a2"]);
        assert_eq!(parts.told(), ["init", "has a2", "done"]);
    }
}
