//! Objects in the watch caches. They have only the fields that reconciles read: an object of the API server takes several kilobytes of
//! memory, even if most of its fields are empty, and the caches have about ten objects per resource.

use std::borrow::Cow;

use alustan_api::labels::Component;

use k8s_openapi::ByteString;
use k8s_openapi::api::batch::v1::{Job, JobCondition};
use k8s_openapi::api::core::v1::{
    Container, ContainerState, ContainerStatus, PersistentVolumeClaim, Pod, PodCondition, Secret,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::Resource;
use kube::core::NamespaceResourceScope;
use kube::runtime::watcher::Event;
use serde::{Deserialize, Serialize};

use crate::resource::has_component;

/// Maximum number of claims, containers and conditions of a cached object, each. Further ones are removed.
const MAX_ITEMS: usize = 30;
/// Maximum size of a reason or message in a cached object, in bytes. Longer texts are truncated. The kubelet limits the termination
/// message of a container to 4096 bytes.
const MAX_TEXT_BYTES: usize = 4096;

/// Run Job, build Job, or Job that empties a cache directory.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(from = "Job")]
pub(crate) struct CachedJob {
    pub(crate) metadata: ObjectMeta,
    /// Names of the `PersistentVolumeClaim`s that the pod mounts.
    pub(crate) claims: Vec<String>,
    /// Whether the runner is the builder (`builder.kind: Append`).
    pub(crate) builds_by_runner: bool,
    /// Condition `Complete` or `Failed` of a finished Job.
    pub(crate) finished: Option<Box<JobCondition>>,
}

/// Pod of a Job.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(from = "Pod")]
pub(crate) struct CachedPod {
    pub(crate) metadata: ObjectMeta,
    pub(crate) phase: Option<String>,
    pub(crate) reason: Option<String>,
    pub(crate) message: Option<String>,
    /// Conditions `PodScheduled` and `DisruptionTarget`.
    pub(crate) conditions: Vec<PodCondition>,
    pub(crate) init_containers: Vec<CachedContainer>,
    pub(crate) containers: Vec<CachedContainer>,
}

/// Container of a [`CachedPod`].
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct CachedContainer {
    pub(crate) name: String,
    pub(crate) state: Option<ContainerState>,
}

/// `PersistentVolumeClaim` of a cache volume.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(from = "PersistentVolumeClaim")]
pub(crate) struct CachedClaim {
    pub(crate) metadata: ObjectMeta,
    pub(crate) phase: Option<String>,
}

/// Implements [`Resource`] for the cached form of the object `$object`.
macro_rules! resource {
    ($cached:ty, $object:ty) => {
        impl Resource for $cached {
            type DynamicType = ();
            type Scope = NamespaceResourceScope;

            fn kind(dynamic: &()) -> Cow<'_, str> {
                <$object>::kind(dynamic)
            }

            fn group(dynamic: &()) -> Cow<'_, str> {
                <$object>::group(dynamic)
            }

            fn version(dynamic: &()) -> Cow<'_, str> {
                <$object as Resource>::version(dynamic)
            }

            fn plural(dynamic: &()) -> Cow<'_, str> {
                <$object>::plural(dynamic)
            }

            fn meta(&self) -> &ObjectMeta {
                &self.metadata
            }

            fn meta_mut(&mut self) -> &mut ObjectMeta {
                &mut self.metadata
            }
        }
    };
}

resource!(CachedJob, Job);
resource!(CachedPod, Pod);
resource!(CachedClaim, PersistentVolumeClaim);

impl From<Job> for CachedJob {
    fn from(job: Job) -> Self {
        let pod = job.spec.and_then(|spec| spec.template.spec);
        let pod = pod.unwrap_or_default();
        let is_builder =
            |container: &Container| container.args.as_deref() == Some(&["build".to_owned()]);
        let claims = pod.volumes.into_iter().flatten();
        let mut conditions = job
            .status
            .and_then(|status| status.conditions)
            .into_iter()
            .flatten();
        Self {
            metadata: job.metadata,
            claims: claims
                .filter_map(|volume| Some(volume.persistent_volume_claim?.claim_name))
                .take(MAX_ITEMS)
                .collect(),
            builds_by_runner: pod.containers.iter().any(is_builder),
            finished: conditions
                .find(|condition| {
                    condition.status == "True"
                        && matches!(condition.type_.as_str(), "Complete" | "Failed")
                })
                .map(|condition| {
                    Box::new(JobCondition {
                        message: None,
                        reason: condition.reason.map(bounded),
                        ..condition
                    })
                }),
        }
    }
}

impl CachedJob {
    /// Whether the Job is a finished run.
    pub(crate) fn is_finished_run(&self) -> bool {
        self.finished.is_some() && has_component(self, Component::Run)
    }
}

impl From<Pod> for CachedPod {
    fn from(pod: Pod) -> Self {
        let status = pod.status.unwrap_or_default();
        let is_read = |condition: &PodCondition| {
            matches!(
                condition.type_.as_str(),
                "PodScheduled" | "DisruptionTarget"
            )
        };
        let conditions = status.conditions.into_iter().flatten();
        Self {
            metadata: pod.metadata,
            phase: status.phase.map(bounded),
            reason: status.reason.map(bounded),
            message: status.message.map(bounded),
            conditions: conditions
                .filter(is_read)
                .take(MAX_ITEMS)
                .map(|condition| PodCondition {
                    status: bounded(condition.status),
                    reason: condition.reason.map(bounded),
                    message: condition.message.map(bounded),
                    ..condition
                })
                .collect(),
            init_containers: containers(status.init_container_statuses),
            containers: containers(status.container_statuses),
        }
    }
}

impl From<PersistentVolumeClaim> for CachedClaim {
    fn from(claim: PersistentVolumeClaim) -> Self {
        Self {
            metadata: claim.metadata,
            phase: claim.status.and_then(|status| status.phase).map(bounded),
        }
    }
}

/// Returns the fields of the container statuses that reconciles read. Nothing reads the message of a container that succeeded.
fn containers(statuses: Option<Vec<ContainerStatus>>) -> Vec<CachedContainer> {
    let statuses = statuses.into_iter().flatten().take(MAX_ITEMS);
    statuses
        .map(|status| CachedContainer {
            name: bounded(status.name),
            state: status.state.map(|mut state| {
                if let Some(waiting) = &mut state.waiting {
                    waiting.reason = waiting.reason.take().map(bounded);
                    waiting.message = waiting.message.take().map(bounded);
                }
                if let Some(end) = &mut state.terminated {
                    end.container_id = None;
                    end.reason = end.reason.take().map(bounded);
                    end.message = end
                        .message
                        .take()
                        .map(bounded)
                        .filter(|_| end.exit_code != 0);
                }
                state
            }),
        })
        .collect()
}

/// Truncates `text` to [`MAX_TEXT_BYTES`].
fn bounded(mut text: String) -> String {
    text.truncate(text.floor_char_boundary(MAX_TEXT_BYTES));
    text.shrink_to_fit();
    text
}

/// Serializes metadata and data of a Secret. Each part has its length before it: JSON would encode the data in base64, which compresses badly.
pub(super) fn secret_to_bytes(secret: &Secret) -> Vec<u8> {
    // Does not fail: all keys of maps are strings.
    let metadata = serde_json::to_vec(&secret.metadata).unwrap_or_default();
    let has_data = secret.data.as_ref().map(|_| &[][..]);
    let data = secret.data.iter().flatten();
    let data = data.flat_map(|(name, content)| [name.as_bytes(), &content.0]);
    let mut bytes = Vec::new();
    for part in std::iter::once(&*metadata).chain(has_data).chain(data) {
        bytes.extend(part.len().to_le_bytes());
        bytes.extend(part);
    }
    bytes
}

/// Returns the Secret that [`secret_to_bytes`] serialized; `None` for other bytes.
pub(super) fn secret_from_bytes(bytes: &[u8]) -> Option<Secret> {
    let mut rest = bytes;
    let mut parts = std::iter::from_fn(|| {
        let (length, after) = rest.split_first_chunk()?;
        let (part, after) = after.split_at_checked(usize::from_le_bytes(*length))?;
        rest = after;
        Some(part)
    });
    let metadata = serde_json::from_slice(parts.next()?).ok()?;
    let has_data = parts.next().is_some();
    let entries = std::iter::from_fn(|| {
        let (name, content) = (parts.next()?, parts.next()?);
        Some((
            String::from_utf8(name.to_vec()).ok()?,
            ByteString(content.to_vec()),
        ))
    });
    Some(Secret {
        metadata,
        data: has_data.then(|| entries.collect()),
        ..Secret::default()
    })
}

/// Returns `event` with the cached form of its object.
pub(crate) fn cached<K, C: From<K>>(event: Event<K>) -> Event<C> {
    match event {
        Event::Apply(object) => Event::Apply(object.into()),
        Event::Delete(object) => Event::Delete(object.into()),
        Event::Init => Event::Init,
        Event::InitApply(object) => Event::InitApply(object.into()),
        Event::InitDone => Event::InitDone,
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn secret_from_bytes_is_the_original() {
        let long = vec![7; 1 << 20];
        let entries = [("a", vec![]), ("key", vec![0, 255, 10]), ("long", long)];
        let data: BTreeMap<_, _> = entries
            .into_iter()
            .map(|(name, content)| (name.to_owned(), ByteString(content)))
            .collect();
        for data in [None, Some(BTreeMap::new()), Some(data)] {
            let mut secret = Secret {
                data,
                ..Secret::default()
            };
            secret.metadata.name = Some("web-run".to_owned());
            let bytes = secret_to_bytes(&secret);
            assert_eq!(secret_from_bytes(&bytes), Some(secret));
        }
    }

    fn pod(status: &Value) -> CachedPod {
        let pod: Pod = serde_json::from_value(json!({"metadata": {}, "status": status})).unwrap();
        pod.into()
    }

    #[test]
    fn texts_and_lists_of_a_pod_are_bounded() {
        let text = "\u{e9}".repeat(MAX_TEXT_BYTES);
        let state = json!({"waiting": {"reason": text, "message": text}});
        let end = json!({"terminated": {"exitCode": 1, "reason": text, "message": text}});
        let container = |state: &Value| {
            json!({
                "name": "a", "state": state, "image": "", "imageID": "", "ready": true, "restartCount": 0,
            })
        };
        let condition = json!({"type": "PodScheduled", "status": "False", "message": text});
        let pod = pod(&json!({
            "phase": text, "reason": text, "message": text, "conditions": vec![condition; 100],
            "containerStatuses": vec![container(&state); 100],
            "initContainerStatuses": vec![container(&end); 100],
        }));
        let lengths = [
            pod.conditions.len(),
            pod.init_containers.len(),
            pod.containers.len(),
        ];
        assert_eq!(lengths, [MAX_ITEMS; 3]);
        assert!(format!("{pod:?}").len() < 10 * MAX_ITEMS * MAX_TEXT_BYTES);
        assert_eq!(
            pod.message.map(|message| message.len()),
            Some(MAX_TEXT_BYTES)
        );
    }

    #[test]
    fn message_of_a_succeeded_container_is_removed() {
        for (exit_code, kept) in [(0, None), (1, Some("report"))] {
            let end = json!({"terminated": {"exitCode": exit_code, "message": "report"}});
            let container = json!({
                "name": "terraform", "state": end, "image": "", "imageID": "", "ready": true, "restartCount": 0,
            });
            let pod = pod(&json!({"containerStatuses": [container]}));
            let end = pod.containers[0]
                .state
                .as_ref()
                .unwrap()
                .terminated
                .as_ref()
                .unwrap();
            assert_eq!(end.message.as_deref(), kept);
        }
    }
}
