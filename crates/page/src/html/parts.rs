//! Parts of several pages.

use alustan_api::State;
use k8s_openapi::jiff::Timestamp;
use maud::{Markup, html};

use crate::view::text::visible;
use crate::view::{Moment, path};

/// Renders untrusted text, isolated from the direction of the surrounding text.
pub(crate) fn bdi(text: &str) -> Markup {
    html! { bdi { (visible(text)) } }
}

/// Renders untrusted text in a monospace font.
pub(crate) fn code(text: &str) -> Markup {
    html! { code { (visible(text)) } }
}

/// Renders the path to a page of `namespace`: the list, the list of the namespace, and the pages in `last`, which ends with the current page.
pub(crate) fn crumbs(namespace: &str, last: &[(String, String)]) -> Markup {
    html! {
        nav.crumbs aria-label="Breadcrumb" {
            ol {
                li { a href="/" { "Resources" } }
                li { a href=(path::list(namespace)) { (visible(namespace)) } }
                @for (index, (href, text)) in last.iter().enumerate() {
                    @let current = (index + 1 == last.len()).then_some("page");
                    li { a href=(href) aria-current=[current] { (visible(text)) } }
                }
            }
        }
    }
}

/// Renders a state.
pub(crate) fn state(state: State) -> Markup {
    html! { span class={ "st s-" (state.as_str()) } { (state.as_str()) } }
}

/// Renders the result of a run.
pub(crate) fn result(result: &str) -> Markup {
    let class = match result {
        "Done" | "NoChanges" => "s-Success",
        "Changes" => "s-Planned",
        "Failed" => "s-Failed",
        "Cancelled" => "s-Cancelled",
        _ => "s-Pending",
    };
    html! { span class={ "st " (class) } { (visible(result)) } }
}

/// Renders a time relative to the request.
pub(crate) fn time(moment: &Moment) -> Markup {
    html! { time datetime=(rfc3339(moment.at)) { (moment.text) } }
}

/// Renders a time relative to the request, with the time in the title.
pub(crate) fn time_with_title(moment: &Moment) -> Markup {
    let at = rfc3339(moment.at);
    html! { time datetime=(at) title=(at) { (moment.text) } }
}

fn rfc3339(at: Timestamp) -> String {
    Timestamp::from_second(at.as_second())
        .unwrap_or(at)
        .to_string()
}

/// Renders the numbers of objects to create, to update and to destroy.
pub(crate) fn counts(add: i64, change: i64, destroy: i64) -> Markup {
    html! {
        span.counts {
            span.add { "+" (add) } " " span.upd { "~" (change) } " " span.rem { "-" (destroy) }
        }
    }
}

/// Renders the number of objects to destroy, if there are any.
pub(crate) fn destroys(destroy: i64) -> Markup {
    html! {
        @match destroy {
            ..=0 => {}
            1 => { strong.danger { "destroys 1 object" } }
            _ => { strong.danger { "destroys " (destroy) " objects" } }
        }
    }
}

/// Renders a link to a resource, with its namespace.
pub(crate) fn resource_link(namespace: &str, name: &str) -> Markup {
    html! {
        a href=(path::resource(namespace, name)) {
            span.ns { (visible(namespace)) "/" } (visible(name))
        }
    }
}

/// Returns `number` with `noun`, which gets an `s` if the number is not 1.
pub(crate) fn plural(number: usize, noun: &str) -> String {
    let ending = if number == 1 { "" } else { "s" };
    format!("{number} {noun}{ending}")
}
