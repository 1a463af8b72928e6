//! Goal of a run: apply or destroy.

/// What a run does to real objects.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Goal {
    /// Changes the objects until they match the configuration.
    Apply,
    /// Destroys the objects.
    Destroy,
}
