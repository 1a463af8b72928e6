//! Goal of a run: apply or destroy.

/// What becomes of the real objects.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Goal {
    /// They become what the configuration says.
    Apply,
    /// They are destroyed.
    Destroy,
}
