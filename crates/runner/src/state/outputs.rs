//! Outputs of the module, from the state, the engine or the file of a script.

use alustan_api::run::Outputs;
use serde::Deserialize;

/// Maximum size of the outputs in the run report, in bytes. The limit leaves space for the other content of the Secret.
pub const MAX_BYTES: usize = 700 * 1024;

/// Parses the outputs in a state.
pub fn from_state(state: &[u8]) -> Result<Outputs, serde_json::Error> {
    #[derive(Deserialize)]
    struct StateOutputs {
        #[serde(default)]
        outputs: Outputs,
    }
    serde_json::from_slice::<StateOutputs>(state).map(|state| state.outputs)
}

/// Parses the output of `output -json`.
pub fn from_json(json: &[u8]) -> Result<Outputs, serde_json::Error> {
    serde_json::from_slice(json)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn outputs_are_read_from_a_state_and_from_the_engine() {
        let state = json!({"version": 4, "serial": 3, "resources": [], "outputs": {
            "host": {"value": "h", "type": "string"},
            "password": {"value": "p", "type": "string", "sensitive": true}
        }});
        let outputs = from_state(state.to_string().as_bytes()).unwrap();
        assert!(outputs["password"].sensitive && !outputs["host"].sensitive);
        assert_eq!(outputs["host"].value, json!("h"));
        let printed = state["outputs"].to_string();
        assert!(from_json(printed.as_bytes()).unwrap() == outputs);
        assert!(from_state(b"{}").unwrap().is_empty());
    }
}
