//! The Job that builds a runner image (rule 2; contract of the builder: `docs/builder.md`).

use std::collections::BTreeMap;
use std::time::Duration as StdDuration;

use alustan_api::labels::image::{CONTEXT as CONTEXT_LABEL, NAMESPACE as NAMESPACE_LABEL};
use alustan_api::labels::{self, Component};
use alustan_api::{BuilderKind, PodOptions, RegistryProvider, Terraform, names, paths};
use k8s_openapi::api::batch::v1::{Job, JobSpec};
use k8s_openapi::api::core::v1::{
    Capabilities, Container, EnvVar, LocalObjectReference, PodSpec, PodTemplateSpec,
    SecurityContext,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use k8s_openapi::jiff::Timestamp;

use super::prepare::{self, Prepare, environment, host, insecure};
use super::{cache_pvc, meta_of_build, pod, pod_options};
use crate::model::cache_location::CacheMount;
use crate::model::image::{DOCKER_HUB, ImagePlan, canonical, repository};
use crate::pod_policy::BUILD_GRACE;
use crate::settings::Settings;

/// Lifetime of a finished build Job, in seconds. During this time, a user can read its log with `kubectl logs`.
const TTL_AFTER_FINISHED: i32 = 3_600;
/// Deadline of a build, in seconds.
const DEADLINE: i64 = 3_600;
/// Directory in which the kaniko image expects its docker configuration.
const DOCKER_CONFIG: &str = "/kaniko/.docker";
/// File with the CA bundle of the operator in the container of kaniko.
const BUNDLE: &str = "/kaniko-ctx/ca.crt";

/// Name of the container that pushes the image.
pub const BUILD_CONTAINER: &str = "build";

/// Inputs of a build Job, in addition to the resource and the settings of the operator.
#[derive(Clone, Copy, Debug)]
pub struct Build<'a> {
    /// The image to build.
    pub image: &'a ImagePlan,
    /// OCI reference of the context in the registry, by digest.
    pub artifact: &'a str,
    /// Path of the module in the context.
    pub path: &'a str,
    /// Committer date of the revision. Builder kind `Append` sets it as creation time of the image.
    pub created: Timestamp,
    /// Name and key of the Secret with the docker configuration.
    pub docker: Option<(&'a str, &'a str)>,
    /// Name of the pull secret of the base image.
    pub pull_secret: Option<&'a str>,
    /// Name of the build Secret, which contains a copy of the credentials of the resource. Set only for a build in another namespace.
    pub build_secret: Option<&'a str>,
    /// Name of the Secret with the token of the GitHub App. Set only for a build in the namespace of the resource.
    pub token_secret: Option<&'a str>,
    /// Uid of the namespace of the resource. The image has a label with this uid.
    pub namespace_uid: &'a str,
    /// Cache volume of the pod. [`CacheMount::Scratch`] for a build in another namespace, which has no access to the claim.
    pub cache: &'a CacheMount,
    /// Options of the pod.
    pub pod: &'a PodOptions,
    /// Digest of the options of the pod; empty without options.
    pub pod_digest: &'a str,
}

/// Returns the Job of `build`. Its name is derived from the image tag, so resources with the same content share one build (rule 1).
pub fn job(tf: &Terraform, build: &Build<'_>, settings: &Settings) -> Job {
    let name = names::build_job(&build.image.tag);
    let mut metadata = meta_of_build(tf, name, Component::Build, settings);
    if let Some(labels) = &mut metadata.labels {
        labels.insert(labels::IMAGE_TAG.to_owned(), build.image.tag.clone());
        if !build.pod_digest.is_empty() {
            labels.insert(labels::POD_OPTIONS.to_owned(), build.pod_digest.to_owned());
        }
    }
    Job {
        spec: Some(JobSpec {
            active_deadline_seconds: Some(DEADLINE),
            backoff_limit: Some(0),
            pod_replacement_policy: Some("Failed".to_owned()),
            ttl_seconds_after_finished: Some(TTL_AFTER_FINISHED),
            template: pod_options::apply(
                build.pod,
                &[prepare::PREPARE_CONTAINER],
                PodTemplateSpec {
                    metadata: Some(ObjectMeta {
                        labels: Some(pod_labels(tf, &metadata)),
                        annotations: Some(pod_annotations()),
                        ..ObjectMeta::default()
                    }),
                    spec: Some(pod_spec(tf, build, settings)),
                },
            ),
            ..JobSpec::default()
        }),
        metadata,
        status: None,
    }
}

/// Returns the labels of the build pod, including the label that the workload identity of the registry provider requires.
fn pod_labels(tf: &Terraform, job: &ObjectMeta) -> BTreeMap<String, String> {
    let mut labels = job.labels.clone().unwrap_or_default();
    labels.extend(pod::without_sidecars());
    let identity = tf.spec.container_registry.provider.identity();
    labels.extend(pod::identity_labels(identity));
    labels
}

/// Annotations of the build pod. They disable sidecars, and they disable cloud tokens in the container that executes `init`. They also make
/// `kubectl logs` print the log of the builder container by default. The annotations of all clouds have the name of one container as value. No
/// value with several names would be valid for all of them: Azure separates names by semicolons, and EKS by commas.
fn pod_annotations() -> BTreeMap<String, String> {
    let without_identity = RegistryProvider::identities()
        .filter_map(|identity| identity.skip_container)
        .map(|name| (name.to_owned(), prepare::PREPARE_CONTAINER.to_owned()));
    let mut annotations: BTreeMap<_, _> = pod::without_sidecars().chain(without_identity).collect();
    annotations.insert(
        pod::DEFAULT_CONTAINER.to_owned(),
        BUILD_CONTAINER.to_owned(),
    );
    annotations
}

fn pod_spec(tf: &Terraform, build: &Build<'_>, settings: &Settings) -> PodSpec {
    let kind = settings.builder_of(tf);
    let prepare = Prepare {
        base: &build.image.base,
        artifact: build.artifact,
        path: build.path,
        dockerfile: &build.image.dockerfile,
        backend: build.image.backend.unwrap_or_default(),
        inject: build.image.inject_into_pod,
        layer: build.image.inject,
        docker: build.docker.is_some(),
        user_dockerfile: build.image.user_dockerfile.as_deref(),
        build_secret: build.build_secret,
        cache: build.cache.clone(),
        token_secret: build.token_secret,
    };
    // A build pod in another namespace cannot use the ServiceAccount of the resource.
    let in_own_namespace = !settings.builds_elsewhere(tf);
    let account = tf.spec.container_registry.service_account_name.as_ref();
    let mut volumes = vec![cache_pvc::volume(tf, build.cache), pod::scratch("tmp")];
    volumes.extend(prepare::volumes(tf, &prepare));
    volumes.extend(
        build
            .docker
            .map(|(name, key)| prepare::docker_config(name, key)),
    );
    let (init_containers, containers) = match kind {
        BuilderKind::Kaniko => (
            prepare::containers(tf, &prepare, settings),
            vec![builder(tf, build, settings)],
        ),
        BuilderKind::Append => (
            prepare::inject(tf, &prepare, settings)
                .into_iter()
                .collect(),
            vec![
                append(tf, build, &prepare, settings),
                prepare::beside_builder(tf, &prepare, settings),
            ],
        ),
    };
    let runs_as_root = kind == BuilderKind::Kaniko;
    PodSpec {
        automount_service_account_token: Some(false),
        containers,
        enable_service_links: Some(false),
        host_users: (runs_as_root && settings.builder_user_namespaces).then_some(false),
        image_pull_secrets: build.pull_secret.map(|name| {
            vec![LocalObjectReference {
                name: name.to_owned(),
            }]
        }),
        init_containers: Some(init_containers).filter(|containers| !containers.is_empty()),
        node_selector: Some(pod::node_selector(build.image.architecture)),
        restart_policy: Some("Never".to_owned()),
        security_context: Some(pod::pod_security(settings.pod_user)),
        service_account_name: account.filter(|_| in_own_namespace).cloned(),
        termination_grace_period_seconds: Some(
            build
                .pod
                .termination_grace_period_seconds
                .unwrap_or(BUILD_GRACE),
        ),
        volumes: Some(volumes),
        ..PodSpec::default()
    }
}

/// Container of builder kind `Append`. The container pulls the context and waits until container `prepare` has installed the providers. It
/// then appends layers to the base image and pushes the image. It does not run as root.
fn append(
    tf: &Terraform,
    build: &Build<'_>,
    prepare: &Prepare<'_>,
    settings: &Settings,
) -> Container {
    let target = format!("{}:{}", repository(tf), build.image.tag);
    let mut env = prepare::context(prepare);
    env.extend([
        pod::env("ALUSTAN_IMAGE", target),
        pod::env("ALUSTAN_BASE", canonical(&build.image.base)),
        pod::env("ALUSTAN_NAMESPACE_UID", build.namespace_uid),
        pod::env("ALUSTAN_CREATED", build.created.to_string()),
    ]);
    Container {
        name: BUILD_CONTAINER.to_owned(),
        args: Some(vec!["build".to_owned()]),
        ..prepare::with_registry(tf, prepare, settings, env)
    }
}

/// Container of kaniko. It runs as root and writes to its root filesystem. It has no ServiceAccount token for the API server, and mounts
/// only the prepared context and the docker configuration.
fn builder(tf: &Terraform, build: &Build<'_>, settings: &Settings) -> Container {
    let builder = tf.spec.container_registry.builder.as_ref();
    let image = builder.and_then(|spec| spec.image.clone());
    let image = image.unwrap_or_else(|| settings.builder_image.clone());
    let mut mounts = vec![pod::mount(prepare::VOLUME, paths::BUILD)];
    mounts.extend(build.docker.map(|_| prepare::docker_mount(DOCKER_CONFIG)));
    Container {
        name: BUILD_CONTAINER.to_owned(),
        image: Some(image),
        image_pull_policy: Some("IfNotPresent".to_owned()),
        args: Some(arguments(tf, build, settings)),
        env: Some(builder_environment(tf, settings)),
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

/// Returns the environment variables of the container of kaniko. Its credential helpers trust the CA bundle of the operator, in addition to
/// the certificates in the folders of the image: programs in Go read `SSL_CERT_FILE` and these folders.
fn builder_environment(tf: &Terraform, settings: &Settings) -> Vec<EnvVar> {
    let identity = tf.spec.container_registry.provider.identity();
    let certificates = settings.ca_bundle.as_ref().and(identity);
    let variable = certificates.map(|_| pod::env("SSL_CERT_FILE", BUNDLE));
    environment(settings).into_iter().chain(variable).collect()
}

fn arguments(tf: &Terraform, build: &Build<'_>, settings: &Settings) -> Vec<String> {
    let repository = repository(tf);
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
        // The tag is a digest of the content: if an immutable tag exists, a concurrent build has pushed the same image.
        "--push-ignore-immutable-tag-errors".to_owned(),
    ];
    arguments.extend(cache(tf, &repository));
    if build.image.user_dockerfile.is_some() {
        arguments.push(format!("--build-arg=ALUSTAN_BASE={}", build.image.base));
    }
    let labels = [
        (NAMESPACE_LABEL, build.namespace_uid),
        (CONTEXT_LABEL, build.artifact),
    ];
    arguments.extend(labels.map(|(name, value)| format!("--label={name}={value}")));
    arguments.extend(
        insecure(tf, settings)
            .iter()
            .map(|host| format!("--insecure-registry={host}")),
    );
    if settings.ca_bundle.is_some() {
        let trusted_hosts = trusted(&repository, &build.image.base);
        arguments
            .extend(trusted_hosts.map(|host| format!("--registry-certificate={host}={BUNDLE}")));
    }
    let identity = tf.spec.container_registry.provider.identity();
    arguments.extend(
        identity.map(|identity| format!("--credential-helpers={}", identity.kaniko_helper)),
    );
    arguments.extend(settings.builder_args.iter().cloned());
    arguments
}

/// Arguments of kaniko for its layer cache. The key of a cached layer depends on the content of the layer: after a commit to the module,
/// kaniko pushes only the layer of the module.
fn cache(tf: &Terraform, repository: &str) -> Vec<String> {
    let builder = tf.spec.container_registry.builder.as_ref();
    if builder.is_some_and(|builder| !builder.cache) {
        return vec!["--cache=false".to_owned()];
    }
    let cache_repository = builder.and_then(|builder| builder.cache_repository.as_deref());
    let cache_repository = cache_repository.map_or_else(|| repository.to_owned(), canonical);
    let lifetime = builder.and_then(|builder| builder.cache_lifetime);
    let lifetime =
        lifetime.map(|duration| format!("--cache-ttl={}s", StdDuration::from(duration).as_secs()));
    let arguments = ["--cache=true", "--cache-copy-layers=true"].map(str::to_owned);
    let arguments = arguments
        .into_iter()
        .chain([format!("--cache-repo={cache_repository}")]);
    arguments.chain(lifetime).collect()
}

/// Host names of the registries for which kaniko trusts the CA bundle of the operator. kaniko uses `index.docker.io` for Docker Hub.
fn trusted(repository: &str, base: &str) -> impl Iterator<Item = String> {
    let base = canonical(base);
    let mut hosts: Vec<String> = [repository, base.as_str()]
        .map(|image| host(image).to_owned())
        .to_vec();
    if hosts.iter().any(|host| host == DOCKER_HUB) {
        hosts.push("index.docker.io".to_owned());
    }
    hosts.sort();
    hosts.dedup();
    hosts.into_iter()
}
