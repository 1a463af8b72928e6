//! Streams of server-sent events: changes of a list or a resource, and the log of an active run.

use std::collections::BTreeSet;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use alustan_api::ObjectKey;
use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{IntoResponse as _, Response};
use futures::stream;
use tokio::sync::mpsc;
use tokio::time::{Instant, MissedTickBehavior, interval_at, sleep};

use crate::access::{AccessReview, Viewer};
use crate::error::PageError;
use crate::guard::StreamSlot;
use crate::log::{self, LogSource, Position};
use crate::overview::Overview;
use crate::view;

/// Time in which changes are collected into one event, so that many changes cause few requests.
const COLLECT_TIME: Duration = Duration::from_millis(100);

/// Minimum time between two events.
const MIN_EVENT_INTERVAL: Duration = Duration::from_millis(300);

/// Interval in which permissions of an open stream are checked again.
const CHECK_INTERVAL: Duration = Duration::from_secs(30);

/// Interval of comments, which keep proxies from closing an idle stream.
const HEARTBEAT: Duration = Duration::from_secs(15);

/// Interval in which a stream looks for the pod of a run that has not started.
const POD_INTERVAL: Duration = Duration::from_secs(1);

/// Number of events that wait for a slow client. After that, the log is read no further.
const WAITING_EVENTS: usize = 8;

/// A client disconnected, or lost its permission.
struct Closed;

/// Sender of the events of one stream. Each event has data: browsers ignore events without it.
struct Sender(mpsc::Sender<Event>);

impl Sender {
    async fn send(&self, event: Event) -> Result<(), Closed> {
        self.0.send(event).await.map_err(|_| Closed)
    }
}

/// Returns a response that sends the events of `task`. `slot` is freed when the client disconnects or `task` ends.
fn respond<F>(slot: StreamSlot, task: impl FnOnce(Sender) -> F) -> Response
where
    F: Future<Output = Result<(), Closed>> + Send + 'static,
{
    let (sender, receiver) = mpsc::channel(WAITING_EVENTS);
    let closed = sender.clone();
    let task = task(Sender(sender));
    tokio::spawn(async move {
        let _slot = slot;
        tokio::select! {
            _ = task => {}
            () = closed.closed() => {}
        }
    });
    let events = stream::unfold(receiver, |mut receiver| async {
        let event = receiver.recv().await?;
        Some((Ok::<_, Infallible>(event), receiver))
    });
    let keep_alive = KeepAlive::new().interval(HEARTBEAT);
    Sse::new(events).keep_alive(keep_alive).into_response()
}

/// Resources whose changes a stream announces.
pub(crate) enum Scope {
    /// All resources of the namespaces in which the user may list them.
    All,
    /// One namespace.
    Namespace(String),
    /// One resource.
    Resource(ObjectKey),
}

/// Streams an event `change` after each change of the resources in `scope`. `seen`: version of the resources that the page shows. If they changed before
/// the stream was opened, or between two connections, the first event is sent immediately. The id of an event is the version after it.
pub(crate) fn changes(
    slot: StreamSlot,
    viewer: Arc<Viewer>,
    overview: Overview,
    scope: Scope,
    seen: String,
) -> Response {
    respond(slot, |sender| async move {
        let mut changes = overview.changes();
        let mut checks = interval_at(Instant::now() + CHECK_INTERVAL, CHECK_INTERVAL);
        checks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut known = overview.namespaces();
        let mut namespaces = visible(&viewer, &scope, &known).await?;
        let mut last = seen;
        loop {
            let current = version(&overview, &scope, &namespaces);
            if current != last {
                let event = Event::default()
                    .event("change")
                    .id(&current)
                    .data("changed");
                sender.send(event).await?;
                last = current;
                sleep(MIN_EVENT_INTERVAL).await;
            }
            tokio::select! {
                next = changes.changed() => {
                    next.map_err(|_| Closed)?;
                    sleep(COLLECT_TIME).await;
                    changes.mark_unchanged();
                    let current = overview.namespaces();
                    if current == known {
                        continue;
                    }
                    known = current;
                }
                _ = checks.tick() => {}
            }
            namespaces = visible(&viewer, &scope, &known).await?;
        }
    })
}

/// Returns the namespaces of `scope` that the user may see. `known`: all namespaces with resources.
async fn visible(
    viewer: &Viewer,
    scope: &Scope,
    known: &BTreeSet<String>,
) -> Result<BTreeSet<String>, Closed> {
    let namespaces = match scope {
        Scope::All => known.clone(),
        Scope::Namespace(namespace) => [namespace.clone()].into(),
        Scope::Resource(key) => {
            let wanted = AccessReview::terraforms("get", Some(&key.namespace), Some(&key.name));
            viewer.require(&wanted).await.map_err(|_| Closed)?;
            return Ok([key.namespace.clone()].into());
        }
    };
    viewer.listable(namespaces).await.map_err(|_| Closed)
}

/// Returns the version of the resources in `scope`. That of one resource is its `resourceVersion`.
fn version(overview: &Overview, scope: &Scope, namespaces: &BTreeSet<String>) -> String {
    match scope {
        Scope::Resource(key) => overview
            .row(key)
            .map(|row| row.resource_version.clone())
            .unwrap_or_default(),
        Scope::All | Scope::Namespace(_) => overview.version(namespaces),
    }
}

/// Streams the log of run `number` of `key` after `position`: events `log` with lines, then `end`. The id of an event is the position after it.
pub(crate) fn run_log(
    slot: StreamSlot,
    viewer: Arc<Viewer>,
    key: ObjectKey,
    number: i64,
    position: Option<Position>,
) -> Response {
    respond(slot, move |sender| async move {
        tokio::select! {
            sent = send_log(&sender, &viewer, &key, number, position.as_ref()) => sent,
            revoked = watch_permission(&viewer, &key) => revoked,
        }
    })
}

/// Waits for the pod of the run, and sends its log.
async fn send_log(
    sender: &Sender,
    viewer: &Viewer,
    key: &ObjectKey,
    number: i64,
    position: Option<&Position>,
) -> Result<(), Closed> {
    let pod = loop {
        // If the API server does not answer, the client reconnects.
        match log::find(viewer, key, number, None)
            .await
            .map_err(|_| Closed)?
        {
            LogSource::Pod(pod) => break pod,
            LogSource::NotStarted(_) => sleep(POD_INTERVAL).await,
            LogSource::Stored(_) | LogSource::Missing(_) => return end(sender).await,
        }
    };
    let mut lines = match pod.lines(position).await {
        Ok(lines) => lines,
        Err(error) => return fail(sender, &error).await,
    };
    // After an error of the connection, the client reconnects with the id of the last event.
    while let Some(part) = lines.next().await.map_err(|_| Closed)? {
        let event = Event::default()
            .event("log")
            .data(view::text::visible(&part.text));
        let event = match part.position {
            Some(position) => event.id(position.to_string()),
            None => event,
        };
        sender.send(event).await?;
    }
    end(sender).await
}

/// Returns when the user may no longer read logs of pods.
async fn watch_permission(viewer: &Viewer, key: &ObjectKey) -> Result<(), Closed> {
    let wanted = AccessReview::pod_logs(&key.namespace);
    loop {
        viewer.require(&wanted).await.map_err(|_| Closed)?;
        sleep(CHECK_INTERVAL).await;
    }
}

async fn end(sender: &Sender) -> Result<(), Closed> {
    sender
        .send(Event::default().event("end").data("ended"))
        .await
}

/// Sends the error as a line of the log, and an event after which the client neither reconnects nor loads the page again.
async fn fail(sender: &Sender, error: &PageError) -> Result<(), Closed> {
    let text = error.to_string();
    let text = view::text::visible(&text);
    sender
        .send(Event::default().event("log").data(text))
        .await?;
    sender
        .send(Event::default().event("stop").data("stopped"))
        .await
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    use alustan_api::Terraform;
    use kube::core::DeserializeGuard;
    use kube::runtime::watcher::Event as Watched;
    use serde_json::json;

    fn watched(namespace: &str, version: u32) -> Watched<DeserializeGuard<Terraform>> {
        let tf = json!({
            "metadata": {"name": "web", "namespace": namespace, "resourceVersion": version.to_string()},
            "spec": {"containerRegistry": {"imageName": "registry.test/a"}},
        });
        Watched::Apply(serde_json::from_value(tf).unwrap())
    }

    #[test]
    fn events_omit_namespaces_without_permission() {
        let overview = Overview::default();
        let team = ["team".to_owned()].into();
        let version = |overview: &Overview| version(overview, &Scope::All, &team);
        overview.handle(watched("team", 1), &mut BTreeMap::default());
        let before = version(&overview);
        overview.handle(watched("other", 2), &mut BTreeMap::default());
        assert_eq!(version(&overview), before);
        overview.handle(watched("team", 3), &mut BTreeMap::default());
        assert_ne!(version(&overview), before);
    }
}
