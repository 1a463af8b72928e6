//! List of resources.

use maud::{Markup, html};

use crate::html::frame::{Frame, Live, document};
use crate::html::parts::{plural, state, time};
use crate::row::Row;
use crate::view::text::{beginning, short_revision, visible};
use crate::view::{ListQuery, ListView, ListedRow, SortKey, path};

/// Maximum size of the message in a row as HTML, in bytes. Long names reduce it, so that a page has at most 60 KB.
const MAX_MESSAGE_BYTES: usize = 110;

/// Size of a row as HTML that is available for the message, and for the names, which occur twice, in bytes.
const TEXT_BYTES: usize = 210;

/// Maximum size of a reason as HTML, in bytes.
const MAX_REASON_BYTES: usize = 40;

/// Renders the list of resources.
pub(crate) fn list(frame: &Frame<'_>, view: &ListView) -> Markup {
    let content = html! {
        h1 { "Resources" }
        (filter_form(view))
        div #results {
            (states(view))
            @if view.rows.is_empty() {
                p.empty {
                    @if view.total == 0 { "No Terraform resources that you may list." }
                    @else { "No resource matches the filters. " a href="/" { "Remove all filters" } }
                }
            } @else {
                table.list {
                    caption {
                        (plural(view.matching, "resource"))
                        @if view.attention > 0 { ", " (view.attention) " need attention" }
                    }
                    thead {
                        tr {
                            (column(&view.query, SortKey::Name, "Resource", "c-name"))
                            (column(&view.query, SortKey::State, "State", "c-state"))
                            (column(&view.query, SortKey::Reason, "Reason", "c-why"))
                            th.c-plan scope="col" { "Changes" }
                            th.c-rev scope="col" { "Revision" }
                            (column(&view.query, SortKey::Since, "Since", "c-since"))
                        }
                    }
                    tbody { @for listed in &view.rows { (row(listed)) } }
                }
            }
            (pages(view))
        }
    };
    document(frame, Live::Results, &content)
}

fn filter_form(view: &ListView) -> Markup {
    let ListQuery {
        state, ns, q, sort, ..
    } = &view.query;
    html! {
        form.filters method="get" action="/" role="search" hx-get="/" hx-target="#results"
            hx-select="#results" hx-swap="outerHTML" hx-push-url="true"
            hx-trigger="submit, change, keyup delay:400ms" hx-sync="this:replace" {
            div {
                label for="q" { "Search" }
                input #q type="search" name="q" value=(q) maxlength="200" autocomplete="off"
                    placeholder="Name, reason or revision";
            }
            div {
                label for="ns" { "Namespace" }
                input #ns type="text" name="ns" value=(ns) maxlength="63" autocomplete="off"
                    list="namespaces" placeholder="All";
                datalist #namespaces {
                    @for namespace in &view.namespaces { option value=(namespace) {} }
                }
            }
            @if let Some(state) = state {
                input type="hidden" name="state" value=(state.as_str());
            }
            input type="hidden" name="sort" value=(sort);
            button #filter { "Filter" }
        }
    }
}

/// Renders the number of resources by state, as filters.
fn states(view: &ListView) -> Markup {
    let query = &view.query;
    let current = |is_current: bool| is_current.then_some("true");
    html! {
        nav.states aria-label="States" {
            ul {
                li {
                    a href=(query.link("state", "")) aria-current=[current(query.state.is_none())] {
                        "All " b { (view.found) }
                    }
                }
                @for filter in &view.states {
                    @let name = filter.state.as_str();
                    li {
                        a class={ "st s-" (name) } href=(query.link("state", name))
                            aria-current=[current(query.state == Some(filter.state))] {
                            (name) " " b { (filter.count) }
                        }
                    }
                }
            }
            @if !query.ns.is_empty() {
                a href=(path::graph(&query.ns)) { "Dependency graph" }
            }
        }
    }
}

/// Renders the header of a column with a link that sorts by it, or reverses the order.
fn column(query: &ListQuery, key: SortKey, title: &str, class: &str) -> Markup {
    let is_current = query.sort.key == key;
    let order = match (is_current, query.sort.descending) {
        (false, _) => None,
        (true, false) => Some("ascending"),
        (true, true) => Some("descending"),
    };
    let value = match order {
        Some("ascending") => format!("-{}", key.as_str()),
        _ => key.as_str().to_owned(),
    };
    html! {
        th.(class) scope="col" aria-sort=[order] {
            a id={ "sort-" (key.as_str()) } href=(query.link("sort", &value)) { (title) }
        }
    }
}

fn row(listed: &ListedRow) -> Markup {
    let row = &*listed.row;
    html! {
        tr {
            th scope="row" {
                a id=(row_id(row)) href=(path::resource(&row.namespace, &row.name)) {
                    span.ns { (visible(&row.namespace)) "/" } (visible(&row.name))
                }
            }
            td {
                (state(row.state))
                @if row.suspended { " " span.tag { "suspended" } }
            }
            td {
                @if let Some(reason) = &row.reason { b { (beginning(reason, MAX_REASON_BYTES)) } " " }
                bdi { (beginning(&row.message, message_bytes(row))) }
            }
            td { (changes(row)) }
            td {
                @if let Some(revision) = &row.revision {
                    code { (visible(short_revision(revision))) }
                }
            }
            td { @if let Some(since) = &listed.since { (time(since)) } }
        }
    }
}

/// Returns the size that the message of `row` may have.
fn message_bytes(row: &Row) -> usize {
    let names = row.namespace.len().saturating_add(row.name.len());
    TEXT_BYTES
        .saturating_sub(names.saturating_mul(2))
        .clamp(30, MAX_MESSAGE_BYTES)
}

/// Renders the changes of the plan that waits for approval, or the drift.
fn changes(row: &Row) -> Markup {
    html! {
        @if let Some(plan) = &row.pending {
            span.sum.d[plan.destroy > 0] { (beginning(&plan.summary, 30)) }
        } @else if let Some(drift) = &row.drift {
            span.sum.d[drift.destroy > 0] {
                "+" (drift.add) " ~" (drift.change) " -" (drift.destroy)
            }
        }
    }
}

/// Returns a short id that depends on namespace and name only, so that the focus survives updates (FNV-1a,
/// <https://datatracker.ietf.org/doc/html/draft-eastlake-fnv>).
fn row_id(row: &Row) -> String {
    let bytes = row.namespace.bytes().chain([b'/']).chain(row.name.bytes());
    let hash = bytes.fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    format!("r{:08x}", hash & 0xffff_ffff)
}

fn pages(view: &ListView) -> Markup {
    let link = |page: usize| view.query.link("page", &page.to_string());
    html! {
        @if view.pages > 1 {
            nav.pages aria-label="Pages" {
                @if view.page > 1 {
                    a #previous rel="prev" href=(link(view.page - 1)) { "Previous" }
                }
                span { "Page " (view.page) " of " (view.pages) }
                @if view.page < view.pages {
                    a #next rel="next" href=(link(view.page + 1)) { "Next" }
                }
            }
        }
    }
}
