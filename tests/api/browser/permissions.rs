//! The page shows to each user what the permissions of the user allow.

use super::webdriver::Browser;
use super::{WITH_JAVASCRIPT, may, until_allowed};
use crate::as_operator::{AsOperator, awaiting, planned};
use crate::policies::{bind, install};
use crate::space::{Space, resource};
use crate::ui::Ui;

/// Actions with a button on the page of a resource, and their verbs.
const ACTIONS: [(&str, &str); 4] = [
    ("approve", "approve"),
    ("discard", "approve"),
    ("reconcile", "reconcile"),
    ("suspend", "suspend"),
];

#[tokio::test]
async fn users_see_their_namespaces_and_enabled_buttons() {
    let spaces = [Space::new().await, Space::new().await];
    let server = &spaces[0].server;
    for space in &spaces {
        space.apply(&resource("network")).await.unwrap();
        let operator = AsOperator::new(server, &space.namespace).await;
        operator.record("network", 1, planned("0123")).await;
        operator.set_status("network", awaiting("0123")).await;
    }
    let users = [
        ("alice", &spaces[0], "alustan-approver", "approve"),
        ("bob", &spaces[1], "alustan-operator", "suspend"),
    ];
    for (user, space, role, verb) in users {
        install(space, &[bind(space, user, "ClusterRole", role)]);
        until_allowed(server, user, verb, &space.namespace).await;
    }
    for (user, own, ..) in users {
        let ui = Ui::start(server, user, &own.namespace).await;
        let browser = Browser::start(WITH_JAVASCRIPT).await;
        browser.open(&ui.sign_in).await;
        for space in &spaces {
            let namespace = &space.namespace;
            let path = format!("/ns/{namespace}/tf/network");
            let sees = may(server, user, "list", namespace);
            assert_eq!(sees, namespace == &own.namespace, "{user} {namespace}");
            browser.open(&ui.url("/")).await;
            browser.until_text("network").await;
            let links = browser.count(&format!("a[href='{path}']")).await;
            assert_eq!(links > 0, sees, "{user} {namespace}");

            browser.open(&ui.url(&path)).await;
            let text = browser.text().await;
            let reads = may(server, user, "get", namespace);
            assert_eq!(!text.contains("Forbidden"), reads, "{user}: {text}");
            if !reads {
                assert_eq!(browser.count("form[method=post]").await, 0);
                continue;
            }
            for (action, verb) in ACTIONS {
                let button = format!("form[action='{path}/{action}'] button");
                let button = browser.element(&button).await;
                let allowed =
                    may(server, user, "patch", namespace) && may(server, user, verb, namespace);
                assert_eq!(button.is_enabled().await, allowed, "{user} {action}");
                let source = button.attribute("outerHTML").await;
                let names_verb = browser.text().await.contains(&format!("verb {verb}"))
                    || source.is_some_and(|source| source.contains(&format!("verb {verb}")));
                assert!(
                    allowed || names_verb,
                    "{user} {action}: no missing permission"
                );
            }
        }
        browser.assert_clean_console().await;
    }
}
