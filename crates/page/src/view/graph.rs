//! View model of the dependency graph of a namespace.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use alustan_api::{ObjectKey, State, Terraform};
use alustan_core::dependency_graph::DependencyGraph;
use serde::Serialize;

use crate::view::layout::{Digraph, Layout, Position};
use crate::view::path;
use crate::view::state::{STATES, rank};

/// Maximum number of nodes. Larger graphs are collapsed.
const MAX_NODES: usize = 200;

/// Maximum number of rows in the table.
const MAX_ROWS: usize = 2000;

/// Width and height of a node, distance of columns and rows, and margin, in pixels.
const NODE: (usize, usize) = (208, 46);
const STEP: (usize, usize) = (288, 62);
const MARGIN: usize = 12;

/// Minimum number of columns for resources without dependencies and dependents.
const MIN_COLUMNS: usize = 4;

/// Node: one resource, or a group of resources in a collapsed graph.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct GraphNode {
    /// Name of the resource, with the namespace for resources of other namespaces. For groups, a description.
    pub(crate) label: String,
    /// State of the resource. For groups, the state that needs attention first. `None`: the resource is unknown.
    pub(crate) state: Option<State>,
    /// Number of resources.
    pub(crate) resources: usize,
    /// Number of resources by state.
    pub(crate) states: Vec<(State, usize)>,
    /// Whether the resource is in another namespace.
    pub(crate) external: bool,
    /// Link to the resource, or to the list for groups.
    pub(crate) href: String,
    /// Distance of the left edge from the left edge of the graph, in pixels.
    pub(crate) x: usize,
    /// Distance of the top edge from the top edge of the graph, in pixels.
    pub(crate) y: usize,
}

/// Edge from a dependency to its dependent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct GraphEdge {
    /// Index of the dependency in the nodes.
    pub(crate) from: usize,
    /// Index of the dependent in the nodes.
    pub(crate) to: usize,
    /// SVG path.
    pub(crate) path: String,
    /// Whether the edge is part of a cycle: the dependent is not on the right of its dependency.
    pub(crate) backward: bool,
}

/// Row of the table: a resource and its dependencies.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct GraphRow {
    /// Name of the resource.
    pub(crate) name: String,
    /// State of the resource.
    pub(crate) state: State,
    /// Dependencies: namespace and name.
    pub(crate) depends_on: Vec<(String, String)>,
}

/// View model of the dependency graph of a namespace.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct GraphView {
    /// The namespace.
    pub(crate) namespace: String,
    /// Number of resources in the namespace.
    pub(crate) total: usize,
    /// Whether nodes are groups of resources.
    pub(crate) collapsed: bool,
    /// Whether the namespace has resources that the graph omits.
    pub(crate) truncated: bool,
    /// Nodes.
    pub(crate) nodes: Vec<GraphNode>,
    /// Edges.
    pub(crate) edges: Vec<GraphEdge>,
    /// Width of the graph, in pixels.
    pub(crate) width: usize,
    /// Height of the graph, in pixels.
    pub(crate) height: usize,
    /// The first 2,000 resources with their dependencies, by name.
    pub(crate) rows: Vec<GraphRow>,
}

/// Builds the dependency graph of `namespace` with `resources`. `is_truncated`: whether the namespace has more resources. `external`: states of resources in other namespaces that the user may see. A
/// selector for another namespace adds no nodes.
///
/// A graph of more than 200 nodes is collapsed: resources in the same connected component at the same distance from resources without
/// dependencies are one node, and so are all resources without dependencies and dependents. If these are still more than 200 nodes, each of
/// the 199 largest components is one node, and all others are one node.
pub(crate) fn graph(
    namespace: &str,
    resources: &[Terraform],
    external: &BTreeMap<ObjectKey, State>,
    is_truncated: bool,
) -> GraphView {
    let mut references = DependencyGraph::new(resources);
    let mut own: Vec<&Terraform> = resources
        .iter()
        .filter(|tf| tf.metadata.namespace.as_deref() == Some(namespace))
        .collect();
    own.sort_by_key(|tf| tf.metadata.name.as_deref());
    let mut members = Members::default();
    for tf in &own {
        members.add(ObjectKey::of(tf), Some(state(tf)));
    }
    let mut rows = Vec::new();
    let mut edges = BTreeSet::new();
    for tf in &own {
        let from = members.add(ObjectKey::of(tf), None);
        let mut depends_on = BTreeSet::new();
        for reference in &*references.references(tf) {
            let dependency = references.get(&reference.key).map(state);
            let dependency = dependency.or_else(|| external.get(&reference.key).copied());
            let to = members.add(reference.key.clone(), dependency);
            if from != to {
                edges.insert((from, to));
            }
            let ObjectKey { namespace, name } = &reference.key;
            depends_on.insert((namespace.clone(), name.clone()));
        }
        if rows.len() < MAX_ROWS {
            rows.push(GraphRow {
                name: ObjectKey::of(tf).name,
                state: state(tf),
                depends_on: depends_on.into_iter().collect(),
            });
        }
    }
    let digraph = Digraph {
        nodes: members.list.len(),
        edges: edges.into_iter().collect(),
    };
    let collapsed = digraph.nodes > MAX_NODES;
    let groups = if collapsed {
        groups(&digraph)
    } else {
        (0..digraph.nodes).map(|node| vec![node]).collect()
    };
    let digraph = quotient(&digraph, &groups);
    let places = places(&digraph);
    let nodes: Vec<GraphNode> = groups
        .iter()
        .zip(&places.of_nodes)
        .map(|(group, (x, y))| members.node(namespace, group, (*x, *y)))
        .collect();
    GraphView {
        namespace: namespace.to_owned(),
        total: own.len(),
        collapsed,
        truncated: is_truncated,
        edges: edge_views(&digraph, &nodes, &places.bends),
        nodes,
        width: places.width,
        height: places.height,
        rows,
    }
}

fn state(tf: &Terraform) -> State {
    tf.status
        .as_ref()
        .map(|status| status.state)
        .unwrap_or_default()
}

/// Resources of the graph.
#[derive(Default)]
struct Members {
    list: Vec<(ObjectKey, Option<State>)>,
    indexes: BTreeMap<ObjectKey, usize>,
}

impl Members {
    /// Returns the index of `key`. Adds the resource if it is not in the list.
    fn add(&mut self, key: ObjectKey, state: Option<State>) -> usize {
        if let Some(index) = self.indexes.get(&key) {
            return *index;
        }
        let index = self.list.len();
        self.list.push((key.clone(), state));
        self.indexes.insert(key, index);
        index
    }

    fn node(&self, namespace: &str, group: &[usize], (x, y): (usize, usize)) -> GraphNode {
        let members: Vec<&(ObjectKey, Option<State>)> = group
            .iter()
            .filter_map(|index| self.list.get(*index))
            .collect();
        let states: Vec<(State, usize)> = STATES
            .into_iter()
            .map(|state| {
                let count = members.iter().filter(|(_, of)| *of == Some(state)).count();
                (state, count)
            })
            .filter(|(_, count)| *count > 0)
            .collect();
        let (label, href) = match members.as_slice() {
            [(key, _)] => (
                key.seen_from(namespace),
                path::resource(&key.namespace, &key.name),
            ),
            [(key, _), others @ ..] => (
                format!("{} and {} more", key.seen_from(namespace), others.len()),
                path::list(namespace),
            ),
            [] => (String::new(), path::list(namespace)),
        };
        GraphNode {
            label,
            state: states
                .iter()
                .map(|(state, _)| *state)
                .min_by_key(|state| rank(*state)),
            resources: members.len(),
            external: members.iter().all(|(key, _)| key.namespace != namespace),
            states,
            href,
            x,
            y,
        }
    }
}

/// Assigns the nodes of a graph with more than 200 nodes to at most 200 groups, see [`graph`].
fn groups(digraph: &Digraph) -> Vec<Vec<usize>> {
    let components = digraph.components();
    let layers = digraph.layers();
    let mut sizes: BTreeMap<usize, usize> = BTreeMap::new();
    for component in &components {
        *sizes.entry(*component).or_default() += 1;
    }
    let is_single = |component: &usize| sizes.get(component) == Some(&1);
    let by_layer = components
        .iter()
        .zip(&layers)
        .map(|(component, layer)| (!is_single(component)).then_some((*component, *layer)));
    let groups = grouped(by_layer);
    if groups.len() <= MAX_NODES {
        return groups;
    }
    let mut largest: Vec<(&usize, &usize)> = sizes.iter().filter(|(_, size)| **size > 1).collect();
    largest.sort_by_key(|(component, size)| (std::cmp::Reverse(**size), **component));
    let largest: BTreeSet<usize> = largest
        .into_iter()
        .take(MAX_NODES - 1)
        .map(|(component, _)| *component)
        .collect();
    grouped(
        components
            .iter()
            .map(|component| largest.contains(component).then_some((*component, 0))),
    )
}

/// Returns the indexes of equal elements of `keys`.
fn grouped(keys: impl Iterator<Item = Option<(usize, usize)>>) -> Vec<Vec<usize>> {
    let mut groups: BTreeMap<Option<(usize, usize)>, Vec<usize>> = BTreeMap::new();
    for (index, key) in keys.enumerate() {
        groups.entry(key).or_default().push(index);
    }
    groups.into_values().collect()
}

/// Returns the graph of `groups`: an edge for the edges between two groups.
fn quotient(digraph: &Digraph, groups: &[Vec<usize>]) -> Digraph {
    let group_of: BTreeMap<usize, usize> = groups
        .iter()
        .enumerate()
        .flat_map(|(group, nodes)| nodes.iter().map(move |node| (*node, group)))
        .collect();
    let edges: BTreeSet<(usize, usize)> = digraph
        .edges
        .iter()
        .filter_map(|(from, to)| Some((*group_of.get(from)?, *group_of.get(to)?)))
        .filter(|(from, to)| from != to)
        .collect();
    Digraph {
        nodes: groups.len(),
        edges: edges.into_iter().collect(),
    }
}

/// Coordinates of the nodes, and size of the graph.
struct Places {
    of_nodes: Vec<(usize, usize)>,
    /// Points between the nodes of each edge.
    bends: Vec<Vec<(usize, usize)>>,
    width: usize,
    height: usize,
}

/// Places connected nodes in layers, and below them the other nodes in a grid.
fn places(digraph: &Digraph) -> Places {
    let connected: BTreeSet<usize> = digraph
        .edges
        .iter()
        .flat_map(|(from, to)| [*from, *to])
        .collect();
    let indexes: BTreeMap<usize, usize> = connected
        .iter()
        .enumerate()
        .map(|(index, node)| (*node, index))
        .collect();
    let edges = digraph.edges.iter();
    let layered = Digraph {
        nodes: connected.len(),
        edges: edges
            .filter_map(|(from, to)| Some((*indexes.get(from)?, *indexes.get(to)?)))
            .collect(),
    };
    let Layout { positions, bends } = layered.layout();
    let columns = positions.iter().map(|position| position.layer + 1).max();
    let columns = columns.unwrap_or_default().max(MIN_COLUMNS);
    let all = positions.iter().chain(bends.iter().flatten());
    let rows = all.map(|position| position.row + 1).max();
    let rows = rows.unwrap_or_default();
    let mut others = 0;
    let positions: Vec<Position> = (0..digraph.nodes)
        .map(|node| {
            let layered = indexes.get(&node).and_then(|index| positions.get(*index));
            layered.copied().unwrap_or_else(|| {
                others += 1;
                Position {
                    layer: (others - 1) % columns,
                    row: rows + (others - 1) / columns,
                }
            })
        })
        .collect();
    let of_nodes: Vec<(usize, usize)> = positions.iter().map(corner).collect();
    let bends: Vec<Vec<(usize, usize)>> = bends
        .iter()
        .map(|edge| edge.iter().map(corner).collect())
        .collect();
    let all = || of_nodes.iter().chain(bends.iter().flatten());
    let right = all().map(|(x, _)| *x).max().unwrap_or_default();
    let bottom = all().map(|(_, y)| *y).max().unwrap_or_default();
    Places {
        width: right + NODE.0 + MARGIN,
        height: bottom + NODE.1 + MARGIN,
        of_nodes,
        bends,
    }
}

/// Returns the left top corner of a node at `position`.
fn corner(position: &Position) -> (usize, usize) {
    (
        MARGIN + position.layer * STEP.0,
        MARGIN + position.row * STEP.1,
    )
}

fn edge_views(
    digraph: &Digraph,
    nodes: &[GraphNode],
    bends: &[Vec<(usize, usize)>],
) -> Vec<GraphEdge> {
    let edges = digraph.edges.iter().zip(bends);
    let views = edges.filter_map(|((dependent, dependency), bends)| {
        let from = nodes.get(*dependency)?;
        let to = nodes.get(*dependent)?;
        let middle = |y: usize| y + NODE.1 / 2;
        let mut start = (from.x + NODE.0, middle(from.y));
        let mut path = format!("M{} {}", start.0, start.1);
        for (x, y) in bends.iter().copied().chain([(to.x, to.y)]) {
            let end = (x, middle(y));
            path.push_str(&curve(start, end));
            if (x, y) != (to.x, to.y) {
                start = (x + NODE.0, end.1);
                // Writing to a String does not fail.
                let _ = write!(path, "H{}", start.0);
            }
        }
        Some(GraphEdge {
            from: *dependency,
            to: *dependent,
            path,
            backward: to.x <= from.x,
        })
    });
    views.collect()
}

/// Returns the SVG path of a curve that starts and ends horizontally.
fn curve(start: (usize, usize), end: (usize, usize)) -> String {
    let bend = (STEP.0 - NODE.0) / 2;
    let (right, left) = (start.0 + bend, end.0.saturating_sub(bend));
    format!("C{right} {} {left} {} {} {}", start.1, end.1, end.0, end.1)
}
