//! Rules that each write must keep.

/// A rule. The model checks it at each write that may break it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Rule {
    /// At most one pod changes real objects at a time, and at most one pod per run.
    OneMutator,
    /// With `spec.approval.mode: Manual`, a pod begins to apply only a plan that the user approved, and each approval only once.
    UnapprovedApply,
    /// The lock of a pod is released only by this pod, or after it has ended.
    LockOfLivePod,
    /// A pod begins to apply only if the pin has number, image, context and variables of its run.
    PinBeforeApply,
    /// The finalizer is removed only if no real object exists.
    ReleasedBeforeDestroy,
}

impl Rule {
    /// Returns the name of the property.
    pub const fn name(self) -> &'static str {
        match self {
            Self::OneMutator => "at most one pod changes objects",
            Self::UnapprovedApply => "only approved plans are applied",
            Self::LockOfLivePod => "no lock of a live pod is released",
            Self::PinBeforeApply => "the pin is written before the apply",
            Self::ReleasedBeforeDestroy => "a resource is destroyed before it is released",
        }
    }
}
