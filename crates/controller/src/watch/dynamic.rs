//! Objects of any kind that resources refer to: read from the API server, and watched while a resource refers to them.

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
pub(crate) const MOST: u32 = 100;

/// Maximum number of watches per namespace of resources; each takes a connection. Beyond it, objects are not watched, and the resources
/// that refer to them are reconciled every minute.
const WATCHES: usize = 100;

/// Maximum number of whole objects in memory for one resource: an object has up to 1.5 MiB.
const PAGE: u32 = 10;

/// Selects objects of one kind in one namespace.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Which {
    /// For example `apps/v1`.
    pub(crate) api_version: String,
    /// For example `Deployment`.
    pub(crate) kind: String,
    /// Namespace, if the kind is namespaced.
    pub(crate) namespace: String,
    /// Name or labels of the objects.
    pub(crate) of: Of,
}

/// Selects objects by name or by labels.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Of {
    /// Object with this name.
    Name(String),
    /// Objects that a label selector selects; an empty one selects all.
    Labels(String),
}

impl Which {
    /// Returns the selection for messages: `Ingress web`, `Ingress other/* with app=web`.
    pub(crate) fn named(&self, here: &str) -> String {
        let elsewhere = if self.namespace == here {
            String::new()
        } else {
            format!("{}/", self.namespace)
        };
        match &self.of {
            Of::Name(name) => format!("{} {elsewhere}{name}", self.kind),
            Of::Labels(labels) if labels.is_empty() => format!("{} {elsewhere}*", self.kind),
            Of::Labels(labels) => format!("{} {elsewhere}* with {labels}", self.kind),
        }
    }

    fn parameters(&self) -> ListParams {
        match &self.of {
            Of::Name(name) => ListParams::default().fields(&format!("metadata.name={name}")),
            Of::Labels(labels) => ListParams::default().labels(labels),
        }
    }

    fn watched(&self) -> watcher::Config {
        match &self.of {
            Of::Name(name) => watcher::Config::default().fields(&format!("metadata.name={name}")),
            Of::Labels(labels) => watcher::Config::default().labels(labels),
        }
    }
}

/// Parts of the selected objects that one list call returns.
pub(crate) enum Query {
    /// Metadata of objects without the operator's managed-by label, at most [`MOST`].
    UnmanagedMetadata,
    /// A page of whole objects: the first, or the one that begins at this continue token.
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
pub(crate) struct Objects {
    client: Client,
    wake: UnboundedSender<Ref>,
    kinds: Mutex<HashMap<(String, String), (ApiResource, Scope)>>,
    watches: Arc<Mutex<HashMap<Which, Watch>>>,
}

struct Watch {
    subscribers: HashSet<Ref>,
    task: AbortHandle,
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Objects {
    /// Creates an empty set of watches; `wake` receives the resources whose objects changed.
    pub(crate) fn new(client: Client, wake: UnboundedSender<Ref>) -> Self {
        Self {
            client,
            wake,
            kinds: Mutex::default(),
            watches: Arc::default(),
        }
    }

    /// Returns the objects that `which` and `query` select. Later changes of these objects requeue `subscriber`. Secrets are returned without
    /// their data.
    pub(crate) async fn find(
        &self,
        field: &str,
        which: &Which,
        subscriber: &Ref,
        query: Query,
    ) -> ReadResult<Page> {
        let (resource, scope) = match self.kind(field, which).await? {
            Ok(kind) => kind,
            Err(failure) => return Ok(Err(failure)),
        };
        // Watch before the read, so that no change after the read is missed.
        self.watch(which, subscriber, &resource, &scope);
        let what = format!("read {}", which.named(""));
        let is_secret = resource.kind == "Secret" && resource.group.is_empty();
        let mut parameters = which.parameters();
        let is_bare = match query {
            Query::UnmanagedMetadata => {
                let foreign = format!("{}!={}", labels::MANAGED_BY, labels::MANAGER);
                let chosen = parameters.label_selector.take();
                let chosen = chosen.filter(|selector| !selector.is_empty());
                let both: Vec<_> = chosen.into_iter().chain([foreign]).collect();
                parameters.label_selector = Some(both.join(","));
                parameters.limit = Some(MOST);
                true
            }
            Query::Page(token) => {
                parameters.limit = Some(PAGE);
                parameters.continue_token = token;
                is_secret
            }
        };
        let found = if is_bare {
            let api: Api<DynamicObject> = self.api(which, &resource, &scope);
            let found = call(&what, api.list_metadata(&parameters)).await;
            found.map(|list| {
                let items = list.items.into_iter().map(|it| bare(it, &resource));
                Page::new(list.metadata, items.collect())
            })
        } else {
            let api: Api<DynamicObject> = self.api(which, &resource, &scope);
            let found = call(&what, api.list(&parameters)).await;
            found.map(|list| Page::new(list.metadata, list.items))
        };
        match found {
            Ok(page) => Ok(Ok(page)),
            Err(error) if error.reason() == Reason::Forbidden => {
                // End the watch: without permission it would be retried forever.
                self.watches().remove(which);
                Ok(Err(forbidden(field, which, &resource)))
            }
            Err(error) => {
                if error.is_unknown() {
                    let mut kinds = self.kinds.lock();
                    kinds.remove(&(which.api_version.clone(), which.kind.clone()));
                }
                Ok(Err(unreadable(field, which, &error)))
            }
        }
    }

    /// Unsubscribes `subscriber` from objects that are not in `used`; a watch without subscribers ends. Returns whether all objects in `used` are
    /// watched.
    pub(crate) fn keep(&self, subscriber: &Ref, used: &HashSet<Which>) -> bool {
        let mut watches = self.watches();
        watches.retain(|which, watch| {
            if !used.contains(which) {
                watch.subscribers.remove(subscriber);
            }
            !watch.subscribers.is_empty()
        });
        used.iter().all(|which| watches.contains_key(which))
    }

    fn watches(&self) -> MutexGuard<'_, HashMap<Which, Watch>> {
        self.watches.lock()
    }

    /// Whether the cluster has the API group of `api_version`.
    pub(crate) async fn has_group(&self, api_version: &str) -> Result<bool, Error> {
        let Some((group, _)) = api_version.rsplit_once('/') else {
            return Ok(true);
        };
        let groups = call("list the API groups", self.client.list_api_groups()).await?;
        Ok(groups.groups.iter().any(|it| it.name == group))
    }

    async fn kind(&self, field: &str, which: &Which) -> ReadResult<(ApiResource, Scope)> {
        let key = (which.api_version.clone(), which.kind.clone());
        let known = self.kinds.lock().get(&key).cloned();
        if let Some(known) = known {
            return Ok(Ok(known));
        }
        let (group, version) = which
            .api_version
            .rsplit_once('/')
            .unwrap_or(("", &which.api_version));
        let kind = GroupVersionKind::gvk(group, version, &which.kind);
        let what = format!("look up {} of {}", which.kind, which.api_version);
        match call(&what, pinned_kind(&self.client, &kind)).await {
            Ok((resource, capabilities)) => {
                let found = (resource, capabilities.scope);
                let mut kinds = self.kinds.lock();
                kinds.insert(key, found.clone());
                Ok(Ok(found))
            }
            Err(error) if error.is_unknown() => Ok(Err(Failure::transient(
                Reason::KindNotFound,
                format!(
                    "{field}: the cluster has no kind {} in {}; reconciliation resumes \
                     automatically once its CustomResourceDefinition exists",
                    which.kind, which.api_version
                ),
            ))),
            Err(error) => Ok(Err(unreadable(field, which, &error))),
        }
    }

    fn api<K>(&self, which: &Which, resource: &ApiResource, scope: &Scope) -> Api<K>
    where
        K: kube::Resource<DynamicType = ApiResource, Scope = DynamicResourceScope>,
    {
        match scope {
            Scope::Cluster => Api::all_with(self.client.clone(), resource),
            Scope::Namespaced => {
                Api::namespaced_with(self.client.clone(), &which.namespace, resource)
            }
        }
    }

    fn watch(&self, which: &Which, subscriber: &Ref, resource: &ApiResource, scope: &Scope) {
        let mut watches = self.watches();
        if let Some(watch) = watches.get_mut(which) {
            watch.subscribers.insert(subscriber.clone());
            return;
        }
        let has_subscriber = |watch: &&Watch| {
            watch
                .subscribers
                .iter()
                .any(|it| it.namespace == subscriber.namespace)
        };
        if watches.values().filter(has_subscriber).count() >= WATCHES {
            debug!(?which, "the namespace has reached its limit of watches");
            return;
        }
        let api: Api<PartialObjectMeta<DynamicObject>> = self.api(which, resource, scope);
        let task = tokio::spawn(listen(
            api,
            which.clone(),
            Arc::downgrade(&self.watches),
            self.wake.clone(),
        ));
        let watch = Watch {
            subscribers: HashSet::from([subscriber.clone()]),
            task: task.abort_handle(),
        };
        watches.insert(which.clone(), watch);
    }
}

/// Requeues the resources that refer to objects of `which` when one of these objects changes.
async fn listen(
    api: Api<PartialObjectMeta<DynamicObject>>,
    which: Which,
    watches: std::sync::Weak<Mutex<HashMap<Which, Watch>>>,
    wake: UnboundedSender<Ref>,
) {
    let mut events = std::pin::pin!(watcher(api, which.watched()).default_backoff());
    while let Some(event) = events.next().await {
        match event {
            Ok(watcher::Event::Init | watcher::Event::InitApply(_)) => continue,
            Ok(_) => {}
            Err(error) => {
                debug!(?which, %error, "watch failed; retrying");
                continue;
            }
        }
        let Some(watches) = watches.upgrade() else {
            return;
        };
        let watches = watches.lock();
        let subscribers = watches
            .get(&which)
            .into_iter()
            .flat_map(|it| &it.subscribers);
        for subscriber in subscribers {
            // `send` fails only after the controller has stopped.
            let _ = wake.send(subscriber.clone());
        }
    }
}

/// Returns an object with the given metadata only.
fn bare(object: PartialObjectMeta<DynamicObject>, resource: &ApiResource) -> DynamicObject {
    let mut bare = DynamicObject::new(&object.name_any(), resource);
    bare.metadata = object.metadata;
    // An annotation may contain the data: `kubectl apply` stores the whole applied object in one.
    bare.metadata.annotations = None;
    bare
}

/// Returns the transient failure for an object that cannot be read. It affects only resources that depend on the object.
fn unreadable(field: &str, which: &Which, error: &Error) -> Failure {
    let named = which.named("");
    Failure::transient(
        Reason::ObjectUnreadable,
        format!(
            "{field}: cannot read {named}: {}; retried automatically",
            error.chain()
        ),
    )
}

fn forbidden(field: &str, which: &Which, resource: &ApiResource) -> Failure {
    Failure::transient(
        Reason::ObjectForbidden,
        format!(
            "{field}: the operator is not allowed to read {}. Create a ClusterRole with the label \
             alustan.io/aggregate-to-controller: \"true\" and the rule {{apiGroups: [{:?}], \
             resources: [{}], verbs: [get, list, watch]}}",
            which.named(""),
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

    fn which(namespace: &str, i: usize) -> Which {
        Which {
            api_version: "v1".to_owned(),
            kind: "ConfigMap".to_owned(),
            namespace: namespace.to_owned(),
            of: Of::Name(format!("m{i}")),
        }
    }

    #[tokio::test]
    async fn resources_of_one_namespace_have_a_limited_number_of_watches() {
        let (client, _) = fake_api::serve(|_| fake_api::not_found()).await;
        let objects = Objects::new(client, mpsc::unbounded_channel().0);
        let kind = ApiResource::erase::<ConfigMap>(&());
        // Each resource refers to 20 objects.
        let subscriber =
            |namespace: &str, i: usize| Ref::new(&format!("r{}", i / 20)).within(namespace);
        let watch = |namespace: &str, i: usize| {
            let subscriber = subscriber(namespace, i);
            objects.watch(&which(namespace, i), &subscriber, &kind, &Scope::Namespaced);
        };
        for i in 0..2 * WATCHES {
            watch("team", i);
        }
        assert_eq!(objects.watches().len(), WATCHES);
        watch("other", 0);
        assert_eq!(objects.watches().len(), WATCHES + 1);
        let keep =
            |i: usize| objects.keep(&subscriber("team", i), &HashSet::from([which("team", i)]));
        assert!(!keep(WATCHES), "it is not watched");
        assert!(keep(0));
        assert_eq!(objects.watches().len(), WATCHES + 1 - 19);
        watch("team", WATCHES);
        assert!(keep(WATCHES), "there is room again");
    }
}
