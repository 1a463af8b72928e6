//! Rule 13: the pin of what is applied is there, whatever is waited for.

use alustan_api::State;

use crate::fixtures::Edit as _;
use crate::world::World;

/// Rule 13: destroy needs the pin, also where a plan waits for a person for weeks.
#[test]
fn a_pin_that_is_gone_while_a_correction_waits_for_a_person_is_made_again() {
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
