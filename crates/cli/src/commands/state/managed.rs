//! Run record of a resource with a managed state.

use alustan_api::ObjectKey;
use alustan_api::Terraform;

use crate::cluster::Cluster;
use crate::error::Error;
use crate::record::RecordHandle;

/// Returns the run record of `tf`.
///
/// # Errors
/// If the state of `tf` is not managed.
pub(super) async fn managed(cluster: &Cluster, tf: &Terraform) -> Result<RecordHandle, Error> {
    let record = RecordHandle::of(cluster, tf);
    if record.is_managed(tf).await? {
        return Ok(record);
    }
    let status = tf.status.as_ref();
    let address = status.and_then(|status| status.state_address.as_deref());
    let is_chosen = tf
        .spec
        .backend
        .as_ref()
        .is_some_and(|backend| backend.provider.is_some());
    if address.is_none() && !is_chosen {
        return Err(Error::Refused(format!(
            "the location of the state of {} is not known yet: no run has reported it",
            ObjectKey::of(tf)
        )));
    }
    let source = tf.spec.module_source();
    let folder = source.map_or_else(String::new, |source| source.working_copy());
    Err(Error::Refused(format!(
        "the state of {} is not a managed state ({}). Use `terraform state` in {folder}, \
         with the credentials of the backend",
        ObjectKey::of(tf),
        address.unwrap_or("location not known yet")
    )))
}
