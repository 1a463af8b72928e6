//! Model of run record, run report, claim and approval, whose states are explored exhaustively.
//!
//! Two controllers, pods and a user act on the objects of one resource, one write at a time. All decisions are made by the functions that the
//! operator and the runner use: `decide`, the validation of reports, and the changes of the run progress.

#![expect(
    clippy::expect_used,
    clippy::indexing_slicing,
    reason = "only tests use this"
)]

mod controller;
mod execute;
mod model;
mod objects;
mod pod;
mod resource;
mod rules;
mod runner;
mod scenario;
mod shared;
mod stability;
mod state;
mod transitions;
mod write;

pub use controller::Stale;
pub use model::{BECOMES_STABLE, RunModel};
pub use rules::Rule;
pub use scenario::{Backend, Budget, Defect, Scenario};
pub use state::State;
pub use transitions::Action;
