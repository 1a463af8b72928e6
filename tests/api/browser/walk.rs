//! From the list to the approval of a plan, and the log of the run.

use alustan_api::Terraform;
use serde_json::json;

use super::webdriver::{Browser, ENTER, Settings, TAB, eventually};
use super::{Stage, WITH_JAVASCRIPT, WITHOUT_JAVASCRIPT};
use crate::as_operator::{applying, status};
use crate::fake_kubelet::FakeKubelet;
use crate::server::until;

const PLAN: [&str; 3] = ["aws_subnet.private[0]", "10.0.16.0/20", "known after apply"];

/// Waits until the plan of `network` is approved by `alice`, in the resource and in the audit log of the API server.
async fn until_approved(stage: &Stage) {
    let resources = stage.space.api::<Terraform>();
    let approval = eventually("the approval", async || {
        let approval = resources.get("network").await.unwrap().spec.approval;
        match &approval.plan {
            Some(_) => Ok(approval),
            None => Err(format!("{approval:?}")),
        }
    })
    .await;
    assert_eq!(approval.plan.as_deref(), Some("0123"));
    assert_eq!(approval.by.as_deref(), Some("alice"));
    until("the user in the audit log", async || {
        let is_approval = stage.space.server.audit().iter().any(|call| {
            call["objectRef"]["namespace"] == stage.space.namespace.as_str()
                && call["verb"] == "patch"
                && call["user"]["username"] == "alice"
                && call["responseStatus"]["code"] == 200
                && call["annotations"]["alustan-approvals/plan"] == "0123"
        });
        is_approval
            .then_some(())
            .ok_or_else(|| "not yet".to_owned())
    })
    .await;
}

async fn list_leads_to_the_approval(settings: Settings) {
    let stage = Stage::new().await;
    stage.create_awaiting().await;
    let browser = stage.browser(settings).await;
    let resource = stage.path("network");
    browser.until_path("/").await;
    let has_scripts = browser.execute("return 'htmx' in window;").await;
    assert_eq!(has_scripts, settings.javascript);
    browser.click(&format!("a[href='{resource}']")).await;
    browser.until_path(&resource).await;
    browser.click(&format!("a[href='{resource}/runs/1']")).await;
    browser.until_path(&format!("{resource}/runs/1")).await;
    browser
        .click("section[aria-labelledby='plan'] summary")
        .await;
    let text = browser.text().await;
    for part in PLAN.iter().chain(&["Plan: 2 to add"]) {
        assert!(text.contains(part), "{part} is not in:\n{text}");
    }
    browser.click("form[action$='/approve'] button").await;
    until_approved(&stage).await;
    browser.until_path(&resource).await;
    browser.assert_clean_console().await;
}

#[tokio::test]
async fn list_leads_to_plan_and_approval() {
    list_leads_to_the_approval(WITH_JAVASCRIPT).await;
}

#[tokio::test]
async fn list_leads_to_plan_and_approval_without_javascript() {
    list_leads_to_the_approval(WITHOUT_JAVASCRIPT).await;
}

/// Presses Tab until the element that matches `selector` has the focus.
async fn tab_to(browser: &Browser, selector: &str) {
    const MAX_STOPS: usize = 80;
    let has_focus = format!(
        "return document.activeElement.matches({});",
        json!(selector)
    );
    for _ in 0..MAX_STOPS {
        browser.press(TAB).await;
        if browser.execute(&has_focus).await == true {
            return;
        }
    }
    panic!("Tab does not reach {selector}");
}

#[tokio::test]
async fn plan_is_approved_by_keyboard_alone() {
    let stage = Stage::new().await;
    stage.create_awaiting().await;
    let browser = stage.browser(WITH_JAVASCRIPT).await;
    let resource = stage.path("network");
    browser.element(&format!("a[href='{resource}']")).await;

    // The first stop is the link that skips the navigation. The stop after it is in the content.
    browser.press(TAB).await;
    let first = "return document.activeElement.getAttribute('href');";
    assert_eq!(browser.execute(first).await, "#main");
    browser.press(ENTER).await;
    browser.press(TAB).await;
    let is_in_main = "return document.getElementById('main').contains(document.activeElement);";
    assert_eq!(browser.execute(is_in_main).await, true);

    tab_to(&browser, &format!("a[href='{resource}']")).await;
    browser.press(ENTER).await;
    browser.until_path(&resource).await;
    tab_to(&browser, &format!("a[href='{resource}/runs/1']")).await;
    browser.press(ENTER).await;
    browser.until_path(&format!("{resource}/runs/1")).await;
    tab_to(&browser, "form[action$='/approve'] button").await;
    browser.press(ENTER).await;
    until_approved(&stage).await;
    browser.until_path(&resource).await;
    browser.assert_clean_console().await;
}

/// Creates the resource `network` with the active run 2, and starts its pod. Returns its kubelet and the name of the pod.
async fn create_applying(stage: &Stage) -> (FakeKubelet, String) {
    let kubelet = FakeKubelet::start(&stage.space).await;
    stage.create("network").await;
    let applying = applying("network", 2);
    stage.operator.set_status("network", applying).await;
    let pod = kubelet
        .start_pod(&stage.space, "network", "network-apply-2")
        .await;
    (kubelet, pod)
}

/// Writes the record of run 2 of `network`, and the status after it.
async fn finish_run(stage: &Stage) {
    let log = json!({"log": {"head": "beginning of the log\n", "tail": "end of the log\n", "omittedBytes": 4096}});
    stage
        .operator
        .record("network", 2, json!({"status": log}))
        .await;
    let mut applied = status("Success", "Applied", "Applied");
    applied["run"] = json!(2);
    stage.operator.set_status("network", applied).await;
}

#[tokio::test]
async fn log_is_live_and_then_stored_at_the_same_url() {
    let stage = Stage::new().await;
    let (kubelet, pod) = create_applying(&stage).await;
    kubelet.write(&stage.space, &pod, "Initializing the backend...");
    let browser = stage.browser(WITH_JAVASCRIPT).await;
    let run = format!("{}/runs/2", stage.path("network"));
    browser.open(&stage.ui.url(&run)).await;
    browser.until_text("Initializing the backend...").await;
    browser.execute("window.isSamePage = true;").await;
    kubelet.write(&stage.space, &pod, "aws_vpc.main: Creating...");
    browser.until_text("aws_vpc.main: Creating...").await;
    assert_eq!(browser.execute("return window.isSamePage;").await, true);

    // With the end of the log, the page shows the record of the run.
    kubelet.delete_pod(&stage.space, &pod).await;
    finish_run(&stage).await;
    kubelet.end_log(&stage.space, &pod);
    browser.until_text("end of the log").await;
    let text = browser.text().await;
    assert!(
        text.contains("beginning of the log") && text.contains("4096"),
        "{text}"
    );
    browser.until_path(&run).await;
    browser.open(&stage.ui.url(&run)).await;
    browser.until_text("beginning of the log").await;
    browser.assert_clean_console().await;
}

#[tokio::test]
async fn log_without_javascript_is_a_link_and_then_stored() {
    let stage = Stage::new().await;
    let (kubelet, pod) = create_applying(&stage).await;
    kubelet.write(&stage.space, &pod, "Initializing the backend...");
    // The response with the log ends with the log.
    kubelet.end_log(&stage.space, &pod);
    let browser = stage.browser(WITHOUT_JAVASCRIPT).await;
    let run = format!("{}/runs/2", stage.path("network"));
    browser.open(&stage.ui.url(&run)).await;
    browser.click(&format!("a[href='{run}/log']")).await;
    browser.until_text("Initializing the backend...").await;
    kubelet.delete_pod(&stage.space, &pod).await;
    finish_run(&stage).await;
    browser.open(&stage.ui.url(&run)).await;
    browser.until_text("end of the log").await;
    browser.assert_clean_console().await;
}

#[tokio::test]
async fn log_of_a_finished_pod_is_requested_once() {
    let stage = Stage::new().await;
    let (kubelet, pod) = create_applying(&stage).await;
    kubelet.write(&stage.space, &pod, "Apply complete!");
    kubelet.end_pod(&stage.space, &pod).await;
    let browser = stage.browser(WITH_JAVASCRIPT).await;
    browser
        .open(&stage.ui.url(&format!("{}/runs/2", stage.path("network"))))
        .await;
    browser.until_text("Apply complete!").await;
    // The page requests the log again only after a change of the resource.
    finish_run(&stage).await;
    browser.until_text("Done").await;
    let requests = kubelet.requests(&stage.space, &pod);
    assert!(requests <= 2, "{requests} requests");
    browser.assert_clean_console().await;
}
