//! View model of the list of resources.

use std::cmp::Ordering;
use std::collections::BTreeSet;
use std::sync::Arc;

use alustan_api::State;
use k8s_openapi::jiff::Timestamp;
use serde::{Serialize, Serializer};

use crate::row::Row;
use crate::view::moment::Moment;
use crate::view::query::{ListQuery, SortKey};
use crate::view::state::{STATES, needs_attention, rank};

/// Number of resources on a page.
const PAGE_ROWS: usize = 100;

/// Maximum number of suggested namespaces.
const MAX_NAMESPACES: usize = 30;

/// A resource in a list. Serializes as its summary.
#[derive(Clone, Debug)]
pub(crate) struct ListedRow {
    /// Summary of the resource.
    pub(crate) row: Arc<Row>,
    /// Time of the last change of condition `Ready`.
    pub(crate) since: Option<Moment>,
}

impl ListedRow {
    pub(crate) fn new(row: &Arc<Row>, now: Timestamp) -> Self {
        Self {
            row: Arc::clone(row),
            since: row.since.map(|since| Moment::new(since, now)),
        }
    }
}

impl Serialize for ListedRow {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.row.serialize(serializer)
    }
}

/// Number of resources in a state.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct StateCount {
    /// State.
    pub(crate) state: State,
    /// Number of resources that match the other filters.
    pub(crate) count: usize,
}

/// View model of the list of resources.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct ListView {
    /// Filters and order.
    pub(crate) query: ListQuery,
    /// Number of resources that the user may list.
    pub(crate) total: usize,
    /// Number of resources that match all filters except the state.
    pub(crate) found: usize,
    /// Number of resources that match all filters.
    pub(crate) matching: usize,
    /// Number of resources in `found` that need attention.
    pub(crate) attention: usize,
    /// Number of resources by state, without states that no resource has.
    pub(crate) states: Vec<StateCount>,
    /// Number of the page, from 1.
    pub(crate) page: usize,
    /// Number of pages, at least 1.
    pub(crate) pages: usize,
    /// Resources of the page.
    pub(crate) rows: Vec<ListedRow>,
    /// Namespaces with resources, at most 30.
    #[serde(skip)]
    pub(crate) namespaces: Vec<String>,
}

/// Builds the list of those of `rows` that match `query`.
pub(crate) fn list(rows: &[Arc<Row>], query: &ListQuery, now: Timestamp) -> ListView {
    let found: Vec<&Arc<Row>> = rows.iter().filter(|row| is_found(row, query)).collect();
    let states: Vec<StateCount> = STATES
        .into_iter()
        .map(|state| StateCount {
            state,
            count: found.iter().filter(|row| row.state == state).count(),
        })
        .filter(|filter| filter.count > 0 || query.state == Some(filter.state))
        .collect();
    let mut matching: Vec<&Arc<Row>> = found
        .iter()
        .copied()
        .filter(|row| query.state.is_none_or(|state| row.state == state))
        .collect();
    matching.sort_unstable_by(|a, b| order(a, b, query));
    let pages = matching.len().div_ceil(PAGE_ROWS).max(1);
    let index = query.page_index.min(pages - 1);
    let shown = matching.iter().skip(index * PAGE_ROWS).take(PAGE_ROWS);
    ListView {
        query: ListQuery {
            page_index: index,
            ..query.clone()
        },
        total: rows.len(),
        found: found.len(),
        matching: matching.len(),
        attention: found
            .iter()
            .filter(|row| needs_attention(row.state))
            .count(),
        states,
        page: index + 1,
        pages,
        rows: shown.map(|row| ListedRow::new(row, now)).collect(),
        namespaces: namespaces(rows),
    }
}

/// Whether `row` matches all filters except the state.
fn is_found(row: &Row, query: &ListQuery) -> bool {
    if !query.ns.is_empty() && row.namespace != query.ns {
        return false;
    }
    let q = query.q.as_str();
    q.is_empty()
        || contains(&row.name, q)
        || contains(&row.namespace, q)
        || row
            .reason
            .as_deref()
            .is_some_and(|reason| contains(reason, q))
        || row
            .revision
            .as_deref()
            .is_some_and(|revision| contains(revision, q))
        || is_key(row, q)
}

/// Whether `q` is a part of `namespace/name` with the slash.
fn is_key(row: &Row, q: &str) -> bool {
    q.split_once('/').is_some_and(|(namespace, name)| {
        ends_with(&row.namespace, namespace)
            && row
                .name
                .get(..name.len())
                .is_some_and(|start| start.eq_ignore_ascii_case(name))
    })
}

/// Whether `text` ends with `part`, ignoring the case of ASCII letters.
fn ends_with(text: &str, part: &str) -> bool {
    let start = text.len().checked_sub(part.len());
    start
        .and_then(|start| text.get(start..))
        .is_some_and(|end| end.eq_ignore_ascii_case(part))
}

/// Whether `text` contains `part`, ignoring the case of ASCII letters. Does not allocate, because it is called for all resources.
fn contains(text: &str, part: &str) -> bool {
    text.as_bytes()
        .windows(part.len())
        .any(|window| window.eq_ignore_ascii_case(part.as_bytes()))
}

fn order(a: &Row, b: &Row, query: &ListQuery) -> Ordering {
    let by_name = || (&a.namespace, &a.name).cmp(&(&b.namespace, &b.name));
    let by_key = match query.sort.key {
        SortKey::State => rank(a.state).cmp(&rank(b.state)),
        SortKey::Name => by_name(),
        SortKey::Reason => a.reason.cmp(&b.reason),
        SortKey::Since => (a.since.is_none(), a.since).cmp(&(b.since.is_none(), b.since)),
    };
    let by_key = if query.sort.descending {
        by_key.reverse()
    } else {
        by_key
    };
    by_key.then_with(by_name)
}

fn namespaces(rows: &[Arc<Row>]) -> Vec<String> {
    let mut namespaces: BTreeSet<&str> = BTreeSet::new();
    for row in rows {
        namespaces.insert(&row.namespace);
        if namespaces.len() > MAX_NAMESPACES {
            break;
        }
    }
    let first = namespaces.into_iter().take(MAX_NAMESPACES);
    first.map(str::to_owned).collect()
}
