//! Decides the next writes and the status of a resource from the observed state. Uses no client, no clock and no async code.
//!
//! A decision has two phases: [`prepare::prepare`] determines the queries to repository and registry, and [`decide`] uses their answers.

mod active_run;
mod applied;
mod approval;
mod cache_mount;
mod cancellation;
mod case;
mod deletion;
mod deletion_hold;
mod dependencies;
mod flapping;
mod idle;
mod image_build;
mod image_outcome;
mod missing_record;
mod next_action;
mod next_step;
mod old_jobs;
mod opt_in;
mod plan_only;
pub mod prepare;
mod publish_outputs;
mod queue_run;
mod record_writes;
mod renew_hashes;
mod restore;
mod retry;
mod run_history;
mod run_result;
mod source;
mod start_run;
mod state_volume;
mod status_view;
mod target;
mod unchanged;

use alustan_api::Terraform;
use k8s_openapi::jiff::Timestamp;

use self::case::{RECHECK_INTERVAL, ReconcileCase, has_finalizer};
use self::image_build::ImageAvailability;
use self::next_step::Next;
use self::prepare::Prepared;
use self::target::Target;
use crate::model::facts;
use crate::model::image::ImageSeen;
use crate::model::summary::Summary;
use crate::observed::{OutputsSeen, Ownership};
use crate::step::{Decision, Step};

/// Returns the result of a reconcile: writes, an optional run or build that waits for a slot, status and requeue time. `image`: answers to
/// the queries of `prepared`, and the build of the image.
pub fn decide(prepared: Prepared<'_>, image: &ImageSeen) -> Decision {
    let Prepared {
        tf,
        seen,
        settings,
        now,
        refusal,
        recorded,
    } = prepared;
    let tf = &*tf;
    let deleting = tf.metadata.deletion_timestamp.is_some();
    let Some(record) = &seen.record else {
        let mut decision = missing_record::decide(tf, seen, &image.source, settings, now);
        decision
            .steps
            .splice(0..0, image_build::delete_build_secrets(seen));
        return decision;
    };
    if record.record.cleaned_up && !deleting {
        return await_deletion(tf, now);
    }
    let mut case = ReconcileCase {
        tf,
        seen,
        image,
        refusal: refusal.as_ref(),
        settings,
        now,
        record,
        current: record.record.clone(),
        history: record.history.clone(),
        outputs: seen.outputs,
        steps: Vec::new(),
    };
    if let Some(recorded) = recorded {
        case.steps = recorded.steps;
        case.current = recorded.record;
        case.history = recorded.history;
        if recorded.outputs {
            case.outputs = OutputsSeen {
                secret: Ownership::Ours,
                config_map: Ownership::Ours,
            };
        }
    } else {
        case.clear_report();
    }
    case.store_notices();
    case.discard_plan();
    case.steps.extend(image_build::delete_build_secrets(seen));
    case.steps.extend(old_jobs::delete_old_jobs(&case));
    case.steps.extend(case.release_claim());
    if deleting {
        return deletion::decide(case);
    }
    if !has_finalizer(tf) {
        case.steps.push(Step::AddFinalizer);
    }
    case.decide()
}

/// Returns the decision for a resource whose clean-up has started: the resource is deleted, and the watch cache has an outdated version.
fn await_deletion(tf: &Terraform, now: Timestamp) -> Decision {
    Decision {
        steps: Vec::new(),
        start: None,
        status: tf.status.clone().unwrap_or_default(),
        requeue_at: Some(now + RECHECK_INTERVAL),
    }
}

impl ReconcileCase<'_> {
    /// Returns the decision for a resource with a run record that is not deleted. In this order: a suspended resource, a status that is kept
    /// while git or registry do not answer, an active run, an unknown target, a resource for which no run is due, and the runner image.
    fn decide(mut self) -> Decision {
        let target = self.target();
        if let Ok(Target {
            source,
            wanted: Ok(wanted),
            ..
        }) = &target
        {
            self.renew_hashes(source, wanted);
        }
        if self.image.is_pruning_due && target.is_ok() {
            self.steps.push(Step::PruneImages);
        }
        let run = facts::open_run(&self.current).cloned();
        if self.tf.spec.suspend && self.current.phase.is_harmless() {
            return self.suspended(run.as_ref(), &target);
        }
        if let Some(status) = self.unchanged() {
            return self.keep_status(status);
        }
        if let Some(run) = run {
            return self.active(&run, target);
        }
        let target = match target {
            Ok(target) => target,
            Err(summary) => return self.cannot_start(&summary, None, None),
        };
        let Target { source, runner, .. } = &target;
        let next = match self.next(&target) {
            Next::Idle(summary, at) => return self.without_run(&summary, at),
            next @ (Next::Run(..) | Next::Image(_)) => next,
        };
        let waiting = self.image_wait(&next);
        let runner = match runner {
            Ok(runner) => runner.clone(),
            Err(summary) => {
                let summary = self.waiting_summary(waiting, summary);
                return self.cannot_start(&summary, None, None);
            }
        };
        self.store_base_image(runner.base);
        match image_build::image(&self, source, &runner.plan) {
            ImageAvailability::Ready(digest) => self.with_image(source, &runner.plan, next, digest),
            ImageAvailability::Missing(missing) => {
                self.without_image(&runner.plan, *missing, waiting)
            }
        }
    }

    /// Returns the decision if no run is due. Status shows the image of the last run. `at`: latest requeue time.
    fn without_run(mut self, summary: &Summary, at: Option<Timestamp>) -> Decision {
        self.store_failing_test(&self.seen.stack.health_checks);
        let digest = self.last_digest();
        let decision = self.done(summary, None, digest);
        Decision {
            requeue_at: decision.requeue_at.into_iter().chain(at).min(),
            ..decision
        }
    }
}
