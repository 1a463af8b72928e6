//! Ownership of a state (rule 11). The lineage of the state determines the owner. The engine assigns the lineage when it creates the state.

use alustan_api::run::Lineage;
pub use alustan_state::head::StateHead;

/// Owner of a state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Owner {
    /// No owner, because the state contains no objects and no outputs. The resource of the run becomes the owner when the run adds objects
    /// to the state.
    Unowned,
    /// The resource of the run.
    ThisResource,
    /// Another resource, or a client of the state that the operator does not manage.
    Foreign,
}

/// Returns the owner of `state`. `known`: lineage in the run record. `proven`: whether evidence other than the run record shows that a run
/// of the resource wrote the state. If `known` is [`Lineage::Lost`] and `proven` is true, the state belongs to the resource.
pub fn owner(known: &Lineage, proven: bool, state: &StateHead) -> Owner {
    let Some(lineage) = state.lineage.as_ref().filter(|_| state.item_count > 0) else {
        return Owner::Unowned;
    };
    match known {
        Lineage::Of(ours) if ours == lineage => Owner::ThisResource,
        Lineage::New => Owner::ThisResource,
        Lineage::Lost if proven => Owner::ThisResource,
        Lineage::Of(_) | Lineage::Unknown | Lineage::Lost => Owner::Foreign,
    }
}

/// Result of the check of a state before its migration to another address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transfer {
    /// The state must be copied to its new address.
    Copy,
    /// The new address already has the state, or a later version of it.
    Done,
    /// The old address has no state, and the run record contains no lineage.
    Nothing,
    /// The state at the old address belongs to another owner.
    NotOurs,
    /// The new address already has a state with another lineage, which contains objects or outputs.
    Occupied,
    /// Neither address has the state of the resource.
    Lost,
}

/// Checks a state before its migration to another address. `old` and `new`: the states at the old and at the new address. For `known` and
/// `proven`, see [`owner`].
pub fn transfer(known: &Lineage, proven: bool, old: &StateHead, new: &StateHead) -> Transfer {
    let ours = match known {
        Lineage::Of(lineage) => Some(lineage),
        Lineage::New | Lineage::Lost | Lineage::Unknown => old.lineage.as_ref(),
    };
    let old_is_ours = old.lineage.is_some() && old.lineage.as_ref() == ours;
    if ours.is_some() && new.lineage.as_ref() == ours {
        let later = old_is_ours && old.serial > new.serial;
        return if later {
            Transfer::Copy
        } else {
            Transfer::Done
        };
    }
    match (new.item_count > 0, owner(known, proven, old), known) {
        (true, ..) => Transfer::Occupied,
        (false, Owner::Foreign, _) => Transfer::NotOurs,
        (false, Owner::ThisResource, _) => Transfer::Copy,
        (false, Owner::Unowned, _) if old_is_ours => Transfer::Copy,
        (false, Owner::Unowned, Lineage::Of(_)) => Transfer::Lost,
        (false, Owner::Unowned, Lineage::New | Lineage::Lost | Lineage::Unknown) => {
            Transfer::Nothing
        }
    }
}

/// Replaces the serial of `state`. Keeps all other bytes: parsing and serialising the state could change numbers that exceed the range of
/// Rust types. Returns `None` if `state` is not in the format of engines.
pub fn with_serial(state: &[u8], serial: u64) -> Option<Vec<u8>> {
    const NAME: &str = "\"serial\":";
    let text = std::str::from_utf8(state).ok()?;
    let start = text.find(NAME)? + NAME.len();
    let (before, after) = text.split_at_checked(start)?;
    let number = after.trim_start();
    let rest = number.trim_start_matches(|char: char| char.is_ascii_digit());
    let edited = format!("{before} {serial}{rest}").into_bytes();
    let (was, is) = (StateHead::read(state).ok()?, StateHead::read(&edited).ok()?);
    let wanted = StateHead {
        serial: Some(serial),
        ..was
    };
    (is == wanted).then_some(edited)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    fn of(lineage: &str) -> Lineage {
        Lineage::Of(lineage.to_owned())
    }

    fn head(lineage: Option<&str>, item_count: usize) -> StateHead {
        StateHead {
            lineage: lineage.map(str::to_owned),
            serial: Some(3),
            item_count,
        }
    }

    #[rstest]
    #[case::no_state(Lineage::Unknown, false, head(None, 0), Owner::Unowned)]
    #[case::state_of_other_owner(Lineage::Unknown, false, head(Some("l"), 1), Owner::Foreign)]
    #[case::empty_state_of_other_owner(Lineage::Unknown, false, head(Some("l"), 0), Owner::Unowned)]
    #[case::state_of_other_owner_after_proven_apply(
        Lineage::Unknown,
        true,
        head(Some("l"), 1),
        Owner::Foreign
    )]
    #[case::lost_record(Lineage::Lost, false, head(Some("l"), 1), Owner::Foreign)]
    #[case::no_state_after_lost_record(Lineage::Lost, false, head(None, 0), Owner::Unowned)]
    #[case::lost_record_with_proven_apply(
        Lineage::Lost,
        true,
        head(Some("l"), 1),
        Owner::ThisResource
    )]
    #[case::created_by_first_run(Lineage::New, false, head(Some("l"), 1), Owner::ThisResource)]
    #[case::same_lineage(of("l"), false, head(Some("l"), 1), Owner::ThisResource)]
    #[case::same_lineage_and_empty(of("l"), false, head(Some("l"), 0), Owner::Unowned)]
    #[case::missing_state(of("l"), false, head(None, 0), Owner::Unowned)]
    #[case::other_lineage(of("l"), true, head(Some("m"), 1), Owner::Foreign)]
    #[case::other_lineage_and_empty(of("l"), true, head(Some("m"), 0), Owner::Unowned)]
    fn lineage_determines_the_owner_of_a_state(
        #[case] known: Lineage,
        #[case] proven: bool,
        #[case] state: StateHead,
        #[case] wanted: Owner,
    ) {
        assert_eq!(owner(&known, proven, &state), wanted);
    }

    #[test]
    fn only_the_serial_of_a_state_is_replaced() {
        let state = |serial: &str| {
            format!(
                "{{\n  \"version\": 4,\n  \"serial\": {serial},\n  \"lineage\": \"l\",\n  \"outputs\": \
                 {{\"serial\": {{\"value\": 123456789012345678901234567890.5}}}}\n}}"
            )
        };
        let edited = with_serial(state("12").as_bytes(), 3).unwrap();
        assert_eq!(String::from_utf8(edited).unwrap(), state("3"));
        for odd in [
            "",
            "{}",
            r#"{"outputs": {"serial": {"value": 1}}, "serial": 3}"#,
        ] {
            assert_eq!(with_serial(odd.as_bytes(), 3), None, "{odd}");
        }
    }

    fn at(lineage: Option<&str>, serial: u64, item_count: usize) -> StateHead {
        StateHead {
            serial: lineage.map(|_| serial),
            ..head(lineage, item_count)
        }
    }

    #[rstest]
    #[case::same_lineage(of("l"), at(Some("l"), 3, 1), at(None, 0, 0), Transfer::Copy)]
    #[case::same_lineage_and_empty(of("l"), at(Some("l"), 3, 0), at(None, 0, 0), Transfer::Copy)]
    #[case::created_by_the_first_run(
        Lineage::New,
        at(Some("l"), 3, 1),
        at(None, 0, 0),
        Transfer::Copy
    )]
    #[case::no_state(Lineage::New, at(None, 0, 0), at(None, 0, 0), Transfer::Nothing)]
    #[case::copied_before(of("l"), at(Some("l"), 3, 1), at(Some("l"), 3, 1), Transfer::Done)]
    #[case::changed_at_new_address(
        of("l"),
        at(Some("l"), 3, 1),
        at(Some("l"), 5, 1),
        Transfer::Done
    )]
    #[case::changed_at_old_address(
        of("l"),
        at(Some("l"), 5, 1),
        at(Some("l"), 3, 1),
        Transfer::Copy
    )]
    #[case::moved_by_hand(of("l"), at(None, 0, 0), at(Some("l"), 3, 1), Transfer::Done)]
    #[case::occupied(of("l"), at(Some("l"), 3, 1), at(Some("m"), 3, 1), Transfer::Occupied)]
    #[case::empty_state_at_new_address(
        of("l"),
        at(Some("l"), 3, 1),
        at(Some("m"), 3, 0),
        Transfer::Copy
    )]
    #[case::other_old_lineage(of("l"), at(Some("m"), 3, 1), at(None, 0, 0), Transfer::NotOurs)]
    #[case::unknown_owner(
        Lineage::Unknown,
        at(Some("m"), 3, 1),
        at(None, 0, 0),
        Transfer::NotOurs
    )]
    #[case::missing_at_both_addresses(of("l"), at(None, 0, 0), at(None, 0, 0), Transfer::Lost)]
    #[case::empty_other_lineage(of("l"), at(Some("m"), 3, 0), at(None, 0, 0), Transfer::Lost)]
    fn only_an_owned_state_is_copied_to_a_free_address(
        #[case] known: Lineage,
        #[case] old: StateHead,
        #[case] new: StateHead,
        #[case] wanted: Transfer,
    ) {
        assert_eq!(transfer(&known, false, &old, &new), wanted);
    }
}
