//! Buttons of actions: plain forms.

use maud::{Markup, html};

use crate::actions::Action;
use crate::view::Button;

/// Renders a button. A button without permission is disabled and describes the missing permission.
pub(crate) fn button(button: &Button, csrf: &str) -> Markup {
    let id = button.action.path();
    let reason_id = format!("{id}-permission");
    let class = match button.action {
        Action::Approve => "primary",
        Action::Discard | Action::Cancel => "caution",
        Action::Reconcile | Action::Suspend | Action::Resume => "plain",
    };
    html! {
        form.action method="post" action=(button.path) {
            input type="hidden" name="csrf" value=(csrf);
            @if let Some(plan) = &button.plan {
                input type="hidden" name="plan" value=(plan);
            }
            @if let Some(run) = button.run {
                input type="hidden" name="run" value=(run);
            }
            @match &button.missing {
                None => { button.(class) id=(id) { (label(button)) } }
                Some(missing) => {
                    button.(class) id=(id) disabled aria-describedby=(reason_id) { (label(button)) }
                    span.missing id=(reason_id) { (missing) }
                }
            }
        }
    }
}

fn label(button: &Button) -> Markup {
    html! {
        @match button.action {
            Action::Approve => { "Approve plan" }
            Action::Discard => { "Discard plan" }
            Action::Cancel => {
                "Cancel run"
                @if let Some(run) = button.run { " " (run) }
            }
            Action::Reconcile => { "Reconcile" }
            Action::Suspend => { "Suspend" }
            Action::Resume => { "Resume" }
        }
    }
}
