//! Checks of other objects that delay apply, destroy or readiness: dependencies, dependents, and the tests in `waitFor`, `destroyWaitFor`
//! and `healthChecks` (rules 13 and 14).

use alustan_api::report::{Failure, FailureClass};
use alustan_api::run::{Trigger, WaitingSince};
use alustan_api::{Reason, State};
use k8s_openapi::jiff::Timestamp;

use crate::decide::case::{RECHECK_INTERVAL, ReconcileCase};
use crate::model::summary::{Summary, abandon_suffix};
use crate::observed::TestSeen;
use crate::status::dependencies::{failure_of, obstacle};

/// Maximum number of dependents that a message names.
const NAMES: usize = 10;

impl ReconcileCase<'_> {
    /// Returns the summary of the first obstacle to an apply: a dependency that is missing or not ready, or a failing `waitFor` test. The
    /// timeout of a test starts once all dependencies are ready.
    pub(super) fn blocked(&mut self) -> Option<Summary> {
        if let Some(missing) = self.missing_dependency() {
            self.store_failing_test(&[]);
            return Some(missing);
        }
        let stack = &self.seen.stack;
        self.store_failing_test(&stack.wait_for);
        let (test, failure) = stack.wait_for.iter().find_map(failure_of)?;
        Some(self.test_summary(test, failure, State::Pending))
    }

    /// Returns the summary if a run for changed inputs must wait, because the outputs of a dependency may also change soon.
    pub(super) fn upstream_wait(&self, trigger: &Trigger) -> Option<Summary> {
        let changing = self.seen.stack.changing.as_ref()?;
        let Trigger::Input { of } = trigger else {
            return None;
        };
        let message = format!(
            "{} changed; the next run waits for {changing}, whose outputs may also change, to \
             apply all changes in one run",
            of.join(", ")
        );
        Some(Summary {
            requeue_at: Some(self.now + RECHECK_INTERVAL),
            ..Summary::busy(State::Pending, Reason::WaitingForUpstream, message)
        })
    }

    /// Returns the summary of the first dependency that is missing or not ready, or of the first missing value of `spec.variablesFrom`.
    pub(super) fn missing_dependency(&self) -> Option<Summary> {
        let stack = &self.seen.stack;
        let mut dependencies = stack.dependencies.iter().filter_map(obstacle);
        if let Some((reason, message)) = dependencies.next() {
            let more = match dependencies.count() {
                0 => String::new(),
                more => format!("; and {more} more: see status.blockedBy"),
            };
            let message = format!("{message}{more}");
            return Some(Summary::blocked(State::Pending, reason, message));
        }
        let missing = stack.variables.missing.as_ref()?;
        Some(recheck_summary(missing, self.now))
    }

    /// Returns the summary of the first obstacle to destroy: dependents, or a failing `destroyWaitFor` test.
    pub(super) fn destroy_blocked(&mut self) -> Option<Summary> {
        let stack = &self.seen.stack;
        if !stack.dependents.is_empty() {
            self.store_failing_test(&[]);
            let names: Vec<_> = stack
                .dependents
                .iter()
                .take(NAMES)
                .map(String::as_str)
                .collect();
            let more = stack.dependents.len().saturating_sub(NAMES);
            let more = if more == 0 {
                String::new()
            } else {
                format!(" and {more} more")
            };
            let names = names.join(", ");
            let message = format!(
                "dependents are destroyed first: {names}{more}; see kubectl get tf -n {}{}",
                self.tf.metadata.namespace.as_deref().unwrap_or_default(),
                abandon_suffix(self.tf),
            );
            return Some(Summary::blocked(
                State::Destroying,
                Reason::DependentsExist,
                message,
            ));
        }
        self.store_failing_test(&stack.destroy_wait_for);
        let (test, failure) = stack.destroy_wait_for.iter().find_map(failure_of)?;
        Some(self.test_summary(test, failure, State::Destroying))
    }

    /// Returns the summary of an applied resource with a failing health check.
    pub(super) fn unhealthy(&self) -> Option<Summary> {
        self.history.applied.as_ref()?;
        let (test, failure) = self.seen.stack.health_checks.iter().find_map(failure_of)?;
        if failure.class != FailureClass::Transient {
            return Some(recheck_summary(failure, self.now));
        }
        let deadline = self.test_deadline(test);
        let message = &failure.message;
        if self.now < deadline {
            let summary = Summary::busy(State::Pending, Reason::HealthCheckPending, message);
            return Some(Summary {
                requeue_at: Some(deadline.min(self.now + RECHECK_INTERVAL)),
                ..summary
            });
        }
        let message = format!(
            "{message}; {}.timeout has expired; Ready becomes True once the health check passes",
            test.field
        );
        Some(Summary {
            requeue_at: Some(self.now + RECHECK_INTERVAL),
            ..Summary::stalled(Reason::HealthCheckFailed, message)
        })
    }

    fn test_summary(&self, test: &TestSeen, failure: &Failure, state: State) -> Summary {
        if failure.class != FailureClass::Transient {
            return recheck_summary(failure, self.now);
        }
        let deadline = self.test_deadline(test);
        let Failure {
            reason, message, ..
        } = failure;
        let requeue_at = self.now + RECHECK_INTERVAL;
        if self.now < deadline {
            return Summary {
                requeue_at: Some(deadline.min(requeue_at)),
                ..Summary::blocked(state, reason, message)
            };
        }
        let message = format!(
            "{message}; {}.timeout has expired; reconciliation resumes automatically once the test \
             passes",
            test.field
        );
        Summary {
            requeue_at: Some(requeue_at),
            ..Summary::stalled(Reason::WaitTimedOut, message)
        }
    }

    /// Returns the timestamp at which `test` times out.
    fn test_deadline(&self, test: &TestSeen) -> Timestamp {
        let waiting = self.history.waiting.as_ref();
        let since = waiting
            .filter(|waiting| waiting.field == test.field)
            .map(|waiting| waiting.since);
        let deadline = since.unwrap_or(self.now).checked_add(test.timeout);
        deadline.unwrap_or(Timestamp::MAX)
    }

    /// Stores the first of `tests` that fails, and the current time as the start of its timeout. If this test is already stored, keeps the
    /// stored time. Removes the entry if no test fails.
    pub(super) fn store_failing_test(&mut self, tests: &[TestSeen]) {
        let field = tests
            .iter()
            .find_map(failure_of)
            .map(|(test, _)| &test.field);
        let stored = self.history.waiting.as_ref().map(|waiting| &waiting.field);
        if field == stored {
            return;
        }
        self.history.waiting = field.map(|field| WaitingSince {
            field: field.clone(),
            since: self.now,
        });
        let swap = self.store_history();
        self.steps.push(swap);
    }
}

/// Returns the summary of `failure`: a value of `spec.variablesFrom` is missing, or a test failed and its timeout does not apply. A failure that
/// only a user can fix is not retried. Any other failure is checked again after [`RECHECK_INTERVAL`].
fn recheck_summary(failure: &Failure, now: Timestamp) -> Summary {
    let Failure {
        class,
        reason,
        message,
    } = failure;
    if *class == FailureClass::User {
        return Summary::stalled(reason, message);
    }
    Summary {
        requeue_at: Some(now + RECHECK_INTERVAL),
        ..Summary::blocked(State::Pending, reason, message)
    }
}
