//! Tells others what happens: in the background, with patience, at least once.

mod places;

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use alustan_api::run::{Notice, Notices};
use alustan_api::{Notification, NotificationEvent, Terraform, TerraformStatus};
use alustan_core::observed::Seen;
use alustan_core::status::events::Event;
use alustan_core::status::notifications::{note, settle, take_up, until};
use anyhow::Context as _;
use futures::future::join_all;
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret as KubeSecret;
use k8s_openapi::jiff::Timestamp;
use kube::api::Api;
use kube::runtime::reflector::Store;
use kube::{Client as Kube, Resource, ResourceExt};
use parking_lot::Mutex;
use reqwest::header::CONTENT_TYPE;
use reqwest::{Certificate, Client, redirect};
use tokio::sync::mpsc::UnboundedSender;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::call::call;
use crate::error::with_causes;
use crate::notify::places::{Place, Places, address};
use crate::report::events::publish;
use crate::resource::{Guarded, Ref};
use crate::webhook::{self, Secret};

/// How long a place may take to answer.
const PATIENCE: Duration = Duration::from_secs(10);
/// The wait after a failed try; it doubles up to [`LONGEST`].
const FIRST: Duration = Duration::from_secs(1);
const LONGEST: Duration = Duration::from_mins(5);
/// Messages of one namespace, or to one place of the operator, that are sent at once; others queue.
const AT_ONCE: usize = 8;

/// Messages that are on their way, and those that arrived.
pub(crate) struct Notifier {
    http: Client,
    kube: Kube,
    instance: String,
    places: Places,
    resources: Store<Guarded>,
    messages: Mutex<HashMap<Ref, Messages>>,
    queues: Queues,
    wake: UnboundedSender<Ref>,
}

#[derive(Default)]
struct Messages {
    notices: Notices,
    under_way: HashSet<String>,
}

/// What a notifier needs.
pub(crate) struct Parts<'a> {
    pub(crate) kube: Kube,
    /// Who tells what could not be delivered.
    pub(crate) instance: String,
    /// The file of `--notifications`.
    pub(crate) places: Option<PathBuf>,
    /// Certificates (PEM) that are trusted besides the usual ones.
    pub(crate) ca_pem: Option<&'a str>,
    /// All resources.
    pub(crate) resources: Store<Guarded>,
    /// Gets those of which something is to be remembered.
    pub(crate) wake: UnboundedSender<Ref>,
}

impl Notifier {
    pub(crate) fn new(parts: Parts<'_>) -> anyhow::Result<Arc<Self>> {
        let trusted = parts
            .ca_pem
            .map(|pem| Certificate::from_pem_bundle(pem.as_bytes()));
        let trusted = trusted.transpose().context("--ca-file")?;
        let http = Client::builder()
            .user_agent(concat!("alustan/", env!("CARGO_PKG_VERSION")))
            .timeout(PATIENCE)
            .redirect(redirect::Policy::none())
            .tls_certs_merge(trusted.unwrap_or_default())
            .build()
            .context("set up the HTTP client of notifications")?;
        Ok(Arc::new(Self {
            http,
            kube: parts.kube,
            instance: parts.instance,
            places: Places::new(parts.places),
            resources: parts.resources,
            messages: Mutex::default(),
            queues: Queues::default(),
            wake: parts.wake,
        }))
    }

    /// The events that the operator tells of every resource.
    pub(crate) fn notified(&self) -> BTreeSet<NotificationEvent> {
        let (all, places) = (NotificationEvent::ALL.into_iter(), self.places.now());
        all.filter(|event| places.iter().any(|place| place.tells(*event)))
            .collect()
    }

    /// What others are told of `who`, where the record has `left` of it.
    pub(crate) fn notices(&self, who: &Ref, left: Option<&Notices>) -> Notices {
        self.with(who, |messages| {
            if let Some(left) = left {
                take_up(&mut messages.notices, left);
            }
            messages.notices.clone()
        })
    }

    /// Sends what is new in `status`, and what has not arrived yet, to whoever wants to know it. `tf` has
    /// the status before it.
    pub(crate) fn tell(self: &Arc<Self>, who: &Ref, tf: &Terraform, status: &TerraformStatus) {
        let (notified, now) = (self.notified(), Timestamp::now());
        let (is_new, to_send) = self.with(who, |Messages { notices, under_way }| {
            let before = notices.clone();
            note(notices, tf, status, &notified, now);
            let due = notices.due.iter();
            let to_send = due.filter(|notice| under_way.insert(notice.id.clone()));
            let to_send: Vec<Notice> = to_send.cloned().collect();
            (before != *notices, to_send)
        });
        for notice in to_send {
            let (who, tf) = (who.clone(), tf.clone());
            tokio::spawn(self.clone().deliver(who, tf, notice));
        }
        if is_new {
            self.remember(who);
        }
    }

    /// Whether there is something to remember of `who` that was not `seen`.
    pub(crate) fn knows_more(&self, who: &Ref, seen: &Seen) -> bool {
        let all = self.messages.lock();
        all.get(who).is_some_and(|it| it.notices != seen.notices)
    }

    /// `who` is gone. What is on its way goes on.
    pub(crate) fn forget(&self, who: &Ref) {
        let mut all = self.messages.lock();
        all.remove(who);
    }

    fn with<T>(&self, who: &Ref, f: impl FnOnce(&mut Messages) -> T) -> T {
        let mut all = self.messages.lock();
        f(all.entry(who.clone()).or_default())
    }

    /// The next look writes it in the record.
    fn remember(&self, who: &Ref) {
        // The receiver lives as long as the controller.
        let _ = self.wake.send(who.clone());
    }

    /// Whether `notice` is to be tried again: newer ones may have taken its place.
    fn is_due(&self, who: &Ref, notice: &Notice) -> bool {
        let all = self.messages.lock();
        let messages = all.get(who);
        messages.is_none_or(|it| it.notices.due.iter().any(|due| due.id == notice.id))
    }

    fn ended(&self, who: &Ref, notice: &Notice) {
        let mut all = self.messages.lock();
        let Some(messages) = all.get_mut(who) else {
            return;
        };
        messages.under_way.remove(&notice.id);
        settle(&mut messages.notices, notice.event, &notice.id);
        drop(all);
        self.remember(who);
    }

    /// Tries until every place has taken `notice`, or its time is up. The resource, its places and their
    /// Secrets are read anew for each try: who mends one gets the message, who removes one ends it. Of a
    /// resource that is gone the last is known that `tf` says.
    async fn deliver(self: Arc<Self>, who: Ref, mut tf: Terraform, notice: Notice) {
        let (mut taken, mut told) = (Vec::new(), Vec::new());
        let mut wait = FIRST;
        while self.is_due(&who, &notice) {
            tf = self.current(&who, tf);
            let mut targets = self.targets(&tf, notice.event);
            targets.retain(|target| !taken.contains(target));
            let tries = targets.iter().map(|target| self.once(target, &tf, &notice));
            let answers = join_all(tries).await;
            let left = Duration::try_from(until(&notice).duration_since(Timestamp::now()));
            // Negative: no time is left.
            let left = left.unwrap_or_default();
            let over = left.is_zero();
            let mut failed = false;
            for (target, answer) in targets.into_iter().zip(answers) {
                let Err(why) = answer else {
                    taken.push(target);
                    continue;
                };
                failed = true;
                if over || !told.contains(&target) {
                    self.say(&target, &tf, &notice, &why, over).await;
                    told.push(target);
                }
            }
            if over || !failed {
                break;
            }
            tokio::time::sleep(wait.min(left)).await;
            wait = (wait * 2).min(LONGEST);
        }
        self.ended(&who, &notice);
    }

    /// The resource as it is now.
    fn current(&self, who: &Ref, before: Terraform) -> Terraform {
        let now = self.resources.get(who);
        let now = now.as_deref().and_then(|it| it.0.as_ref().ok());
        let same = now.filter(|now| now.uid() == before.uid());
        same.cloned().unwrap_or(before)
    }

    fn targets(&self, tf: &Terraform, event: NotificationEvent) -> Vec<Target> {
        let own = tf.spec.notifications.iter().filter(|it| it.tells(event));
        let operator = self.places.now().into_iter().filter(|it| it.tells(event));
        own.cloned()
            .map(Target::Own)
            .chain(operator.map(Target::Operator))
            .collect()
    }

    async fn say(&self, target: &Target, tf: &Terraform, notice: &Notice, why: &str, over: bool) {
        let then = if over {
            "it is not tried again".to_owned()
        } else {
            format!("it is tried again until {:.0}", until(notice))
        };
        let (field, event) = (target.field(tf), notice.event);
        let event = Event {
            warning: true,
            reason: "NotificationFailed".to_owned(),
            note: format!("{field}: {event} could not be told: {why}; {then}"),
        };
        let about = tf.object_ref(&());
        publish(&self.kube, &self.instance, &about, event).await;
    }

    /// Sends the message once; or why it did not arrive. It is signed when its turn comes: what was signed
    /// long ago is refused.
    async fn once(&self, target: &Target, tf: &Terraform, notice: &Notice) -> Result<(), String> {
        let _turn = self.queues.take(&target.queue(tf)).await;
        let (url, secret) = self.address(target, tf).await?;
        let url = address(&url)?;
        let origin = url.origin().ascii_serialization();
        let body = notice.message.to_string();
        let request = self.http.post(url);
        let mut request = request.header(CONTENT_TYPE, "application/cloudevents+json");
        if let Some(secret) = secret {
            let (id, at) = (&notice.id, Timestamp::now().as_second());
            request = request
                .header(webhook::ID, id)
                .header(webhook::TIMESTAMP, at)
                .header(webhook::SIGNATURE, secret.sign(id, at, body.as_bytes()));
        }
        let answer = request.body(body).send().await;
        let answer = answer.map_err(|error| {
            let error = error.without_url();
            format!("POST to {origin}: {}", with_causes(&error))
        })?;
        let status = answer.status();
        if status.is_success() {
            return Ok(());
        }
        Err(format!("{origin} answered {status}"))
    }

    /// Where to send, and what to sign with.
    async fn address(
        &self,
        target: &Target,
        tf: &Terraform,
    ) -> Result<(String, Option<Secret>), String> {
        let own = match target {
            Target::Operator(place) => return place.address(),
            Target::Own(own) => own,
        };
        let Some(secret) = &own.secret_ref else {
            let url = own
                .url
                .clone()
                .ok_or("neither url nor secretRef is given")?;
            return Ok((url, None));
        };
        let name = &secret.name;
        let namespace = tf.namespace().unwrap_or_default();
        let api: Api<KubeSecret> = Api::namespaced(self.kube.clone(), &namespace);
        let found = call(&format!("read Secret {name}"), api.get_opt(name)).await;
        let found = found.map_err(|error| error.chain())?;
        let found = found.ok_or_else(|| format!("Secret {name} does not exist; create it"))?;
        by_secret(own, name, &found.data.unwrap_or_default())
    }
}

/// Who is to be told, and how to reach them.
#[derive(Clone, PartialEq, Eq)]
enum Target {
    Own(Notification),
    Operator(Place),
}

impl Target {
    /// Where it is set, for messages.
    fn field(&self, tf: &Terraform) -> String {
        match self {
            Self::Own(own) => {
                let mut all = tf.spec.notifications.iter();
                let at = all.position(|it| it == own).unwrap_or_default();
                format!("spec.notifications[{at}]")
            }
            Self::Operator(_) => "--notifications".to_owned(),
        }
    }

    /// With whom it waits for its turn.
    fn queue(&self, tf: &Terraform) -> String {
        match self {
            Self::Own(_) => tf.namespace().unwrap_or_default(),
            Self::Operator(place) => place.url.clone(),
        }
    }
}

/// Queues of notifications: a receiver that does not answer delays no other queue.
#[derive(Default)]
struct Queues(Mutex<HashMap<String, Arc<Semaphore>>>);

impl Queues {
    /// A turn of `queue`, until it is dropped.
    async fn take(&self, queue: &str) -> Option<OwnedSemaphorePermit> {
        let turns = {
            let mut all = self.0.lock();
            // Whoever waits or has a turn has a share in it.
            all.retain(|_, turns| Arc::strong_count(turns) > 1);
            let new = || Arc::new(Semaphore::new(AT_ONCE));
            all.entry(queue.to_owned()).or_insert_with(new).clone()
        };
        turns.acquire_owned().await.ok()
    }
}

/// What the Secret `name`, which holds `data`, says about `own`.
fn by_secret(
    own: &Notification,
    name: &str,
    data: &BTreeMap<String, ByteString>,
) -> Result<(String, Option<Secret>), String> {
    let key = |key: &str| data.get(key).map(|value| value.0.as_slice());
    let secret = key("secret").map(|secret| {
        Secret::read(secret).map_err(|why| format!("the key secret of Secret {name} {why}"))
    });
    let secret = secret.transpose()?;
    let url = key("url").map(|url| String::from_utf8_lossy(url).trim().to_owned());
    if own.url.is_some() && secret.is_none() {
        return Err(format!("Secret {name} has no key secret to sign with"));
    }
    let url = url.or_else(|| own.url.clone());
    let url = url.ok_or_else(|| format!("there is no url, and Secret {name} has no key url"))?;
    Ok((url, secret))
}

#[cfg(test)]
mod tests;
