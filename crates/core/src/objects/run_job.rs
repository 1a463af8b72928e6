//! The Job of a run.

use std::collections::BTreeMap;

use alustan_api::labels::{self, Component};
use alustan_api::run::RunSpec;
use alustan_api::{PodOptions, RegistryProvider, Terraform, names, paths};
use k8s_openapi::api::batch::v1::{Job, JobSpec};
use k8s_openapi::api::core::v1::{
    Container, EnvFromSource, LocalObjectReference, PodSpec, PodTemplateSpec,
    ProjectedVolumeSource, ResourceRequirements, SecretEnvSource, ServiceAccountTokenProjection,
    Volume, VolumeMount, VolumeProjection,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube_core::ResourceExt;

use super::prepare::{self, Prepare};
use super::{cache_pvc, meta, pod, pod_options};
use crate::model::cache_location::CacheMount;
use crate::pod_policy::RUN_GRACE;
use crate::settings::Settings;

/// Default memory limit of the container that executes the engine.
const MEMORY: &str = "2Gi";
/// Termination grace period of plan and drift check, which change no real objects, in seconds.
const GRACE_READING: i64 = 30;
/// Lifetime of a projected token, in seconds.
const TOKEN_SECONDS: i64 = 3600;

/// Inputs of the Job of a run, in addition to the resource and the settings of the operator.
#[derive(Clone, Copy, Debug)]
pub struct RunJobInputs<'a> {
    /// Run number.
    pub number: i64,
    /// The run that the Job executes.
    pub run: &'a RunSpec,
    /// Digest of the inputs of the run, for the annotation [`labels::INPUTS`].
    pub inputs: &'a str,
    /// HMAC-SHA256 of the run and its inputs, with the HMAC key of the resource. The runner computes the HMAC of the run and the inputs in
    /// the run record and compares it with this value. The pod template of a Job is immutable, so the runner detects a change of the run
    /// record after the creation of the Job.
    pub decision: &'a str,
    /// Path of the module in the context.
    pub path: &'a str,
    /// Names of the pull secrets of the image.
    pub pull_secrets: &'a [String],
    /// Name and key of the Secret with the docker configuration.
    pub docker: Option<(&'a str, &'a str)>,
    /// ServiceAccount of the pod; `None` for the ServiceAccount that the operator creates for the resource.
    pub account: Option<&'a str>,
    /// Name of the Secret with the token of the GitHub App, for a run that uses the base image. `None` without a token.
    pub token_secret: Option<&'a str>,
    /// Options of the pod.
    pub pod: &'a PodOptions,
}

/// Builds the Job of a run. The Job has one pod and does not retry: after a failure, the operator starts a new run.
pub fn job(tf: &Terraform, parts: &RunJobInputs<'_>, settings: &Settings) -> Job {
    let run = parts.run;
    let mut metadata = meta(tf, run.job.clone(), Component::Run);
    metadata.annotations = Some(BTreeMap::from([(
        labels::INPUTS.to_owned(),
        parts.inputs.to_owned(),
    )]));
    Job {
        spec: Some(JobSpec {
            backoff_limit: Some(0),
            pod_replacement_policy: Some("Failed".to_owned()),
            template: pod_options::apply(
                parts.pod,
                &[ENGINE_CONTAINER, prepare::PREPARE_CONTAINER],
                PodTemplateSpec {
                    metadata: Some(pod_metadata(&metadata, parts)),
                    spec: Some(pod_spec(tf, parts, settings)),
                },
            ),
            ..JobSpec::default()
        }),
        metadata,
        status: None,
    }
}

/// Name of the container that executes the engine. The run ends when this container terminates.
pub const ENGINE_CONTAINER: &str = "terraform";

/// Metadata of the pod. Annotations keep autoscalers from evicting pods that change real objects (rule 8).
fn pod_metadata(job: &ObjectMeta, parts: &RunJobInputs<'_>) -> ObjectMeta {
    let run = parts.run;
    let no_eviction = [
        ("cluster-autoscaler.kubernetes.io/safe-to-evict", "false"),
        ("karpenter.sh/do-not-disrupt", "true"),
    ];
    let mut labels = job.labels.clone().unwrap_or_default();
    labels.extend(pod::without_sidecars());
    let mut annotations: BTreeMap<_, _> = pod::without_sidecars().collect();
    annotations.insert(
        pod::DEFAULT_CONTAINER.to_owned(),
        ENGINE_CONTAINER.to_owned(),
    );
    if run.kind.changes() {
        annotations.extend(no_eviction.map(|(key, value)| (key.to_owned(), value.to_owned())));
        labels.insert(labels::CHANGES.to_owned(), "true".to_owned());
    }
    if parts.account.is_some() {
        // `spec.runner` does not name the cloud of the ServiceAccount.
        labels.extend(pod::identity_labels(RegistryProvider::identities()));
    }
    ObjectMeta {
        labels: Some(labels),
        annotations: Some(annotations),
        ..ObjectMeta::default()
    }
}

fn pod_spec(tf: &Terraform, parts: &RunJobInputs<'_>, settings: &Settings) -> PodSpec {
    let run = parts.run;
    let prepare = prepare(parts);
    let unpack = prepare.as_ref();
    let mut volumes = vec![
        cache_pvc::volume(tf, &CacheMount::of(run)),
        pod::scratch("work"),
        pod::scratch("tmp"),
    ];
    volumes.extend(
        unpack
            .into_iter()
            .flat_map(|prepare| prepare::volumes(tf, prepare)),
    );
    volumes.extend(tokens(tf));
    let docker = parts.docker.filter(|_| unpack.is_some());
    volumes.extend(docker.map(|(name, key)| prepare::docker_config(name, key)));
    let account = parts.account.map(str::to_owned);
    let grace = if run.kind.changes() {
        let option = parts.pod.termination_grace_period_seconds;
        option.unwrap_or(RUN_GRACE)
    } else {
        GRACE_READING
    };
    PodSpec {
        automount_service_account_token: Some(true),
        containers: vec![container(tf, parts, grace, unpack.is_some(), settings)],
        enable_service_links: Some(false),
        image_pull_secrets: Some(
            parts
                .pull_secrets
                .iter()
                .map(|name| LocalObjectReference { name: name.clone() })
                .collect(),
        ),
        init_containers: unpack.map(|prepare| prepare::containers(tf, prepare, settings)),
        node_selector: Some(pod::node_selector(run.architecture)),
        restart_policy: Some("Never".to_owned()),
        security_context: Some(pod::pod_security(settings.pod_user)),
        service_account_name: Some(account.unwrap_or_else(|| names::runner(&tf.name_any()))),
        termination_grace_period_seconds: Some(grace),
        volumes: Some(volumes),
        ..PodSpec::default()
    }
}

/// Name of the volume with tokens.
const TOKENS: &str = "tokens";

/// Volume with the tokens of `spec.runner.tokens`. The kubelet rotates the tokens before they expire.
fn tokens(tf: &Terraform) -> Option<Volume> {
    let tokens = tf.spec.runner.iter().flat_map(|runner| &runner.tokens);
    let sources: Vec<_> = tokens
        .map(|token| VolumeProjection {
            service_account_token: Some(ServiceAccountTokenProjection {
                audience: Some(token.audience.clone()),
                expiration_seconds: Some(TOKEN_SECONDS),
                path: token.name.clone(),
            }),
            ..VolumeProjection::default()
        })
        .collect();
    (!sources.is_empty()).then(|| Volume {
        name: TOKENS.to_owned(),
        projected: Some(ProjectedVolumeSource {
            sources: Some(sources),
            ..ProjectedVolumeSource::default()
        }),
        ..Volume::default()
    })
}

/// Returns the inputs of the init containers of a run that uses the base image; `None` for a run that uses a runner image. The pod executes
/// the runner of the operator image, because the runner in the base image may be older.
fn prepare<'a>(parts: &RunJobInputs<'a>) -> Option<Prepare<'a>> {
    let artifact = parts.run.artifact.as_deref();
    artifact
        .filter(|_| parts.run.unpack)
        .map(|artifact| Prepare {
            base: &parts.run.image,
            artifact,
            path: parts.path,
            dockerfile: "",
            backend: "",
            inject: true,
            layer: false,
            docker: parts.docker.is_some(),
            user_dockerfile: None,
            build_secret: None,
            cache: CacheMount::of(parts.run),
            token_secret: parts.token_secret,
        })
}

/// Mounts of the unpacked module and providers. Their mount paths are the paths of module and providers in a runner image.
fn unpacked() -> [VolumeMount; 2] {
    let mount = |folder: &str, path| VolumeMount {
        read_only: Some(true),
        sub_path: Some(format!("src/{folder}")),
        ..pod::mount(prepare::VOLUME, path)
    };
    [
        mount("module", paths::MODULE),
        mount("providers", paths::PROVIDERS),
    ]
}

/// Returns the default resources of the container that executes the engine.
fn engine_resources() -> ResourceRequirements {
    pod::resources("50m", "128Mi", MEMORY)
}

/// Returns the memory limit of the container that executes the engine, in a pod with `options`.
pub(crate) fn memory_limit(options: &PodOptions) -> Option<String> {
    let resources = match &options.resources {
        Some(resources) => pod_options::with_resources(engine_resources(), resources),
        None => engine_resources(),
    };
    let limit = resources.limits?.remove("memory")?;
    Some(limit.0)
}

fn container(
    tf: &Terraform,
    parts: &RunJobInputs<'_>,
    grace: i64,
    unpack: bool,
    settings: &Settings,
) -> Container {
    let run = parts.run;
    let mut env = vec![
        pod::env("ALUSTAN_CACHE_KEPT", run.has_own_volume().to_string()),
        pod::env("ALUSTAN_RECORD", names::record(&tf.name_any())),
        pod::env("ALUSTAN_RUN", parts.number.to_string()),
        pod::env("ALUSTAN_DECISION", parts.decision.to_owned()),
        pod::env("ALUSTAN_GRACE", (grace - 10).to_string()),
        pod::field("ALUSTAN_NAMESPACE", "metadata.namespace"),
        pod::field("ALUSTAN_POD_NAME", "metadata.name"),
        pod::field("ALUSTAN_POD_UID", "metadata.uid"),
    ];
    env.extend(prepare::environment(settings));
    env.extend(prepare::cli_config(settings));
    let mut mounts = vec![
        cache_pvc::mount(tf, &CacheMount::of(run)),
        pod::mount("work", paths::WORK),
        pod::mount("tmp", "/tmp"),
    ];
    if unpack {
        mounts.extend(unpacked());
        mounts.push(prepare::inject_mount());
    }
    mounts.extend(tokens(tf).map(|volume| VolumeMount {
        read_only: Some(true),
        ..pod::mount(&volume.name, paths::TOKENS)
    }));
    let env_from = tf
        .spec
        .runner
        .iter()
        .flat_map(|runner| &runner.env_from_secrets);
    Container {
        name: ENGINE_CONTAINER.to_owned(),
        image: Some(run.image.clone()),
        image_pull_policy: Some("IfNotPresent".to_owned()),
        command: Some(vec![prepare::runner(unpack)]),
        args: Some(vec!["run".to_owned()]),
        env: Some(env),
        env_from: Some(
            env_from
                .map(|secret| EnvFromSource {
                    secret_ref: Some(SecretEnvSource {
                        name: secret.name.clone(),
                        // If the Secret is deleted, destroy uses the values in the pin. Therefore, the Secret is optional for destroy.
                        optional: Some(run.destroys),
                    }),
                    ..EnvFromSource::default()
                })
                .collect(),
        ),
        resources: Some(engine_resources()),
        security_context: Some(pod::restricted(settings.pod_user)),
        volume_mounts: Some(mounts),
        ..Container::default()
    }
}
