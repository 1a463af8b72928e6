//! State that the engine could not save: rescued before the report, pushed by the next run.

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use alustan_api::report::{Failure, MAX_TEXT};

use crate::command::Ending;
use crate::failure::{Step, cut, world};
use crate::leftover;
use crate::session::Session;
use crate::workspace::write_private;

/// How long a push may take.
const PUSH: Duration = Duration::from_mins(2);

impl Session {
    /// Saves what the engine could not save. The result stays what it was.
    pub(crate) async fn rescue_state(&self, result: Result<(), Failure>) -> Result<(), Failure> {
        let file = self.directory.join(leftover::FILE);
        if !file.is_file() {
            return result;
        }
        crate::say!("the engine could not save the state");
        let kept = leftover::keep(&self.layout.cache, &file, &self.key);
        let note = match (self.push(&file).await, kept) {
            (Ok(()), _) => {
                leftover::forget(&self.layout.cache);
                let _ = fs::remove_file(&file);
                return result;
            }
            (Err(push), Ok(())) => format!(
                "the state is not saved ({}); it is kept on the cache volume, and the next run \
                 pushes it before anything else",
                push.message
            ),
            (Err(push), Err(error)) => format!(
                "the state is LOST unless it is taken from this pod's {} now: {}; cache volume: {error}",
                file.display(),
                push.message
            ),
        };
        crate::say!("{note}");
        let before = result.err();
        let text = before
            .as_ref()
            .map_or("", |failure| failure.message.as_str());
        Err(match &before {
            Some(failure) => Failure {
                message: cut(&format!("{note}\n{text}"), MAX_TEXT),
                ..failure.clone()
            },
            None => world("StateNotSaved", note),
        })
    }

    /// Pushes what an earlier run could not save.
    pub(crate) async fn push_leftover(&self) -> Result<(), Failure> {
        let Some(state) = leftover::take(&self.layout.cache, &self.key) else {
            return Ok(());
        };
        crate::say!("pushing the state that an earlier run could not save");
        let file = self.layout.work.join(leftover::FILE);
        let unwritten = |error| {
            world(
                "WorkspaceFailed",
                format!("write {}: {error}", file.display()),
            )
        };
        write_private(&file, &state, 0o600).map_err(unwritten)?;
        let pushed = self.push(&file).await;
        let _ = fs::remove_file(&file);
        match pushed {
            Ok(()) => leftover::forget(&self.layout.cache),
            Err(failure) if failure.message.contains("cannot import state with serial") => {
                crate::say!("the stored state is newer: the old one is put aside");
                leftover::put_aside(&self.layout.cache, self.record.identity().number);
            }
            Err(failure) => return Err(failure),
        }
        Ok(())
    }

    async fn push(&self, file: &Path) -> Result<(), Failure> {
        let arguments = vec!["state".into(), "push".into(), file.into()];
        let deadline = Instant::now() + PUSH;
        self.engine(Step::Push, arguments, Ending::Persistent, deadline, &[0])
            .await?;
        Ok(())
    }
}
