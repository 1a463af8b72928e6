//! Labels and annotations of objects that the operator creates, and of objects that it reads.

use std::collections::BTreeMap;

/// Label of every object that the operator creates. Its value is [`MANAGER`].
pub const MANAGED_BY: &str = "app.kubernetes.io/managed-by";
/// Value of [`MANAGED_BY`].
pub const MANAGER: &str = "alustan";
/// Label with the name of the owning `Terraform` resource.
pub const NAME: &str = "alustan.io/terraform";
/// Label with the namespace of the owning resource. Set on objects of a build whose Job is not in this namespace.
pub const NAMESPACE: &str = "alustan.io/namespace";
/// Label with the uid of the owning resource. It distinguishes a resource from an earlier one of the same name.
pub const UID: &str = "alustan.io/uid";
/// Label with the role of the object, see [`Component`].
pub const COMPONENT: &str = "app.kubernetes.io/component";
/// Label of a build Job: tag of the image that it builds.
pub const IMAGE_TAG: &str = "alustan.io/image-tag";
/// Label of a build Job: digest of the options of its pod. Missing without options.
pub const POD_OPTIONS: &str = "alustan.io/pod-options";
/// Label of a run pod that may change real objects. Its value is `true`.
pub const CHANGES: &str = "alustan.io/changes";
/// Label of an orphaned object: it was left in place on deletion of the owning resource, for example a Secret with the state. Its value is
/// `true`.
pub const ORPHANED: &str = "alustan.io/orphaned";
/// Annotation that `kubectl alustan restore` sets on the run record of an earlier resource. Its value is the uid of the new resource with
/// the same name. The operator assigns the run record to the new resource.
pub const RESTORE_TO: &str = "alustan.io/restore-to";
/// Label of a namespace with applied resources or orphaned states. Its value is `true`. The policy `alustan-namespaces-with-state` refuses
/// the deletion of such a namespace.
pub const HOLDS_STATE: &str = "alustan.io/holds-state";
/// Annotation that users set on a `ServiceAccount`. With value `true`, resources of its namespace may use the `ServiceAccount` for runs and
/// builds.
pub const ALLOW_RUNS: &str = "alustan.io/allow-runs";
/// Annotation that users set on a `PersistentVolumeClaim`. With value `true`, resources of its namespace may use it as shared cache volume.
pub const ALLOW_CACHE: &str = "alustan.io/allow-cache";
/// Annotation of an outputs Secret: comma-separated keys whose values are JSON. The values of other keys are text.
pub const JSON_OUTPUTS: &str = "alustan.io/json-outputs";
/// Annotation of an outputs Secret: comma-separated keys of the outputs that the module marks as sensitive.
pub const SENSITIVE_OUTPUTS: &str = "alustan.io/sensitive-outputs";
/// Annotation of a run Job: digest of the inputs of its run.
pub const INPUTS: &str = "alustan.io/inputs";

/// Annotation of a `TerraformRun`: end time of the last run that it records.
pub const WRITTEN_AT: &str = "alustan.io/written-at";

/// Annotation of a `TerraformRun`: its size in bytes. 0 if its texts were removed because of `--run-history-bytes`.
pub const BYTES: &str = "alustan.io/bytes";

/// Label of pods with the name of their Job
/// (<https://kubernetes.io/docs/reference/labels-annotations-taints/#batchkubernetesio-job-name>).
pub const JOB_NAME: &str = "batch.kubernetes.io/job-name";

/// Labels in the configuration of runner images. The operator reads them from the registry, to find the namespace and the context that an image was
/// built for.
pub mod image {
    /// Uid of the namespace that the image was built for. Only this namespace uses the image.
    pub const NAMESPACE: &str = "io.alustan.namespace";
    /// Reference of the context that the image was built from, by digest: `REPOSITORY@DIGEST`.
    pub const CONTEXT: &str = "io.alustan.context";
}

/// Role of an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Component {
    /// Build Job and its pod.
    Build,
    /// Run Job, its pod, and the objects that the pod needs.
    Run,
    /// Run record.
    Record,
    /// Run report.
    Report,
    /// `TerraformRun` of a finished run.
    History,
    /// Pin.
    Pin,
    /// Text of a plan that waits for approval.
    Plan,
    /// State of the managed backend.
    State,
    /// Cache volume.
    Cache,
    /// Secret and `ConfigMap` with outputs.
    Outputs,
    /// Pull secret, derived from the Secret in `spec.containerRegistry.secretRef`.
    Registry,
    /// Job that empties the directory of a resource in a shared cache volume, and its pod.
    EmptyCache,
    /// Temporary Secret with the credentials of a build whose Job is not in the namespace of the resource, or with the token of a GitHub App for
    /// a Job that executes `init`.
    BuildSecret,
}

impl Component {
    /// Returns the value of [`COMPONENT`].
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Build => "build",
            Self::Run => "run",
            Self::Record => "record",
            Self::Report => "report",
            Self::History => "history",
            Self::Pin => "pin",
            Self::Plan => "plan",
            Self::State => "state",
            Self::Cache => "cache",
            Self::Outputs => "outputs",
            Self::Registry => "registry",
            Self::EmptyCache => "empty-cache",
            // The value of build Secrets of previous versions.
            Self::BuildSecret => "lent",
        }
    }
}

/// Returns the labels of an object that the operator creates for the resource with `name` and `uid`.
pub fn of(name: &str, uid: &str, component: Component) -> BTreeMap<String, String> {
    BTreeMap::from(
        [
            (MANAGED_BY, MANAGER),
            (NAME, name),
            (UID, uid),
            (COMPONENT, component.as_str()),
        ]
        .map(|(key, value)| (key.to_owned(), value.to_owned())),
    )
}
