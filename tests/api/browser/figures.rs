//! Figures of a page with many resources, a large plan and a large log. `hack/bench-page` runs it with the numbers of the budgets and a release
//! build of `kubectl-alustan`; other runs use small numbers. The test asserts no duration.

use std::fmt::Write as _;
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use alustan_api::change_set::MAX_DETAILS_BYTES;
use alustan_api::names;
use futures::{StreamExt, stream};
use k8s_openapi::api::core::v1::Secret;
use reqwest::StatusCode;
use reqwest::header::ACCEPT;
use serde_json::{Value, json};

use super::showcase::{self, USER};
use super::webdriver::{Browser, eventually};
use super::{WITH_JAVASCRIPT, until_allowed};
use crate::as_operator::{AsOperator, applying, awaiting, status};
use crate::cli;
use crate::fake_kubelet::FakeKubelet;
use crate::policies::{bind, install};
use crate::server::{Server, until};
use crate::space::{Space, resource};
use crate::ui::{Ui, Visitor};

/// Number of resources, if `ALUSTAN_BENCH_PAGE` is not set. The other numbers are derived from it.
const RESOURCES: usize = 20;
/// Number of resources per namespace.
const TOGETHER: usize = 200;
/// Number of concurrent requests of the test.
const CONCURRENCY: usize = 16;
/// Number of requests of one measurement.
const REQUESTS: usize = 20;
/// Length of a line of the log, in bytes.
const LINE_BYTES: usize = 100;

/// Sizes of what the page shows.
struct Sizes {
    resources: usize,
    changes: usize,
    log_bytes: usize,
}

impl Sizes {
    fn new() -> Self {
        let count = std::env::var("ALUSTAN_BENCH_PAGE");
        let resources = count.map_or(RESOURCES, |count| count.parse().unwrap());
        Self {
            resources,
            changes: resources / 2,
            log_bytes: resources * 2000,
        }
    }
}

/// Rows of the printed table.
#[derive(Default)]
struct Table(String);

impl Table {
    fn row(&mut self, what: &str, figure: &str, budget: &str) {
        writeln!(self.0, "{what:<58} {figure:>22} {budget:>14}").unwrap();
    }

    fn durations(&mut self, what: &str, mut durations: Vec<Duration>, budget: &str) {
        durations.sort();
        let (median, last) = (durations[durations.len() / 2], durations.last().unwrap());
        let figure = format!(
            "{:.0} ms, max {:.0}",
            milliseconds(median),
            milliseconds(*last)
        );
        self.row(what, &figure, budget);
    }
}

fn milliseconds(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1000.0
}

fn kilobytes(bytes: usize) -> String {
    format!("{} KB", bytes.div_ceil(1000))
}

/// Creates `count` resources with a status, in namespaces with [`TOGETHER`] resources each.
async fn create_resources(server: &Arc<Server>, count: usize) -> Vec<Space> {
    let spaces: Vec<Space> = stream::iter(0..count.div_ceil(TOGETHER))
        .then(async |_| Space::of(server, json!({})).await)
        .collect()
        .await;
    stream::iter(0..count)
        .for_each_concurrent(CONCURRENCY, async |index| {
            let space = &spaces[index / TOGETHER];
            let name = format!("stack-{index:05}");
            space.apply(&resource(&name)).await.unwrap();
            let operator = AsOperator::of(&space.client, &space.namespace);
            let applied = showcase::applied(3, 5400, 42);
            operator.set_status(&name, applied).await;
        })
        .await;
    spaces
}

/// Requests the page at `path` several times. Returns the durations, and the size of the response.
async fn measure(visitor: &Visitor<'_>, path: &str) -> (Vec<Duration>, usize) {
    let mut durations = Vec::new();
    let mut bytes = 0;
    for _ in 0..REQUESTS {
        let start = Instant::now();
        let (status, body) = visitor.read(path).await;
        durations.push(start.elapsed());
        assert_eq!(status, StatusCode::OK, "{path}");
        bytes = body.len();
    }
    (durations, bytes)
}

/// Waits until the page lists `count` resources in the namespaces of the test.
async fn until_listed(visitor: &Visitor<'_>, spaces: &[Space], count: usize) {
    until("all resources", async || {
        let mut found = 0;
        for space in spaces {
            let path = format!("/?ns={}", space.namespace);
            let request = visitor.request(reqwest::Method::GET, &path);
            let response = request.header(ACCEPT, "application/json").send().await;
            let body = response.unwrap().text().await.unwrap();
            let list: Value = serde_json::from_str(&body).unwrap();
            found += list["matching"].as_u64().unwrap();
        }
        (found == count as u64)
            .then_some(())
            .ok_or_else(|| format!("{found} resources"))
    })
    .await;
}

/// Writes the record of run 1 of `plan`, with as many of `count` changes as a record contains, and the Secret with the text of the plan.
async fn create_plan(space: &Space, operator: &AsOperator, count: usize) -> usize {
    let change = |index: usize| {
        json!({
            "address": format!("module.region[\"eu-west-1\"].aws_route53_record.host[{index}]"), "action": "create",
            "attributes": [{"path": "ttl", "after": "300"}, {"path": "fqdn", "unknown": true}],
        })
    };
    let size = change(count).to_string().len() + 1;
    let listed = count.min(MAX_DETAILS_BYTES / size);
    let resources: Vec<Value> = (0..listed).map(change).collect();
    let mut text = String::new();
    for index in 0..count {
        write!(
            text,
            "  # module.region[\"eu-west-1\"].aws_route53_record.host[{index}] will be created\n  + resource \"aws_route53_record\" \"host\" {{\n      + ttl  = 300\n    }}\n\n"
        )
        .unwrap();
    }
    space.apply(&resource("plan")).await.unwrap();
    let fields = json!({
        "spec": {"kind": "plan"},
        "status": {
            "result": "Changes", "planId": "0123", "summary": format!("+{count} ~0 -0"),
            "changes": {
                "add": count, "change": 0, "destroy": 0, "digest": "d1", "resources": resources, "omitted": count - listed,
            },
        },
    });
    operator.record("plan", 1, fields).await;
    operator.set_status("plan", awaiting("0123")).await;
    let secret = json!({"metadata": {"name": names::plan("plan")}, "stringData": {"plan.txt": text, "id": "0123"}});
    space.create::<Secret>(secret).await;
    text.len()
}

/// Writes a log of `bytes`. Returns the duration of its stream, and the durations until Chromium shows its first and its last line.
async fn measure_log(
    browser: &Browser,
    visitor: &Visitor<'_>,
    (space, operator): (&Space, &AsOperator),
    bytes: usize,
) -> [Duration; 3] {
    const END: &str = "end of the log";
    let path = format!("/ns/{}/tf/log/runs/1", space.namespace);
    let url = visitor.url(&path);
    let kubelet = FakeKubelet::start(space).await;
    space.apply(&resource("log")).await.unwrap();
    operator.set_status("log", applying("log", 1)).await;
    let pod = kubelet.start_pod(space, "log", "log-apply-1").await;
    let line = "x".repeat(LINE_BYTES - 8);
    let mut log = String::new();
    for number in 0..bytes / LINE_BYTES {
        writeln!(log, "{number:06} {line}").unwrap();
    }
    log.push_str(END);
    kubelet.write(space, &pod, &log);
    let start = Instant::now();
    let mut stream = visitor.get(&format!("{path}/live")).await;
    let mut last = Vec::new();
    // An event has the last line at its end.
    while !String::from_utf8_lossy(&last).contains(END) {
        let part = stream.chunk().await.unwrap().expect("more lines");
        last.drain(..last.len().saturating_sub(END.len()));
        last.extend_from_slice(&part);
    }
    drop(stream);
    let streamed = start.elapsed();

    let start = Instant::now();
    browser.open(&url).await;
    let shown = async |child: &str, part: &str| {
        let script = format!(
            "const part = document.getElementById('log').{child}; return part !== null && part.textContent.includes({part:?});"
        );
        eventually(part, async || {
            let is_shown = browser.execute(&script).await;
            (is_shown == true).then_some(()).ok_or_else(String::new)
        })
        .await;
        start.elapsed()
    };
    [
        streamed,
        shown("firstChild", "000000").await,
        shown("lastChild", END).await,
    ]
}

/// Changes the status of the resource `watched`, and returns the duration until the open page shows it.
async fn measure_change(browser: &Browser, operator: &AsOperator, number: usize) -> Duration {
    let message = format!("change {number} of the status");
    let observe = format!(
        "window.shownAt = null;
         new MutationObserver((_, observer) => {{
           if (!document.body.textContent.includes({message:?})) return;
           window.shownAt = Date.now();
           observer.disconnect();
         }}).observe(document.documentElement, {{childList: true, subtree: true, characterData: true}});"
    );
    browser.execute(&observe).await;
    operator
        .set_status("watched", status("Stalled", "ModuleInvalid", &message))
        .await;
    let written = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    let shown = eventually(&message, async || {
        let shown = browser.execute("return window.shownAt;").await;
        shown.as_u64().ok_or_else(|| "not shown".to_owned())
    })
    .await;
    Duration::from_millis(shown).saturating_sub(written)
}

#[tokio::test]
async fn figures_of_a_page_with_many_resources_are_printed() {
    let sizes = Sizes::new();
    let server = Server::shared().await;
    let spaces = create_resources(&server, sizes.resources).await;
    let space = &spaces[0];
    let operator = AsOperator::new(&server, &space.namespace).await;
    space.apply(&resource("watched")).await.unwrap();
    // The list shows stalled resources first.
    let stalled = status("Stalled", "ModuleInvalid", "no change of the status");
    operator.set_status("watched", stalled).await;
    let plan_bytes = create_plan(space, &operator, sizes.changes).await;
    let reader = json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role",
        "metadata": {"name": "reader", "namespace": space.namespace},
        "rules": [
            {"apiGroups": [""], "resources": ["pods", "secrets"], "verbs": ["get", "list"]},
            {"apiGroups": [""], "resources": ["pods/log"], "verbs": ["get"]},
        ],
    });
    let [approver, operator_role] = showcase::bindings();
    install(
        space,
        &[
            reader,
            bind(space, USER, "Role", "reader"),
            approver,
            operator_role,
        ],
    );
    until_allowed(&server, USER, "approve", &space.namespace).await;

    let program = std::env::var_os("ALUSTAN_BENCH_PROGRAM");
    let program = program.map_or_else(|| Command::new(cli::program()), Command::new);
    let ui = Ui::start_program(program, &server, USER, &space.namespace).await;
    let visitor = ui.visitor().await;
    until_listed(&visitor, &spaces, sizes.resources + 2).await;

    let mut table = Table::default();
    let resources = format!("list of {} resources", sizes.resources);
    let (durations, bytes) = measure(&visitor, "/").await;
    table.durations(&format!("{resources}, server"), durations, "100 ms");
    table.row(&format!("{resources}, size"), &kilobytes(bytes), "60 KB");
    let (durations, _) = measure(&visitor, "/?q=stack-00007&sort=-name").await;
    table.durations(
        &format!("{resources}, filtered, server"),
        durations,
        "100 ms",
    );
    let namespace = &space.namespace;
    let (durations, bytes) = measure(&visitor, &format!("/ns/{namespace}/graph")).await;
    let graph = format!("graph of {} resources", sizes.resources.min(TOGETHER));
    table.durations(&format!("{graph}, server"), durations, "-");
    table.row(&format!("{graph}, size"), &kilobytes(bytes), "-");

    let plan = format!("/ns/{namespace}/tf/plan/runs/1");
    let name = format!(
        "plan of {} changes, text {}",
        sizes.changes,
        kilobytes(plan_bytes)
    );
    let (durations, bytes) = measure(&visitor, &plan).await;
    table.durations(&format!("{name}, server"), durations, "300 ms");
    table.row(&format!("{name}, size"), &kilobytes(bytes), "-");
    let browser = Browser::start(WITH_JAVASCRIPT).await;
    browser.open(&ui.sign_in).await;
    let mut durations = Vec::new();
    for _ in 0..5 {
        let start = Instant::now();
        browser.open(&ui.url(&plan)).await;
        durations.push(start.elapsed());
    }
    table.durations(&format!("{name}, Chromium"), durations, "300 ms");
    browser.open(&ui.url("/")).await;
    browser.until_text("watched").await;
    let mut durations = Vec::new();
    for number in 0..5 {
        durations.push(measure_change(&browser, &operator, number).await);
    }
    table.durations("status write -> open list", durations, "500 ms");
    let memory = ui.memory();
    table.row("memory, resident", &kilobytes(memory.resident), "40 MiB");

    let objects = (space, &operator);
    let [streamed, first, last] = measure_log(&browser, &visitor, objects, sizes.log_bytes).await;
    let log = format!("log of {}", kilobytes(sizes.log_bytes));
    table.durations(&format!("{log}, whole stream"), vec![streamed], "-");
    table.durations(
        &format!("{log}, first line in Chromium"),
        vec![first],
        "1000 ms",
    );
    table.durations(&format!("{log}, last line in Chromium"), vec![last], "-");
    let memory = ui.memory();
    table.row(
        "memory after the log, resident",
        &kilobytes(memory.resident),
        "-",
    );
    table.row("memory, peak", &kilobytes(memory.peak), "-");
    println!("{}", table.0);
}
