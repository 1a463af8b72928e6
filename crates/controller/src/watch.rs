//! Watches with retries, and the caches that they fill.

pub(crate) mod allow_lists;
pub(crate) mod cached;
mod changes;
pub(crate) mod dependents;
pub(crate) mod dynamic;
pub(crate) mod joined;
pub(crate) mod keys;
pub(crate) mod mapping;
pub(crate) mod object_selector;
mod subscriptions;
pub(crate) mod trim;
pub(crate) mod used_objects;

use std::collections::BTreeSet;
use std::fmt::Debug;
use std::sync::Arc;

use alustan_api::ObjectKey;
use futures::stream::{self, Stream};
use futures::{StreamExt, TryStreamExt, future};
use k8s_openapi::api::core::v1::Secret;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::{Api, PartialObjectMeta, PartialObjectMetaExt as _};
use kube::core::NamespaceResourceScope;
use kube::runtime::reflector::{ObjectRef, Store};
use kube::runtime::{WatchStreamExt, watcher};
use kube::{Client, Resource, ResourceExt};
use serde::de::DeserializeOwned;
use tokio::sync::{broadcast, mpsc, watch};
use tracing::{debug, warn};

use crate::error::with_causes;
use crate::indexed_store::{Change, Indexed, IndexedStore, IndexedWriter, indexed_store};
use crate::resource::{Guarded, Ref};
use crate::watch::cached::{CachedSecret, cached};
use crate::watch::dependents::DependentsIndex;
use crate::watch::joined::Events;
use crate::watch::joined::joined;
use crate::watch::mapping::{MIRRORED, is_watched, managed_selector, to_ref, unmanaged_selector};
use crate::watch::used_objects::{UsedKind, UsedObjects};

/// Maximum number of objects per page of a list. An object has up to 1.5 MiB, and parsing its JSON takes several times as much memory.
pub(crate) const PAGE_SIZE: u32 = 50;

/// Maximum number of deleted resources that wait in [`Watches::deleted`] for the cache of Secrets. Above this number, the oldest of these
/// resources is dropped: the content of its Secrets stays in the cache until the Secrets are listed again.
const MAX_PENDING_DELETIONS: usize = 1_000;

/// Watches in `namespaces`, or in all namespaces if `namespaces` is empty.
#[derive(Clone)]
pub(crate) struct Watches {
    client: Client,
    namespaces: Vec<String>,
    resources: IndexedStore<Guarded>,
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
        let (resources, writer) = indexed_store();
        let (listed, has_resources) = watch::channel(false);
        let deleted = broadcast::Sender::new(MAX_PENDING_DELETIONS);
        let watches = Self {
            client,
            namespaces,
            resources,
            lists,
            has_resources,
            deleted: deleted.clone(),
        };
        let (all, dependents) = (watches.resources(), DependentsIndex::default());
        let raw_events = watches.watched(&watcher::Config::default(), trim::resource);
        let has_listed = move || {
            listed.send_replace(true);
        };
        let events = watches
            .filled(writer, raw_events, has_listed)
            .try_filter_map(move |change| {
                // `send` fails only after the controller has stopped.
                let wake = |resource: Ref| drop(wake.send(resource));
                if let Change::Deleted(resource) = &change {
                    wake(ObjectRef::from_obj(&**resource));
                    // `send` fails only if no cache of Secrets exists; then there is no content to remove.
                    let _ = deleted.send(resource.clone());
                }
                let affected = affected(&dependents, &change, &all);
                affected.iter().map(to_ref).for_each(wake);
                let changed = is_reconciled(&change).then(|| Guarded::clone(change.object()));
                future::ready(Ok(changed))
            });
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
    pub(crate) fn resources(&self) -> IndexedStore<Guarded> {
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
    /// with a backoff and its error is only logged: an error in the stream would make the controller delay all events.
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
        let watch = |api: Api<K>| {
            let events = watcher(api, wanted.clone().page_size(PAGE_SIZE)).default_backoff();
            events.modify(trim.clone()).boxed()
        };
        joined(self.apis().into_iter().map(watch).collect()).filter(|event| {
            log_error::<K>(event);
            future::ready(event.is_ok())
        })
    }

    /// Returns the created, changed and deleted objects that resources name, and possibly others of kind `K`. Omits the objects of the operator,
    /// which the caches watch already, and objects that a repeated list has unchanged. The watch begins after the first list of the resources.
    pub(crate) fn used<K>(
        &self,
        kind: UsedKind,
    ) -> impl Stream<Item = Events<PartialObjectMeta<K>>> + Send + use<K>
    where
        K: Resource<DynamicType = (), Scope = NamespaceResourceScope>,
        K: Clone + Debug + Send + 'static,
        PartialObjectMeta<K>: DeserializeOwned,
    {
        let wanted = watcher::Config::default().labels(&unmanaged_selector());
        let trim = |object: &mut PartialObjectMeta<K>| object.managed_fields_mut().clear();
        let mut used = UsedObjects::new(kind, self.resources());
        let changed = self
            .watched(&wanted, trim)
            .map_ok(move |event| {
                let changed = used.changed(&event).into_iter();
                stream::iter(changed.map(|key| Ok(metadata(key))))
            })
            .try_flatten();
        self.after_resources(changed)
    }

    /// Returns `events` once the first list of the resources is complete.
    fn after_resources<S: Stream>(&self, events: S) -> impl Stream<Item = S::Item> + use<S> {
        let mut has_resources = self.has_resources.clone();
        let begin = async move {
            // `wait_for` fails only if the watch of the resources has ended.
            let _ = has_resources.wait_for(|listed| *listed).await;
            events
        };
        stream::once(begin).flatten()
    }

    /// Returns a cache of the Secrets that each reconcile reads, see [`trim::secret`], and the events that fill it. The watch begins after
    /// the first list of the resources.
    pub(crate) fn secrets(
        &self,
    ) -> (
        IndexedStore<CachedSecret>,
        impl Stream<Item = Events<PartialObjectMeta<CachedSecret>>> + Send + use<>,
    ) {
        let wanted = watcher::Config::default().labels(&managed_selector(&MIRRORED));
        let resources = self.resources().store();
        let trim = move |secret: &mut Secret| trim::secret(secret, &resources);
        let watched = self.watched(&wanted, trim).map_ok(cached);
        let (store, writer) = indexed_store();
        let without = without_resources(self.deleted.subscribe(), store.store());
        let events = self.mirror(writer, stream::select(watched, without));
        (store, self.after_resources(events))
    }

    /// Returns a cache of the objects that `wanted` selects, without the fields that `trim` removes, and the metadata of the objects that change.
    pub(crate) fn mirrored<K>(
        &self,
        wanted: &watcher::Config,
        trim: fn(&mut K),
    ) -> (
        IndexedStore<K>,
        impl Stream<Item = Events<PartialObjectMeta<K>>> + Send + use<K>,
    )
    where
        K: Resource<Scope = NamespaceResourceScope> + Indexed,
        K: DeserializeOwned + Debug + Send + Sync,
    {
        let (store, writer) = indexed_store();
        (store, self.mirror(writer, self.watched(wanted, trim)))
    }

    /// Fills a cache with `events`. Returns the metadata of the objects that change.
    fn mirror<K, E>(
        &self,
        writer: IndexedWriter<K>,
        events: E,
    ) -> impl Stream<Item = Events<PartialObjectMeta<K>>> + Send + use<K, E>
    where
        E: Stream<Item = Events<watcher::Event<K>>> + Send,
        K: Indexed + Send + Sync,
    {
        self.filled(writer, events, || {}).map_ok(|change| {
            let metadata = change.object().meta().clone();
            metadata.into_response_partial()
        })
    }

    /// Fills a cache with `events`. Calls `has_listed` when the first list is complete. Returns the changes.
    fn filled<K, E, F>(
        &self,
        mut writer: IndexedWriter<K>,
        events: E,
        has_listed: F,
    ) -> impl Stream<Item = Events<Change<K>>> + Send + use<K, E, F>
    where
        E: Stream<Item = Events<watcher::Event<K>>> + Send,
        K: Indexed + Send + Sync,
        F: FnOnce() + Send,
    {
        let lists = self.lists.clone();
        let mut has_listed = Some(has_listed);
        events
            .map_ok(move |event| {
                let is_listed = matches!(event, watcher::Event::InitDone);
                let changes = writer.apply(event);
                if let Some(has_listed) = has_listed.take_if(|_| is_listed) {
                    has_listed();
                    // A counter is used because `Store::wait_until_ready` wakes only one waiter.
                    lists.send_modify(|lists| *lists += 1);
                }
                stream::iter(changes.into_iter().map(Ok))
            })
            .try_flatten()
    }
}

/// Returns an object with namespace and name alone.
fn metadata<K>(key: ObjectKey) -> PartialObjectMeta<K> {
    let metadata = ObjectMeta {
        name: Some(key.name),
        namespace: Some(key.namespace),
        ..ObjectMeta::default()
    };
    metadata.into_response_partial()
}

/// Whether the changed resource is reconciled. A change of the status alone reconciles nothing.
fn is_reconciled(change: &Change<Guarded>) -> bool {
    match change {
        Change::Listed(_) | Change::Applied { before: None, .. } => true,
        Change::Applied {
            before: Some(before),
            object,
        } => {
            let (before, after) = (before.meta(), object.meta());
            before.uid != after.uid
                || before.generation != after.generation
                || before.finalizers != after.finalizers
                || before.annotations != after.annotations
        }
        Change::Deleted(_) => false,
    }
}

/// Returns an event for each Secret in `secrets` that belongs to a resource in `deleted`. The event removes the content of the Secret from
/// the watch cache.
fn without_resources(
    deleted: broadcast::Receiver<Arc<Guarded>>,
    secrets: Store<CachedSecret>,
) -> impl Stream<Item = Events<watcher::Event<CachedSecret>>> + Send {
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
            let mut secret = CachedSecret::clone(&secret);
            trim::remove_content(&mut secret);
            Ok(watcher::Event::Apply(secret))
        });
        stream::iter(left_out.collect::<Vec<_>>())
    })
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

/// Returns the resources to reconcile after `change`, in addition to the changed resource.
fn affected(
    dependents: &DependentsIndex,
    change: &Change<Guarded>,
    all: &IndexedStore<Guarded>,
) -> BTreeSet<ObjectKey> {
    let tf = change.object().0.as_ref();
    match (change, tf) {
        (Change::Applied { .. }, Ok(tf)) => dependents.changed(tf, all),
        (Change::Deleted(_), Ok(tf)) => dependents.deleted(tf, all),
        // After the first list, all resources are reconciled.
        (Change::Listed(_), _) | (_, Err(_)) => BTreeSet::new(),
    }
}

#[cfg(test)]
mod tests {
    use kube::runtime::reflector;
    use serde_json::json;

    use super::*;

    #[tokio::test]
    async fn secrets_of_a_deleted_resource_are_cached_without_data() {
        let (secrets, mut writer) = reflector::store();
        for name in ["web-run", "web-outputs", "another-run"] {
            let secret =
                json!({"metadata": {"name": name, "namespace": "team"}, "data": {"a": "YQ=="}});
            let secret: CachedSecret = serde_json::from_value(secret).unwrap();
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
                assert!(trim::is_content_removed(secret) && secret.unpacked().data.is_none());
                secret.name_any()
            }
            other => panic!("{other:?}"),
        });
        assert_eq!(left_out.collect::<Vec<_>>(), ["web-run", "web-outputs"]);
    }
}
