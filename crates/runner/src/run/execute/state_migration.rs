//! Migration of a state to another address, before any other step (rule 11).

use std::fs;
use std::time::Instant;

use alustan_api::Reason;
use alustan_api::report::Failure;
use alustan_api::run::{BackendInputs, Lineage, OwnBackend};
use alustan_state::secrets::to_json;
use serde_json::json;

use super::outcome::Ended;
use crate::engine::command::StopPolicy;
use crate::failure::{RunStep, module, transient, user};
use crate::file_system::write_private;
use crate::run::session::{READ_TIMEOUT, Session};
use crate::state::backend;
use crate::state::lineage::{StateHead, Transfer, transfer, with_serial};

use super::ownership::read;

/// Name of the temporary file with the copied state.
const COPY: &str = "moved.tfstate";

impl Session {
    /// Copies the state to the address of the current backend, if migration is allowed. Returns the previous address. The state at the
    /// previous address is kept. The run record contains the previous address until this run starts to change objects or succeeds.
    pub(super) async fn migrate_state(&self) -> Result<Option<String>, Ended> {
        let Some(old) = &self.inputs.migrate else {
            return Ok(None);
        };
        let current_address = self.state_address();
        let is_same_workspace = old.workspace == self.inputs.backend.workspace;
        let is_same_address =
            current_address.is_some() && self.claimed.state_address == current_address;
        if is_same_workspace && is_same_address {
            return Ok(None);
        }
        let from = self.previous_address(old);
        if self.has_unsaved_state() {
            return Err(unsaved(&from).into());
        }
        let state = self.state_at(old).await?;
        let (old_head, new_head) = (read(&state)?, self.head_here().await?);
        let proven = self.inputs.applied_before || old.managed.is_some();
        match transfer(&self.claimed.lineage, proven, &old_head, &new_head) {
            Transfer::Copy if self.is_speculative() => Err(not_copied(&from).into()),
            Transfer::Copy => {
                self.copy(&state, &old_head, &new_head).await?;
                self.log_migration(&from, &old_head);
                Ok(Some(from))
            }
            Transfer::Done => {
                crate::log!("the state was already copied from {from}");
                Ok(Some(from))
            }
            Transfer::Nothing => Ok(None),
            Transfer::NotOurs => Err(not_ours_at(&from, &old_head).into()),
            Transfer::Occupied => Err(self.occupied(&from, &new_head).into()),
            Transfer::Lost => Err(self.lost(&from).into()),
        }
    }

    /// Returns the previous address of the state for messages; `its previous location` if the address is unknown.
    fn previous_address(&self, old: &BackendInputs) -> String {
        let managed = old.managed.as_ref();
        managed
            .map(|backend| self.secret_address(&backend.pointer))
            .or_else(|| self.claimed.state_address.clone())
            .unwrap_or_else(|| "its previous location".to_owned())
    }

    async fn head_here(&self) -> Result<StateHead, Failure> {
        match &self.server {
            Some(server) => {
                let state = server.store().get().await;
                read(state.as_deref().map_or(&[], Vec::as_slice))
            }
            None => self.pull().await,
        }
    }

    /// Pushes `state` to the current backend. `old_head`: lineage and serial of `state`. `new_head`: lineage and serial of the state in the
    /// current backend, which is an older version or does not exist. The copy has the serial of the original, so that the next run can
    /// compare both states if this run ends before the run record contains the new address.
    async fn copy(
        &self,
        state: &[u8],
        old_head: &StateHead,
        new_head: &StateHead,
    ) -> Result<(), Failure> {
        // On a push to an address without a state, the engine replaces the lineage of the pushed state. Therefore, pushes an empty state
        // first, and then replaces it with the copy. If this run ends before the second push, the next run may replace the empty state.
        if new_head.lineage.is_none() {
            let seed = json!({"version": 4, "serial": 0, "lineage": old_head.lineage,
                "outputs": {}, "resources": []});
            self.push_copy(&to_json(&seed), false).await?;
        }
        // The engine increments the serial on push. Therefore, pushes the serial of the original minus 1.
        let serial = old_head.serial.unwrap_or_default().saturating_sub(1);
        let counted = with_serial(state, serial).ok_or_else(|| {
            let message = "cannot copy the state: the format of the state is unknown. The state at the \
                           previous location is unchanged";
            module(Reason::MigrationFailed, message)
        })?;
        self.push_copy(&counted, true).await?;
        let copied = self.head_here().await?;
        if copied.lineage == old_head.lineage && copied.serial <= old_head.serial {
            return Ok(());
        }
        Err(module(
            Reason::MigrationFailed,
            "the copy of the state has a different lineage or serial. The state at the previous \
             location is unchanged",
        ))
    }

    async fn push_copy(&self, state: &[u8], force: bool) -> Result<(), Failure> {
        let file = self.paths.work.join(COPY);
        write_private(&file, state, 0o600).map_err(|error| {
            let message = format!("failed to write {}: {error}", file.display());
            transient(Reason::WorkspaceFailed, message)
        })?;
        let mut arguments = vec!["state".into(), "push".into()];
        arguments.extend(force.then(|| "-force".into()));
        arguments.push((&file).into());
        let deadline = Instant::now() + READ_TIMEOUT;
        let pushed = self.engine(
            RunStep::Migrate,
            arguments,
            StopPolicy::Persistent,
            deadline,
            &[0],
        );
        let pushed = pushed.await;
        let _ = fs::remove_file(&file);
        pushed.map(drop)
    }

    fn log_migration(&self, from: &str, state: &StateHead) {
        let to = self.state_address().unwrap_or_default();
        crate::log!(
            "copied the state from {from} to {to}: lineage {}, serial {}, {} resources and \
             outputs; the state at the previous location is unchanged",
            state.lineage.as_deref().unwrap_or_default(),
            state.serial.unwrap_or_default(),
            state.item_count,
        );
    }

    /// Returns the resolved backend configuration of a backend block in the module; `None` if the operator configures the backend.
    pub(super) fn own_backend(&self) -> Option<OwnBackend> {
        let backend = &self.inputs.backend;
        let is_configured = backend.managed.is_some() || backend.write_block;
        (!is_configured)
            .then(|| backend::resolved(self.engine_directory()))
            .flatten()
    }

    /// Whether the backend changed without a migration: the address in the run record differs from the current address, and the current
    /// address has no state, or an empty state with another lineage.
    pub(super) fn has_migrated_away(&self, head: &StateHead) -> bool {
        let Lineage::Of(ours) = &self.claimed.lineage else {
            return false;
        };
        let (old_address, new_address) = (&self.claimed.state_address, self.state_address());
        let elsewhere =
            old_address.is_some() && new_address.is_some() && *old_address != new_address;
        elsewhere && head.lineage.as_ref() != Some(ours) && head.item_count == 0
    }

    /// Returns the failure for a backend that changed without a migration of the state.
    pub(super) fn migrated_away(&self) -> Failure {
        let old_address = self.claimed.state_address.clone().unwrap_or_default();
        let new_address = self.state_address().unwrap_or_default();
        let way_out = if self.destroys() {
            "Nothing was destroyed. Set the backend to the previous location again: in \
             spec.backend, its Secret, or the module"
                .to_owned()
        } else {
            let identity = self.record.identity();
            let (name, namespace) = (identity.resource(), &identity.namespace);
            format!(
                "Nothing was changed: without the state, an apply would create every object again. \
                 Set the backend to the previous location again, or copy the state to the new one: \
                 kubectl patch tf {name} -n {namespace} --type merge -p \
                 '{{\"spec\":{{\"backend\":{{\"migrate\":true}}}}}}'"
            )
        };
        user(
            Reason::BackendChanged,
            format!(
                "the state of this resource is at {old_address}, but the backend is now {new_address}, which \
                 has no state. {way_out}"
            ),
        )
    }

    fn occupied(&self, from: &str, head: &StateHead) -> Failure {
        let new_address = self.state_address().unwrap_or_default();
        let lineage = head.lineage.as_deref().unwrap_or_default();
        user(
            Reason::StateOwnershipConflict,
            format!(
                "cannot copy the state from {from} to {new_address}: the target already has a state with \
                 lineage {lineage} and {} resources and outputs. Nothing was changed. Set another \
                 location in spec.backend",
                head.item_count
            ),
        )
    }

    fn lost(&self, from: &str) -> Failure {
        let new_address = self.state_address().unwrap_or_default();
        let Lineage::Of(lineage) = &self.claimed.lineage else {
            return user(
                Reason::StateLost,
                "cannot copy the state: the state does not exist. Nothing was changed. Restore the \
                 state from a backup",
            );
        };
        user(
            Reason::StateLost,
            format!(
                "cannot copy the state of this resource: a state with lineage {lineage} exists \
                 neither at {from} nor at {new_address}. Nothing was changed. Restore the state \
                 from a backup at one of these locations"
            ),
        )
    }
}

fn not_copied(from: &str) -> Failure {
    user(
        Reason::MigrationFailed,
        format!(
            "the state is at {from}, and a plan that is not applied does not copy the state to the new \
             location (spec.backend.migrate). Nothing was changed. Set spec.mode: Apply: the next run \
             copies the state"
        ),
    )
}

fn unsaved(from: &str) -> Failure {
    user(
        Reason::MigrationFailed,
        format!(
            "the last run could not save the state at {from}, and the state there is outdated. \
             Nothing was changed. Set the backend to that location again: the next run saves the \
             state, and then the state can be copied"
        ),
    )
}

fn not_ours_at(from: &str, head: &StateHead) -> Failure {
    let lineage = head.lineage.as_deref().unwrap_or_default();
    user(
        Reason::StateOwnershipConflict,
        format!(
            "cannot copy the state from {from}: the state there has another owner (lineage {lineage}, \
             {} resources and outputs). Nothing was changed. Restore the state of this resource at \
             {from}, or at the new location",
            head.item_count
        ),
    )
}
