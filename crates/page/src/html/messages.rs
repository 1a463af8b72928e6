//! Error page and sign-in page.

use maud::{Markup, html};

use crate::html::frame::{Nav, plain_document};
use crate::html::parts::bdi;

/// Renders an error. An update of an open page replaces its main region or its element `results`: both contain the error.
pub(crate) fn error(status: u16, title: &str, text: &str) -> Markup {
    let content = html! {
        div #results {
            section.card.error {
                p.status-code { (status) }
                h1 { (bdi(title)) }
                p.message { (bdi(text)) }
                p { a href="/" { "All resources" } }
            }
        }
    };
    plain_document(title, Some(Nav::Other), &content)
}

/// Renders the form to sign in with a token. `to`: path to which the user returns.
pub(crate) fn sign_in(notice: Option<&str>, to: &str) -> Markup {
    let content = html! {
        section.card {
            h1 { "Sign in" }
            @if let Some(notice) = notice {
                p.notice role="alert" { (bdi(notice)) }
            }
            form.sign-in method="post" action="/sign-in" {
                input type="hidden" name="to" value=(to);
                label for="token" { "Kubernetes token" }
                input #token type="password" name="token" required autocomplete="off"
                    spellcheck="false" aria-describedby="token-help";
                button #sign-in.primary { "Sign in" }
            }
            div #token-help {
                p { "Create a token for a ServiceAccount with the permissions that you need:" }
                pre { code { "kubectl create token NAME -n NAMESPACE" } }
                p { "The session ends when the token expires. All requests use the permissions of the token." }
            }
        }
    };
    plain_document("Sign in", None, &content)
}
