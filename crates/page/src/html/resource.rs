//! Page of a resource.

use alustan_api::BlockedBy;
use maud::{Markup, html};

use crate::html::buttons::button;
use crate::html::changes::changes;
use crate::html::frame::{Frame, Live, document};
use crate::html::parts::{
    bdi, code, counts, crumbs, destroys, resource_link, state, time_with_title,
};
use crate::html::runs_table::runs_table;
use crate::view::text::visible;
use crate::view::{
    DriftView, NeighbourView, OutputView, OutputsView, PendingView, ResourceView, TimelineStep,
    path,
};

/// Renders the page of a resource.
pub(crate) fn resource(frame: &Frame<'_>, view: &ResourceView) -> Markup {
    let content = html! {
        (crumbs(&view.namespace, &[(path::resource(&view.namespace, &view.name), view.name.clone())]))
        div.title {
            h1 { (visible(&view.name)) }
            (state(view.state))
            @if view.suspended { span.tag { "suspended" } }
            @if view.deleting { span.tag { "deleting" } }
            div.buttons { @for entry in &view.buttons { (button(entry, frame.csrf)) } }
        }
        (current(view))
        @if let Some(pending) = &view.pending { (pending_plan(frame, view, pending)) }
        (timeline(&view.timeline))
        @if let Some(drift) = &view.drift { (drift_section(drift)) }
        (neighbours(view))
        div.columns {
            @if let Some(outputs) = &view.outputs { (outputs_section(outputs)) }
            (facts(view))
        }
        (runs(view))
    };
    document(frame, Live::Main, &content)
}

/// Renders the current activity and the next step.
fn current(view: &ResourceView) -> Markup {
    html! {
        section.card aria-labelledby="now" {
            h2 #now { "Current activity" }
            p.message {
                @if let Some(reason) = &view.reason { b { (visible(reason)) } " " }
                (bdi(&view.message))
            }
            dl.facts {
                @if let Some(since) = &view.since { dt { "Since" } dd { (time_with_title(since)) } }
                @if let Some(next) = &view.next_attempt { dt { "Next attempt" } dd { (time_with_title(next)) } }
                @if view.failures > 0 { dt { "Consecutive failures" } dd { (view.failures) } }
                @if let Some(position) = view.queue_position { dt { "Position in the queue" } dd { (position) } }
                @if let Some(run) = view.active_run {
                    dt { "Active run" }
                    dd { a #active-run href=(path::run(&view.namespace, &view.name, run)) { "Run " (run) } }
                }
                @if let Some(lock) = &view.lock {
                    dt { "State lock" }
                    dd { "held by " (bdi(&lock.who)) " (" (bdi(&lock.operation)) "), id " (code(&lock.id)) }
                }
                @if !view.blocked_by.is_empty() {
                    dt { "Blocked by" }
                    dd { ul.inline { @for blocker in &view.blocked_by { li { (blocked_by(view, blocker)) } } } }
                }
            }
        }
    }
}

fn blocked_by(view: &ResourceView, blocker: &BlockedBy) -> Markup {
    let own = (view.namespace.as_str(), blocker.name.as_str());
    let (namespace, name) = blocker.name.split_once('/').unwrap_or(own);
    html! { (resource_link(namespace, name)) " (" (visible(&blocker.reason)) ")" }
}

fn pending_plan(frame: &Frame<'_>, view: &ResourceView, pending: &PendingView) -> Markup {
    html! {
        section.card.approval aria-labelledby="approval" {
            h2 #approval { "Plan waits for approval" }
            p.totals {
                span.sum { (visible(&pending.summary)) } " " (destroys(pending.destroy))
            }
            @if !pending.reasons.is_empty() {
                ul { @for reason in &pending.reasons { li { (bdi(reason)) } } }
            }
            p {
                @if let Some(run) = pending.run {
                    a #plan-run href=(path::run(&view.namespace, &view.name, run)) { "Show the plan of run " (run) }
                    ", "
                }
                "id " (code(&pending.id))
            }
            div.buttons { @for entry in &view.plan_buttons { (button(entry, frame.csrf)) } }
        }
    }
}

fn timeline(steps: &[TimelineStep]) -> Markup {
    html! {
        section aria-labelledby="progress" {
            h2 #progress { "Progress" }
            ol.timeline {
                @for step in steps {
                    li class={ "step " (step.state.as_str()) } {
                        h3 { (step.name) }
                        p.step-state {
                            (step.state.as_str())
                            @if let Some(time) = &step.time { " " (time_with_title(time)) }
                        }
                        @if !step.reason.is_empty() { p.reason { (visible(&step.reason)) } }
                        @if !step.message.is_empty() { p.detail { (bdi(&step.message)) } }
                    }
                }
            }
        }
    }
}

fn drift_section(drift: &DriftView) -> Markup {
    html! {
        section.card aria-labelledby="drift" {
            h2 #drift { "Drift" }
            p { "The real objects differ from the configuration since " (time_with_title(&drift.since)) "." }
            @if let Some(view) = &drift.changes {
                (changes(view))
            } @else {
                p.totals { (counts(drift.add, drift.change, drift.destroy)) " " (destroys(drift.destroy)) }
                ul.plain {
                    @for resource in &drift.resources {
                        li { span.tag { (visible(&resource.action)) } " " (code(&resource.address)) }
                    }
                }
            }
        }
    }
}

/// Renders dependencies and dependents.
fn neighbours(view: &ResourceView) -> Markup {
    let column = |title: &str, neighbours: &[NeighbourView], none: &str| {
        html! {
            div {
                h3 { (title) }
                @if neighbours.is_empty() { p.note { (none) } }
                ul.plain {
                    @for neighbour in neighbours {
                        li {
                            (resource_link(&neighbour.namespace, &neighbour.name)) " "
                            @match neighbour.state {
                                Some(of) => { (state(of)) }
                                None => { span.st.s-Unknown { "Unknown" } }
                            }
                        }
                    }
                }
            }
        }
    };
    html! {
        section aria-labelledby="dependencies" {
            h2 #dependencies { "Dependencies" }
            div.strip {
                (column("Depends on", &view.dependencies, "No dependencies"))
                div.self { h3 { "This resource" } p { (visible(&view.name)) " " (state(view.state)) } }
                (column("Dependents", &view.dependents, "No dependents"))
            }
            p {
                @if view.dependents_total > view.dependents.len() {
                    "The first " (view.dependents.len()) " of " (view.dependents_total) " dependents are shown. "
                }
                a href=(path::graph(&view.namespace)) { "Dependency graph of the namespace" }
            }
        }
    }
}

fn outputs_section(outputs: &OutputsView) -> Markup {
    html! {
        section.card aria-labelledby="outputs" {
            h2 #outputs { "Outputs" }
            @if !outputs.values.is_empty() {
                table {
                    caption.hidden { "Values of outputs" }
                    thead { tr { th scope="col" { "Output" } th scope="col" { "Value" } } }
                    tbody {
                        @for output in &outputs.values {
                            tr { th scope="row" { (code(&output.name)) } td { (output_value(output)) } }
                        }
                    }
                }
            }
            @if !outputs.omitted.is_empty() {
                p { "Without a value here:" }
                ul.plain {
                    @for output in &outputs.omitted {
                        li { (code(&output.name)) " (" (visible(&output.reason)) ")" }
                    }
                }
            }
            p {
                "All outputs: Secret " (code(&outputs.secret_name))
                @if let Some(name) = &outputs.config_map_name { ", ConfigMap " (code(name)) }
            }
        }
    }
}

fn output_value(output: &OutputView) -> Markup {
    html! {
        @if let Some(value) = &output.value { (code(value)) } @else { i { "(sensitive)" } }
    }
}

fn facts(view: &ResourceView) -> Markup {
    html! {
        section.card aria-labelledby="facts" {
            h2 #facts { "Details" }
            dl.facts { @for (name, value) in &view.facts { dt { (name) } dd { (code(value)) } } }
        }
    }
}

fn runs(view: &ResourceView) -> Markup {
    html! {
        section aria-labelledby="runs" {
            h2 #runs { "Runs" }
            @if let Some(error) = &view.runs_error {
                p.note { "The records of runs are not shown: " (bdi(error)) }
            }
            @if view.runs.is_empty() {
                p.empty { "No run has finished." }
            } @else {
                (runs_table(&view.namespace, &view.name, &view.runs))
            }
        }
    }
}
