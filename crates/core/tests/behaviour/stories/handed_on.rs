//! Rule 14: outputs are those of the last apply.

use crate::fixtures::Edit as _;
use crate::world::{Look, Stage, World};

/// What an old look hands on is not what is applied now.
#[test]
fn outputs_of_an_earlier_apply_are_not_handed_on_again() {
    let mut world = World::new();
    world.run_to(Stage::Reported);
    let then = world.earlier.len();
    world.settle();
    assert_eq!(world.handed_on["size"], "0");
    world.edit(|tf| tf.with_variable("size", 1));
    world.settle();
    assert_eq!(world.handed_on["size"], "1");
    let stale = world.earlier.len() - then;
    world.look(Look {
        stale: Some(stale),
        crash: None,
    });
    world.settle();
    assert!(world.is_ready());
    assert_eq!(world.handed_on["size"], "1", "those of the apply before");
}
