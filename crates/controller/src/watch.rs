//! Watches with retries, and the caches that they fill.

pub(crate) mod allow_lists;
pub(crate) mod cached;
mod changes;
pub(crate) mod dependents;
pub(crate) mod dynamic;
pub(crate) mod keys;
pub(crate) mod mapping;
pub(crate) mod object_selector;
mod resource_names;
mod subscriptions;
pub(crate) mod trim;
pub(crate) mod used_objects;

use std::collections::BTreeSet;
use std::fmt::Debug;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use alustan_api::{ObjectKey, Terraform, labels};
use futures::stream::{self, BoxStream, Stream};
use futures::{StreamExt, TryStreamExt, future};
use k8s_openapi::api::core::v1::Secret;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::{Api, PartialObjectMeta, PartialObjectMetaExt as _};
use kube::core::NamespaceResourceScope;
use kube::runtime::reflector::Store;
use kube::runtime::{WatchStreamExt, watcher};
use kube::{Client, Resource, ResourceExt};
use serde::de::DeserializeOwned;
use tokio::sync::{broadcast, mpsc, watch};
use tracing::{debug, info, warn};

pub(crate) use resource_names::ResourceName;

use crate::call::{StatusKind, has_status};
use crate::error::with_causes;
use crate::indexed_store::{CachedObject, Change, Indexed, IndexedStore, IndexedWriter};
use crate::lenient::{self, Lenient};
use crate::resource::{Guarded, Ref};
use crate::watch::cached::cached;
use crate::watch::dependents::DependentsIndex;
use crate::watch::mapping::{MIRRORED, is_watched, managed_selector, to_ref, unmanaged_selector};
use crate::watch::resource_names::{NamesWriter, metadata};
use crate::watch::used_objects::{UsedKind, UsedObjects};

/// Maximum number of objects per page of a list. An object has up to 1.5 MiB, and parsing its JSON takes several times as much memory.
pub(crate) const PAGE_SIZE: u32 = 50;

/// Status code of an event of type `ERROR` after which a list starts again.
const EXPIRED: u16 = 410;

/// Maximum number of deleted resources that wait in [`Watches::deleted`] for the cache of Secrets. Above this number, the oldest of these
/// resources is dropped: the content of its Secrets stays in the cache until the Secrets are listed again.
const MAX_PENDING_DELETIONS: usize = 1_000;

/// Item in the stream of a watch: an event, or the error of the watch.
pub(crate) type Events<K> = Result<K, watcher::Error>;

/// Returns the events of a watch that streams the existing objects
/// (<https://kubernetes.io/docs/reference/using-api/api-concepts/#streaming-lists>): the API server sends one object at a time from its watch
/// cache, so neither side holds a page of decoded objects. If streaming fails ([`StreamedList`]), the watch lists the objects in pages: for each
/// page, the API server visits all objects after the previous page.
fn streamed_or_paged<K>(
    api: Api<K>,
    wanted: &watcher::Config,
) -> impl Stream<Item = Events<watcher::Event<K>>> + Send + use<K>
where
    K: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned + Send + 'static,
{
    let streamed = watcher(api.clone(), wanted.clone().streaming_lists());
    let paged = watcher(api, wanted.clone().page_size(PAGE_SIZE));
    let mut list = StreamedList::default();
    streamed
        .take_while(move |event| {
            let failure = list.failure(event);
            if let Some(cause) = &failure {
                let kind = K::kind(&());
                info!(%kind, cause, "the API server does not stream lists; listing in pages");
            }
            future::ready(failure.is_none())
        })
        .chain(paged)
}

/// Progress of the lists of a watch that streams them.
#[derive(Default)]
struct StreamedList {
    /// Whether a list has started and is not complete.
    is_open: bool,
    /// Number of consecutive lists that ended before they were complete.
    interrupted: u32,
}

impl StreamedList {
    /// Returns the cause if the watch must list in pages instead:
    ///
    /// - The API server does not support the parameter, as Kubernetes 1.33 by default: status 422.
    /// - An event of type `ERROR` during a list, unless the list expired. The API server needs etcd 3.4.31, 3.5.13 or later.
    /// - The API server ended two consecutive lists before they were complete. It does so without an error if so many objects change
    ///   during the list that its buffer for the watch is full.
    fn failure<K>(&mut self, event: &Events<watcher::Event<K>>) -> Option<String> {
        match event {
            Ok(watcher::Event::Init) => {
                self.interrupted += u32::from(self.is_open);
                self.is_open = true;
                (self.interrupted > 1).then(|| "the list was interrupted twice".to_owned())
            }
            Ok(watcher::Event::InitDone) => {
                *self = Self::default();
                None
            }
            Err(watcher::Error::WatchError(status)) if self.is_open && status.code != EXPIRED => {
                Some(status.message.clone())
            }
            Err(watcher::Error::WatchStartFailed(error))
                if has_status(error, StatusKind::Invalid) =>
            {
                Some(error.to_string())
            }
            _ => None,
        }
    }
}

/// Watch of one namespace, or of all namespaces if `namespace` is `None`.
struct Watched<K> {
    namespace: Option<String>,
    events: BoxStream<'static, Events<watcher::Event<K>>>,
}

/// Watches in `namespaces`, or in all namespaces if `namespaces` is empty.
#[derive(Clone)]
pub(crate) struct Watches {
    client: Client,
    namespaces: Vec<String>,
    resources: IndexedStore<Guarded>,
    /// Number of kinds whose first list is complete in all watched namespaces.
    lists: watch::Sender<usize>,
    /// Whether the first list of the resources is complete.
    has_resources: watch::Receiver<bool>,
    /// Sends deleted resources to the cache of Secrets, which then removes the content of their Secrets.
    deleted: broadcast::Sender<CachedObject<Guarded>>,
}

/// Input of the controller of kube.
pub(crate) struct ResourceNames<E> {
    /// Names of all resources.
    pub(crate) store: Store<ResourceName>,
    /// Names of the resources to reconcile after a change. Omits changes that only affect status.
    pub(crate) events: E,
}

impl Watches {
    /// Creates watches in `namespaces` (all if empty), and the names of the resources. `wake` receives the resources to reconcile: each deleted
    /// resource, so that its in-memory state is dropped, and each resource that depends on a changed or deleted resource. `lists` is the number
    /// of kinds, of resources and cached objects, whose first list is complete in all namespaces.
    pub(crate) fn new(
        client: Client,
        namespaces: Vec<String>,
        wake: mpsc::UnboundedSender<Ref>,
        lists: watch::Sender<usize>,
    ) -> (
        Self,
        ResourceNames<impl Stream<Item = Events<ResourceName>> + Send + use<>>,
    ) {
        let resources = IndexedStore::default();
        let names = NamesWriter::default();
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
        let store = names.store();
        let has_listed = {
            let (all, names) = (watches.resources(), names.clone());
            move || {
                names.list(all.keys());
                listed.send_replace(true);
            }
        };
        let unfiltered = watcher::Config::default();
        let by_namespace = watches.watched(&unfiltered, trim::resource);
        let events = watches
            .filled(&watches.resources, by_namespace, has_listed)
            .try_filter_map(move |change| {
                names.change(&change);
                // `send` fails only after the controller has stopped.
                let wake = |resource: Ref| drop(wake.send(resource));
                if let Change::Deleted(resource) = &change {
                    wake(resource.reference());
                    // `send` fails only if no cache of Secrets exists; then there is no content to remove.
                    let _ = deleted.send(resource.clone());
                }
                let affected = affected(&dependents, &change, &all);
                affected.iter().map(to_ref).for_each(wake);
                let changed = is_reconciled(&change).then(|| metadata(change.object().key()));
                future::ready(Ok(changed))
            });
        (watches, ResourceNames { store, events })
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

    /// Returns one API for all namespaces, or one for each watched namespace, with its namespace.
    fn apis<K>(&self) -> Vec<(Option<String>, Api<K>)>
    where
        K: Resource<DynamicType = (), Scope = NamespaceResourceScope>,
    {
        let client = || self.client.clone();
        if self.namespaces.is_empty() {
            return vec![(None, Api::all(client()))];
        }
        let namespaces = self.namespaces.iter();
        namespaces
            .map(|namespace| {
                (
                    Some(namespace.clone()),
                    Api::namespaced(client(), namespace),
                )
            })
            .collect()
    }

    /// Returns the watches of the objects that `wanted` selects, without the fields that `trim` removes. A failed watch is retried with a
    /// backoff and its error is only logged: an error in the stream would make the controller delay all events.
    fn watched<K, T>(&self, wanted: &watcher::Config, trim: T) -> Vec<Watched<K>>
    where
        K: Resource<DynamicType = (), Scope = NamespaceResourceScope>,
        K: DeserializeOwned + Clone + Debug + Send + 'static,
        T: Fn(&mut K) + Clone + Send + 'static,
    {
        let watch = |(namespace, api): (_, Api<Lenient<K>>)| {
            let events = streamed_or_paged(api, wanted).default_backoff();
            let events = events
                .map_ok(lenient::event)
                .modify(trim.clone())
                .filter(|event| {
                    log_error::<K>(event);
                    future::ready(event.is_ok())
                });
            Watched {
                namespace,
                events: events.boxed(),
            }
        };
        self.apis().into_iter().map(watch).collect()
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
        let changed = self.watched(&wanted, trim).into_iter().map(|watched| {
            let mut used = UsedObjects::new(kind, self.resources(), watched.namespace);
            let changed = watched.events.map_ok(move |event| {
                let changed = used.changed(&event).into_iter();
                stream::iter(changed.map(|key| Ok(metadata(key))))
            });
            changed.try_flatten().boxed()
        });
        self.after_resources(stream::select_all(changed))
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
        IndexedStore<Secret>,
        impl Stream<Item = Events<PartialObjectMeta<Secret>>> + Send + use<>,
    ) {
        let wanted = watcher::Config::default().labels(&managed_selector(&MIRRORED));
        let resources = self.resources();
        let trim = move |secret: &mut Secret| trim::secret(secret, &resources);
        let store = IndexedStore::default();
        let filled = self.filled(&store, self.watched(&wanted, trim), || {});
        let deleted = without_resources(self.deleted.subscribe(), store.clone());
        let left_out = applied(store.writer(None), deleted, || {});
        let events = stream::select(filled, left_out)
            .try_filter_map(|change| future::ready(Ok(metadata_of(&change))));
        (store, self.after_resources(events))
    }

    /// Returns a cache of the objects of the operator of kind `K`, without the metadata that `trim` removes, and the metadata of the objects that
    /// change.
    pub(crate) fn mirrored<K, C>(
        &self,
        trim: fn(&mut ObjectMeta),
    ) -> (
        IndexedStore<C>,
        impl Stream<Item = Events<PartialObjectMeta<C>>> + Send + use<K, C>,
    )
    where
        K: Resource<DynamicType = (), Scope = NamespaceResourceScope>,
        K: DeserializeOwned + Clone + Debug + Send + 'static,
        C: Indexed + From<K> + Send,
    {
        let store = IndexedStore::default();
        let selector = format!("{}={}", labels::MANAGED_BY, labels::MANAGER);
        let wanted = watcher::Config::default().labels(&selector);
        let trim = move |object: &mut K| trim(object.meta_mut());
        let watches = self.watched(&wanted, trim).into_iter();
        let watches = watches.map(|watched| Watched {
            namespace: watched.namespace,
            events: watched.events.map_ok(cached).boxed(),
        });
        let filled = self.filled(&store, watches.collect(), || {});
        (
            store,
            filled.try_filter_map(|change| future::ready(Ok(metadata_of(&change)))),
        )
    }

    /// Fills `store`. Calls `has_listed` when the first lists of all `watches` are complete. Returns the changes.
    fn filled<K, F>(
        &self,
        store: &IndexedStore<K>,
        watches: Vec<Watched<K>>,
        has_listed: F,
    ) -> impl Stream<Item = Events<Change<K>>> + Send + use<K, F>
    where
        K: Indexed + Send,
        F: Fn() + Send + Sync + 'static,
    {
        let lists = self.lists.clone();
        let all_listed = move || {
            has_listed();
            lists.send_modify(|lists| *lists += 1);
        };
        let unlisted = Arc::new(AtomicUsize::new(watches.len()));
        let all_listed = Arc::new(all_listed);
        let changes = watches.into_iter().map(|watched| {
            let (unlisted, all_listed) = (unlisted.clone(), all_listed.clone());
            let mut is_listed = false;
            let has_listed = move || {
                if !std::mem::replace(&mut is_listed, true)
                    && unlisted.fetch_sub(1, Ordering::AcqRel) == 1
                {
                    all_listed();
                }
            };
            applied(store.writer(watched.namespace), watched.events, has_listed).boxed()
        });
        stream::select_all(changes)
    }
}

/// Applies `events` to the cache of `writer`. Calls `has_listed` after each complete list. Returns the changes.
fn applied<K: Indexed + Send>(
    mut writer: IndexedWriter<K>,
    events: impl Stream<Item = Events<watcher::Event<K>>> + Send,
    mut has_listed: impl FnMut() + Send,
) -> impl Stream<Item = Events<Change<K>>> + Send {
    let changes = events.map_ok(move |event| {
        let is_listed = matches!(event, watcher::Event::InitDone);
        let changes = writer.apply(event);
        if is_listed {
            has_listed();
        }
        stream::iter(changes.into_iter().map(Ok))
    });
    changes.try_flatten()
}

/// Returns the metadata of the changed object.
fn metadata_of<K: Indexed>(change: &Change<K>) -> Option<PartialObjectMeta<K>> {
    let object = change.object().get()?;
    Some(object.meta().clone().into_response_partial())
}

/// Whether the changed resource is reconciled. A change of the status alone reconciles nothing.
fn is_reconciled(change: &Change<Guarded>) -> bool {
    match change {
        Change::Listed(_) | Change::Applied { before: None, .. } => true,
        Change::Applied {
            before: Some(before),
            object,
        } => before.summary().trigger != object.summary().trigger,
        Change::Deleted(_) => false,
    }
}

/// Returns an event for each Secret in `secrets` that belongs to a resource in `deleted`. The event removes the content of the Secret from
/// the watch cache.
fn without_resources(
    deleted: broadcast::Receiver<CachedObject<Guarded>>,
    secrets: IndexedStore<Secret>,
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
        let namespace = resource.key().namespace;
        let names = resource.get().map(|resource| trim::names(&resource));
        let secrets = secrets.clone();
        // Looks up each Secret when its event is applied: an event of the watch may arrive between two of them.
        stream::iter(names.into_iter().flatten().filter_map(move |name| {
            let secret = secrets.get(&Ref::new(&name).within(&namespace))?;
            let mut secret = Arc::unwrap_or_clone(secret);
            trim::remove_content(&mut secret);
            Some(Ok(watcher::Event::Apply(secret)))
        }))
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
    let (object, affected): (_, fn(&DependentsIndex, &Terraform, &_) -> _) = match change {
        // After the first list, all resources are reconciled.
        Change::Listed(_) => return BTreeSet::new(),
        Change::Applied { object, .. } => (object, DependentsIndex::changed),
        Change::Deleted(object) => (object, DependentsIndex::deleted),
    };
    let resource = object.get();
    let parsed = resource
        .as_deref()
        .and_then(|resource| resource.0.as_ref().ok());
    parsed
        .map(|tf| affected(dependents, tf, all))
        .unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use kube::core::Status;
    use rstest::rstest;
    use serde_json::json;

    use super::*;
    use crate::indexed_store::indexed_store;

    #[tokio::test]
    async fn secrets_of_a_deleted_resource_are_cached_without_data() {
        let (secrets, mut writer) = indexed_store();
        for name in ["web-run", "web-outputs", "another-run"] {
            let secret =
                json!({"metadata": {"name": name, "namespace": "team"}, "data": {"a": "YQ=="}});
            let secret: Secret = serde_json::from_value(secret).unwrap();
            writer.apply(watcher::Event::Apply(secret));
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
        let (_, mut resources) = indexed_store();
        for change in resources.apply(watcher::Event::Delete(tf)) {
            assert!(deleted.send(change.object().clone()).is_ok());
        }
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

    fn status(code: u16, reason: &str) -> Box<Status> {
        let status = json!({"status": "Failure", "code": code, "message": "m", "reason": reason});
        serde_json::from_value(status).unwrap()
    }

    fn error(code: u16) -> Events<watcher::Event<()>> {
        Err(watcher::Error::WatchError(status(code, "")))
    }

    fn refused(code: u16, reason: &str) -> Events<watcher::Event<()>> {
        let error = kube::Error::Api(status(code, reason));
        Err(watcher::Error::WatchStartFailed(error))
    }

    #[rstest]
    #[case::unknown_parameter(vec![refused(422, "Invalid")], true)]
    #[case::unavailable(vec![refused(503, "ServiceUnavailable")], false)]
    #[case::old_etcd(vec![Ok(watcher::Event::Init), error(500)], true)]
    #[case::expired(vec![Ok(watcher::Event::Init), error(410)], false)]
    #[case::error_after_the_list(
        vec![Ok(watcher::Event::Init), Ok(watcher::Event::InitDone), error(500)],
        false
    )]
    #[case::interrupted_once(vec![Ok(watcher::Event::Init), Ok(watcher::Event::Init)], false)]
    #[case::interrupted_twice(
        vec![Ok(watcher::Event::Init), Ok(watcher::Event::Init), Ok(watcher::Event::Init)],
        true
    )]
    #[case::interrupted_and_complete(
        vec![
            Ok(watcher::Event::Init), Ok(watcher::Event::Init), Ok(watcher::Event::InitDone),
            Ok(watcher::Event::Init), Ok(watcher::Event::Init),
        ],
        false
    )]
    fn lists_in_pages_after_a_failed_stream(
        #[case] events: Vec<Events<watcher::Event<()>>>,
        #[case] fails: bool,
    ) {
        let mut list = StreamedList::default();
        let failed = events.iter().any(|event| list.failure(event).is_some());
        assert_eq!(failed, fails);
    }
}
