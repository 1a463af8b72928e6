//! Rule 13: destroy succeeds without the runner image.

use alustan_api::run::{RunKind, RunPhase};
use alustan_core::observed::Seen;
use k8s_openapi::api::batch::v1::Job;

use super::objects::{CreatedObjects, pod};
use super::pod_security::restricted;
use super::step_names;
use crate::world::{PodEvent, ReconcileFaults, Stage, World};

/// Returns a simulated cluster with a deleted resource, after the operator has detected that the runner image is gone from the registry.
fn lost() -> World {
    let mut world = World::applied();
    world.lose_images();
    world.delete().run_to(Stage::Created);
    world.reconcile_after_requeue();
    assert_eq!(world.reason(), "ImagePullBackOff");
    for _ in 0..10 {
        world.settle();
        let memory = &world.record.as_ref().unwrap().history;
        if memory.lost_image.is_some() {
            return world;
        }
        world.now = world.reconcile().decision.requeue_at.unwrap();
    }
    panic!("{:?}", world.status());
}

/// Reconciles until the destroy run starts, which uses the base image. Returns the observation of the reconcile that starts the run.
fn started(world: &mut World) -> Seen {
    for _ in 0..10 {
        let seen = world.observe(0);
        let reconciled = world.reconcile();
        if reconciled.started {
            return seen;
        }
        world.now = reconciled.decision.requeue_at.unwrap_or(world.now);
    }
    panic!("{:?}", world.status());
}

#[test]
fn destroy_without_image_unpacks_context_in_base_image() {
    let mut world = lost();
    world.git_up = false;
    world.restart();
    started(&mut world);
    let run = world.record.clone().unwrap().record.run.unwrap();
    assert_eq!(run.kind, RunKind::Destroy);
    assert_eq!(run.image, "registry.test/base:1@sha256:base-1");
    assert!(run.unpack);
    let status = world.status();
    assert_eq!(status.image.unwrap().digest, None);
    let ready = status
        .conditions
        .iter()
        .find(|condition| condition.type_ == "ImageReady");
    assert_eq!(ready.unwrap().reason, "ImageMissing");
    world.settle();
    assert!(world.tf.is_none() && world.real.is_empty());
}

#[test]
fn destroy_without_image_completes_within_a_minute() {
    let mut world = World::applied();
    let deleted = world.now;
    world.lose_images();
    world.delete();
    world.run_until_converged();
    assert!(world.tf.is_none());
    let took = world.now.duration_since(deleted);
    assert!(took.as_secs() <= 60, "{took:?}");
}

/// Reconciles until the destroy starts. Returns whether the operator pushed the context to the registry before the destroy.
fn push_happens(world: &mut World) -> bool {
    let mut pushed = false;
    for _ in 0..10 {
        let reconciled = world.reconcile();
        pushed |= step_names(&reconciled.decision.steps).contains(&"PushContext".to_owned());
        if reconciled.started {
            return pushed;
        }
        world.now = reconciled.decision.requeue_at.unwrap_or(world.now);
    }
    panic!("{:?}", world.status());
}

#[test]
fn missing_context_is_pushed_again_from_repository() {
    let mut world = lost();
    world.artifacts.clear();
    world.restart();
    assert!(push_happens(&mut world));
    world.run_until_converged();
    assert!(world.tf.is_none() && world.real.is_empty());
}

#[test]
fn missing_context_is_pushed_with_pinned_credentials() {
    let mut world = lost();
    world.artifacts.clear();
    world.regcred = false;
    world.restart();
    assert!(push_happens(&mut world));
    world.run_until_converged();
    assert!(world.tf.is_none() && world.real.is_empty());
}

#[test]
fn context_is_pulled_if_it_cannot_be_pushed() {
    let mut world = lost();
    world.regcred = false;
    world.pin.as_mut().unwrap().docker_config = None;
    world.restart();
    assert!(!push_happens(&mut world));
    world.run_until_converged();
    assert!(world.tf.is_none() && world.real.is_empty());
}

#[test]
fn destroy_uses_applied_context_after_new_commit() {
    let mut world = lost();
    world.commit(7).restart();
    started(&mut world);
    let record = world.record.clone().unwrap().record;
    let artifact = record.run.unwrap().artifact.unwrap();
    assert_eq!(artifact, "registry.test/team/web@sha256:artifact-0");
    assert!(
        !world
            .artifacts
            .iter()
            .any(|artifact| artifact.ends_with("artifact-7"))
    );
}

#[test]
fn destroy_retries_image_if_base_image_is_missing() {
    let mut world = lost();
    started(&mut world);
    let mut record = world.record.clone().unwrap();
    record.history.lost_image = record.record.run.clone().map(|run| run.image);
    record.record.phase = RunPhase::Recorded;
    record.inputs = None;
    world.write_record(record);
    world.advance_pod(0, PodEvent::Kill);
    world.restore_images();
    started(&mut world);
    let run = world.record.clone().unwrap().record.run.unwrap();
    assert!(!run.unpack && run.image.starts_with("registry.test/team/web@"));
}

#[test]
fn controller_crash_leads_to_the_same_destroy_job() {
    let mut world = lost();
    let mut reference_world = world.clone();
    let seen = started(&mut reference_world);
    assert!(seen.record.is_some());
    world.now = reference_world.now;
    let created = reference_world.jobs.keys().last().cloned().unwrap();
    for crash in (0..20).rev() {
        let mut dying = world.clone();
        dying.reconcile_with(ReconcileFaults {
            crash: Some(crash),
            stale: None,
        });
        dying.settle();
        assert!(
            dying.tf.is_none() || dying.jobs.contains_key(&created),
            "{crash}"
        );
    }
}

fn job() -> Job {
    let mut created = CreatedObjects::by_destroying(lost());
    created
        .jobs
        .retain(|job| pod(job).init_containers.is_some());
    created.jobs.pop().expect("a Job that unpacks")
}

#[test]
fn job_that_unpacks_complies_with_restricted() {
    let none: [&str; 0] = [];
    assert_eq!(restricted(&pod(&job())), none);
}

#[test]
fn the_job_of_a_destroy_without_its_image() {
    super::objects::assert_made!(job());
}
