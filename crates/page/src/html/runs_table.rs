//! Table of runs.

use maud::{Markup, html};

use crate::html::parts::{bdi, result, time_with_title};
use crate::view::text::visible;
use crate::view::{RunRow, path, seconds};

/// Renders the runs of the resource `name` in `namespace`.
pub(crate) fn runs_table(namespace: &str, name: &str, rows: &[RunRow]) -> Markup {
    html! {
        table.runs {
            caption.hidden { "Runs, newest first" }
            thead {
                tr {
                    th scope="col" { "Run" }
                    th scope="col" { "Result" }
                    th.c-why scope="col" { "Cause" }
                    th scope="col" { "Changes" }
                    th.c-rev scope="col" { "Duration" }
                    th scope="col" { "Finished" }
                }
            }
            tbody { @for row in rows { (run(namespace, name, row)) } }
        }
    }
}

fn run(namespace: &str, name: &str, row: &RunRow) -> Markup {
    html! {
        tr {
            th scope="row" {
                a id={ "run-" (row.number) } href=(path::run(namespace, name, row.number)) {
                    @if row.count > 1 { (row.first_number) "–" }
                    (row.number)
                }
                " " span.tag { (row.kind) }
                @if row.count > 1 { " " span.note { (row.count) " runs" } }
            }
            td {
                @if let Some(of) = &row.result { (result(of)) }
                @if let Some(reason) = &row.reason { " " span.reason { (visible(reason)) } }
            }
            td {
                (bdi(&row.trigger))
                @if let Some(commit) = &row.commit { br; span.note { (bdi(commit)) } }
                @if let Some(user) = &row.approved_by { br; span.note { "approved by " (bdi(user)) } }
            }
            td { @if let Some(summary) = &row.summary { span.sum { (visible(summary)) } } }
            td { @if let Some(duration) = row.seconds { (seconds(duration)) } }
            td { @if let Some(finished) = &row.finished { (time_with_title(finished)) } }
        }
    }
}
