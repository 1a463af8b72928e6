//! State locks that block a command. A lock is released if a pod of an earlier run of this resource, or an earlier engine process of this
//! pod, acquired the lock and has ended (rule 9). Any other lock is reported.

use parking_lot::MutexGuard;
use std::fs;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use alustan_api::Reason;
use alustan_api::report::Failure;
use alustan_api::run::StateLock;

use super::Session;
use super::command_result::judge;
use crate::engine::command::{Finished, Show, StopPolicy};
use crate::engine::processes::Scope;
use crate::failure::{RunStep, is_refused, tidy};
use crate::module::{declarations, tfvars};
use crate::state::backend;
use crate::state::lock_info::{self, read};
use crate::state::server::StateServer;

/// Time limit for the release of a lock.
const RELEASE: Duration = Duration::from_mins(2);

/// File with the host name of the pod, which the engine writes to state locks.
const HOST: &str = "/proc/sys/kernel/hostname";

impl Session {
    /// Returns the exit code if it is in `good`. Otherwise, returns the failure of the command. Records the lock of another client that
    /// caused the failure.
    pub(super) fn judged(
        &self,
        step: RunStep,
        finished: &Finished,
        good: &[i32],
    ) -> Result<i32, Failure> {
        judge(step, finished, good).map_err(|failure| {
            let refused = is_refused(step, &finished.stderr);
            self.refused.store(refused, Ordering::Relaxed);
            if let Some(lock) = self.reported_lock(&failure, finished) {
                *self.lock_seen() = Some(lock);
            }
            let failure = self.with_undeclared(self.with_fields(self.with_holder(failure)));
            backend::with_advice(failure, &self.inputs.backend)
        })
    }

    /// Releases the lock that caused a command to fail, if the process that acquired the lock has ended. Returns whether the lock was
    /// released, so that the caller retries the command.
    pub(super) async fn is_freed(&self, step: RunStep, finished: &Finished, good: &[i32]) -> bool {
        let Err(failure) = judge(step, finished, good) else {
            return false;
        };
        let Some(lock) = self.any_reported_lock(&failure, finished) else {
            return false;
        };
        let own = is_own(&lock) && self.is_held_by_own_engine(step);
        (own || self.claimed.has_ended_holder(&lock)) && self.release(&lock).await
    }

    /// Whether a lock with the host name of this pod may be released, because an earlier engine process of this pod acquired the lock and
    /// has ended. For example, the lock of a request remains if the response is lost and the engine repeats the request. True only for the
    /// `s3` backend, which reports the held lock, and compares the lock id on release. Other backends report the requested lock, and the
    /// `http` backend ignores the lock id on release. False for scripts, because a script may run several engines at a time.
    fn is_held_by_own_engine(&self, step: RunStep) -> bool {
        let is_s3 = self.inputs.backend.kind.as_deref() == Some("s3");
        is_s3 && !matches!(step, RunStep::Script(_))
    }

    /// Returns the lock of another client in the output of a failed command. Ignores a lock with the host name of this pod: some backends
    /// report the requested lock instead of the held lock.
    fn reported_lock(&self, failure: &Failure, finished: &Finished) -> Option<StateLock> {
        let lock = self.any_reported_lock(failure, finished);
        lock.filter(|lock| !is_own(lock))
    }

    fn any_reported_lock(&self, failure: &Failure, finished: &Finished) -> Option<StateLock> {
        if failure.reason != Reason::StateLocked || self.server.is_some() {
            return None;
        }
        let printed = String::from_utf8_lossy(&finished.stdout);
        let outputs = [&*finished.stderr, &*printed].map(tidy);
        outputs.iter().find_map(|output| read(output))
    }

    /// Replaces the message of a failure with reason `StateLocked`, if the state is managed. The new message describes the lock that blocks
    /// the run. The message of the engine describes the lock that the engine requested.
    fn with_holder(&self, failure: Failure) -> Failure {
        let other = self.server.as_ref().and_then(StateServer::lock_of_others);
        match other {
            Some(lock) if failure.reason == Reason::StateLocked => {
                let StateLock {
                    id,
                    operation,
                    who,
                    at,
                } = lock;
                let holder = format!(
                    "the state is locked by {who} (since {at}, operation {operation}, id {id})"
                );
                Failure {
                    message: holder,
                    ..failure
                }
            }
            Some(_) | None => failure,
        }
    }

    /// Replaces, in the message of a failure, each position in the generated tfvars file by the field of the resource that sets the
    /// variable. Shortens paths of variable files to paths in the repository.
    fn with_fields(&self, failure: Failure) -> Failure {
        let message = tfvars::without_root(&failure.message, &self.paths.module_copy());
        let message = tfvars::with_fields(&message, &self.inputs.own_variables);
        Failure { message, ..failure }
    }

    /// Adds the undeclared variables to the message of a failure with reason `VariablesInvalid`: if a variable of the module has no value,
    /// the name of the variable may be misspelt in the resource.
    fn with_undeclared(&self, failure: Failure) -> Failure {
        if failure.reason != Reason::VariablesInvalid || self.undeclared.is_empty() {
            return failure;
        }
        let message = format!(
            "{}; {}",
            failure.message,
            declarations::advice(&self.undeclared)
        );
        Failure { message, ..failure }
    }

    fn lock_seen(&self) -> MutexGuard<'_, Option<StateLock>> {
        self.lock_seen.lock()
    }

    async fn release(&self, lock: &StateLock) -> bool {
        let Some(arguments) = lock_info::release(&lock.id) else {
            return false;
        };
        crate::log!(
            "releasing the state lock acquired at {} by {}, {} that has ended (lock id {})",
            lock.at,
            lock.host(),
            if is_own(lock) {
                "an engine of this pod"
            } else {
                "a pod of this resource"
            },
            lock.id
        );
        let deadline = Instant::now() + RELEASE;
        let finished = self.run_engine(arguments, StopPolicy::Quick, deadline, Show::Log);
        match finished
            .await
            .and_then(|finished| judge(RunStep::Unlock, &finished, &[0]))
        {
            Ok(_) => true,
            Err(failure) => {
                crate::log!("failed to release the lock: {}", failure.message);
                false
            }
        }
    }

    /// Returns the id of the lock that this run still holds in the run report, if no engine process is running. The lock is released when
    /// the run report is written.
    pub(crate) fn abandoned_lock(&self) -> Option<String> {
        let lives = self.commands.processes.engine_lives(Scope::Everything);
        self.server
            .as_ref()
            .filter(|_| !lives)
            .and_then(StateServer::recorded_lock)
    }

    /// Whether the last failed command changed nothing, because the engine refused to start.
    pub(crate) fn was_refused(&self) -> bool {
        self.refused.load(Ordering::Relaxed)
    }

    /// Returns the last state lock of another client that blocked a command.
    pub(crate) fn lock_in_the_way(&self) -> Option<StateLock> {
        let managed = self.server.as_ref().and_then(StateServer::lock_of_others);
        managed.or_else(|| self.lock_seen().clone())
    }
}

/// Whether an engine of this pod requested `lock`.
fn is_own(lock: &StateLock) -> bool {
    fs::read_to_string(HOST).is_ok_and(|own| own.trim() == lock.host())
}
