//! Selectors of the objects that resources refer to.

use kube::api::ListParams;

/// Selects objects of one kind in one namespace.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct ObjectSelector {
    /// For example `apps/v1`.
    pub(crate) api_version: String,
    /// For example `Deployment`.
    pub(crate) kind: String,
    /// Namespace, if the kind is namespaced.
    pub(crate) namespace: String,
    /// Name or labels of the objects.
    pub(crate) objects: NameOrLabels,
}

/// Selects objects by name or by labels.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum NameOrLabels {
    /// Object with this name.
    Name(String),
    /// Objects that a label selector selects; an empty selector selects all objects.
    Labels(String),
}

impl ObjectSelector {
    /// Describes the selected objects for a message: `Ingress web`, `Ingress other/* with app=web`. Omits the namespace if it is `here`.
    pub(crate) fn describe(&self, here: &str) -> String {
        let namespace_prefix = if self.namespace == here {
            String::new()
        } else {
            format!("{}/", self.namespace)
        };
        match &self.objects {
            NameOrLabels::Name(name) => format!("{} {namespace_prefix}{name}", self.kind),
            NameOrLabels::Labels(labels) if labels.is_empty() => {
                format!("{} {namespace_prefix}*", self.kind)
            }
            NameOrLabels::Labels(labels) => {
                format!("{} {namespace_prefix}* with {labels}", self.kind)
            }
        }
    }

    /// Returns the parameters of a list call.
    pub(super) fn parameters(&self) -> ListParams {
        match &self.objects {
            NameOrLabels::Name(name) => {
                ListParams::default().fields(&format!("metadata.name={name}"))
            }
            NameOrLabels::Labels(labels) => ListParams::default().labels(labels),
        }
    }
}
