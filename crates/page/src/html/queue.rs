//! Queues: plans that wait for approval, and resources with drift.

use maud::{Markup, html};

use crate::html::frame::{Frame, Live, document};
use crate::html::parts::{
    bdi, code, counts, destroys, plural, resource_link, state, time_with_title,
};
use crate::view::QueueView;

/// Number of characters of a plan id that the table shows.
const PLAN_ID: usize = 12;

/// Renders the queue of plans that wait for approval.
pub(crate) fn approvals(frame: &Frame<'_>, view: &QueueView) -> Markup {
    let content = html! {
        h1 { "Approvals" }
        @if view.entries.is_empty() {
            p.empty { "No plan waits for approval." }
        } @else {
            table.list {
                (caption(view, "plan"))
                thead {
                    tr {
                        th scope="col" { "Resource" }
                        th scope="col" { "Changes" }
                        th scope="col" { "Plan" }
                        th.c-why scope="col" { "Message" }
                        th scope="col" { "Waiting since" }
                    }
                }
                tbody {
                    @for entry in &view.entries {
                        @let row = &*entry.listed.row;
                        @if let Some(plan) = &row.pending {
                            tr.destructive[plan.destroy > 0] {
                                th scope="row" { (resource_link(&row.namespace, &row.name)) }
                                td { span.sum { (plan.summary) } " " (destroys(plan.destroy)) }
                                td { (code(&plan.id.chars().take(PLAN_ID).collect::<String>())) }
                                td { (bdi(&row.message)) }
                                td {
                                    @if let Some(since) = &entry.queued_since { (time_with_title(since)) }
                                }
                            }
                        }
                    }
                }
            }
        }
    };
    document(frame, Live::Main, &content)
}

/// Renders the queue of resources with drift.
pub(crate) fn drift(frame: &Frame<'_>, view: &QueueView) -> Markup {
    let content = html! {
        h1 { "Drift" }
        @if view.entries.is_empty() {
            p.empty { "No resource has drift." }
        } @else {
            table.list {
                (caption(view, "resource"))
                thead {
                    tr {
                        th scope="col" { "Resource" }
                        th scope="col" { "State" }
                        th scope="col" { "Differences" }
                        th.c-why scope="col" { "Message" }
                        th scope="col" { "Drifted since" }
                    }
                }
                tbody {
                    @for entry in &view.entries {
                        @let row = &*entry.listed.row;
                        @if let Some(drift) = &row.drift {
                            tr.destructive[drift.destroy > 0] {
                                th scope="row" { (resource_link(&row.namespace, &row.name)) }
                                td { (state(row.state)) }
                                td { (counts(drift.add, drift.change, drift.destroy)) }
                                td { (bdi(&row.message)) }
                                td {
                                    @if let Some(since) = &entry.queued_since { (time_with_title(since)) }
                                }
                            }
                        }
                    }
                }
            }
        }
    };
    document(frame, Live::Main, &content)
}

fn caption(view: &QueueView, noun: &str) -> Markup {
    html! {
        caption {
            (plural(view.total, noun)) ", oldest first"
            @if view.destructive > 0 {
                ". " strong.danger { (view.destructive) " would destroy objects" }
            }
            @if view.total > view.entries.len() { ". The first " (view.entries.len()) " are shown" }
        }
    }
}
