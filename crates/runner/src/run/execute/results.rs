//! Outputs of the module, from the file of a script, the managed state or the engine.

use std::fs;
use std::time::Instant;

use alustan_api::run::Outputs;
use alustan_api::{Reason, json_size};
use alustan_state::secrets::to_json;

use super::outcome::Ended;
use crate::failure::{RunStep, module, place_in_json, user};
use crate::run::session::{READ_TIMEOUT, Session};
use crate::state::outputs;

impl Session {
    /// Returns the outputs of the module. Fails if they exceed [`outputs::MAX_BYTES`].
    pub(super) async fn outputs(&self) -> Result<Outputs, Ended> {
        let outputs = match fs::read(self.paths.outputs_file()) {
            Ok(json) => outputs::from_json(&json).map_err(|error| {
                user(
                    Reason::OutputsUnreadable,
                    format!(
                        "ALUSTAN_OUTPUTS_FILE is not in the format of `terraform output -json`: {}",
                        place_in_json(&error)
                    ),
                )
            })?,
            Err(_) => self.engine_outputs().await?,
        };
        let text = to_json(&outputs);
        let values = json_size::values(&text);
        if values > json_size::VALUES {
            let text = format!(
                "the outputs have {values} JSON values, more than the limit of {}. The state is \
                 saved. Encode large outputs as a string with jsonencode",
                json_size::VALUES
            );
            return Err(user(Reason::OutputsTooLarge, text).into());
        }
        let size = text.len();
        if size > outputs::MAX_BYTES {
            let sizes = outputs
                .iter()
                .map(|(name, output)| (to_json(output).len(), name));
            let largest = sizes.max().map_or_else(String::new, |(size, name)| {
                format!("; the largest output is {name} ({size} bytes)")
            });
            let text = format!(
                "the outputs are {size} bytes, more than the limit of {} bytes for a \
                 Secret{largest}. The state is saved. Reduce the outputs, or pass large values \
                 through an object store",
                outputs::MAX_BYTES
            );
            return Err(user(Reason::OutputsTooLarge, text).into());
        }
        Ok(outputs)
    }

    async fn engine_outputs(&self) -> Result<Outputs, Ended> {
        let unreadable = |error: serde_json::Error| {
            let place = place_in_json(&error);
            module(
                Reason::OutputsUnreadable,
                format!("failed to read the outputs: {place}"),
            )
        };
        if let Some(server) = &self.server {
            return match server.store().get().await {
                Some(state) => Ok(outputs::from_state(&state).map_err(unreadable)?),
                None => Ok(Outputs::new()),
            };
        }
        let arguments = vec!["output".into(), "-json".into()];
        let json = self
            .engine_output(RunStep::Output, arguments, Instant::now() + READ_TIMEOUT)
            .await?;
        Ok(outputs::from_json(&json).map_err(unreadable)?)
    }
}
