//! Document around each page: head, header, navigation and main region.

use maud::{DOCTYPE, Markup, html};

use crate::html::parts::bdi;

/// Configuration of htmx: no code from attributes, no inline style, requests to this server only, no pages in local storage. Error pages replace the
/// content as well: otherwise, a page would stay unchanged after the user lost a permission.
const HTMX: &str = r#"{"allowEval":false,"includeIndicatorStyles":false,"selfRequestsOnly":true,"historyCacheSize":0,"responseHandling":[{"code":"204","swap":false},{"code":"...","swap":true}]}"#;

/// Entry of the navigation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Nav {
    /// List of resources.
    Resources,
    /// Queue of plans that wait for approval.
    Approvals,
    /// Queue of resources with drift.
    Drift,
    /// A page without an entry.
    Other,
}

/// Parts of a document that are the same on all pages.
#[derive(Clone, Debug)]
pub(crate) struct Frame<'a> {
    /// Title of the page.
    pub(crate) title: &'a str,
    /// Name of the user.
    pub(crate) user: &'a str,
    /// CSRF token of the session.
    pub(crate) csrf: &'a str,
    /// Entry of the navigation that contains the page.
    pub(crate) active_nav: Nav,
    /// URL of the stream of events that announces changes. `None`: the page is not updated.
    pub(crate) stream: Option<String>,
    /// Whether the page has a button to sign out.
    pub(crate) can_sign_out: bool,
    /// Result of the last action.
    pub(crate) notice: Option<&'a str>,
}

/// Part of a page that an announced change replaces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Live {
    /// The main region.
    Main,
    /// The element with id `results`: text fields outside keep their text.
    Results,
}

/// Returns the document with `content` in the main region.
pub(crate) fn document(frame: &Frame<'_>, live: Live, content: &Markup) -> Markup {
    let stream = frame.stream.as_deref();
    let target = match live {
        Live::Results => "#results",
        Live::Main => "#main",
    };
    let content = html! {
        @if let Some(notice) = frame.notice {
            p.notice role="status" { (bdi(notice)) }
        }
        (content)
    };
    html! {
        (DOCTYPE)
        html lang="en" {
            (head(frame.title))
            body hx-ext=[stream.map(|_| "sse")] sse-connect=[stream] {
                a.skip href="#main" { "Skip to content" }
                header.top {
                    a.brand href="/" { "Alustan" }
                    (navigation(frame.active_nav))
                    (user(frame))
                }
                @if stream.is_some() {
                    main #main tabindex="-1" hx-get="" hx-trigger="sse:change" hx-target=(target)
                        hx-select=(target) hx-swap="outerHTML" { (content) }
                } @else {
                    main #main tabindex="-1" { (content) }
                }
            }
        }
    }
}

/// Returns a document without a user. `nav`: navigation, for users who may be signed in.
pub(crate) fn plain_document(title: &str, nav: Option<Nav>, content: &Markup) -> Markup {
    html! {
        (DOCTYPE)
        html lang="en" {
            (head(title))
            body {
                header.top {
                    a.brand href="/" { "Alustan" }
                    @if let Some(nav) = nav { (navigation(nav)) }
                }
                main #main.narrow { (content) }
            }
        }
    }
}

fn head(title: &str) -> Markup {
    html! {
        head {
            meta charset="utf-8";
            meta name="viewport" content="width=device-width, initial-scale=1";
            meta name="color-scheme" content="light dark";
            meta name="htmx-config" content=(HTMX);
            title { (crate::view::text::visible(title)) " · Alustan" }
            link rel="stylesheet" href="/assets/page.css";
            script src="/assets/htmx.js" defer {}
            script src="/assets/htmx-sse.js" defer {}
            script src="/assets/page.js" defer {}
        }
    }
}

fn navigation(active: Nav) -> Markup {
    let entries = [
        (Nav::Resources, "/", "Resources"),
        (Nav::Approvals, "/approvals", "Approvals"),
        (Nav::Drift, "/drift", "Drift"),
    ];
    html! {
        nav aria-label="Main" {
            ul {
                @for (nav, href, text) in entries {
                    li { a href=(href) aria-current=[(nav == active).then_some("page")] { (text) } }
                }
            }
        }
    }
}

fn user(frame: &Frame<'_>) -> Markup {
    html! {
        div.user {
            span.name title="Signed-in user" { (bdi(frame.user)) }
            @if frame.can_sign_out {
                form method="post" action="/sign-out" {
                    input type="hidden" name="csrf" value=(frame.csrf);
                    button #sign-out { "Sign out" }
                }
            }
        }
    }
}
