//! Observation of the objects that the spec names: value sources, dependencies, dependents and tests (`waitFor`, `destroyWaitFor`,
//! `healthChecks`).

use std::collections::BTreeMap;

use alustan_api::ObjectKey;
use alustan_api::report::Failure;
use k8s_openapi::jiff::SignedDuration;
use serde_json::Value;

/// Value sources (`spec.variablesFrom`), dependencies, dependents and tests (`waitFor`, `destroyWaitFor`, `healthChecks`) of a resource.
#[derive(Clone, Default)]
pub struct StackSeen {
    /// Values of `spec.variablesFrom`.
    pub variables: VariablesSeen,
    /// Versions of the outputs that the resource uses, by upstream resource. A version is uid and `resourceVersion` of the outputs Secret.
    pub versions: BTreeMap<ObjectKey, String>,
    /// Name of an upstream resource whose outputs may change soon. The resource waits for the new outputs.
    pub changing: Option<String>,
    /// Resources that the resource depends on.
    pub dependencies: Vec<DependencySeen>,
    /// Names of the dependents; set only for a deleted resource.
    pub dependents: Vec<String>,
    /// Results of the tests in `spec.waitFor`.
    pub wait_for: Vec<TestSeen>,
    /// Results of the tests in `spec.destroyWaitFor`; set only for a deleted resource.
    pub destroy_wait_for: Vec<TestSeen>,
    /// Results of the tests in `spec.healthChecks`.
    pub health_checks: Vec<TestSeen>,
    /// Whether the spec names an object that the operator does not watch. The operator polls such an object (rule 14).
    pub unwatched: bool,
}

/// Values of `spec.variablesFrom`.
#[derive(Clone, Default)]
pub struct VariablesSeen {
    /// Values of the entries whose source objects exist, in the order of the spec.
    pub found: Vec<FoundInput>,
    /// Failure of the first entry whose source object or value does not exist.
    pub missing: Option<Failure>,
}

/// Values of one entry of `spec.variablesFrom`.
#[derive(Clone, PartialEq, Eq)]
pub struct FoundInput {
    /// Source object: `Secret db`, `Terraform network`, `Ingress shop/web`.
    pub of: String,
    /// Values by name of the variable.
    pub values: BTreeMap<String, FoundValue>,
    /// Whether a change of the values starts a run.
    pub trigger: bool,
}

/// One value of `spec.variablesFrom`.
#[derive(Clone, PartialEq, Eq)]
pub struct FoundValue {
    /// Value of the variable.
    pub value: Value,
    /// Whether the value is secret (rule 15).
    pub secret: bool,
}

/// A dependency of a resource.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DependencySeen {
    /// Field with the reference: `spec.dependsOn[0]`.
    pub field: String,
    /// Name of the dependency, prefixed by its namespace if the dependency is in another namespace: `shop/web`.
    pub name: String,
    /// Readiness of the dependency.
    pub readiness: Readiness,
}

/// Readiness of a resource for its dependents.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Readiness {
    /// The resource does not exist.
    Missing,
    /// The resource is not ready, or is being deleted.
    NotReady {
        /// Reason of condition `Ready`; `Deleted` during a deletion; `AwaitingProcessing` if the resource has no status or was Ready at an
        /// earlier generation.
        reason: String,
        /// Message of condition `Ready`, or a text that says that the resource is being deleted or that its status is missing or outdated.
        message: String,
    },
    /// The resource is ready at its current generation.
    Ready,
}

/// Result of a test in `spec.waitFor`, `spec.destroyWaitFor` or `spec.healthChecks`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TestSeen {
    /// Field with the test: `spec.waitFor[0]`.
    pub field: String,
    /// Time after which a failing test times out.
    pub timeout: SignedDuration,
    /// `Ok` if the test passes, otherwise the failure.
    pub result: Result<(), Failure>,
}
