//! Dependency graph of a namespace.

use maud::{Markup, html};

use crate::html::frame::{Frame, Live, document};
use crate::html::parts::{crumbs, plural, resource_link, state};
use crate::view::text::visible;
use crate::view::{GraphNode, GraphView, path};

/// Renders the dependency graph of a namespace, and the same as a table.
pub(crate) fn graph(frame: &Frame<'_>, view: &GraphView) -> Markup {
    let content = html! {
        (crumbs(&view.namespace, &[(path::graph(&view.namespace), "Dependency graph".to_owned())]))
        h1 { "Dependencies in " (visible(&view.namespace)) }
        @if view.total == 0 {
            p.empty { "The namespace has no Terraform resources that you may list." }
        } @else {
            p.note {
                (plural(view.total, "resource")) ". Arrows point from a dependency to its dependents."
                @if view.truncated { " Only these resources of the namespace are shown." }
                @if view.collapsed { " Resources with the same distance from the first dependency are grouped, because the graph is large." }
            }
            div.graph tabindex="0" role="region" aria-label="Dependency graph" { (svg(view)) }
            (table(view))
        }
    };
    document(frame, Live::Main, &content)
}

fn svg(view: &GraphView) -> Markup {
    html! {
        svg xmlns="http://www.w3.org/2000/svg" role="group" aria-label="Resources and their dependencies"
            width=(view.width) height=(view.height) viewBox={ "0 0 " (view.width) " " (view.height) } {
            defs {
                marker #arrow viewBox="0 0 8 8" refX="8" refY="4" markerWidth="7" markerHeight="7" orient="auto" {
                    path.head d="M0 0L8 4L0 8z" {}
                }
            }
            @for edge in &view.edges {
                path.edge.backward[edge.backward] d=(edge.path) marker-end="url(#arrow)" {}
            }
            @for (index, node) in view.nodes.iter().enumerate() { (svg_node(node, index)) }
        }
    }
}

fn svg_node(node: &GraphNode, index: usize) -> Markup {
    let name = node.state.map_or("Unknown", alustan_api::State::as_str);
    let detail = match node.states.as_slice() {
        _ if node.resources <= 1 => name.to_owned(),
        states => {
            let states = states
                .iter()
                .map(|(state, count)| format!("{count} {}", state.as_str()));
            states.collect::<Vec<_>>().join(", ")
        }
    };
    html! {
        a.node.external[node.external].group[node.resources > 1] id={ "n" (index) } href=(node.href) {
            title { (visible(&node.label)) " " (detail) }
            rect class={ "n-" (name) } x=(node.x) y=(node.y) width="208" height="46" rx="6" {}
            // The inner element cuts long text.
            svg x=(node.x + 10) y=(node.y) width="188" height="46" {
                text.label x="0" y="19" { (visible(&node.label)) } " "
                text.detail x="0" y="36" { (detail) }
            }
        }
    }
}

fn table(view: &GraphView) -> Markup {
    html! {
        h2 { "Table" }
        @if view.total > view.rows.len() {
            p.note { "The first " (view.rows.len()) " of " (view.total) " resources are listed." }
        }
        table {
            caption.hidden { "Resources and their dependencies" }
            thead { tr { th scope="col" { "Resource" } th scope="col" { "Depends on" } th scope="col" { "State" } } }
            tbody {
                @for row in &view.rows {
                    tr {
                        th scope="row" { a href=(path::resource(&view.namespace, &row.name)) { (visible(&row.name)) } }
                        td {
                            ul.inline {
                                @for (namespace, name) in &row.depends_on { li { (resource_link(namespace, name)) } }
                            }
                        }
                        td { (state(row.state)) }
                    }
                }
            }
        }
    }
}
