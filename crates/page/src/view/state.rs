//! Order of the states.

use alustan_api::State;

/// All states, in the order of the filters.
pub(crate) const STATES: [State; 11] = [
    State::Stalled,
    State::Failed,
    State::AwaitingApproval,
    State::Drifted,
    State::Applying,
    State::Destroying,
    State::Planning,
    State::Building,
    State::Pending,
    State::Planned,
    State::Success,
];

/// Number of ranks whose states need the attention of a user.
pub(crate) const ATTENTION_RANKS: u8 = 4;

/// Returns the position of `state` in lists: states that need attention first, then states with an active run or build, then the others.
pub(crate) const fn rank(state: State) -> u8 {
    match state {
        State::Stalled => 0,
        State::Failed => 1,
        State::AwaitingApproval => 2,
        State::Drifted => 3,
        State::Applying | State::Destroying | State::Planning | State::Building => 4,
        State::Pending | State::Planned | State::Success => 5,
    }
}

/// Whether `state` needs the attention of a user.
pub(crate) const fn needs_attention(state: State) -> bool {
    rank(state) < ATTENTION_RANKS
}
