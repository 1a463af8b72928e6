//! Several watches as one: each tells of one namespace, and who listens hears of all of them at once, as
//! of one list that is whole once every part is.

use std::collections::VecDeque;

use futures::stream::{self, BoxStream, SelectAll, Stream, StreamExt};
use kube::runtime::watcher::Event;

use super::Events;

/// A watch of a part.
type Watch<K> = BoxStream<'static, Events<Event<K>>>;

/// The events of the watches that `begin` gives. One alone is itself. Of several, the lists come one
/// after the other between one `Init` and one `InitDone`; when one of them has to list anew, all do, since
/// a list replaces what was known before.
pub(super) fn joined<K: Send + 'static>(
    begin: impl Fn() -> Vec<Watch<K>> + Send + 'static,
) -> impl Stream<Item = Events<Event<K>>> + Send {
    let mut watches = begin();
    match watches.pop() {
        Some(only) if watches.is_empty() => only,
        last => {
            watches.extend(last);
            let joined = Joined {
                begin,
                due: VecDeque::from([Ok(Event::Init)]),
                listing: watches,
                listed: Vec::new(),
                open: SelectAll::new(),
            };
            stream::unfold(joined, |mut joined| async move {
                let event = joined.next().await?;
                Some((event, joined))
            })
            .boxed()
        }
    }
}

struct Joined<K, B> {
    begin: B,
    /// What is to be told next.
    due: VecDeque<Events<Event<K>>>,
    /// Those that have not listed yet; the last one lists.
    listing: Vec<Watch<K>>,
    /// What it has listed so far.
    listed: Vec<K>,
    /// Those that have listed everything.
    open: SelectAll<Watch<K>>,
}

impl<K: Send + 'static, B: Fn() -> Vec<Watch<K>>> Joined<K, B> {
    /// The next event; none once a watch has ended.
    async fn next(&mut self) -> Option<Events<Event<K>>> {
        loop {
            if let Some(event) = self.due.pop_front() {
                return Some(event);
            }
            match self.listing.last_mut() {
                Some(watch) => match watch.next().await? {
                    Ok(Event::Init) => self.listed.clear(),
                    Ok(Event::InitApply(object)) => self.listed.push(object),
                    Ok(Event::InitDone) => self.has_listed(),
                    other => self.due.push_back(other),
                },
                None => match self.open.next().await? {
                    Ok(Event::Init) => self.begin_anew(),
                    event => return Some(event),
                },
            }
        }
    }

    /// What it has to tell from now on waits until the others have listed, too.
    fn has_listed(&mut self) {
        let listed = self.listed.drain(..).map(Event::InitApply).map(Ok);
        self.due.extend(listed);
        self.open.extend(self.listing.pop());
        if self.listing.is_empty() {
            self.due.push_back(Ok(Event::InitDone));
        }
    }

    fn begin_anew(&mut self) {
        self.open.clear();
        self.listing = (self.begin)();
        self.due.push_back(Ok(Event::Init));
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;
    use std::sync::{Arc, Mutex};

    use futures::channel::mpsc::{UnboundedSender, unbounded};
    use kube::runtime::watcher::Error;

    use super::*;

    type Sender = UnboundedSender<Events<Event<&'static str>>>;

    /// The watches of namespaces, as a test drives them; begun anew, they are further ones.
    #[derive(Clone, Default)]
    struct Parts(Arc<Mutex<Vec<Sender>>>);

    impl Parts {
        fn watch(&self, namespaces: usize) -> impl Stream<Item = Events<Event<&'static str>>> {
            let parts = self.clone();
            joined(move || {
                let watch = |_| {
                    let (sender, watch) = unbounded();
                    parts.0.lock().unwrap().push(sender);
                    watch.boxed()
                };
                (0..namespaces).map(watch).collect()
            })
        }

        fn say(&self, which: usize, events: impl IntoIterator<Item = Event<&'static str>>) {
            for event in events {
                self.0.lock().unwrap()[which]
                    .unbounded_send(Ok(event))
                    .unwrap();
            }
        }
    }

    fn list(objects: &[&'static str]) -> Vec<Event<&'static str>> {
        let listed = objects.iter().copied().map(Event::InitApply);
        let begun = std::iter::once(Event::Init).chain(listed);
        begun.chain([Event::InitDone]).collect()
    }

    /// What is told by now, in words.
    fn told(watch: impl Stream<Item = Events<Event<&'static str>>>) -> Vec<String> {
        let mut watch = pin!(watch);
        let mut told = Vec::new();
        while let Some(Some(event)) = futures::FutureExt::now_or_never(watch.next()) {
            told.push(match event {
                Ok(Event::Init) => "init".to_owned(),
                Ok(Event::InitApply(object)) => format!("has {object}"),
                Ok(Event::InitDone) => "done".to_owned(),
                Ok(Event::Apply(object)) => format!("apply {object}"),
                Ok(Event::Delete(object)) => format!("delete {object}"),
                Err(error) => error.to_string(),
            });
        }
        told
    }

    #[test]
    fn several_lists_are_one_and_what_happens_meanwhile_comes_after_it() {
        let parts = Parts::default();
        let mut watch = pin!(parts.watch(2));
        assert_eq!(told(watch.as_mut()), ["init"]);
        parts.say(1, list(&["b1", "b2"]));
        parts.say(1, [Event::Delete("b1")]);
        assert_eq!(told(watch.as_mut()), ["has b1", "has b2"]);
        parts.say(0, list(&["a"]));
        assert_eq!(told(watch.as_mut()), ["has a", "done", "delete b1"]);
        parts.say(0, [Event::Apply("a")]);
        parts.say(1, [Event::Apply("b2")]);
        let mut both = told(watch.as_mut());
        both.sort_unstable();
        assert_eq!(both, ["apply a", "apply b2"]);
    }

    #[test]
    fn a_list_that_fails_half_way_tells_nothing_twice() {
        let parts = Parts::default();
        let mut watch = pin!(parts.watch(2));
        parts.say(1, [Event::Init, Event::InitApply("old")]);
        parts.0.lock().unwrap()[1]
            .unbounded_send(Err(Error::NoResourceVersion))
            .unwrap();
        parts.say(1, list(&["new"]));
        parts.say(0, list(&[]));
        let failed = Error::NoResourceVersion.to_string();
        assert_eq!(told(watch.as_mut()), ["init", &failed, "has new", "done"]);
    }

    #[test]
    fn when_one_lists_anew_all_do_so_that_nothing_is_forgotten() {
        let parts = Parts::default();
        let mut watch = pin!(parts.watch(2));
        parts.say(0, list(&["a"]));
        parts.say(1, list(&["b"]));
        told(watch.as_mut());
        parts.say(0, [Event::Init]);
        assert_eq!(told(watch.as_mut()), ["init"]);
        parts.say(2, list(&["a2"]));
        parts.say(3, list(&["b"]));
        assert_eq!(told(watch.as_mut()), ["has b", "has a2", "done"]);
    }

    #[test]
    fn one_namespace_is_its_own_watch() {
        let parts = Parts::default();
        let mut watch = pin!(parts.watch(1));
        parts.say(0, list(&["a"]));
        assert_eq!(told(watch.as_mut()), ["init", "has a", "done"]);
        parts.say(0, list(&["a2"]));
        assert_eq!(told(watch.as_mut()), ["init", "has a2", "done"]);
    }
}
