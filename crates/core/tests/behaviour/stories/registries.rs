//! Image names, credentials and certificates of registries, and Dockerfiles in the git repository.

use std::collections::BTreeMap;

use alustan_api::Terraform;
use alustan_api::report::FailureClass;
use alustan_core::model::image::canonical;
use alustan_core::observed::AccountSeen;
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{Container, PodSpec};
use proptest::prelude::*;
use rstest::rstest;
use serde_json::json;

use super::objects::CreatedObjects;
use super::{changed_nothing, step_names};
use crate::fixtures::{Edit as _, terraform};
use crate::world::World;

const REGISTRY: &str = "/containerRegistry";

fn build_of(world: World) -> Job {
    CreatedObjects::in_world(world).job("build").clone()
}

fn build(tf: Terraform) -> Job {
    build_of(World::with(tf))
}

fn pod(job: &Job) -> PodSpec {
    job.spec.clone().unwrap().template.spec.unwrap()
}

fn container(job: &Job, name: &str) -> Option<Container> {
    let pod = pod(job);
    let init_containers = pod.init_containers.into_iter().flatten();
    init_containers
        .chain(pod.containers)
        .find(|container| container.name == name)
}

fn arguments(job: &Job) -> Vec<String> {
    container(job, "build").unwrap().args.unwrap()
}

/// Returns the value of an environment variable of container `pull`, which pulls the context.
fn environment(job: &Job, name: &str) -> Option<String> {
    let variables = container(job, "pull").unwrap().env.unwrap();
    let found_variable = variables
        .into_iter()
        .find(|variable| variable.name == name)?;
    found_variable.value
}

#[rstest]
#[case("web", "docker.io/library/web")]
#[case("team/web", "docker.io/team/web")]
#[case("docker.io/web", "docker.io/library/web")]
#[case("docker.io/team/web", "docker.io/team/web")]
#[case("index.docker.io/team/web", "docker.io/team/web")]
#[case("registry-1.docker.io/team/web", "docker.io/team/web")]
#[case("registry.hub.docker.com/team/web", "docker.io/team/web")]
#[case("localhost/web", "localhost/web")]
#[case("registry:5000/web", "registry:5000/web")]
#[case("h.example/team/web", "h.example/team/web")]
fn image_name_is_canonical_for_builder_and_context(#[case] name: &str, #[case] expected: &str) {
    assert_eq!(canonical(name), expected);
    let job = build(terraform().with("/containerRegistry/imageName", name));
    let begin = format!("--destination={expected}:");
    assert!(
        arguments(&job)
            .iter()
            .any(|argument| argument.starts_with(&begin))
    );
    let context = environment(&job, "ALUSTAN_CONTEXT").unwrap();
    assert!(
        context.starts_with(&format!("{expected}@sha256:")),
        "{context}"
    );
}

proptest! {
    #[test]
    fn canonical_image_name_is_idempotent(name in "[a-z0-9.:-]{0,12}(/[a-z0-9._-]{1,6}){0,3}") {
        let once = canonical(&name);
        prop_assert_eq!(canonical(&once), once);
    }
}

#[test]
fn builder_mounts_derived_secret_for_unsupported_type() {
    let docker = |job: &Job| {
        let volumes = pod(job).volumes.unwrap();
        let secret = volumes
            .into_iter()
            .find(|volume| volume.name == "docker")
            .unwrap()
            .secret
            .unwrap();
        (
            secret.secret_name.unwrap(),
            secret.items.unwrap()[0].key.clone(),
        )
    };
    let dockercfg = terraform().with(
        "/containerRegistry/secretRef",
        json!({"name": "old", "key": ".dockercfg"}),
    );
    let mut world = World::with(dockercfg);
    world.pull_config = Some(r#"{"auths":{}}"#.to_owned());
    let key = ".dockerconfigjson".to_owned();
    assert_eq!(
        docker(&build_of(world)),
        ("web-registry".to_owned(), key.clone())
    );
    assert_eq!(docker(&build(terraform())), ("regcred".to_owned(), key));
}

#[test]
fn ca_bundle_is_used_for_registries_of_image_and_base() {
    let trusted = |image: &str| {
        let mut world = World::with(terraform().with("/containerRegistry/imageName", image));
        world.settings.ca_bundle = Some("PEM".to_owned());
        let arguments = arguments(&build_of(world)).into_iter();
        let hosts = arguments.filter_map(|argument| {
            let rest = argument.strip_prefix("--registry-certificate=")?;
            Some(rest.strip_suffix("=/kaniko-ctx/ca.crt")?.to_owned())
        });
        hosts.collect::<Vec<_>>()
    };
    assert_eq!(trusted("registry.test/team/web"), ["registry.test"]);
    assert_eq!(
        trusted("other.test:5000/web"),
        ["other.test:5000", "registry.test"]
    );
    assert_eq!(
        trusted("team/web"),
        ["docker.io", "index.docker.io", "registry.test"]
    );
}

#[rstest]
#[case::by_default(json!(null), &["--cache=true", "--cache-copy-layers=true", "--cache-repo=registry.test/team/web"])]
#[case::other_repository(
    json!({"cacheRepository": "team/layers", "cacheLifetime": "48h"}),
    &["--cache=true", "--cache-copy-layers=true", "--cache-repo=docker.io/team/layers", "--cache-ttl=172800s"])]
#[case::disabled(json!({"cache": false, "cacheRepository": "x/y"}), &["--cache=false"])]
fn layer_cache_follows_the_spec(#[case] builder: serde_json::Value, #[case] expected: &[&str]) {
    let tf = terraform().with("/containerRegistry/builder", builder);
    let arguments = arguments(&build(tf)).into_iter();
    let cache_arguments: Vec<_> = arguments
        .filter(|argument| argument.starts_with("--cache"))
        .collect();
    assert_eq!(cache_arguments, expected);
}

#[test]
fn image_labels_name_namespace_and_context() {
    let arguments = arguments(&build(terraform()));
    let labels: Vec<_> = arguments
        .iter()
        .filter(|argument| argument.starts_with("--label="))
        .collect();
    assert!(
        labels[0].starts_with("--label=io.alustan.namespace=uid"),
        "{labels:?}"
    );
    assert!(labels[1].starts_with("--label=io.alustan.context=registry.test/team/web@sha256:"));
}

#[test]
fn immutable_tag_does_not_fail_the_build() {
    let arguments = arguments(&build(terraform()));
    assert!(arguments.contains(&"--push-ignore-immutable-tag-errors".to_owned()));
}

#[rstest]
#[case("aws", "ecr", "docker-credential-ecr-login", None)]
#[case("gcp", "google", "docker-credential-gcr", None)]
#[case("azure", "acr", "docker-credential-acr-env", Some("true"))]
fn build_pod_has_cloud_identity_of_its_service_account(
    #[case] provider: &str,
    #[case] kaniko: &str,
    #[case] helper: &str,
    #[case] label: Option<&str>,
) {
    let tf = terraform()
        .with("/containerRegistry/provider", provider)
        .with("/containerRegistry/serviceAccountName", "pusher");
    let mut world = World::with(tf);
    world.accounts = BTreeMap::from([("pusher".to_owned(), AccountSeen::Open)]);
    world.settings.ca_bundle = Some("-----BEGIN CERTIFICATE-----\n".to_owned());
    let job = build_of(world);
    assert!(arguments(&job).contains(&format!("--credential-helpers={kaniko}")));
    let builder = container(&job, "build").unwrap();
    let mut env = builder.env.iter().flatten();
    let certificates = env.find(|variable| variable.name == "SSL_CERT_FILE");
    assert_eq!(
        certificates.unwrap().value.as_deref(),
        Some("/kaniko-ctx/ca.crt")
    );
    assert_eq!(pod(&job).service_account_name.as_deref(), Some("pusher"));
    assert_eq!(pod(&job).automount_service_account_token, Some(false));
    let path = environment(&job, "ALUSTAN_CREDENTIAL_HELPER").unwrap();
    assert_eq!(path, format!("/alustan-inject/{helper}"));
    let copied = container(&job, "inject").unwrap().command.unwrap();
    assert_eq!(
        copied,
        ["cp", &format!("/usr/local/bin/{helper}"), "/alustan-inject"]
    );
    let labels = job.spec.unwrap().template.metadata.unwrap().labels.unwrap();
    let value = labels
        .get("azure.workload.identity/use")
        .map(String::as_str);
    assert_eq!(value, label);
}

#[rstest]
#[case::kaniko("Kaniko")]
#[case::append("Append")]
fn init_gets_no_identity_of_a_cloud_and_no_helper(#[case] kind: &str) {
    let tf = terraform()
        .with("/containerRegistry/provider", "aws")
        .with("/containerRegistry/builder", json!({ "kind": kind }));
    let job = build(tf);
    let prepare = serde_json::to_value(container(&job, "prepare").unwrap()).unwrap();
    assert!(!prepare.to_string().contains("alustan-inject"), "{prepare}");
    let metadata = job.spec.unwrap().template.metadata.unwrap();
    let annotations = metadata.annotations.unwrap();
    for cloud in ["azure.workload.identity", "eks.amazonaws.com"] {
        assert_eq!(annotations[&format!("{cloud}/skip-containers")], "prepare");
    }
}

#[test]
fn build_pod_without_provider_has_no_cloud_identity() {
    let job = build(terraform());
    assert!(
        !arguments(&job)
            .iter()
            .any(|argument| argument.starts_with("--credential-helpers"))
    );
    assert_eq!(pod(&job).service_account_name, None);
    assert_eq!(pod(&job).automount_service_account_token, Some(false));
    assert_eq!(environment(&job, "ALUSTAN_CREDENTIAL_HELPER"), None);
    assert!(container(&job, "inject").is_none());
}

fn with_dockerfile() -> Terraform {
    terraform().with(&format!("{REGISTRY}/dockerfile"), "docker/Dockerfile")
}

#[test]
fn dockerfile_of_repository_is_refused_by_default() {
    let mut world = World::with(with_dockerfile());
    world.settle();
    let status = world.status();
    let parts = [
        "spec.containerRegistry.dockerfile",
        "docker/Dockerfile",
        "--allow-dockerfiles",
    ];
    assert!(
        parts.iter().all(|part| status.message.contains(part)),
        "{}",
        status.message
    );
    let ready = status
        .conditions
        .iter()
        .find(|condition| condition.type_ == "Ready")
        .unwrap();
    assert_eq!(ready.reason, "DockerfileNotAllowed");
    assert!(world.builds.is_empty());

    world.settings.dockerfiles = true;
    world.settle();
    assert!(world.is_ready());
}

#[test]
fn append_with_a_dockerfile_is_refused_by_field() {
    let builder = serde_json::json!({ "kind": "Append" });
    let mut world = World::with(with_dockerfile().with(&format!("{REGISTRY}/builder"), builder));
    world.settings.dockerfiles = true;
    world.settle();
    let status = world.status();
    let fields = [
        "spec.containerRegistry.dockerfile",
        "builder.kind",
        "docker/Dockerfile",
    ];
    let message = &status.message;
    assert!(
        fields.iter().all(|field| message.contains(field)),
        "{message}"
    );
    let ready = status
        .conditions
        .iter()
        .find(|condition| condition.type_ == "Ready");
    assert_eq!(ready.unwrap().reason, "DockerfileUnsupported");
    assert!(world.builds.is_empty());
}

#[test]
fn change_of_builder_kind_ends_a_stalled_build() {
    let mut world = World::with(terraform());
    for _ in 0..40 {
        world.reconcile();
        world.advance_builds(Some(FailureClass::User));
    }
    let stalled = world.status().conditions.into_iter();
    assert!(
        stalled
            .filter(|condition| condition.type_ == "Stalled")
            .any(|condition| condition.status == "True")
    );
    let builder = serde_json::json!({ "kind": "Append" });
    world.edit(|tf| tf.with(&format!("{REGISTRY}/builder"), builder));
    world.settle();
    assert!(world.is_ready());
}

#[test]
fn change_of_builder_kind_builds_and_applies_nothing() {
    let mut world = World::applied();
    let builder = serde_json::json!({ "kind": "Append" });
    world.edit(|tf| tf.with(&format!("{REGISTRY}/builder"), builder));
    let before = world.status();
    let builds: Vec<_> = world.builds.keys().cloned().collect();
    world.settle();
    assert!(world.is_ready());
    let after = world.status();
    assert_eq!(after.runs, before.runs);
    assert_eq!(after.image, before.image);
    assert_eq!(world.builds.keys().cloned().collect::<Vec<_>>(), builds);
}

#[test]
fn destroy_succeeds_after_dockerfiles_are_forbidden() {
    let mut world = World::with(with_dockerfile());
    world.settings.dockerfiles = true;
    world.settle();
    world.settings.dockerfiles = false;
    world.delete();
    world.settle();
    assert!(world.tf.is_none());
}

#[test]
fn dockerfile_of_repository_is_built_first_on_pinned_base() {
    let mut world = World::with(with_dockerfile());
    world.settings.dockerfiles = true;
    let job = build_of(world);
    let base = "--build-arg=ALUSTAN_BASE=registry.test/base:1@sha256:base-1";
    assert!(arguments(&job).contains(&base.to_owned()));
    let before = environment(&job, "ALUSTAN_DOCKERFILE_BEFORE").unwrap();
    assert_eq!(before, "docker/Dockerfile");
    let ours = environment(&job, "ALUSTAN_DOCKERFILE").unwrap();
    // The image that the user's Dockerfile builds may lack the runner, so the build copies the runner into the image.
    assert!(
        ours.starts_with("COPY --chown=0:0 bin/ /usr/local/bin/\n"),
        "{ours}"
    );
    assert!(container(&job, "inject").is_some());
}

#[test]
fn image_tag_depends_on_the_dockerfile() {
    let tag = |tf: Terraform| {
        let mut world = World::with(tf);
        world.settings.dockerfiles = true;
        world.settle();
        world.status().image.unwrap().tag
    };
    let other_dockerfile = terraform().with(&format!("{REGISTRY}/dockerfile"), "Dockerfile");
    assert_ne!(tag(with_dockerfile()), tag(terraform()));
    assert_ne!(tag(with_dockerfile()), tag(other_dockerfile));
    assert_eq!(tag(with_dockerfile()), tag(with_dockerfile()));
}

#[rstest]
#[case("registry.test/team/web", true)]
#[case("registry.test/team", true)]
#[case("registry.test/teams/web", false)]
#[case("registry.test.example/team/web", false)]
#[case("elsewhere.test/team/web", false)]
fn operator_identity_is_used_only_for_listed_repositories(
    #[case] repository: &str,
    #[case] is_allowed: bool,
) {
    let tf = terraform()
        .with("/containerRegistry/provider", "gcp")
        .with("/containerRegistry/imageName", repository);
    let mut world = World::with(tf);
    world.settle();
    assert_eq!(world.is_ready(), is_allowed, "{:?}", world.status());
    if !is_allowed {
        let status = world.status();
        assert_eq!(status.conditions[0].reason, "RegistryIdentityNotAllowed");
        assert!(world.builds.is_empty());
    }
}

#[test]
fn due_pruning_is_a_step_of_the_next_reconcile() {
    let mut world = World::applied();
    world.pruning_is_due = true;
    let steps = step_names(&world.reconcile().decision.steps);
    assert_eq!(steps, ["PruneImages"]);
    world.pruning_is_due = false;
    assert!(changed_nothing(&world.reconcile()));
}
