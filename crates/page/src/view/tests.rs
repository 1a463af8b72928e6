use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use alustan_api::{ObjectKey, State};
use rstest::rstest;
use serde::Deserialize as _;
use serde::de::IntoDeserializer as _;
use serde::de::value::{Error, MapDeserializer};
use serde_json::{Value, json};

use crate::actions::Permissions;
use crate::row::Row;
use crate::view::fixtures::{
    PLAN, allowed, awaiting, named, now, record, resource_view, resource_view_with, row, rows,
    run_view, stored_log, terraform,
};
use crate::view::timeline::StepState;
use crate::view::{ListQuery, ListView, active_run, approvals, drift, graph, list};

/// Parses a query string, as the extractor of axum does.
fn query(text: &str) -> ListQuery {
    let pairs = form_urlencoded::parse(text.as_bytes()).map(|(name, value)| {
        (
            name.into_owned().into_deserializer(),
            value.into_owned().into_deserializer(),
        )
    });
    let pairs: Vec<(
        serde::de::value::StringDeserializer<Error>,
        serde::de::value::StringDeserializer<Error>,
    )> = pairs.collect();
    ListQuery::deserialize(MapDeserializer::new(pairs.into_iter())).unwrap()
}

fn names(view: &ListView) -> Vec<String> {
    let rows = view.rows.iter();
    rows.map(|listed| listed.row.key().to_string()).collect()
}

#[rstest]
#[case::attention_first("", &["team/cache", "team/db", "team/web", "infra/dns", "team/api", "infra/network", "team/queue"])]
#[case::descending_name("sort=-name", &["team/web", "team/queue", "team/db", "team/cache", "team/api", "infra/network", "infra/dns"])]
#[case::state("state=Failed", &["team/db"])]
#[case::namespace("ns=infra", &["infra/dns", "infra/network"])]
#[case::text_in_name("q=DN", &["infra/dns"])]
#[case::text_in_reason("q=applyf", &["team/db"])]
#[case::text_in_key("q=team/q", &["team/queue"])]
#[case::text_in_revision("q=1a2b&ns=infra&sort=name", &["infra/dns", "infra/network"])]
#[case::last_value("ns=infra&ns=team&q=api", &["team/api"])]
#[case::invalid_values("state=Broken&sort=size&page=-4&other=1", &["team/cache", "team/db", "team/web", "infra/dns", "team/api", "infra/network", "team/queue"])]
fn list_follows_query(#[case] text: &str, #[case] expected: &[&str]) {
    assert_eq!(names(&list(&rows(), &query(text), now())), expected);
}

#[test]
fn filters_count_resources_of_all_states() {
    let view = list(&rows(), &query("ns=team&state=Failed"), now());
    let counts: Vec<(State, usize)> = view
        .states
        .iter()
        .map(|filter| (filter.state, filter.count))
        .collect();
    let expected = [
        (State::Stalled, 1),
        (State::Failed, 1),
        (State::AwaitingApproval, 1),
        (State::Applying, 1),
        (State::Pending, 1),
    ];
    assert_eq!(counts, expected);
    assert_eq!((view.total, view.found, view.matching), (7, 5, 1));
}

#[rstest]
#[case("page=2", 2, 100)]
#[case("page=3", 3, 50)]
#[case("page=99999999999", 3, 50)]
#[case("page=99999999999999999999999999", 1, 100)]
fn pages_have_100_rows(#[case] text: &str, #[case] page: usize, #[case] rows: usize) {
    let all: Vec<Arc<Row>> = (0..250)
        .map(|index| Arc::new(row("team", &format!("r{index:03}"), State::Success)))
        .collect();
    let view = list(&all, &query(text), now());
    assert_eq!((view.page, view.pages, view.rows.len()), (page, 3, rows));
}

#[rstest]
#[case("", "state", "Failed", "/?state=Failed")]
#[case("q=a b%26c&page=3", "sort", "-since", "/?q=a+b%26c&sort=-since")]
#[case("ns=team&sort=name", "page", "2", "/?ns=team&sort=name&page=2")]
#[case("state=Failed", "state", "", "/")]
fn links_change_one_value(
    #[case] text: &str,
    #[case] name: &str,
    #[case] value: &str,
    #[case] expected: &str,
) {
    assert_eq!(query(text).link(name, value), expected);
}

#[test]
fn list_of_10000_rows_is_fast() {
    let states = [State::Success, State::Failed, State::Drifted];
    let all: Vec<Arc<Row>> = (0..10_000)
        .map(|index| {
            let state = states[index % 3];
            Arc::new(row(
                &format!("team-{}", index % 50),
                &format!("r{index}"),
                state,
            ))
        })
        .collect();
    let start = Instant::now();
    let view = list(&all, &query("q=missing"), now());
    assert_eq!(view.matching, 0);
    assert_eq!(list(&all, &query(""), now()).matching, 10_000);
    // Without optimization. With optimization, this takes a few milliseconds.
    assert!(start.elapsed() < Duration::from_secs(2));
}

#[test]
fn queues_have_oldest_entries_first() {
    let older = Row {
        since: Some("2026-02-01T00:00:00Z".parse().unwrap()),
        ..(*rows()[6]).clone()
    };
    let older = Row {
        name: "older".to_owned(),
        ..older
    };
    let all: Vec<Arc<Row>> = rows().into_iter().chain([Arc::new(older)]).collect();
    let view = approvals(&all, now());
    let entries = view.entries.iter();
    let names: Vec<&str> = entries
        .map(|entry| entry.listed.row.name.as_str())
        .collect();
    assert_eq!(names, ["older", "web"]);
    assert_eq!((view.total, view.destructive), (2, 2));
    assert_eq!(drift(&all, now()).total, 1);
}

#[test]
fn queue_shows_500_of_all_entries() {
    let waiting = rows()[6].clone();
    let all = vec![waiting; 501];
    let view = approvals(&all, now());
    assert_eq!((view.total, view.entries.len()), (501, 500));
}

fn with(status: Value, changes: &Value) -> Value {
    let mut status = status;
    for (name, value) in changes.as_object().unwrap() {
        status[name] = value.clone();
    }
    status
}

#[test]
fn active_run_is_that_of_the_status() {
    assert_eq!(active_run(&terraform(&awaiting())), None);
    let active = json!({
        "number": 8, "kind": "apply", "job": "web-apply-8", "startedAt": "2026-01-01T00:00:00Z",
    });
    let status = with(
        awaiting(),
        &json!({"state": "Applying", "activeRun": active}),
    );
    assert_eq!(active_run(&terraform(&status)), Some(8));
}

#[test]
fn outputs_of_the_secret_replace_those_of_the_status() {
    let outputs = [
        ("password", json!({"value": "x", "sensitive": true})),
        ("size", json!({"value": 3, "sensitive": false})),
    ];
    let outputs =
        outputs.map(|(name, output)| (name.to_owned(), serde_json::from_value(output).unwrap()));
    let tf = terraform(&awaiting());
    let view = resource_view_with(&tf, &[], &Permissions::default(), Some(&outputs.into()));
    let values = view.outputs.unwrap().values;
    let values: Vec<_> = values
        .iter()
        .map(|output| (&*output.name, output.value.as_deref()))
        .collect();
    assert_eq!(values, [("password", None), ("size", Some("3"))]);
}

#[rstest]
#[case::approval(json!({}), "done done done active waiting failed")]
#[case::applying(
    json!({"state": "Applying", "plan": {"summary": "+1 ~0 -0", "add": 1, "change": 0, "destroy": 0}}),
    "done done done done active failed"
)]
#[case::planning(json!({"state": "Planning", "plan": null}), "done done active waiting waiting failed")]
#[case::building(json!({"state": "Building", "plan": null}), "done active waiting waiting waiting failed")]
#[case::plan_failed(
    json!({"state": "Failed", "plan": null, "runs": [{
        "number": 8, "kind": "apply", "trigger": "t", "result": "Failed", "reason": "PlanFailed",
        "seconds": 1, "job": "j",
    }]}),
    "done done failed waiting waiting failed"
)]
#[case::apply_failed(
    json!({"state": "Stalled", "plan": null, "runs": [{
        "number": 8, "kind": "apply", "trigger": "t", "result": "Failed", "reason": "ApplyFailed",
        "seconds": 1, "job": "j",
    }]}),
    "done done done done failed failed"
)]
fn timeline_shows_first_incomplete_step(#[case] changes: Value, #[case] expected: &str) {
    let tf = terraform(&with(awaiting(), &changes));
    let view = resource_view(&tf, &[], &allowed());
    let steps = view.timeline.iter().map(|step| step.state.as_str());
    assert_eq!(steps.collect::<Vec<_>>().join(" "), expected);
}

#[test]
fn timeline_of_a_new_resource_waits() {
    let view = resource_view(&terraform(&json!({})), &[], &allowed());
    let mut steps = view.timeline.iter();
    assert!(steps.all(|step| step.state == StepState::Waiting));
}

#[test]
fn runs_are_the_union_of_records_and_status() {
    let view = resource_view(&terraform(&awaiting()), &[record()], &allowed());
    let runs = view.runs.iter();
    let runs: Vec<(i64, bool)> = runs.map(|run| (run.number, run.commit.is_some())).collect();
    assert_eq!(runs, [(7, true), (6, false)]);
    assert_eq!(view.pending.unwrap().run, Some(7));
}

#[rstest]
#[case::displayed(json!({}), Some(PLAN))]
#[case::another_plan(json!({"plan": {
    "summary": "", "id": "other", "pendingApproval": true, "add": 0, "change": 0, "destroy": 0,
}}), None)]
#[case::approved(json!({"plan": {"summary": "", "id": PLAN, "add": 0, "change": 0, "destroy": 0}}), None)]
fn run_can_be_approved_while_its_plan_waits(
    #[case] changes: Value,
    #[case] expected: Option<&str>,
) {
    let record = record();
    let status = with(awaiting(), &changes);
    let view = run_view(Some(&record), &status, &allowed(), stored_log(&record));
    assert_eq!(view.pending_plan.as_deref(), expected);
    assert_eq!(view.plan_buttons.len(), expected.map_or(0, |_| 2));
}

#[test]
fn deletions_and_replacements_come_first() {
    let record = record();
    let view = run_view(Some(&record), &awaiting(), &allowed(), stored_log(&record));
    let groups = view.changes.unwrap().groups;
    let actions: Vec<&str> = groups.iter().map(|group| group.action.as_str()).collect();
    assert_eq!(actions, ["delete", "replace", "create"]);
}

#[test]
fn graph_tolerates_a_cycle_and_external_nodes() {
    let success = json!({"state": "Success"});
    let resources = [
        named("a", &success, &json!([{"name": "b"}])),
        named(
            "b",
            &success,
            &json!([{"name": "a"}, {"name": "network", "namespace": "infra"}]),
        ),
        named("c", &success, &json!([{"name": "missing"}, {"name": "c"}])),
    ];
    let external = [(ObjectKey::new("infra", "network"), State::Failed)].into();
    let view = graph("team", &resources, &external, false);
    let nodes = view.nodes.iter();
    let nodes: Vec<(&str, bool, Option<State>)> = nodes
        .map(|node| (node.label.as_str(), node.external, node.state))
        .collect();
    let expected = [
        ("a", false, Some(State::Success)),
        ("b", false, Some(State::Success)),
        ("c", false, Some(State::Success)),
        ("infra/network", true, Some(State::Failed)),
        ("missing", false, None),
    ];
    assert_eq!(nodes, expected);
    let backward = view.edges.iter().filter(|edge| edge.backward).count();
    assert_eq!((view.edges.len(), backward, view.collapsed), (4, 1, false));
}

#[rstest]
#[case::chain(|index: usize| if index.is_multiple_of(300) { None } else { Some(index - 1) })]
#[case::star(|index: usize| (index > 0).then_some(0))]
#[case::pairs(|index: usize| (index % 2 == 1).then(|| index - 1))]
#[case::no_edges(|_| None)]
fn large_graph_has_at_most_200_nodes(#[case] dependency: fn(usize) -> Option<usize>) {
    let resources: Vec<_> = (0..600)
        .map(|index| {
            let depends_on = dependency(index).map(|index| json!({"name": format!("r{index:03}")}));
            let depends_on: Vec<Value> = depends_on.into_iter().collect();
            named(&format!("r{index:03}"), &json!({}), &json!(depends_on))
        })
        .collect();
    let view = graph("team", &resources, &BTreeMap::new(), false);
    assert!(view.collapsed);
    assert!(view.nodes.len() <= 200, "{} nodes", view.nodes.len());
    assert_eq!(
        view.nodes.iter().map(|node| node.resources).sum::<usize>(),
        600
    );
    assert_eq!(view.rows.len(), 600);
}

#[test]
fn json_has_summary_and_time_of_queued_resource() {
    let json = serde_json::to_value(approvals(&rows(), now())).unwrap();
    let entry = &json["entries"][0];
    assert_eq!(entry["pending"]["id"], PLAN);
    assert_eq!(entry["name"], "web");
    assert_eq!(entry["queuedSince"], "2026-03-01T11:57:00Z");
}
