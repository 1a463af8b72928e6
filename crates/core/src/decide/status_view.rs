//! Status of a decision, rendered from its summary, the run record, the history and the image.

use alustan_api::report::Failure;

use crate::decide::case::ReconcileCase;
use crate::model::image::ImagePlan;
use crate::model::summary::Summary;
use crate::observed::{Answer, BuildState};
use crate::status::render::{ImageView, View};
use crate::step::Decision;

impl ReconcileCase<'_> {
    /// Returns the decision with `summary` in status: the steps so far, and no start of a run or build. `plan` and `digest`: image in status.
    pub(super) fn done(
        self,
        summary: &Summary,
        plan: Option<&ImagePlan>,
        digest: Option<String>,
    ) -> Decision {
        let summary = &Summary {
            message: format!("{}{}", summary.message, self.ignored_requests()),
            ..summary.clone()
        };
        let status = self.view(plan, digest).status(summary, self.now);
        Decision {
            steps: self.steps,
            start: None,
            status,
            requeue_at: summary.retry_at.or(summary.requeue_at),
        }
    }

    /// Returns the input of the status renderer. `plan` and `digest`: image in status.
    pub(super) fn view<'b>(
        &'b self,
        plan: Option<&'b ImagePlan>,
        digest: Option<String>,
    ) -> View<'b> {
        View {
            tf: self.tf,
            history: &self.history,
            record: Some(&self.current),
            source: &self.image.source,
            stack: &self.seen.stack,
            image: ImageView {
                plan,
                digest,
                problem: self.image_problem(),
            },
        }
    }

    /// Returns reason and message of the failure of the base image, the runner image, the context or the build.
    fn image_problem(&self) -> Option<(String, String)> {
        let problem = |failure: &Failure| (failure.reason.clone(), failure.message.clone());
        if let Answer::Failed {
            failure,
            last: None,
            ..
        } = &self.image.base
        {
            return Some(problem(failure));
        }
        match (&self.image.digest, &self.image.artifact, &self.image.build) {
            (Answer::Failed { failure, .. }, _, _)
            | (_, Some(Answer::Failed { failure, .. }), _) => Some(problem(failure)),
            (_, _, Some(build)) => match &build.state {
                BuildState::Failed(failure, _) => Some(problem(failure)),
                BuildState::Active(_) | BuildState::Done(_) => None,
            },
            _ => None,
        }
    }

    /// Returns the image digest of the last run. `None` if that run used a base image.
    pub(super) fn last_digest(&self) -> Option<String> {
        let run = self.current.run.as_ref().filter(|run| !run.unpack)?;
        let (_, digest) = run.image.split_once('@')?;
        Some(digest.to_owned())
    }
}
