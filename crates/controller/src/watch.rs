//! Watches with retries, and the caches that they fill.

pub(crate) mod allow_lists;
pub(crate) mod dependents;
pub(crate) mod dynamic;
pub(crate) mod joined;
pub(crate) mod mapping;
pub(crate) mod trim;

use std::fmt::Debug;
use std::hash::Hash;
use std::sync::Arc;

use alustan_api::labels::{self, Component};
use alustan_core::model::facts::sets_approval;
use futures::stream::{self, Stream};
use futures::{StreamExt, TryStreamExt, future};
use k8s_openapi::api::core::v1::Secret;
use kube::api::Api;
use kube::core::NamespaceResourceScope;
use kube::runtime::reflector::store::Writer;
use kube::runtime::reflector::{self, ObjectRef, Store};
use kube::runtime::{Predicate, PredicateConfig, WatchStreamExt, predicates, watcher};
use kube::{Client, Resource, ResourceExt};
use serde::de::DeserializeOwned;
use tokio::sync::{broadcast, mpsc, watch};
use tracing::{debug, warn};

use crate::error::with_causes;
use crate::resource::{Guarded, Ref};
use crate::watch::dependents::DependentsIndex;
use crate::watch::joined::Events;
use crate::watch::joined::joined;
use crate::watch::mapping::to_ref;
use crate::watch::mapping::wake_all;
use crate::watch::mapping::{MIRRORED, is_watched};

/// Maximum number of objects per page of a list. An object has up to 1.5 MiB, and parsing its JSON takes several times as much memory.
const PAGE_SIZE: u32 = 50;

/// Maximum number of deleted resources that wait in [`Watches::deleted`] for the cache of Secrets. Above this number, the oldest of these
/// resources is dropped: the content of its Secrets stays in the cache until the Secrets are listed again.
const MAX_PENDING_DELETIONS: usize = 1_000;

/// Watches in `namespaces`, or in all namespaces if `namespaces` is empty.
#[derive(Clone)]
pub(crate) struct Watches {
    client: Client,
    namespaces: Vec<String>,
    resources: Store<Guarded>,
    wake: mpsc::UnboundedSender<Ref>,
    /// Number of watches that have completed their first list.
    lists: watch::Sender<usize>,
    /// Whether the first list of the resources is complete.
    has_resources: watch::Receiver<bool>,
    /// Sends deleted resources to the cache of Secrets, which then removes the content of their Secrets.
    deleted: broadcast::Sender<Arc<Guarded>>,
}

impl Watches {
    /// Creates watches in `namespaces` (all if empty), and the event stream of the resources. The stream omits changes that only affect
    /// status. `wake` receives the resources to reconcile: each deleted resource, so that its in-memory state is dropped, and each resource
    /// that depends on a changed or deleted resource. `lists` is the number of watches of resources and cached objects that have completed
    /// their first list.
    pub(crate) fn new(
        client: Client,
        namespaces: Vec<String>,
        wake: mpsc::UnboundedSender<Ref>,
        lists: watch::Sender<usize>,
    ) -> (Self, impl Stream<Item = Events<Guarded>> + Send + use<>) {
        let (resources, writer) = reflector::store();
        let (listed, has_resources) = watch::channel(false);
        let deleted = broadcast::Sender::new(MAX_PENDING_DELETIONS);
        let watches = Self {
            client,
            namespaces,
            resources,
            wake: wake.clone(),
            lists: lists.clone(),
            has_resources,
            deleted: deleted.clone(),
        };
        let changes = predicates::generation
            .combine(predicates::finalizers)
            .combine(predicates::annotations);
        let (all, dependents) = (watches.resources(), DependentsIndex::default());
        let events = watches
            .watched(&watcher::Config::default(), |object: &mut Guarded| {
                object.managed_fields_mut().retain(sets_approval);
            })
            .reflect(writer)
            .inspect_ok(counted(lists))
            .inspect_ok(move |event| {
                if matches!(event, watcher::Event::InitDone) {
                    listed.send_replace(true);
                }
                // `send` fails only after the controller has stopped.
                let wake = |resource: Ref| drop(wake.send(resource));
                if let watcher::Event::Delete(deleted_resource) = event {
                    wake(ObjectRef::from_obj(deleted_resource));
                    // `send` fails only if no cache of Secrets exists; then there is no content to remove.
                    let _ = deleted.send(Arc::new(deleted_resource.clone()));
                }
                let affected = affected(&dependents, event, &all);
                affected.into_iter().for_each(wake);
            })
            .applied_objects()
            .predicate_filter(changes, PredicateConfig::default());
        (watches, events)
    }

    /// Returns watches of the same namespaces and of `namespace`.
    pub(crate) fn including(&self, namespace: Option<&String>) -> Self {
        let mut wider = self.clone();
        let more = namespace.filter(|name| !is_watched(&self.namespaces, name));
        wider.namespaces.extend(more.cloned());
        wider
    }

    /// Returns the cache of all resources in watched namespaces.
    pub(crate) fn resources(&self) -> Store<Guarded> {
        self.resources.clone()
    }

    /// Returns one API for all namespaces, or one for each watched namespace.
    fn apis<K>(&self) -> Vec<Api<K>>
    where
        K: Resource<DynamicType = (), Scope = NamespaceResourceScope>,
    {
        let client = || self.client.clone();
        if self.namespaces.is_empty() {
            return vec![Api::all(client())];
        }
        let namespaces = self.namespaces.iter();
        namespaces
            .map(|namespace| Api::namespaced(client(), namespace))
            .collect()
    }

    /// Returns the watch events of the objects that `wanted` selects, without the fields that `trim` removes. A failed watch is retried
    /// with a backoff and its error is only logged: an error in the stream would make the controller delay all events. A repeated list
    /// requeues all resources, because objects that were deleted before the list cause no events.
    fn watched<K, T>(
        &self,
        wanted: &watcher::Config,
        trim: T,
    ) -> impl Stream<Item = Events<watcher::Event<K>>> + Send + use<K, T>
    where
        K: Resource<DynamicType = (), Scope = NamespaceResourceScope>,
        K: DeserializeOwned + Clone + Debug + Send + 'static,
        T: Fn(&mut K) + Clone + Send + 'static,
    {
        let (resources, wake) = (self.resources(), self.wake.clone());
        let mut known = Vec::new();
        let mut first = true;
        let watch = |api: Api<K>| {
            let events = watcher(api, wanted.clone().page_size(PAGE_SIZE)).default_backoff();
            events.modify(trim.clone()).boxed()
        };
        joined(self.apis().into_iter().map(watch).collect())
            .filter(|event| {
                log_error::<K>(event);
                future::ready(event.is_ok())
            })
            .inspect_ok(move |event| match event {
                watcher::Event::Init => known = resources.state(),
                watcher::Event::InitDone if !std::mem::take(&mut first) => {
                    wake_all(known.drain(..), &wake);
                }
                _ => {}
            })
    }

    /// Returns the created, changed and deleted objects of kind `K` in the watched namespaces.
    pub(crate) fn touched<K>(&self) -> impl Stream<Item = Events<K>> + Send + use<K>
    where
        K: Resource<DynamicType = (), Scope = NamespaceResourceScope>,
        K: DeserializeOwned + Clone + Debug + Send + 'static,
    {
        let trim = |object: &mut K| object.managed_fields_mut().clear();
        self.watched(&watcher::Config::default(), trim)
            .touched_objects()
    }

    /// Returns a cache of the Secrets that each reconcile reads, see [`trim::secret`], and the events that fill it. The watch begins after
    /// the first list of the resources.
    pub(crate) fn secrets(
        &self,
    ) -> (
        Store<Secret>,
        impl Stream<Item = Events<Secret>> + Send + use<>,
    ) {
        let wanted = format!(
            "{}={},{} in ({})",
            labels::MANAGED_BY,
            labels::MANAGER,
            labels::COMPONENT,
            MIRRORED.map(Component::as_str).join(",")
        );
        let wanted = watcher::Config::default().labels(&wanted);
        let resources = self.resources();
        let trim = move |secret: &mut Secret| trim::secret(secret, &resources);
        let watched = self.watched(&wanted, trim);
        let (store, writer) = reflector::store();
        let without = without_resources(self.deleted.subscribe(), store.clone());
        let filled = self.filled(writer, stream::select(watched, without));
        let mut has_resources = self.has_resources.clone();
        let begin = async move {
            // `wait_for` fails only if the watch of the resources has ended.
            let _ = has_resources.wait_for(|listed| *listed).await;
            filled
        };
        (store, stream::once(begin).flatten())
    }

    /// Returns a cache of the objects that `wanted` selects, without the fields that `trim` removes, and the events that fill it.
    pub(crate) fn mirrored<K>(
        &self,
        wanted: &watcher::Config,
        trim: fn(&mut K),
    ) -> (Store<K>, impl Stream<Item = Events<K>> + Send + use<K>)
    where
        K: Resource<DynamicType = (), Scope = NamespaceResourceScope>,
        K: DeserializeOwned + Clone + Debug + Send + Sync + 'static,
        ObjectRef<K>: Hash + Eq,
    {
        let (store, writer) = reflector::store();
        (store, self.filled(writer, self.watched(wanted, trim)))
    }

    /// Fills a cache with `events`. Returns the created, changed and deleted objects.
    fn filled<K, E>(
        &self,
        writer: Writer<K>,
        events: E,
    ) -> impl Stream<Item = Events<K>> + Send + use<K, E>
    where
        E: Stream<Item = Events<watcher::Event<K>>> + Send,
        K: Resource<DynamicType = ()> + Clone + Send + Sync + 'static,
        ObjectRef<K>: Hash + Eq,
    {
        events
            .reflect(writer)
            .inspect_ok(counted(self.lists.clone()))
            .touched_objects()
    }
}

/// Returns an event for each Secret in `secrets` that belongs to a resource in `deleted`. The event removes the content of the Secret from
/// the watch cache.
fn without_resources(
    deleted: broadcast::Receiver<Arc<Guarded>>,
    secrets: Store<Secret>,
) -> impl Stream<Item = Events<watcher::Event<Secret>>> + Send {
    let deleted = stream::unfold(deleted, |mut deleted| async move {
        loop {
            match deleted.recv().await {
                Ok(resource) => return Some((resource, deleted)),
                Err(broadcast::error::RecvError::Lagged(_)) => {}
                Err(broadcast::error::RecvError::Closed) => return None,
            }
        }
    });
    deleted.flat_map(move |resource| {
        let namespace = resource.namespace().unwrap_or_default();
        let known = trim::names(&resource)
            .into_iter()
            .filter_map(|name| secrets.get(&ObjectRef::new(&name).within(&namespace)));
        let left_out = known.map(|secret| {
            let mut secret = Secret::clone(&secret);
            trim::remove_content(&mut secret);
            Ok(watcher::Event::Apply(secret))
        });
        stream::iter(left_out.collect::<Vec<_>>())
    })
}

/// Increments `lists` when the first list is complete. A counter is used because `Store::wait_until_ready` wakes only one waiter.
fn counted<K>(lists: watch::Sender<usize>) -> impl FnMut(&watcher::Event<K>) {
    let mut first = true;
    move |event| {
        if matches!(event, watcher::Event::InitDone) && std::mem::take(&mut first) {
            lists.send_modify(|lists| *lists += 1);
        }
    }
}

/// Logs the error of a watch.
fn log_error<K: Resource<DynamicType = ()>>(event: &Events<watcher::Event<K>>) {
    let kind = K::kind(&());
    match event {
        Ok(_) => {}
        // 410 Gone: the resource version has expired, and the watcher lists again.
        Err(watcher::Error::WatchError(status)) if status.code == 410 => {
            debug!(%kind, "the resource version expired; listing again");
        }
        Err(error) => {
            warn!(%kind, error = with_causes(error), "watch failed; retrying");
        }
    }
}

/// Returns the resources to reconcile after `event`, in addition to the resource of the event.
fn affected(
    dependents: &DependentsIndex,
    event: &watcher::Event<Guarded>,
    all: &Store<Guarded>,
) -> Vec<Ref> {
    let keys = match event {
        watcher::Event::Apply(Guarded(Ok(tf))) => dependents.changed(tf, || all.state()),
        watcher::Event::Delete(Guarded(Ok(tf))) => dependents.deleted(tf, &all.state()),
        watcher::Event::Init => {
            dependents.forget();
            return Vec::new();
        }
        _ => return Vec::new(),
    };
    keys.iter().map(to_ref).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[tokio::test]
    async fn secrets_of_a_deleted_resource_are_cached_without_data() {
        let (secrets, mut writer) = reflector::store();
        for name in ["web-run", "web-outputs", "another-run"] {
            let secret =
                json!({"metadata": {"name": name, "namespace": "team"}, "data": {"a": "YQ=="}});
            let secret = serde_json::from_value(secret).unwrap();
            writer.apply_watcher_event(&watcher::Event::Apply(secret));
        }
        let tf = json!({
            "metadata": {"name": "web", "namespace": "team"},
            "spec": {
                "gitRepo": {"url": "https://git.test/a"}, "containerRegistry": {"imageName": "registry.test/a"},
            },
        });
        let deleted = broadcast::Sender::new(1);
        let events = without_resources(deleted.subscribe(), secrets);
        let tf = Guarded(Ok(serde_json::from_value(tf).unwrap()));
        deleted.send(Arc::new(tf)).unwrap();
        drop(deleted);
        let events: Vec<_> = events.try_collect().await.unwrap();
        let left_out = events.iter().map(|event| match event {
            watcher::Event::Apply(secret) => {
                assert!(trim::is_content_removed(secret) && secret.data.is_none());
                secret.name_any()
            }
            other => panic!("{other:?}"),
        });
        assert_eq!(left_out.collect::<Vec<_>>(), ["web-run", "web-outputs"]);
    }
}
