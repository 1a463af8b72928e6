//! Simulates the builder and its Jobs.

use alustan_api::report::FailureClass;
use alustan_core::digest;
use alustan_core::observed::BuildState;

use super::{Situation, World};
use crate::fixtures::failure;

impl World {
    /// Deletes finished build Jobs, as `ttlSecondsAfterFinished` does. Exception: a failed Job is kept until the controller has recorded
    /// the failure, because the TTL is one hour and the controller needs less.
    pub(crate) fn expire_builds(&mut self) {
        let memory = self.record.as_ref().map(|record| &record.history);
        let counted = memory.and_then(|history| history.build_failures.job_uid.clone());
        self.builds.retain(|_, build| match build.state {
            BuildState::Active(_) => true,
            BuildState::Done(_) => false,
            BuildState::Failed(..) => counted.as_ref() != Some(&build.uid),
        });
    }

    /// Ends all active builds, with failure `fail` if set. Returns false if no build was active.
    pub(crate) fn advance_builds(&mut self, fail: Option<FailureClass>) -> bool {
        let now = self.now;
        let mut any = false;
        for build in self.builds.values_mut() {
            let is_waiting = build.needs_build_secret && build.secret.is_none();
            let can_start = !is_waiting && build.obstacle.is_none();
            if !can_start || !matches!(build.state, BuildState::Active(_)) {
                continue;
            }
            any = true;
            let forbidden = (!build.credentials).then_some(FailureClass::User);
            let Some(class) = fail.or(forbidden) else {
                // Two builds of the same content have different digests.
                let digest = digest::plain(&(&build.destination, &build.uid));
                let digest = format!("sha256:{digest}");
                self.images.insert(build.destination.clone(), digest);
                build.state = BuildState::Done(now);
                continue;
            };
            self.ledger.reached(Situation::BuildFailed);
            self.ledger
                .failed(&format!("build {}", build.destination.1), class);
            let message = "the builder ended with exit code 1";
            build.state = BuildState::Failed(failure(class, "BuildFailed", message), now);
        }
        any
    }
}
