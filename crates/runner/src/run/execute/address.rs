//! Address of the state that a run works on.

use crate::run::session::Session;
use crate::state::backend;

impl Session {
    /// Returns the address of the state, if it is known.
    pub(super) fn state_address(&self) -> Option<String> {
        match &self.inputs.backend.managed {
            Some(managed) => Some(self.secret_address(&managed.pointer)),
            None => backend::address(self.engine_directory(), &self.inputs.backend),
        }
    }

    /// Returns the address of the managed state whose pointer is in Secret `pointer`.
    pub(super) fn secret_address(&self, pointer: &str) -> String {
        format!("secret://{}/{pointer}", self.record.identity().namespace)
    }
}
