//! Pod option that is not allowed.

/// Option that is not allowed.
pub(super) struct Violation {
    /// Path of the option in the pod options.
    pub(super) path: String,
    /// Cause, and the action that resolves it.
    pub(super) cause: String,
}

impl Violation {
    pub(super) fn new(path: impl Into<String>, cause: impl Into<String>) -> Self {
        Self {
            path: path.into(),
            cause: cause.into(),
        }
    }
}
