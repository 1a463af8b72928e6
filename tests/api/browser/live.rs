//! Changes of resources appear on open pages.

use serde_json::json;

use super::webdriver::eventually;
use super::{Stage, WITH_JAVASCRIPT};
use crate::as_operator::{awaiting, status};

#[tokio::test]
async fn status_change_appears_on_open_pages_without_reload() {
    let stage = Stage::new().await;
    stage.create("web").await;
    let write = async |state: &str, reason: &str, message: &str| {
        let status = status(state, reason, message);
        stage.operator.set_status("web", status).await;
    };
    write("Planning", "Running", "Run 1 creates a plan").await;
    let browser = stage.browser(WITH_JAVASCRIPT).await;
    let pages = [
        (
            "/".to_owned(),
            "Stalled",
            "ModuleInvalid",
            "invalid expression at line 82",
        ),
        (
            stage.path("web"),
            "Success",
            "Applied",
            "Applied revision 1a2b3c4",
        ),
    ];
    for (path, state, reason, message) in pages {
        browser.open(&stage.ui.url(&path)).await;
        browser.until_text("web").await;
        assert!(!browser.text().await.contains(message));
        browser.execute("window.isSamePage = true;").await;
        write(state, reason, message).await;
        browser.until_text(message).await;
        assert_eq!(
            browser.execute("return window.isSamePage;").await,
            json!(true)
        );
    }
    browser.assert_clean_console().await;
}

#[tokio::test]
async fn change_keeps_filter_focus_and_open_details() {
    let stage = Stage::new().await;
    stage.create_awaiting().await;
    stage.create("web").await;
    let browser = stage.browser(WITH_JAVASCRIPT).await;
    let other = format!("a[href='{}']", stage.path("web"));
    browser.element(&other).await;
    browser.click("#q").await;
    for key in ["n", "e", "t", "w"] {
        browser.press(key).await;
    }
    eventually("the filtered list", async || {
        let count = browser.count(&other).await;
        (count == 0)
            .then_some(())
            .ok_or_else(|| format!("{count} links"))
    })
    .await;
    let change = async |message: &str| {
        let mut status = awaiting("0123");
        status["message"] = json!(message);
        stage.operator.set_status("network", status).await;
        browser.until_text(message).await;
    };
    change("first change of the message").await;
    assert_eq!(browser.count(&other).await, 0);
    let typed = "const input = document.activeElement; return [input.id, input.value];";
    assert_eq!(browser.execute(typed).await, json!(["q", "netw"]));

    let run = format!("{}/runs/1", stage.path("network"));
    browser.open(&stage.ui.url(&run)).await;
    let details = "section[aria-labelledby='plan'] details";
    browser.click(&format!("{details} summary")).await;
    browser.execute("window.isSamePage = true;").await;
    browser.element(&format!("{details}[open]")).await;
    let plan_only = status("Planned", "PlanOnly", "The plan is not applied");
    stage.operator.set_status("network", plan_only).await;
    eventually("the page without the button", async || {
        let count = browser.count("form[action$='/approve']").await;
        (count == 0)
            .then_some(())
            .ok_or_else(|| format!("{count} forms"))
    })
    .await;
    browser.element(&format!("{details}[open]")).await;
    assert_eq!(browser.execute("return window.isSamePage;").await, true);
    browser.assert_clean_console().await;
}

/// Number of pages, above the number of connections of Chromium to one server.
const VISITED_PAGES: usize = 9;

/// Chromium keeps left pages in memory, with their connections. Without a free connection, a page does not load before the timeout.
#[tokio::test]
async fn left_pages_close_their_streams() {
    let stage = Stage::new().await;
    stage.create("web").await;
    let browser = stage.browser(WITH_JAVASCRIPT).await;
    for page in 1..=VISITED_PAGES {
        browser.open(&stage.ui.url(&format!("/?page={page}"))).await;
        browser.until_text("web").await;
    }
    // A page from the memory of the browser has a stream again.
    browser.back().await;
    browser.until_text("Pending").await;
    let changed = status("Stalled", "ModuleInvalid", "invalid expression at line 82");
    stage.operator.set_status("web", changed).await;
    browser.until_text("invalid expression at line 82").await;
    browser.assert_clean_console().await;
}

#[tokio::test]
async fn hidden_tabs_close_their_streams() {
    let stage = Stage::new().await;
    stage.create("web").await;
    let browser = stage.browser(WITH_JAVASCRIPT).await;
    let mut tabs = Vec::new();
    for page in 1..=VISITED_PAGES {
        tabs.push(browser.open_tab().await);
        browser.open(&stage.ui.url(&format!("/?page={page}"))).await;
        browser.until_text("web").await;
    }
    // A tab that is visible again shows changes again.
    let changed = status("Stalled", "ModuleInvalid", "invalid expression at line 82");
    browser.show_tab(&tabs[1]).await;
    stage.operator.set_status("web", changed).await;
    browser.until_text("invalid expression at line 82").await;
    browser.assert_clean_console().await;
}
