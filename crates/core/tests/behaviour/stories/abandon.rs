//! Rule 13: the way out of a destroy that cannot succeed.

use alustan_api::ABANDON;
use alustan_api::report::FailureClass;

use super::{is_quiet, words};
use crate::fixtures::Edit as _;
use crate::world::{Act, Stage, World};

#[test]
fn abandoning_leaves_everything_and_the_state() {
    let mut world = World::applied();
    world.delete().run_to(Stage::Planning);
    world.act(0, Act::Fail(FailureClass::User));
    world.look_once();
    world.edit(|tf| tf.annotated(ABANDON, "true"));
    world.settle();
    assert!(world.tf.is_none() && !world.real.is_empty());
    assert!(world.objects.contains("web-state"));
}

#[test]
fn abandoning_ends_a_run_before_its_record_goes() {
    let mut world = World::new();
    world.run_to(Stage::Applying);
    world.delete().edit(|tf| tf.annotated(ABANDON, "true"));
    assert_eq!(
        words(&world.look_once().decision.steps),
        ["DeleteJob web-apply-1"]
    );
    assert!(
        world
            .status()
            .message
            .contains("kubectl get pods -n team -l job-name=web-apply-1")
    );
    assert!(is_quiet(&world.look_once()) && world.record.is_some());
    world.settle();
    assert!(world.tf.is_none());
}
