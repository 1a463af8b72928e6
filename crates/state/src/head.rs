//! The head of a state: which one it is.

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

#[cfg(test)]
mod tests {
    use super::*;

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
