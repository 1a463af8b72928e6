//! Start of the changes to real objects. A run can be cancelled only before the start.

use std::time::Instant;

use alustan_api::Reason;
use alustan_api::report::Failure;
use alustan_api::run::{Begin, ChangesStart, RunProgress, StateLock};
use alustan_state::retry::Patience;
use alustan_state::secrets::Changes;
use k8s_openapi::jiff::Timestamp;

use super::outcome::{Ended, Findings};
use super::ownership::StateOwnership;
use crate::failure::transient;
use crate::record::Update;
use crate::run::session::{READ_TIMEOUT, Session, stopped};

impl Session {
    /// Prevents earlier runs of this resource, whose pods may still run, from changing a managed state. Does nothing in the first run of a
    /// resource, because there are no earlier runs.
    async fn begin_to_write_state(&self) -> Result<(), Failure> {
        let is_first = self.record.identity().number == 1;
        let Some(server) = self.server.as_ref().filter(|_| !is_first) else {
            return Ok(());
        };
        server
            .store()
            .begin()
            .await
            .map_err(|error| transient(Reason::StateUnavailable, error.to_string()))
    }

    /// Reports the start of the changes. After the report, real objects may change and the run can no longer be cancelled.
    pub(super) async fn begin_to_change(
        &self,
        state: &mut StateOwnership,
        findings: &mut Findings,
    ) -> Result<(), Ended> {
        if self.commands.stop.requested_at().is_some() {
            return Err(stopped().into());
        }
        self.recheck_state_owner(state).await?;
        self.begin_to_write_state().await?;
        let patience = Patience::until(self.plan_deadline().max(Instant::now() + READ_TIMEOUT));
        let start = ChangesStart {
            lineage: self.lineage_to_note(state),
            state_address: self.state_address(),
            own_backend: findings.own_backend.clone(),
            lock: self.lock_to_reserve(),
        };
        let reserved = |progress: &RunProgress| {
            progress
                .lock
                .as_ref()
                .filter(|held| Some(*held) == start.lock.as_ref())
                .map(|lock| lock.id.clone())
        };
        let go = self.record.update_ours(patience, |progress, _| {
            Ok(match progress.begin(&start) {
                Begin::New => Update::Write(Some(reserved(progress)), Changes::new()),
                Begin::Repeated => Update::Keep(Some(reserved(progress))),
                Begin::Cancelled => Update::Keep(None),
            })
        });
        let lock = go.await?.ok_or(Ended::Cancelled)?;
        findings.began = true;
        if let (Some(server), Some(lock)) = (&self.server, lock) {
            server.reserve_lock(lock);
        }
        Ok(())
    }

    /// Returns the lock that the runner reserves in the run report for the next engine process, so that the lock request of the engine needs
    /// no write. Returns `None` if the state is not managed. Also returns `None` if scripts are configured, because the runner does not know
    /// when a script starts engine processes.
    fn lock_to_reserve(&self) -> Option<StateLock> {
        let identity = self.record.identity();
        let lock = || StateLock {
            id: identity.pod_uid.clone(),
            operation: format!("run {}", identity.number),
            who: identity.pod.clone(),
            at: Timestamp::now(),
        };
        (self.server.is_some() && !self.scripts.any()).then(lock)
    }
}
