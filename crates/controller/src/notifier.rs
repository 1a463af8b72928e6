//! Tells others what happens: in the background, with patience, at least once.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use alustan_api::{Notification, NotificationEvent, Terraform, TerraformStatus};
use alustan_core::events::Event;
use alustan_core::notices::{LAST_WORD, NEWS, Notice, Told, due};
use alustan_core::seen::Seen;
use anyhow::Context as _;
use k8s_openapi::api::core::v1::{ObjectReference, Secret as KubeSecret};
use k8s_openapi::jiff::Timestamp;
use kube::api::Api;
use kube::{Resource, ResourceExt};
use reqwest::header::CONTENT_TYPE;
use reqwest::{Certificate, Client, Url, redirect};
use serde::Deserialize;
use tokio::sync::Semaphore;
use tokio::sync::mpsc::UnboundedSender;

use crate::Ref;
use crate::context::Context;
use crate::enact::call;
use crate::error::with_causes;
use crate::report::publish;
use crate::webhook::{self, Secret};

/// How long a place may take to answer.
const PATIENCE: Duration = Duration::from_secs(10);
/// The wait after a failed try; it doubles up to [`LONGEST`].
const FIRST: Duration = Duration::from_secs(1);
const LONGEST: Duration = Duration::from_mins(5);
/// Messages that are sent at once; others queue.
const AT_ONCE: usize = 16;

/// A place that the operator tells of every resource.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct Place {
    /// Where it is sent.
    url: String,
    /// What it is signed with.
    #[serde(default)]
    secret: Option<String>,
    /// The events that are told; all of them if none is named.
    #[serde(default)]
    events: Vec<NotificationEvent>,
}

impl Place {
    /// Reads the file of `--notifications`: a list of places in JSON.
    pub(crate) fn read(text: &str) -> anyhow::Result<Vec<Self>> {
        let places: Vec<Self> = serde_json::from_str(text).context(
            r#"is not of the form [{"url": "https://…", "secret": "whsec_…", "events": ["Failed"]}]"#,
        )?;
        for place in &places {
            address(&place.url).map_err(anyhow::Error::msg)?;
        }
        Ok(places)
    }

    /// The events that `places` want to be told.
    pub(crate) fn events(places: &[Self]) -> BTreeSet<NotificationEvent> {
        let all = NotificationEvent::ALL.into_iter();
        all.filter(|event| places.iter().any(|place| place.tells(*event)))
            .collect()
    }

    fn tells(&self, event: NotificationEvent) -> bool {
        self.events.is_empty() || self.events.contains(&event)
    }
}

/// Messages that are on their way, and those that arrived.
pub(crate) struct Notifier {
    http: Client,
    places: Vec<Place>,
    resources: Mutex<HashMap<Ref, Messages>>,
    turns: Semaphore,
    wake: UnboundedSender<Ref>,
}

#[derive(Default)]
struct Messages {
    under_way: HashSet<String>,
    told: HashMap<NotificationEvent, (Timestamp, String)>,
}

/// Who is to be told, and how to reach them.
enum Target {
    Own(Notification),
    Operator(Place),
}

impl Notifier {
    /// Tells `places` of every resource; `wake` gets those whose messages arrived. Certificates of
    /// `ca_pem` (PEM) are trusted besides the usual ones.
    pub(crate) fn new(
        places: Vec<Place>,
        ca_pem: Option<&str>,
        wake: UnboundedSender<Ref>,
    ) -> anyhow::Result<Self> {
        let trusted = ca_pem.map(|pem| Certificate::from_pem_bundle(pem.as_bytes()));
        let trusted = trusted.transpose().context("--ca-file")?;
        let http = Client::builder()
            .user_agent(concat!("alustan/", env!("CARGO_PKG_VERSION")))
            .timeout(PATIENCE)
            .redirect(redirect::Policy::none())
            .tls_certs_merge(trusted.unwrap_or_default())
            .build()
            .context("set up the HTTP client of notifications")?;
        Ok(Self {
            http,
            places,
            resources: Mutex::default(),
            turns: Semaphore::new(AT_ONCE),
            wake,
        })
    }

    /// The messages about `who` that arrived, or were given up.
    pub(crate) fn told(&self, who: &Ref) -> Told {
        self.with(who, |messages| {
            let told = messages.told.iter();
            told.map(|(event, (_, id))| (*event, id.clone())).collect()
        })
    }

    /// `who` is gone. What is on its way goes on.
    pub(crate) fn forget(&self, who: &Ref) {
        let mut all = self
            .resources
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        all.remove(who);
    }

    fn with<T>(&self, who: &Ref, f: impl FnOnce(&mut Messages) -> T) -> T {
        let mut all = self
            .resources
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        f(all.entry(who.clone()).or_default())
    }

    fn ended(&self, who: &Ref, notice: &Notice) {
        let mut all = self
            .resources
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let Some(messages) = all.get_mut(who) else {
            return;
        };
        messages.under_way.remove(&notice.id);
        let now = (notice.at, notice.id.clone());
        let last = messages
            .told
            .entry(notice.event)
            .or_insert_with(|| now.clone());
        if last.0 <= notice.at {
            *last = now;
        }
        drop(all);
        // The receiver lives as long as the controller.
        let _ = self.wake.send(who.clone());
    }

    fn targets(&self, tf: &Terraform, event: NotificationEvent) -> Vec<Target> {
        let own = tf.spec.notifications.iter().filter(|it| it.tells(event));
        let operator = self.places.iter().filter(|it| it.tells(event));
        own.cloned()
            .map(Target::Own)
            .chain(operator.cloned().map(Target::Operator))
            .collect()
    }
}

/// Sends what is new in `status` to whoever wants to know it.
pub(crate) fn tell(
    cx: &Arc<Context>,
    who: &Ref,
    tf: &Terraform,
    seen: &Seen,
    status: &TerraformStatus,
) {
    let record = seen.record.as_ref();
    let mut told = record.map_or_else(Told::new, |record| record.history.told.clone());
    told.extend(cx.notifier.told(who));
    for notice in due(tf, status, &cx.settings, &told, Timestamp::now()) {
        let new = cx
            .notifier
            .with(who, |messages| messages.under_way.insert(notice.id.clone()));
        if new {
            tokio::spawn(deliver(cx.clone(), who.clone(), tf.clone(), notice));
        }
    }
}

/// Tries until every place has taken `notice`, or its time is up.
async fn deliver(cx: Arc<Context>, who: Ref, tf: Terraform, notice: Notice) {
    let until = match notice.event {
        NotificationEvent::Destroyed => Timestamp::now() + LAST_WORD,
        _ => notice.at + NEWS,
    };
    let targets = cx.notifier.targets(&tf, notice.event);
    let all = targets.iter().map(|target| Delivery {
        cx: &cx,
        tf: &tf,
        notice: &notice,
        target,
        until,
    });
    futures::future::join_all(all.map(Delivery::run)).await;
    cx.notifier.ended(&who, &notice);
}

struct Delivery<'a> {
    cx: &'a Context,
    tf: &'a Terraform,
    notice: &'a Notice,
    target: &'a Target,
    until: Timestamp,
}

impl Delivery<'_> {
    async fn run(self) {
        let mut wait = FIRST;
        let mut said = false;
        while let Err(why) = self.once().await {
            let left = Duration::try_from(self.until.duration_since(Timestamp::now()));
            // Negative: no time is left.
            let left = left.unwrap_or_default();
            let over = left < wait;
            if over || !said {
                self.say(&why, over).await;
                said = true;
            }
            if over {
                return;
            }
            tokio::time::sleep(wait).await;
            wait = (wait * 2).min(LONGEST);
        }
    }

    async fn say(&self, why: &str, over: bool) {
        let then = if over {
            "it is not tried again".to_owned()
        } else {
            format!("it is tried again until {:.0}", self.until)
        };
        let event = Event {
            warning: true,
            reason: "NotificationFailed".to_owned(),
            note: format!(
                "{}: {} could not be told: {why}; {then}",
                self.target.field(),
                self.notice.event
            ),
        };
        let about: ObjectReference = self.tf.object_ref(&());
        publish(self.cx, &about, event).await;
    }

    /// Sends the message once; or why it did not arrive.
    async fn once(&self) -> Result<(), String> {
        let (url, secret) = self.target.address(self.cx, self.tf).await?;
        let url = address(&url)?;
        let origin = url.origin().ascii_serialization();
        let body = self.notice.message.to_string();
        let mut request = self
            .cx
            .notifier
            .http
            .post(url)
            .header(CONTENT_TYPE, "application/cloudevents+json");
        if let Some(secret) = secret {
            let (id, at) = (&self.notice.id, Timestamp::now().as_second());
            request = request
                .header(webhook::ID, id)
                .header(webhook::TIMESTAMP, at)
                .header(webhook::SIGNATURE, secret.sign(id, at, body.as_bytes()));
        }
        let _turn = self.cx.notifier.turns.acquire().await;
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
}

impl Target {
    /// Where it is set, for messages.
    fn field(&self) -> &'static str {
        match self {
            Self::Own(_) => "spec.notifications",
            Self::Operator(_) => "--notifications",
        }
    }

    /// Where to send, and what to sign with. Read anew for each try: Secrets change.
    async fn address(
        &self,
        cx: &Context,
        tf: &Terraform,
    ) -> Result<(String, Option<Secret>), String> {
        match self {
            Self::Operator(place) => {
                let secret = place.secret.as_ref();
                let secret = secret.and_then(|secret| Secret::read(secret.as_bytes()));
                Ok((place.url.clone(), secret))
            }
            Self::Own(own) => {
                let data = match &own.secret_ref {
                    None => None,
                    Some(secret) => Some(data(cx, tf, &secret.name).await?),
                };
                let key = |key: &str| Some(data.as_ref()?.get(key)?.0.as_slice());
                let url = key("url").map(|url| String::from_utf8_lossy(url).trim().to_owned());
                let url = url.or_else(|| own.url.clone());
                let url = url.ok_or("there is no url, and the Secret has no key url")?;
                Ok((url, key("secret").and_then(Secret::read)))
            }
        }
    }
}

type Data = std::collections::BTreeMap<String, k8s_openapi::ByteString>;

async fn data(cx: &Context, tf: &Terraform, name: &str) -> Result<Data, String> {
    let namespace = tf.namespace().unwrap_or_default();
    let api: Api<KubeSecret> = Api::namespaced(cx.client.clone(), &namespace);
    let found = call(&format!("read Secret {name}"), api.get_opt(name)).await;
    let found = found.map_err(|error| error.chain())?;
    let secret = found.ok_or_else(|| format!("Secret {name} does not exist; create it"))?;
    Ok(secret.data.unwrap_or_default())
}

/// Reads an address. What is wrong with it is told without it: it may be a secret.
fn address(url: &str) -> Result<Url, String> {
    let wrong = "the address is not of the form https://host/path";
    let url = Url::parse(url).map_err(|error| format!("{wrong}: {error}"))?;
    let usual = matches!(url.scheme(), "http" | "https") && url.has_host();
    if usual {
        Ok(url)
    } else {
        Err(wrong.to_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_read_with_what_they_want_to_know() {
        let text = r#"[{"url": "https://a.test/x", "events": ["Failed"]},
                       {"url": "http://b.test", "secret": "whsec_AAAA", "events": ["Stalled", "Failed"]}]"#;
        let places = Place::read(text).unwrap();
        let events: Vec<_> = Place::events(&places).into_iter().collect();
        assert_eq!(
            events,
            [NotificationEvent::Failed, NotificationEvent::Stalled]
        );
        let all = Place::read(r#"[{"url": "https://a.test"}]"#).unwrap();
        assert_eq!(Place::events(&all).len(), NotificationEvent::ALL.len());
    }

    #[test]
    fn what_is_no_place_is_told_without_its_address() {
        for text in [
            "",
            "{}",
            r#"[{"url": 1}]"#,
            r#"[{"url": "https://a.test", "event": []}]"#,
        ] {
            assert!(Place::read(text).is_err(), "{text}");
        }
        for url in ["file:///etc/passwd", "s3cret", "ftp://s3cret.test"] {
            let error = address(url).unwrap_err();
            assert!(
                error.contains("https://host/path") && !error.contains("s3cret"),
                "{error}"
            );
        }
    }
}
