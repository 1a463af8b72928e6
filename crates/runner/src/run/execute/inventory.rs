//! Managed objects in the state at the end of a run.

use alustan_api::report::RunResult;
use alustan_api::run::{Inventory, RunKind};

use super::outcome::Findings;
use super::ownership::{self, StateOwnership};
use crate::failure::place_in_json;
use crate::run::session::Session;
use crate::state::backend;
use crate::state::inventory;
use crate::state::lineage::StateHead;

impl Session {
    /// Adds the managed objects in the state to `findings`. Reads a managed state after each apply and destroy, and a state in another
    /// backend if a successful run changed objects. Reads both also if no earlier run has listed the objects. Logs failures. Returns the head
    /// of the state if the state was pulled from another backend.
    pub(super) async fn find_inventory(
        &self,
        kind: RunKind,
        state: &StateOwnership,
        result: Option<RunResult>,
        findings: &mut Findings,
    ) -> Option<StateHead> {
        let is_done = matches!(result, Some(RunResult::Done | RunResult::NoChanges));
        if state.is_taken_over() && !is_done {
            return None;
        }
        let number = self.record.identity().number;
        if let Some(server) = &self.server {
            if matches!(kind, RunKind::Apply | RunKind::Destroy) || !self.earlier.has_inventory {
                let state = server.store().get().await?;
                findings.inventory = read(&state, number);
            }
            return None;
        }
        let has_changed = findings.began && is_done;
        let is_first = is_done && !self.earlier.has_inventory;
        if !(has_changed || is_first) || !self.can_pull() {
            return None;
        }
        let state = self
            .pulled()
            .await
            .inspect_err(|failure| {
                crate::log!("failed to list the managed objects: {}", failure.message);
            })
            .ok()?;
        findings.inventory = read(&state, number);
        ownership::read(&state).ok()
    }

    /// Whether the engine can read the state, and the run has time for it.
    fn can_pull(&self) -> bool {
        let is_stopping = self.commands.stop.requested_at().is_some();
        backend::has_resolved(self.engine_directory()) && !is_stopping
    }
}

fn read(state: &[u8], number: i64) -> Option<Inventory> {
    inventory::read(state, number).unwrap_or_else(|error| {
        crate::log!(
            "failed to list the managed objects: failed to read the state: {}",
            place_in_json(&error)
        );
        None
    })
}
