//! Summaries of resources.

use std::collections::BTreeSet;

use alustan_api::conditions::Kind;
use alustan_api::{ObjectKey, State, Terraform, TerraformStatus};
use alustan_core::dependency_graph::named_references;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use k8s_openapi::jiff::Timestamp;
use kube::ResourceExt as _;
use serde::Serialize;

/// Maximum length of a message in a summary, in bytes.
const MAX_MESSAGE_BYTES: usize = 240;

/// Maximum number of dependencies in a summary.
const MAX_DEPENDENCIES: usize = 100;

/// Summary of a `Terraform` resource.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Row {
    /// Namespace of the resource.
    pub(crate) namespace: String,
    /// Name of the resource.
    pub(crate) name: String,
    /// `status.state`.
    pub(crate) state: State,
    /// Reason of condition `Ready`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) reason: Option<String>,
    /// Beginning of `status.message`.
    pub(crate) message: String,
    /// Time of the last change of condition `Ready`; in state `Drifted`, time of the drift; without the condition, creation of the resource.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) since: Option<Timestamp>,
    /// Plan that waits for approval.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) pending: Option<PendingPlan>,
    /// Differences between the real objects and the configuration.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) drift: Option<Drift>,
    /// Applied revision.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) revision: Option<String>,
    /// Consecutive failures.
    pub(crate) failures: i32,
    /// `spec.suspend`.
    pub(crate) suspended: bool,
    /// Resources that this resource references by name.
    #[serde(skip)]
    pub(crate) dependencies: Box<[ObjectKey]>,
    /// Changes with each write of the resource.
    #[serde(skip)]
    pub(crate) resource_version: String,
}

/// Plan that waits for approval.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct PendingPlan {
    /// Id of the plan.
    pub(crate) id: String,
    /// Summary of the changes. Example: `+2 ~1 -0`.
    pub(crate) summary: String,
    /// Number of objects to destroy, including replaced objects.
    pub(crate) destroy: i64,
}

/// Differences between the real objects and the configuration.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Drift {
    /// Time of the first drift check that found differences.
    pub(crate) since: Timestamp,
    /// Number of objects to create, including replaced objects.
    pub(crate) add: i64,
    /// Number of objects to update in place.
    pub(crate) change: i64,
    /// Number of objects to destroy, including replaced objects.
    pub(crate) destroy: i64,
}

impl Row {
    /// Returns the summary of `tf`.
    pub(crate) fn of(tf: &Terraform) -> Self {
        let ObjectKey { namespace, name } = ObjectKey::of(tf);
        let status = tf.status.as_ref();
        let applied = status.and_then(|status| status.last_applied.as_ref());
        let retry = status.and_then(|status| status.retry.as_ref());
        Self {
            namespace,
            name,
            state: status.map(|status| status.state).unwrap_or_default(),
            reason: ready(tf).map(|ready| ready.reason.clone()),
            message: status
                .map_or_else(String::new, |status| beginning(&status.message).to_owned()),
            since: since(tf),
            pending: status
                .and_then(TerraformStatus::pending_plan)
                .map(|(plan, id)| PendingPlan {
                    id: id.to_owned(),
                    summary: plan.summary.clone(),
                    destroy: plan.destroy,
                }),
            drift: status
                .and_then(|status| status.drift.as_ref())
                .map(|drift| Drift {
                    since: drift.since.0,
                    add: drift.add,
                    change: drift.change,
                    destroy: drift.destroy,
                }),
            revision: applied.and_then(|applied| applied.revision.clone()),
            failures: retry.map_or(0, |retry| retry.failures),
            suspended: tf.spec.suspend,
            dependencies: dependencies(tf).into_iter().collect(),
            resource_version: tf.resource_version().unwrap_or_default(),
        }
    }

    /// Returns the summary of a resource that this version cannot parse.
    pub(crate) fn unreadable(key: &ObjectKey, resource_version: String, error: &str) -> Self {
        let message = format!("this version of the page cannot read the resource: {error}");
        Self {
            namespace: key.namespace.clone(),
            name: key.name.clone(),
            state: State::Stalled,
            reason: Some("Unreadable".to_owned()),
            message: beginning(&message).to_owned(),
            since: None,
            pending: None,
            drift: None,
            revision: None,
            failures: 0,
            suspended: false,
            dependencies: Box::default(),
            resource_version,
        }
    }

    /// Returns namespace and name.
    pub(crate) fn key(&self) -> ObjectKey {
        ObjectKey::new(&self.namespace, &self.name)
    }
}

/// Returns condition `Ready` of `tf`.
fn ready(tf: &Terraform) -> Option<&Condition> {
    let mut conditions = tf.status.as_ref()?.conditions.iter();
    conditions.find(|condition| condition.type_ == Kind::Ready.as_str())
}

/// Returns the value of [`Row::since`].
pub(crate) fn since(tf: &Terraform) -> Option<Timestamp> {
    let status = tf.status.as_ref();
    let drifted = status.filter(|status| status.state == State::Drifted);
    drifted
        .and_then(|status| status.drift.as_ref())
        .map(|drift| &drift.since)
        .or_else(|| ready(tf).map(|ready| &ready.last_transition_time))
        .or(tf.metadata.creation_timestamp.as_ref())
        .map(|time| time.0)
}

/// Returns the resources that `tf` references by name, at most [`MAX_DEPENDENCIES`].
pub(crate) fn dependencies(tf: &Terraform) -> BTreeSet<ObjectKey> {
    named_references(tf)
        .into_iter()
        .map(|reference| reference.key)
        .take(MAX_DEPENDENCIES)
        .collect()
}

/// Returns the first line of `text`, at most [`MAX_MESSAGE_BYTES`] of it.
fn beginning(text: &str) -> &str {
    let line = text.lines().next().unwrap_or_default();
    let end = line.floor_char_boundary(MAX_MESSAGE_BYTES);
    line.get(..end).unwrap_or_default()
}
