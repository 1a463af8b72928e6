//! Timeline of a resource: source, image, plan, approval, apply, in sync.

use alustan_api::conditions::Kind;
use alustan_api::run_kind::RunKind;
use alustan_api::{Mode, RunStatus, State, Terraform, TerraformStatus};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use k8s_openapi::jiff::Timestamp;
use serde::Serialize;

use crate::view::moment::Moment;

/// State of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) enum StepState {
    /// The step is complete.
    Done,
    /// The step is in progress, or waits for a user.
    Active,
    /// The step failed.
    Failed,
    /// The step waits for another step or object.
    Waiting,
}

impl StepState {
    /// Returns the text of the state.
    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::Done => "done",
            Self::Active => "active",
            Self::Failed => "failed",
            Self::Waiting => "waiting",
        }
    }
}

/// Step of a timeline.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct TimelineStep {
    /// Name of the step.
    pub(crate) name: &'static str,
    /// State of the step.
    pub(crate) state: StepState,
    /// Reason of the condition, or of the failure.
    pub(crate) reason: String,
    /// Message of the condition, or of the failure.
    pub(crate) message: String,
    /// Time of the last change.
    pub(crate) time: Option<Moment>,
}

impl TimelineStep {
    fn new(name: &'static str, state: StepState) -> Self {
        Self {
            name,
            state,
            reason: String::new(),
            message: String::new(),
            time: None,
        }
    }

    fn of(name: &'static str, state: StepState, condition: &Condition, now: Timestamp) -> Self {
        Self {
            reason: condition.reason.clone(),
            message: condition.message.clone(),
            time: Some(Moment::new(condition.last_transition_time.0, now)),
            ..Self::new(name, state)
        }
    }

    fn with_message(self, message: impl Into<String>) -> Self {
        Self {
            message: message.into(),
            ..self
        }
    }

    fn at(self, time: Option<Timestamp>, now: Timestamp) -> Self {
        Self {
            time: time.map(|time| Moment::new(time, now)),
            ..self
        }
    }
}

/// Builds the timeline of `tf`. Steps after a step that is not done wait, except the last one: the objects of an earlier apply may match.
pub(crate) fn timeline(tf: &Terraform, now: Timestamp) -> Vec<TimelineStep> {
    let empty = TerraformStatus::default();
    let facts = Facts {
        tf,
        status: tf.status.as_ref().unwrap_or(&empty),
        now,
    };
    let mut steps = vec![
        facts.source(),
        facts.image(),
        facts.plan(),
        facts.approval(),
        facts.apply(),
    ];
    let mut is_reached = true;
    for step in &mut steps {
        if !is_reached && step.state != StepState::Active {
            *step = TimelineStep::new(step.name, StepState::Waiting);
        }
        is_reached = is_reached && step.state == StepState::Done;
    }
    steps.push(facts.in_sync());
    steps
}

struct Facts<'a> {
    tf: &'a Terraform,
    status: &'a TerraformStatus,
    now: Timestamp,
}

impl Facts<'_> {
    fn condition(&self, kind: Kind) -> Option<&Condition> {
        let mut conditions = self.status.conditions.iter();
        conditions.find(|condition| condition.type_ == kind.as_str())
    }

    fn is_true(&self, kind: Kind) -> bool {
        self.condition(kind)
            .is_some_and(|condition| condition.status == "True")
    }

    /// Returns the last run if it failed, `is_kind` is true for it, and its failure is the current state.
    fn last_failure(&self, is_kind: impl Fn(&RunStatus) -> bool) -> Option<&RunStatus> {
        if !matches!(self.status.state, State::Failed | State::Stalled) {
            return None;
        }
        let last = self.status.runs.first()?;
        (last.result == "Failed" && is_kind(last)).then_some(last)
    }

    fn step_of_condition(&self, name: &'static str, kind: Kind) -> TimelineStep {
        let Some(condition) = self.condition(kind) else {
            return TimelineStep::new(name, StepState::Waiting);
        };
        let state = match condition.status.as_str() {
            "True" => StepState::Done,
            "False" => StepState::Failed,
            _ => StepState::Waiting,
        };
        TimelineStep::of(name, state, condition, self.now)
    }

    fn source(&self) -> TimelineStep {
        let step = self.step_of_condition("Source", Kind::SourceReady);
        match step.state {
            StepState::Waiting if !step.reason.is_empty() => TimelineStep {
                state: StepState::Active,
                ..step
            },
            _ => step,
        }
    }

    fn image(&self) -> TimelineStep {
        let step = self.step_of_condition("Image", Kind::ImageReady);
        match self.status.state {
            State::Building => TimelineStep {
                state: StepState::Active,
                ..step
            },
            // A run without its own image uses the base image.
            State::Planning | State::Applying | State::Destroying => TimelineStep {
                state: StepState::Done,
                ..step
            },
            _ => step,
        }
    }

    fn plan(&self) -> TimelineStep {
        let step = |state| TimelineStep::new("Plan", state);
        if self.status.state == State::Planning {
            return step(StepState::Active).with_message("A run creates a plan.");
        }
        let blocked = self
            .condition(Kind::DependenciesReady)
            .filter(|condition| condition.status == "False");
        if let Some(condition) = blocked
            && !self.is_true(Kind::Ready)
            && self.status.state == State::Pending
        {
            return TimelineStep::of("Plan", StepState::Waiting, condition, self.now);
        }
        if let Some(failed) = self.last_failure(|run| !is_apply_failure(run)) {
            return self.failed("Plan", failed);
        }
        match &self.status.plan {
            Some(plan) => step(StepState::Done).with_message(plan.summary.as_str()),
            None if self.status.last_applied.is_some()
                || self.is_true(Kind::Ready)
                || self.status.state == State::Applying =>
            {
                step(StepState::Done)
            }
            None => step(StepState::Waiting),
        }
    }

    fn failed(&self, name: &'static str, run: &RunStatus) -> TimelineStep {
        TimelineStep {
            reason: run.reason.clone().unwrap_or_default(),
            ..TimelineStep::new(name, StepState::Failed)
        }
        .with_message(format!("Run {} failed.", run.number))
        .at(run.time.as_ref().map(|time| time.0), self.now)
    }

    fn approval(&self) -> TimelineStep {
        let step = |state| TimelineStep::new("Approval", state);
        match &self.status.plan {
            Some(plan) if plan.pending_approval => {
                let since = self.condition(Kind::Ready);
                let since = since.map(|condition| condition.last_transition_time.0);
                step(StepState::Active)
                    .with_message("The plan waits for approval.")
                    .at(since, self.now)
            }
            Some(plan) if plan.approved_at.is_some() || plan.approved_by.is_some() => {
                let message = match &plan.approved_by {
                    Some(user) => format!("Approved by {user}."),
                    None => "Approved.".to_owned(),
                };
                step(StepState::Done)
                    .with_message(message)
                    .at(plan.approved_at.as_ref().map(|time| time.0), self.now)
            }
            _ if self.tf.spec.mode == Mode::PlanOnly => {
                step(StepState::Done).with_message("Not required: spec.mode is PlanOnly.")
            }
            _ => step(StepState::Done).with_message("Not required."),
        }
    }

    fn apply(&self) -> TimelineStep {
        let is_deleted = self.tf.metadata.deletion_timestamp.is_some();
        let name = if is_deleted { "Destroy" } else { "Apply" };
        let step = |state| TimelineStep::new(name, state);
        match self.status.state {
            State::Applying => {
                return step(StepState::Active).with_message("A run applies the plan.");
            }
            State::Destroying => {
                return step(StepState::Active)
                    .with_message("Managed objects are being destroyed.");
            }
            _ => {}
        }
        if let Some(failed) = self.last_failure(is_apply_failure) {
            return self.failed(name, failed);
        }
        if self.tf.spec.mode == Mode::PlanOnly {
            return step(StepState::Waiting)
                .with_message("Plans are not applied: spec.mode is PlanOnly.");
        }
        let applied = self.status.last_applied.as_ref();
        let time = applied.map(|applied| applied.time.0);
        let is_applied = self.is_true(Kind::Ready) || self.status.state == State::Drifted;
        let state = if is_applied && !is_deleted {
            StepState::Done
        } else {
            StepState::Waiting
        };
        step(state).at(time, self.now)
    }

    fn in_sync(&self) -> TimelineStep {
        self.step_of_condition("In sync", Kind::InSync)
    }
}

/// Whether `run` failed after its plan.
fn is_apply_failure(run: &RunStatus) -> bool {
    run.kind == RunKind::Destroy
        || run.kind == RunKind::Apply
            && !matches!(run.reason.as_deref(), Some("PlanFailed" | "InitFailed"))
}
