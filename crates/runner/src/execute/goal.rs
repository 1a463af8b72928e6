//! Goal of a run: apply or destroy.

/// Desired result for the real objects.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Goal {
    /// The objects match the configuration.
    Apply,
    /// The objects are destroyed.
    Destroy,
}
