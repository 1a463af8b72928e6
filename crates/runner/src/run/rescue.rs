//! Unsaved states. The run stores an unsaved state in the run report or on the cache volume, and pushes the state to the backend. If the
//! push fails, the next run pushes the state.

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use alustan_api::Reason;
use alustan_api::report::{Failure, MAX_TEXT, UnsavedPlace};
use alustan_api::run::key;
use alustan_state::retry::Patience;

use crate::engine::command::StopPolicy;
use crate::failure::{RunStep, cut, transient, user};
use crate::file_system::write_private;
use crate::record::{Identity, RecordError};
use crate::run::execute::outcome::{Ended, Findings};
use crate::run::session::Session;
use crate::state::unsaved::{self, KeepError};

/// Time limit of `state push`.
const PUSH: Duration = Duration::from_mins(2);
/// Time limit for writing an unsaved state to the run report before the first push.
const FIRST_TRY: Duration = Duration::from_secs(30);
/// Time limit for removing a pushed state from the run report.
const FORGET: Duration = Duration::from_mins(2);

/// Location in which an earlier run may have stored an unsaved state.
#[derive(Clone, Copy)]
enum UnsavedLocation {
    Report,
    Cache,
}

impl Session {
    /// Saves a state that the engine failed to save. Returns `result` unchanged if the state is saved. Otherwise, returns a failure with the
    /// location of the state.
    pub(crate) async fn rescue_state(
        &self,
        result: Result<(), Failure>,
        findings: &mut Findings,
    ) -> Result<(), Failure> {
        let file = self.engine_directory().join(unsaved::FILE);
        if !file.is_file() {
            return result;
        }
        crate::log!("the engine failed to save the state");
        let Some(note) = self.rescue(&file, findings).await else {
            let _ = fs::remove_file(&file);
            return result;
        };
        let note = self.commands.redactor.text(&note);
        crate::log!("{note}");
        Err(match result {
            Err(failure) => Failure {
                message: cut(&format!("{note}\n{}", failure.message), MAX_TEXT),
                ..failure
            },
            Ok(()) => transient(Reason::StateNotSaved, note),
        })
    }

    /// Stores the state in the run report and on the cache volume, because the pod may end at any time. Then pushes the state to the
    /// backend. If the push fails, returns a message with the location of the state.
    async fn rescue(&self, file: &Path, findings: &mut Findings) -> Option<String> {
        let on_cache = self.keep_on_cache(file);
        let mut in_report = self.keep_in_report(file, self.within(FIRST_TRY)).await;
        let Err(push) = self.push(file).await else {
            if let Err(error) = self.forget_unsaved_state().await {
                crate::log!(
                    "failed to remove the unsaved state after it was pushed: {error}. The next run \
                     pushes the unsaved state again"
                );
            }
            return None;
        };
        if on_cache.is_err() && in_report.as_ref().is_err_and(KeepError::is_passing) {
            let end = self.commands.end_of_grace();
            in_report = self.keep_in_report(file, Patience::until(end)).await;
        }
        let (location, note) = self.describe_outcome(file, in_report, on_cache, &push);
        findings.unsaved = location;
        Some(note)
    }

    fn keep_on_cache(&self, file: &Path) -> Result<(), String> {
        if !self.paths.cache_kept {
            return Err("the pod has no cache volume of its own".to_owned());
        }
        fs::read(file)
            .and_then(|state| unsaved::keep(&self.paths.cache, state, &self.key))
            .map_err(|error| format!("cache volume: {error}"))
    }

    async fn keep_in_report(&self, file: &Path, patience: Patience) -> Result<(), KeepError> {
        let encrypted = unsaved::encrypt(&fs::read(file)?, &self.key)?;
        unsaved::put(&self.record, &encrypted, patience).await
    }

    fn describe_outcome(
        &self,
        file: &Path,
        in_report: Result<(), KeepError>,
        on_cache: Result<(), String>,
        push: &Failure,
    ) -> (Option<UnsavedPlace>, String) {
        let secret = self.record.identity().report();
        let (location, name) = match (in_report, on_cache) {
            (Ok(()), _) => (UnsavedPlace::Report, format!("in Secret {secret}")),
            (Err(_), Ok(())) => (UnsavedPlace::CacheVolume, "on the cache volume".to_owned()),
            (Err(record), Err(cache)) => {
                let note = format!(
                    "the state will be LOST with this pod: copy {} from the pod now. Causes: \
                     Secret {secret}: {record}; {cache}; {}",
                    file.display(),
                    push.message
                );
                return (None, note);
            }
        };
        let note = format!(
            "failed to save the state; it is kept {name}, and the next run pushes it before any \
             other operation. Cause: {}",
            push.message
        );
        (Some(location), note)
    }

    /// Whether there is an unsaved state of an earlier run.
    pub(crate) fn has_unsaved_state(&self) -> bool {
        let mut locations = [UnsavedLocation::Report, UnsavedLocation::Cache].into_iter();
        locations.any(|location| self.unsaved_state_in(location).is_some())
    }

    /// Pushes the unsaved state of an earlier run to the backend.
    ///
    /// # Errors
    /// Fails if the run creates a speculative plan and there is an unsaved state: the run writes no state, and a plan with the outdated state
    /// would be wrong.
    pub(crate) async fn push_unsaved_state(&self) -> Result<(), Ended> {
        if self.is_speculative() {
            if self.has_unsaved_state() {
                return Err(not_pushed(self.record.identity()).into());
            }
            return Ok(());
        }
        for location in [UnsavedLocation::Report, UnsavedLocation::Cache] {
            let Some(state) = self.unsaved_state_in(location) else {
                continue;
            };
            crate::log!("pushing the unsaved state of an earlier run");
            if self.push_found(&state).await? {
                return Ok(self.forget_unsaved_state().await?);
            }
            self.put_aside(location, state).await?;
        }
        Ok(())
    }

    fn unsaved_state_in(&self, location: UnsavedLocation) -> Option<Vec<u8>> {
        match location {
            UnsavedLocation::Report => {
                let encrypted = self.earlier.unsaved_state.as_ref()?;
                let decrypted = unsaved::decrypt(encrypted, &self.key);
                if let Err(why) = &decrypted {
                    let secret = self.record.identity().report();
                    crate::log!(
                        "cannot decrypt the unsaved state in Secret {secret}, entry {}: {why}; the entry is kept",
                        key::LEFTOVER
                    );
                }
                decrypted.ok()
            }
            UnsavedLocation::Cache if !self.paths.cache_kept => None,
            UnsavedLocation::Cache => unsaved::take(&self.paths.cache, &self.key),
        }
    }

    /// Pushes `state` to the backend. Returns false if the state in the backend is newer.
    async fn push_found(&self, state: &[u8]) -> Result<bool, Failure> {
        let file = self.paths.work.join(unsaved::FILE);
        let unwritten = |error| {
            transient(
                Reason::WorkspaceFailed,
                format!("failed to write {}: {error}", file.display()),
            )
        };
        write_private(&file, state, 0o600).map_err(unwritten)?;
        let pushed = self.push(&file).await;
        let _ = fs::remove_file(&file);
        match pushed {
            Ok(()) => Ok(true),
            Err(failure) if failure.message.contains("cannot import state with serial") => {
                Ok(false)
            }
            Err(failure) => Err(failure),
        }
    }

    /// Keeps an unsaved state that is older than the state in the backend, for inspection by the user. Stores the state on the cache volume
    /// if the volume outlives the pod. Otherwise, the state remains in the run report until the outputs need the space.
    async fn put_aside(
        &self,
        location: UnsavedLocation,
        state: Vec<u8>,
    ) -> Result<(), RecordError> {
        let cache = &self.paths.cache;
        if matches!(location, UnsavedLocation::Report) && !self.paths.cache_kept {
            let secret = self.record.identity().report();
            crate::log!(
                "the state in the backend is newer; the unsaved state is kept in Secret {secret}"
            );
            return Ok(());
        }
        crate::log!(
            "the state in the backend is newer; moving the unsaved state to a separate file on the \
             cache volume"
        );
        let number = self.record.identity().number;
        match (unsaved::keep_old(cache, number, state, &self.key), location) {
            (Ok(()), UnsavedLocation::Report) => {
                unsaved::remove(&self.record, self.within(FORGET)).await?;
            }
            (Ok(()), UnsavedLocation::Cache) => unsaved::forget(cache),
            (Err(error), _) => crate::log!("failed to move the unsaved state: {error}"),
        }
        Ok(())
    }

    /// Removes the unsaved state, after its push, from the run report and the cache volume.
    async fn forget_unsaved_state(&self) -> Result<(), RecordError> {
        unsaved::remove(&self.record, self.within(FORGET)).await?;
        unsaved::forget(&self.paths.cache);
        Ok(())
    }

    /// Returns the earlier of two deadlines: `time` from now, and the end of the grace period of the pod.
    fn within(&self, time: Duration) -> Patience {
        Patience::until((Instant::now() + time).min(self.commands.end_of_grace()))
    }

    async fn push(&self, file: &Path) -> Result<(), Failure> {
        let arguments = vec!["state".into(), "push".into(), file.into()];
        let deadline = Instant::now() + PUSH;
        self.engine(
            RunStep::Push,
            arguments,
            StopPolicy::Persistent,
            deadline,
            &[0],
        )
        .await?;
        Ok(())
    }
}

fn not_pushed(identity: &Identity) -> Failure {
    let (name, namespace) = (identity.resource(), &identity.namespace);
    user(
        Reason::StateNotSaved,
        format!(
            "an earlier run could not save the state, and a plan that is not applied does not save it. \
             Nothing was changed. The next run that applies saves the state: with spec.mode: PlanOnly, set \
             spec.mode: Apply; otherwise kubectl alustan reconcile {name} --apply -n {namespace}"
        ),
    )
}
