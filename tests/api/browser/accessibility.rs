//! Checks of all pages with axe-core, in both colour schemes. With `ALUSTAN_SCREENSHOTS`, the name of a folder, also writes the screenshots of
//! the docs.

use std::fs;
use std::path::PathBuf;

use serde_json::{Value, json};

use super::WITH_JAVASCRIPT;
use super::showcase::{self, PAYMENTS, PLATFORM, USER};
use super::webdriver::{Browser, Scheme};
use crate::ui::Ui;

/// Rules of the Web Content Accessibility Guidelines 2.2, levels A and AA, and best practices.
const OPTIONS: &str = r#"{
    "resultTypes": ["violations"],
    "runOnly": ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"]
}"#;

/// Returns axe-core, from `ALUSTAN_AXE`.
fn axe() -> String {
    let file = std::env::var_os("ALUSTAN_AXE").expect("ALUSTAN_AXE: run `make api T=browser`");
    fs::read_to_string(file).unwrap()
}

/// A page to check.
struct Shown {
    path: String,
    /// Name of the screenshot in the docs.
    screenshot: Option<&'static str>,
    /// Selector of the element at the top of the window.
    top: &'static str,
    /// Selector of the details that are open.
    open: &'static str,
}

fn pages() -> Vec<Shown> {
    let page = |path: &str, screenshot| Shown {
        path: path.to_owned(),
        screenshot,
        top: "body",
        open: "#none",
    };
    let database = format!("/ns/{PAYMENTS}/tf/database");
    let run = format!("{database}/runs/7");
    let log = Shown {
        top: "#log-title",
        open: "#replace-0, #plan-text",
        ..page(&run, Some("log"))
    };
    let run = Shown {
        top: "#plan",
        open: "#replace-0",
        ..page(&run, Some("run"))
    };
    vec![
        page("/", Some("list")),
        page(&database, Some("resource")),
        run,
        log,
        page(&format!("/ns/{PAYMENTS}/graph"), Some("graph")),
        page("/approvals", Some("approvals")),
        page("/drift", None),
        page(&format!("/ns/{PLATFORM}/tf/cluster/runs/22"), None),
        page(&format!("/ns/{PLATFORM}/tf/dns"), None),
        page(&format!("/ns/{PLATFORM}/tf/monitoring"), None),
        page("/?state=Stalled&q=none", None),
        page(&format!("/ns/{PAYMENTS}/tf/unknown"), None),
    ]
}

/// Returns the violations on the page, one per line.
async fn violations(browser: &Browser, axe: &str) -> Vec<String> {
    // The console of the browser contains the code if it fails.
    browser.execute(&format!("{axe}; window.axe = axe;")).await;
    let script = format!(
        "const done = arguments[arguments.length - 1];
         axe.run(document, {OPTIONS}).then((results) => done(results.violations), (error) => done([{{id: String(error), nodes: []}}]));"
    );
    let found = browser.execute_async(&script).await;
    let found = found.as_array().unwrap().iter();
    let describe = |violation: &Value| {
        let nodes = violation["nodes"].as_array().unwrap();
        let nodes: Vec<String> = nodes
            .iter()
            .map(|node| format!("{} {}", node["html"], node["failureSummary"]))
            .collect();
        format!("{}: {}", violation["id"], nodes.join("\n    "))
    };
    found.map(describe).collect()
}

#[tokio::test]
async fn pages_are_accessible_in_light_and_dark() {
    let server = showcase::create().await;
    let ui = Ui::start(&server, USER, PAYMENTS).await;
    let folder = std::env::var_os("ALUSTAN_SCREENSHOTS").map(PathBuf::from);
    let browser = Browser::start(WITH_JAVASCRIPT).await;
    browser
        .devtools(
            "Emulation.setDeviceMetricsOverride",
            json!({"width": 1280, "height": 800, "deviceScaleFactor": 1, "mobile": false}),
        )
        .await;
    browser.open(&ui.sign_in).await;
    browser.until_text("database").await;
    let axe = axe();
    let mut found = Vec::new();
    for scheme in [Scheme::Light, Scheme::Dark] {
        browser.set_scheme(scheme).await;
        for shown in pages() {
            let Shown {
                path, top, open, ..
            } = &shown;
            browser.open(&ui.url(path)).await;
            browser.element("h1").await;
            let prepare = format!(
                "document.querySelectorAll({open:?}).forEach((details) => details.open = true);
                 document.querySelector({top:?}).scrollIntoView();
                 window.scrollBy(0, -12);"
            );
            browser.execute(&prepare).await;
            if let (Some(folder), Some(name)) = (&folder, shown.screenshot) {
                let file = folder.join(format!("{name}-{}.png", scheme.as_str()));
                fs::write(file, browser.screenshot().await).unwrap();
            }
            let violations = violations(&browser, &axe).await;
            found.extend(
                violations
                    .into_iter()
                    .map(|violation| format!("{} {path}: {violation}", scheme.as_str())),
            );
        }
    }
    assert!(found.is_empty(), "{}", found.join("\n"));
    browser.assert_clean_console().await;
}
