//! Sends notifications in the background, with retries, at least once.

mod receivers;

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use alustan_api::run::{Notice, Notices};
use alustan_api::{Notification, NotificationEvent, Reason, Terraform, TerraformStatus};
use alustan_core::backoff::doubled;
use alustan_core::observed::Seen;
use alustan_core::status::events::Event;
use alustan_core::status::notifications::{expires_at, mark_delivered, note, restore_stored};
use anyhow::Context as _;
use futures::future::join_all;
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret;
use k8s_openapi::jiff::Timestamp;
use kube::api::Api;
use kube::{Client as Kube, Resource, ResourceExt};
use parking_lot::Mutex;
use reqwest::header::CONTENT_TYPE;
use reqwest::{Certificate, Client, redirect};
use serde_json::Value;
use tokio::sync::mpsc::UnboundedSender;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::call::call;
use crate::error::with_causes;
use crate::events::publish;
use crate::indexed_store::IndexedStore;
use crate::notify::receivers::{Receiver, ReceiversFile, parse_url};
use crate::page_url::PageUrl;
use crate::resource::{Guarded, Ref};
use crate::standard_webhooks::{self, SharedSecret};

/// Time limit for the response of a receiver.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(10);
/// Delay after the first failed attempt. Doubles up to [`MAX_BACKOFF`].
const FIRST_BACKOFF: Duration = Duration::from_secs(1);
const MAX_BACKOFF: Duration = Duration::from_mins(5);
/// Maximum number of concurrent requests to the receivers in `spec.notifications` of one namespace, or to one receiver of
/// `--notifications`. Further requests are queued.
const MAX_CONCURRENT_REQUESTS: usize = 8;

/// Sends notifications. Holds the pending and delivered notifications of each resource.
pub(crate) struct Notifier {
    http: Client,
    kube: Kube,
    instance: String,
    receivers: ReceiversFile,
    page_url: Option<PageUrl>,
    resources: IndexedStore<Guarded>,
    messages: Mutex<HashMap<Ref, Messages>>,
    queues: Queues,
    wake: UnboundedSender<Ref>,
}

#[derive(Default)]
struct Messages {
    notices: Notices,
    in_flight: HashSet<String>,
}

/// Arguments of [`Notifier::new`].
pub(crate) struct NotifierParts<'a> {
    pub(crate) kube: Kube,
    /// Reporting instance of events about failed deliveries.
    pub(crate) instance: String,
    /// File of `--notifications`.
    pub(crate) receivers: Option<PathBuf>,
    /// CA certificates (PEM) to trust in addition to the default ones.
    pub(crate) ca_pem: Option<&'a str>,
    /// URL of the page, for links in messages.
    pub(crate) page_url: Option<PageUrl>,
    /// All resources.
    pub(crate) resources: IndexedStore<Guarded>,
    /// Requeues resources, so that their notifications are saved in the run record.
    pub(crate) wake: UnboundedSender<Ref>,
}

impl Notifier {
    pub(crate) fn new(parts: NotifierParts<'_>) -> anyhow::Result<Arc<Self>> {
        let trusted = parts
            .ca_pem
            .map(|pem| Certificate::from_pem_bundle(pem.as_bytes()));
        let trusted = trusted.transpose().context("--ca-file")?;
        let http = Client::builder()
            .user_agent(concat!("alustan/", env!("CARGO_PKG_VERSION")))
            .timeout(RESPONSE_TIMEOUT)
            .redirect(redirect::Policy::none())
            .tls_certs_merge(trusted.unwrap_or_default())
            .build()
            .context("failed to create the HTTP client for notifications")?;
        Ok(Arc::new(Self {
            http,
            kube: parts.kube,
            instance: parts.instance,
            receivers: ReceiversFile::new(parts.receivers),
            page_url: parts.page_url,
            resources: parts.resources,
            messages: Mutex::default(),
            queues: Queues::default(),
            wake: parts.wake,
        }))
    }

    /// Returns the events that at least one receiver of `--notifications` receives for every resource.
    pub(crate) fn notified(&self) -> BTreeSet<NotificationEvent> {
        let (events, receivers) = (NotificationEvent::ALL.into_iter(), self.receivers.now());
        events
            .filter(|event| receivers.iter().any(|receiver| receiver.receives(*event)))
            .collect()
    }

    /// Returns the notifications of `resource`, including those in its run record (`recorded`).
    pub(crate) fn notices(&self, resource: &Ref, recorded: Option<&Notices>) -> Notices {
        self.with(resource, |messages| {
            if let Some(recorded) = recorded {
                restore_stored(&mut messages.notices, recorded);
            }
            messages.notices.clone()
        })
    }

    /// Sends the notifications that the change to `status` causes, and those that are not delivered yet, to their receivers. `tf` has the
    /// previous status.
    pub(crate) fn notify(
        self: &Arc<Self>,
        resource: &Ref,
        tf: &Terraform,
        status: &TerraformStatus,
    ) {
        let (notified, now) = (self.notified(), Timestamp::now());
        let (is_new, to_send) = self.with(resource, |Messages { notices, in_flight }| {
            let before = notices.clone();
            note(notices, tf, status, &notified, now);
            let due = notices.due.iter();
            let to_send = due.filter(|notice| in_flight.insert(notice.id.clone()));
            let to_send: Vec<Notice> = to_send.cloned().collect();
            (before != *notices, to_send)
        });
        for notice in to_send {
            let (resource, tf) = (resource.clone(), tf.clone());
            tokio::spawn(self.clone().deliver(resource, tf, notice));
        }
        if is_new {
            self.remember(resource);
        }
    }

    /// Returns whether the notifications of `resource` differ from those in its run record, as observed in `seen`.
    pub(crate) fn has_unsaved_changes(&self, resource: &Ref, seen: &Seen) -> bool {
        let messages_by_resource = self.messages.lock();
        messages_by_resource
            .get(resource)
            .is_some_and(|messages| messages.notices != seen.notices)
    }

    /// Removes the notifications of `resource`, which is deleted. Active deliveries continue.
    pub(crate) fn forget(&self, resource: &Ref) {
        let mut messages_by_resource = self.messages.lock();
        messages_by_resource.remove(resource);
    }

    fn with<T>(&self, resource: &Ref, f: impl FnOnce(&mut Messages) -> T) -> T {
        let mut messages_by_resource = self.messages.lock();
        f(messages_by_resource.entry(resource.clone()).or_default())
    }

    /// Requeues `resource`. The next reconcile saves its notifications in the run record.
    fn remember(&self, resource: &Ref) {
        // `send` fails only after the controller has stopped.
        let _ = self.wake.send(resource.clone());
    }

    /// Returns whether `notice` is still to be delivered. A newer notification may have replaced it.
    fn is_due(&self, resource: &Ref, notice: &Notice) -> bool {
        let messages_by_resource = self.messages.lock();
        let messages = messages_by_resource.get(resource);
        messages.is_none_or(|messages| messages.notices.due.iter().any(|due| due.id == notice.id))
    }

    fn ended(&self, resource: &Ref, notice: &Notice) {
        let mut messages_by_resource = self.messages.lock();
        let Some(messages) = messages_by_resource.get_mut(resource) else {
            return;
        };
        messages.in_flight.remove(&notice.id);
        mark_delivered(&mut messages.notices, notice.event, &notice.id);
        drop(messages_by_resource);
        self.remember(resource);
    }

    /// Retries until all receivers have accepted `notice`, or until it expires. Each attempt reads the resource, its receivers and their
    /// Secrets again: a corrected receiver gets the message, and a removed receiver gets no further attempts. After the deletion of the
    /// resource, `tf` has its last known version.
    async fn deliver(self: Arc<Self>, resource: Ref, mut tf: Terraform, notice: Notice) {
        let (mut accepted, mut reported) = (Vec::new(), Vec::new());
        let mut failures = 0_u32;
        while self.is_due(&resource, &notice) {
            tf = self.current(&resource, tf);
            let mut targets = self.targets(&tf, notice.event);
            targets.retain(|target| !accepted.contains(target));
            let attempts = targets
                .iter()
                .map(|target| self.send_once(target, &tf, &notice));
            let results = join_all(attempts).await;
            let remaining =
                Duration::try_from(expires_at(&notice).duration_since(Timestamp::now()));
            // A negative duration means that the notification has expired.
            let remaining = remaining.unwrap_or_default();
            let expired = remaining.is_zero();
            let mut failed = false;
            for (target, result) in targets.into_iter().zip(results) {
                let Err(cause) = result else {
                    accepted.push(target);
                    continue;
                };
                failed = true;
                if expired || !reported.contains(&target) {
                    self.report_failure(&target, &tf, &notice, &cause, expired)
                        .await;
                    reported.push(target);
                }
            }
            if expired || !failed {
                break;
            }
            failures = failures.saturating_add(1);
            let backoff = doubled(FIRST_BACKOFF, failures, MAX_BACKOFF);
            tokio::time::sleep(backoff.min(remaining)).await;
        }
        self.ended(&resource, &notice);
    }

    /// Returns the current version of the resource, or `before` if it no longer exists or cannot be read.
    fn current(&self, resource: &Ref, before: Terraform) -> Terraform {
        let current = self.resources.get(resource);
        let current = current.as_deref().and_then(|object| object.0.as_ref().ok());
        let same_resource = current.filter(|current| current.uid() == before.uid());
        same_resource.cloned().unwrap_or(before)
    }

    fn targets(&self, tf: &Terraform, event: NotificationEvent) -> Vec<Target> {
        let notifications = tf
            .spec
            .notifications
            .iter()
            .filter(|notification| notification.tells(event));
        let receivers = self
            .receivers
            .now()
            .into_iter()
            .filter(|receiver| receiver.receives(event));
        notifications
            .cloned()
            .map(Target::Resource)
            .chain(receivers.map(Target::Operator))
            .collect()
    }

    async fn report_failure(
        &self,
        target: &Target,
        tf: &Terraform,
        notice: &Notice,
        cause: &str,
        expired: bool,
    ) {
        let retry = if expired {
            "not retried".to_owned()
        } else {
            format!("retried until {:.0}", expires_at(notice))
        };
        let (field, event) = (target.field(tf), notice.event);
        let event = Event {
            warning: true,
            reason: Reason::NotificationFailed.into(),
            note: format!("{field}: failed to send {event}: {cause}; {retry}"),
        };
        let about = tf.object_ref(&());
        publish(&self.kube, &self.instance, &about, event).await;
    }

    /// Sends the message once. Signs it after the wait in the queue, because receivers refuse old signatures.
    ///
    /// # Errors
    /// The cause of the failed delivery.
    async fn send_once(
        &self,
        target: &Target,
        tf: &Terraform,
        notice: &Notice,
    ) -> Result<(), String> {
        let _permit = self.queues.take(&target.queue(tf)).await;
        let (url, secret) = self.url_and_secret(target, tf).await?;
        let url = parse_url(&url)?;
        let origin = url.origin().ascii_serialization();
        let body = self.body(notice);
        let request = self.http.post(url);
        let mut request = request.header(CONTENT_TYPE, "application/cloudevents+json");
        if let Some(secret) = secret {
            let (id, at) = (&notice.id, Timestamp::now().as_second());
            request = request
                .header(standard_webhooks::ID, id)
                .header(standard_webhooks::TIMESTAMP, at)
                .header(
                    standard_webhooks::SIGNATURE,
                    secret.sign(id, at, body.as_bytes()),
                );
        }
        let response = request.body(body).send().await;
        let response = response.map_err(|error| {
            let error = error.without_url();
            format!("POST to {origin}: {}", with_causes(&error))
        })?;
        let status = response.status();
        if status.is_success() {
            return Ok(());
        }
        Err(format!("{origin} responded with status {status}"))
    }

    /// Returns the message, with the link to the page of the resource in `data.url` if the operator has the URL of the page.
    fn body(&self, notice: &Notice) -> String {
        let mut message = notice.message.clone();
        if let Some(page) = &self.page_url
            && let Some(data) = message.get_mut("data").and_then(Value::as_object_mut)
        {
            let text = |key: &str| data.get(key).and_then(Value::as_str).unwrap_or_default();
            let url = page.of_resource(text("namespace"), text("name"));
            data.insert("url".to_owned(), url.into());
        }
        message.to_string()
    }

    /// Returns the URL and the signing secret of a receiver.
    async fn url_and_secret(
        &self,
        target: &Target,
        tf: &Terraform,
    ) -> Result<(String, Option<SharedSecret>), String> {
        let notification = match target {
            Target::Operator(receiver) => return receiver.url_and_secret(),
            Target::Resource(notification) => notification,
        };
        let Some(secret) = &notification.secret_ref else {
            let url = notification
                .url
                .clone()
                .ok_or("url or secretRef is required")?;
            return Ok((url, None));
        };
        let name = &secret.name;
        let namespace = tf.namespace().unwrap_or_default();
        let api: Api<Secret> = Api::namespaced(self.kube.clone(), &namespace);
        let secret_object = call(&format!("read Secret {name}"), api.get_opt(name)).await;
        let secret_object = secret_object.map_err(|error| error.chain())?;
        let secret_object = secret_object.ok_or_else(|| format!("Secret {name} does not exist"))?;
        url_and_secret(notification, name, &secret_object.data.unwrap_or_default())
    }
}

/// Receiver of a message.
#[derive(Clone, PartialEq, Eq)]
enum Target {
    Resource(Notification),
    Operator(Receiver),
}

impl Target {
    /// Returns the field or flag that configures the receiver, for messages.
    fn field(&self, tf: &Terraform) -> String {
        match self {
            Self::Resource(notification) => {
                let mut notifications = tf.spec.notifications.iter();
                let index = notifications
                    .position(|other| other == notification)
                    .unwrap_or_default();
                format!("spec.notifications[{index}]")
            }
            Self::Operator(_) => "--notifications".to_owned(),
        }
    }

    /// Returns the key of the receiver in [`Queues`]: the namespace of the resource, or the URL of a receiver of `--notifications`.
    fn queue(&self, tf: &Terraform) -> String {
        match self {
            Self::Resource(_) => tf.namespace().unwrap_or_default(),
            Self::Operator(receiver) => receiver.url.clone(),
        }
    }
}

/// Queues of requests to receivers. A receiver that does not respond delays no other queue.
#[derive(Default)]
struct Queues(Mutex<HashMap<String, Arc<Semaphore>>>);

impl Queues {
    /// Waits for a permit of `queue`.
    async fn take(&self, queue: &str) -> Option<OwnedSemaphorePermit> {
        let permits = {
            let mut queues = self.0.lock();
            // Each permit and each waiting task holds a reference to the semaphore of its queue. Remove the queues without permits and waiting tasks.
            queues.retain(|_, permits| Arc::strong_count(permits) > 1);
            let new = || Arc::new(Semaphore::new(MAX_CONCURRENT_REQUESTS));
            queues.entry(queue.to_owned()).or_insert_with(new).clone()
        };
        permits.acquire_owned().await.ok()
    }
}

/// Returns URL and signing secret of the receiver `notification` (`spec.notifications`). `data` is the content of Secret `name`, to which
/// `secretRef` of the receiver refers.
fn url_and_secret(
    notification: &Notification,
    name: &str,
    data: &BTreeMap<String, ByteString>,
) -> Result<(String, Option<SharedSecret>), String> {
    let key = |key: &str| data.get(key).map(|value| value.0.as_slice());
    let secret = key("secret").map(|secret| {
        SharedSecret::parse(secret).map_err(|cause| format!("key secret of Secret {name} {cause}"))
    });
    let secret = secret.transpose()?;
    let url = key("url").map(|url| String::from_utf8_lossy(url).trim().to_owned());
    if notification.url.is_some() && secret.is_none() {
        return Err(format!(
            "Secret {name} has no key secret, which is required to sign messages"
        ));
    }
    let url = url.or_else(|| notification.url.clone());
    let url = url.ok_or_else(|| format!("url is not set, and Secret {name} has no key url"))?;
    Ok((url, secret))
}

#[cfg(test)]
mod tests;
