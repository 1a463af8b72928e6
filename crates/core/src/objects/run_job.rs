//! The Job of a run.

use std::collections::BTreeMap;

use alustan_api::labels::{self, Component};
use alustan_api::run::{RunKind, RunSpec};
use alustan_api::{Terraform, names, paths};
use k8s_openapi::api::batch::v1::{Job, JobSpec};
use k8s_openapi::api::core::v1::{
    Container, EnvFromSource, LocalObjectReference, PodSpec, PodTemplateSpec, SecretEnvSource,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::ResourceExt;

use super::{cache_pvc, meta, pod};
use crate::image::ARCHITECTURE;
use crate::settings::Settings;

/// How much memory a runner may take.
pub(crate) const MEMORY: &str = "2Gi";
/// How long a runner gets to end an apply in good order, in seconds (rule 8).
const GRACE_CHANGING: i64 = 600;
/// The same where nothing is changed.
const GRACE_READING: i64 = 30;

/// The Job of run `number`, with the `cache` volume or without. It runs one pod once: what is to be
/// tried again is tried by us.
pub fn job(
    tf: &Terraform,
    number: i64,
    run: &RunSpec,
    inputs_digest: &str,
    pull_secrets: &[String],
    cache: bool,
    settings: &Settings,
) -> Job {
    let mut metadata = meta(tf, run.job.clone(), Component::Run);
    metadata.annotations = Some(BTreeMap::from([(
        labels::INPUTS.to_owned(),
        inputs_digest.to_owned(),
    )]));
    Job {
        spec: Some(JobSpec {
            backoff_limit: Some(0),
            pod_replacement_policy: Some("Failed".to_owned()),
            template: PodTemplateSpec {
                metadata: Some(pod_metadata(&metadata, run)),
                spec: Some(pod_spec(tf, number, run, pull_secrets, cache, settings)),
            },
            ..JobSpec::default()
        }),
        metadata,
        status: None,
    }
}

/// Autoscalers and drains leave pods alone that may change real objects (rule 8).
fn pod_metadata(job: &ObjectMeta, run: &RunSpec) -> ObjectMeta {
    let keep = [
        ("cluster-autoscaler.kubernetes.io/safe-to-evict", "false"),
        ("karpenter.sh/do-not-disrupt", "true"),
    ];
    let mut labels = job.labels.clone().unwrap_or_default();
    if run.kind.changes() {
        labels.insert(labels::CHANGES.to_owned(), "true".to_owned());
    }
    ObjectMeta {
        labels: Some(labels),
        annotations: run.kind.changes().then(|| {
            keep.map(|(key, value)| (key.to_owned(), value.to_owned()))
                .into_iter()
                .collect()
        }),
        ..ObjectMeta::default()
    }
}

fn pod_spec(
    tf: &Terraform,
    number: i64,
    run: &RunSpec,
    pull_secrets: &[String],
    cache: bool,
    settings: &Settings,
) -> PodSpec {
    let grace = if run.kind.changes() {
        GRACE_CHANGING
    } else {
        GRACE_READING
    };
    PodSpec {
        automount_service_account_token: Some(true),
        containers: vec![container(tf, number, run, grace, cache, settings)],
        enable_service_links: Some(false),
        image_pull_secrets: Some(
            pull_secrets
                .iter()
                .map(|name| LocalObjectReference { name: name.clone() })
                .collect(),
        ),
        node_selector: Some(BTreeMap::from([(
            "kubernetes.io/arch".to_owned(),
            ARCHITECTURE.to_owned(),
        )])),
        restart_policy: Some("Never".to_owned()),
        security_context: Some(pod::pod_security()),
        service_account_name: Some(names::runner(&tf.name_any())),
        termination_grace_period_seconds: Some(grace),
        volumes: Some(vec![
            cache_pvc::volume(tf, cache),
            pod::scratch("work"),
            pod::scratch("tmp"),
        ]),
        ..PodSpec::default()
    }
}

fn container(
    tf: &Terraform,
    number: i64,
    run: &RunSpec,
    grace: i64,
    cache: bool,
    settings: &Settings,
) -> Container {
    let mut env = vec![
        pod::env("ALUSTAN_CACHE_KEPT", cache.to_string()),
        pod::env("ALUSTAN_RECORD", names::record(&tf.name_any())),
        pod::env("ALUSTAN_RUN", number.to_string()),
        pod::env("ALUSTAN_GRACE", (grace - 10).to_string()),
        pod::field("ALUSTAN_NAMESPACE", "metadata.namespace"),
        pod::field("ALUSTAN_POD_NAME", "metadata.name"),
        pod::field("ALUSTAN_POD_UID", "metadata.uid"),
    ];
    env.extend(
        settings
            .environment
            .iter()
            .map(|(name, value)| pod::env(name, value)),
    );
    env.extend(
        settings
            .ca_bundle
            .as_ref()
            .map(|text| pod::env("ALUSTAN_CA_BUNDLE", text)),
    );
    let env_from = tf
        .spec
        .runner
        .iter()
        .flat_map(|runner| &runner.env_from_secrets);
    Container {
        name: "terraform".to_owned(),
        image: Some(run.image.clone()),
        image_pull_policy: Some("IfNotPresent".to_owned()),
        command: Some(vec![paths::RUNNER.to_owned()]),
        args: Some(vec!["run".to_owned()]),
        env: Some(env),
        env_from: Some(
            env_from
                .map(|secret| EnvFromSource {
                    secret_ref: Some(SecretEnvSource {
                        name: secret.name.clone(),
                        // What is gone comes from the pin.
                        optional: Some(run.kind == RunKind::Destroy),
                    }),
                    ..EnvFromSource::default()
                })
                .collect(),
        ),
        resources: Some(pod::resources("50m", "128Mi", MEMORY)),
        security_context: Some(pod::restricted()),
        volume_mounts: Some(vec![
            pod::mount("cache", paths::CACHE),
            pod::mount("work", paths::WORK),
            pod::mount("tmp", "/tmp"),
        ]),
        ..Container::default()
    }
}
