//! Page of a run.

use maud::{Markup, html};

use crate::html::buttons::button;
use crate::html::changes::changes;
use crate::html::frame::{Frame, Live, document};
use crate::html::parts::{bdi, code, crumbs, destroys, result, time_with_title};
use crate::view::text::{short_revision, visible};
use crate::view::{LogPanel, RunView, milliseconds, path, seconds};

/// Maximum size of a plan text whose lines are coloured, in bytes.
const MAX_COLOURED_BYTES: usize = 256 * 1024;

/// Renders the page of a run.
pub(crate) fn run(frame: &Frame<'_>, view: &RunView) -> Markup {
    let content = html! {
        (crumbs(&view.namespace, &[(path::resource(&view.namespace, &view.name), view.name.clone()),
            (path::run(&view.namespace, &view.name, view.number), format!("Run {}", view.number))]))
        div.title {
            h1 { "Run " (view.number) }
            @if let Some(kind) = view.kind { span.tag { (kind) } }
            @if view.active { span.st.s-Applying { "Active" } }
            @else if let Some(of) = &view.result { (result(of)) }
            div.buttons { @if let Some(cancel) = &view.cancel { (button(cancel, frame.csrf)) } }
        }
        @if let Some(message) = &view.message {
            section.card.failure aria-labelledby="failure" {
                h2 #failure { @match &view.reason { Some(reason) => { (visible(reason)) } None => { "Failure" } } }
                pre { (visible(message)) }
            }
        }
        (facts(view))
        @if view.pending_plan.is_some() { (approval(frame, view)) }
        @if !view.phases.is_empty() { (phases(view)) }
        (plan(view))
        (log(&view.log, frame.stream.is_none()))
    };
    document(frame, Live::Main, &content)
}

fn facts(view: &RunView) -> Markup {
    html! {
        section.card aria-labelledby="facts" {
            h2 #facts { "Details" }
            @if !view.has_record && !view.active {
                p.note { "The record of this run does not exist or cannot be read. Plan and log are not known." }
            }
            dl.facts {
                @if let Some((first, last)) = view.range.filter(|_| view.count > 1) {
                    dt { "Repeated" }
                    dd { (view.count) " runs with the same result, from run " (first) " to run " (last) }
                }
                @if let Some(trigger) = &view.trigger { dt { "Cause" } dd { (bdi(trigger)) } }
                @if let Some(subject) = &view.subject { dt { "Commit" } dd { (bdi(subject)) } }
                @if let Some(author) = &view.author { dt { "Author" } dd { (bdi(author)) } }
                @if let Some(revision) = &view.revision {
                    dt { "Revision" }
                    dd { code title=(visible(revision)) { (visible(short_revision(revision))) } }
                }
                @if let Some(approval) = &view.approval {
                    dt { "Approved" }
                    dd {
                        @if let Some(user) = &approval.by { "by " (bdi(user)) " " }
                        @if let Some(at) = &approval.at { (time_with_title(at)) }
                    }
                }
                @if let Some(started) = &view.started { dt { "Started" } dd { (time_with_title(started)) } }
                @if let Some(finished) = &view.finished { dt { "Finished" } dd { (time_with_title(finished)) } }
                @if let Some(duration) = view.seconds { dt { "Duration" } dd { (seconds(duration)) } }
                @if let Some(engine) = &view.engine { dt { "Engine" } dd { (visible(engine)) } }
                @if let Some(job) = &view.job { dt { "Job" } dd { (code(job)) } }
                @if let Some(image) = &view.image { dt { "Image" } dd { (code(image)) } }
            }
        }
    }
}

fn approval(frame: &Frame<'_>, view: &RunView) -> Markup {
    html! {
        section.card.approval aria-labelledby="approval" {
            h2 #approval { "Plan waits for approval" }
            p.totals {
                @if let Some(summary) = &view.summary { span.sum { (visible(summary)) } " " }
                @if let Some(changes) = &view.changes { (destroys(changes.destroy)) }
            }
            @if !view.approval_reasons.is_empty() {
                ul { @for reason in &view.approval_reasons { li { (bdi(reason)) } } }
            }
            @if let Some(plan) = &view.pending_plan { p { "Plan id " (code(plan)) } }
            div.buttons { @for entry in &view.plan_buttons { (button(entry, frame.csrf)) } }
        }
    }
}

fn phases(view: &RunView) -> Markup {
    html! {
        section aria-labelledby="steps" {
            h2 #steps { "Steps" }
            ol.phases {
                @for phase in &view.phases {
                    li {
                        span.phase { (phase.name) }
                        svg.bar aria-hidden="true" focusable="false" {
                            rect width={ (phase.percent.max(1)) "%" } height="100%" {}
                        }
                        span.duration { (milliseconds(phase.milliseconds)) }
                    }
                }
            }
        }
    }
}

fn plan(view: &RunView) -> Markup {
    html! {
        @if view.changes.is_some() || view.plan_text.is_some() {
            section aria-labelledby="plan" {
                h2 #plan { "Plan" }
                @if let Some(of) = &view.changes { (changes(of)) }
                @if let Some(text) = &view.plan_text {
                    details #plan-text {
                        summary { "Plan as text" }
                        pre.output tabindex="0" role="region" aria-label="Plan as text" {
                            (coloured(text))
                        }
                    }
                }
            }
        }
    }
}

/// Renders the text of a plan with a class for each changed line.
fn coloured(text: &str) -> Markup {
    let text = visible(text);
    if text.len() > MAX_COLOURED_BYTES {
        return html! { (text) };
    }
    html! {
        @for line in text.split_inclusive('\n') {
            @match line_class(line) {
                Some(class) => { span.(class) { (line) } }
                None => { (line) }
            }
        }
    }
}

fn line_class(line: &str) -> Option<&'static str> {
    let line = line.trim_start();
    [
        ("-/+ ", "rem"),
        ("+/- ", "rem"),
        ("- ", "rem"),
        ("+ ", "add"),
        ("~ ", "upd"),
    ]
    .into_iter()
    .find_map(|(sign, class)| line.starts_with(sign).then_some(class))
}

/// Renders the log. `is_only_stream`: the page has no stream of changes, so it is loaded again at the end of the log.
fn log(panel: &LogPanel, is_only_stream: bool) -> Markup {
    html! {
        section aria-labelledby="log-title" {
            h2 #log-title { "Log" }
            @match panel {
                LogPanel::Live { stream, raw, waiting } => {
                    @if let Some(reason) = waiting { p.note { "The pod has not started: " (bdi(reason)) } }
                    (live_log(stream, raw, is_only_stream))
                }
                LogPanel::Stored { head, omitted_bytes, tail } => {
                    pre #log.output tabindex="0" role="region" aria-label="Log output" {
                        (visible(head))
                        @if *omitted_bytes > 0 {
                            span.gap { "\n… " (omitted_bytes) " bytes are not stored …\n" }
                        }
                        (visible(tail))
                    }
                }
                LogPanel::Missing { reason } => { p.empty { (bdi(reason)) } }
            }
        }
    }
}

/// Renders a log that is streamed: page.js appends the lines as text.
fn live_log(stream: &str, raw: &str, reloads: bool) -> Markup {
    html! {
        p {
            a #raw-log href=(raw) { "Log as text" }
            @if reloads { " " span.note { "The page appends new lines." } }
        }
        pre #log.output.live tabindex="0" role="region" aria-label="Log output" data-log-stream=(stream)
            data-reload-at-end[reloads] hx-preserve="true" {}
    }
}
