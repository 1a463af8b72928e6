//! Namespace and name of a resource.

use std::fmt;

use kube_core::ResourceExt;

use crate::Terraform;

/// Namespace and name of a resource.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ObjectKey {
    /// Namespace, an RFC 1123 label.
    pub namespace: String,
    /// Name, an RFC 1123 subdomain.
    pub name: String,
}

impl ObjectKey {
    /// Returns the key of `tf`.
    pub fn of(tf: &Terraform) -> Self {
        Self::new(tf.namespace().unwrap_or_default(), tf.name_any())
    }

    /// Builds a key from its parts.
    pub fn new(namespace: impl Into<String>, name: impl Into<String>) -> Self {
        Self {
            namespace: namespace.into(),
            name: name.into(),
        }
    }

    /// Formats the key for messages to users of namespace `namespace`: the name alone for a resource in this namespace, otherwise
    /// `namespace/name`.
    pub fn seen_from(&self, namespace: &str) -> String {
        if self.namespace == namespace {
            self.name.clone()
        } else {
            self.to_string()
        }
    }
}

impl fmt::Display for ObjectKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}
