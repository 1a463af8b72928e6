//! Actions of users: the patches of the buttons, and the permissions that they require.

use std::collections::BTreeMap;

use alustan_api::{CANCEL_RUN, DISCARD_PLAN, RECONCILE_AT};
use k8s_openapi::jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

/// Action of a user on a resource.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Action {
    /// Approve the plan with the id in form field `plan`.
    Approve,
    /// Discard the plan with the id in form field `plan`.
    Discard,
    /// Cancel the run with the number in form field `run`.
    Cancel,
    /// Request a reconcile.
    Reconcile,
    /// Start no new runs.
    Suspend,
    /// Allow new runs.
    Resume,
}

impl Action {
    /// All actions, in the order of the buttons.
    pub(crate) const ALL: [Self; 6] = [
        Self::Approve,
        Self::Discard,
        Self::Cancel,
        Self::Reconcile,
        Self::Suspend,
        Self::Resume,
    ];

    /// Last segment of the path that executes the action.
    pub(crate) const fn path(self) -> &'static str {
        match self {
            Self::Approve => "approve",
            Self::Discard => "discard",
            Self::Cancel => "cancel",
            Self::Reconcile => "reconcile",
            Self::Suspend => "suspend",
            Self::Resume => "resume",
        }
    }

    /// Message after the action, for the page of the resource.
    pub(crate) const fn notice(self) -> &'static str {
        match self {
            Self::Approve => "The plan is approved. The operator starts the apply.",
            Self::Discard => "The plan is discarded, and can no longer be approved.",
            Self::Cancel => "The cancellation of the run is requested.",
            Self::Reconcile => "A reconcile is requested.",
            Self::Suspend => "The resource is suspended: no new runs start.",
            Self::Resume => "The resource is resumed.",
        }
    }

    /// Returns the action with the path `path`.
    pub(crate) fn of_path(path: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|action| action.path() == path)
    }

    /// RBAC verb on `terraforms` that the admission policies require in addition to `patch`.
    pub(crate) const fn verb(self) -> &'static str {
        match self {
            Self::Approve | Self::Discard => "approve",
            Self::Cancel => "cancel",
            Self::Reconcile => "reconcile",
            Self::Suspend | Self::Resume => "suspend",
        }
    }

    /// Whether `update` on `terraforms` replaces [`verb`](Self::verb), as in policy `alustan-actions`.
    pub(crate) const fn is_included_in_update(self) -> bool {
        !matches!(self, Self::Approve)
    }
}

/// Permissions of a user on one resource: for each action nothing, or the reason why the user may not execute it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub(crate) struct Permissions(pub(crate) BTreeMap<Action, Option<String>>);

impl Permissions {
    /// Returns why the user may not execute `action`, for the title of a disabled button. `None`: the user may execute it.
    pub(crate) fn missing(&self, action: Action) -> Option<&str> {
        match self.0.get(&action) {
            Some(missing) => missing.as_deref(),
            None => Some("the permission was not checked"),
        }
    }
}

/// Fields of the form of a button.
#[derive(Clone, Debug, Default, Deserialize)]
pub(crate) struct ActionForm {
    /// Id of the plan that the page showed.
    #[serde(default)]
    pub(crate) plan: String,
    /// Number of the run that the page showed.
    #[serde(default)]
    pub(crate) run: Option<i64>,
    /// CSRF token of the session.
    #[serde(default)]
    pub(crate) csrf: String,
}

/// Returns the merge patch of `action`. `user`: name of the user, as authenticated by the API server.
///
/// # Errors
/// If the form lacks the plan or the run.
pub(crate) fn patch(
    action: Action,
    form: &ActionForm,
    user: &str,
    now: Timestamp,
) -> Result<Value, &'static str> {
    let annotation =
        |name: &str, value: String| json!({"metadata": {"annotations": {name: value}}});
    let plan = || match form.plan.as_str() {
        "" => Err("the form has no plan id: reload the page"),
        plan => Ok(plan),
    };
    Ok(match action {
        Action::Approve => json!({"spec": {"approval": {"plan": plan()?, "by": user}}}),
        Action::Discard => annotation(DISCARD_PLAN, plan()?.to_owned()),
        Action::Cancel => {
            let run = form.run.ok_or("the form has no run: reload the page")?;
            annotation(CANCEL_RUN, run.to_string())
        }
        Action::Reconcile => annotation(RECONCILE_AT, now.to_string()),
        Action::Suspend => json!({"spec": {"suspend": true}}),
        Action::Resume => json!({"spec": {"suspend": false}}),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    fn form(plan: &str, run: Option<i64>) -> ActionForm {
        ActionForm {
            plan: plan.to_owned(),
            run,
            csrf: String::new(),
        }
    }

    #[rstest]
    #[case(Action::Approve, json!({"spec": {"approval": {"plan": "0123", "by": "ann"}}}))]
    #[case(Action::Discard, json!({"metadata": {"annotations": {"alustan.io/discard-plan": "0123"}}}))]
    #[case(Action::Cancel, json!({"metadata": {"annotations": {"alustan.io/cancel-run": "7"}}}))]
    #[case(Action::Reconcile, json!({"metadata": {"annotations": {"alustan.io/reconcile-at": "1970-01-01T00:00:00Z"}}}))]
    #[case(Action::Suspend, json!({"spec": {"suspend": true}}))]
    #[case(Action::Resume, json!({"spec": {"suspend": false}}))]
    fn action_changes_one_field(#[case] action: Action, #[case] wanted: Value) {
        let patch = patch(action, &form("0123", Some(7)), "ann", Timestamp::UNIX_EPOCH);
        assert_eq!(patch, Ok(wanted));
    }

    #[rstest]
    #[case(Action::Approve)]
    #[case(Action::Discard)]
    #[case(Action::Cancel)]
    fn form_without_plan_or_run_is_refused(#[case] action: Action) {
        assert!(patch(action, &form("", None), "ann", Timestamp::UNIX_EPOCH).is_err());
    }
}
