//! The contract of Alustan: the `Terraform` resource, what its status says, and the run record
//! that controller and runner share. Types and names only: no client, no clock.

#![expect(
    unreachable_pub,
    reason = "KubeSchema repeats each struct inside a function"
)]

pub mod architecture;
pub mod conditions;
pub mod engine;
pub mod labels;
pub mod names;
pub mod notification;
pub mod paths;
pub mod reasons;
pub mod references;
pub mod report;
pub mod run;
pub mod run_kind;
pub mod spec;
pub mod stack;
pub mod state_lock;
pub mod status;

pub use architecture::Architecture;
pub use engine::{Engine, EngineName};
pub use notification::*;
pub use references::*;
pub use spec::*;
pub use stack::*;
pub use status::*;

/// The field manager of every server-side apply.
pub const FIELD_MANAGER: &str = "terraform.alustan.io/controller";

/// Keeps a deleted resource until what it manages is destroyed.
pub const FINALIZER: &str = "terraform.alustan.io/destroy";

/// Annotation: setting it to a new value asks for a new look at once, and gives a `Stalled`
/// resource a new retry budget.
pub const RECONCILE_AT: &str = "alustan.io/reconcile-at";
/// Annotation: with the same value as [`RECONCILE_AT`], the run that it asks for applies also where it would otherwise only
/// look for drift.
pub const APPLY_AT: &str = "alustan.io/apply-at";

/// Annotation: the uid of the resource that [`FINALIZER`] was added to. One with another uid
/// was restored from a backup.
pub const KEPT: &str = "alustan.io/uid";

/// Annotation: `"true"` on a deleted resource gives up on destroying what it manages.
pub const ABANDON: &str = "alustan.io/abandon";
