//! Removes unused images from registries, for resources with `spec.containerRegistry.prune`.

use std::sync::Arc;
use std::time::Duration;

use alustan_api::report::Failure;
use alustan_api::run::key;
use alustan_api::{Prune, Reason, Terraform, names};
use alustan_core::digest as hash;
use alustan_core::model::image::ImagePlan;
use alustan_core::objects::secrets;
use alustan_core::observed::Answer;
use alustan_core::status::events::Event;
use alustan_registry::{Access, Digest, DockerConfig, ImageName, Policy, Registry, Used, choose};
use alustan_source::Turns;
use k8s_openapi::api::core::v1::Secret;
use k8s_openapi::jiff::Timestamp;
use kube::runtime::reflector::Store;
use kube::{Resource, ResourceExt};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use tokio::time::timeout;

use crate::leader::Leader;
use crate::memory::Memory;
use crate::mirrors::Mirrors;
use crate::observe::observer::Observer;
use crate::remote::answers::Pruned;
use crate::remote::failure::registry;
use crate::remote::polled_cache::Ask;
use crate::remote::queries::{access, identity, image_name};
use crate::report::events::publish;
use crate::resource::Guarded;
use crate::watch::trim::is_content_removed;

/// Interval of prunings of a registry repository, in seconds. A new image also causes a pruning.
const EVERY: i64 = 86_400;
/// Maximum number of concurrent prunings. With 100,000 images, the inventory of a repository takes 50 MiB of memory, and the selection of
/// the images to delete takes 60 MiB.
pub(crate) const AT_ONCE: usize = 2;
/// Time limit of a pruning, without the wait for its turn. A slow registry must not delay other prunings.
const LONGEST: Duration = Duration::from_mins(20);
/// Field name for messages.
const FIELD: &str = "spec.containerRegistry.prune";

impl Observer<'_> {
    /// Prunes the registry repository of the resource, and publishes an event about each result once. The image of the resource must be
    /// pinned.
    pub(crate) async fn prune(
        &self,
        prune: &Prune,
        plan: &ImagePlan,
        namespace: &str,
        docker: Option<&DockerConfig>,
    ) {
        let (ctx, tf) = (self.ctx, self.tf);
        let question = match self.question(prune, plan, namespace, docker) {
            Ok(question) => question,
            Err(trouble) => return self.tell_pruned(&Err(trouble), "").await,
        };
        self.use_query(&question.text);
        let answer = ctx
            .answers
            .pruned
            .get(&question.text, self.resource, None, question.ask);
        if let Answer::Known(Pruned { removed, trouble }) = answer {
            let place = &tf.spec.container_registry.image_name;
            let done = format!("{FIELD}: removed {removed} images and contexts from {place}");
            if removed > 0 {
                self.tell_pruned(&Ok(done), &question.text).await;
            }
            if let Some(trouble) = trouble {
                self.tell_pruned(&Err(trouble), "").await;
            }
        }
    }

    fn question(
        &self,
        prune: &Prune,
        plan: &ImagePlan,
        namespace: &str,
        docker: Option<&DockerConfig>,
    ) -> Result<Question, Failure> {
        let (ctx, tf) = (self.ctx, self.tf);
        let name = image_name(tf)?;
        let access = access(ctx, tf, &name, docker)?;
        let policy = Policy {
            keep: usize::try_from(prune.keep).unwrap_or(usize::MAX),
            older_than: prune.older_than.into(),
        };
        let work = Work {
            registry: ctx.registry.clone(),
            mirrors: ctx.mirrors.clone(),
            resources: ctx.resources.clone(),
            home: tf.namespace().unwrap_or_default(),
            memory: ctx.memory.clone(),
            leader: ctx.leader.clone(),
            turns: ctx.prunings.clone(),
            namespace: namespace.to_owned(),
            policy,
            text: format!(
                "prune {name} of {namespace} by {policy:?} with {} on day {} as {}",
                plan.tag,
                day(tf, Timestamp::now()),
                identity(&access, docker)
            ),
            access,
            name,
        };
        let text = work.text.clone();
        let work = Arc::new(work);
        // The query has no interval. It is sent again when its key changes: the key contains the image tag and the day.
        let ask: Ask<Pruned> = Box::new(move || {
            let work = work.clone();
            Box::pin(async move { Ok(work.run(Timestamp::now()).await) })
        });
        Ok(Question { text, ask })
    }

    async fn tell_pruned(&self, what: &Result<String, Failure>, of: &str) {
        let (warning, reason, note) = match what {
            Ok(note) => (false, Reason::Pruned.into(), note.clone()),
            Err(trouble) => {
                let advice =
                    ". Runs and builds are not affected; to disable pruning, remove the field";
                (
                    true,
                    trouble.reason.clone(),
                    format!("{}{advice}", trouble.message),
                )
            }
        };
        if self.ctx.memory.is_news(self.resource, &reason, of) {
            let event = Event {
                warning,
                reason,
                note,
            };
            publish(
                &self.ctx.client,
                &self.ctx.instance,
                &self.tf.object_ref(&()),
                event,
            )
            .await;
        }
    }
}

struct Question {
    text: String,
    ask: Ask<Pruned>,
}

/// Pruning of a registry repository.
struct Work {
    registry: Registry,
    name: ImageName,
    access: Access,
    mirrors: Arc<Mirrors>,
    resources: Store<Guarded>,
    /// Namespace of the resource. Only images of this namespace are removed.
    home: String,
    memory: Arc<Memory>,
    leader: Leader,
    turns: Arc<Turns>,
    namespace: String,
    policy: Policy,
    text: String,
}

impl Work {
    async fn run(&self, now: Timestamp) -> Pruned {
        let _turn = self.turns.take(&Arc::from(self.namespace.as_str())).await;
        let mut removed = 0;
        let done = timeout(LONGEST, self.remove(now, &mut removed)).await;
        let trouble = done.unwrap_or_else(|_| Err(self.too_slow())).err();
        Pruned { removed, trouble }
    }

    fn too_slow(&self) -> Failure {
        Failure::transient(
            Reason::PruneTimeout,
            format!(
                "{FIELD}: failed to remove all old images and contexts from {} within {} minutes; \
                 the next pruning, within a day, removes the remaining ones",
                self.name,
                LONGEST.as_secs() / 60
            ),
        )
    }

    async fn remove(&self, now: Timestamp, removed: &mut usize) -> Result<(), Failure> {
        let refused = |error| registry(FIELD, &error);
        let found = self.registry.inventory(&self.name, &self.access).await;
        let found = found.map_err(refused)?;
        // The inventory of a large repository takes time, so collect the used images after it: a resource may have started to use one
        // meanwhile.
        let used = self.needed()?;
        for digest in choose(&found, &self.namespace, &used, self.policy, now) {
            // Stop if this replica no longer leads: the new leader may know of more used images.
            if !self.leader.leads() {
                break;
            }
            let deleted = self.registry.delete(&self.name, &digest, &self.access);
            deleted.await.map_err(refused)?;
            *removed += 1;
        }
        Ok(())
    }

    /// Returns images and contexts that resources use now.
    fn needed(&self) -> Result<Used, Failure> {
        let mut kept = Vec::new();
        for resource in self.resources.state() {
            let namespace = resource.namespace().unwrap_or_default();
            let name = resource.name_any();
            let names = [names::pin(&name), names::record(&name)];
            kept.extend(
                names
                    .iter()
                    .filter_map(|name| self.mirrors.known_secret(&namespace, name)),
            );
        }
        used(&kept, &self.home, &self.memory)
    }
}

/// Returns images and contexts that any resource in any namespace uses: planned ones, pinned ones, and those of the last run. A planned
/// image counts even before its first run, because it may already be old: its age is that of its commit.
///
/// # Errors
/// If a Secret in namespace `home` cannot be read: it may refer to any image of that namespace.
fn used(kept: &[Arc<Secret>], home: &str, memory: &Memory) -> Result<Used, Failure> {
    let contexts = memory.artifacts();
    let contexts = contexts
        .iter()
        .filter_map(|digest| Digest::parse(digest).ok());
    let mut used = Used {
        digests: contexts.collect(),
        tags: memory.planned().into_iter().collect(),
    };
    for secret in kept {
        match needs(secret) {
            Ok(all) => all.into_iter().for_each(|needs| needs.add_to(&mut used)),
            Err(failure) if secret.metadata.namespace.as_deref() == Some(home) => {
                return Err(failure);
            }
            // Only images of namespace `home` are removed.
            Err(_) => {}
        }
    }
    Ok(used)
}

/// Returns the images in a pin or a run record.
fn needs(secret: &Secret) -> Result<Vec<Needs>, Failure> {
    if is_content_removed(secret) {
        return Err(unreadable(secret));
    }
    let mut all = Vec::new();
    for (name, value) in secret.data.iter().flatten() {
        match name.as_str() {
            secrets::PIN => all.push(read::<Needs>(secret, &value.0)?),
            key::RECORD => all.extend(read::<Ran>(secret, &value.0)?.run),
            _ => {}
        }
    }
    Ok(all)
}

/// Images in a pin or in a run. Other fields are ignored, because another version may have written them.
#[derive(Deserialize)]
struct Needs {
    image: String,
    tag: String,
    artifact: Option<String>,
    base: Option<String>,
    before: Option<Box<Self>>,
}

/// The part of a run record that has images.
#[derive(Deserialize)]
struct Ran {
    run: Option<Needs>,
}

impl Needs {
    fn add_to(self, used: &mut Used) {
        used.tags.insert(self.tag);
        let images = [Some(self.image), self.artifact, self.base];
        let digests = images.iter().flatten().filter_map(|it| digest_of(it));
        used.digests.extend(digests);
        if let Some(before) = self.before {
            before.add_to(used);
        }
    }
}

fn digest_of(image: &str) -> Option<Digest> {
    Digest::parse(image.split_once('@')?.1).ok()
}

fn read<T: DeserializeOwned>(secret: &Secret, bytes: &[u8]) -> Result<T, Failure> {
    serde_json::from_slice(bytes).map_err(|_| unreadable(secret))
}

fn unreadable(secret: &Secret) -> Failure {
    Failure::transient(
        Reason::PruneSkipped,
        format!(
            "{FIELD}: skipped pruning in namespace {}: failed to read Secret {}; restore the \
             Secret, or run the version of the operator that wrote it; do not delete it",
            secret.namespace().unwrap_or_default(),
            secret.name_any()
        ),
    )
}

/// Returns the number of the current day of the resource. Days of different resources begin at different times.
fn day(tf: &Terraform, now: Timestamp) -> i64 {
    let whole = Duration::from_secs(EVERY.unsigned_abs());
    let offset = whole.mul_f64(hash::fraction(&tf.uid().unwrap_or_default()));
    let offset = i64::try_from(offset.as_secs()).unwrap_or_default();
    (now.as_second() + offset).div_euclid(EVERY)
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use axum::Router;
    use axum::extract::Path;
    use axum::routing::get;
    use k8s_openapi::ByteString;
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
    use kube::runtime::reflector::{self, ObjectRef};
    use serde_json::{Value, json};
    use tokio::net::TcpListener;
    use tokio::sync::watch;

    use super::*;
    use crate::watch::trim::remove_content;

    /// Returns the pruning of a repository. A request to its registry times out after two hours.
    fn work(host: SocketAddr, name: &str, turns: &Arc<Turns>) -> Work {
        let _ = rustls::crypto::ring::default_provider().install_default();
        let options = alustan_registry::Options {
            timeout: Duration::from_hours(2),
            ..alustan_registry::Options::default()
        };
        Work {
            registry: Registry::new(options).unwrap(),
            name: ImageName::parse(&format!("{host}/team/{name}")).unwrap(),
            access: Access {
                insecure: true,
                ..Access::default()
            },
            mirrors: Arc::new(Mirrors::empty()),
            resources: reflector::store().0,
            home: "team".to_owned(),
            memory: Arc::default(),
            leader: Leader::leading(),
            turns: turns.clone(),
            namespace: "uid".to_owned(),
            policy: Policy {
                keep: 0,
                older_than: Duration::ZERO,
            },
            text: String::new(),
        }
    }

    #[tokio::test]
    async fn repositories_are_pruned_one_at_a_time() {
        let server = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let host = server.local_addr().unwrap();
        let turns = Turns::new(1);
        for name in ["a", "b"] {
            let work = work(host, name, &turns);
            tokio::spawn(async move { work.run(Timestamp::now()).await });
        }
        let first = server.accept().await.unwrap();
        let second = timeout(Duration::from_millis(200), server.accept());
        assert!(second.await.is_err());
        drop(first);
        server.accept().await.unwrap();
    }

    /// Serves the repository `team/a` with two old images. Counts deletions and answers the first one only.
    async fn serve_slow_deletions() -> (SocketAddr, watch::Receiver<usize>) {
        let (deletions, counted) = watch::channel(0_usize);
        let tags = json!({"tags": ["a".repeat(40), "b".repeat(40)]}).to_string();
        let config = json!({
            "created": "2020-01-02T03:04:05Z",
            "config": {"Labels": {"io.alustan.namespace": "uid"}},
        })
        .to_string();
        let manifest = |Path(tag): Path<String>| async move {
            let config = Digest::of(b"config");
            json!({"tag": tag, "config": {"digest": config.as_str()}}).to_string()
        };
        let delete = move || {
            let deletions = deletions.clone();
            async move {
                deletions.send_modify(|number| *number += 1);
                let is_first = *deletions.borrow() == 1;
                if !is_first {
                    std::future::pending::<()>().await;
                }
            }
        };
        let router = Router::new()
            .route("/v2/", get("{}"))
            .route("/v2/team/a/tags/list", get(tags))
            .route(
                "/v2/team/a/manifests/{reference}",
                get(manifest).delete(delete),
            )
            .route("/v2/team/a/blobs/{digest}", get(config));
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let host = listener.local_addr().unwrap();
        tokio::spawn(async move { axum::serve(listener, router).await });
        (host, counted)
    }

    #[tokio::test]
    async fn slow_deletions_end_after_20_minutes() {
        let (host, mut deletions) = serve_slow_deletions().await;
        let turns = Turns::new(1);
        let work = work(host, "a", &turns);
        let pruning = tokio::spawn(async move { work.run(Timestamp::now()).await });
        deletions.wait_for(|number| *number == 2).await.unwrap();
        // From here on, only the time limit ends the wait for the second response.
        tokio::time::pause();
        let pruned = pruning.await.unwrap();
        assert_eq!(pruned.removed, 1);
        let trouble = pruned.trouble.unwrap();
        assert_eq!(trouble.reason, "PruneTimeout");
        assert!(trouble.message.contains("within 20 minutes"), "{trouble:?}");
        assert!(turns.take(&Arc::from("other")).await.is_some());
    }

    fn digest(text: &str) -> Digest {
        Digest::of(text.as_bytes())
    }

    fn image(text: &str) -> String {
        format!("h/x@{}", digest(text))
    }

    fn kept(name: &str, value: &Value) -> Arc<Secret> {
        Arc::new(Secret {
            metadata: ObjectMeta {
                namespace: Some("team".to_owned()),
                resource_version: Some("1".to_owned()),
                ..ObjectMeta::default()
            },
            data: Some([(name.to_owned(), ByteString(value.to_string().into_bytes()))].into()),
            ..Secret::default()
        })
    }

    #[test]
    fn images_of_pins_and_runs_are_in_use() {
        let pin = |name: &str| {
            json!({
                "number": 1, "image": image(name), "tag": format!("tag-{name}"),
                "artifact": image(&format!("{name} context")),
            })
        };
        let mut now = pin("now");
        now["before"] = pin("before");
        let all = [
            kept(secrets::PIN, &now),
            kept(key::RECORD, &json!({"run": pin("last"), "number": 3})),
            kept(key::RECORD, &json!({"number": 0})),
            kept("outputs", &json!("no")),
        ];
        let memory = Memory::default();
        memory.set_planned(&ObjectRef::new("planned"), "planned");
        memory.set_planned(&ObjectRef::new("of-another"), "planned-for-another");
        let used = used(&all, "team", &memory).unwrap();
        let names = ["now", "before", "last"];
        let digests = names
            .into_iter()
            .flat_map(|name| [name.to_owned(), format!("{name} context")]);
        assert_eq!(used.digests, digests.map(|name| digest(&name)).collect());
        let tags = [
            "planned",
            "planned-for-another",
            "tag-now",
            "tag-before",
            "tag-last",
        ]
        .map(str::to_owned);
        assert_eq!(used.tags, tags.into());
    }

    #[test]
    fn unreadable_secret_prevents_pruning() {
        for (name, value) in [(secrets::PIN, json!({})), (key::RECORD, json!({"run": {}}))] {
            let kept = [kept(name, &value)];
            let failure = used(&kept, "team", &Memory::default()).unwrap_err();
            assert_eq!(failure.reason, "PruneSkipped");
            assert!(used(&kept, "other", &Memory::default()).is_ok());
        }
        let mut left_out = Secret::clone(&kept(secrets::PIN, &json!({})));
        remove_content(&mut left_out);
        assert!(used(&[Arc::new(left_out)], "team", &Memory::default()).is_err());
    }

    #[test]
    fn pruning_runs_once_a_day_at_an_offset_per_resource() {
        let tf: Terraform = serde_json::from_value(json!({
            "apiVersion": "alustan.io/v1alpha1", "kind": "Terraform", "metadata": {"name": "a", "uid": "u"},
            "spec": {"gitRepo": {"url": "https://h/r"}, "containerRegistry": {"imageName": "h/x"}},
        }))
        .unwrap();
        let at = |second| day(&tf, Timestamp::from_second(second).unwrap());
        assert_eq!(at(1_000_000 + EVERY), at(1_000_000) + 1);
        let days: std::collections::BTreeSet<i64> = (0..24).map(|hour| at(hour * 3600)).collect();
        assert_eq!(days.len(), 2);
    }
}
