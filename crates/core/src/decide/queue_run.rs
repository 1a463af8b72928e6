//! Queues a run. It starts once a slot is free and the pod of the previous run has ended.

use alustan_api::run::{RunKind, Trigger};
use alustan_api::{Reason, State};

use crate::decide::case::ReconcileCase;
use crate::decide::start_run::RunRequest;
use crate::model::facts;
use crate::model::image::ImagePlan;
use crate::model::summary::Summary;
use crate::queue::Class;
use crate::step::{Decision, Start};

impl ReconcileCase<'_> {
    /// Queues `run`; it starts once a slot is free and the pod of the previous run has ended.
    pub(super) fn run(
        mut self,
        run: &RunRequest,
        plan: Option<&ImagePlan>,
        digest: Option<String>,
    ) -> Decision {
        let quiet = self.keeps_ready(run.kind, &run.trigger, &run.config.hash);
        let occupied = facts::occupied(self.seen.job.as_ref());
        let (reason, message) = if occupied {
            (
                Reason::AwaitingProcessing,
                "waiting for the pod of the previous run to end",
            )
        } else {
            (Reason::Queued, "waiting for a slot to start the run")
        };
        let waiting = match run.kind {
            _ if quiet => self.idle_summary(),
            RunKind::Destroy => Summary::busy(State::Destroying, reason, message),
            RunKind::Plan | RunKind::Apply | RunKind::Drift => {
                Summary::busy(State::Pending, reason, message)
            }
        };
        if occupied {
            return self.done(&waiting, plan, digest);
        }
        let check = (run.trigger == Trigger::Interval)
            .then(|| self.next_drift_check())
            .flatten();
        let (steps, next) = run.steps(&self);
        let status = self.view(plan, digest.clone()).status(&waiting, self.now);
        self.current = next;
        let running = self
            .view(plan, digest)
            .status(&self.running(quiet), self.now);
        Decision {
            steps: self.steps,
            start: Some(Start {
                class: Class::of(run.kind, &run.trigger),
                check,
                steps,
                status: running,
            }),
            status,
            requeue_at: None,
        }
    }
}
