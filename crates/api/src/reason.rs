//! Stable reasons of conditions, events, runs, logs and metrics.

#![expect(
    missing_docs,
    reason = "docs/troubleshooting.md describes the variants"
)]

use serde::{Deserialize as _, Deserializer};

/// Stable reason of conditions, events, `status.runs[].reason`, logs and metrics. `docs/troubleshooting.md` describes each reason.
///
/// Objects store reasons as strings, so that the operator can read and keep reasons of older and newer versions.
#[derive(
    Clone,
    Copy,
    Debug,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    Hash,
    strum::Display,
    strum::EnumString,
    strum::IntoStaticStr,
    strum::VariantArray,
)]
#[strum(const_into_str)]
pub enum Reason {
    Abandoned,
    ApiError,
    ApiUnavailable,
    Applied,
    ApplyFailed,
    ArtifactInvalid,
    ArtifactNotFound,
    AwaitingApproval,
    AwaitingProcessing,
    BackendChanged,
    BackendConflict,
    BackendMissing,
    BaseImageNotFound,
    BaseImageUnsupported,
    BootstrapFailed,
    BranchNotFound,
    BuildFailed,
    BuildServiceAccountUnsupported,
    BuildTimedOut,
    Building,
    CacheClaimConflict,
    CacheClaimNotAllowed,
    CacheClaimNotFound,
    CacheUnsupported,
    Cancelling,
    ChangesPlanned,
    CommitNotFound,
    ConfigMapKeyNotFound,
    ConfigMapNotFound,
    Conflict,
    ContextDamaged,
    ContextRefused,
    ContextTooLarge,
    ContextWriteFailed,
    CrashLoopBackOff,
    CreateContainerConfigError,
    CreateContainerError,
    CredentialHelperFailed,
    CredentialHelperMissing,
    CredentialsInImage,
    CrossNamespaceReference,
    Deleted,
    DeletionProtected,
    DependenciesReady,
    DependencyCycle,
    DependencyNotFound,
    DependencyNotReady,
    Dependent,
    DependentsExist,
    DestroyFailed,
    Destroyed,
    Destroying,
    DockerfileNotAllowed,
    DockerfileRefused,
    DockerfileUnsupported,
    Drifted,
    EngineChangeNotAllowed,
    EngineNotFound,
    EngineNotStarted,
    EngineTooOld,
    EngineUnknown,
    ErrImageNeverPull,
    ErrImagePull,
    ExpressionAborted,
    ExpressionTooSlow,
    Failed,
    Fetched,
    Fetching,
    FieldNotFound,
    FileUnsupported,
    Forbidden,
    GitAuthenticationFailed,
    GitAuthorityUnreadable,
    GitCacheFull,
    GitCacheUnusable,
    GitFailed,
    GitRateLimited,
    GitTimeout,
    GitTlsFailed,
    GitUnavailable,
    HealthCheckFailed,
    HealthCheckPending,
    HostKeyMismatch,
    HostKeyUnknown,
    ImageLookup,
    ImageMissing,
    ImageNotFound,
    ImagePullBackOff,
    InSync,
    InitFailed,
    InputChanged,
    InputFlapping,
    InputTooLarge,
    Interrupted,
    InvalidBackend,
    InvalidExpression,
    InvalidGitHubApp,
    InvalidGitUrl,
    InvalidImageName,
    InvalidPath,
    InvalidReference,
    InvalidRegistryCredentials,
    InvalidRule,
    InvalidSelector,
    InvalidSource,
    JobNameConflict,
    KindNotFound,
    LimitRangeRefused,
    MigrationFailed,
    ModuleInvalid,
    ModuleNotFound,
    ModuleSourceNotAllowed,
    ModulesUnavailable,
    NameTaken,
    NoChanges,
    NoConfiguration,
    NoDependencies,
    NoPlanFile,
    NotAllowed,
    NotApplied,
    NotConverging,
    NotLeader,
    NotificationFailed,
    ObjectForbidden,
    ObjectNotFound,
    ObjectNotReady,
    ObjectUnreadable,
    Orphaned,
    OrphanedState,
    OutOfMemory,
    OutputAnnotationReserved,
    OutputNotFound,
    OutputSensitive,
    OutputsOwnershipConflict,
    OutputsTooLarge,
    OutputsUnreadable,
    PathLeavesRepository,
    PathNotFound,
    PinLost,
    PlanDenied,
    PlanDiscarded,
    PlanFailed,
    PlanOnly,
    PlanStale,
    PlanUnreadable,
    PodNotCreated,
    PodNotStarted,
    PodOptionNotAllowed,
    PodTerminated,
    PrepareFailed,
    ProviderNotFound,
    ProvidersUnavailable,
    PruneSkipped,
    PruneTimeout,
    Pruned,
    Pushed,
    PushingContext,
    Queued,
    QuotaRefused,
    RandomSourceUnavailable,
    RecordForged,
    RecordLost,
    RecordUnavailable,
    RecordUnreadable,
    RegistryClientUnusable,
    RegistryError,
    RegistryForbidden,
    RegistryIdentityNotAllowed,
    RegistryRateLimited,
    RegistryTls,
    RegistryUnauthorized,
    RegistryUnreachable,
    RegistryUnsupported,
    Rejected,
    ReportInvalid,
    ReportNotRecorded,
    RepositoryEmpty,
    RepositoryNotFound,
    RepositoryTooLarge,
    RepositoryUnreachable,
    ResourceUnreadable,
    RestorePending,
    RestoreRequired,
    Restored,
    Retrying,
    RevisionMoved,
    RunCancelled,
    RunContainerError,
    RunDeadlineExceeded,
    RunRecordConflict,
    RunRecordMissing,
    Running,
    ScriptFailed,
    SecretKeyNotFound,
    SecretNotFound,
    ServiceAccountNotAllowed,
    ServiceAccountNotFound,
    SshKeyEncrypted,
    SshKeyInvalid,
    SshKeyMissing,
    StateConflict,
    StateDamaged,
    StateLocked,
    StateLost,
    StateNotRecovered,
    StateNotSaved,
    StateOwnershipConflict,
    StateUnavailable,
    StateUnreadable,
    SubmoduleUnusable,
    Suspended,
    SymlinkLeavesContext,
    TagNotFound,
    TerraformRegistryInvalid,
    TerraformRegistryUnauthorized,
    TerraformTokenInvalid,
    TimedOut,
    TooManyDependencies,
    Unknown,
    Unschedulable,
    ValueNotUTF8,
    VarFileNotFound,
    VariableUndeclared,
    VariablesInvalid,
    VolumeTerminating,
    WaitTimedOut,
    WaitingForDeletion,
    WaitingForUpstream,
    WorkspaceFailed,
    WorkspaceUnsupported,
    WrapperUnsupported,
}

/// Earlier names of renamed reasons, with the current reasons. Records, statuses and reports of earlier versions contain the earlier names.
const RENAMED: [(&str, Reason); 14] = [
    (
        "BuildIdentityElsewhere",
        Reason::BuildServiceAccountUnsupported,
    ),
    ("ClaimInTheWay", Reason::VolumeTerminating),
    ("EngineSwitch", Reason::EngineChangeNotAllowed),
    ("ExpressionLost", Reason::ExpressionAborted),
    ("InputsChanging", Reason::WaitingForUpstream),
    ("JobInTheWay", Reason::JobNameConflict),
    ("NotText", Reason::ValueNotUTF8),
    ("NothingKnown", Reason::RunRecordMissing),
    ("OutputsNotOurs", Reason::OutputsOwnershipConflict),
    ("PodLost", Reason::PodTerminated),
    ("Random", Reason::RandomSourceUnavailable),
    ("RecordInTheWay", Reason::RunRecordConflict),
    ("RunOverdue", Reason::RunDeadlineExceeded),
    ("StateNotOurs", Reason::StateOwnershipConflict),
];

/// Result of [`bounded`] for a reason that is not a [`Reason`].
pub const OTHER: &str = "Other";

impl Reason {
    /// Every reason, sorted.
    pub const VARIANTS: &'static [Self] = <Self as strum::VariantArray>::VARIANTS;

    /// Returns the reason as a string, for storage and display.
    pub const fn as_str(self) -> &'static str {
        self.into_str()
    }

    /// Parses a stored reason. Accepts the names that earlier versions of the operator stored.
    pub fn from_stored(reason: &str) -> Option<Self> {
        RENAMED
            .iter()
            .find(|(earlier, _)| *earlier == reason)
            .map_or_else(|| reason.parse().ok(), |(_, current)| Some(*current))
    }
}

/// Returns the current name of `reason` if it is a [`Reason`], else [`OTHER`]. Bounds the cardinality of metric labels: the reason of a pod
/// that does not start comes from Kubernetes, and may be any string.
pub fn bounded(reason: &str) -> &'static str {
    Reason::from_stored(reason).map_or(OTHER, Reason::as_str)
}

/// Returns the current name of a stored reason. Returns other strings unchanged.
pub fn current(reason: &str) -> &str {
    Reason::from_stored(reason).map_or(reason, |current| current.as_str())
}

/// Returns the earlier name of a renamed reason, and other reasons unchanged. Ids of notifications contain this name, so that an upgrade
/// which renames a reason does not send a notification again.
pub fn earlier(reason: &str) -> &str {
    RENAMED
        .iter()
        .find(|(_, current)| current.as_str() == reason)
        .map_or(reason, |(earlier, _)| earlier)
}

/// Deserializes a stored reason with its current name.
pub(crate) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<String, D::Error> {
    String::deserialize(from).map(|reason| current(&reason).to_owned())
}

impl From<Reason> for String {
    fn from(reason: Reason) -> Self {
        reason.as_str().to_owned()
    }
}

impl PartialEq<Reason> for String {
    fn eq(&self, other: &Reason) -> bool {
        self == other.as_str()
    }
}

/// A [`Reason`] or a stored reason. Not implemented for `&str`, so that code cannot use a string literal as a reason.
pub trait ReasonText: Into<String> {}

impl ReasonText for Reason {}
impl ReasonText for String {}
impl ReasonText for &String {}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::Failure;
    use crate::run::Failures;

    #[test]
    fn unknown_reason_is_reported_as_other() {
        assert_eq!(bounded("StateLost"), "StateLost");
        assert_eq!(bounded("SomethingOfKubelet"), OTHER);
        assert!(Reason::VARIANTS.is_sorted_by_key(|reason| reason.as_str()));
    }

    #[test]
    fn earlier_names_in_records_and_reports_are_replaced() {
        for (before, reason) in RENAMED {
            let stored = serde_json::json!({"class": "User", "reason": before, "message": ""});
            let failure: Failure = serde_json::from_value(stored.clone()).unwrap();
            assert_eq!(failure.reason, reason);
            let failures: Failures = serde_json::from_value(stored).unwrap();
            assert_eq!(failures.reason, reason);
            assert_eq!(bounded(before), reason.as_str());
            assert_eq!([earlier(before), earlier(reason.as_str())], [before; 2]);
        }
        let other = "SomethingOfKubelet";
        assert_eq!([current(other), earlier(other)], [other; 2]);
    }
}
