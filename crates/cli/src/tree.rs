//! Dependency graph as a tree. Roots have no dependencies; the children of a resource are its dependents. Pure
//! functions.

use std::collections::{BTreeMap, BTreeSet};

use alustan_api::ObjectKey;
use alustan_api::Terraform;
use alustan_api::conditions::Kind;
use alustan_core::dependency_graph::{named_references, outputs_refs, selected};

use crate::condition::condition;
use crate::print;

/// Text in column STATE for a resource whose values were printed in an earlier row.
const ABOVE: &str = "(see above)";

/// Dependency graph.
#[derive(Debug, Default)]
pub(crate) struct Graph {
    nodes: BTreeMap<ObjectKey, Node>,
    dependencies: BTreeMap<ObjectKey, BTreeSet<ObjectKey>>,
    dependents: BTreeMap<ObjectKey, BTreeSet<ObjectKey>>,
}

/// `status.state` of a resource, and status and reason of its condition `Ready`.
type Node = [String; 3];

impl Graph {
    /// Builds the graph of `all`. The user cannot list the namespaces in `hidden`. A dependency that is not in `all` has state `hidden` if it is in
    /// one of these namespaces, else `missing`.
    pub(crate) fn of(all: &[Terraform], hidden: &BTreeSet<String>) -> Self {
        let mut graph = Self {
            nodes: all.iter().map(|tf| (ObjectKey::of(tf), node(tf))).collect(),
            ..Self::default()
        };
        for tf in all {
            for dependency in dependencies(tf, all) {
                graph.add(ObjectKey::of(tf), dependency, hidden);
            }
        }
        graph
    }

    fn add(&mut self, from: ObjectKey, to: ObjectKey, hidden: &BTreeSet<String>) {
        let unknown = if hidden.contains(&to.namespace) {
            "hidden"
        } else {
            "missing"
        };
        let unknown = || [unknown.to_owned(), String::new(), String::new()];
        self.nodes.entry(to.clone()).or_insert_with(unknown);
        let dependents = self.dependents.entry(to.clone()).or_default();
        dependents.insert(from.clone());
        self.dependencies.entry(from).or_default().insert(to);
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.nodes.is_empty()
    }

    /// Returns the namespaces of all resources and dependencies in the graph.
    pub(crate) fn namespaces(&self) -> BTreeSet<String> {
        self.nodes.keys().map(|key| key.namespace.clone()).collect()
    }

    /// Returns the subgraph of `keys`, all their direct and indirect dependencies and, if `below` is set, all their
    /// direct and indirect dependents.
    pub(crate) fn around(self, keys: impl IntoIterator<Item = ObjectKey>, below: bool) -> Self {
        let keys: Vec<ObjectKey> = keys.into_iter().collect();
        let mut kept = reachable(keys.clone(), &self.dependencies);
        if below {
            kept.extend(reachable(keys, &self.dependents));
        }
        let keep = |edges: BTreeMap<ObjectKey, BTreeSet<ObjectKey>>| {
            edges
                .into_iter()
                .filter(|(key, _)| kept.contains(key))
                .map(|(key, others)| (key, others.intersection(&kept).cloned().collect()))
                .collect()
        };
        let nodes = self.nodes.into_iter();
        Self {
            nodes: nodes.filter(|(key, _)| kept.contains(key)).collect(),
            dependencies: keep(self.dependencies),
            dependents: keep(self.dependents),
        }
    }

    /// Formats the tree as a table. Names of resources in namespace `here` have no namespace prefix.
    pub(crate) fn render(&self, here: &str) -> String {
        let header = ["NAME", "STATE", "READY", "REASON"].map(str::to_owned);
        let mut printer = Printer {
            graph: self,
            here,
            printed: BTreeSet::new(),
            rows: vec![header],
        };
        let has_dependencies = |key: &ObjectKey| self.dependencies.contains_key(key);
        self.nodes
            .keys()
            .filter(|key| !has_dependencies(key))
            .for_each(|root| printer.print(root, "", ""));
        // Resources that no root leads to are part of a dependency cycle, or depend on a resource in a cycle.
        for key in self.nodes.keys() {
            if !printer.printed.contains(key) {
                printer.print(key, "", "");
            }
        }
        print::table(&printer.rows)
    }
}

struct Printer<'a> {
    graph: &'a Graph,
    here: &'a str,
    printed: BTreeSet<&'a ObjectKey>,
    rows: Vec<[String; 4]>,
}

impl<'a> Printer<'a> {
    /// Adds the rows of `key` and, recursively, of its dependents. `branch` is the prefix of the name of `key`. `indent` is
    /// the start of the prefixes of its dependents.
    fn print(&mut self, key: &'a ObjectKey, branch: &str, indent: &str) {
        let name = format!("{branch}{}", key.seen_from(self.here));
        if !self.printed.insert(key) {
            let above = [name, ABOVE.to_owned(), String::new(), String::new()];
            self.rows.push(above);
            return;
        }
        let node = self.graph.nodes.get(key).cloned().unwrap_or_default();
        let [state, ready, reason] = node;
        self.rows.push([name, state, ready, reason]);
        let mut below = self
            .graph
            .dependents
            .get(key)
            .into_iter()
            .flatten()
            .peekable();
        while let Some(dependent) = below.next() {
            let (branch, deeper) = if below.peek().is_some() {
                ("├── ", "│   ")
            } else {
                ("└── ", "    ")
            };
            let (branch, deeper) = (format!("{indent}{branch}"), format!("{indent}{deeper}"));
            self.print(dependent, &branch, &deeper);
        }
    }
}

/// Returns the dependencies of `tf`: resources that it references by name, and resources in `all` that its selectors
/// match.
fn dependencies(tf: &Terraform, all: &[Terraform]) -> BTreeSet<ObjectKey> {
    let by_name = named_references(tf)
        .into_iter()
        .map(|reference| reference.key);
    let by_selector = outputs_refs(tf)
        .filter(|(_, outputs_ref)| outputs_ref.selector.is_some())
        .flat_map(|(_, outputs_ref)| selected(tf, outputs_ref, all).unwrap_or_default());
    by_name.chain(by_selector.map(ObjectKey::of)).collect()
}

fn node(tf: &Terraform) -> Node {
    let state = tf.status.as_ref().map(|status| status.state);
    let ready = condition(tf, Kind::Ready);
    [
        format!("{:?}", state.unwrap_or_default()),
        ready.map_or_else(|| "Unknown".to_owned(), |ready| ready.status.clone()),
        ready.map(|ready| ready.reason.clone()).unwrap_or_default(),
    ]
}

/// Returns all resources reachable from `keys` along `edges`, including `keys`.
fn reachable(
    mut keys: Vec<ObjectKey>,
    edges: &BTreeMap<ObjectKey, BTreeSet<ObjectKey>>,
) -> BTreeSet<ObjectKey> {
    let mut keys_seen = BTreeSet::new();
    while let Some(key) = keys.pop() {
        if keys_seen.insert(key.clone()) {
            keys.extend(edges.get(&key).into_iter().flatten().cloned());
        }
    }
    keys_seen
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;
    use serde_json::{Value, json};

    fn resource(name: &str, spec: &Value, labels: &Value) -> Terraform {
        let mut resource = json!({
            "apiVersion": "alustan.io/v1alpha1", "kind": "Terraform",
            "metadata": {"name": name, "namespace": "team", "labels": labels},
            "spec": {
                "gitRepo": {"url": "https://127.0.0.1:1/a/b"},
                "containerRegistry": {"imageName": "127.0.0.1:1/a/b"},
            },
            "status": {
                "state": "Success",
                "conditions": [{
                    "type": "Ready", "status": "True", "reason": "Applied", "message": "",
                    "lastTransitionTime": "2026-01-01T00:00:00Z",
                }],
            },
        });
        for (key, value) in spec.as_object().unwrap() {
            resource["spec"][key] = value.clone();
        }
        serde_json::from_value(resource).unwrap()
    }

    /// Parses one resource from each line of the form `name: dependency, dependency`.
    fn resources(lines: &[&str]) -> Vec<Terraform> {
        let parse = |line: &&str| {
            let (name, dependencies) = line.split_once(':').unwrap();
            let dependencies: Vec<_> = dependencies
                .split(',')
                .map(str::trim)
                .filter(|name| !name.is_empty())
                .map(|name| match name.split_once('/') {
                    Some((namespace, name)) => json!({"namespace": namespace, "name": name}),
                    None => json!({"name": name}),
                })
                .collect();
            resource(name, &json!({"dependsOn": dependencies}), &json!({}))
        };
        lines.iter().map(parse).collect()
    }

    /// Renders the tree without the columns STATE, READY and REASON. Keeps the placeholder [`ABOVE`] in column STATE.
    fn names(graph: &Graph) -> String {
        let text = graph.render("team");
        let lines = text.lines().skip(1);
        let name = |line: &str| {
            let (name, state) = line
                .split_once(ABOVE)
                .map_or((line, ""), |(name, _)| (name, ABOVE));
            let name = name.split("Success").next().unwrap().trim_end();
            format!("{name} {state}").trim_end().to_owned()
        };
        lines.map(name).collect::<Vec<_>>().join("\n")
    }

    #[rstest]
    #[case::empty(&[], "")]
    #[case::independent(&["b:", "a:"], "a\nb")]
    #[case::chain(&["a:", "b: a", "c: b"], "a\n└── b\n    └── c")]
    #[case::diamond(
        &["a:", "b: a", "c: a", "d: b, c", "e: d"],
        "a\n├── b\n│   └── d\n│       └── e\n└── c\n    └── d (see above)"
    )]
    #[case::cycle(&["a: c", "b: a", "c: b"], "a\n└── b\n    └── c\n        └── a (see above)")]
    #[case::self_reference(&["a: a"], "a\n└── a (see above)")]
    #[case::cycle_below_root(
        &["a:", "b: a, c", "c: b"],
        "a\n└── b\n    └── c\n        └── b (see above)"
    )]
    fn resources_without_dependencies_are_roots(#[case] lines: &[&str], #[case] wanted: &str) {
        assert_eq!(
            names(&Graph::of(&resources(lines), &BTreeSet::new())),
            wanted
        );
    }

    #[test]
    fn absent_dependency_is_shown_as_missing_or_hidden() {
        let all = resources(&["a: gone, infra/b"]);
        let tree = Graph::of(&all, &BTreeSet::from(["infra".to_owned()])).render("team");
        let wanted = "\
NAME      STATE         READY   REASON
infra/b   hidden
└── a     Success       True    Applied
gone      missing
└── a     (see above)
";
        assert_eq!(tree, wanted);
    }

    #[test]
    fn output_references_by_name_and_selector_are_edges() {
        let none = json!({});
        let by_name =
            json!({"variablesFrom": [{"terraformRef": {"name": "net", "outputs": {"a": "b"}}}]});
        let by_selector = json!({"variablesFrom": [{"terraformRef": {
            "selector": {"matchLabels": {"role": "cluster"}}, "outputs": {"a": "b"},
        }}]});
        let all: Vec<_> = [
            ("net", &none, &none),
            ("east", &by_name, &json!({"role": "cluster"})),
            ("west", &by_name, &json!({"role": "cluster"})),
            ("other", &none, &json!({"role": "none"})),
            ("fleet", &by_selector, &none),
        ]
        .into_iter()
        .map(|(name, spec, labels)| resource(name, spec, labels))
        .collect();
        let graph = Graph::of(&all, &BTreeSet::new());
        let wanted = "net\n├── east\n│   └── fleet\n└── west\n    └── fleet (see above)\nother";
        assert_eq!(names(&graph), wanted);
    }

    #[rstest]
    #[case::with_dependents(true, "a\n└── b\n    └── c")]
    #[case::without_dependents(false, "a\n└── b")]
    fn partial_tree_includes_all_ancestors(#[case] below: bool, #[case] wanted: &str) {
        let all = resources(&["a:", "b: a", "c: b", "x: a", "y:"]);
        let graph = Graph::of(&all, &BTreeSet::new());
        let part = graph.around([ObjectKey::new("team", "b")], below);
        assert_eq!(names(&part), wanted);
    }

    #[test]
    fn resource_without_status_is_pending() {
        let mut all = resources(&["a:"]);
        all[0].status = None;
        let tree = Graph::of(&all, &BTreeSet::new()).render("team");
        assert!(tree.ends_with("a      Pending   Unknown\n"), "{tree}");
    }
}
