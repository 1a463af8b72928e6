use std::sync::Arc;
use std::time::{Duration, Instant};

use alustan_api::change_set::{AttributeChange, ChangeSet, ResourceChange, ValueChange};
use alustan_api::{ObjectKey, State};
use maud::Markup;
use rstest::rstest;
use serde_json::json;

use crate::html::{self, Frame, Nav};
use crate::row::Row;
use crate::view::fixtures::{
    HOSTILE, PLAN, allowed, awaiting, live_log, named, now, record, resource_view, row, rows,
    run_view, stored_log, terraform, without_approve,
};
use crate::view::{self, ListQuery};

fn frame(title: &str) -> Frame<'_> {
    Frame {
        title,
        user: "ada@example.com",
        csrf: "csrf-token",
        active_nav: Nav::Resources,
        stream: Some("/events".to_owned()),
        can_sign_out: true,
        notice: None,
    }
}

/// Returns `markup` with a line break before each tag, for readable differences.
fn lines(markup: &Markup) -> String {
    markup.0.replace("><", ">\n<")
}

fn list_page(rows: &[Arc<Row>]) -> Markup {
    html::list(
        &frame("Resources"),
        &view::list(rows, &ListQuery::default(), now()),
    )
}

fn resource_page() -> Markup {
    let view = resource_view(&terraform(&awaiting()), &[record()], &allowed());
    html::resource(&frame("web"), &view)
}

fn run_page() -> Markup {
    let record = record();
    let view = run_view(Some(&record), &awaiting(), &allowed(), stored_log(&record));
    html::run(&frame("Run 7"), &view)
}

fn live_run_page() -> Markup {
    let status = json!({"state": "Planning", "run": 7});
    let frame = Frame {
        stream: None,
        ..frame("Run 7")
    };
    html::run(&frame, &run_view(None, &status, &allowed(), live_log()))
}

fn graph_page() -> Markup {
    let success = json!({"state": "Success"});
    let resources = [
        named(
            "api",
            &success,
            &json!([{"name": "db"}, {"name": "network", "namespace": "infra"}]),
        ),
        named(
            "db",
            &json!({"state": "Failed"}),
            &json!([{"name": "network", "namespace": "infra"}]),
        ),
        named("alone", &success, &json!([])),
    ];
    let external = [(ObjectKey::new("infra", "network"), State::Success)].into();
    let view = view::graph("team", &resources, &external, false);
    html::graph(&frame("Graph"), &view)
}

#[test]
fn snapshots_of_pages() {
    let pages = [
        ("list", list_page(&rows())),
        (
            "approvals",
            html::approvals(&frame("Approvals"), &view::approvals(&rows(), now())),
        ),
        (
            "drift",
            html::drift(&frame("Drift"), &view::drift(&rows(), now())),
        ),
        ("resource", resource_page()),
        ("run", run_page()),
        ("run_live", live_run_page()),
        ("graph", graph_page()),
        (
            "error",
            html::error(404, "Not found", "Terraform team/x not found"),
        ),
        (
            "sign_in",
            html::sign_in(Some("The token is not valid."), "/drift"),
        ),
    ];
    for (name, page) in pages {
        insta::assert_snapshot!(name, lines(&page));
    }
}

fn hostile_list() -> Markup {
    let hostile = Row {
        message: HOSTILE.to_owned(),
        reason: Some("<b>\u{202e}".to_owned()),
        revision: Some("<i>\"".to_owned()),
        ..row("\"><script>", "<script>\u{1b}", State::Failed)
    };
    list_page(&[Arc::new(hostile)])
}

#[rstest]
#[case::list(hostile_list())]
#[case::resource(resource_page())]
#[case::run(run_page())]
#[case::error(html::error(400, HOSTILE, HOSTILE))]
fn hostile_text_is_escaped(#[case] page: Markup) {
    assert!(page.0.contains("&lt;script&gt;"));
    assert!(page.0.contains("\\u{202e}"));
    assert!(!page.0.contains("<script>"));
    assert!(!page.0.contains("href=\"javascript"));
    let hidden = |character: char| matches!(character, '\u{1b}' | '\r' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    assert!(!page.0.contains(hidden));
    assert!(!page.0.contains("[31m"));
}

#[rstest]
#[case(list_page(&rows()))]
#[case(resource_page())]
#[case(run_page())]
#[case(live_run_page())]
#[case(graph_page())]
#[case(html::sign_in(None, "/"))]
fn pages_comply_with_content_security_policy(#[case] page: Markup) {
    for forbidden in [
        " style=",
        " onclick=",
        " onload=",
        "<style",
        "hx-on",
        "hx-vals",
    ] {
        assert!(!page.0.contains(forbidden), "{forbidden}");
    }
    assert_eq!(page.0.matches("<script").count(), 3);
    assert_eq!(page.0.matches("<h1").count(), 1);
}

#[rstest]
#[case("(sensitive)")]
#[case("(known after apply)")]
#[case("forces replacement")]
#[case("4 more changes are not listed")]
#[case("1024 bytes are not stored")]
#[case("destroys 3 objects")]
fn run_shows_marks_of_the_plan(#[case] text: &str) {
    assert!(run_page().0.contains(text));
}

#[rstest]
#[case::resource(resource_page())]
#[case::run(run_page())]
fn approve_form_has_id_of_displayed_plan(#[case] page: Markup) {
    let form = page
        .0
        .split("<form")
        .find(|form| form.contains("/ns/team/tf/web/approve"));
    let form = form.unwrap();
    assert!(form.contains(&format!("name=\"plan\" value=\"{PLAN}\"")));
    assert!(form.contains("name=\"csrf\" value=\"csrf-token\""));
    let emphasis = page.0.find("destroys 3 objects").unwrap();
    assert!(emphasis < page.0.find("/ns/team/tf/web/approve").unwrap());
}

#[test]
fn disabled_button_names_missing_permission() {
    let view = resource_view(&terraform(&awaiting()), &[], &without_approve());
    let page = html::resource(&frame("web"), &view).0;
    assert!(page.contains(r#"id="approve" disabled aria-describedby="approve-permission""#));
    assert!(page.contains(
        r#"id="approve-permission">requires the verb approve on terraforms in namespace team"#
    ));
    assert!(!page.contains(r#"id="discard" disabled"#));
}

#[test]
fn active_run_has_one_stream_and_a_cancel_button() {
    let page = live_run_page().0;
    assert_eq!(page.matches("sse-connect").count(), 0);
    assert_eq!(page.matches("data-log-stream").count(), 1);
    assert!(page.contains("action=\"/ns/team/tf/web/cancel\""));
    assert!(page.contains("name=\"run\" value=\"7\""));
}

#[test]
fn page_of_100_long_rows_has_at_most_60_kb() {
    let rows: Vec<Arc<Row>> = (0..10_000)
        .map(|index| {
            let long = Row {
                message: "<\"&error\">: ".repeat(18),
                reason: Some("DependencyNotReady".to_owned()),
                ..row(
                    &format!("team-with-a-name-{:03}", index % 300),
                    &format!("resource-with-a-long-name-{index:05}"),
                    State::Failed,
                )
            };
            Arc::new(long)
        })
        .collect();
    let size = list_page(&rows).0.len();
    assert!(size <= 60_000, "{size} bytes");
}

#[test]
fn plan_of_5000_resources_is_fast() {
    let resource = |index: usize| ResourceChange {
        address: format!("module.many.aws_instance.a[{index}]"),
        action: ["create", "update", "delete", "replace"][index % 4].to_owned(),
        attributes: (0..5)
            .map(|attribute| AttributeChange {
                path: format!("tags.t{attribute}"),
                values: ValueChange {
                    before: Some("\"before\"".to_owned()),
                    after: Some("\"after\"".to_owned()),
                    ..ValueChange::default()
                },
                forces_replacement: false,
            })
            .collect(),
        ..ResourceChange::default()
    };
    let mut record = record();
    record.status.as_mut().unwrap().changes = Some(ChangeSet {
        resources: (0..5000).map(resource).collect(),
        ..ChangeSet::default()
    });
    let start = Instant::now();
    let view = run_view(Some(&record), &awaiting(), &allowed(), stored_log(&record));
    let page = html::run(&frame("Run 7"), &view);
    let elapsed = start.elapsed();
    assert_eq!(page.0.matches("<details class=\"change\"").count(), 5000);
    assert!(!page.0.contains("<details open"));
    // Without optimization. With optimization, this takes about a tenth.
    assert!(elapsed < Duration::from_secs(2), "{elapsed:?}");
}
