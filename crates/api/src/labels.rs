//! Labels of everything the operator makes, so that people and the operator find it.

use std::collections::BTreeMap;

/// Label: always [`MANAGER`] on what the operator made.
pub const MANAGED_BY: &str = "app.kubernetes.io/managed-by";
/// Value of [`MANAGED_BY`].
pub const MANAGER: &str = "alustan";
/// Label: the `Terraform` resource an object belongs to.
pub const NAME: &str = "alustan.io/terraform";
/// Label: the namespace of that resource, on what takes part in a build in another.
pub const NAMESPACE: &str = "alustan.io/namespace";
/// Label: the uid of that resource, so that a resource made again under the same name is another.
pub const UID: &str = "alustan.io/uid";
/// Label: what the object is for, see [`Component`].
pub const COMPONENT: &str = "app.kubernetes.io/component";
/// Label of a build Job: the tag of the image that it builds.
pub const IMAGE_TAG: &str = "alustan.io/image-tag";
/// Label of a runner pod that may change real objects: `true`.
pub const CHANGES: &str = "alustan.io/changes";
/// Label of what holds the state of a resource that is gone, with what it manages left as it is: `true`.
pub const ORPHANED: &str = "alustan.io/orphaned";
/// Annotation of the run record of an earlier resource of the same name, set by `kubectl alustan restore`: uid of the resource to which
/// the operator binds the record.
pub const RESTORE_TO: &str = "alustan.io/restore-to";
/// Label of a namespace that holds what was applied: `true`.
pub const HOLDS_STATE: &str = "alustan.io/holds-state";
/// Annotation of a `ServiceAccount`, set by who owns it: `true` lets resources of its namespace have it
/// for their runs and builds.
pub const ALLOW_RUNS: &str = "alustan.io/allow-runs";
/// Annotation of an outputs Secret: which keys hold JSON and not text, separated by commas.
pub const JSON_OUTPUTS: &str = "alustan.io/json-outputs";
/// Annotation of an outputs Secret: which keys the module marks as sensitive, separated by commas.
pub const SENSITIVE_OUTPUTS: &str = "alustan.io/sensitive-outputs";
/// Annotation of a runner Job: digest of the inputs of its run.
pub const INPUTS: &str = "alustan.io/inputs";

/// Labels of runner images: what shows whose an image is, wherever it lies.
pub mod image {
    /// The uid of the namespace that it was built for; nobody else uses it.
    pub const NAMESPACE: &str = "io.alustan.namespace";
    /// The context that it was built from, by digest.
    pub const CONTEXT: &str = "io.alustan.context";
}

/// What an object is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Component {
    /// A builder Job and its pod.
    Build,
    /// A runner Job, its pod, and what they run with.
    Run,
    /// The run record.
    Record,
    /// What runs report.
    Report,
    /// What destroy needs.
    Pin,
    /// A plan as people read it.
    Plan,
    /// State of the managed backend.
    State,
    /// The cache volume.
    Cache,
    /// Outputs for others: a Secret, perhaps a `ConfigMap`.
    Outputs,
    /// A pull secret derived from the registry's.
    Registry,
    /// Credentials that are lent to a build in another namespace.
    Lent,
}

impl Component {
    /// The label's value.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Build => "build",
            Self::Run => "run",
            Self::Record => "record",
            Self::Report => "report",
            Self::Pin => "pin",
            Self::Plan => "plan",
            Self::State => "state",
            Self::Cache => "cache",
            Self::Outputs => "outputs",
            Self::Registry => "registry",
            Self::Lent => "lent",
        }
    }
}

/// The labels of an object that belongs to the resource `name` with `uid`.
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
