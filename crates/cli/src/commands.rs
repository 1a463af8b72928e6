//! Subcommands.

pub(crate) mod adopt;
pub(crate) mod approve;
pub(crate) mod cancel;
pub(crate) mod discard;
pub(crate) mod logs;
pub(crate) mod outputs;
pub(crate) mod plan;
pub(crate) mod reconcile;
pub(crate) mod resources;
pub(crate) mod restore;
pub(crate) mod runs;
pub(crate) mod state;
pub(crate) mod suspend;
pub(crate) mod tree;
pub(crate) mod ui;
pub(crate) mod unlock;
pub(crate) mod wait;
