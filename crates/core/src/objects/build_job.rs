//! The Job that builds a runner image (rule 2, and the builder's contract: `docs/builder.md`).

use std::collections::BTreeMap;

use alustan_api::labels::{self, Component};
use alustan_api::{Terraform, names, paths};
use k8s_openapi::api::batch::v1::{Job, JobSpec};
use k8s_openapi::api::core::v1::{
    Capabilities, Container, LocalObjectReference, PodSpec, PodTemplateSpec, SecurityContext,
    Volume,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use super::prepare::{self, Prepare, environment, host, insecure};
use super::{cache_pvc, meta, pod};
use crate::image::{ARCHITECTURE, ImagePlan};
use crate::settings::Settings;

/// How long a finished build stays for `kubectl logs`, in seconds. The registry has its result.
const KEEP: i32 = 3_600;
/// How long a build may take, in seconds.
const DEADLINE: i64 = 3_600;
/// Where kaniko's image expects its docker configuration.
const DOCKER_CONFIG: &str = "/kaniko/.docker";

/// What a build needs besides the resource.
#[derive(Clone, Copy, Debug)]
pub struct Build<'a> {
    /// What is built.
    pub image: &'a ImagePlan,
    /// The context artifact, by digest.
    pub artifact: &'a str,
    /// Path of the module in the context.
    pub path: &'a str,
    /// The key of the registry's Secret with the docker configuration.
    pub registry_key: Option<&'a str>,
    /// The Secret that pulls the base image.
    pub pull_secret: Option<&'a str>,
}

/// The Job that builds `build`. Its name follows from the image's tag: resources with one
/// content build once.
pub fn job(tf: &Terraform, build: &Build<'_>, settings: &Settings) -> Job {
    let mut metadata = meta(tf, names::build_job(&build.image.tag), Component::Build);
    if let Some(labels) = &mut metadata.labels {
        labels.insert(labels::IMAGE_TAG.to_owned(), build.image.tag.clone());
    }
    Job {
        spec: Some(JobSpec {
            active_deadline_seconds: Some(DEADLINE),
            backoff_limit: Some(0),
            pod_replacement_policy: Some("Failed".to_owned()),
            ttl_seconds_after_finished: Some(KEEP),
            template: PodTemplateSpec {
                metadata: Some(ObjectMeta {
                    labels: metadata.labels.clone(),
                    ..ObjectMeta::default()
                }),
                spec: Some(pod_spec(tf, build, settings)),
            },
            ..JobSpec::default()
        }),
        metadata,
        status: None,
    }
}

fn pod_spec(tf: &Terraform, build: &Build<'_>, settings: &Settings) -> PodSpec {
    let prepare = Prepare {
        base: &build.image.base,
        artifact: build.artifact,
        path: build.path,
        dockerfile: &build.image.dockerfile,
        backend: build.image.backend.unwrap_or_default(),
        inject: build.image.inject,
        docker: build.registry_key.is_some(),
    };
    let mut volumes = vec![
        cache_pvc::volume(tf, tf.spec.cache.enabled),
        pod::scratch("tmp"),
    ];
    volumes.extend(prepare::volumes(&prepare));
    volumes.extend(docker_config(tf, build));
    PodSpec {
        automount_service_account_token: Some(false),
        containers: vec![builder(tf, build, settings)],
        enable_service_links: Some(false),
        image_pull_secrets: build.pull_secret.map(|name| {
            vec![LocalObjectReference {
                name: name.to_owned(),
            }]
        }),
        init_containers: Some(prepare::containers(tf, &prepare, settings)),
        node_selector: Some(BTreeMap::from([(
            "kubernetes.io/arch".to_owned(),
            ARCHITECTURE.to_owned(),
        )])),
        restart_policy: Some("Never".to_owned()),
        security_context: Some(pod::pod_security()),
        termination_grace_period_seconds: Some(5),
        volumes: Some(volumes),
        ..PodSpec::default()
    }
}

/// The registry's docker configuration, where it has any.
fn docker_config(tf: &Terraform, build: &Build<'_>) -> Option<Volume> {
    let secret = tf.spec.container_registry.secret_ref.as_ref()?;
    Some(prepare::docker_config(&secret.name, build.registry_key?))
}

/// Builds and pushes. It must be root inside its container and write to its root filesystem; it
/// has no token and no mount but the context and its credentials.
fn builder(tf: &Terraform, build: &Build<'_>, settings: &Settings) -> Container {
    let image = tf.spec.container_registry.builder.as_ref().map_or_else(
        || settings.builder_image.clone(),
        |builder| builder.image.clone(),
    );
    let mut mounts = vec![pod::mount(prepare::VOLUME, paths::BUILD)];
    mounts.extend(
        build
            .registry_key
            .map(|_| prepare::docker_mount(DOCKER_CONFIG)),
    );
    Container {
        name: "build".to_owned(),
        image: Some(image),
        image_pull_policy: Some("IfNotPresent".to_owned()),
        args: Some(arguments(tf, build, settings)),
        env: Some(environment(settings)),
        resources: Some(pod::resources("100m", "128Mi", "1Gi")),
        security_context: Some(SecurityContext {
            allow_privilege_escalation: Some(false),
            capabilities: Some(Capabilities {
                drop: Some(vec!["ALL".to_owned()]),
                add: Some(settings.builder_capabilities.clone()),
            }),
            run_as_user: Some(0),
            run_as_group: Some(0),
            ..SecurityContext::default()
        }),
        volume_mounts: Some(mounts),
        ..Container::default()
    }
}

fn arguments(tf: &Terraform, build: &Build<'_>, settings: &Settings) -> Vec<String> {
    let repository = &tf.spec.container_registry.image_name;
    let mut arguments = vec![
        format!("--dockerfile={}/Dockerfile", paths::BUILD),
        format!("--context=dir://{}/src", paths::BUILD),
        format!("--destination={repository}:{}", build.image.tag),
        "--force".to_owned(),
        "--log-format=text".to_owned(),
        "--digest-file=/dev/termination-log".to_owned(),
        "--compressed-caching=false".to_owned(),
        "--push-retry=3".to_owned(),
        "--image-download-retry=3".to_owned(),
        "--image-fs-extract-retry=1".to_owned(),
        // Layers are found again by content: a commit to the module pushes only the module.
        "--cache=true".to_owned(),
        "--cache-copy-layers=true".to_owned(),
        format!("--cache-repo={repository}"),
    ];
    arguments.extend(
        insecure(tf, settings)
            .iter()
            .map(|host| format!("--insecure-registry={host}")),
    );
    if settings.ca_bundle.is_some() {
        let host = host(repository);
        arguments.push(format!(
            "--registry-certificate={host}={}/ca.crt",
            paths::BUILD
        ));
    }
    arguments.extend(settings.builder_args.iter().cloned());
    arguments
}
