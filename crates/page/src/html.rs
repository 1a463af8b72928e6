//! HTML of the pages: pure functions of view models.

mod buttons;
mod changes;
mod deleted;
mod frame;
mod graph;
mod list;
mod messages;
mod parts;
mod queue;
mod resource;
mod run;
mod runs_table;

#[cfg(test)]
mod tests;

pub(crate) use deleted::deleted;
pub(crate) use frame::{Frame, Nav};
pub(crate) use graph::graph;
pub(crate) use list::list;
pub(crate) use messages::{error, sign_in};
pub(crate) use queue::{approvals, drift};
pub(crate) use resource::resource;
pub(crate) use run::run;
