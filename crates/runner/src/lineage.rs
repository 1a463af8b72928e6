//! Whose a state is (rule 11): told by its lineage, which the engine gives it once and for all.

use alustan_api::run::Lineage;
use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::{Map, Value};

/// As much of a state as tells whose it is, and which version of it this is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StateHead {
    /// Its lineage.
    pub lineage: Option<String>,
    /// Its serial number.
    pub serial: Option<u64>,
    /// How many resources and outputs are in it.
    pub things: usize,
}

impl StateHead {
    /// Reads a state; of no state, as the engine prints that, it is the default.
    pub fn read(state: &[u8]) -> Result<Self, serde_json::Error> {
        #[derive(Deserialize)]
        struct State {
            lineage: Option<String>,
            serial: Option<u64>,
            #[serde(default)]
            resources: Vec<IgnoredAny>,
            #[serde(default)]
            outputs: Map<String, Value>,
        }
        if state.trim_ascii().is_empty() {
            return Ok(Self::default());
        }
        let state: State = serde_json::from_slice(state)?;
        Ok(Self {
            lineage: state.lineage.filter(|it| !it.is_empty()),
            serial: state.serial,
            things: state.resources.len() + state.outputs.len(),
        })
    }
}

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

    #[test]
    fn a_state_is_read_as_the_engine_prints_it() {
        let full = br#"{"version": 4, "serial": 7, "lineage": "l", "outputs": {"a": {"value": 1}},
            "resources": [{"type": "x", "instances": [{"attributes": {"k": [1, {}]}}]}]}"#;
        let read = |text: &[u8]| StateHead::read(text).unwrap();
        assert_eq!(
            read(full),
            StateHead {
                lineage: Some("l".into()),
                serial: Some(7),
                things: 2
            }
        );
        let none = br#"{"version": 4, "serial": 0, "lineage": "", "outputs": {}, "resources": []}"#;
        assert_eq!(read(none).lineage, None);
        assert_eq!(read(b"\n"), StateHead::default());
        assert!(StateHead::read(b"no state").is_err());
    }
}
