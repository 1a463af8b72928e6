//! Changes of the objects that only runs need: ServiceAccounts, Roles, RoleBindings, `PodDisruptionBudget`s, and the Secrets that no reconcile reads.
//! Unlike the other watches, these begin without a list of the existing objects and fill no cache, so that they cost neither time at the start nor
//! memory.

use std::fmt::Debug;
use std::sync::Arc;
use std::time::Duration;

use alustan_api::labels::Component;
use futures::future::{select_all, try_join_all};
use futures::{FutureExt, StreamExt};
use k8s_openapi::api::core::v1::{Secret, ServiceAccount};
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use k8s_openapi::api::rbac::v1::{Role, RoleBinding};
use kube::api::{Api, ListParams, WatchEvent, WatchParams};
use kube::core::NamespaceResourceScope;
use kube::runtime::watcher::DefaultBackoff;
use kube::{Resource, ResourceExt};
use serde::de::DeserializeOwned;
use tracing::{debug, warn};

use crate::call::call;
use crate::error::Error;
use crate::verified_objects::VerifiedObjects;
use crate::watch::Watches;
use crate::watch::mapping::managed_selector;

/// Status code of a watch whose resource version is no longer available.
const EXPIRED: u16 = 410;

impl Watches {
    /// Starts the watches that keep `verified` current.
    pub(crate) fn follow_run_objects(&self, verified: &Arc<VerifiedObjects>) {
        self.follow::<ServiceAccount>(verified, &[Component::Run]);
        self.follow::<Role>(verified, &[Component::Run]);
        self.follow::<RoleBinding>(verified, &[Component::Run]);
        self.follow::<PodDisruptionBudget>(verified, &[Component::Run]);
        let secrets = [Component::State, Component::Plan, Component::Registry];
        self.follow::<Secret>(verified, &secrets);
    }

    fn follow<K>(&self, verified: &Arc<VerifiedObjects>, components: &[Component])
    where
        K: Resource<DynamicType = (), Scope = NamespaceResourceScope>,
        K: DeserializeOwned + Clone + Debug + Send + Sync + 'static,
    {
        let selector = managed_selector(components);
        let apis = self.apis::<K>().into_iter().map(|(_, api)| api);
        tokio::spawn(follow(apis.collect(), selector, verified.clone()));
    }
}

/// Reports the changes of the objects of `apis` that `selector` selects to `verified`, until the process ends.
async fn follow<K>(apis: Vec<Api<K>>, selector: String, verified: Arc<VerifiedObjects>)
where
    K: Resource<DynamicType = ()> + DeserializeOwned + Clone + Debug + Send + Sync + 'static,
{
    let kind = K::kind(&());
    let mut backoff = DefaultBackoff::default();
    loop {
        let lists = apis.iter().map(|api| current_version(api, &selector));
        match try_join_all(lists).await {
            Ok(versions) => {
                verified.watch_began::<K>();
                let watches = apis
                    .iter()
                    .zip(versions)
                    .map(|(api, version)| watch(api, &selector, version, &verified).boxed());
                select_all(watches).await;
                verified.watch_ended::<K>();
                debug!(%kind, "the resource version of a watch expired; watching again");
            }
            Err(error) => {
                let error = error.chain();
                warn!(%kind, error, "cannot watch objects of runs; reading them before each run");
            }
        }
        pause(&mut backoff).await;
    }
}

/// Returns the current resource version of the objects of `api`.
async fn current_version<K>(api: &Api<K>, selector: &str) -> Result<String, Error>
where
    K: Resource<DynamicType = ()> + DeserializeOwned + Clone + Debug,
{
    let parameters = ListParams::default().labels(selector).limit(1);
    let operation = format!("list {}s of runs", K::kind(&()));
    let page = call(&operation, api.list_metadata(&parameters)).await?;
    Ok(page.metadata.resource_version.unwrap_or_default())
}

/// Reports the changes after resource version `version` to `verified`. Continues after failures. Returns when the resource version is no longer
/// available.
async fn watch<K>(api: &Api<K>, selector: &str, mut version: String, verified: &VerifiedObjects)
where
    K: Resource<DynamicType = ()> + DeserializeOwned + Clone + Debug,
{
    let kind = K::kind(&());
    let parameters = WatchParams::default().labels(selector);
    let mut backoff = DefaultBackoff::default();
    loop {
        match api.watch_metadata(&parameters, &version).await {
            Ok(events) => {
                let mut events = events.boxed();
                while let Some(event) = events.next().await {
                    match event {
                        Ok(WatchEvent::Added(object) | WatchEvent::Modified(object)) => {
                            verified.changed(&object);
                            version = object.resource_version().unwrap_or(version);
                        }
                        Ok(WatchEvent::Deleted(object)) => {
                            verified.deleted(&object);
                            version = object.resource_version().unwrap_or(version);
                        }
                        Ok(WatchEvent::Bookmark(bookmark)) => {
                            version = bookmark.metadata.resource_version;
                        }
                        Ok(WatchEvent::Error(status)) if status.code == EXPIRED => return,
                        Ok(WatchEvent::Error(status)) => debug!(%kind, ?status, "watch failed"),
                        Err(error) => debug!(%kind, %error, "watch was interrupted"),
                    }
                }
            }
            Err(kube::Error::Api(status)) if status.code == EXPIRED => return,
            Err(error) => debug!(%kind, %error, "watch failed"),
        }
        pause(&mut backoff).await;
    }
}

async fn pause(backoff: &mut DefaultBackoff) {
    tokio::time::sleep(backoff.next().unwrap_or(Duration::from_secs(30))).await;
}
