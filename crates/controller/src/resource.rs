//! `Terraform` resources as the watch delivers them, and their names.

use std::sync::Arc;

use alustan_api::{Terraform, labels};
use kube::ResourceExt;
use kube::core::DeserializeGuard;
use kube::runtime::reflector::ObjectRef;

/// A resource that may be unreadable: one of those does not stop the watch of the others.
pub(crate) type Guarded = DeserializeGuard<Terraform>;

/// The name of a resource.
pub(crate) type Ref = ObjectRef<Guarded>;

/// Those of `all` that can be read.
pub(crate) fn readable(all: &[Arc<Guarded>]) -> impl Iterator<Item = &Terraform> {
    all.iter().filter_map(|it| it.0.as_ref().ok())
}

/// Whether `object` was made for `tf`: not by somebody else, and not for an earlier resource of the
/// same name. Of objects elsewhere only builds are, and what is lent to them.
pub(crate) fn is_made_for(tf: &Terraform, object: &impl ResourceExt) -> bool {
    object.labels().get(labels::UID) == tf.metadata.uid.as_ref()
        && object.namespace() == tf.namespace()
}
