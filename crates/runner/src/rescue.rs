//! Unsaved states: the run keeps the state in the run report or on the cache volume, and pushes it again. If that fails, the next run
//! pushes it.

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use alustan_api::Reason;
use alustan_api::report::{Failure, MAX_TEXT, UnsavedPlace};
use alustan_api::run::key;

use crate::command::Ending;
use crate::execute::outcome::{Ended, Findings};
use crate::failure::{Step, cut, world};
use crate::leftover::{self, Unkept};
use crate::record::RecordError;
use crate::retry::Patience;
use crate::session::Session;
use crate::workspace::write_private;

/// Time limit of `state push`.
const PUSH: Duration = Duration::from_mins(2);
/// Time limit for writing the state to the run report before the first push.
const FIRST_TRY: Duration = Duration::from_secs(30);
/// Time limit for removing a pushed state from the run report.
const FORGET: Duration = Duration::from_mins(2);

/// Location in which an earlier run may have kept an unsaved state.
#[derive(Clone, Copy)]
enum Place {
    Report,
    Cache,
}

impl Session {
    /// Saves a state that the engine failed to save. Returns `result` unchanged on success, otherwise a failure with the location of the
    /// state.
    pub(crate) async fn rescue_state(
        &self,
        result: Result<(), Failure>,
        findings: &mut Findings,
    ) -> Result<(), Failure> {
        let file = self.directory.join(leftover::FILE);
        if !file.is_file() {
            return result;
        }
        crate::say!("the engine failed to save the state");
        let Some(note) = self.rescue(&file, findings).await else {
            let _ = fs::remove_file(&file);
            return result;
        };
        let note = self.commands.redactor.text(&note);
        crate::say!("{note}");
        Err(match result {
            Err(failure) => Failure {
                message: cut(&format!("{note}\n{}", failure.message), MAX_TEXT),
                ..failure
            },
            Ok(()) => world(Reason::StateNotSaved, note),
        })
    }

    /// Keeps the state in the run report and on the cache volume, because the pod may end at any time. Then pushes it to the backend. If
    /// the push fails, returns a note with the location of the state.
    async fn rescue(&self, file: &Path, findings: &mut Findings) -> Option<String> {
        let on_cache = self.keep_on_cache(file);
        let mut in_report = self.keep_in_report(file, self.within(FIRST_TRY)).await;
        let Err(push) = self.push(file).await else {
            if let Err(error) = self.forget_leftover().await {
                crate::say!(
                    "failed to remove the unsaved state after it was pushed; the next run pushes \
                     it again: {error}"
                );
            }
            return None;
        };
        if on_cache.is_err() && in_report.as_ref().is_err_and(Unkept::is_passing) {
            let end = self.commands.end_of_grace();
            in_report = self.keep_in_report(file, Patience::until(end)).await;
        }
        let (place, note) = self.what_became_of(file, in_report, on_cache, &push);
        findings.unsaved = place;
        Some(note)
    }

    fn keep_on_cache(&self, file: &Path) -> Result<(), String> {
        if !self.layout.cache_kept {
            return Err("the cache volume is deleted with the pod".to_owned());
        }
        fs::read(file)
            .and_then(|state| leftover::keep(&self.layout.cache, state, &self.key))
            .map_err(|error| format!("cache volume: {error}"))
    }

    async fn keep_in_report(&self, file: &Path, patience: Patience) -> Result<(), Unkept> {
        let sealed = leftover::seal(&fs::read(file)?, &self.key)?;
        leftover::put(&self.record, &sealed, patience).await
    }

    fn what_became_of(
        &self,
        file: &Path,
        in_report: Result<(), Unkept>,
        on_cache: Result<(), String>,
        push: &Failure,
    ) -> (Option<UnsavedPlace>, String) {
        let secret = self.record.identity().report();
        let (place, name) = match (in_report, on_cache) {
            (Ok(()), _) => (UnsavedPlace::Report, format!("in Secret {secret}")),
            (Err(_), Ok(())) => (UnsavedPlace::CacheVolume, "on the cache volume".to_owned()),
            (Err(record), Err(cache)) => {
                let note = format!(
                    "the state will be LOST with this pod: copy {} from the pod now. Secret \
                     {secret}: {record}; {cache}; {}",
                    file.display(),
                    push.message
                );
                return (None, note);
            }
        };
        let note = format!(
            "failed to save the state: {}; it is kept {name}, and the next run pushes it before any \
             other operation",
            push.message
        );
        (Some(place), note)
    }

    /// Whether there is an unsaved state of an earlier run.
    pub(crate) fn has_leftover(&self) -> bool {
        let mut places = [Place::Report, Place::Cache].into_iter();
        places.any(|place| self.leftover_in(place).is_some())
    }

    /// Pushes the unsaved state of an earlier run to the backend.
    pub(crate) async fn push_leftover(&self) -> Result<(), Ended> {
        for place in [Place::Report, Place::Cache] {
            let Some(state) = self.leftover_in(place) else {
                continue;
            };
            crate::say!("pushing the unsaved state of an earlier run");
            if self.push_found(&state).await? {
                return Ok(self.forget_leftover().await?);
            }
            self.put_aside(place, state).await?;
        }
        Ok(())
    }

    fn leftover_in(&self, place: Place) -> Option<Vec<u8>> {
        match place {
            Place::Report => {
                let sealed = self.leftover.as_ref()?;
                let opened = leftover::open(sealed, &self.key);
                if let Err(why) = &opened {
                    let secret = self.record.identity().report();
                    crate::say!(
                        "cannot decrypt key {} of Secret {secret}; the key is kept: {why}",
                        key::LEFTOVER
                    );
                }
                opened.ok()
            }
            Place::Cache => leftover::take(&self.layout.cache, &self.key),
        }
    }

    /// Pushes `state` to the backend. Returns false if the state in the backend is newer.
    async fn push_found(&self, state: &[u8]) -> Result<bool, Failure> {
        let file = self.layout.work.join(leftover::FILE);
        let unwritten = |error| {
            world(
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

    /// Keeps an unsaved state for inspection if the state in the backend is newer: on the cache volume if the volume outlives the pod,
    /// otherwise in the run report until the outputs need the space.
    async fn put_aside(&self, place: Place, state: Vec<u8>) -> Result<(), RecordError> {
        let cache = &self.layout.cache;
        if matches!(place, Place::Report) && !self.layout.cache_kept {
            let secret = self.record.identity().report();
            crate::say!("the stored state is newer; the unsaved state is kept in Secret {secret}");
            return Ok(());
        }
        crate::say!(
            "the stored state is newer; moving the unsaved state aside on the cache volume"
        );
        let number = self.record.identity().number;
        match (leftover::keep_old(cache, number, state, &self.key), place) {
            (Ok(()), Place::Report) => {
                leftover::remove(&self.record, self.within(FORGET)).await?;
            }
            (Ok(()), Place::Cache) => leftover::forget(cache),
            (Err(error), _) => crate::say!("failed to move the unsaved state: {error}"),
        }
        Ok(())
    }

    /// Removes the unsaved state, after its push, from the run report and the cache volume.
    async fn forget_leftover(&self) -> Result<(), RecordError> {
        leftover::remove(&self.record, self.within(FORGET)).await?;
        leftover::forget(&self.layout.cache);
        Ok(())
    }

    /// Returns a deadline after `time`, but not later than the end of the grace period of the pod.
    fn within(&self, time: Duration) -> Patience {
        Patience::until((Instant::now() + time).min(self.commands.end_of_grace()))
    }

    async fn push(&self, file: &Path) -> Result<(), Failure> {
        let arguments = vec!["state".into(), "push".into(), file.into()];
        let deadline = Instant::now() + PUSH;
        self.engine(Step::Push, arguments, Ending::Persistent, deadline, &[0])
            .await?;
        Ok(())
    }
}
