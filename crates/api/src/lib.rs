//! API of Alustan: the `Terraform` resource with its status, and the run record and run report that controller and runner share. Contains
//! types and names only: no Kubernetes client, and no access to the clock.

#![expect(
    unreachable_pub,
    reason = "the derive macro KubeSchema copies each struct into a function"
)]

mod anything;
pub mod architecture;
mod bounded;
pub mod change_set;
pub mod cli_config;
pub mod conditions;
pub mod engine;
mod engine_name;
pub mod json_size;
pub mod labels;
mod module_source;
pub mod names;
pub mod notification;
pub mod object_key;
mod output_value;
pub mod paths;
pub mod reason;
pub mod references;
pub mod report;
pub mod revision;
pub mod run;
pub mod run_kind;
pub mod spec;
mod spec_references;
pub mod stack;
pub mod state_lock;
pub mod status;
pub mod terraform_run;
mod wrapper;

pub use anything::Anything;
pub use architecture::Architecture;
pub use engine::Engine;
pub use engine_name::EngineName;
pub use module_source::ModuleSource;
pub use notification::*;
pub use object_key::ObjectKey;
pub use output_value::OutputValue;
pub use reason::Reason;
pub use references::*;
pub use spec::*;
pub use stack::*;
pub use status::*;
pub use terraform_run::{
    Commit, MAX_LOG_HEAD_BYTES, MAX_LOG_TAIL_BYTES, MAX_PLAN_BYTES, MAX_RUN_BYTES, RunApproval,
    RunLog, TerraformRef, TerraformRun, TerraformRunSpec, TerraformRunStatus, run_name,
};
pub use wrapper::{Wrapper, WrapperName};

/// Field manager of server-side apply.
pub const FIELD_MANAGER: &str = "terraform.alustan.io/controller";

/// Finalizer of a resource. It delays the deletion until the managed objects are destroyed, or left in place with `deletionPolicy: Orphan`.
pub const FINALIZER: &str = "terraform.alustan.io/destroy";

/// Annotation that requests a reconciliation and a run. The operator processes each new value once, and resets the retry budget of a
/// `Stalled` resource.
pub const RECONCILE_AT: &str = "alustan.io/reconcile-at";
/// Annotation that turns a drift check, requested by [`RECONCILE_AT`], into an apply. It has an effect only if both annotations have the
/// same value.
pub const APPLY_AT: &str = "alustan.io/apply-at";
/// Annotation that requests a plan without an apply. The operator processes each new value once. The plan uses no approval, does not
/// change the retry budget and does not correct drift.
pub const PLAN_AT: &str = "alustan.io/plan-at";
/// Annotation that cancels the active run with the number in its value. It has an effect only if a user sets it after the start of the run.
pub const CANCEL_RUN: &str = "alustan.io/cancel-run";
/// Annotation that discards the plan with the id in its value, if the plan waits for approval. The plan can then not be approved.
pub const DISCARD_PLAN: &str = "alustan.io/discard-plan";

/// Annotation that the operator sets to `metadata.uid` when it adds [`FINALIZER`]. If the two values differ, the resource is a copy or was
/// restored from a backup.
pub const KEPT: &str = "alustan.io/uid";

/// Annotation of a deleted resource. With value `"true"`, the operator removes [`FINALIZER`] and leaves the managed objects in place.
pub const ABANDON: &str = "alustan.io/abandon";
