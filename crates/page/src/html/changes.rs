//! Changes of a plan or drift, grouped by action.

use alustan_api::change_set::{AttributeChange, ValueChange};
use maud::{Markup, html};

use crate::html::parts::{bdi, counts, destroys};
use crate::view::text::visible;
use crate::view::{ChangesView, ResourceChangeView};

/// Renders a change set. Details of a resource are closed at first.
pub(crate) fn changes(view: &ChangesView) -> Markup {
    html! {
        p.totals { (counts(view.add, view.change, view.destroy)) " " (destroys(view.destroy)) }
        @for group in &view.groups {
            @let (title, sign, class) = heading(&group.action);
            section class={ "changes " (class) } {
                h3 { span.sign aria-hidden="true" { (sign) } (title) " (" (group.resources.len()) ")" }
                @for (index, resource) in group.resources.iter().enumerate() {
                    (change(resource, &format!("{class}-{index}"), sign))
                }
            }
        }
        @if view.omitted > 0 {
            p.omitted { (view.omitted) " more changes are not listed, because the list would be too large." }
        }
        @if !view.outputs.is_empty() { (outputs(view)) }
        @if !view.checks.is_empty() {
            h3 { "Checks" }
            ul.checks {
                @for check in &view.checks {
                    li {
                        code { (visible(&check.address)) } " " span class={ "check " (visible(&check.status)) } { (visible(&check.status)) }
                        @for message in &check.messages { p { (bdi(message)) } }
                    }
                }
            }
        }
    }
}

/// Returns title, sign and CSS class of an action.
fn heading(action: &str) -> (&'static str, &'static str, &'static str) {
    match action {
        "delete" => ("Destroy", "-", "delete"),
        "replace" => ("Replace", "-/+", "replace"),
        "forget" => ("Remove from state", "×", "forget"),
        "update" => ("Update in place", "~", "update"),
        "create" => ("Create", "+", "create"),
        "import" => ("Import", "↓", "import"),
        _ => ("Other", "?", "other"),
    }
}

fn change(change: &ResourceChangeView, id: &str, sign: &str) -> Markup {
    let address = html! {
        span.sign aria-hidden="true" { (sign) } code { (visible(&change.address)) }
        @if let Some(reason) = &change.reason { " " span.why { (bdi(reason)) } }
    };
    html! {
        @if change.attributes.is_empty() && change.provider.is_none() {
            p.change { (address) }
        } @else {
            details.change id=(id) {
                summary { (address) }
                @if let Some(provider) = &change.provider {
                    p.provider { "Provider " code { (visible(provider)) } }
                }
                @if !change.attributes.is_empty() { (attributes(change)) }
                @if change.omitted_attributes > 0 {
                    p.omitted { (change.omitted_attributes) " more attributes are not listed." }
                }
            }
        }
    }
}

fn attributes(change: &ResourceChangeView) -> Markup {
    html! {
        table.diff {
            caption.hidden { "Changed attributes of " (visible(&change.address)) }
            thead {
                tr { th scope="col" { "Attribute" } th scope="col" { "Before" } th scope="col" { "After" } }
            }
            tbody {
                @for AttributeChange { path, values, forces_replacement } in &change.attributes {
                    tr {
                        th scope="row" {
                            code { (visible(path)) }
                            @if *forces_replacement { " " strong.forces { "forces replacement" } }
                        }
                        (value_cells(values))
                    }
                }
            }
        }
    }
}

/// Renders the cells with the values before and after a change.
fn value_cells(values: &ValueChange) -> Markup {
    let before = match (&values.before, values.sensitive) {
        (_, true) => html! { del.note { "(sensitive)" } },
        (Some(text), _) => html! { del { (visible(text)) } },
        (None, _) => html! { span.note { "(not set)" } },
    };
    let after = match (&values.after, values.sensitive, values.unknown) {
        (_, _, true) => html! { ins.note { "(known after apply)" } },
        (_, true, _) => html! { ins.note { "(sensitive)" } },
        (Some(text), ..) => html! { ins { (visible(text)) } },
        (None, ..) => html! { span.note { "(not set)" } },
    };
    html! { td { (before) } td { (after) } }
}

fn outputs(view: &ChangesView) -> Markup {
    html! {
        h3 { "Outputs" }
        table.diff {
            caption.hidden { "Changed outputs" }
            thead {
                tr { th scope="col" { "Output" } th scope="col" { "Before" } th scope="col" { "After" } }
            }
            tbody {
                @for output in &view.outputs {
                    tr {
                        th scope="row" { code { (visible(&output.name)) } }
                        (value_cells(&output.values))
                    }
                }
            }
        }
    }
}
