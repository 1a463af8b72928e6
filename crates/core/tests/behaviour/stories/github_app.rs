//! Tokens of a GitHub App (`gitRepo.githubApp`) in pods that execute `init`.

use alustan_api::Terraform;
use alustan_api::labels::{self, Component};
use alustan_core::objects::prepare::COMPLETENESS_KEY;
use alustan_core::observed::BuildState;
use alustan_core::settings::Settings;
use k8s_openapi::api::core::v1::Secret;
use kube_core::ResourceExt;
use rstest::rstest;
use serde_json::{Value, json};

use super::objects::{CreatedObjects, pod};
use super::{executed_steps, step_names};
use crate::fixtures::{Edit as _, settings, terraform};
use crate::world::{ReconcileFaults, Stage, World};

fn with_app() -> Terraform {
    terraform().with(
        "/gitRepo/githubApp",
        json!({"secretRef": {"name": "app"}, "repositories": ["modules"]}),
    )
}

/// Reconciles until a build exists. Returns the simulated cluster and the name of the build.
fn building(settings: Settings) -> (World, String) {
    let mut world = World::with(with_app());
    world.settings = settings;
    for _ in 0..20 {
        world.reconcile();
        if let Some(job) = world.builds.keys().next().cloned() {
            return (world, job);
        }
    }
    panic!("{:?}", world.status());
}

fn keys(secret: &Secret) -> Vec<&str> {
    let data = secret.data.iter().flatten();
    data.map(|(key, _)| key.as_str()).collect()
}

#[rstest]
#[case::own_namespace(None, "team", &[COMPLETENESS_KEY, "password", "username"])]
#[case::build_namespace(Some("builds"), "builds", &[".dockerconfigjson", COMPLETENESS_KEY, "password", "username"])]
fn build_secret_has_the_token(
    #[case] build_namespace: Option<&str>,
    #[case] namespace: &str,
    #[case] wanted: &[&str],
) {
    let (mut world, job) = building(Settings {
        build_namespace: build_namespace.map(str::to_owned),
        ..settings()
    });
    let build = &world.builds[&job];
    assert!(build.needs_build_secret);
    let secret = build.secret.clone().unwrap();
    assert_eq!(secret.metadata.namespace.as_deref(), Some(namespace));
    assert_eq!(
        secret.labels()[labels::COMPONENT],
        Component::BuildSecret.as_str()
    );
    assert_eq!(keys(&secret), wanted);
    let data = secret.data.unwrap();
    assert_eq!(data["username"].0, b"x-access-token");
    assert_eq!(data["password"].0, b"ghs_token");

    world.builds.get_mut(&job).unwrap().state = BuildState::Done(world.now);
    world.reconcile();
    assert!(world.builds[&job].secret.is_none());
}

/// The private key stays in the Secret of the tenant: a pod gets only the certificate authorities of that Secret.
#[test]
fn build_pod_mounts_the_token_but_not_the_key() {
    let created = CreatedObjects::of(with_app());
    let build = created.job("build");
    let build_pod = serde_json::to_value(pod(build)).unwrap();
    let volumes = build_pod["volumes"].as_array().unwrap();
    let volume = volumes.iter().find(|volume| volume["name"] == "git");
    let sources = &volume.unwrap()["projected"]["sources"];
    let items = |source: &Value| {
        let items = source["secret"]["items"].as_array().unwrap();
        let keys = items.iter().map(|item| item["key"].as_str().unwrap());
        keys.map(str::to_owned).collect::<Vec<_>>()
    };
    assert_eq!(sources[0]["secret"]["name"], "app");
    assert_eq!(items(&sources[0]), ["ca.crt"]);
    assert_eq!(sources[0]["secret"]["optional"], true);
    assert_eq!(sources[1]["secret"]["name"], build.name_any());
    assert_eq!(items(&sources[1]), ["username", "password"]);
    assert_eq!(sources[1]["secret"]["optional"], false);
    assert!(!build_pod.to_string().contains("githubApp"), "{build_pod}");
}

#[test]
fn build_waits_for_the_token() {
    let mut world = World::with(with_app());
    for _ in 0..20 {
        world.reconcile();
        if world.memory.pushed.len() == 1 {
            break;
        }
    }
    // The repository answered, and then GitHub stops to answer.
    world.git_up = false;
    for _ in 0..4 {
        world.reconcile();
    }
    assert!(world.builds.is_empty());
    let message = world.status().message;
    assert!(
        message.contains("POST https://api.git.test: no route to host"),
        "{message}"
    );
    world.git_up = true;
    for _ in 0..4 {
        world.reconcile();
    }
    assert_eq!(world.builds.len(), 1);
}

#[test]
fn build_without_its_token_gets_it_after_a_crash() {
    let (mut world, job) = building(settings());
    world.builds.get_mut(&job).unwrap().secret = None;
    world.restart();
    for _ in 0..8 {
        world.reconcile();
    }
    assert!(world.builds[&job].secret.is_some());
    // The build of another resource gets no token.
    let build = world.builds.get_mut(&job).unwrap();
    build.secret = None;
    build
        .labels
        .insert(labels::UID.to_owned(), "uid-of-other".to_owned());
    for _ in 0..8 {
        world.reconcile();
    }
    assert!(world.builds[&job].secret.is_none());
}

/// Returns a simulated cluster in which a destroy in the base image is due.
fn destroying() -> World {
    let mut world = World::until_in(World::with(with_app()), World::is_ready);
    world.lose_images();
    world.delete().run_to(Stage::Created);
    world.reconcile_after_requeue();
    for _ in 0..10 {
        world.settle();
        let record = world.record.as_ref().unwrap();
        if record.history.lost_image.is_some() {
            return world;
        }
        world.now = world.reconcile().decision.requeue_at.unwrap();
    }
    panic!("{:?}", world.status());
}

/// Reconciles until a run starts. Returns the executed steps.
fn start(world: &mut World) -> Vec<String> {
    for _ in 0..10 {
        let reconciled = world.reconcile();
        if reconciled.started {
            return executed_steps(&reconciled);
        }
        world.now = reconciled.decision.requeue_at.unwrap_or(world.now);
    }
    panic!("{:?}", world.status());
}

#[test]
fn destroy_in_base_image_gets_the_token() {
    let mut world = destroying();
    let steps = start(&mut world);
    let job = world.jobs.keys().next_back().cloned().unwrap();
    let created = [
        format!("CreateJob {job}"),
        format!("CreateBuildSecret {job}"),
    ];
    assert!(steps.ends_with(&created), "{steps:?}");
    assert_eq!(
        keys(&world.run_tokens[&job]),
        [COMPLETENESS_KEY, "password", "username"]
    );

    // The operator stops between Job and Secret.
    world.run_tokens.clear();
    world.restart();
    for _ in 0..4 {
        world.reconcile();
    }
    assert!(world.run_tokens.contains_key(&job));
    world.run_until_converged();
    assert!(world.tf.is_none() && world.real.is_empty());
}

#[test]
fn destroy_does_not_wait_for_github() {
    let mut world = destroying();
    world.git_up = false;
    world.restart();
    let steps = start(&mut world);
    assert!(steps.last().unwrap().starts_with("CreateJob "), "{steps:?}");
    world.run_until_converged();
    assert!(world.tf.is_none() && world.real.is_empty());
}

#[test]
fn runs_with_the_runner_image_need_no_token() {
    let mut world = World::until_in(World::with(with_app()), World::is_ready);
    let (seen, _) = (
        world.observe(0),
        world.reconcile_with(ReconcileFaults::default()),
    );
    let (observation, decision) = world.decide(seen);
    assert!(observation.image.git_token.is_none());
    assert!(step_names(&decision.steps).is_empty());
}
