//! Reads objects of any kind that resources refer to, and watches these objects as long as a resource refers to them.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use alustan_api::Reason;
use alustan_api::labels;
use alustan_api::report::Failure;
use futures::StreamExt;
use kube::api::{Api, DynamicObject, ListParams, PartialObjectMeta};
use kube::core::{ApiResource, DynamicResourceScope, GroupVersionKind, ListMeta};
use kube::discovery::{Scope, pinned_kind};
use kube::runtime::{WatchStreamExt, watcher};
use kube::{Client, ResourceExt};
use parking_lot::{Mutex, MutexGuard};
use tokio::sync::mpsc::UnboundedSender;
use tokio::task::AbortHandle;
use tracing::debug;

use crate::call::call;
use crate::error::{Error, ReadResult};
use crate::resource::Ref;

/// Maximum number of objects that a selector may select.
pub(crate) const MAX_OBJECTS: u32 = 100;

/// Maximum number of watches for the resources of one namespace. Each watch takes a connection. Above this number, no further watch starts:
/// the resources that refer to an object without a watch are reconciled every minute.
const MAX_WATCHES: usize = 100;

/// Maximum number of objects per page of a list. Limits the memory for one resource: an object has up to 1.5 MiB.
const PAGE_SIZE: u32 = 10;

/// Selects objects of one kind in one namespace.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct ObjectSelector {
    /// For example `apps/v1`.
    pub(crate) api_version: String,
    /// For example `Deployment`.
    pub(crate) kind: String,
    /// Namespace, if the kind is namespaced.
    pub(crate) namespace: String,
    /// Name or labels of the objects.
    pub(crate) objects: NameOrLabels,
}

/// Selects objects by name or by labels.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum NameOrLabels {
    /// Object with this name.
    Name(String),
    /// Objects that a label selector selects; an empty selector selects all objects.
    Labels(String),
}

impl ObjectSelector {
    /// Describes the selected objects for a message: `Ingress web`, `Ingress other/* with app=web`. Omits the namespace if it is `here`.
    pub(crate) fn describe(&self, here: &str) -> String {
        let namespace_prefix = if self.namespace == here {
            String::new()
        } else {
            format!("{}/", self.namespace)
        };
        match &self.objects {
            NameOrLabels::Name(name) => format!("{} {namespace_prefix}{name}", self.kind),
            NameOrLabels::Labels(labels) if labels.is_empty() => {
                format!("{} {namespace_prefix}*", self.kind)
            }
            NameOrLabels::Labels(labels) => {
                format!("{} {namespace_prefix}* with {labels}", self.kind)
            }
        }
    }

    fn parameters(&self) -> ListParams {
        match &self.objects {
            NameOrLabels::Name(name) => {
                ListParams::default().fields(&format!("metadata.name={name}"))
            }
            NameOrLabels::Labels(labels) => ListParams::default().labels(labels),
        }
    }

    fn watcher_config(&self) -> watcher::Config {
        match &self.objects {
            NameOrLabels::Name(name) => {
                watcher::Config::default().fields(&format!("metadata.name={name}"))
            }
            NameOrLabels::Labels(labels) => watcher::Config::default().labels(labels),
        }
    }
}

/// Query of a list call: only the metadata of the selected objects, or a page of whole objects.
pub(crate) enum ListQuery {
    /// Metadata of objects without the operator's managed-by label, at most [`MAX_OBJECTS`].
    UnmanagedMetadata,
    /// A page of whole objects: the first page, or the page that begins at this continue token.
    Page(Option<String>),
}

/// Objects that one list call returns.
pub(crate) struct Page {
    pub(crate) items: Vec<DynamicObject>,
    /// Continue token of the next page, if there is one.
    pub(crate) next: Option<String>,
}

impl Page {
    fn new(metadata: ListMeta, items: Vec<DynamicObject>) -> Self {
        Self {
            items,
            next: metadata.continue_.filter(|token| !token.is_empty()),
        }
    }
}

/// Reads and watches the objects that resources refer to.
pub(crate) struct DynamicWatches {
    client: Client,
    wake: UnboundedSender<Ref>,
    kinds: Mutex<HashMap<(String, String), (ApiResource, Scope)>>,
    watches: Arc<Mutex<HashMap<ObjectSelector, DynamicWatch>>>,
}

struct DynamicWatch {
    subscribers: HashSet<Ref>,
    task: AbortHandle,
}

impl Drop for DynamicWatch {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl DynamicWatches {
    /// Creates an empty set of watches. `wake` receives the resources to requeue: they refer to an object that changed.
    pub(crate) fn new(client: Client, wake: UnboundedSender<Ref>) -> Self {
        Self {
            client,
            wake,
            kinds: Mutex::default(),
            watches: Arc::default(),
        }
    }

    /// Returns the objects that `selector` and `query` select. Later changes of these objects requeue `subscriber`. Secrets are returned
    /// without their data.
    pub(crate) async fn find(
        &self,
        field: &str,
        selector: &ObjectSelector,
        subscriber: &Ref,
        query: ListQuery,
    ) -> ReadResult<Page> {
        let (resource, scope) = match self.kind(field, selector).await? {
            Ok(kind) => kind,
            Err(failure) => return Ok(Err(failure)),
        };
        // Watch before the read, so that no change after the read is missed.
        self.watch(selector, subscriber, &resource, &scope);
        let operation = format!("read {}", selector.describe(""));
        let is_secret = resource.kind == "Secret" && resource.group.is_empty();
        let mut parameters = selector.parameters();
        let is_metadata_only = match query {
            ListQuery::UnmanagedMetadata => {
                let unmanaged = format!("{}!={}", labels::MANAGED_BY, labels::MANAGER);
                let label_selector = parameters.label_selector.take();
                let label_selector = label_selector.filter(|selector| !selector.is_empty());
                let selectors: Vec<_> = label_selector.into_iter().chain([unmanaged]).collect();
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
        let page = if is_metadata_only {
            let api: Api<DynamicObject> = self.api(selector, &resource, &scope);
            let page = call(&operation, api.list_metadata(&parameters)).await;
            page.map(|list| {
                let items = list
                    .items
                    .into_iter()
                    .map(|object| metadata_only(object, &resource));
                Page::new(list.metadata, items.collect())
            })
        } else {
            let api: Api<DynamicObject> = self.api(selector, &resource, &scope);
            let page = call(&operation, api.list(&parameters)).await;
            page.map(|list| Page::new(list.metadata, list.items))
        };
        match page {
            Ok(page) => Ok(Ok(page)),
            Err(error) if error.reason() == Reason::Forbidden => {
                // End the watch: without permission, the watch would be retried forever.
                self.watches().remove(selector);
                Ok(Err(forbidden_object(field, selector, &resource)))
            }
            Err(error) => {
                if error.is_unknown() {
                    let mut kinds = self.kinds.lock();
                    kinds.remove(&(selector.api_version.clone(), selector.kind.clone()));
                }
                Ok(Err(unreadable_object(field, selector, &error)))
            }
        }
    }

    /// Unsubscribes `subscriber` from objects that are not in `used`; a watch without subscribers ends. Returns whether all objects in
    /// `used` are watched.
    pub(crate) fn keep(&self, subscriber: &Ref, used: &HashSet<ObjectSelector>) -> bool {
        let mut watches = self.watches();
        watches.retain(|selector, watch| {
            if !used.contains(selector) {
                watch.subscribers.remove(subscriber);
            }
            !watch.subscribers.is_empty()
        });
        used.iter().all(|selector| watches.contains_key(selector))
    }

    fn watches(&self) -> MutexGuard<'_, HashMap<ObjectSelector, DynamicWatch>> {
        self.watches.lock()
    }

    /// Whether the cluster has the API group of `api_version`.
    pub(crate) async fn has_group(&self, api_version: &str) -> Result<bool, Error> {
        let Some((group, _)) = api_version.rsplit_once('/') else {
            return Ok(true);
        };
        let groups = call("list the API groups", self.client.list_api_groups()).await?;
        Ok(groups.groups.iter().any(|known| known.name == group))
    }

    async fn kind(
        &self,
        field: &str,
        selector: &ObjectSelector,
    ) -> ReadResult<(ApiResource, Scope)> {
        let key = (selector.api_version.clone(), selector.kind.clone());
        let known = self.kinds.lock().get(&key).cloned();
        if let Some(known) = known {
            return Ok(Ok(known));
        }
        let (group, version) = selector
            .api_version
            .rsplit_once('/')
            .unwrap_or(("", &selector.api_version));
        let kind = GroupVersionKind::gvk(group, version, &selector.kind);
        let operation = format!("look up {} of {}", selector.kind, selector.api_version);
        match call(&operation, pinned_kind(&self.client, &kind)).await {
            Ok((resource, capabilities)) => {
                let resource_and_scope = (resource, capabilities.scope);
                let mut kinds = self.kinds.lock();
                kinds.insert(key, resource_and_scope.clone());
                Ok(Ok(resource_and_scope))
            }
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

    fn api<K>(&self, selector: &ObjectSelector, resource: &ApiResource, scope: &Scope) -> Api<K>
    where
        K: kube::Resource<DynamicType = ApiResource, Scope = DynamicResourceScope>,
    {
        match scope {
            Scope::Cluster => Api::all_with(self.client.clone(), resource),
            Scope::Namespaced => {
                Api::namespaced_with(self.client.clone(), &selector.namespace, resource)
            }
        }
    }

    fn watch(
        &self,
        selector: &ObjectSelector,
        subscriber: &Ref,
        resource: &ApiResource,
        scope: &Scope,
    ) {
        let mut watches = self.watches();
        if let Some(watch) = watches.get_mut(selector) {
            watch.subscribers.insert(subscriber.clone());
            return;
        }
        let has_subscriber = |watch: &&DynamicWatch| {
            watch
                .subscribers
                .iter()
                .any(|existing| existing.namespace == subscriber.namespace)
        };
        if watches.values().filter(has_subscriber).count() >= MAX_WATCHES {
            debug!(
                which = ?selector,
                "the maximum number of watches per namespace is reached; the object is read every \
                 minute instead"
            );
            return;
        }
        let api: Api<PartialObjectMeta<DynamicObject>> = self.api(selector, resource, scope);
        let task = tokio::spawn(requeue_on_change(
            api,
            selector.clone(),
            Arc::downgrade(&self.watches),
            self.wake.clone(),
        ));
        let watch = DynamicWatch {
            subscribers: HashSet::from([subscriber.clone()]),
            task: task.abort_handle(),
        };
        watches.insert(selector.clone(), watch);
    }
}

/// Watches the objects that `selector` selects. When one of them changes, requeues the resources that refer to `selector`.
async fn requeue_on_change(
    api: Api<PartialObjectMeta<DynamicObject>>,
    selector: ObjectSelector,
    watches: std::sync::Weak<Mutex<HashMap<ObjectSelector, DynamicWatch>>>,
    wake: UnboundedSender<Ref>,
) {
    let mut events = std::pin::pin!(watcher(api, selector.watcher_config()).default_backoff());
    while let Some(event) = events.next().await {
        match event {
            Ok(watcher::Event::Init | watcher::Event::InitApply(_)) => continue,
            Ok(_) => {}
            Err(error) => {
                debug!(which = ?selector, %error, "watch failed; retrying");
                continue;
            }
        }
        let Some(watches) = watches.upgrade() else {
            return;
        };
        let watches = watches.lock();
        let subscribers = watches
            .get(&selector)
            .into_iter()
            .flat_map(|watch| &watch.subscribers);
        for subscriber in subscribers {
            // `send` fails only after the controller has stopped.
            let _ = wake.send(subscriber.clone());
        }
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
    use k8s_openapi::api::core::v1::ConfigMap;
    use tokio::sync::mpsc;

    use super::*;
    use crate::fake_api;

    fn selector_of(namespace: &str, i: usize) -> ObjectSelector {
        ObjectSelector {
            api_version: "v1".to_owned(),
            kind: "ConfigMap".to_owned(),
            namespace: namespace.to_owned(),
            objects: NameOrLabels::Name(format!("m{i}")),
        }
    }

    #[tokio::test]
    async fn resources_of_one_namespace_have_a_limited_number_of_watches() {
        let (client, _) = fake_api::serve(|_| fake_api::not_found()).await;
        let objects = DynamicWatches::new(client, mpsc::unbounded_channel().0);
        let kind = ApiResource::erase::<ConfigMap>(&());
        // Each resource refers to 20 objects.
        let subscriber =
            |namespace: &str, i: usize| Ref::new(&format!("r{}", i / 20)).within(namespace);
        let watch = |namespace: &str, i: usize| {
            let subscriber = subscriber(namespace, i);
            objects.watch(
                &selector_of(namespace, i),
                &subscriber,
                &kind,
                &Scope::Namespaced,
            );
        };
        for i in 0..2 * MAX_WATCHES {
            watch("team", i);
        }
        assert_eq!(objects.watches().len(), MAX_WATCHES);
        watch("other", 0);
        assert_eq!(objects.watches().len(), MAX_WATCHES + 1);
        let keep = |i: usize| {
            objects.keep(
                &subscriber("team", i),
                &HashSet::from([selector_of("team", i)]),
            )
        };
        assert!(!keep(MAX_WATCHES), "it is not watched");
        assert!(keep(0));
        assert_eq!(objects.watches().len(), MAX_WATCHES + 1 - 19);
        watch("team", MAX_WATCHES);
        assert!(keep(MAX_WATCHES), "there is room again");
    }
}
