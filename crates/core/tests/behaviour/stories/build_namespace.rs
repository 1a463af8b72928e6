//! Builds in a separate build namespace (`--build-namespace`), and builds in the namespaces of the resources.

use alustan_api::labels::{self, Component};
use alustan_api::report::FailureClass;
use alustan_api::{Terraform, names};
use alustan_core::objects::prepare::COMPLETENESS_KEY;
use alustan_core::objects::secrets;
use alustan_core::observed::{AccountSeen, BuildState, InputsSeen, Waiting};
use alustan_core::settings::Settings;
use alustan_core::step::Step;
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::Secret;
use kube_core::ResourceExt;
use rstest::rstest;
use serde_json::json;

use super::executed_steps;
use super::objects::{CreatedObjects, appended, pod, rich};
use crate::fixtures::{Edit as _, settings, terraform};
use crate::world::World;

const BUILDS: &str = "builds";

fn elsewhere() -> Settings {
    Settings {
        build_namespace: Some(BUILDS.to_owned()),
        ..settings()
    }
}

/// Returns a simulated cluster with `tf` and an operator with `settings`.
fn world_of(tf: Terraform, settings: Settings) -> World {
    let mut world = World::with(tf);
    world.settings = settings;
    world
}

fn world() -> World {
    world_of(terraform(), elsewhere())
}

/// Returns a simulated cluster with an active build, and the name of the build.
fn building() -> (World, String) {
    let mut world = world();
    for _ in 0..20 {
        world.reconcile();
        if !world.builds.is_empty() {
            break;
        }
    }
    let job = world.builds.keys().next().cloned();
    (world, job.expect("a build"))
}

impl World {
    fn has_build_secret(&self, job: &str) -> bool {
        self.builds
            .get(job)
            .is_some_and(|build| build.secret.is_some())
    }
}

#[rstest]
#[case::default_namespace(None, "team", false)]
#[case::build_namespace(Some(BUILDS), BUILDS, true)]
#[case::namespace_of_the_resource(Some("team"), "team", false)]
fn builds_have_one_namespace(
    #[case] build_namespace: Option<&str>,
    #[case] wanted: &str,
    #[case] is_elsewhere: bool,
) {
    let settings = Settings {
        build_namespace: build_namespace.map(str::to_owned),
        ..settings()
    };
    let tf = terraform();
    assert_eq!(settings.build_namespace_of(&tf), wanted);
    assert_eq!(settings.builds_elsewhere(&tf), is_elsewhere);
}

#[test]
fn build_in_build_namespace_gets_a_build_secret() {
    let mut world = world();
    let mut steps = Vec::new();
    for _ in 0..8 {
        steps.extend(executed_steps(&world.reconcile()));
    }
    let job = names::build_job(&world.status().image.unwrap().tag);
    assert_eq!(
        steps,
        [
            "AddFinalizer".to_owned(),
            "CreateRecord".to_owned(),
            "PushContext".to_owned(),
            "SwapRecord Starting".to_owned(),
            format!("CreateJob {job}"),
            format!("CreateBuildSecret {job}"),
        ]
    );
    let message = world.status().message;
    let follow = format!("kubectl logs -n {BUILDS} job/{job} --all-containers");
    assert!(message.contains(&follow), "{message}");

    let secret = world.builds[&job].secret.clone().unwrap();
    assert_eq!(secret.metadata.namespace.as_deref(), Some(BUILDS));
    assert_eq!(secret.immutable, Some(true));
    assert_eq!(secret.labels()[labels::NAMESPACE], "team");
    assert_eq!(secret.labels()[labels::NAME], "web");
    assert_eq!(secret.labels()[labels::UID], "uid-of-web");
    // Operators and pods of previous versions have these values.
    assert_eq!(secret.labels()[labels::COMPONENT], "lent");
    assert_eq!(COMPLETENESS_KEY, "lent");
    let keys: Vec<_> = secret.data.unwrap().into_keys().collect();
    assert_eq!(keys, [names::DOCKER_CONFIG_KEY, COMPLETENESS_KEY]);
}

#[rstest]
#[case::kaniko(rich())]
#[case::append(appended(rich()))]
fn build_pod_uses_only_secrets_of_the_build_namespace(#[case] tf: Terraform) {
    let tf = tf.with("/containerRegistry/serviceAccountName", json!(null));
    let created = CreatedObjects::in_world(world_of(tf, elsewhere()));
    let build = created.job("alustan-build");
    assert_eq!(build.metadata.namespace.as_deref(), Some(BUILDS));
    assert_eq!(build.labels()[labels::NAMESPACE], "team");
    let spec = pod(build);
    assert_eq!(spec.service_account_name, None);
    assert_eq!(spec.automount_service_account_token, Some(false));
    let text = serde_json::to_value(&spec).unwrap();
    let mut secret_names = Vec::new();
    secrets_named(&text, &mut secret_names);
    secret_names.sort_unstable();
    secret_names.dedup();
    assert_eq!(secret_names, [build.name_any()]);
    let volumes = spec.volumes.unwrap();
    let claims = volumes
        .iter()
        .filter(|volume| volume.persistent_volume_claim.is_some());
    assert_eq!(claims.count(), 0);
    let in_own_namespace = |job: &&Job| job.metadata.namespace.as_deref() == Some("team");
    assert!(
        created.jobs.iter().any(|job| in_own_namespace(&job)),
        "runs stay where they are"
    );
}

/// Collects the names of all Secrets in a pod.
fn secrets_named(value: &serde_json::Value, secret_names: &mut Vec<String>) {
    match value {
        serde_json::Value::Object(fields) => {
            for (field, value) in fields {
                let name = match field.as_str() {
                    "secret" => value.get("secretName").or_else(|| value.get("name")),
                    "imagePullSecrets" => value.pointer("/0/name"),
                    "secretRef" | "secretKeyRef" => value.get("name"),
                    _ => None,
                };
                secret_names.extend(name.and_then(|name| Some(name.as_str()?.to_owned())));
                secrets_named(value, secret_names);
            }
        }
        serde_json::Value::Array(items) => items
            .iter()
            .for_each(|item| secrets_named(item, secret_names)),
        _ => {}
    }
}

#[rstest]
#[case::nothing(None, &[], None)]
#[case::registry(Some("{}"), &[], Some(("kubernetes.io/dockerconfigjson", vec![".dockerconfigjson", COMPLETENESS_KEY])))]
#[case::repository(None, &["ssh-key"], Some(("Opaque", vec![COMPLETENESS_KEY, "ssh-key"])))]
#[case::both(Some("{}"), &["username", "password"],
    Some(("kubernetes.io/dockerconfigjson", vec![".dockerconfigjson", COMPLETENESS_KEY, "password", "username"])))]
fn build_secret_contains_existing_credentials(
    #[case] docker: Option<&str>,
    #[case] git: &[&str],
    #[case] wanted: Option<(&str, Vec<&str>)>,
) {
    let file = |name: &&str| ((*name).to_owned(), b"x".to_vec());
    let inputs = InputsSeen {
        docker_config: docker.map(str::to_owned),
        git: git.iter().map(file).collect(),
        ..InputsSeen::default()
    };
    let secret = secrets::build_secret(&terraform(), "job", &inputs, None, &elsewhere());
    let summary = |secret: &Secret| {
        let keys = secret.data.clone().unwrap_or_default().into_keys();
        (secret.type_.clone().unwrap(), keys.collect::<Vec<_>>())
    };
    let wanted = wanted.map(|(kind, keys)| {
        (
            kind.to_owned(),
            keys.into_iter().map(str::to_owned).collect(),
        )
    });
    assert_eq!(secret.as_ref().map(summary), wanted);
}

#[rstest]
#[case::succeeded(None)]
#[case::failed(Some(FailureClass::Module))]
#[case::failed_transiently(Some(FailureClass::Transient))]
fn build_secret_is_deleted_once_the_build_ends(#[case] fail: Option<FailureClass>) {
    let (mut world, job) = building();
    assert!(world.has_build_secret(&job));
    assert!(world.advance_builds(fail));
    let steps = executed_steps(&world.reconcile());
    assert_eq!(
        steps.first(),
        Some(&format!("DeleteBuildSecret {job}")),
        "{steps:?}"
    );
    assert!(!world.has_build_secret(&job));
    let steps = executed_steps(&world.reconcile());
    assert!(
        !steps.contains(&format!("DeleteBuildSecret {job}")),
        "{steps:?}"
    );
}

#[test]
fn failed_build_is_deleted_and_next_gets_a_build_secret() {
    let (mut world, job) = building();
    world.advance_builds(Some(FailureClass::Transient));
    let mut deleted = None;
    for _ in 0..20 {
        let reconciled = world.reconcile();
        let steps = &reconciled.decision.steps;
        deleted = deleted.or_else(|| {
            steps.iter().find_map(|step| match step {
                Step::DeleteJob {
                    namespace, name, ..
                } => Some((namespace.clone(), name.clone())),
                _ => None,
            })
        });
        if deleted.is_some() && world.has_build_secret(&job) {
            break;
        }
        world.now = reconciled.decision.requeue_at.unwrap_or(world.now);
    }
    assert_eq!(deleted, Some((BUILDS.to_owned(), job.clone())));
    assert!(world.has_build_secret(&job));
    assert!(world.advance_builds(None));
    world.settle();
    assert!(world.is_ready(), "{:?}", world.status());
    assert!(!world.has_build_secret(&job));
}

#[test]
fn build_secret_is_created_after_controller_crash() {
    let (mut world, job) = building();
    world.builds.get_mut(&job).unwrap().secret = None;
    world.restart();
    for _ in 0..8 {
        world.reconcile();
    }
    assert!(world.has_build_secret(&job));
    let steps = executed_steps(&world.reconcile());
    assert!(
        steps.is_empty(),
        "the build Secret is created once: {steps:?}"
    );
}

#[test]
fn build_that_waits_for_its_build_secret_gets_it() {
    let (mut world, job) = building();
    let build = world.builds.get_mut(&job).unwrap();
    build.secret = None;
    build.state = BuildState::Active(Some(Waiting {
        reason: "FailedMount".to_owned(),
        message: format!("secret \"{job}\" not found"),
    }));
    world.restart();
    for _ in 0..8 {
        world.reconcile();
    }
    assert!(world.has_build_secret(&job));
}

#[rstest]
#[case::ssh("/gitRepo/sshKeySecret", json!({"name": "deploy", "key": "id"}))]
#[case::https("/gitRepo/credentialsSecret", json!({"name": "login"}))]
fn build_waits_for_credentials_of_the_repository(
    #[case] field: &str,
    #[case] secret: serde_json::Value,
) {
    let public = terraform().with("/containerRegistry/secretRef", json!(null));
    let mut world = world_of(public.with(field, secret), elsewhere());
    for _ in 0..20 {
        world.reconcile();
    }
    let (job, build) = world.builds.pop_first().unwrap();
    assert!(build.needs_build_secret);
    let data = build.secret.unwrap().data.unwrap();
    assert!(data.contains_key(COMPLETENESS_KEY), "{job}: {data:?}");

    let mut plain = world_of(
        terraform().with("/containerRegistry/secretRef", json!(null)),
        elsewhere(),
    );
    for _ in 0..20 {
        plain.reconcile();
    }
    let (_, build) = plain.builds.pop_first().unwrap();
    assert!(!build.needs_build_secret && build.secret.is_none());
}

#[test]
fn build_secret_of_an_outdated_build_is_deleted() {
    let (mut world, job) = building();
    world.commit(7);
    world.restart();
    for _ in 0..12 {
        world.reconcile();
    }
    assert!(world.builds.len() > 1, "the next commit is built");
    let build = world.builds.get_mut(&job).unwrap();
    assert!(build.secret.is_some());
    build.state = BuildState::Done(world.now);
    world.reconcile();
    assert!(!world.has_build_secret(&job));
}

#[test]
fn build_secret_is_deleted_with_resource_or_lost_record() {
    for lose_record in [false, true] {
        let (mut world, job) = building();
        world.advance_builds(None);
        world.delete();
        if lose_record {
            world.record = None;
        }
        let steps = executed_steps(&world.reconcile());
        assert_eq!(
            steps.first(),
            Some(&format!("DeleteBuildSecret {job}")),
            "{steps:?}"
        );
    }
}

#[test]
fn service_account_is_refused_in_build_namespace() {
    let tf = terraform().with("/containerRegistry/serviceAccountName", "pusher");
    let mut world = world_of(tf, elsewhere());
    world
        .accounts
        .insert("pusher".to_owned(), AccountSeen::Open);
    world.settle();
    assert!(world.builds.is_empty());
    let status = world.status();
    assert!(world.is_stalled(), "{status:?}");
    let reason = status
        .conditions
        .iter()
        .find(|condition| condition.type_ == "Ready")
        .unwrap();
    assert_eq!(reason.reason, "BuildServiceAccountUnsupported");
    assert!(
        status
            .message
            .contains("spec.containerRegistry.serviceAccountName"),
        "{}",
        status.message
    );
}

#[test]
fn only_builds_have_user_namespaces() {
    let remapped = Settings {
        builder_user_namespaces: true,
        ..settings()
    };
    let created = CreatedObjects::in_world(world_of(terraform(), remapped.clone()));
    for job in &created.jobs {
        let builds = job.labels()[labels::COMPONENT] == Component::Build.as_str();
        let wanted = builds.then_some(false);
        assert_eq!(pod(job).host_users, wanted, "{}", job.name_any());
    }
    let plain = CreatedObjects::of(terraform());
    assert_eq!(pod(plain.job("alustan-build")).host_users, None);
    let append = CreatedObjects::in_world(world_of(appended(terraform()), remapped));
    let build = pod(append.job("alustan-build"));
    assert_eq!(build.host_users, None, "Append has no root to remap");
}
