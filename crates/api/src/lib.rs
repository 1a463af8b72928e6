//! API of Alustan: the `Terraform` resource with its status, and the run record and run report that controller and runner share. Contains
//! types and names only: no client, no clock.

#![expect(
    unreachable_pub,
    reason = "KubeSchema repeats each struct inside a function"
)]

pub mod architecture;
pub mod conditions;
pub mod engine;
pub mod json_size;
pub mod labels;
pub mod names;
pub mod notification;
pub mod paths;
pub mod reason;
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
pub use reason::Reason;
pub use references::*;
pub use spec::*;
pub use stack::*;
pub use status::*;

/// Field manager of server-side apply.
pub const FIELD_MANAGER: &str = "terraform.alustan.io/controller";

/// Finalizer of a resource. It delays the deletion until the managed objects are destroyed.
pub const FINALIZER: &str = "terraform.alustan.io/destroy";

/// Annotation that requests a reconciliation and a run. Each new value counts once and gives a `Stalled` resource a new retry budget.
pub const RECONCILE_AT: &str = "alustan.io/reconcile-at";
/// Annotation that makes the run of [`RECONCILE_AT`] an apply if it would only check for drift. Both annotations must have the same value.
pub const APPLY_AT: &str = "alustan.io/apply-at";

/// Annotation with the uid of the resource that [`FINALIZER`] was added to. If the uid differs from that of the resource, the resource is a
/// copy or was restored from a backup.
pub const KEPT: &str = "alustan.io/uid";

/// Annotation of a deleted resource. With value `"true"`, the resource is released and its managed objects are left in place.
pub const ABANDON: &str = "alustan.io/abandon";
