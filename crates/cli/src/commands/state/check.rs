//! Conditions for the replacement of a state, as in `terraform state push`
//! (<https://developer.hashicorp.com/terraform/cli/commands/state/push>). Pure functions.

use std::cmp::Ordering;

use alustan_api::run::Lineage;
use alustan_state::head::StateHead;

/// Checks whether state `new` may replace state `old`. `same` is true if the two states are byte-identical.
///
/// # Errors
/// The reason why `new` may not replace `old`.
pub(super) fn check(new: &StateHead, old: &StateHead, same: bool) -> Result<(), String> {
    if old.item_count == 0 || same {
        return Ok(());
    }
    if let (Some(new), Some(old)) = (&new.lineage, &old.lineage)
        && new != old
    {
        return Err(format!(
            "the lineage {new} of the file differs from the lineage {old} of the current state"
        ));
    }
    let new = new.serial.unwrap_or_default();
    let old = old.serial.unwrap_or_default();
    match new.cmp(&old) {
        Ordering::Greater => Ok(()),
        Ordering::Equal => Err(format!(
            "the file has the serial {new} of the current state, but different content"
        )),
        Ordering::Less => Err(format!(
            "the serial {new} of the file is lower than the serial {old} of the current state"
        )),
    }
}

/// Whether the next run refuses the state `new` because of its lineage, if `spec.backend.adopt` is false (rule 11).
/// `known` is the lineage in the run record.
pub(super) fn is_foreign(known: &Lineage, new: &StateHead) -> bool {
    let Some(lineage) = new.lineage.as_ref().filter(|_| new.item_count > 0) else {
        return false;
    };
    match known {
        Lineage::Of(ours) => ours != lineage,
        // A `managed` state belongs to the resource even if its run record was lost.
        Lineage::New | Lineage::Lost => false,
        Lineage::Unknown => true,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    fn head(lineage: &str, serial: u64, item_count: usize) -> StateHead {
        StateHead {
            lineage: (!lineage.is_empty()).then(|| lineage.to_owned()),
            serial: Some(serial),
            item_count,
        }
    }

    #[rstest]
    #[case::newer(head("l", 4, 1), false, None)]
    #[case::identical(head("l", 3, 1), true, None)]
    #[case::same_serial_other_content(head("l", 3, 1), false, Some("different content"))]
    #[case::older(head("l", 2, 1), false, Some("lower than the serial 3"))]
    #[case::of_another_lineage(head("m", 4, 1), false, Some("lineage m of the file differs"))]
    #[case::newer_and_empty(head("l", 4, 0), false, None)]
    fn only_a_newer_state_replaces_the_current_one(
        #[case] new: StateHead,
        #[case] same: bool,
        #[case] wanted: Option<&str>,
    ) {
        let error = check(&new, &head("l", 3, 1), same).err();
        assert_eq!(error.is_some(), wanted.is_some(), "{error:?}");
        assert!(
            error
                .unwrap_or_default()
                .contains(wanted.unwrap_or_default())
        );
    }

    #[rstest]
    #[case::of_another_lineage(head("l", 9, 0))]
    #[case::none(head("", 0, 0))]
    fn any_state_replaces_an_empty_one(#[case] old: StateHead) {
        assert_eq!(check(&head("m", 1, 1), &old, false), Ok(()));
    }

    #[rstest]
    #[case(Lineage::Of("l".into()), head("l", 1, 1), false)]
    #[case(Lineage::Of("l".into()), head("m", 1, 1), true)]
    #[case(Lineage::Of("l".into()), head("m", 1, 0), false)]
    #[case(Lineage::New, head("m", 1, 1), false)]
    #[case(Lineage::Lost, head("m", 1, 1), false)]
    #[case(Lineage::Unknown, head("m", 1, 1), true)]
    fn a_state_of_another_lineage_must_be_adopted(
        #[case] known: Lineage,
        #[case] new: StateHead,
        #[case] foreign: bool,
    ) {
        assert_eq!(is_foreign(&known, &new), foreign);
    }
}
