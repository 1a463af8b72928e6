//! State slots: the Secrets of a `managed` state (rule 12).

use alustan_api::names;
use alustan_api::run::{MAX_SLOTS, ManagedState, RunRecord};

/// Minimum number of state slots in addition to the pointer Secret, from the second run on. The pointer Secret is also a slot. So the
/// current, the previous and the next version of a small state each have a slot.
const SLOTS: u32 = 2;

/// Returns the number of state slots for the next run after `record`. The first run has only the pointer Secret. If the state does not fit
/// in the pointer Secret, the run requests slots in its report.
pub fn slots(record: &RunRecord) -> u32 {
    if record.state_made {
        record.slots_wanted.max(SLOTS)
    } else {
        record.slots_wanted
    }
}

/// Returns the Secrets of the managed state of resource `name`, with at most [`MAX_SLOTS`] slots.
pub fn managed_state(name: &str, slots: u32) -> ManagedState {
    ManagedState {
        pointer: names::state(name),
        slots: (0..slots.min(MAX_SLOTS))
            .map(|slot| names::state_slot(name, slot))
            .collect(),
    }
}
