//! Cache volumes: none, one per resource, or a claim that several resources share.

use alustan_api::names;
use alustan_api::run::{CacheVolume, SharedCache};
use alustan_core::observed::SharedClaimSeen;
use alustan_core::settings::CacheDefault;
use k8s_openapi::api::core::v1::PodSpec;
use kube_core::ResourceExt as _;
use rstest::rstest;
use serde_json::{Value, json};

use super::objects::CreatedObjects;
use super::step_names;
use crate::fixtures::{Edit as _, terraform};
use crate::world::{PodEvent, Stage, World};

fn bound() -> SharedClaimSeen {
    SharedClaimSeen::Bound {
        uid: "uid-of-plans".to_owned(),
    }
}

/// Returns a simulated cluster with a resource that selects the shared claim `plans`.
fn sharing() -> World {
    let mut world = World::with(terraform().with("/cache/claimName", "plans"));
    world.shared_claim = bound();
    world
}

fn applied() -> World {
    let mut world = sharing();
    world.settle();
    assert!(world.is_ready(), "{:?}", world.status());
    world
}

fn change(world: &mut World, size: i32) {
    world.edit(|tf| tf.with_variable("size", size));
    world.run_to(Stage::Created);
}

fn shared_claim_of(world: &World, job: &str) -> Option<String> {
    assert!(!world.jobs[job].volume, "{job}");
    world.jobs[job].shared_claim.clone()
}

fn message(world: &World) -> String {
    world.status().message
}

fn recorded(world: &World) -> Option<SharedCache> {
    let history = &world.record.as_ref().unwrap().history;
    history.shared_cache.clone()
}

#[test]
fn pods_mount_only_their_directory_of_a_shared_claim() {
    let created = CreatedObjects::in_world(sharing());
    let directory = "web-uid-of-web";
    assert_eq!(names::cache_directory("web", "uid-of-web"), directory);
    assert_ne!(
        names::cache_directory("web", "uid-of-web"),
        names::cache_directory("web", "uid-of-other")
    );
    let (drift_checks, jobs): (Vec<_>, Vec<_>) = created
        .jobs
        .iter()
        .partition(|job| job.name_any().contains("-drift-"));
    assert!(jobs.len() >= 2 && !drift_checks.is_empty());
    for job in drift_checks {
        assert_eq!(super::claims(job), [""; 0]);
    }
    for job in jobs {
        let pod: PodSpec = job.spec.clone().unwrap().template.spec.unwrap();
        assert_eq!(super::claims(job), ["plans"]);
        assert_eq!(pod.security_context.unwrap().fs_group, Some(65532));
        let containers = pod
            .init_containers
            .into_iter()
            .flatten()
            .chain(pod.containers);
        let mounts: Vec<_> = containers
            .flat_map(|container| container.volume_mounts.unwrap_or_default())
            .filter(|mount| mount.name == "cache")
            .collect();
        assert!(!mounts.is_empty());
        for mount in mounts {
            assert_eq!(mount.sub_path.as_deref(), Some(directory));
        }
    }
    let made = created.objects.iter().map(super::object_name);
    assert!(!made.into_iter().any(|name| name.starts_with("Claim")));
    // Another pod can change the content of a shared claim: the runner keeps no state on it.
    let run = serde_json::to_value(&created.jobs[1]).unwrap();
    let env = run.pointer("/spec/template/spec/containers/0/env").unwrap();
    let kept = env
        .as_array()
        .unwrap()
        .iter()
        .find(|env| env["name"] == "ALUSTAN_CACHE_KEPT");
    assert_eq!(kept.unwrap()["value"], "false");
}

#[rstest]
#[case::none(CacheDefault::None, json!({}), false, None)]
#[case::per_resource(CacheDefault::PerResource, json!({}), true, None)]
#[case::claim(CacheDefault::Claim("plans".into()), json!({}), false, Some("plans"))]
#[case::own_volume_despite_none(CacheDefault::None, json!({"enabled": true}), true, None)]
#[case::own_volume_despite_claim(CacheDefault::Claim("plans".into()), json!({"enabled": true}), true, None)]
#[case::disabled(CacheDefault::Claim("plans".into()), json!({"enabled": false}), false, None)]
#[case::other_claim(CacheDefault::Claim("plans".into()), json!({"claimName": "mine"}), false, Some("mine"))]
fn spec_overrides_the_default_of_the_operator(
    #[case] default: CacheDefault,
    #[case] cache: Value,
    #[case] own: bool,
    #[case] shared: Option<&str>,
) {
    let mut world = World::with(terraform().with("/cache", cache));
    world.settings.cache = default;
    world.shared_claim = bound();
    world.settle();
    change(&mut world, 1);
    let job = &world.jobs["web-apply-2"];
    assert_eq!((job.volume, job.shared_claim.as_deref()), (own, shared));
}

#[test]
fn another_cache_volume_starts_no_run() {
    let mut world = World::applied();
    world.shared_claim = bound();
    world
        .edit(|tf| tf.with("/cache/claimName", "plans"))
        .settle();
    world
        .edit(|tf| tf.with("/cache", json!({"enabled": false})))
        .settle();
    world.settings.cache = CacheDefault::Claim("plans".to_owned());
    world.edit(|tf| tf.with("/cache", json!({}))).settle();
    assert!(world.is_ready());
    assert_eq!(world.run_number(), 1);
}

#[test]
fn missing_claim_is_reported_until_it_exists() {
    let mut world = sharing();
    world.shared_claim = SharedClaimSeen::Absent;
    world.settle();
    assert_eq!(world.reason(), "CacheClaimNotFound");
    assert_eq!(
        message(&world),
        "spec.cache.claimName: PersistentVolumeClaim plans does not exist in namespace team; create it, \
         or remove the field"
    );
    assert!(!world.is_stalled());
    world.shared_claim = bound();
    world.settle();
    assert!(world.is_ready());
}

#[test]
fn missing_default_claim_means_scratch_space() {
    let mut world = World::new();
    world.settings.cache = CacheDefault::Claim("plans".to_owned());
    world.settle();
    assert!(world.is_ready());
    assert_eq!(shared_claim_of(&world, "web-apply-1"), None);
}

#[test]
fn claim_without_consent_is_reported_until_it_allows_the_use() {
    let mut world = sharing();
    world.shared_claim = SharedClaimSeen::NotAllowed;
    world.settle();
    assert_eq!(world.reason(), "CacheClaimNotAllowed");
    let remedy = "kubectl annotate pvc plans -n team alustan.io/allow-cache=true";
    assert!(message(&world).ends_with(remedy), "{}", message(&world));
    assert!(!world.is_stalled());
    world.shared_claim = bound();
    world.settle();
    assert!(world.is_ready());
}

#[test]
fn claim_of_another_resource_is_refused() {
    let mut world = sharing();
    world.shared_claim = SharedClaimSeen::Owned("db".to_owned());
    world.settle();
    assert_eq!(world.reason(), "CacheClaimConflict");
    assert!(world.is_stalled());
    assert_eq!(
        message(&world),
        "spec.cache.claimName: PersistentVolumeClaim plans is the cache volume of resource db; use \
         another claim"
    );
}

#[rstest]
#[case(CacheDefault::PerResource, json!({"claimName": "plans"}))]
#[case(CacheDefault::PerResource, json!({"enabled": false}))]
#[case(CacheDefault::None, json!({}))]
#[case(CacheDefault::Claim("plans".into()), json!({}))]
fn local_state_needs_a_volume_of_the_resource(#[case] default: CacheDefault, #[case] cache: Value) {
    let tf = terraform().with("/backend", json!({"provider": "local"}));
    let mut world = World::with(tf.with("/cache", cache));
    world.settings.cache = default;
    world.shared_claim = bound();
    world.settle();
    assert_eq!(world.reason(), "CacheUnsupported");
    assert!(world.is_stalled());
    world
        .edit(|tf| tf.with("/cache", json!({"enabled": true})))
        .settle();
    assert!(world.is_ready(), "{:?}", world.status());
}

#[test]
fn removed_claim_means_scratch_space_and_is_released() {
    let mut world = applied();
    world.shared_claim = SharedClaimSeen::Terminating {
        has_finished_users: true,
    };
    world.edit(|tf| tf.with_variable("size", 1));
    let steps = step_names(&world.reconcile().decision.steps);
    assert!(
        steps.contains(&"ReleaseClaim plans".to_owned()),
        "{steps:?}"
    );
    world.run_to(Stage::Created);
    assert_eq!(shared_claim_of(&world, "web-apply-2"), None);
    world.settle();
    assert!(world.is_ready());
    world.shared_claim = SharedClaimSeen::Lost;
    change(&mut world, 2);
    assert_eq!(shared_claim_of(&world, "web-apply-3"), None);
}

/// Like a lost volume of one resource. A shared claim cannot be replaced, so it stays unused until a user requests a run, or replaces the claim.
#[test]
fn unwritable_claim_means_scratch_space_until_a_run_is_requested() {
    let mut world = applied();
    world.volume_unreachable = true;
    change(&mut world, 1);
    assert_eq!(
        shared_claim_of(&world, "web-apply-2").as_deref(),
        Some("plans")
    );
    world.run_until_converged();
    assert!(world.is_ready(), "{:?}", world.status());
    let last = format!("web-apply-{}", world.run_number());
    assert_eq!(shared_claim_of(&world, &last), None);
    assert_eq!(recorded(&world).unwrap().usability, CacheVolume::Unusable);
    world.volume_unreachable = false;
    world.shared_claim = SharedClaimSeen::Bound {
        uid: "uid-of-replacement".to_owned(),
    };
    change(&mut world, 2);
    let last = format!("web-apply-{}", world.run_number());
    assert_eq!(shared_claim_of(&world, &last).as_deref(), Some("plans"));
}

#[test]
fn directory_is_emptied_after_a_change_of_the_claim() {
    let mut world = applied();
    assert_eq!(recorded(&world).unwrap().claim, "plans");
    world.edit(|tf| {
        tf.with("/cache", json!({"claimName": "other"}))
            .with_variable("size", 1)
    });
    world.shared_claim = SharedClaimSeen::Bound {
        uid: "uid-of-other".to_owned(),
    };
    let start = world.reconcile().decision.start.unwrap();
    let steps = step_names(&start.steps);
    let emptied = steps.iter().position(|step| step == "EmptyCache plans");
    let recorded_at = steps.iter().position(|step| step.starts_with("SwapRecord"));
    assert!(emptied.unwrap() < recorded_at.unwrap(), "{steps:?}");
    world.settle();
    assert_eq!(recorded(&world).unwrap().claim, "other");
    world.edit(|tf| {
        tf.with("/cache", json!({"enabled": false}))
            .with_variable("size", 2)
    });
    let start = world.reconcile().decision.start.unwrap();
    let steps = step_names(&start.steps);
    assert!(steps.contains(&"EmptyCache other".to_owned()), "{steps:?}");
    world.settle();
    assert_eq!(recorded(&world), None);
}

#[test]
fn directory_is_emptied_after_destroy_and_orphaning() {
    for orphan in [false, true] {
        let mut world = applied();
        world.set_orphan(orphan);
        world.settle();
        world.delete();
        let mut steps = Vec::new();
        while world.tf.is_some() {
            let reconciled = world.reconcile();
            steps.extend(step_names(&reconciled.decision.steps));
            world.advance_pod(0, PodEvent::Progress);
        }
        let last = &steps[steps.len() - 3..];
        assert_eq!(last[0], "EmptyCache plans", "{steps:?}");
        assert!(
            last[1].starts_with("CleanUp") && last[2] == "RemoveFinalizer",
            "{steps:?}"
        );
    }
}

#[test]
fn destroy_needs_no_claim() {
    let mut world = applied();
    world.shared_claim = SharedClaimSeen::Absent;
    world.delete();
    world.settle();
    assert!(world.tf.is_none() && world.real.is_empty());
}
