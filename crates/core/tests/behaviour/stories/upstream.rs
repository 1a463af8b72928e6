//! Rule 14 in graphs of any shape: after one change, each downstream resource runs at most once, with the new outputs of all its
//! dependencies.

use std::collections::{BTreeMap, BTreeSet};

use alustan_api::ObjectKey;
use alustan_api::Terraform;
use alustan_core::dependency_graph::DependencyGraph;
use alustan_core::observed::{DependencySeen, Readiness};
use alustan_core::upstream_changes::{Activity, ReconcileResult, changing, versions};
use proptest::prelude::*;
use rstest::rstest;
use serde_json::json;

use super::dependency_graph::{Graph, reachable_from, set_ready, stacks};
use crate::fixtures::{Edit as _, terraform};
use crate::world::{Observation, World};

fn key(i: usize) -> ObjectKey {
    ObjectKey::new("team", format!("r{i}"))
}

/// Returns one resource per node of `graph`. Each resource uses outputs of its dependencies.
fn resources_of(graph: &Graph) -> Vec<Terraform> {
    let resource = |(i, from): (&usize, &BTreeSet<usize>)| {
        let from = from.iter().map(|from| {
            let name = key(*from).name;
            json!({"terraformRef": {"name": name, "outputs": {format!("of_{name}"): "id"}}})
        });
        let from: Vec<_> = from.collect();
        terraform()
            .named(&key(*i).name)
            .with("/variablesFrom", json!(from))
    };
    graph.iter().map(resource).collect()
}

/// State of a simulated resource.
#[derive(Clone, Debug, Default)]
struct Node {
    /// Number of changes of the spec of the resource.
    spec: usize,
    /// Inputs of the last run: number of changes of the spec when the run started, and versions of the outputs of the dependencies.
    applied: (usize, BTreeMap<ObjectKey, String>),
    /// Inputs of the active run.
    running: Option<(usize, BTreeMap<ObjectKey, String>)>,
    /// Version of the outputs of the resource.
    outputs: String,
    /// Whether the outputs, and so their version, stay the same in every run.
    constant: bool,
    /// Whether the resource is ready, according to its last reconcile.
    ready: bool,
    /// Whether the status of the resource says that the resource is ready. The status may be older than the last reconcile.
    shown: bool,
    runs: usize,
}

struct Stack {
    resources: Vec<Terraform>,
    nodes: BTreeMap<ObjectKey, Node>,
    reconciles: BTreeMap<ObjectKey, ReconcileResult>,
}

impl Stack {
    /// Returns the resources of `graph`, applied and idle. A run of a resource in `constant` does not change the version of the outputs of
    /// this resource.
    fn idle(graph: &Graph, constant: &BTreeSet<usize>) -> Self {
        let mut stack = Self {
            resources: resources_of(graph),
            nodes: BTreeMap::new(),
            reconciles: BTreeMap::new(),
        };
        for i in graph.keys() {
            let node = Node {
                constant: constant.contains(i),
                ready: true,
                shown: true,
                outputs: "0".to_owned(),
                ..Node::default()
            };
            stack.nodes.insert(key(*i), node);
        }
        for i in graph.keys() {
            let versions = stack.versions(&key(*i));
            stack.nodes.get_mut(&key(*i)).unwrap().applied.1 = versions;
            stack.reconcile(&key(*i));
            stack.update_status(&key(*i));
        }
        stack
    }

    fn graph(&self) -> DependencyGraph<'_> {
        DependencyGraph::new(&self.resources)
    }

    fn version(&self, tf: &Terraform) -> String {
        self.nodes[&ObjectKey::of(tf)].outputs.clone()
    }

    fn versions(&self, key: &ObjectKey) -> BTreeMap<ObjectKey, String> {
        let mut graph = self.graph();
        let tf = graph.get(key).unwrap();
        versions(tf, &mut graph, |upstream| Some(self.version(upstream)))
    }

    /// Reconciles `key`: starts a run, waits, or does nothing.
    fn reconcile(&mut self, key: &ObjectKey) {
        let versions = self.versions(key);
        let held = {
            let mut graph = self.graph();
            let tf = graph.get(key).unwrap();
            changing(tf, &mut graph, &self.reconciles, |upstream| {
                Some(self.version(upstream))
            })
            .is_some()
        };
        let blocked = versions.keys().any(|from| !self.nodes[from].shown);
        let node = self.nodes.get_mut(key).unwrap();
        let wanted = (node.spec, versions.clone());
        let by_input = node.applied.0 == node.spec;
        let doing = if node.running.is_some() {
            Activity::Busy
        } else if node.applied == wanted {
            Activity::Idle
        } else if blocked {
            Activity::Blocked
        } else {
            if !(by_input && held) {
                node.running = Some(wanted);
            }
            Activity::Busy
        };
        node.ready = doing == Activity::Idle;
        let result = ReconcileResult {
            versions,
            activity: doing,
            ready: node.ready,
        };
        self.reconciles.insert(key.clone(), result);
    }

    /// Ends the active run of `key`, if there is one.
    fn finish(&mut self, key: &ObjectKey) {
        let node = self.nodes.get_mut(key).unwrap();
        if let Some(run) = node.running.take() {
            if !node.constant {
                node.outputs = format!("{run:?}");
            }
            node.applied = run;
            node.runs += 1;
        }
    }

    /// Updates the status of `key`.
    fn update_status(&mut self, key: &ObjectKey) {
        let node = self.nodes.get_mut(key).unwrap();
        node.shown = node.ready;
        let ready = if node.ready { "True" } else { "Unknown" };
        let mut resources = self.resources.iter_mut();
        let tf = resources.find(|tf| ObjectKey::of(tf) == *key).unwrap();
        set_ready(tf, ready, "Because");
    }

    /// Executes an event for `key`. `kind` 0 reconciles the resource, 1 ends its run, 2 updates its status.
    fn step(&mut self, key: &ObjectKey, kind: usize) {
        match kind {
            0 => self.reconcile(key),
            1 => self.finish(key),
            _ => self.update_status(key),
        }
    }
}

/// Generates a dependency graph, the resource whose spec changes, the resources with constant outputs, and a sequence of events.
fn stories() -> impl Strategy<Value = (Graph, usize, BTreeSet<usize>, Vec<(usize, usize)>)> {
    stacks().prop_flat_map(|graph| {
        let size = graph.len();
        let steps = prop::collection::vec((0..size, 0..3_usize), 0..120);
        let constant = prop::collection::btree_set(0..size, 0..3);
        (Just(graph), 0..size, constant, steps)
    })
}

proptest! {
    // The number of cases is high, because some orders of events are rare. Each case is fast.
    #![proptest_config(ProptestConfig::with_cases(4_096))]

    #[test]
    fn one_change_runs_each_resource_downstream_at_most_once(
        (graph, changed, constant, steps) in stories()
    ) {
        runs_once(&graph, changed, &constant, &steps)?;
    }
}

/// Changes the spec of resource `changed`, then executes the events `steps`. Asserts that each downstream resource runs at most once.
fn runs_once(
    graph: &Graph,
    changed: usize,
    constant: &BTreeSet<usize>,
    steps: &[(usize, usize)],
) -> Result<(), TestCaseError> {
    let mut stack = Stack::idle(graph, constant);
    stack.nodes.get_mut(&key(changed)).unwrap().spec += 1;
    for (i, kind) in steps {
        stack.step(&key(*i), *kind);
    }
    for _ in 0..graph.len() * 3 {
        for i in graph.keys() {
            for kind in 0..3 {
                stack.step(&key(*i), kind);
            }
        }
    }
    for i in graph.keys() {
        let node = &stack.nodes[&key(*i)];
        let versions = stack.versions(&key(*i));
        prop_assert_eq!(
            &node.applied,
            &(node.spec, versions),
            "r{} is not applied",
            i
        );
        let downstream = *i == changed || reachable_from(graph, *i).contains(&changed);
        let runs = usize::from(downstream);
        if constant.is_empty() {
            prop_assert_eq!(node.runs, runs, "runs of r{}", i);
        } else {
            prop_assert!(node.runs <= runs, "{} runs of r{}", node.runs, i);
        }
    }
    Ok(())
}

/// `left` uses outputs of `base`, `far` uses outputs of `left`, and `end` uses outputs of `base` and `far`. The operator reconciles `end`
/// after the run of `left` has ended and before `far` runs with the new outputs of `left`.
#[test]
fn resource_waits_until_upstream_run_is_observed() {
    let (base, left, far, end) = (0, 1, 2, 3);
    let graph = [
        (base, vec![]),
        (left, vec![base]),
        (far, vec![left]),
        (end, vec![base, far]),
    ];
    let graph = graph.map(|(i, from)| (i, BTreeSet::from_iter(from))).into();
    let (reconcile, finish, update_status) = (0, 1, 2);
    let steps = [
        (base, reconcile),
        (base, finish),
        (base, reconcile),
        (base, update_status),
        (left, reconcile),
        (left, update_status),
        (left, finish),
        (far, reconcile),
        (left, reconcile),
        (end, reconcile),
    ];
    runs_once(&graph, base, &BTreeSet::new(), &steps).unwrap();
}

#[rstest]
#[case::applied("True", true, Activity::Idle)]
#[case::applied_with_a_dependency_that_failed("True", false, Activity::Idle)]
#[case::running("Unknown", true, Activity::Busy)]
#[case::blocked("False", false, Activity::Blocked)]
#[case::failed("False", true, Activity::Idle)]
fn activity_follows_conditions_and_dependencies(
    #[case] ready: &str,
    #[case] dependency_ready: bool,
    #[case] expected: Activity,
) {
    let mut tf = terraform();
    set_ready(&mut tf, ready, "Because");
    let activity = |tf: &Terraform, Observation { seen, image }: &Observation| {
        let status = tf.status.clone().unwrap_or_default();
        ReconcileResult::of(tf, seen, image, &status).activity
    };
    let mut world = World::new();
    let readiness = if dependency_ready {
        Readiness::Ready
    } else {
        Readiness::Missing
    };
    world.stack.dependencies = vec![DependencySeen {
        field: "spec.dependsOn[0]".to_owned(),
        name: "network".to_owned(),
        readiness,
    }];
    let mut observe = || {
        let seen = world.observe(0);
        world.decide(seen).0
    };
    let pending = observe();
    assert_eq!(
        activity(&tf, &pending),
        Activity::Busy,
        "nothing is known yet"
    );
    assert_eq!(activity(&tf, &observe()), expected);
    let suspended = tf.with("/suspend", json!(true));
    assert_eq!(
        activity(&suspended, &pending),
        Activity::Idle,
        "nothing will happen"
    );
}
