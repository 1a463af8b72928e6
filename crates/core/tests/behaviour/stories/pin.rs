//! Rule 13: an applied resource always has a pin.

use alustan_api::State;
use alustan_api::run::Pin;
use alustan_core::model::image::pinned;

use crate::fixtures::Edit as _;
use crate::world::World;

/// Rule 13: the pin is deleted while a plan waits for approval. The operator must write it again, because destroy needs it.
#[test]
fn lost_pin_is_recreated_while_correction_waits_for_approval() {
    let mut world = World::applied();
    world.edit(|tf| tf.with("/approval/mode", "Manual"));
    world.real.drifted = true;
    world.now = world.settle().unwrap();
    world.settle();
    assert_eq!(world.status().state, State::AwaitingApproval);
    world.pin = None;
    world.settle();
    assert!(world.pin.is_some(), "nothing can be destroyed");
    assert_eq!(world.status().state, State::AwaitingApproval);
    let runs = world.run_number();
    world.settle();
    assert_eq!(world.run_number(), runs, "no hot loop");
    world.delete().settle();
    assert!(world.tf.is_none() && world.real.is_empty());
}

/// If a run has started after the last apply, the pin is that of the run, and its field `before` contains the pin of the last apply. The
/// operator must find the digest of the applied image in `before`.
#[test]
fn digest_of_applied_image_is_taken_from_pin() {
    let before = World::applied().pin.unwrap();
    let digest = before.image.split_once('@').unwrap().1.to_owned();
    let pin = Pin {
        tag: "next".to_owned(),
        image: "registry.test/team/web@sha256:next".to_owned(),
        before: Some(Box::new(before.clone())),
        ..before.clone()
    };
    assert_eq!(pinned(&before.tag, Some(&pin), None), Some(digest.as_str()));
    assert_eq!(pinned("next", Some(&pin), None), Some("sha256:next"));
    assert_eq!(pinned("another", Some(&pin), None), None);
}
