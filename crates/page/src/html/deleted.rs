//! Page of a resource that does not exist, with the runs of deleted resources of its name.

use maud::{Markup, html};

use crate::html::frame::{Frame, Live, document};
use crate::html::parts::crumbs;
use crate::html::runs_table::runs_table;
use crate::view::text::visible;
use crate::view::{DeletedView, path};

/// Renders the page of a deleted resource.
pub(crate) fn deleted(frame: &Frame<'_>, view: &DeletedView) -> Markup {
    let content = html! {
        (crumbs(&view.namespace, &[(path::resource(&view.namespace, &view.name), view.name.clone())]))
        div.title {
            h1 { (visible(&view.name)) }
            span.tag { "deleted" }
        }
        section aria-labelledby="runs" {
            h2 #runs { "Runs before the deletion" }
            (runs_table(&view.namespace, &view.name, &view.runs))
        }
    };
    document(frame, Live::Main, &content)
}
