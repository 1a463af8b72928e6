//! Goal of a run: apply or destroy.

/// Desired state of the real objects after the run.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Goal {
    /// The objects match the configuration.
    Apply,
    /// The objects are destroyed.
    Destroy,
}
