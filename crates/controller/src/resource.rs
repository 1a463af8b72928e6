//! `Terraform` resources as the watch delivers them, and references to them.

use std::sync::Arc;

use alustan_api::{Terraform, labels};
use kube::ResourceExt;
use kube::core::DeserializeGuard;
use kube::runtime::reflector::ObjectRef;

/// Resource that may be unreadable: such a resource does not stop the watch of the others.
pub(crate) type Guarded = DeserializeGuard<Terraform>;

/// Name and namespace of a resource.
pub(crate) type Ref = ObjectRef<Guarded>;

/// Returns the readable resources of `all`.
pub(crate) fn readable(all: &[Arc<Guarded>]) -> impl Iterator<Item = &Terraform> {
    all.iter().filter_map(|it| it.0.as_ref().ok())
}

/// Whether `object` was made for `tf`, not for another owner or an earlier resource of the same name. Objects in another namespace never
/// match.
pub(crate) fn is_made_for(tf: &Terraform, object: &impl ResourceExt) -> bool {
    object.labels().get(labels::UID) == tf.metadata.uid.as_ref()
        && object.namespace() == tf.namespace()
}
