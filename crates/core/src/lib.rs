//! The pure behaviour of the operator. [`decide::decide`] turns a resource and an observation of its cluster, its repository and its registry
//! into steps and a status, [`queue::Places`] selects the runs that may start, and [`lease::Elector`] the replica that leads. No client, no
//! clock, no async.
//!
//! Imports have one direction: `model` and `observed` <- `objects` <- `decide` -> `status`.

pub mod decide;
pub mod dependency_graph;
pub mod digest;
pub mod lease;
pub mod metacontroller;
pub mod metrics;
pub mod model;
pub mod objects;
pub mod observed;
pub mod queue;
pub mod settings;
pub mod signature;
pub mod status;
pub mod step;
pub mod upstream_changes;
