//! Changes of [`RunProgress`] by the pod of a run: claim, start of the changes, state lock and end. The runner stores each change by
//! compare-and-swap, and repeats it with the stored progress after a conflict or a lost response. So each change recognises its repetition.

use super::progress::{Claim, Lineage, OwnBackend, RunPhase, RunProgress};
use crate::state_lock::StateLock;

/// What a run reports before it changes objects.
#[derive(Clone, Debug, Default)]
pub struct ChangesStart {
    /// See [`RunProgress::lineage`].
    pub lineage: Lineage,
    /// See [`RunProgress::state_address`].
    pub state_address: Option<String>,
    /// See [`RunProgress::own_backend`].
    pub own_backend: Option<OwnBackend>,
    /// Lock of the managed state, reserved for the first engine process. `None` to reserve no lock.
    pub lock: Option<StateLock>,
}

/// Result of [`RunProgress::begin`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Begin {
    /// The progress has changed. The run may change objects once the progress is stored.
    New,
    /// The stored progress already has the start: the response to an earlier write was lost.
    Repeated,
    /// The run is cancelled, and must change no objects.
    Cancelled,
}

/// Result of [`RunProgress::end`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// The progress has changed, and the report of the run is stored with it.
    New {
        /// Whether the run was cancelled before it changed objects.
        is_cancelled: bool,
    },
    /// The report is already stored: the response to an earlier write was lost.
    Repeated,
    /// The controller has recorded and removed the report: the response to an earlier write was lost.
    Recorded,
    /// The pod does not hold the claim of the run, or the controller has closed the run without a report. The report must not be stored.
    NotOurs,
}

/// Checks that `current`, the number of the current run, is `number`.
///
/// # Errors
/// Returns the reason for which a pod of run `number` must not execute its run.
pub fn check_number(current: i64, number: i64) -> Result<(), String> {
    if current == number {
        return Ok(());
    }
    Err(format!("the current run is {current}"))
}

impl RunProgress {
    /// Claims run `number` with `claim`. Returns whether the progress has changed: false if the pod has claimed the run before.
    ///
    /// # Errors
    /// Returns the reason for which the pod must not execute the run.
    pub fn claim(&mut self, number: i64, claim: Claim) -> Result<bool, String> {
        self.check_claim(number, &claim.pod_uid)?;
        if self.phase == RunPhase::Planning {
            return Ok(false);
        }
        self.phase = RunPhase::Planning;
        self.claimed_by = Some(claim);
        Ok(true)
    }

    fn check_claim(&self, number: i64, pod_uid: &str) -> Result<(), String> {
        check_number(self.number, number)?;
        let claim = self.claimed_by.as_ref();
        if let Some(other) = claim.filter(|claim| claim.pod_uid != pod_uid) {
            return Err(format!(
                "the run is claimed by pod {} (uid {})",
                other.pod, other.pod_uid
            ));
        }
        if self.cancel {
            return Err("the run is cancelled".to_owned());
        }
        if self.closed {
            return Err("the run has ended".to_owned());
        }
        match (self.phase, claim.is_some()) {
            (RunPhase::Starting, false) | (RunPhase::Planning, true) => Ok(()),
            (phase, _) => Err(format!("the run is already in phase {phase:?}")),
        }
    }

    /// Whether the pod with this uid holds the claim of run `number`, and the run is neither reported nor closed.
    pub fn is_executed_by(&self, number: i64, pod_uid: &str) -> bool {
        self.is_claimed_by(number, pod_uid) && !self.closed && self.phase < RunPhase::Reported
    }

    fn is_claimed_by(&self, number: i64, pod_uid: &str) -> bool {
        let claim = self.claimed_by.as_ref();
        self.number == number && claim.is_some_and(|claim| claim.pod_uid == pod_uid)
    }

    /// Starts the changes of the run, after which it can no longer be cancelled. Only for a pod for which [`Self::is_executed_by`] is true.
    pub fn begin(&mut self, start: &ChangesStart) -> Begin {
        if self.phase >= RunPhase::Applying {
            return Begin::Repeated;
        }
        if self.cancel {
            return Begin::Cancelled;
        }
        self.phase = RunPhase::Applying;
        self.began = true;
        self.lineage = start.lineage.clone();
        self.state_address.clone_from(&start.state_address);
        self.own_backend.clone_from(&start.own_backend);
        if self.lock.is_none() {
            self.lock.clone_from(&start.lock);
        }
        Begin::New
    }

    /// Ends run `number`, executed by the pod with this uid. The caller stores the report with the progress.
    pub fn end(&mut self, number: i64, pod_uid: &str) -> End {
        if self.phase > RunPhase::Reported || !self.is_claimed_by(number, pod_uid) {
            return End::NotOurs;
        }
        match (self.phase == RunPhase::Reported, self.closed) {
            (true, true) => return End::Recorded,
            (true, false) => return End::Repeated,
            (false, true) => return End::NotOurs,
            (false, false) => {}
        }
        let is_cancelled = self.cancel && self.phase < RunPhase::Applying;
        self.phase = RunPhase::Reported;
        End::New { is_cancelled }
    }

    /// Sets the lock of the managed state. Replaces a lock with another id only if its id is `before`, the id of an earlier lock of this run.
    /// Returns whether the progress has changed.
    ///
    /// # Errors
    /// Returns the lock that is not replaced.
    pub fn acquire_lock(
        &mut self,
        lock: &StateLock,
        before: Option<&str>,
    ) -> Result<bool, StateLock> {
        match &self.lock {
            Some(held) if held.id == lock.id => Ok(false),
            Some(held) if before != Some(&held.id) => Err(held.clone()),
            Some(_) | None => {
                self.lock = Some(lock.clone());
                Ok(true)
            }
        }
    }

    /// Removes the lock `id` of the managed state; without an id, any lock. Returns whether the progress has changed.
    ///
    /// # Errors
    /// Returns a lock with another id.
    pub fn release_lock(&mut self, id: Option<&str>) -> Result<bool, StateLock> {
        match self.lock.take() {
            Some(held) if id.is_some_and(|id| id != held.id) => {
                self.lock = Some(held.clone());
                Err(held)
            }
            held => Ok(held.is_some()),
        }
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::jiff::Timestamp;
    use rstest::rstest;

    use super::*;

    fn claim(uid: &str) -> Claim {
        Claim {
            pod_uid: uid.to_owned(),
            pod: format!("pod-of-{uid}"),
            at: Timestamp::UNIX_EPOCH,
        }
    }

    fn progress(number: i64, phase: RunPhase, by: Option<&str>, cancel: bool) -> RunProgress {
        RunProgress {
            number,
            phase,
            claimed_by: by.map(claim),
            cancel,
            ..RunProgress::default()
        }
    }

    #[rstest]
    #[case::fresh(progress(7, RunPhase::Starting, None, false), Ok(true))]
    #[case::own_container_again(progress(7, RunPhase::Planning, Some("uid-1"), false), Ok(false))]
    #[case::own_after_applying(
        progress(7, RunPhase::Applying, Some("uid-1"), false),
        Err("phase Applying")
    )]
    #[case::foreign(
        progress(7, RunPhase::Planning, Some("uid-2"), false),
        Err("claimed by pod pod-of-uid-2")
    )]
    #[case::other_number(progress(8, RunPhase::Starting, None, false), Err("current run is 8"))]
    #[case::cancelled(progress(7, RunPhase::Starting, None, true), Err("is cancelled"))]
    #[case::reported(progress(7, RunPhase::Reported, None, false), Err("phase Reported"))]
    fn only_an_unclaimed_current_run_is_claimed(
        #[case] progress: RunProgress,
        #[case] expected: Result<bool, &str>,
    ) {
        let mut claimed = progress.clone();
        match (claimed.claim(7, claim("uid-1")), expected) {
            (Ok(is_new), Ok(expected)) => {
                assert_eq!(is_new, expected);
                assert_eq!(claimed.claimed_by, Some(claim("uid-1")));
            }
            (Err(why), Err(part)) => {
                assert!(why.contains(part), "{why}");
                assert_eq!(claimed, progress);
            }
            (actual, expected) => panic!("{actual:?}, but expected {expected:?}"),
        }
    }

    #[rstest]
    #[case::planning(RunPhase::Planning, false, Begin::New)]
    #[case::cancelled(RunPhase::Planning, true, Begin::Cancelled)]
    #[case::applying(RunPhase::Applying, true, Begin::Repeated)]
    fn cancelled_run_begins_no_changes(
        #[case] phase: RunPhase,
        #[case] cancel: bool,
        #[case] expected: Begin,
    ) {
        let mut progress = progress(7, phase, Some("uid-1"), cancel);
        assert_eq!(progress.begin(&ChangesStart::default()), expected);
        assert_eq!(progress.began, expected == Begin::New);
    }

    #[rstest]
    #[case::planning(RunPhase::Planning, false, "uid-1", End::New { is_cancelled: true })]
    #[case::applying(RunPhase::Applying, false, "uid-1", End::New { is_cancelled: false })]
    #[case::again(RunPhase::Reported, false, "uid-1", End::Repeated)]
    #[case::removed(RunPhase::Reported, true, "uid-1", End::Recorded)]
    #[case::closed(RunPhase::Applying, true, "uid-1", End::NotOurs)]
    #[case::recorded(RunPhase::Recorded, true, "uid-1", End::NotOurs)]
    #[case::other_pod(RunPhase::Planning, false, "uid-2", End::NotOurs)]
    fn only_the_claiming_pod_ends_a_run(
        #[case] phase: RunPhase,
        #[case] closed: bool,
        #[case] uid: &str,
        #[case] expected: End,
    ) {
        let mut progress = progress(7, phase, Some("uid-1"), true);
        progress.closed = closed;
        assert_eq!(progress.end(7, uid), expected);
    }
}
