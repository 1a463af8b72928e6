//! Run record and run report: two Secrets per resource, which ensure that a run is executed at most once.
//!
//! The run record contains number, inputs and history of runs. The controller writes it, and the runner reads it. The run report contains
//! claim, progress, result and outputs of a run. Module code can read the token of the runner, and can write any bytes into the report: the
//! controller validates and bounds each field before use.
//!
//! Every write is a compare-and-swap on the `resourceVersion` of the Secret. The controller starts a run: it increments
//! [`RunRecord::number`] and resets [`RunProgress`]. The runner claims the run with the uid of its pod before any other operation. It sets
//! [`RunProgress::phase`] to [`RunPhase::Applying`] before it changes objects. The controller cancels a run with [`RunProgress::cancel`].
//! If the controller cancels a run while the runner sets [`RunPhase::Applying`], only one of the two writes succeeds.

mod details;
mod history;
mod inputs;
mod inventory;
mod pin;
mod progress;
mod record;
mod transitions;

pub use crate::run_kind::RunKind;
pub use crate::state_lock::StateLock;
pub use details::RunDetails;
pub use history::{
    Applied, ApprovalGiven, CacheVolume, CorrectionHistory, DriftFound, Failures, History,
    InputRuns, Notice, Notices, PendingPlan, PinnedImage, Planned, PublishedOutputs, RecordedRun,
    Restored, SharedCache, StatusOutputs, UnsavedState, WaitingSince,
};
pub use inputs::{
    ApprovalInputs, ApprovedPlan, BackendInputs, Bootstrap, EngineArguments, ManagedState,
    RunInputs, ScriptTexts, TimeLimits,
};
pub use inventory::{Inventory, MAX_OBJECTS, ManagedObject};
pub use pin::Pin;
pub use progress::{Claim, Lineage, Output, Outputs, OwnBackend, RunPhase, RunProgress};
pub use record::{PLAN_REQUESTED, RunRecord, RunSpec, Trigger};
pub use transitions::{Begin, ChangesStart, End, check_number};

/// Version of the protocol between controller, image and runner. It is part of the image tag: an upgrade of the operator rebuilds images
/// only if the protocol changes. Version 7: mode of the resource, requested plans, wrapper and shared cache claims.
pub const PROTOCOL: u32 = 7;

/// Version of the protocol between controller and runner in build pods. Version 3: with builder kind Append, the container `build` pulls
/// the context and communicates with the container `prepare`. If the runner in the base image has a different version, the build pod uses
/// the runner from the image of the operator. So the version is not part of the image tag.
pub const BUILD_PROTOCOL: u32 = 3;

/// Maximum number of state slots of a resource. Sufficient for the current, the previous and the next version of a state of 256 MiB.
pub const MAX_SLOTS: u32 = 1024;

/// Keys in the data of the run record and the run report.
pub mod key {
    /// In the run record: [`super::RunRecord`] as JSON.
    pub const RECORD: &str = "record";
    /// In the run record: [`super::RunInputs`] as JSON. Removed when the controller adds the report of the run to the history.
    pub const INPUTS: &str = "inputs";
    /// In the run record: [`super::History`] as JSON.
    pub const HISTORY: &str = "signed-history";
    /// In a run record that an earlier version of the operator wrote without signatures: [`super::History`] as JSON. When the operator
    /// signs the run record, it moves the history to [`HISTORY`]. The earlier version refuses the run record without this entry, and so
    /// cannot change a signed one.
    pub const UNSIGNED_HISTORY: &str = "history";
    /// In the run record: 32 random bytes per resource. They are the key of HMACs, and the encryption key of the unsaved state and of plans
    /// on the cache volume.
    pub const KEY: &str = "key";
    /// In the run report: [`super::RunProgress`] as JSON.
    pub const PROGRESS: &str = "progress";
    /// In the run report: [`crate::report::RunReport`] as JSON.
    pub const REPORT: &str = "report";
    /// In the run report: [`super::Outputs`] as JSON. Removed when the outputs are published.
    pub const OUTPUTS: &str = "outputs";
    /// In the run report: [`super::RunDetails`] as JSON. Removed when the [`TerraformRun`](crate::TerraformRun) is written.
    pub const DETAILS: &str = "details";
    /// In the run report: [`super::Inventory`] as JSON, gzipped. The controller does not read it. Kept until a run reads the state again.
    pub const INVENTORY: &str = "inventory";
    /// In the run report: unsaved state, compressed and encrypted with [`KEY`]. A later run removes the unsaved state when it has saved it.
    /// A later run also removes it if the Secret has no space left for the outputs: the state that this run wrote to the backend is newer.
    /// All other writes must keep the unsaved state.
    pub const LEFTOVER: &str = "leftover";

    /// Returns the data key of the signature of `entry`, a data key of the run record or of the pin. The operator signs the value of
    /// `entry`. The signature is hexadecimal.
    pub fn signature(entry: &str) -> String {
        format!("{entry}.signature")
    }

    /// Prefix of the data keys of logs.
    const LOG: &str = "log-";

    /// Returns the data key of the log of run `number` in the run report. The value is the last 64 KiB of the log, gzipped, with known
    /// secrets masked. The run report keeps the logs of the last three failed runs.
    pub fn log(number: i64) -> String {
        format!("{LOG}{number}")
    }

    /// Returns the run number in the data key `key`. `None` if `key` is not the data key of a log.
    pub fn log_of(key: &str) -> Option<i64> {
        key.strip_prefix(LOG)?.parse().ok()
    }
}
