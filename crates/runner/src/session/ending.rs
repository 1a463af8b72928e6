//! Result of a command: its exit code, or a failure.

use alustan_api::Reason;
use alustan_api::report::{Failure, FailureClass};

use crate::command::{Cause, Finished};
use crate::failure::{Step, classify, failure, module, world};

/// Returns the exit code if it is in `good`, otherwise the failure.
pub(super) fn judge(step: Step, finished: &Finished, good: &[i32]) -> Result<i32, Failure> {
    match (finished.code, finished.cause) {
        (Some(code), _) if good.contains(&code) => Ok(code),
        (code, Some(cause)) => Err(interrupted(step, code, cause, &finished.stderr)),
        (Some(code), None) => Err(classify(step, code, &said(step, finished))),
        (None, None) => Err(world(Reason::Interrupted, "the command did not start")),
    }
}

/// Returns the error output of a command. Many scripts print errors to standard output.
fn said(step: Step, finished: &Finished) -> String {
    let silent = finished.stderr.trim().is_empty() && matches!(step, Step::Script(_));
    if silent {
        String::from_utf8_lossy(&finished.stdout).into_owned()
    } else {
        finished.stderr.clone()
    }
}

fn interrupted(step: Step, code: Option<i32>, cause: Cause, stderr: &str) -> Failure {
    let how = match code {
        Some(code) => classify(step, code, stderr).message,
        None if stderr.is_empty() => "the command was not started".to_owned(),
        None => "the command did not end before the pod was terminated".to_owned(),
    };
    match cause {
        Cause::Stopped => world(
            Reason::Interrupted,
            format!("the pod was terminated: {how}"),
        ),
        Cause::Deadline => module(Reason::TimedOut, format!("the timeout expired: {how}")),
    }
}

/// Returns the failure of a run that was stopped before it changed anything.
pub(crate) fn stopped() -> Failure {
    failure(
        FailureClass::Transient,
        Reason::Interrupted,
        "the pod was terminated before the run changed anything",
    )
}
