//! Rules 13, 14 and 17: dependencies in graphs of any shape.

use std::collections::{BTreeMap, BTreeSet};

use alustan_api::ObjectKey;
use alustan_api::report::{Failure, FailureClass};
use alustan_api::{Terraform, TerraformStatus};
use alustan_core::dependency_graph::{
    DependencyGraph, followers, named_references, readiness, selected,
};
use alustan_core::observed::{DependencySeen, Readiness};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{
    Condition, LabelSelector, LabelSelectorRequirement, Time,
};
use kube_core::ResourceExt;
use kube_core::{Selector, SelectorExt as _};
use proptest::prelude::*;
use rstest::rstest;
use serde_json::json;

use crate::fixtures::{Edit as _, at, terraform};

fn check<'a>(
    tf: &Terraform,
    resources: impl IntoIterator<Item = &'a Terraform>,
    cross_namespace: bool,
) -> Result<(), Failure> {
    DependencyGraph::new(resources).check(tf, cross_namespace)
}

fn dependencies<'a>(
    tf: &Terraform,
    resources: impl IntoIterator<Item = &'a Terraform>,
) -> Vec<DependencySeen> {
    DependencyGraph::new(resources).dependencies(tf)
}

fn dependents<'a>(
    tf: &Terraform,
    resources: impl IntoIterator<Item = &'a Terraform>,
    cross_namespace: bool,
) -> Vec<ObjectKey> {
    DependencyGraph::new(resources).dependents(tf, cross_namespace)
}

/// Edges from each resource to its dependencies.
pub(super) type Graph = BTreeMap<usize, BTreeSet<usize>>;

fn name(i: usize) -> String {
    format!("r{i}")
}

fn resources(graph: &Graph) -> Vec<Terraform> {
    let resource = |(i, on): (&usize, &BTreeSet<usize>)| {
        let on: Vec<_> = on.iter().map(|on| json!({ "name": name(*on) })).collect();
        terraform().named(&name(*i)).with("/dependsOn", json!(on))
    };
    graph.iter().map(resource).collect()
}

fn graphs() -> impl Strategy<Value = Graph> {
    (1..9_usize).prop_flat_map(|size| {
        let edges = prop::collection::btree_set((0..size, 0..size), 0..2 * size);
        edges.prop_map(move |edges| {
            let on = |i| {
                edges
                    .iter()
                    .filter(move |(from, _)| *from == i)
                    .map(|(_, to)| *to)
            };
            (0..size).map(|i| (i, on(i).collect())).collect()
        })
    })
}

/// Generates acyclic graphs, in which each resource depends only on resources with lower numbers.
pub(super) fn stacks() -> impl Strategy<Value = Graph> {
    graphs().prop_map(|mut graph| {
        for (i, on) in &mut graph {
            on.retain(|on| on < i);
        }
        graph
    })
}

/// Returns all resources reachable from `from` in one or more steps.
pub(super) fn reachable_from(graph: &Graph, from: usize) -> BTreeSet<usize> {
    let mut reached = graph[&from].clone();
    loop {
        let more: BTreeSet<_> = reached
            .iter()
            .flat_map(|node| &graph[node])
            .copied()
            .collect();
        if more.is_subset(&reached) {
            return reached;
        }
        reached.extend(more);
    }
}

fn make_ready(tf: &mut Terraform) {
    set_ready(tf, "True", "Applied");
}

/// Sets condition `Ready` of `tf`.
pub(super) fn set_ready(tf: &mut Terraform, ready: &str, reason: &str) {
    tf.status = Some(TerraformStatus {
        observed_generation: tf.metadata.generation,
        conditions: vec![Condition {
            type_: "Ready".to_owned(),
            status: ready.to_owned(),
            reason: reason.to_owned(),
            message: String::new(),
            last_transition_time: Time(at(0)),
            observed_generation: None,
        }],
        ..TerraformStatus::default()
    });
}

proptest! {
    #[test]
    fn only_cycles_are_refused_and_named_by_their_path(graph in graphs()) {
        let stack = resources(&graph);
        for (i, tf) in stack.iter().enumerate() {
            let on_cycle = reachable_from(&graph, i).contains(&i);
            match check(tf, &stack, false) {
                Ok(()) => prop_assert!(!on_cycle, "{} is on a cycle", name(i)),
                Err(failure) => {
                    prop_assert!(on_cycle, "{}", failure.message);
                    prop_assert_eq!(failure.reason, "DependencyCycle");
                    let path = failure.message.split(": ").nth(2).unwrap();
                    let path: Vec<_> = path.split(';').next().unwrap().split(" -> ").collect();
                    prop_assert_eq!(path.first(), path.last());
                    prop_assert_eq!(path[0], name(i));
                    for pair in path.windows(2) {
                        let from = stack.iter().find(|tf| tf.name_any() == pair[0]).unwrap();
                        let references = named_references(from);
                        prop_assert!(references.iter().any(|reference| reference.key.name == pair[1]), "{path:?}");
                    }
                }
            }
        }
    }

    #[test]
    fn resources_start_once_their_dependencies_are_ready(graph in stacks()) {
        let mut stack = resources(&graph);
        let mut level: BTreeMap<usize, usize> = BTreeMap::new();
        for round in 0..=graph.len() {
            let is_ready_to_start = |tf: &Terraform| {
                dependencies(tf, &stack).iter().all(|dependency| dependency.readiness == Readiness::Ready)
            };
            let startable: Vec<_> = (0..stack.len())
                .filter(|i| !level.contains_key(i) && is_ready_to_start(&stack[*i]))
                .collect();
            for i in startable {
                make_ready(&mut stack[i]);
                level.insert(i, round);
            }
        }
        for (i, on) in &graph {
            let deepest = on.iter().map(|on| level[on] + 1).max().unwrap_or_default();
            prop_assert_eq!(level[i], deepest, "{} waits for nobody else", name(*i));
        }
    }

    #[test]
    fn all_resources_are_deleted_after_their_dependents(graph in graphs()) {
        let stack = resources(&graph);
        let mut remaining: BTreeMap<usize, Terraform> = stack.into_iter().enumerate().collect();
        while !remaining.is_empty() {
            let has_no_dependents = |tf: &Terraform| dependents(tf, remaining.values(), false).is_empty();
            let deletable: Vec<_> = remaining.iter().filter(|(_, tf)| has_no_dependents(tf)).map(|(i, _)| *i).collect();
            prop_assert!(!deletable.is_empty(), "everybody waits for somebody");
            for i in &deletable {
                let is_waiting = |other: &usize| {
                    graph[other].contains(i) && other != i && !reachable_from(&graph, *i).contains(other)
                };
                prop_assert!(!remaining.keys().any(is_waiting), "{} goes before what depends on it", name(*i));
            }
            remaining.retain(|i, _| !deletable.contains(i));
        }
    }

    #[test]
    fn followers_are_exactly_the_resources_that_name_it(graph in graphs()) {
        let all = resources(&graph);
        for tf in &all {
            let reconciled_keys: BTreeSet<_> = followers(tf, &all).into_iter().collect();
            for other in all.iter().filter(|other| other.name_any() != tf.name_any()) {
                let names = named_references(other).iter().any(|reference| reference.key == ObjectKey::of(tf));
                prop_assert_eq!(reconciled_keys.contains(&ObjectKey::of(other)), names);
            }
        }
    }
}

fn with_outputs_of(by: &serde_json::Value) -> Terraform {
    let mut from = json!({ "outputs": { "ips": "ip" } });
    from.as_object_mut()
        .unwrap()
        .extend(by.as_object().unwrap().clone());
    terraform().with("/variablesFrom", json!([{ "terraformRef": from }]))
}

fn labelled(name: &str) -> Terraform {
    let mut tf = terraform().named(name);
    tf.metadata.labels = Some([("role".to_owned(), "cluster".to_owned())].into());
    tf
}

#[test]
fn source_of_values_is_a_dependency() {
    let web = with_outputs_of(&json!({ "name": "network" }));
    let network = terraform().named("network");
    let seen = dependencies(&web, [&network]);
    assert_eq!(seen[0].field, "spec.variablesFrom[0].terraformRef");
    assert_eq!(dependents(&network, [&web], false), [ObjectKey::of(&web)]);
}

#[test]
fn selector_returns_other_resources_sorted_by_name() {
    let mut web = with_outputs_of(&json!({ "selector": { "matchLabels": { "role": "cluster" } } }));
    web.metadata.labels = Some([("role".to_owned(), "cluster".to_owned())].into());
    let deleted = labelled("d").deleted(at(0));
    let mut elsewhere = labelled("e");
    elsewhere.metadata.namespace = Some("other".to_owned());
    let mut candidates = Vec::from([labelled("b"), labelled("a"), terraform().named("c")]);
    candidates.extend([deleted, elsewhere, web.clone()]);
    let reference = web.spec.variables_from[0].terraform_ref.clone().unwrap();
    let names: Vec<_> = selected(&web, &reference, &candidates)
        .unwrap()
        .iter()
        .map(|tf| tf.name_any())
        .collect();
    assert_eq!(names, ["a", "b"]);
    let seen: Vec<_> = dependencies(&web, &candidates)
        .into_iter()
        .map(|tf| tf.name)
        .collect();
    assert_eq!(seen, ["a", "b"]);
    assert_eq!(followers(&labelled("new"), [&web]), [ObjectKey::of(&web)]);
    assert_eq!(
        dependents(&candidates[0], [&web], false),
        [],
        "who only selects it does without it"
    );
}

#[rstest]
#[case::outputs("/variablesFrom", json!([{ "terraformRef": { "name": "x", "namespace": "other", "outputs": { "a": "b" } } }]), "spec.variablesFrom[0].terraformRef")]
#[case::object("/variablesFrom", json!([{ "objectRef": { "apiVersion": "v1", "kind": "Pod", "name": "x", "namespace": "other", "values": { "a": "b" } } }]), "spec.variablesFrom[0].objectRef")]
#[case::depends_on("/dependsOn", json!([{ "name": "x" }, { "name": "x", "namespace": "other" }]), "spec.dependsOn[1]")]
#[case::wait_for("/waitFor", json!([{ "apiVersion": "v1", "kind": "Pod", "name": "x", "namespace": "other" }]), "spec.waitFor[0]")]
#[case::destroy_wait_for("/destroyWaitFor", json!([{ "apiVersion": "v1", "kind": "Pod", "namespace": "other" }]), "spec.destroyWaitFor[0]")]
#[case::health_checks("/healthChecks", json!([{ "apiVersion": "v1", "kind": "Pod", "name": "x", "namespace": "other" }]), "spec.healthChecks[0]")]
fn cross_namespace_references_are_refused_by_default(
    #[case] pointer: &str,
    #[case] value: serde_json::Value,
    #[case] field: &str,
) {
    let tf = terraform().with(pointer, value);
    let failure = check(&tf, [&tf], false).unwrap_err();
    assert_eq!(failure.reason, "CrossNamespaceReference");
    assert!(
        failure
            .message
            .starts_with(&format!("{field}.namespace: other is another namespace")),
        "{}",
        failure.message
    );
    assert_eq!(check(&tf, [&tf], true), Ok(()));
}

#[test]
fn reference_to_own_namespace_is_allowed() {
    let tf = terraform().with("/dependsOn", json!([{ "name": "x", "namespace": "team" }]));
    assert_eq!(check(&tf, [&tf], false), Ok(()));
}

#[rstest]
#[case::new(terraform(), "AwaitingProcessing")]
#[case::deleted(terraform().deleted(at(0)), "Deleted")]
fn dependency_is_not_ready_while_it_is(#[case] tf: Terraform, #[case] wanted: &str) {
    let Readiness::NotReady { reason, .. } = readiness(&tf) else {
        panic!("{:?}", readiness(&tf))
    };
    assert_eq!(reason, wanted);
}

#[test]
fn dependency_with_outdated_generation_is_not_ready() {
    let mut tf = terraform();
    make_ready(&mut tf);
    assert_eq!(readiness(&tf), Readiness::Ready);
    tf.metadata.generation = Some(2);
    assert!(matches!(readiness(&tf), Readiness::NotReady { .. }));
}

#[test]
fn transitive_dependency_names_the_root_cause() {
    let graph = Graph::from([
        (0, [].into()),
        (1, [0].into()),
        (2, [1].into()),
        (3, [2].into()),
    ]);
    let mut stack = resources(&graph);
    for (tf, reason) in
        stack
            .iter_mut()
            .zip(["ApplyFailed", "DependencyNotReady", "DependencyNotReady"])
    {
        set_ready(tf, "False", reason);
    }
    let cause = |resources: &[Terraform]| {
        let last = resources.last().unwrap();
        match &dependencies(last, resources)[0].readiness {
            Readiness::NotReady { message, .. } => message.clone(),
            readiness => panic!("{readiness:?}"),
        }
    };
    assert_eq!(cause(&stack), "waiting for r0: ApplyFailed");
    stack.remove(0);
    assert_eq!(cause(&stack), "waiting for r0: DependencyNotFound");
}

#[test]
fn dependents_in_other_namespaces_count_only_if_allowed() {
    let network = terraform().named("network");
    let depends_on = json!([{ "name": "network", "namespace": "team" }]);
    let mut elsewhere = terraform().with("/dependsOn", depends_on);
    elsewhere.metadata.namespace = Some("other".to_owned());
    assert_eq!(dependents(&network, [&elsewhere], false), []);
    assert_eq!(
        dependents(&network, [&elsewhere], true),
        [ObjectKey::of(&elsewhere)]
    );
}

#[test]
fn cycle_through_a_selector_is_refused() {
    let web = with_outputs_of(&json!({ "selector": { "matchLabels": { "role": "cluster" } } }));
    let cluster = labelled("a").with("/dependsOn", json!([{ "name": "web" }]));
    for (tf, path) in [(&web, "web -> a -> web"), (&cluster, "a -> web -> a")] {
        let failure = check(tf, [&web, &cluster], false).unwrap_err();
        assert!(failure.message.contains(path), "{}", failure.message);
    }
}

fn selectors() -> impl Strategy<Value = LabelSelector> {
    let operators = prop::sample::select(vec!["In", "NotIn", "Exists", "DoesNotExist"]);
    let values = prop::collection::vec("[xy]", 1..3);
    let expression = ("[ab]", operators, values).prop_map(|(key, operator, values)| {
        let has_values = operator.ends_with("In");
        LabelSelectorRequirement {
            key,
            operator: operator.to_owned(),
            values: has_values.then_some(values),
        }
    });
    let labels = prop::collection::btree_map("[ab]", "[xy]", 0..2);
    let expressions = prop::collection::vec(expression, 0..3);
    (labels, expressions).prop_map(|(labels, expressions)| LabelSelector {
        match_labels: Some(labels),
        match_expressions: Some(expressions),
    })
}

proptest! {
    #[test]
    fn selector_matches_the_same_labels_as_the_api_server(
        selector in selectors(),
        labels in prop::collection::btree_map("[ab]", "[xy]", 0..3),
    ) {
        let web = with_outputs_of(&json!({ "selector": selector }));
        let mut other = terraform().named("other");
        other.metadata.labels = Some(labels.clone());
        let reference = web.spec.variables_from[0].terraform_ref.as_ref().unwrap();
        let expected = Selector::try_from(selector).unwrap().matches(&labels);
        prop_assert_eq!(!selected(&web, reference, [&other]).unwrap().is_empty(), expected);
    }
}

/// Returns `count` resources, each with `entries` entries in `spec.variablesFrom`. Each entry has a selector that selects all these
/// resources.
fn hostile(count: usize, entries: usize) -> Vec<Terraform> {
    let selects = json!({ "terraformRef": {
        "selector": { "matchLabels": { "role": "cluster" } }, "outputs": { "ips": "ip" },
    } });
    let resource = |i| labelled(&name(i)).with("/variablesFrom", json!(vec![&selects; entries]));
    (0..count).map(resource).collect()
}

#[rstest]
#[case::labels(json!({ "matchLabels": { "tier": "low" } }))]
#[case::everything(json!({}))]
fn selectors_that_lead_to_too_many_resources_are_refused(#[case] selector: serde_json::Value) {
    // `first` is deleted, so no selector selects it, and it cannot be part of a cycle. Nevertheless, the check for cycles fails, because it
    // would have to resolve the selectors of all resources, which exceeds the limit of the check.
    let mut stack = hostile(300, 50);
    for tf in &mut stack {
        let labels = [("tier".to_owned(), "low".to_owned())];
        tf.metadata.labels = Some(labels.into());
        for from in &mut tf.spec.variables_from {
            let reference = from.terraform_ref.as_mut().unwrap();
            reference.selector = serde_json::from_value(selector.clone()).unwrap();
        }
    }
    let first = stack.remove(0).deleted(at(0));
    let mut graph = DependencyGraph::new(&stack);
    let failure = graph.check(&first, false).unwrap_err();
    assert_eq!(
        (failure.reason.as_str(), failure.class),
        ("TooManyDependencies", FailureClass::Transient)
    );
    let field = failure.message.split(": ").next();
    assert_eq!(field, Some("spec.variablesFrom"));
}

#[test]
fn a_hundred_resources_may_select_the_same_hundred() {
    let mut stack = hostile(200, 1);
    for tf in &mut stack[..100] {
        tf.metadata.labels = None;
    }
    for tf in &mut stack[100..] {
        tf.spec.variables_from.clear();
    }
    for tf in &stack {
        assert_eq!(check(tf, &stack, false), Ok(()));
    }
    assert_eq!(dependencies(&stack[0], &stack).len(), 100);
}

/// The API server refuses requests with such a selector.
#[test]
fn selector_without_the_syntax_of_labels_is_refused() {
    let long = "a".repeat(70 << 10);
    for selector in [
        json!({"matchLabels": {"a b": "c"}}),
        json!({"matchLabels": {"role": "a\u{0}b"}}),
        json!({"matchExpressions": [{"key": long, "operator": "Exists"}]}),
        json!({"matchExpressions": [{"key": "role", "operator": "In", "values": ["../.."]}]}),
    ] {
        let tf = with_outputs_of(&json!({ "selector": selector }));
        let failure = check(&tf, [&tf], false).unwrap_err();
        assert_eq!(failure.reason, "InvalidSelector");
        let start = "spec.variablesFrom[0].terraformRef.selector: ";
        assert!(failure.message.starts_with(start), "{}", failure.message);
        assert!(failure.message.len() < 200);
    }
}

#[test]
fn a_selector_with_too_many_values_is_refused() {
    let values: Vec<_> = (0..50).map(|i| format!("v{i}")).collect();
    let expression = json!({ "key": "role", "operator": "In", "values": values });
    let tf = with_outputs_of(&json!({ "selector": { "matchExpressions": [expression] } }));
    let failure = check(&tf, [&tf], false).unwrap_err();
    assert_eq!(failure.reason, "InvalidSelector");
    assert_eq!(
        failure.message,
        "spec.variablesFrom[0].terraformRef.selector: 51 labels and values exceed the limit of 50"
    );
}

#[test]
fn dependency_triggers_if_one_of_two_references_does() {
    let entry = |trigger| json!({ "terraformRef": { "name": "network", "outputs": { "a": "a" }, "trigger": trigger } });
    let tf = terraform()
        .with("/dependsOn", json!([{ "name": "network" }]))
        .with("/variablesFrom", json!([entry(false), entry(true)]));
    let network = terraform().named("network");
    let mut graph = DependencyGraph::new([&tf, &network]);
    let versions =
        alustan_core::upstream_changes::versions(&tf, &mut graph, |_| Some("1".to_owned()));
    assert_eq!(
        versions.into_keys().collect::<Vec<_>>(),
        [ObjectKey::of(&network)]
    );
    assert_eq!(graph.dependencies(&tf)[0].field, "spec.dependsOn[0]");
}

#[test]
fn dependency_on_a_cycle_names_the_root_cause() {
    let graph = Graph::from([
        (0, [].into()),
        (1, [0, 2].into()),
        (2, [1].into()),
        (3, [2].into()),
    ]);
    let mut stack = resources(&graph);
    for (tf, reason) in stack.iter_mut().zip([
        "ApplyFailed",
        "DependencyNotReady",
        "DependencyNotReady",
        "DependencyNotReady",
    ]) {
        set_ready(tf, "False", reason);
    }
    let Readiness::NotReady { message, .. } = &dependencies(&stack[3], &stack)[0].readiness else {
        panic!("it waits");
    };
    assert_eq!(message, "waiting for r0: ApplyFailed");
}
