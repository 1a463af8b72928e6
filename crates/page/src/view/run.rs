//! View model of a run.

use alustan_api::{ActiveRun, ObjectKey, RunApproval, RunStatus, Terraform, TerraformRun};
use k8s_openapi::jiff::Timestamp;
use serde::Serialize;

use crate::actions::Permissions;
use crate::view::buttons::Button;
use crate::view::changes::ChangesView;
use crate::view::moment::Moment;

/// Log of a run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase", tag = "kind")]
pub(crate) enum LogPanel {
    /// The log is streamed.
    Live {
        /// URL of the stream of events `log` and `end`.
        stream: String,
        /// URL of the log as text.
        raw: String,
        /// Reason why the pod has not started. `None`: it has started.
        #[serde(skip_serializing_if = "Option::is_none")]
        waiting: Option<String>,
    },
    /// The log in the record of the run.
    #[serde(rename_all = "camelCase")]
    Stored {
        /// Beginning of the log.
        head: String,
        /// Number of bytes between `head` and `tail` that are not stored.
        omitted_bytes: i64,
        /// End of the log.
        tail: String,
    },
    /// The log is not available.
    Missing {
        /// Reason, as a sentence.
        reason: String,
    },
}

/// Objects and permissions from which [`run`] builds a view model.
pub(crate) struct RunInput<'a> {
    /// Namespace and name of the resource.
    pub(crate) key: ObjectKey,
    /// Number of the run.
    pub(crate) number: i64,
    /// Record of the run.
    pub(crate) run: Option<&'a TerraformRun>,
    /// Entry of the run in `status.runs` of the resource.
    pub(crate) status: Option<&'a RunStatus>,
    /// The resource. `None`: the resource was deleted.
    pub(crate) tf: Option<&'a Terraform>,
    /// Whether the run is active.
    pub(crate) is_active: bool,
    /// Permissions of the user.
    pub(crate) permissions: &'a Permissions,
    /// Text of the plan, if it is longer than the text in the record and the user may read it.
    pub(crate) plan_text: Option<&'a str>,
    /// Log of the run.
    pub(crate) log: LogPanel,
    /// Current time.
    pub(crate) now: Timestamp,
}

/// Step of a run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Phase {
    /// Name of the step: `init`, `plan` or `apply`.
    pub(crate) name: &'static str,
    /// Duration in milliseconds.
    pub(crate) milliseconds: u64,
    /// Share of the duration of all steps, in percent.
    pub(crate) percent: u64,
}

/// Approval of the plan of a run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct ApprovalView {
    /// Id of the approved plan.
    pub(crate) plan: String,
    /// User who approved the plan.
    pub(crate) by: Option<String>,
    /// Time of the approval.
    pub(crate) at: Option<Moment>,
}

/// View model of a run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct RunView {
    /// Namespace of the resource.
    pub(crate) namespace: String,
    /// Name of the resource.
    pub(crate) name: String,
    /// Number of the run.
    pub(crate) number: i64,
    /// Whether the run is active.
    pub(crate) active: bool,
    /// Kind of the run.
    pub(crate) kind: Option<&'static str>,
    /// Result of the run.
    pub(crate) result: Option<String>,
    /// Reason of the failure.
    pub(crate) reason: Option<String>,
    /// Message of the failure.
    pub(crate) message: Option<String>,
    /// Number of runs with the same result that the record describes.
    pub(crate) count: i64,
    /// Numbers of the first and the last run that the record describes.
    pub(crate) range: Option<(i64, i64)>,
    /// Cause of the run.
    pub(crate) trigger: Option<String>,
    /// Revision of the source.
    pub(crate) revision: Option<String>,
    /// First line of the commit message.
    pub(crate) subject: Option<String>,
    /// Author of the commit.
    pub(crate) author: Option<String>,
    /// Approval because of which the run was started.
    pub(crate) approval: Option<ApprovalView>,
    /// Engine of the run.
    pub(crate) engine: Option<String>,
    /// Image of the pod.
    pub(crate) image: Option<String>,
    /// Name of the Job.
    pub(crate) job: Option<String>,
    /// Start time.
    pub(crate) started: Option<Moment>,
    /// End time.
    pub(crate) finished: Option<Moment>,
    /// Duration in seconds.
    pub(crate) seconds: Option<i64>,
    /// Steps with their durations.
    pub(crate) phases: Vec<Phase>,
    /// Id of the plan of the run that waits for approval.
    pub(crate) pending_plan: Option<String>,
    /// Reasons why the plan needs approval.
    pub(crate) approval_reasons: Vec<String>,
    /// Summary of the changes.
    pub(crate) summary: Option<String>,
    /// Changes in the plan.
    pub(crate) changes: Option<ChangesView>,
    /// Text of the plan.
    pub(crate) plan_text: Option<String>,
    /// Log of the run.
    pub(crate) log: LogPanel,
    /// Whether the run has a record. Without it, the details of the run are not known.
    pub(crate) has_record: bool,
    /// Buttons that approve or discard the plan of the run.
    pub(crate) plan_buttons: Vec<Button>,
    /// Button that cancels the run.
    pub(crate) cancel: Option<Button>,
}

/// Builds the view model of a run.
pub(crate) fn run(input: RunInput<'_>) -> RunView {
    let pending_plan = pending_plan(&input).map(str::to_owned);
    let active = active(&input);
    let RunInput {
        key,
        number,
        run,
        status: entry,
        permissions,
        now,
        ..
    } = input;
    let names = (key.namespace.as_str(), key.name.as_str());
    let spec = run.map(|run| &run.spec);
    let result = run.and_then(|run| run.status.as_ref());
    let commit = spec.and_then(|spec| spec.commit.as_ref());
    let moment =
        |time: &k8s_openapi::apimachinery::pkg::apis::meta::v1::Time| Moment::new(time.0, now);
    let steps = result.map(|result| result.steps).unwrap_or_default();
    let approval = spec.and_then(|spec| spec.approval.as_ref());
    RunView {
        number,
        active: input.is_active,
        kind: spec
            .map(|spec| spec.kind)
            .or_else(|| entry.map(|entry| entry.kind))
            .or_else(|| active.map(|active| active.kind))
            .map(alustan_api::run_kind::RunKind::as_str),
        result: result
            .map(|result| &result.result)
            .or_else(|| entry.map(|entry| &entry.result))
            .cloned(),
        reason: result
            .and_then(|result| result.reason.clone())
            .or_else(|| entry?.reason.clone()),
        message: result
            .and_then(|result| result.message.clone())
            .or_else(|| entry?.error.clone()),
        count: result.map_or(1, |result| result.count),
        range: spec
            .zip(result)
            .map(|(spec, result)| (spec.number, result.last_number)),
        trigger: spec
            .map(|spec| &spec.trigger)
            .or_else(|| entry.map(|entry| &entry.trigger))
            .cloned(),
        revision: spec.and_then(|spec| spec.revision.clone()),
        subject: commit.map(|commit| commit.subject.clone()),
        author: commit.map(|commit| commit.author.clone()),
        approval: approval.map(|approval| approval_view(approval, now)),
        engine: result
            .and_then(|result| result.engine.as_ref())
            .map(ToString::to_string),
        image: spec.and_then(|spec| spec.image.clone()),
        job: spec
            .map(|spec| &spec.job)
            .or_else(|| entry.map(|entry| &entry.job))
            .or_else(|| active.map(|active| &active.job))
            .cloned(),
        started: spec
            .map(|spec| &spec.started_at)
            .or_else(|| active.map(|active| &active.started_at))
            .map(moment),
        finished: result
            .map(|result| &result.finished_at)
            .or_else(|| entry?.time.as_ref())
            .map(moment),
        seconds: result
            .map(|result| result.seconds)
            .or_else(|| entry.map(|entry| entry.seconds)),
        phases: phases([
            ("init", steps.init),
            ("plan", steps.plan),
            ("apply", steps.apply),
        ]),
        approval_reasons: result
            .map(|result| result.approval_reasons.clone())
            .unwrap_or_default(),
        summary: result
            .and_then(|result| result.summary.clone())
            .or_else(|| entry?.plan.clone()),
        changes: result
            .and_then(|result| result.changes.as_ref())
            .map(ChangesView::new),
        plan_text: input
            .plan_text
            .or_else(|| result?.plan.as_deref())
            .map(str::to_owned),
        log: input.log,
        has_record: run.is_some(),
        plan_buttons: pending_plan
            .as_ref()
            .map(|plan| Button::of_plan(plan, names, permissions))
            .unwrap_or_default(),
        cancel: input
            .is_active
            .then(|| Button::cancel(number, names, permissions)),
        pending_plan,
        namespace: key.namespace,
        name: key.name,
    }
}

/// Returns the run in the status of the resource, if it is active.
fn active<'a>(input: &RunInput<'a>) -> Option<&'a ActiveRun> {
    let active = input.tf?.status.as_ref()?.active_run.as_ref()?;
    (active.number == input.number).then_some(active)
}

/// Returns the id of the plan of the run, if the plan waits for approval in the resource.
fn pending_plan<'a>(input: &RunInput<'a>) -> Option<&'a str> {
    let own = input.run?.status.as_ref()?.plan_id.as_deref()?;
    let (_, pending) = input.tf?.status.as_ref()?.pending_plan()?;
    (pending == own).then_some(own)
}

fn approval_view(approval: &RunApproval, now: Timestamp) -> ApprovalView {
    ApprovalView {
        plan: approval.plan.clone(),
        by: approval.by.clone(),
        at: approval.at.as_ref().map(|at| Moment::new(at.0, now)),
    }
}

/// Returns the steps that ran, with their share of the duration of all steps.
fn phases(steps: [(&'static str, Option<u64>); 3]) -> Vec<Phase> {
    let total: u64 = steps
        .iter()
        .filter_map(|(_, milliseconds)| *milliseconds)
        .fold(0, u64::saturating_add)
        .max(1);
    steps
        .into_iter()
        .filter_map(|(name, milliseconds)| {
            let milliseconds = milliseconds?;
            Some(Phase {
                name,
                milliseconds,
                percent: milliseconds.saturating_mul(100) / total,
            })
        })
        .collect()
}
