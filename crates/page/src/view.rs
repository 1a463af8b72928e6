//! View models of the pages: pure functions of objects and the current time. Each model is also the JSON response of its page.

mod buttons;
mod changes;
mod deleted;
mod graph;
mod layout;
mod list;
mod moment;
pub(crate) mod path;
mod query;
mod queue;
mod resource;
mod run;
mod runs_table;
mod state;
pub(crate) mod text;
mod timeline;

#[cfg(test)]
pub(crate) mod fixtures;
#[cfg(test)]
mod tests;

pub(crate) use buttons::Button;
pub(crate) use changes::{ChangesView, ResourceChangeView};
pub(crate) use deleted::{DeletedView, deleted};
pub(crate) use graph::{GraphNode, GraphView, graph};
pub(crate) use list::{ListView, ListedRow, list};
pub(crate) use moment::{Moment, milliseconds, seconds};
pub(crate) use query::{ListQuery, SortKey};
pub(crate) use queue::{QueueView, approvals, drift};
pub(crate) use resource::{
    DriftView, NeighbourView, OutputView, OutputsView, PendingView, ResourceInput, ResourceView,
    active_run, resource,
};
pub(crate) use run::{LogPanel, RunInput, RunView, run};
pub(crate) use runs_table::RunRow;
pub(crate) use timeline::TimelineStep;
