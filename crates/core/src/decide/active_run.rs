//! Active runs: status, cancellation, and startup timeouts.

use alustan_api::conditions::Convergence;
use alustan_api::report::Failure;
use alustan_api::run::{RunKind, RunPhase, RunProgress, RunRecord, RunSpec, Trigger};
use alustan_api::{Reason, State, Terraform};
use k8s_openapi::jiff::{SignedDuration, Timestamp};
use kube_core::ResourceExt;
use serde_json::json;

use crate::decide::cancellation::{by_user, is_by_user};
use crate::decide::case::ReconcileCase;
use crate::decide::target::Target;
use crate::model::pod_wait::{
    NO_POD_TIMEOUT, STARTUP_TIMEOUT, no_pod, slow_pod, startup_since, startup_timeout,
};
use crate::model::summary::{self, Summary, logs, patch};
use crate::model::{admission, approval_policy, progress};
use crate::observed::Waiting;
use crate::step::{Decision, Step, Swap};

/// Time after which status reports a pod that has not started, if Kubernetes reports no cause. Shorter waits are normal: the pull of a
/// large image takes long.
const SLOW_POD: SignedDuration = SignedDuration::from_mins(2);
/// Startup timeout of a pod if Kubernetes reports no cause.
const UNEXPLAINED_STARTUP_TIMEOUT: SignedDuration = SignedDuration::from_mins(20);
/// Time by which a run may exceed `spec.timeouts` before status reports that the run is overdue. Much longer than the termination grace
/// period of the pod.
const OVERDUE: SignedDuration = SignedDuration::from_mins(30);

impl ReconcileCase<'_> {
    /// Returns the decision while `run` is active: creates its missing objects, or cancels the run. After a change of the configuration or of
    /// the pod options, cancels the run only if the run has no Job yet or its pod cannot start. In all other cases, the new configuration
    /// waits for the end of the run.
    pub(super) fn active(mut self, run: &RunSpec, target: Result<Target, Summary>) -> Decision {
        let wanted = target.as_ref().ok().map(|target| &target.wanted);
        let hash = wanted.and_then(|wanted| Some(&wanted.as_ref().ok()?.config.hash));
        let (config_matches, config_changed) = match hash {
            Some(hash) => (*hash == run.config_hash, *hash != run.config_hash),
            None => (false, false),
        };
        // Do not create missing objects of a run that is cancelled: if the API server refused to create the Job, the later steps, which
        // cancel the run, would not be executed.
        let options_changed = run.pod != self.pod_digest(run.destroys);
        let changed = config_changed || options_changed;
        let is_replaced = changed && self.seen.job.is_none() && self.starting().is_some();
        if is_replaced || self.lost_approval(run) {
            let cancellation = self.user_cancellation();
            self.cancel(&run.job, cancellation);
        } else {
            self.continue_or_cancel(run);
        }
        let quiet = self.keeps_ready(run.kind, &run.trigger, &run.config_hash);
        let stuck = self.check_startup(changed);
        let summary = match &target {
            Err(problem) if quiet && run.kind == RunKind::Drift => problem.clone(),
            Ok(_) | Err(_) => match stuck {
                Some(stuck) if !quiet => stuck,
                Some(_) | None => Summary {
                    requeue_at: self.next_deadline(),
                    ..self.running(quiet && config_matches)
                },
            },
        };
        let plan = target.ok().and_then(|target| target.runner.ok());
        let plan = plan.map(|runner| runner.plan);
        let plan = plan.filter(|plan| run.tag == plan.tag);
        let digest = run.image.split_once('@').filter(|_| plan.is_some());
        let digest = digest.map(|(_, digest)| digest.to_owned());
        self.done(&summary, plan.as_ref(), digest)
    }

    /// Whether `run` has not started to apply and its approval is no longer valid: the approval policy changed, the approval was withdrawn,
    /// or the plan was discarded.
    pub(super) fn lost_approval(&self, run: &RunSpec) -> bool {
        let policy_digest = approval_policy::policy_digest(self.tf, run.destroys);
        let inputs = self.record.inputs.as_ref();
        let approved = inputs.and_then(|inputs| inputs.approval.approved.as_ref());
        let withdrawn =
            approved.is_some_and(|plan| self.tf.spec.approval.plan.as_ref() != Some(&plan.id));
        let discarded = approved.is_some_and(|plan| self.history.has_discarded(&plan.id));
        let is_invalid = run.kind != RunKind::Drift
            && (run.judged_by != policy_digest || withdrawn || discarded);
        is_invalid && self.current.phase < RunPhase::Applying
    }

    /// Returns the decision of a suspended resource: starts nothing, and cancels the active run `run`. The caller ensures that `run` has
    /// not begun to change objects.
    pub(super) fn suspended(
        mut self,
        run: Option<&RunSpec>,
        target: &Result<Target, Summary>,
    ) -> Decision {
        let wanted = target.as_ref().and_then(|target| target.wanted.as_ref());
        let unsuspended = match (wanted, run) {
            (Ok(wanted), _) if self.is_current(&wanted.config.hash) => self.idle_summary(),
            (Err(problem), _) if problem.convergence != Convergence::Converging => problem.clone(),
            (_, Some(_)) => Summary::busy(State::Planning, Reason::Suspended, "cancelling the run"),
            (_, None) => Summary {
                state: State::Pending,
                ..Summary::stalled(
                    Reason::Suspended,
                    "the current configuration has not been applied",
                )
            },
        };
        if let Some(run) = run {
            let cancellation = self.user_cancellation();
            self.cancel(&run.job, cancellation);
        }
        let summary = Summary {
            reason: Reason::Suspended.into(),
            message: format!("{}; {}", unsuspended.message, suspension(self.tf)),
            ..unsuspended
        };
        self.done(&summary, None, None)
    }

    /// Returns the summary of the active run. `quiet`: the run is a drift check or correction of the applied configuration and leaves
    /// `Ready` unchanged.
    pub(super) fn running(&self, quiet: bool) -> Summary {
        let Some(run) = &self.current.run else {
            return Summary::busy(
                State::Pending,
                Reason::AwaitingProcessing,
                "Awaiting processing",
            );
        };
        if quiet && run.kind == RunKind::Drift {
            let idle = self.idle_summary();
            return match self.overdue() {
                Some(overdue) => Summary::ready(idle.state, Reason::RunDeadlineExceeded, overdue),
                None => idle,
            };
        }
        let state = match self.current.phase {
            RunPhase::Applying => State::Applying,
            _ => State::Planning,
        };
        match (self.overdue(), quiet) {
            (Some(overdue), true) => Summary::ready(state, Reason::RunDeadlineExceeded, overdue),
            (Some(overdue), false) => Summary::blocked(state, Reason::RunDeadlineExceeded, overdue),
            (None, true) if self.unhealthy().is_none() => {
                Summary::ready(state, Reason::Applied, self.describe_run())
            }
            (None, true) => Summary::busy(state, Reason::Applied, self.describe_run()),
            (None, false) => Summary::busy(state, Reason::Running, self.describe_run()),
        }
    }

    /// Returns the deadline of the active run: the time of its claim (the start of the run if no pod has claimed it), plus the timeout of
    /// the plan, plus the timeout of the apply or destroy, plus [`OVERDUE`].
    fn deadline(&self) -> Option<Timestamp> {
        let run = self.current.run.as_ref()?;
        let timeouts = self.record.inputs.as_ref()?.timeouts;
        let change_timeout = match run.kind {
            RunKind::Destroy => timeouts.destroy,
            RunKind::Plan | RunKind::Apply | RunKind::Drift => timeouts.apply,
        };
        let timeouts =
            i64::try_from(timeouts.plan.saturating_add(change_timeout)).unwrap_or(i64::MAX);
        // A forged report may contain any claim time. A claim time in the future is ignored.
        let claim = self.current.claimed_by.as_ref();
        claim
            .map(|claim| claim.at)
            .filter(|at| *at <= self.now)
            .unwrap_or(run.started_at)
            .checked_add(SignedDuration::from_secs(timeouts))
            .and_then(|at| at.checked_add(OVERDUE))
            .ok()
    }

    /// Returns the message for a run past its deadline, for example after the loss of its node. No other run starts before it is certain
    /// that the pod of this run has ended.
    pub(super) fn overdue(&self) -> Option<String> {
        let run = self.current.run.as_ref()?;
        self.deadline().filter(|deadline| *deadline <= self.now)?;
        let namespace = self.tf.namespace().unwrap_or_default();
        Some(format!(
            "run {} ({}) has exceeded its timeouts, for example because its node is lost; check \
             the node: kubectl get pods -n {namespace} -l job-name={job} -o wide; only if the node \
             is lost: kubectl delete pods -n {namespace} -l job-name={job} --force",
            self.current.number,
            run.trigger,
            job = run.job,
        ))
    }

    /// Describes the active run and how to follow its log.
    pub(super) fn describe_run(&self) -> String {
        let Some(run) = &self.current.run else {
            return String::new();
        };
        let activity = match (run.kind, self.current.phase) {
            _ if self.current.cancel => "being cancelled",
            _ if by_user(&self.current).is_some() => {
                "being interrupted, because a user cancelled it"
            }
            (RunKind::Destroy, _) => "destroying",
            (_, RunPhase::Applying) => "applying",
            _ if matches!(run.trigger, Trigger::Approval { .. }) => {
                "about to apply the approved plan"
            }
            (_, _) => "planning",
        };
        let log_command = logs(self.tf, &run.job);
        format!(
            "run {} ({}) is {activity}; logs: {log_command} -f",
            self.current.number, run.trigger
        )
    }

    /// Returns the current run if no pod has claimed it yet.
    fn starting(&self) -> Option<&RunSpec> {
        let RunRecord {
            phase,
            claimed_by,
            run,
            ..
        } = &self.current;
        let unclaimed = *phase == RunPhase::Starting && claimed_by.is_none();
        run.as_ref().filter(|_| unclaimed)
    }

    /// Returns the time at which the active run is reconciled next if no event occurs before: the next startup timeout while no pod has
    /// claimed the run, then the deadline of the run.
    pub(super) fn next_deadline(&self) -> Option<Timestamp> {
        let Some(run) = self.starting() else {
            return self.deadline().filter(|due| self.now < *due);
        };
        let since = self.startup_since(run);
        let scheduling_timeout = self.settings.scheduling_timeout;
        let timeouts = [
            NO_POD_TIMEOUT,
            SLOW_POD,
            STARTUP_TIMEOUT,
            scheduling_timeout,
            UNEXPLAINED_STARTUP_TIMEOUT,
        ];
        timeouts
            .map(|wait| since + wait)
            .into_iter()
            .filter(|due| self.now < *due)
            .min()
    }

    /// Whether `waiting` is a failed pull of the runner image, and `run` is a destroy that can run in the base image instead.
    fn can_use_base_image(&self, run: &RunSpec, waiting: &Waiting) -> bool {
        let pin = self.seen.pin.as_ref();
        let has_base_image = pin.is_some_and(|pin| pin.base.is_some() && pin.artifact.is_some());
        has_base_image && run.destroys && !run.unpack && waiting.reason == Reason::ImagePullBackOff
    }

    /// Returns the start of the startup timeout: the time at which the pod was scheduled, or the start of the run if the pod is not
    /// scheduled yet.
    fn startup_since(&self, run: &RunSpec) -> Timestamp {
        let job = self.seen.job.as_ref();
        let scheduled_at = job.and_then(|job| job.scheduled_at);
        startup_since(run.started_at, scheduled_at, self.now)
    }

    /// Returns why the pod of `run` does not start, and the time at which the run is cancelled.
    fn obstacle(&self, run: &RunSpec) -> Option<(Waiting, Timestamp)> {
        if let Some(refused) = &self.seen.refused {
            // The API server repeats refused values, and the run record keeps the message.
            let refused = Waiting {
                reason: refused.reason.clone(),
                message: progress::truncate(&refused.message, progress::MAX_MESSAGE),
            };
            return Some((refused, self.now));
        }
        let job = self.seen.job.as_ref().filter(|job| !job.finished)?;
        let since = self.startup_since(run);
        let elapsed = self.now.duration_since(since);
        let cause = match &job.waiting {
            Some(waiting) => Some(waiting.clone()),
            None if !job.has_pod && elapsed >= NO_POD_TIMEOUT => {
                let namespace = self.tf.namespace().unwrap_or_default();
                Some(no_pod(&namespace, &run.job))
            }
            None => None,
        };
        if let Some(cause) = cause {
            let wait = if self.can_use_base_image(run, &cause) {
                NO_POD_TIMEOUT
            } else {
                startup_timeout(&cause, self.settings)
            };
            return Some((cause, since + wait));
        }
        let slow = job.pods_alive && elapsed >= SLOW_POD;
        slow.then(|| {
            let given_up_at = since + UNEXPLAINED_STARTUP_TIMEOUT;
            let is_scheduled = job.scheduled_at.is_some();
            (slow_pod(self.tf, &run.job, is_scheduled), given_up_at)
        })
    }

    /// Returns the summary of a run that cannot start. Cancels the run after the startup timeout, or at once if the configuration or
    /// the pod options have `changed`. No pod has claimed the run, so the cancellation interrupts no engine process. A timeout is a transient
    /// failure and is retried.
    pub(super) fn check_startup(&mut self, changed: bool) -> Option<Summary> {
        let run = self.starting()?.clone();
        let (number, trigger) = (self.current.number, &run.trigger);
        if self.current.cancel {
            let cause = if by_user(&self.current).is_some() {
                "was cancelled by a user"
            } else {
                self.cancel(&run.job, None);
                "could not start and is being cancelled"
            };
            let message = format!(
                "run {number} ({trigger}) {cause}; waiting for its pod to end; see kubectl describe \
                 pods -n {} -l job-name={}",
                self.tf.namespace().unwrap_or_default(),
                run.job,
            );
            return Some(Summary::busy(State::Planning, Reason::Cancelling, message));
        }
        let (cause, given_up_at) = self.obstacle(&run)?;
        let hint = if cause.reason == Reason::Rejected {
            "; the options of the pod are in spec.runner.pod".to_owned()
        } else {
            self.volume_hint(&run, &cause)
        };
        let message = format!("run {number} ({trigger}) cannot start: {cause}{hint}");
        if changed {
            self.cancel(&run.job, None);
        } else if self.now >= given_up_at {
            let failure = Failure::transient(cause.reason.clone(), message.clone());
            self.cancel(&run.job, Some(failure));
        }
        let message = if admission::is_refused(&cause.reason) {
            let namespace = self.tf.namespace().unwrap_or_default();
            format!("{message}; see {}", admission::limits_of(&namespace))
        } else {
            format!(
                "{message}; if the pod does not start by {}, the run is cancelled and retried",
                summary::format_time(given_up_at)
            )
        };
        Some(Summary {
            requeue_at: Some(given_up_at),
            ..Summary::blocked(State::Planning, &cause.reason, message)
        })
    }

    /// Sets `cancel` in run record and report, so that the run cannot start to apply. Then deletes the Job instead of waiting for the end
    /// of its pod, because the plan may take long, and a pod that cannot start never ends. `given_up`: failure because of which the run is
    /// cancelled.
    pub(super) fn cancel(&mut self, job: &str, given_up: Option<Failure>) {
        let is_by_user = given_up.as_ref().is_some_and(is_by_user);
        if !self.current.cancel || (is_by_user && self.current.given_up != given_up) {
            self.current.cancel = true;
            self.current.given_up = given_up;
            let swap = Swap::unchanged(&self.current);
            self.steps.push(Step::SwapRecord(Box::new(swap)));
            let run = self.current.run.as_ref();
            if run.is_some_and(progress::has_own_report) {
                let cancelled = RunProgress::of(&self.current);
                self.steps.push(Step::SwapReport(Box::new(cancelled)));
            }
        }
        self.delete_job(job);
    }

    /// Deletes the Job `name` of the current run. The pod of the Job receives SIGTERM, and is killed after its termination grace period.
    pub(super) fn delete_job(&mut self, name: &str) {
        let job = self.seen.job.as_ref().filter(|job| !job.finished);
        self.steps.extend(job.map(|job| Step::DeleteJob {
            namespace: self.tf.namespace().unwrap_or_default(),
            name: name.to_owned(),
            uid: job.uid.clone(),
        }));
    }
}

/// Returns a message with the effect of `spec.suspend` and the command that resumes the resource.
pub(super) fn suspension(tf: &Terraform) -> String {
    let resume = patch(tf, &json!({ "suspend": false }));
    format!("suspended: no run starts; to resume: {resume}")
}
