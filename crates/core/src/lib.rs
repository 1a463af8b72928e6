//! Pure decision logic of the operator: no client, no clock, no async.
//!
//! [`decide::prepare::prepare`] determines the queries to repository and registry from a resource and the observed objects of the cluster.
//! [`decide::decide`] returns steps and a status once the queries are answered.
//! [`queue::SlotLimits`] selects the runs that may start. [`leader_election::Elector`] decides the next operation on the Lease.
//!
//! Imports have one direction, which `cargo xtask imports` enforces: `observed` <- `model` <- `objects` <- `status` <- `decide`.
//! `observed` and `model` have the types that the other modules share, `objects` builds Kubernetes objects, and `status` renders the status.

pub mod backoff;
pub mod decide;
pub mod dependency_graph;
pub mod digest;
pub mod dns_names;
pub mod drift_schedule;
pub mod job_retention;
pub mod leader_election;
pub mod metacontroller;
pub mod metric_definitions;
pub mod model;
pub mod objects;
pub mod observed;
pub mod pod_policy;
mod quantity;
pub mod queue;
pub mod run_retention;
pub mod settings;
pub mod signature;
pub mod status;
pub mod step;
pub mod upstream_changes;
