//! Layered layout of a directed graph: longest path layering and barycenter ordering. Tolerates cycles.

/// Number of passes that reorder the nodes of all layers.
const PASSES: usize = 4;

/// Maximum number of bends of all edges. Further edges are straight.
const MAX_BENDS: usize = 2000;

/// A directed graph with the nodes `0..nodes`.
#[derive(Clone, Debug, Default)]
pub(crate) struct Digraph {
    /// Number of nodes.
    pub(crate) nodes: usize,
    /// Edges from a node to a node that it depends on, without duplicates.
    pub(crate) edges: Vec<(usize, usize)>,
}

/// Position of a node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Position {
    /// Index of the column. Nodes are on the right of their dependencies, except on a cycle.
    pub(crate) layer: usize,
    /// Index of the node in its column.
    pub(crate) row: usize,
}

/// Positions of nodes and edges.
#[derive(Clone, Debug, Default)]
pub(crate) struct Layout {
    /// Positions of the nodes.
    pub(crate) positions: Vec<Position>,
    /// For each edge, its positions in the layers between its nodes, from the dependency to the dependent.
    pub(crate) bends: Vec<Vec<Position>>,
}

impl Digraph {
    /// Returns the dependencies of each node.
    fn dependencies(&self) -> Vec<Vec<usize>> {
        let mut dependencies = vec![Vec::new(); self.nodes];
        for (from, to) in &self.edges {
            if let Some(list) = dependencies.get_mut(*from) {
                list.push(*to);
            }
        }
        dependencies
    }

    /// Returns for each node the length of the longest path to a node without dependencies. Edges that close a cycle are ignored.
    pub(crate) fn layers(&self) -> Vec<usize> {
        let dependencies = self.dependencies();
        // None: not visited; Some(None): on the path of the search; Some(Some(layer)): complete.
        let mut layers: Vec<Option<Option<usize>>> = vec![None; self.nodes];
        for start in 0..self.nodes {
            if layers.get(start).is_none_or(Option::is_some) {
                continue;
            }
            let mut path = vec![(start, 0, 0)];
            set(&mut layers, start, Some(None));
            while let Some((node, next, layer)) = path.last_mut() {
                let dependency = dependencies.get(*node).and_then(|list| list.get(*next));
                *next += 1;
                let Some(dependency) = dependency else {
                    let (node, layer) = (*node, *layer);
                    set(&mut layers, node, Some(Some(layer)));
                    path.pop();
                    if let Some((_, _, parent)) = path.last_mut() {
                        *parent = layer.saturating_add(1).max(*parent);
                    }
                    continue;
                };
                match layers.get(*dependency).copied().flatten() {
                    None => {
                        set(&mut layers, *dependency, Some(None));
                        path.push((*dependency, 0, 0));
                    }
                    Some(None) => {}
                    Some(Some(complete)) => *layer = (*layer).max(complete + 1),
                }
            }
        }
        layers
            .into_iter()
            .map(|layer| layer.flatten().unwrap_or_default())
            .collect()
    }

    /// Returns for each node the smallest node of its connected component.
    pub(crate) fn components(&self) -> Vec<usize> {
        let mut parents: Vec<usize> = (0..self.nodes).collect();
        for (from, to) in &self.edges {
            let [a, b] = [*from, *to].map(|node| root(&mut parents, node));
            set(&mut parents, a.max(b), a.min(b));
        }
        (0..self.nodes)
            .map(|node| root(&mut parents, node))
            .collect()
    }

    /// Returns the positions of all nodes and edges. An edge has a row in each layer between its nodes, so that it does not cross nodes.
    pub(crate) fn layout(&self) -> Layout {
        let mut layers = self.layers();
        let mut segments = Vec::new();
        let mut bends = Vec::new();
        for (from, to) in &self.edges {
            let [high, low] =
                [*from, *to].map(|node| layers.get(node).copied().unwrap_or_default());
            let end = if layers.len() < self.nodes + MAX_BENDS {
                high
            } else {
                low
            };
            let mut previous = *to;
            let mut edge_bends = Vec::new();
            for layer in low + 1..end {
                let bend = layers.len();
                layers.push(layer);
                segments.push((bend, previous));
                edge_bends.push(bend);
                previous = bend;
            }
            segments.push((*from, previous));
            bends.push(edge_bends);
        }
        let rows = rows(&layers, &segments);
        let positions: Vec<Position> = layers
            .into_iter()
            .zip(rows)
            .map(|(layer, row)| Position { layer, row })
            .collect();
        let position = |node: usize| positions.get(node).copied();
        let bends = bends
            .into_iter()
            .map(|edge| edge.into_iter().filter_map(position).collect());
        Layout {
            bends: bends.collect(),
            positions: positions.iter().take(self.nodes).copied().collect(),
        }
    }
}

/// Returns the rows of nodes in `layers`, ordered by the rows of their neighbours in `segments`.
fn rows(layers: &[usize], segments: &[(usize, usize)]) -> Vec<usize> {
    let depth = layers.iter().max().map_or(0, |layer| layer + 1);
    let mut columns = vec![Vec::new(); depth];
    for (node, layer) in layers.iter().enumerate() {
        if let Some(column) = columns.get_mut(*layer) {
            column.push(node);
        }
    }
    let mut neighbours = vec![Vec::new(); layers.len()];
    for (from, to) in segments {
        for (node, neighbour) in [(*from, *to), (*to, *from)] {
            if let Some(list) = neighbours.get_mut(node) {
                list.push(neighbour);
            }
        }
    }
    let mut rows = vec![0; layers.len()];
    for column in &columns {
        place(column, &mut rows);
    }
    for pass in 0..PASSES {
        let mut order: Vec<usize> = (0..depth).collect();
        if pass % 2 == 1 {
            order.reverse();
        }
        for layer in order {
            if let Some(column) = columns.get_mut(layer) {
                column.sort_by_key(|node| (barycenter(*node, &neighbours, &rows), *node));
                place(column, &mut rows);
            }
        }
    }
    rows
}

/// Returns the mean row of the neighbours of `node`, in 1/1024 of a row. Without neighbours, the row of `node`.
fn barycenter(node: usize, neighbours: &[Vec<usize>], rows: &[usize]) -> usize {
    let row = |node: usize| rows.get(node).copied().unwrap_or_default() * 1024;
    match neighbours.get(node).map(Vec::as_slice) {
        None | Some([]) => row(node),
        Some(list) => list.iter().map(|node| row(*node)).sum::<usize>() / list.len(),
    }
}

/// Sets the rows of the nodes in `column` to their index.
fn place(column: &[usize], rows: &mut [usize]) {
    for (row, node) in column.iter().enumerate() {
        set(rows, *node, row);
    }
}

/// Returns the root of `node`, and shortens the path to it.
fn root(parents: &mut [usize], mut node: usize) -> usize {
    while let Some(parent) = parents.get(node).copied().filter(|parent| *parent != node) {
        let grandparent = parents.get(parent).copied().unwrap_or(parent);
        set(parents, node, grandparent);
        node = parent;
    }
    node
}

fn set<T>(list: &mut [T], index: usize, value: T) {
    if let Some(entry) = list.get_mut(index) {
        *entry = value;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dependents_are_right_of_their_dependencies() {
        let graph = Digraph {
            nodes: 4,
            edges: vec![(1, 0), (2, 1), (2, 0), (3, 0)],
        };
        assert_eq!(graph.layers(), [0, 1, 2, 1]);
    }

    #[test]
    fn layers_of_a_cycle_are_finite() {
        let graph = Digraph {
            nodes: 3,
            edges: vec![(0, 1), (1, 2), (2, 0)],
        };
        assert_eq!(graph.layers(), [2, 1, 0]);
    }

    #[test]
    fn barycenter_order_avoids_crossings() {
        let graph = Digraph {
            nodes: 4,
            edges: vec![(2, 1), (3, 0)],
        };
        let positions = graph.layout().positions;
        assert_eq!(
            positions[2].row < positions[3].row,
            positions[1].row < positions[0].row,
        );
    }

    #[test]
    fn long_edge_has_its_row_between_the_nodes() {
        let graph = Digraph {
            nodes: 3,
            edges: vec![(1, 0), (2, 0), (2, 1)],
        };
        let layout = graph.layout();
        assert_eq!(layout.bends[1], [Position { layer: 1, row: 1 }]);
        assert_eq!(layout.positions[1], Position { layer: 1, row: 0 });
    }

    #[test]
    fn components_are_named_by_their_smallest_node() {
        let graph = Digraph {
            nodes: 5,
            edges: vec![(4, 3), (3, 1), (2, 0)],
        };
        assert_eq!(graph.components(), [0, 1, 0, 1, 1]);
    }
}
