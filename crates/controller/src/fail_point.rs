//! Terminates the operator at a chosen step, to test recovery from a crash. Has an effect in development builds only.

#[cfg(not(debug_assertions))]
pub(crate) use released::FailPoint;
#[cfg(debug_assertions)]
pub(crate) use under_test::FailPoint;

/// Whether the process is killed before or after the step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Moment {
    Before,
    After,
}

#[cfg(debug_assertions)]
mod under_test {
    use alustan_core::step::{Object, Step, StepKind};
    use anyhow::{Context as _, Result};
    use rustix::process::{Signal, getpid, kill_process};

    use super::Moment;
    use crate::step_name::object_name;

    /// Environment variable with the step: `Before:CreateJob`, or `After:CreateJob:web-apply` for the first step of this kind whose
    /// [`subject`] begins with `web-apply`.
    const VARIABLE: &str = "ALUSTAN_DIE_AT";

    /// Step at which the process is killed, if any.
    #[derive(Default)]
    pub(crate) struct FailPoint {
        at: Option<(Moment, StepKind, String)>,
    }

    impl FailPoint {
        /// Reads the step from the environment.
        ///
        /// # Errors
        /// If the variable is malformed or the step is unknown.
        pub(crate) fn from_environment() -> Result<Self> {
            let Ok(text) = std::env::var(VARIABLE) else {
                return Ok(Self::default());
            };
            let unknown = || format!("invalid {VARIABLE} {text:?}");
            Ok(Self {
                at: Some(parse(&text).with_context(unknown)?),
            })
        }

        /// Kills this process if `step` is the configured step.
        pub(crate) fn reached(&self, moment: Moment, step: &Step) {
            self.kill_at(moment, step.kind(), || subject(step));
        }

        /// Kills this process if the configured step is the one that applies `object`.
        pub(crate) fn reached_object(&self, moment: Moment, object: &Object) {
            self.kill_at(moment, StepKind::Ensure, || object_name(object));
        }

        fn kill_at(&self, moment: Moment, kind: StepKind, subject: impl Fn() -> String) {
            let Some((at, step_kind, subject_prefix)) = &self.at else {
                return;
            };
            if (*at, *step_kind) == (moment, kind) && subject().starts_with(subject_prefix) {
                tracing::warn!(
                    ?moment,
                    ?kind,
                    "killing the process at the fail point of {VARIABLE}"
                );
                let _ = kill_process(getpid(), Signal::KILL);
            }
        }
    }

    /// Returns the subject of `step`, which distinguishes it from other steps of its kind: the name of the written object, or the written
    /// phase of a run.
    fn subject(step: &Step) -> String {
        match step {
            Step::Ensure(object) => object_name(object),
            Step::SwapRecord(swap) => format!("{:?}", swap.record.phase),
            Step::SwapReport(progress) => format!("{:?}", progress.phase),
            Step::CreateJob(job) | Step::EmptyCache(job) => {
                job.metadata.name.clone().unwrap_or_default()
            }
            Step::DeleteJob { name, .. } | Step::DeleteRun(name) => name.clone(),
            Step::ReleaseClaim(claim) => claim.clone(),
            Step::CreateBuildSecret(secret) => secret.metadata.name.clone().unwrap_or_default(),
            Step::DeleteBuildSecret(build_secret) => build_secret.name.clone(),
            Step::DeleteOutputs(object) => object.name().to_owned(),
            Step::RecordRun(run) => run.metadata.name.clone().unwrap_or_default(),
            Step::AddFinalizer
            | Step::CreateRecord(_)
            | Step::CheckRecord(_)
            | Step::TakeOver(_)
            | Step::PushContext
            | Step::PruneImages
            | Step::DeleteClaim
            | Step::CleanUp { .. }
            | Step::RemoveFinalizer => String::new(),
        }
    }

    fn parse(text: &str) -> Option<(Moment, StepKind, String)> {
        let mut parts = text.splitn(3, ':');
        let moment = match parts.next()? {
            "Before" => Moment::Before,
            "After" => Moment::After,
            _ => return None,
        };
        let kind = parts.next()?;
        let has_name = |step_kind: &&StepKind| format!("{step_kind:?}") == kind;
        let kind = *StepKind::ALL.iter().find(has_name)?;
        Some((moment, kind, parts.next().unwrap_or_default().to_owned()))
    }
}

#[cfg(not(debug_assertions))]
mod released {
    use alustan_core::step::{Object, Step};

    use super::Moment;

    /// Fail point of release builds, which never kills the process.
    #[derive(Default)]
    pub(crate) struct FailPoint;

    impl FailPoint {
        /// Returns the fail point. Does not read the environment.
        pub(crate) fn from_environment() -> anyhow::Result<Self> {
            Ok(Self)
        }

        /// Does nothing: release builds have no fail points.
        pub(crate) fn reached(&self, _: Moment, _: &Step) {}

        /// Does nothing: release builds have no fail points.
        pub(crate) fn reached_object(&self, _: Moment, _: &Object) {}
    }
}
