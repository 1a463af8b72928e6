//! What was seen of the objects that a resource takes values from, waits for, or stands before.

use std::collections::BTreeMap;
use std::fmt;

use alustan_api::Terraform;
use alustan_api::report::Failure;
use k8s_openapi::jiff::SignedDuration;
use kube::ResourceExt;
use serde_json::Value;

/// What was seen of a resource's stack.
#[derive(Clone, Default)]
pub struct StackSeen {
    /// What `spec.variablesFrom` finds.
    pub variables: VariablesSeen,
    /// The versions of the outputs that it takes, by resource, see [`crate::upstream_changes`].
    pub versions: BTreeMap<Key, String>,
    /// A resource upstream whose outputs may change soon.
    pub changing: Option<String>,
    /// What it depends on.
    pub dependencies: Vec<DependencySeen>,
    /// Names of resources that depend on it, if it is deleted.
    pub dependents: Vec<String>,
    /// Tests of `spec.waitFor`.
    pub wait_for: Vec<TestSeen>,
    /// Tests of `spec.destroyWaitFor`, if it is deleted.
    pub destroy_wait_for: Vec<TestSeen>,
    /// Tests of `spec.healthChecks`.
    pub health_checks: Vec<TestSeen>,
}

/// What `spec.variablesFrom` finds.
#[derive(Clone, Default)]
pub struct VariablesSeen {
    /// What is there, in the order of the spec.
    pub found: Vec<FoundInput>,
    /// The first thing that is not.
    pub missing: Option<Failure>,
}

/// What one entry of `spec.variablesFrom` finds.
#[derive(Clone, PartialEq, Eq)]
pub struct FoundInput {
    /// Where: `Secret db`, `Terraform network`, `Ingress shop/web`.
    pub of: String,
    /// Values by variable.
    pub values: BTreeMap<String, FoundValue>,
    /// Whether a change is a reason to run.
    pub trigger: bool,
}

/// A value that was found.
#[derive(Clone, PartialEq, Eq)]
pub struct FoundValue {
    /// The value.
    pub value: Value,
    /// Whether nobody may read it.
    pub secret: bool,
}

/// A resource that another one depends on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DependencySeen {
    /// The field that says so: `spec.dependsOn[0]`.
    pub field: String,
    /// Its name, with its namespace in front where that is another one.
    pub name: String,
    /// How it is.
    pub standing: Standing,
}

/// How a resource is for those that depend on it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Standing {
    /// There is none of that name.
    Missing,
    /// Not ready, or deleted.
    NotReady {
        /// The reason of its `Ready` condition.
        reason: String,
        /// What it says.
        message: String,
    },
    /// Ready, as it is described now.
    Ready,
}

/// A test of objects.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TestSeen {
    /// The field that wants it: `spec.waitFor[0]`.
    pub field: String,
    /// After how long it has failed for too long.
    pub timeout: SignedDuration,
    /// Why it fails.
    pub result: Result<(), Failure>,
}

/// Namespace and name of a resource.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
}

impl Key {
    /// The key of `tf`.
    pub fn of(tf: &Terraform) -> Self {
        Self::new(tf.namespace().unwrap_or_default(), tf.name_any())
    }

    /// A key.
    pub fn new(namespace: impl Into<String>, name: impl Into<String>) -> Self {
        Self {
            namespace: namespace.into(),
            name: name.into(),
        }
    }

    /// As it is told to a reader in the namespace `here`.
    pub fn seen_from(&self, here: &str) -> String {
        if self.namespace == here {
            self.name.clone()
        } else {
            self.to_string()
        }
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}
