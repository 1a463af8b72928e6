//! Changes of the objects that only runs need: ServiceAccounts, Roles, RoleBindings, `PodDisruptionBudget`s, and the Secrets that no reconcile reads.
//! Unlike the other watches, these begin without a list of the existing objects and fill no cache, so that they cost neither time at the start nor
//! memory. The watcher of kube-runtime always lists all objects.

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
use tokio::time::timeout;
use tracing::{debug, warn};

use crate::call::call;
use crate::error::{Error, TIMEOUT};
use crate::verified_objects::VerifiedObjects;
use crate::watch::Watches;
use crate::watch::mapping::managed_selector;

/// Duration after which the API server ends a watch, in seconds.
const WATCH_SECONDS: u32 = 290;

/// Idle timeout of a watch. Longer than [`WATCH_SECONDS`]: ends lost connections only.
const IDLE_TIMEOUT: Duration = Duration::from_secs(295);

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
                let (error, ..) = select_all(watches).await;
                verified.watch_ended::<K>();
                debug!(%kind, %error, "cannot continue a watch; beginning a new one");
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

/// Reports the changes after resource version `version` to `verified`. Continues after the end of a connection. Returns the error after which
/// changes may be missed, for example because the resource version is no longer available.
async fn watch<K>(
    api: &Api<K>,
    selector: &str,
    mut version: String,
    verified: &VerifiedObjects,
) -> kube::Error
where
    K: Resource<DynamicType = ()> + DeserializeOwned + Clone + Debug,
{
    let kind = K::kind(&());
    let mut backoff = DefaultBackoff::default();
    loop {
        match watch_once(api, selector, &mut version, verified).await {
            Ok(()) => {}
            Err(error @ (kube::Error::Api(_) | kube::Error::SerdeError(_))) => return error,
            Err(error) => debug!(%kind, %error, "watch was interrupted"),
        }
        pause(&mut backoff).await;
    }
}

/// Reports the changes after resource version `version` to `verified`, and sets `version` to the last reported one. Returns at the end of the
/// connection, or if the API server does not respond or sends nothing for [`IDLE_TIMEOUT`].
async fn watch_once<K>(
    api: &Api<K>,
    selector: &str,
    version: &mut String,
    verified: &VerifiedObjects,
) -> Result<(), kube::Error>
where
    K: Resource<DynamicType = ()> + DeserializeOwned + Clone + Debug,
{
    let parameters = WatchParams::default()
        .labels(selector)
        .timeout(WATCH_SECONDS);
    let Ok(events) = timeout(TIMEOUT, api.watch_metadata(&parameters, version)).await else {
        return Ok(());
    };
    let mut events = events?.boxed();
    while let Ok(Some(event)) = timeout(IDLE_TIMEOUT, events.next()).await {
        let reported = match event? {
            WatchEvent::Added(object) | WatchEvent::Modified(object) => {
                verified.changed(&object);
                object.resource_version()
            }
            WatchEvent::Deleted(object) => {
                verified.deleted(&object);
                object.resource_version()
            }
            WatchEvent::Bookmark(bookmark) => Some(bookmark.metadata.resource_version),
            WatchEvent::Error(status) => return Err(kube::Error::Api(status.boxed())),
        };
        if let Some(reported) = reported {
            *version = reported;
        }
    }
    Ok(())
}

async fn pause(backoff: &mut DefaultBackoff) {
    tokio::time::sleep(backoff.next().unwrap_or(Duration::from_secs(30))).await;
}

#[cfg(test)]
mod tests {
    use axum::body::Body;
    use axum::http::{Request, Response};
    use futures::stream;
    use kube::Client;
    use parking_lot::Mutex;
    use serde_json::{Value, json};
    use tokio::time::sleep;

    use super::*;
    use crate::verified_objects::Knowledge;

    fn role(version: &str) -> Value {
        json!({"metadata": {"name": "web", "namespace": "team", "resourceVersion": version}})
    }

    /// Returns a client of an API server, and the URIs of the requests. `watched`: responses to the first watch requests. Such a response sends its
    /// text after ten seconds, and then nothing more, as on a lost connection. `None`: no response.
    fn serve(watched: Vec<Option<String>>) -> (Client, Arc<Mutex<Vec<String>>>) {
        let uris = Arc::new(Mutex::new(Vec::new()));
        let (log, mut watched) = (uris.clone(), watched.into_iter());
        let respond = move |request: Request<kube::client::Body>| {
            let uri = request.uri().to_string();
            let watched = uri.contains("watch=true").then(|| watched.next().flatten());
            log.lock().push(uri);
            async move {
                let body = match watched {
                    Some(Some(text)) => {
                        let text = sleep(Duration::from_secs(10)).map(|()| Ok(text));
                        let nothing_more = stream::pending::<Result<_, std::io::Error>>();
                        Body::from_stream(stream::once(text).chain(nothing_more))
                    }
                    Some(None) => std::future::pending().await,
                    None => {
                        let list = json!({"metadata": {"resourceVersion": "5"}, "items": []});
                        Body::from(list.to_string())
                    }
                };
                Ok::<_, std::convert::Infallible>(Response::new(body))
            }
        };
        (Client::new(tower::service_fn(respond), "team"), uris)
    }

    async fn until(is_reached: impl Fn() -> bool) {
        let poll = async {
            while !is_reached() {
                sleep(Duration::from_secs(1)).await;
            }
        };
        timeout(Duration::from_hours(1), poll).await.unwrap();
    }

    /// Follows the Roles with `client` until a Role is verified, and then no longer verified.
    async fn follow_until_unverified(client: Client) {
        let verified = Arc::new(VerifiedObjects::default());
        let api: Api<Role> = Api::namespaced(client, "team");
        tokio::spawn(follow(vec![api], String::new(), verified.clone()));
        let role: Role = serde_json::from_value(role("7")).unwrap();
        let is_verified = || verified.begin(&role) == Knowledge::Verified;
        until(|| {
            is_verified() || {
                verified.complete(&role, &role, false);
                false
            }
        })
        .await;
        until(|| !is_verified()).await;
    }

    #[tokio::test(start_paused = true)]
    async fn watch_continues_after_a_lost_connection() {
        for lost in [None, Some(String::new())] {
            let deletion = json!({"type": "DELETED", "object": role("8")});
            let (client, uris) = serve(vec![lost, Some(format!("{deletion}\n"))]);
            follow_until_unverified(client).await;
            let uris = uris.lock();
            assert_eq!(uris.len(), 3, "{uris:?}");
            assert!(
                uris[1..]
                    .iter()
                    .all(|uri| uri.contains("resourceVersion=5"))
            );
        }
    }

    #[tokio::test(start_paused = true)]
    async fn nothing_is_verified_after_an_event_without_its_object() {
        let status = |code: u16| json!({"kind": "Status", "status": "Failure", "code": code});
        for event in [
            json!({"type": "ERROR", "object": status(410)}),
            json!({"type": "ERROR", "object": status(500)}),
            json!({"type": "DELETED", "object": {"metadata": {"resourceVersion": 8}}}),
        ] {
            let (client, uris) = serve(vec![Some(format!("{event}\n"))]);
            follow_until_unverified(client).await;
            until(|| uris.lock().len() == 4).await;
            assert!(!uris.lock()[2].contains("watch=true"), "a new list");
        }
    }
}
