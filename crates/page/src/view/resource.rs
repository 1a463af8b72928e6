//! View model of a resource.

use std::sync::Arc;

use alustan_api::change_set::ChangedResource;
use alustan_api::conditions::Kind;
use alustan_api::run::Outputs;
use alustan_api::run_kind::RunKind;
use alustan_api::{
    BlockedBy, LockStatus, ObjectKey, OmittedOutput, State, Terraform, TerraformRun,
    TerraformStatus,
};
use alustan_core::objects::outputs::text;
use k8s_openapi::jiff::Timestamp;
use serde::Serialize;
use serde_json::Value;

use crate::actions::{Action, Permissions};
use crate::row::{Row, since};
use crate::view::buttons::Button;
use crate::view::changes::ChangesView;
use crate::view::moment::Moment;
use crate::view::runs_table::{self, RunRow};
use crate::view::text::beginning;
use crate::view::timeline::{TimelineStep, timeline};

/// Maximum length of the value of an output, in bytes. The Secret contains the whole value.
const MAX_OUTPUT_BYTES: usize = 4096;

/// Maximum number of dependents on the page.
const MAX_NEIGHBOURS: usize = 100;

/// Objects and permissions from which [`resource`] builds a view model.
#[derive(Clone, Copy)]
pub(crate) struct ResourceInput<'a> {
    /// The resource.
    pub(crate) tf: &'a Terraform,
    /// Records of its runs, newest first.
    pub(crate) runs: &'a [TerraformRun],
    /// Error of the list of records.
    pub(crate) runs_error: Option<&'a str>,
    /// Resources that reference the resource.
    pub(crate) dependents: &'a [Arc<Row>],
    /// Resources that the resource references.
    pub(crate) dependencies: &'a [(ObjectKey, Option<Arc<Row>>)],
    /// Outputs in the Secret, if the user may read it.
    pub(crate) outputs: Option<&'a Outputs>,
    /// Permissions of the user.
    pub(crate) permissions: &'a Permissions,
    /// Current time.
    pub(crate) now: Timestamp,
}

/// Dependency or dependent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct NeighbourView {
    /// Namespace of the resource.
    pub(crate) namespace: String,
    /// Name of the resource.
    pub(crate) name: String,
    /// State of the resource. `None`: the resource does not exist, or the user may not read it.
    pub(crate) state: Option<State>,
}

/// Plan that waits for approval.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct PendingView {
    /// Id of the plan.
    pub(crate) id: String,
    /// Summary of the changes.
    pub(crate) summary: String,
    /// Number of objects to destroy, including replaced objects.
    pub(crate) destroy: i64,
    /// Number of the run that created the plan.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) run: Option<i64>,
    /// Reasons why the plan needs approval.
    pub(crate) reasons: Vec<String>,
}

/// Differences between the real objects and the configuration.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct DriftView {
    /// Time of the first drift check that found differences.
    pub(crate) since: Moment,
    /// Number of objects to create, including replaced objects.
    pub(crate) add: i64,
    /// Number of objects to update in place.
    pub(crate) change: i64,
    /// Number of objects to destroy, including replaced objects.
    pub(crate) destroy: i64,
    /// Changed resources, at most 20.
    pub(crate) resources: Vec<ChangedResource>,
    /// Changes with attributes, from the record of the last drift check.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) changes: Option<ChangesView>,
}

/// Outputs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct OutputsView {
    /// Name of the Secret with all outputs.
    pub(crate) secret_name: String,
    /// Name of the ConfigMap.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) config_map_name: Option<String>,
    /// Outputs with values: all outputs if the user may read the Secret, otherwise those in the status.
    pub(crate) values: Vec<OutputView>,
    /// Outputs without a value in `values`, and why.
    pub(crate) omitted: Vec<OmittedOutput>,
}

/// An output.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct OutputView {
    /// Name of the output.
    pub(crate) name: String,
    /// Value: strings verbatim, other values as JSON. `None` if the module marks the output as sensitive.
    pub(crate) value: Option<String>,
}

/// View model of a resource.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct ResourceView {
    /// Namespace of the resource.
    pub(crate) namespace: String,
    /// Name of the resource.
    pub(crate) name: String,
    /// State of the resource.
    pub(crate) state: State,
    /// Reason of condition `Ready`.
    pub(crate) reason: Option<String>,
    /// Current activity and next step.
    pub(crate) message: String,
    /// Time of the last change of condition `Ready`.
    pub(crate) since: Option<Moment>,
    /// Time of the next attempt.
    pub(crate) next_attempt: Option<Moment>,
    /// Consecutive failures.
    pub(crate) failures: i32,
    /// Position in the queue of runs.
    pub(crate) queue_position: Option<i32>,
    /// Dependencies that are not ready, or dependents that must be destroyed first.
    pub(crate) blocked_by: Vec<BlockedBy>,
    /// State lock that the last run could not acquire.
    pub(crate) lock: Option<LockStatus>,
    /// Whether `spec.suspend` is set.
    pub(crate) suspended: bool,
    /// Whether the resource is being deleted.
    pub(crate) deleting: bool,
    /// Steps from the source to the applied configuration.
    pub(crate) timeline: Vec<TimelineStep>,
    /// Names and values of further facts.
    pub(crate) facts: Vec<(&'static str, String)>,
    /// Plan that waits for approval.
    pub(crate) pending: Option<PendingView>,
    /// Differences between the real objects and the configuration.
    pub(crate) drift: Option<DriftView>,
    /// Outputs.
    pub(crate) outputs: Option<OutputsView>,
    /// Resources that the resource references.
    pub(crate) dependencies: Vec<NeighbourView>,
    /// Resources that reference the resource, at most 100.
    pub(crate) dependents: Vec<NeighbourView>,
    /// Number of dependents.
    pub(crate) dependents_total: usize,
    /// Number of the active run.
    pub(crate) active_run: Option<i64>,
    /// Runs, newest first.
    pub(crate) runs: Vec<RunRow>,
    /// Error of the list of records: `runs` contains only the entries of the status.
    pub(crate) runs_error: Option<String>,
    /// Buttons that approve or discard the plan.
    pub(crate) plan_buttons: Vec<Button>,
    /// Other buttons.
    pub(crate) buttons: Vec<Button>,
}

/// Builds the view model of a resource.
pub(crate) fn resource(input: ResourceInput<'_>) -> ResourceView {
    let ResourceInput {
        tf,
        runs,
        permissions,
        now,
        ..
    } = input;
    let key = ObjectKey::of(tf);
    let names = (key.namespace.as_str(), key.name.as_str());
    let empty = TerraformStatus::default();
    let status = tf.status.as_ref().unwrap_or(&empty);
    let ready = status
        .conditions
        .iter()
        .find(|condition| condition.type_ == Kind::Ready.as_str());
    let retry = status.retry.as_ref();
    let next_attempt = retry.and_then(|retry| retry.next_at.as_ref());
    let pending = pending(status, runs);
    let active_run = active_run(tf);
    let button = |action| Button::new(action, names, permissions);
    let suspend = if tf.spec.suspend {
        Action::Resume
    } else {
        Action::Suspend
    };
    let cancel = active_run.map(|number| Button::cancel(number, names, permissions));
    let dependents = input.dependents.iter().take(MAX_NEIGHBOURS);
    ResourceView {
        state: status.state,
        reason: ready.map(|ready| ready.reason.clone()),
        message: status.message.clone(),
        since: since(tf).map(|since| Moment::new(since, now)),
        next_attempt: next_attempt.map(|time| Moment::new(time.0, now)),
        failures: retry.map_or(0, |retry| retry.failures),
        queue_position: status.queue.as_ref().map(|queue| queue.position),
        blocked_by: status.blocked_by.clone(),
        lock: status.lock.clone(),
        suspended: tf.spec.suspend,
        deleting: tf.metadata.deletion_timestamp.is_some(),
        timeline: timeline(tf, now),
        facts: facts(tf, status),
        drift: drift(status, runs, now),
        outputs: outputs(status, input.outputs),
        dependencies: input
            .dependencies
            .iter()
            .map(|(key, row)| NeighbourView {
                namespace: key.namespace.clone(),
                name: key.name.clone(),
                state: row.as_ref().map(|row| row.state),
            })
            .collect(),
        dependents: dependents
            .map(|row| NeighbourView {
                namespace: row.namespace.clone(),
                name: row.name.clone(),
                state: Some(row.state),
            })
            .collect(),
        dependents_total: input.dependents.len(),
        active_run,
        runs: runs_table::rows(runs, &status.runs, now),
        runs_error: input.runs_error.map(str::to_owned),
        plan_buttons: pending
            .as_ref()
            .map(|plan| Button::of_plan(&plan.id, names, permissions))
            .unwrap_or_default(),
        buttons: cancel
            .into_iter()
            .chain([button(Action::Reconcile), button(suspend)])
            .collect(),
        pending,
        namespace: key.namespace,
        name: key.name,
    }
}

/// Returns the number of the active run of `tf`. `None` without an active run, and for a drift check of the applied configuration.
pub(crate) fn active_run(tf: &Terraform) -> Option<i64> {
    let active = tf.status.as_ref()?.active_run.as_ref()?;
    Some(active.number)
}

fn pending(status: &TerraformStatus, runs: &[TerraformRun]) -> Option<PendingView> {
    let (plan, id) = status.pending_plan()?;
    let record = runs.iter().find_map(|run| {
        let result = run.status.as_ref()?;
        (result.plan_id.as_deref() == Some(id)).then_some(result)
    });
    Some(PendingView {
        id: id.to_owned(),
        summary: plan.summary.clone(),
        destroy: plan.destroy,
        run: record.map(|result| result.last_number),
        reasons: record
            .map(|result| result.approval_reasons.clone())
            .unwrap_or_default(),
    })
}

fn drift(status: &TerraformStatus, runs: &[TerraformRun], now: Timestamp) -> Option<DriftView> {
    let drift = status.drift.as_ref()?;
    let last_check = runs.iter().find(|run| run.spec.kind == RunKind::Drift);
    let changes = last_check
        .and_then(|run| run.status.as_ref()?.changes.as_ref())
        .filter(|changes| {
            (changes.add, changes.change, changes.destroy)
                == (drift.add, drift.change, drift.destroy)
        });
    Some(DriftView {
        since: Moment::new(drift.since.0, now),
        add: drift.add,
        change: drift.change,
        destroy: drift.destroy,
        resources: drift.resources.clone(),
        changes: changes.map(ChangesView::new),
    })
}

/// `secret`: the outputs in the Secret, if the user may read it.
fn outputs(status: &TerraformStatus, secret: Option<&Outputs>) -> Option<OutputsView> {
    let outputs = status.outputs.as_ref()?;
    let in_status = outputs.values.iter().map(|(name, value)| OutputView {
        name: name.clone(),
        value: Some(shown(&value.value())),
    });
    let in_secret = secret
        .into_iter()
        .flatten()
        .map(|(name, output)| OutputView {
            name: name.clone(),
            value: (!output.sensitive).then(|| shown(&output.value)),
        });
    Some(OutputsView {
        secret_name: outputs.secret_name.clone(),
        config_map_name: outputs.config_map_name.clone(),
        values: match secret {
            Some(_) => in_secret.collect(),
            None => in_status.collect(),
        },
        omitted: match secret {
            Some(_) => Vec::new(),
            None => outputs.omitted.clone(),
        },
    })
}

/// Returns the beginning of the text of `value`.
fn shown(value: &Value) -> String {
    beginning(&text(value), MAX_OUTPUT_BYTES).into_owned()
}

fn facts(tf: &Terraform, status: &TerraformStatus) -> Vec<(&'static str, String)> {
    let git = tf.spec.git_repo.as_ref();
    let other = tf.spec.source.as_deref();
    let module = other.and_then(|source| source.module.as_ref());
    let artifact = other.and_then(|source| source.oci.as_ref());
    let source = git
        .map(|git| git.url.clone())
        .or_else(|| module.map(|module| module.source.clone()))
        .or_else(|| artifact.map(|artifact| artifact.url.clone()))
        .unwrap_or_else(|| "files in spec.source.inline".to_owned());
    let applied = status.last_applied.as_ref();
    [
        ("Source", Some(source)),
        ("Path", git.and_then(|git| git.path.clone())),
        (
            "Revision",
            status.source.as_ref().map(|source| source.revision.clone()),
        ),
        (
            "Applied revision",
            applied.and_then(|applied| applied.revision.clone()),
        ),
        ("Engine", status.engine.as_ref().map(ToString::to_string)),
        (
            "Managed objects",
            status
                .inventory
                .map(|inventory| inventory.count.to_string()),
        ),
        ("State", status.state_address.clone()),
    ]
    .into_iter()
    .filter_map(|(name, value)| Some((name, value?)))
    .collect()
}
