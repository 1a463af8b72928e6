//! Events of a Job that has no pod.

use alustan_core::model::admission;
use alustan_core::observed::Waiting;
use k8s_openapi::api::events::v1::Event;
use k8s_openapi::jiff::{SignedDuration, Timestamp};
use kube::Client;
use kube::api::{Api, ListParams};
use tracing::debug;

use crate::call::call;

/// Age of a Job without a pod after which its events are read. Shorter than the delay until status reports a missing pod.
const POD_CREATION_TIMEOUT: SignedDuration = SignedDuration::from_secs(10);

/// Maximum number of events of a Job that are read.
const MAX_EVENTS: u32 = 100;

/// Whether the Job controller should have created a pod by now.
pub(super) fn is_late(created_at: Timestamp, now: Timestamp) -> bool {
    now.duration_since(created_at) >= POD_CREATION_TIMEOUT
}

/// Returns why the Job controller failed to create a pod for the Job `uid`, from its latest event. `None` if no such event exists, or if the operator
/// may not list events. Without a cause, the status refers to `kubectl describe`.
pub(super) async fn no_pod(client: &Client, namespace: &str, uid: &str) -> Option<Waiting> {
    let api: Api<Event> = Api::namespaced(client.clone(), namespace);
    let selector = format!("regarding.uid={uid},reason=FailedCreate");
    let parameters = ListParams::default().fields(&selector).limit(MAX_EVENTS);
    let events = call("list the events of a Job", api.list(&parameters)).await;
    let events = events.inspect_err(|error| {
        debug!(
            error = error.chain(),
            "cannot determine why the Job has no pod"
        );
    });
    let latest = events.ok()?.items.into_iter().max_by_key(|event| {
        let at = event.deprecated_last_timestamp.as_ref().map(|at| at.0);
        at.max(event.event_time.as_ref().map(|at| at.0))
    });
    Some(admission::no_pod(&latest?.note?))
}

#[cfg(test)]
mod tests {

    use super::*;
    use crate::fake_api;

    #[tokio::test]
    async fn at_most_100_events_of_a_job_are_read() {
        let (client, requests) = fake_api::serve(|_| fake_api::list(&[])).await;
        assert_eq!(no_pod(&client, "team", "uid-of-job").await, None);
        let uri = requests.lock()[0].uri.clone();
        assert!(uri.contains("limit=100"), "{uri}");
    }
}
