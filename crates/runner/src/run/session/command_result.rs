//! Result of a command: its exit code, or a failure.

use alustan_api::Reason;
use alustan_api::report::{Failure, FailureClass};

use crate::engine::command::{Cause, Finished};
use crate::failure::{RunStep, classify, failure, module, transient};

/// Returns the exit code if it is in `good`. Otherwise, returns the failure of the command.
pub(super) fn judge(step: RunStep, finished: &Finished, good: &[i32]) -> Result<i32, Failure> {
    match (finished.code, finished.cause) {
        (Some(code), _) if good.contains(&code) => Ok(code),
        (code, Some(cause)) => Err(interrupted(step, code, cause, &finished.stderr)),
        (Some(code), None) => Err(classify(step, code, &error_output(step, finished))),
        (None, None) => Err(transient(
            Reason::Interrupted,
            "the pod was terminated: the command was not started",
        )),
    }
}

/// Returns the error output of a command: standard error, or standard output if a script printed nothing to standard error.
fn error_output(step: RunStep, finished: &Finished) -> String {
    let silent = finished.stderr.trim().is_empty() && matches!(step, RunStep::Script(_));
    if silent {
        String::from_utf8_lossy(&finished.stdout).into_owned()
    } else {
        finished.stderr.clone()
    }
}

fn interrupted(step: RunStep, code: Option<i32>, cause: Cause, stderr: &str) -> Failure {
    let how = match code {
        Some(code) => classify(step, code, stderr).message,
        None => "the command was still running and may have changed objects".to_owned(),
    };
    match cause {
        Cause::Stopped => transient(
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

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case::not_started(None, "not started")]
    #[case::silent(Some(Cause::Stopped), "still running")]
    #[case::after_its_time_limit(Some(Cause::Deadline), "still running")]
    fn command_without_exit_code_is_described(
        #[case] cause: Option<Cause>,
        #[case] expected: &str,
    ) {
        let finished = Finished {
            cause,
            ..Finished::default()
        };
        let failure = judge(RunStep::Apply, &finished, &[0]).unwrap_err();
        assert!(failure.message.contains(expected), "{}", failure.message);
    }
}
