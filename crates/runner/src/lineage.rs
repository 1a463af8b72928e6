//! Whose a state is (rule 11): told by its lineage, which the engine gives it once and for all.

use alustan_api::run::Lineage;
pub use alustan_state::head::StateHead;

/// Whose a state is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Owner {
    /// There is nothing in it: what will be there is ours.
    Nobody,
    /// This resource's.
    Us,
    /// Somebody else's.
    Others,
}

/// Whose `state` is, by what is known so far. `proven` says that something of this resource was
/// applied, where the record does not tell of it any more: the state is what that made.
pub fn owner(known: &Lineage, proven: bool, state: &StateHead) -> Owner {
    let Some(lineage) = state.lineage.as_ref().filter(|_| state.things > 0) else {
        return Owner::Nobody;
    };
    match known {
        Lineage::Of(ours) if ours == lineage => Owner::Us,
        Lineage::New => Owner::Us,
        Lineage::Lost if proven => Owner::Us,
        Lineage::Of(_) | Lineage::Unknown | Lineage::Lost => Owner::Others,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    fn of(lineage: &str) -> Lineage {
        Lineage::Of(lineage.to_owned())
    }

    fn head(lineage: Option<&str>, things: usize) -> StateHead {
        StateHead {
            lineage: lineage.map(str::to_owned),
            serial: Some(3),
            things,
        }
    }

    #[rstest]
    #[case::nothing_yet(Lineage::Unknown, false, head(None, 0), Owner::Nobody)]
    #[case::somebodys(Lineage::Unknown, false, head(Some("l"), 1), Owner::Others)]
    #[case::somebodys_that_was_emptied(Lineage::Unknown, false, head(Some("l"), 0), Owner::Nobody)]
    #[case::somebodys_whatever_was_applied(
        Lineage::Unknown,
        true,
        head(Some("l"), 1),
        Owner::Others
    )]
    #[case::after_a_lost_record(Lineage::Lost, false, head(Some("l"), 1), Owner::Others)]
    #[case::nothing_after_a_lost_record(Lineage::Lost, false, head(None, 0), Owner::Nobody)]
    #[case::after_a_lost_record_and_a_proven_apply(
        Lineage::Lost,
        true,
        head(Some("l"), 1),
        Owner::Us
    )]
    #[case::made_by_our_first_run(Lineage::New, false, head(Some("l"), 1), Owner::Us)]
    #[case::ours(of("l"), false, head(Some("l"), 1), Owner::Us)]
    #[case::ours_that_was_emptied(of("l"), false, head(Some("l"), 0), Owner::Nobody)]
    #[case::ours_that_is_gone(of("l"), false, head(None, 0), Owner::Nobody)]
    #[case::in_the_place_of_ours(of("l"), true, head(Some("m"), 1), Owner::Others)]
    #[case::a_new_one_in_its_place(of("l"), true, head(Some("m"), 0), Owner::Nobody)]
    fn the_lineage_tells_whose_a_state_is(
        #[case] known: Lineage,
        #[case] proven: bool,
        #[case] state: StateHead,
        #[case] wanted: Owner,
    ) {
        assert_eq!(owner(&known, proven, &state), wanted);
    }
}
