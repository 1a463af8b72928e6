//! Text that modules and users control is displayed as text.

use serde_json::json;

use super::{Stage, WITH_JAVASCRIPT};
use crate::as_operator::{applying, awaiting};
use crate::fake_kubelet::FakeKubelet;

/// HTML, and the end of each element that could contain it.
const HTML: &str = "HOSTILE</pre></code></td></textarea></title><img src=x onerror=\"alert(1)\"><script>alert(2)</script><a href=\"javascript:alert(3)\">link</a>";

/// ANSI sequences (colour, cursor, OSC 8 link), and marks that change the direction of text.
const TERMINAL: &str = "\u{1b}[31mred\u{1b}[0m \u{1b}[2J \u{1b}]8;;https://evil.test\u{1b}\\link\u{1b}]8;;\u{1b}\\ \u{202e}reversed\u{2066}";

/// Length of the longest line of the log, in bytes.
const LONG_LINE: usize = 1 << 20;

/// Returns the number of elements that the text would create as HTML, and whether the document contains characters that change how others are
/// displayed.
const INSPECT: &str = "
    const created = document.querySelectorAll(\"img, script:not([src]), a[href^='javascript:'], a[href*='evil.test'], [onerror], [style]\").length;
    const hidden = /[\\u001b\\u200e\\u200f\\u202a-\\u202e\\u2066-\\u2069]/.test(document.documentElement.textContent);
    return [created, hidden];
";

#[tokio::test]
async fn hostile_module_output_stays_text() {
    let stage = Stage::new().await;
    let hostile = format!("{HTML} {TERMINAL}");
    let kubelet = FakeKubelet::start(&stage.space).await;
    stage.create("network").await;
    let changes = json!({
        "add": 1, "change": 0, "destroy": 0, "digest": hostile,
        "resources": [{
            "address": format!("terraform_data.a[\"{hostile}\"]"), "action": "create", "module": hostile, "provider": hostile,
            "reason": hostile,
            "attributes": [{"path": hostile, "before": json!(hostile).to_string(), "after": json!(hostile).to_string()}],
        }],
        "outputs": [{"name": hostile, "after": hostile}],
        "checks": [{"address": hostile, "status": "fail", "messages": [hostile]}],
    });
    let fields = json!({
        "spec": {"kind": "plan", "trigger": hostile, "commit": {"subject": hostile, "author": hostile}},
        "status": {
            "result": "Changes", "planId": "0123", "summary": "+1 ~0 -0", "message": hostile, "plan": hostile, "changes": changes,
            "approvalReasons": [hostile], "log": {"head": hostile, "tail": hostile, "omittedBytes": 9},
        },
    });
    stage.operator.record("network", 1, fields).await;
    let mut status = awaiting("0123");
    status["message"] = json!(hostile);
    for condition in status["conditions"].as_array_mut().unwrap() {
        condition["message"] = json!(hostile);
    }
    status["lock"] = json!({"id": hostile, "who": hostile, "operation": hostile, "since": "2026-01-01T00:00:00Z"});
    status["drift"] = json!({
        "since": "2026-01-01T00:00:00Z", "add": 1, "change": 0, "destroy": 0,
        "resources": [{"address": hostile, "action": hostile}],
    });
    status["outputs"] = json!({"secretName": "network-outputs", "values": {"url": hostile}});
    stage.operator.set_status("network", status).await;

    let browser = stage.browser(WITH_JAVASCRIPT).await;
    let resource = stage.path("network");
    let assert_text = async |path: &str| {
        assert!(!browser.has_dialog().await, "{path} opens a dialog");
        assert_eq!(browser.execute(INSPECT).await, json!([0, false]), "{path}");
    };
    let stored = format!("{resource}/runs/1");
    for (path, is_shown) in [
        ("/", true),
        (resource.as_str(), true),
        (stored.as_str(), true),
        ("/approvals", false),
        ("/drift", false),
        (&format!("/ns/{}/graph", stage.space.namespace), false),
    ] {
        browser.open(&stage.ui.url(path)).await;
        let text = browser.execute("return document.body.textContent;").await;
        let text = text.as_str().unwrap();
        assert!(text.contains("HOSTILE") || !is_shown, "{path}: {text}");
        assert_text(path).await;
    }

    let applying = applying("network", 2);
    stage.operator.set_status("network", applying).await;
    let pod = kubelet
        .start_pod(&stage.space, "network", "network-apply-2")
        .await;
    let log = format!("{hostile}\n{}\nlast line", "<b>".repeat(LONG_LINE / 3));
    kubelet.write(&stage.space, &pod, &log);
    let live = format!("{resource}/runs/2");
    browser.open(&stage.ui.url(&live)).await;
    super::webdriver::eventually("the last line of the log", async || {
        let script = "return document.body.textContent.includes('last line');";
        let is_shown = browser.execute(script).await;
        (is_shown == true).then_some(()).ok_or_else(String::new)
    })
    .await;
    assert_text(&live).await;
    assert_eq!(browser.count("#main b").await, 0);
    browser.assert_clean_console().await;
}
