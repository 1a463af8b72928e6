//! Summary of a state: lineage, serial, and number of resources and outputs.

use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::{Map, Value};

/// Fields that identify a state and its version.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StateHead {
    /// Lineage; `None` if missing or empty.
    pub lineage: Option<String>,
    /// Serial number that the engine assigned.
    pub serial: Option<u64>,
    /// Number of resources and outputs.
    pub item_count: usize,
}

impl StateHead {
    /// Parses a state. Returns the default for empty input, which the engine prints if there is no state.
    ///
    /// # Errors
    ///
    /// The input is not the JSON of a state.
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
            lineage: state.lineage.filter(|lineage| !lineage.is_empty()),
            serial: state.serial,
            item_count: state.resources.len() + state.outputs.len(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn state_head_is_parsed_from_engine_output() {
        let full = br#"{"version": 4, "serial": 7, "lineage": "l", "outputs": {"a": {"value": 1}},
            "resources": [{"type": "x", "instances": [{"attributes": {"k": [1, {}]}}]}]}"#;
        let read = |text: &[u8]| StateHead::read(text).unwrap();
        assert_eq!(
            read(full),
            StateHead {
                lineage: Some("l".into()),
                serial: Some(7),
                item_count: 2
            }
        );
        let none = br#"{"version": 4, "serial": 0, "lineage": "", "outputs": {}, "resources": []}"#;
        assert_eq!(read(none).lineage, None);
        assert_eq!(read(b"\n"), StateHead::default());
        assert!(StateHead::read(b"no state").is_err());
    }
}
