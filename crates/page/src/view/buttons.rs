//! Buttons of actions.

use serde::Serialize;

use crate::actions::{Action, Permissions};

/// Button of an action, with the fields of its form.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Button {
    /// Action that the button executes.
    pub(crate) action: Action,
    /// Path of the form.
    pub(crate) path: String,
    /// Id of the plan that the page shows.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) plan: Option<String>,
    /// Number of the run that the page shows.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) run: Option<i64>,
    /// Reason why the user may not execute the action. The button is disabled.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) missing: Option<String>,
}

impl Button {
    /// Builds the button of `action` on the resource `name` in `namespace`.
    pub(crate) fn new(
        action: Action,
        (namespace, name): (&str, &str),
        permissions: &Permissions,
    ) -> Self {
        Self {
            action,
            path: crate::view::path::action(namespace, name, action),
            plan: None,
            run: None,
            missing: permissions.missing(action).map(str::to_owned),
        }
    }

    /// Builds the buttons that approve and discard the plan with id `plan`.
    pub(crate) fn of_plan(plan: &str, key: (&str, &str), permissions: &Permissions) -> Vec<Self> {
        let button = |action| Self {
            plan: Some(plan.to_owned()),
            ..Self::new(action, key, permissions)
        };
        [Action::Approve, Action::Discard].map(button).into()
    }

    /// Builds the button that cancels run `number`.
    pub(crate) fn cancel(number: i64, key: (&str, &str), permissions: &Permissions) -> Self {
        Self {
            run: Some(number),
            ..Self::new(Action::Cancel, key, permissions)
        }
    }
}
