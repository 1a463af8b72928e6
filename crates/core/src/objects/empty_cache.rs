//! Job that empties the directory of a resource in a shared cache volume.

use alustan_api::labels::{self, Component};
use alustan_api::{Architecture, Terraform, names, paths};
use k8s_openapi::api::batch::v1::{Job, JobSpec};
use k8s_openapi::api::core::v1::{Container, PodSpec, PodTemplateSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube_core::ResourceExt;

use super::{cache_pvc, meta, pod, pod_options};
use crate::digest;
use crate::model::cache_location::CacheMount;
use crate::settings::Settings;

/// Time limit of the Job, in seconds. It includes the wait for a node and for the volume.
const DEADLINE: i64 = 600;
/// Lifetime of the finished Job, in seconds. Its pod refers to the claim, and Kubernetes keeps a deleted claim until then.
const TTL_AFTER_FINISHED: i32 = 60;

/// Builds the Job for the shared claim `claim`. It has no label with the uid of `tf`, so that the clean-up of `tf` does not delete it.
/// `number`: run number, so that the name differs if the resource uses the claim again later.
pub fn job(
    tf: &Terraform,
    claim: &str,
    number: i64,
    architecture: Architecture,
    settings: &Settings,
) -> Job {
    let cache = CacheMount::Shared(claim.to_owned());
    let name = names::empty_cache_job(&digest::plain(&(tf.uid(), claim, number)));
    let mut metadata = meta(tf, name, Component::EmptyCache);
    let labels = metadata.labels.get_or_insert_default();
    labels.remove(labels::UID);
    let mut pod_labels = labels.clone();
    pod_labels.extend(pod::without_sidecars());
    let container = Container {
        name: "empty-cache".to_owned(),
        image: Some(settings.operator_image.clone()),
        image_pull_policy: Some("IfNotPresent".to_owned()),
        command: Some(vec![paths::RUNNER.to_owned()]),
        args: Some(vec!["empty-cache".to_owned()]),
        resources: Some(pod::resources("10m", "16Mi", "64Mi")),
        security_context: Some(pod::restricted(settings.pod_user)),
        volume_mounts: Some(vec![cache_pvc::mount(tf, &cache)]),
        ..Container::default()
    };
    let spec = PodSpec {
        automount_service_account_token: Some(false),
        containers: vec![container],
        enable_service_links: Some(false),
        node_selector: Some(pod::node_selector(architecture)),
        restart_policy: Some("Never".to_owned()),
        security_context: Some(pod::pod_security(settings.pod_user)),
        volumes: Some(vec![cache_pvc::volume(tf, &cache)]),
        ..PodSpec::default()
    };
    let template = PodTemplateSpec {
        metadata: Some(ObjectMeta {
            labels: Some(pod_labels),
            annotations: Some(pod::without_sidecars().collect()),
            ..ObjectMeta::default()
        }),
        spec: Some(spec),
    };
    Job {
        spec: Some(JobSpec {
            active_deadline_seconds: Some(DEADLINE),
            backoff_limit: Some(0),
            pod_replacement_policy: Some("Failed".to_owned()),
            ttl_seconds_after_finished: Some(TTL_AFTER_FINISHED),
            template: pod_options::apply(&settings.pods.runs, &[], template),
            ..JobSpec::default()
        }),
        metadata,
        status: None,
    }
}
