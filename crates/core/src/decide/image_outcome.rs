//! Decision once the runner image is found in the registry, or is missing.

use alustan_api::conditions::Convergence;
use alustan_api::run::{RunKind, Trigger};
use alustan_api::{Reason, State, names};
use kube_core::ResourceExt;

use crate::decide::approval;
use crate::decide::case::ReconcileCase;
use crate::decide::image_build::{self, MissingImage};
use crate::decide::next_step::Next;
use crate::decide::start_run::RunRequest;
use crate::model::image::{self, ImagePlan};
use crate::model::summary::Summary;
use crate::observed::SourceSeen;
use crate::queue::Class;
use crate::step::{Decision, Start};

/// Priority in the queue, and effect on condition `Ready`, of a run that waits for its image.
#[derive(Clone, Copy)]
pub(super) struct ImageWait {
    /// Priority of the waiting run in the queue: change, plan or drift.
    pub(super) class: Class,
    /// Whether the status and reason of condition `Ready` stay unchanged, because the configuration is already applied.
    pub(super) keeps_ready: bool,
}

impl ReconcileCase<'_> {
    /// Returns the priority of `next` in the queue (change, plan or drift), and whether condition `Ready` stays unchanged while `next`
    /// waits for its image.
    pub(super) fn image_wait(&self, next: &Next) -> ImageWait {
        match next {
            Next::Run(wanted, kind, trigger) => ImageWait {
                class: Class::of(*kind, trigger),
                keeps_ready: self.keeps_ready(*kind, trigger, &wanted.config.hash),
            },
            Next::Image(_) | Next::Idle(..) => ImageWait {
                class: Class::Plan,
                keeps_ready: false,
            },
        }
    }

    /// Returns the decision for `next` with the runner image `digest`: starts the run unless a dependency or a test delays it.
    pub(super) fn with_image(
        mut self,
        source: &SourceSeen,
        plan: &ImagePlan,
        next: Next,
        digest: String,
    ) -> Decision {
        let (wanted, kind, trigger) = match next {
            Next::Run(wanted, kind, trigger) => (*wanted, kind, trigger),
            Next::Image(summary) | Next::Idle(summary, _) => {
                return self.done(&summary, Some(plan), Some(digest));
            }
        };
        let hash = &wanted.config.hash;
        let quiet = self.keeps_ready(kind, &trigger, hash);
        // A plan for a change waits for the dependencies, whose objects it may read. A drift check and a requested plan do not.
        let is_speculative = self.is_speculative(kind, &trigger);
        let is_requested = matches!(trigger, Trigger::PlanRequested { .. });
        let waits = kind != RunKind::Drift || (is_speculative && !is_requested && !quiet);
        if waits && let Some(blocked) = self.blocked().or_else(|| self.upstream_wait(&trigger)) {
            let summary = if quiet { self.idle_summary() } else { blocked };
            return self.done(&summary, Some(plan), Some(digest));
        }
        let mut inputs = wanted.inputs;
        if kind == RunKind::Apply
            && let Some(plan) = self.approved(hash)
        {
            approval::approve(&mut inputs.approval, plan);
        }
        if is_speculative {
            inputs.plan_secret = Some(names::plan(&self.tf.name_any()));
        }
        let run = RunRequest {
            kind,
            trigger,
            image: image_build::image_by_digest(self.tf, &digest),
            architecture: plan.architecture,
            tag: plan.tag.clone(),
            artifact: Some(image::artifact(self.tf, source)),
            revision: Some(source.revision.clone()),
            commit: source.commit.clone(),
            unpack: false,
            context: Some(source.context.clone()),
            config: wanted.config,
            inputs,
        };
        self.run(&run, Some(plan), Some(digest))
    }

    /// Returns the decision while the runner image is `missing`: pushes the context, waits for the registry, or starts a build.
    pub(super) fn without_image(
        mut self,
        plan: &ImagePlan,
        missing: MissingImage,
        waiting: ImageWait,
    ) -> Decision {
        let MissingImage {
            steps,
            start,
            summary,
            history,
        } = missing;
        if let Some(history) = history {
            self.history = history;
            let swap = self.store_history();
            self.steps.push(swap);
        }
        self.steps.extend(steps);
        // A ready resource keeps the image of its last run in status.
        let keeps_last_image =
            waiting.keeps_ready && summary.convergence == Convergence::Converging;
        let (plan, digest) = if keeps_last_image {
            (None, self.last_digest())
        } else {
            (Some(plan), None)
        };
        let summary = self.waiting_summary(waiting, &summary);
        if start.is_empty() {
            return self.cannot_start(&summary, plan, digest);
        }
        let view = self.view(plan, digest.clone());
        let start = Start {
            class: waiting.class,
            check: None,
            steps: start,
            status: view.status(&summary, self.now),
        };
        let message = "waiting for a slot to build the runner image";
        let queued = Summary::busy(State::Pending, Reason::Queued, message);
        let queued = self.waiting_summary(waiting, &queued);
        Decision {
            start: Some(start),
            ..self.done(&queued, plan, digest)
        }
    }

    /// Returns the summary of a resource whose next run waits because of `cause`. If the configuration is already applied, the status and
    /// reason of condition `Ready` stay unchanged.
    pub(super) fn waiting_summary(&self, image_wait: ImageWait, cause: &Summary) -> Summary {
        if !image_wait.keeps_ready {
            return cause.clone();
        }
        let applied = self.idle_summary();
        let message = if cause.convergence == Convergence::Converging {
            applied.message
        } else {
            format!("{}; the next run waits: {}", applied.message, cause.message)
        };
        Summary {
            message,
            retry_at: cause.retry_at,
            requeue_at: cause.requeue_at,
            ..applied
        }
    }
}
