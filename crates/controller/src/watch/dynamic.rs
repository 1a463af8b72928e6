//! Reads objects of any kind that resources refer to, and watches these objects as long as a resource refers to them.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Weak};

use alustan_api::Reason;
use alustan_api::report::Failure;
use futures::{Stream, StreamExt, TryStreamExt};
use kube::api::{Api, DynamicObject, ListParams, ObjectList, PartialObjectMeta};
use kube::core::{ApiResource, DynamicResourceScope, GroupVersionKind, ListMeta, Request};
use kube::discovery::{Scope, pinned_kind};
use kube::runtime::{WatchStreamExt, watcher};
use kube::{Client, ResourceExt};
use parking_lot::Mutex;
use tokio::sync::mpsc::UnboundedSender;
use tokio::task::AbortHandle;
use tracing::debug;

use crate::call::call;
use crate::error::{Error, ReadResult};
use crate::lenient::{self, Lenient};
use crate::recent_reads::{RecentReads, Values};
use crate::resource::Ref;
use crate::watch::Events;
use crate::watch::mapping::unmanaged_selector;
use crate::watch::object_selector::{NameOrLabels, ObjectSelector};
use crate::watch::subscriptions::{Collection, Subscriptions, Target, Version};

/// Maximum number of objects that a selector may select.
pub(crate) const MAX_OBJECTS: u32 = 100;

/// Maximum number of objects per page of a list. Limits the memory for one resource: an object has up to 1.5 MiB.
const PAGE_SIZE: u32 = 10;

/// Maximum number of objects per page of the list of a watch. Limits the memory for one watch: the metadata of an object has up to 1.5 MiB.
const WATCH_PAGE_SIZE: u32 = 50;

/// Query of a list call: only the metadata of the selected objects, or a page of whole objects.
pub(crate) enum ListQuery {
    /// Metadata of objects without the operator's managed-by label, at most [`MAX_OBJECTS`].
    UnmanagedMetadata,
    /// A page of whole objects: the first page, or the page that begins at this continue token.
    Page(Option<String>),
}

/// Read of the objects that a field of a resource selects.
pub(crate) struct ObjectQuery<'a> {
    /// Path of the field, for messages.
    pub(crate) field: &'a str,
    pub(crate) selector: &'a ObjectSelector,
    pub(crate) list: ListQuery,
    /// Whether it is the first read with this selector in a reconcile.
    pub(crate) is_first: bool,
    /// Whether the response to an earlier read may be reused, if the objects are watched.
    pub(crate) may_reuse: bool,
}

/// Objects that one list call returns.
pub(crate) struct Page {
    pub(crate) items: Vec<DynamicObject>,
    /// Continue token of the next page, if there is one.
    pub(crate) next: Option<String>,
    /// Whether the page is the response to an earlier read.
    pub(crate) is_reused: bool,
}

impl Page {
    /// Parses the response to a list call of `resource`.
    fn parse(
        response: &str,
        resource: &ApiResource,
        is_metadata_only: bool,
    ) -> serde_json::Result<Self> {
        if is_metadata_only {
            let list: ObjectList<PartialObjectMeta<DynamicObject>> =
                serde_json::from_str(response)?;
            let items = list.items.into_iter();
            let items = items.map(|object| metadata_only(object, resource));
            return Ok(Self::new(list.metadata, items.collect()));
        }
        let list: ObjectList<DynamicObject> = serde_json::from_str(response)?;
        Ok(Self::new(list.metadata, list.items))
    }

    fn new(metadata: ListMeta, items: Vec<DynamicObject>) -> Self {
        Self {
            items,
            next: metadata.continue_.filter(|token| !token.is_empty()),
            is_reused: false,
        }
    }
}

/// API version and name of a kind.
type KindName = (String, String);

/// Kind of the cluster.
type Kind = (ApiResource, Scope);

impl Values for Kind {
    fn size(&self) -> usize {
        size_of::<Self>()
    }
}

/// Response of the API server. Kept as text, because parsed objects take many times the memory.
impl Values for Arc<str> {
    fn size(&self) -> usize {
        self.len()
    }
}

/// Reads and watches the objects that resources refer to.
pub(crate) struct DynamicWatches {
    client: Client,
    kinds: RecentReads<Kind, KindName>,
    watches: Arc<Watches>,
}

/// Active watches, and the resources that they requeue.
struct Watches {
    subscriptions: Mutex<Subscriptions<WatchTask>>,
    /// Responses to reads of the first page. An event of a watch drops those with an object that may have changed.
    reads: RecentReads<Arc<str>, ObjectSelector>,
    wake: UnboundedSender<Ref>,
}

/// Task that follows a watch until it is dropped.
struct WatchTask(AbortHandle);

impl Drop for WatchTask {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl DynamicWatches {
    /// Creates an empty set of watches. `wake` receives the resources to requeue: they refer to an object that changed.
    pub(crate) fn new(client: Client, wake: UnboundedSender<Ref>) -> Self {
        Self {
            client,
            kinds: RecentReads::lasting(),
            watches: Arc::new(Watches {
                subscriptions: Mutex::default(),
                reads: RecentReads::watched(),
                wake,
            }),
        }
    }

    /// Returns the objects that `query` selects. Later changes of these objects requeue `subscriber`. Secrets are returned without their data.
    pub(crate) async fn find(&self, query: ObjectQuery<'_>, subscriber: &Ref) -> ReadResult<Page> {
        let ObjectQuery {
            field,
            selector,
            list: query,
            is_first,
            may_reuse,
        } = query;
        let (resource, scope) = match self.kind(field, selector).await? {
            Ok(kind) => kind,
            Err(failure) => return Ok(Err(failure)),
        };
        let target = within_scope(selector, &scope);
        // Watch before the read, so that no change after the read is missed.
        let is_watched = self.watch(&target, subscriber, &resource, &scope);
        let is_secret = resource.kind == "Secret" && resource.group.is_empty();
        let mut parameters = selector.parameters();
        let is_unmanaged = matches!(query, ListQuery::UnmanagedMetadata);
        let is_shared = is_watched && matches!(query, ListQuery::Page(None));
        let is_metadata_only = match query {
            ListQuery::UnmanagedMetadata => {
                let label_selector = parameters.label_selector.take();
                let label_selector = label_selector.filter(|selector| !selector.is_empty());
                let selectors: Vec<_> = label_selector
                    .into_iter()
                    .chain([unmanaged_selector()])
                    .collect();
                parameters.label_selector = Some(selectors.join(","));
                parameters.limit = Some(MAX_OBJECTS);
                true
            }
            ListQuery::Page(token) => {
                parameters.limit = Some(PAGE_SIZE);
                parameters.continue_token = token;
                is_secret
            }
        };
        let api: Api<DynamicObject> = self.api(&target.namespace, &resource, &scope);
        // Names the target instead of the selector, because resources of other namespaces share the error.
        let operation = format!("read {}", target.describe(""));
        let request = || self.list(&operation, &api, &parameters, is_metadata_only);
        let (response, is_reused) = if is_shared {
            let reads = &self.watches.reads;
            reads.read(&target, may_reuse, request).await
        } else {
            (request().await, false)
        };
        let page = match response {
            Ok(response) => {
                let page = Page::parse(&response, &resource, is_metadata_only);
                call(&operation, async { page.map_err(kube::Error::SerdeError) }).await
            }
            Err(error) => Err(error),
        };
        match page {
            Ok(page) => {
                if let Some(version) = read_version(&target, &page, is_unmanaged) {
                    let mut subscriptions = self.watches.subscriptions.lock();
                    subscriptions.record_read(&target, subscriber, version, is_first);
                }
                Ok(Ok(Page { is_reused, ..page }))
            }
            Err(error) if error.reason() == Reason::Forbidden => {
                // Without permission, the watch would be retried forever. It ends when all of its subscribers have read the objects.
                let mut subscriptions = self.watches.subscriptions.lock();
                subscriptions.unsubscribe(&target, subscriber);
                Ok(Err(forbidden_object(field, selector, &resource)))
            }
            Err(error) => {
                if error.is_unknown() {
                    self.kinds.forget(&kind_name(selector));
                }
                Ok(Err(unreadable_object(field, selector, &error)))
            }
        }
    }

    /// Unsubscribes `subscriber` from objects that are not in `used`; a watch without subscribers ends. Returns whether all objects in
    /// `used` are watched.
    pub(crate) fn keep(&self, subscriber: &Ref, used: &HashSet<ObjectSelector>) -> bool {
        let targets = used.iter().map(|selector| {
            let kind = self.kinds.finished(&kind_name(selector));
            let scope = kind.map_or(Scope::Namespaced, |(_, scope)| scope);
            within_scope(selector, &scope)
        });
        let used = targets.collect();
        self.watches.subscriptions.lock().keep(subscriber, &used)
    }

    /// Drops the responses that are too old to be reused.
    pub(crate) fn expire(&self) {
        self.watches.reads.expire();
    }

    /// Whether the cluster has the API group of `api_version`.
    pub(crate) async fn has_group(&self, api_version: &str) -> Result<bool, Error> {
        let Some((group, _)) = api_version.rsplit_once('/') else {
            return Ok(true);
        };
        let groups = call("list the API groups", self.client.list_api_groups()).await?;
        Ok(groups.groups.iter().any(|known| known.name == group))
    }

    /// Returns a list call. Its result is the response of the API server.
    fn list(
        &self,
        operation: &str,
        api: &Api<DynamicObject>,
        parameters: &ListParams,
        is_metadata_only: bool,
    ) -> impl Future<Output = Result<Arc<str>, Error>> + Send + use<> {
        let request = Request::new(api.resource_url());
        let request = if is_metadata_only {
            request.list_metadata(parameters)
        } else {
            request.list(parameters)
        };
        let (client, operation) = (self.client.clone(), operation.to_owned());
        async move {
            let response = async {
                let request = request.map_err(kube::Error::BuildRequest)?;
                client.request_text(request).await
            };
            call(&operation, response).await.map(Arc::from)
        }
    }

    async fn kind(&self, field: &str, selector: &ObjectSelector) -> ReadResult<Kind> {
        let name = kind_name(selector);
        let request = || self.look_up(selector);
        let (kind, _) = self.kinds.read(&name, true, request).await;
        match kind {
            Ok(kind) => Ok(Ok(kind)),
            Err(error) if error.is_unknown() => Ok(Err(Failure::transient(
                Reason::KindNotFound,
                format!(
                    "{field}: the cluster has no kind {} in {}; reconciliation resumes \
                     automatically once its CustomResourceDefinition exists",
                    selector.kind, selector.api_version
                ),
            ))),
            Err(error) => Ok(Err(unreadable_object(field, selector, &error))),
        }
    }

    /// Returns the call that looks up the kind of `selector`.
    fn look_up(
        &self,
        selector: &ObjectSelector,
    ) -> impl Future<Output = Result<Kind, Error>> + Send + use<> {
        let (group, version) = selector
            .api_version
            .rsplit_once('/')
            .unwrap_or(("", &selector.api_version));
        let kind = GroupVersionKind::gvk(group, version, &selector.kind);
        let operation = format!("look up {} of {}", selector.kind, selector.api_version);
        let client = self.client.clone();
        async move {
            let found = call(&operation, pinned_kind(&client, &kind)).await?;
            Ok((found.0, found.1.scope))
        }
    }

    fn api<K>(&self, namespace: &str, resource: &ApiResource, scope: &Scope) -> Api<K>
    where
        K: kube::Resource<DynamicType = ApiResource, Scope = DynamicResourceScope>,
    {
        match scope {
            Scope::Cluster => Api::all_with(self.client.clone(), resource),
            Scope::Namespaced => Api::namespaced_with(self.client.clone(), namespace, resource),
        }
    }

    /// Subscribes `subscriber` to changes of the objects. Returns whether they are watched.
    fn watch(
        &self,
        selector: &ObjectSelector,
        subscriber: &Ref,
        resource: &ApiResource,
        scope: &Scope,
    ) -> bool {
        let start = |target: Target| {
            let api: Api<Lenient<PartialObjectMeta<DynamicObject>>> =
                self.api(&selector.namespace, resource, scope);
            let events = watcher(api, watcher_config(&target)).default_backoff();
            let events = events.map_ok(lenient::event);
            let task = follow(target, events, Arc::downgrade(&self.watches));
            WatchTask(tokio::spawn(task).abort_handle())
        };
        let mut subscriptions = self.watches.subscriptions.lock();
        let is_watched = subscriptions.subscribe(selector, subscriber, start);
        if !is_watched {
            debug!(
                which = ?selector,
                "the maximum number of watches per namespace is reached; the object is read every \
                 minute instead"
            );
        }
        is_watched
    }
}

impl Watches {
    /// Drops the responses with the object `name` of `target`, which has changed.
    fn forget(&self, target: &Target, name: &str) {
        match target {
            Target::Selector(selector) => self.reads.forget(selector),
            Target::Collection(collection) => {
                let name = NameOrLabels::Name(name.to_owned());
                self.reads.forget(&collection.selector(name));
            }
        }
    }

    /// Drops the responses for all objects of `target`.
    fn forget_all(&self, target: &Target) {
        match target {
            Target::Selector(selector) => self.reads.forget(selector),
            Target::Collection(collection) => self
                .reads
                .forget_all(|selector| Collection::of(selector) == *collection),
        }
    }
}

fn kind_name(selector: &ObjectSelector) -> KindName {
    (selector.api_version.clone(), selector.kind.clone())
}

/// Returns the selector of the same objects, without a namespace if their kind is cluster-scoped: then resources of all namespaces share a
/// watch.
fn within_scope(selector: &ObjectSelector, scope: &Scope) -> ObjectSelector {
    let namespace = match scope {
        Scope::Cluster => String::new(),
        Scope::Namespaced => selector.namespace.clone(),
    };
    ObjectSelector {
        namespace,
        ..selector.clone()
    }
}

/// Returns the version of the object that `selector` names, if `page` shows it. `is_unmanaged`: whether `page` lacks objects that the operator
/// manages.
fn read_version(selector: &ObjectSelector, page: &Page, is_unmanaged: bool) -> Option<Version> {
    if matches!(selector.objects, NameOrLabels::Labels(_)) {
        return None;
    }
    match page.items.first() {
        Some(object) => object.resource_version().map(Version::Exists),
        None => (!is_unmanaged).then_some(Version::Absent),
    }
}

fn watcher_config(target: &Target) -> watcher::Config {
    let config = watcher::Config::default().page_size(WATCH_PAGE_SIZE);
    match target {
        Target::Collection(_) => config,
        Target::Selector(selector) => match &selector.objects {
            NameOrLabels::Name(name) => config.fields(&format!("metadata.name={name}")),
            NameOrLabels::Labels(labels) => config.labels(labels),
        },
    }
}

/// Requeues the resources that the `events` of `target` concern.
async fn follow<K: ResourceExt>(
    target: Target,
    events: impl Stream<Item = Events<watcher::Event<K>>>,
    watches: Weak<Watches>,
) {
    let mut events = std::pin::pin!(events);
    // Versions of the named objects in the current list.
    let mut listed = HashMap::new();
    while let Some(event) = events.next().await {
        let Some(watches) = watches.upgrade() else {
            return;
        };
        // Subscribers before the event are woken, and later ones do not reuse an earlier response.
        let mut subscriptions = watches.subscriptions.lock();
        let concerned = match event {
            Ok(watcher::Event::Init) => {
                listed.clear();
                continue;
            }
            Ok(watcher::Event::InitApply(object)) => {
                let name = object.name_any();
                if subscriptions.is_named(&target, &name) {
                    listed.insert(name, version(&object));
                }
                continue;
            }
            Ok(watcher::Event::InitDone) => {
                watches.forget_all(&target);
                subscriptions.listed(&target, &std::mem::take(&mut listed))
            }
            Ok(watcher::Event::Apply(object)) => {
                let name = object.name_any();
                watches.forget(&target, &name);
                subscriptions.changed(&target, &name, &version(&object))
            }
            Ok(watcher::Event::Delete(object)) => {
                let name = object.name_any();
                watches.forget(&target, &name);
                subscriptions.changed(&target, &name, &Version::Absent)
            }
            Err(error) => match &target {
                Target::Collection(collection) if is_forbidden(&error) => {
                    debug!(which = ?target, %error, "watching single objects instead");
                    subscriptions.forbid(collection)
                }
                Target::Collection(_) | Target::Selector(_) => {
                    debug!(which = ?target, %error, "watch failed; retrying");
                    continue;
                }
            },
        };
        for subscriber in concerned {
            // `send` fails only after the controller has stopped.
            let _ = watches.wake.send(subscriber);
        }
    }
}

fn version(object: &impl ResourceExt) -> Version {
    Version::Exists(object.resource_version().unwrap_or_default())
}

/// Whether the operator may not list or watch the objects.
fn is_forbidden(error: &watcher::Error) -> bool {
    match error {
        watcher::Error::InitialListFailed(kube::Error::Api(status))
        | watcher::Error::WatchStartFailed(kube::Error::Api(status))
        | watcher::Error::WatchFailed(kube::Error::Api(status))
        | watcher::Error::WatchError(status) => status.is_forbidden(),
        _ => false,
    }
}

/// Returns an object with the metadata of `object`, without its annotations.
fn metadata_only(
    object: PartialObjectMeta<DynamicObject>,
    resource: &ApiResource,
) -> DynamicObject {
    let mut bare_object = DynamicObject::new(&object.name_any(), resource);
    bare_object.metadata = object.metadata;
    // An annotation may contain the data of a Secret: `kubectl apply` stores the whole applied object in an annotation.
    bare_object.metadata.annotations = None;
    bare_object
}

/// Returns the transient failure for an object that cannot be read. The failure affects only resources that refer to the object.
fn unreadable_object(field: &str, selector: &ObjectSelector, error: &Error) -> Failure {
    let description = selector.describe("");
    Failure::transient(
        Reason::ObjectUnreadable,
        format!(
            "{field}: cannot read {description}: {}; retried automatically",
            error.chain()
        ),
    )
}

fn forbidden_object(field: &str, selector: &ObjectSelector, resource: &ApiResource) -> Failure {
    Failure::transient(
        Reason::ObjectForbidden,
        format!(
            "{field}: the operator is not allowed to read {}. Create a ClusterRole with the label \
             alustan.io/aggregate-to-controller: \"true\" and the rule {{apiGroups: [{:?}], \
             resources: [{}], verbs: [get, list, watch]}}",
            selector.describe(""),
            resource.group,
            resource.plural,
        ),
    )
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

    use k8s_openapi::api::core::v1::ConfigMap;
    use serde_json::{Value, json};
    use tokio::sync::mpsc;

    use super::*;
    use crate::fake_api;
    use crate::watch::subscriptions::{MAX_SELECTORS, MAX_SINGLE_WATCHES};

    const TIMEOUT: std::time::Duration = std::time::Duration::from_secs(30);

    const CONFIG_MAPS: &str = "/api/v1/namespaces/team/configmaps";

    fn selector_of(namespace: &str, i: usize) -> ObjectSelector {
        ObjectSelector {
            api_version: "v1".to_owned(),
            kind: "ConfigMap".to_owned(),
            namespace: namespace.to_owned(),
            objects: NameOrLabels::Name(format!("m{i}")),
        }
    }

    fn subscriber(i: usize) -> Ref {
        Ref::new(&format!("r{i}")).within("team")
    }

    /// Watches one object for each of `objects` resources.
    fn watch(watches: &DynamicWatches, objects: usize) {
        let kind = ApiResource::erase::<ConfigMap>(&());
        for i in 0..objects {
            let selector = selector_of("team", i);
            watches.watch(&selector, &subscriber(i), &kind, &Scope::Namespaced);
        }
    }

    /// Returns the URIs of the lists that the watches have requested, once `is_complete`.
    async fn lists(
        requests: &fake_api::RequestLog,
        is_complete: impl Fn(&HashSet<String>) -> bool,
    ) -> HashSet<String> {
        let poll = async {
            loop {
                let uris = requests
                    .lock()
                    .iter()
                    .map(|request| request.uri.clone())
                    .collect();
                if is_complete(&uris) {
                    return uris;
                }
                tokio::task::yield_now().await;
            }
        };
        tokio::time::timeout(TIMEOUT, poll).await.unwrap()
    }

    #[tokio::test]
    async fn named_objects_of_a_kind_share_a_watch() {
        for objects in [100, 200] {
            let (client, requests) = fake_api::serve(|_| fake_api::not_found()).await;
            let watches = DynamicWatches::new(client, mpsc::unbounded_channel().0);
            watch(&watches, objects);
            let is_of_all =
                |uri: &&String| uri.starts_with(CONFIG_MAPS) && !uri.contains("fieldSelector");
            let lists = lists(&requests, |uris| uris.len() > MAX_SINGLE_WATCHES).await;
            let shared = lists.iter().filter(is_of_all).count();
            assert_eq!(
                (lists.len(), shared),
                (MAX_SINGLE_WATCHES + 1, 1),
                "{lists:?}"
            );
        }
    }

    /// Answers like an API server whose ConfigMaps have the resource version `version`.
    fn answer(request: &fake_api::RecordedRequest, version: &str) -> (u16, Value) {
        if !request.uri.starts_with(CONFIG_MAPS) {
            return fake_api::kinds();
        }
        let item = |name: &str| {
            let metadata = json!({"name": name, "namespace": "team", "resourceVersion": version});
            json!({"metadata": metadata})
        };
        let name = request.uri.split_once("metadata.name%3D");
        let name = name.and_then(|(_, rest)| rest.split('&').next());
        fake_api::list(&name.map(item).into_iter().collect::<Vec<_>>())
    }

    /// Subscribes the resource `resource` to the object `object`, without the events of a watch.
    fn subscribe(watches: &DynamicWatches, object: usize, resource: usize) {
        let ended = || WatchTask(tokio::spawn(async {}).abort_handle());
        let mut subscriptions = watches.watches.subscriptions.lock();
        let selector = selector_of("team", object);
        subscriptions.subscribe(&selector, &subscriber(resource), |_| ended());
    }

    /// Reads the object `object` for the resource `resource`.
    async fn read(
        watches: &DynamicWatches,
        object: usize,
        resource: usize,
        may_reuse: bool,
    ) -> Page {
        let query = ObjectQuery {
            field: "spec.waitFor[0]",
            selector: &selector_of("team", object),
            list: ListQuery::Page(None),
            is_first: true,
            may_reuse,
        };
        let page = watches.find(query, &subscriber(resource)).await.unwrap();
        page.unwrap()
    }

    /// Returns the number of requests of reads, without those of watches, and the number of requests for the kind.
    fn requests_of_reads(requests: &fake_api::RequestLog) -> (usize, usize) {
        let page_size = format!("limit={PAGE_SIZE}&");
        let requests = requests.lock();
        let uris = || requests.iter().map(|request| format!("{}&", request.uri));
        (
            uris().filter(|uri| uri.contains(&page_size)).count(),
            uris().filter(|uri| !uri.contains(CONFIG_MAPS)).count(),
        )
    }

    #[tokio::test]
    async fn start_reads_each_object_once_for_all_resources() {
        for (resources, objects) in [(200, 1), (400, 1), (400, 10)] {
            let (client, requests) = fake_api::serve(|request| answer(request, "1")).await;
            let watches = DynamicWatches::new(client, mpsc::unbounded_channel().0);
            let reads = (0..resources).map(|i| {
                subscribe(&watches, i % objects, i);
                read(&watches, i % objects, i, true)
            });
            let reads = futures::stream::iter(reads).buffer_unordered(16);
            assert_eq!(reads.count().await, resources);
            let expected = (objects, 1);
            assert_eq!(
                requests_of_reads(&requests),
                expected,
                "{resources} resources"
            );
        }
    }

    #[tokio::test]
    async fn read_object_is_reused_until_it_changes() {
        let version = Arc::new(AtomicUsize::new(1));
        let current = version.clone();
        let respond =
            move |request: &_| answer(request, &current.load(Ordering::SeqCst).to_string());
        let (client, _) = fake_api::serve(respond).await;
        let watches = DynamicWatches::new(client, mpsc::unbounded_channel().0);
        (0..2).for_each(|object| subscribe(&watches, object, 1));
        let seen = async |object: usize, may_reuse: bool| {
            let page = read(&watches, object, 1, may_reuse).await;
            let version = page.items.first().and_then(ResourceExt::resource_version);
            (version.unwrap(), page.is_reused)
        };
        let is_read = |number: usize| (number.to_string(), false);
        let is_reused = |number: usize| (number.to_string(), true);
        for object in 0..2 {
            assert_eq!(seen(object, true).await, is_read(1));
            assert_eq!(seen(object, true).await, is_reused(1));
        }
        // Before the start of a run.
        version.store(2, Ordering::SeqCst);
        assert_eq!(seen(0, false).await, is_read(2));
        assert_eq!(seen(0, true).await, is_reused(2));
        let selector = selector_of("team", 0);
        let collection = Target::Collection(Collection::of(&selector));
        let single = Target::Selector(selector);
        let changed = ConfigMap {
            metadata: kube::api::ObjectMeta {
                name: Some("m0".to_owned()),
                ..kube::api::ObjectMeta::default()
            },
            ..ConfigMap::default()
        };
        let mut number = 2;
        for target in [single, collection] {
            for event in [
                watcher::Event::Apply(changed.clone()),
                watcher::Event::Delete(changed.clone()),
                watcher::Event::InitDone,
            ] {
                number += 1;
                version.store(number, Ordering::SeqCst);
                let events = futures::stream::iter([Ok(event)]);
                follow(target.clone(), events, Arc::downgrade(&watches.watches)).await;
                assert_eq!(seen(0, true).await, is_read(number));
            }
        }
        assert_eq!(seen(1, true).await, is_read(number), "all were listed");
    }

    #[tokio::test]
    async fn object_without_a_watch_is_read_by_each_reconcile() {
        let (client, requests) = fake_api::serve(|request| answer(request, "1")).await;
        let watches = DynamicWatches::new(client, mpsc::unbounded_channel().0);
        (1..=MAX_SELECTORS).for_each(|object| subscribe(&watches, object, 0));
        for resource in 0..3 {
            assert!(!read(&watches, 0, resource, true).await.is_reused);
        }
        assert_eq!(requests_of_reads(&requests).0, 3);
    }

    #[tokio::test]
    async fn objects_are_watched_singly_without_permission_to_list_all() {
        let is_single = |uri: &str| uri.contains("fieldSelector");
        let answer = move |request: &fake_api::RecordedRequest| {
            if is_single(&request.uri) {
                fake_api::not_found()
            } else {
                fake_api::forbidden()
            }
        };
        let (client, requests) = fake_api::serve(answer).await;
        let (wake, mut woken) = mpsc::unbounded_channel();
        let watches = DynamicWatches::new(client, wake);
        watch(&watches, 5);
        let mut subscribers = HashSet::new();
        while subscribers.len() < 5 - MAX_SINGLE_WATCHES {
            let subscriber = tokio::time::timeout(TIMEOUT, woken.recv()).await;
            subscribers.insert(subscriber.unwrap().unwrap().name);
        }
        let used = |i| HashSet::from([selector_of("team", i)]);
        assert!(watches.keep(&subscriber(0), &used(0)));
        assert!(
            !watches.keep(&subscriber(4), &used(4)),
            "not watched until the next read"
        );
        watch(&watches, 5);
        assert!(watches.keep(&subscriber(4), &used(4)));
        lists(&requests, |uris| {
            uris.iter().filter(|uri| is_single(uri)).count() == 5
        })
        .await;
    }

    #[tokio::test]
    async fn forbidden_read_leaves_other_resources_subscribed() {
        let is_forbidden = Arc::new(AtomicBool::new(false));
        let is_refused = is_forbidden.clone();
        let respond = move |request: &fake_api::RecordedRequest| {
            if is_refused.load(Ordering::SeqCst) {
                fake_api::forbidden()
            } else {
                answer(request, "1")
            }
        };
        let (client, _) = fake_api::serve(respond).await;
        let (wake, mut woken) = mpsc::unbounded_channel();
        let watches = DynamicWatches::new(client, wake);
        for resource in 0..2 {
            subscribe(&watches, 0, resource);
            read(&watches, 0, resource, false).await;
        }
        is_forbidden.store(true, Ordering::SeqCst);
        let selector = selector_of("team", 0);
        let query = ObjectQuery {
            field: "spec.waitFor[0]",
            selector: &selector,
            list: ListQuery::Page(None),
            is_first: true,
            may_reuse: false,
        };
        let failure = watches.find(query, &subscriber(0)).await.unwrap();
        assert_eq!(failure.err().unwrap().reason, "ObjectForbidden");
        let used = HashSet::from([selector.clone()]);
        assert!(!watches.keep(&subscriber(0), &used));
        assert!(watches.keep(&subscriber(1), &used));
        let changed: ConfigMap =
            serde_json::from_value(json!({"metadata": {"name": "m0", "resourceVersion": "2"}}))
                .unwrap();
        let events = futures::stream::iter([Ok(watcher::Event::Apply(changed))]);
        let target = Target::Selector(selector);
        follow(target, events, Arc::downgrade(&watches.watches)).await;
        assert_eq!(woken.try_recv().unwrap(), subscriber(1));
    }

    #[tokio::test]
    async fn relist_wakes_resources_that_have_read_another_version() {
        let config_map = |name: &str, version: &str| ConfigMap {
            metadata: kube::api::ObjectMeta {
                name: Some(name.to_owned()),
                resource_version: Some(version.to_owned()),
                ..kube::api::ObjectMeta::default()
            },
            ..ConfigMap::default()
        };
        let (client, _) = fake_api::serve(|_| fake_api::not_found()).await;
        let (wake, mut woken) = mpsc::unbounded_channel();
        let watches = DynamicWatches::new(client, wake);
        watch(&watches, 6);
        let read = |i: usize, version: Version| {
            let mut subscriptions = watches.watches.subscriptions.lock();
            subscriptions.record_read(&selector_of("team", i), &subscriber(i), version, true);
        };
        read(0, Version::Exists("1".to_owned()));
        read(1, Version::Exists("1".to_owned()));
        read(2, Version::Exists("1".to_owned()));
        read(3, Version::Absent);
        read(4, Version::Absent);
        let listed = [
            watcher::Event::Init,
            watcher::Event::InitApply(config_map("m0", "1")),
            watcher::Event::InitApply(config_map("m1", "2")),
            watcher::Event::InitApply(config_map("m4", "1")),
            watcher::Event::InitApply(config_map("unrelated", "1")),
            watcher::Event::InitDone,
        ];
        let changes = [
            watcher::Event::Apply(config_map("m0", "1")),
            watcher::Event::Apply(config_map("m0", "3")),
            watcher::Event::Apply(config_map("unrelated", "3")),
            watcher::Event::Delete(config_map("m1", "4")),
        ];
        let target = Target::Collection(Collection::of(&selector_of("team", 0)));
        let mut names = async |events: Vec<watcher::Event<ConfigMap>>| {
            let events = futures::stream::iter(events.into_iter().map(Ok));
            follow(target.clone(), events, Arc::downgrade(&watches.watches)).await;
            let mut names = Vec::new();
            while let Ok(subscriber) = woken.try_recv() {
                names.push(subscriber.name);
            }
            names.sort_unstable();
            names
        };
        // r5 has not read its object yet.
        assert_eq!(names(listed.to_vec()).await, ["r1", "r2", "r4", "r5"]);
        assert_eq!(names(changes.to_vec()).await, ["r0", "r1"]);
    }
}
