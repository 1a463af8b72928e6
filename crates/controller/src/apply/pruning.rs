//! Removes unused images from registries, for resources with `spec.containerRegistry.prune`.

use std::sync::Arc;
use std::time::Duration;

use alustan_api::report::Failure;
use alustan_api::run::key;
use alustan_api::{Reason, Terraform, names};
use alustan_core::objects::secrets;
use alustan_core::status::events::Event;
use alustan_registry::{Digest, Registry, Used, choose};
use alustan_source::FairSemaphore;
use k8s_openapi::api::core::v1::Secret;
use k8s_openapi::jiff::Timestamp;
use kube::{Resource, ResourceExt};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use tokio::time::timeout;

use crate::context::Context;
use crate::events::publish;
use crate::indexed_store::IndexedStore;
use crate::leader::Leader;
use crate::memory::Memory;
use crate::mirrors::Mirrors;
use crate::reconciliation::Reconciliation;
use crate::remote::answers::Pruned;
use crate::remote::failure::registry;
use crate::remote::polled_cache::SendQuery;
use crate::remote::prune_request::{PruneRequest, PruningSeen};
use crate::resource::{Guarded, Ref};
use crate::watch::trim::is_content_removed;

/// Maximum number of concurrent prunings. With 100,000 images, the inventory of a repository takes 50 MiB of memory, and the selection of
/// the images to delete takes 60 MiB.
pub(crate) const MAX_CONCURRENT_PRUNINGS: usize = 2;
/// Time limit of a pruning, without its wait for a permit. A slow registry must not delay other prunings.
const PRUNE_TIMEOUT: Duration = Duration::from_mins(20);
/// Field name for messages.
const FIELD: &str = "spec.containerRegistry.prune";

/// Starts the pruning `request` of the registry repository of `tf`, for `resource`.
pub(super) fn start(ctx: &Context, tf: &Terraform, resource: &Ref, request: &PruneRequest) {
    let pruning = Arc::new(Pruning {
        request: request.clone(),
        registry: ctx.registry.clone(),
        mirrors: ctx.mirrors.clone(),
        resources: ctx.resources.clone(),
        resource_namespace: tf.namespace().unwrap_or_default(),
        memory: ctx.memory.clone(),
        leader: ctx.leader.clone(),
        permits: ctx.prunings.clone(),
    });
    let send: SendQuery<Pruned> = Box::new(move || {
        let pruning = pruning.clone();
        Box::pin(async move { Ok(pruning.run(Timestamp::now()).await) })
    });
    let pruned = &ctx.answers.pruned;
    pruned.get(&request.key, resource, None, send);
}

/// Publishes an event about the result of a pruning, once.
pub(crate) async fn publish_result(reconciliation: &Reconciliation<'_>, pruning: &PruningSeen) {
    match pruning {
        PruningSeen::Done(query, Pruned { removed, failure }) => {
            let image_name = &reconciliation.tf.spec.container_registry.image_name;
            let note = format!("{FIELD}: removed {removed} images and contexts from {image_name}");
            if *removed > 0 {
                publish_once(reconciliation, Ok(note), query).await;
            }
            if let Some(failure) = failure {
                publish_once(reconciliation, Err(failure), "").await;
            }
        }
        PruningSeen::Impossible(failure) => publish_once(reconciliation, Err(failure), "").await,
        PruningSeen::Due(_) => {}
    }
}

async fn publish_once(
    reconciliation: &Reconciliation<'_>,
    result: Result<String, &Failure>,
    query: &str,
) {
    let Reconciliation {
        ctx, tf, resource, ..
    } = *reconciliation;
    let (warning, reason, note) = match result {
        Ok(note) => (false, Reason::Pruned.into(), note),
        Err(failure) => {
            let advice = ". Runs and builds are not affected; to disable pruning, remove the field";
            (
                true,
                failure.reason.clone(),
                format!("{}{advice}", failure.message),
            )
        }
    };
    if ctx.memory.is_new_event(resource, &reason, query) {
        let event = Event {
            warning,
            reason,
            note,
        };
        publish(&ctx.client, &ctx.instance, &tf.object_ref(&()), event).await;
    }
}

/// Pruning of a registry repository.
struct Pruning {
    request: PruneRequest,
    registry: Registry,
    mirrors: Arc<Mirrors>,
    resources: IndexedStore<Guarded>,
    /// Namespace of the resource. Only images of this namespace are removed.
    resource_namespace: String,
    memory: Arc<Memory>,
    leader: Leader,
    permits: Arc<FairSemaphore>,
}

impl Pruning {
    async fn run(&self, now: Timestamp) -> Pruned {
        let _permit = self
            .permits
            .acquire(&Arc::from(self.request.namespace_uid.as_str()))
            .await;
        let mut removed = 0;
        let result = timeout(PRUNE_TIMEOUT, self.remove(now, &mut removed)).await;
        let failure = result.unwrap_or_else(|_| Err(self.too_slow())).err();
        Pruned { removed, failure }
    }

    fn too_slow(&self) -> Failure {
        Failure::transient(
            Reason::PruneTimeout,
            format!(
                "{FIELD}: failed to remove all old images and contexts from {} within {} minutes; \
                 the next pruning, within a day, removes the remaining ones",
                self.request.name,
                PRUNE_TIMEOUT.as_secs() / 60
            ),
        )
    }

    async fn remove(&self, now: Timestamp, removed: &mut usize) -> Result<(), Failure> {
        let prune_failure = |error| registry(FIELD, &error);
        let PruneRequest {
            name,
            access,
            namespace_uid,
            policy,
            ..
        } = &self.request;
        let inventory = self.registry.inventory(name, access).await;
        let inventory = inventory.map_err(prune_failure)?;
        // The inventory of a large repository takes time, and a resource may start to use an image during that time. Therefore, collect
        // the used images after the inventory.
        let used = self.used_images()?;
        for digest in choose(&inventory, namespace_uid, &used, *policy, now) {
            // Stop if this replica no longer leads: the new leader may know of more used images.
            if !self.leader.leads() {
                break;
            }
            let deleted = self.registry.delete(name, &digest, access);
            deleted.await.map_err(prune_failure)?;
            *removed += 1;
        }
        Ok(())
    }

    /// Returns images and contexts that resources use now.
    fn used_images(&self) -> Result<Used, Failure> {
        let mut secrets = Vec::new();
        for resource in self.resources.keys() {
            let names = [names::pin(&resource.name), names::record(&resource.name)];
            secrets.extend(
                names
                    .iter()
                    .filter_map(|name| self.mirrors.known_secret(&resource.namespace, name)),
            );
        }
        collect_used(&secrets, &self.resource_namespace, &self.memory)
    }
}

/// Returns the images and contexts that resources of all namespaces use: the image of the next run, images of pins, and the image of the last
/// run. The image of the next run is included because it may look old: the creation time in the image may be the time of the commit.
///
/// # Errors
/// If a Secret in namespace `resource_namespace` cannot be read: it may refer to any image of that namespace.
fn collect_used(
    secrets_of_resources: &[Arc<Secret>],
    resource_namespace: &str,
    memory: &Memory,
) -> Result<Used, Failure> {
    let digests = memory.artifacts();
    let digests = digests
        .iter()
        .filter_map(|digest| Digest::parse(digest).ok());
    let mut used = Used {
        digests: digests.collect(),
        tags: memory.planned_images().into_iter().collect(),
    };
    for secret in secrets_of_resources {
        match images_in(secret) {
            Ok(all_images) => all_images
                .into_iter()
                .for_each(|images| images.add_to(&mut used)),
            Err(failure) if secret.metadata.namespace.as_deref() == Some(resource_namespace) => {
                return Err(failure);
            }
            // Ignore an unreadable Secret of another namespace: only images of namespace `resource_namespace` are removed.
            Err(_) => {}
        }
    }
    Ok(used)
}

/// Returns the images in a pin or a run record.
fn images_in(secret: &Secret) -> Result<Vec<UsedImages>, Failure> {
    if is_content_removed(secret) {
        return Err(unreadable(secret));
    }
    let mut images = Vec::new();
    for (name, value) in secret.data.iter().flatten() {
        match name.as_str() {
            secrets::PIN => images.push(read::<UsedImages>(secret, &value.0)?),
            key::RECORD => images.extend(read::<RunRecordImages>(secret, &value.0)?.run),
            _ => {}
        }
    }
    Ok(images)
}

/// Images in a pin or in a run. All other fields are ignored, because another version of the operator may have written them.
#[derive(Deserialize)]
struct UsedImages {
    image: String,
    tag: String,
    artifact: Option<String>,
    base: Option<String>,
    before: Option<Box<Self>>,
}

/// The part of a run record that has images.
#[derive(Deserialize)]
struct RunRecordImages {
    run: Option<UsedImages>,
}

impl UsedImages {
    fn add_to(self, used: &mut Used) {
        used.tags.insert(self.tag);
        let images = [Some(self.image), self.artifact, self.base];
        let digests = images.iter().flatten().filter_map(|image| digest_of(image));
        used.digests.extend(digests);
        if let Some(previous_images) = self.before {
            previous_images.add_to(used);
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

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use alustan_registry::{Access, ImageName, Policy};
    use axum::Router;
    use axum::extract::Path;
    use axum::routing::get;
    use k8s_openapi::ByteString;
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
    use kube::runtime::reflector::ObjectRef;
    use serde_json::{Value, json};
    use tokio::net::TcpListener;
    use tokio::sync::watch;

    use super::*;
    use crate::indexed_store::indexed_store;
    use crate::watch::trim::remove_content;

    /// Returns the pruning of a repository. A request to its registry times out after two hours.
    fn pruning(host: SocketAddr, name: &str, permits: &Arc<FairSemaphore>) -> Pruning {
        let _ = rustls::crypto::ring::default_provider().install_default();
        let options = alustan_registry::Options {
            timeout: Duration::from_hours(2),
            ..alustan_registry::Options::default()
        };
        let request = PruneRequest {
            key: String::new(),
            name: ImageName::parse(&format!("{host}/team/{name}")).unwrap(),
            access: Access {
                insecure: true,
                ..Access::default()
            },
            namespace_uid: "uid".to_owned(),
            policy: Policy {
                keep: 0,
                older_than: Duration::ZERO,
            },
        };
        Pruning {
            request,
            registry: Registry::new(options).unwrap(),
            mirrors: Arc::new(Mirrors::empty()),
            resources: indexed_store().0,
            resource_namespace: "team".to_owned(),
            memory: Arc::default(),
            leader: Leader::leading(),
            permits: permits.clone(),
        }
    }

    #[tokio::test]
    async fn repositories_are_pruned_one_at_a_time() {
        let server = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let host = server.local_addr().unwrap();
        let permits = FairSemaphore::new(1);
        for name in ["a", "b"] {
            let pruning = pruning(host, name, &permits);
            tokio::spawn(async move { pruning.run(Timestamp::now()).await });
        }
        let first = server.accept().await.unwrap();
        let second = timeout(Duration::from_millis(200), server.accept());
        assert!(second.await.is_err());
        drop(first);
        server.accept().await.unwrap();
    }

    /// Serves the registry repository `team/a` with two old images. Counts the requests to delete an image, and responds to the first one only.
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
        let permits = FairSemaphore::new(1);
        let pruning = pruning(host, "a", &permits);
        let pruning = tokio::spawn(async move { pruning.run(Timestamp::now()).await });
        deletions.wait_for(|number| *number == 2).await.unwrap();
        // From here on, only the time limit ends the wait for the second response.
        tokio::time::pause();
        let pruned = pruning.await.unwrap();
        assert_eq!(pruned.removed, 1);
        let trouble = pruned.failure.unwrap();
        assert_eq!(trouble.reason, "PruneTimeout");
        assert!(trouble.message.contains("within 20 minutes"), "{trouble:?}");
        assert!(permits.acquire(&Arc::from("other")).await.is_some());
    }

    fn digest(text: &str) -> Digest {
        Digest::of(text.as_bytes())
    }

    fn image(text: &str) -> String {
        format!("h/x@{}", digest(text))
    }

    fn secret_with(name: &str, value: &Value) -> Arc<Secret> {
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
        let secrets_in_use = [
            secret_with(secrets::PIN, &now),
            secret_with(key::RECORD, &json!({"run": pin("last"), "number": 3})),
            secret_with(key::RECORD, &json!({"number": 0})),
            secret_with("outputs", &json!("no")),
        ];
        let memory = Memory::default();
        memory.set_planned_image(&ObjectRef::new("planned"), "planned");
        memory.set_planned_image(&ObjectRef::new("of-another"), "planned-for-another");
        let used = collect_used(&secrets_in_use, "team", &memory).unwrap();
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
            let stored = [secret_with(name, &value)];
            let failure = collect_used(&stored, "team", &Memory::default()).unwrap_err();
            assert_eq!(failure.reason, "PruneSkipped");
            assert!(collect_used(&stored, "other", &Memory::default()).is_ok());
        }
        let mut without_content = Secret::clone(&secret_with(secrets::PIN, &json!({})));
        remove_content(&mut without_content);
        let without_content = Arc::new(without_content);
        assert!(collect_used(&[without_content], "team", &Memory::default()).is_err());
    }
}
