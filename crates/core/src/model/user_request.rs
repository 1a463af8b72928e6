//! Annotations with which users request actions.

use alustan_api::run::History;
use alustan_api::{CANCEL_RUN, Terraform};
use kube_core::ResourceExt;

use crate::model::progress;

/// Maximum size of the value of an annotation in run record, status and logs, in bytes.
const MAX_REQUEST: usize = 64;

/// Returns the value of annotation `name`, truncated to [`MAX_REQUEST`] bytes.
pub(crate) fn value(tf: &Terraform, name: &str) -> Option<String> {
    let value = tf.annotations().get(name)?;
    Some(progress::truncate(value, MAX_REQUEST))
}

/// Returns the value of annotation `alustan.io/cancel-run`, truncated, if it has not been processed yet.
pub(crate) fn cancellation(tf: &Terraform, history: &History) -> Option<String> {
    value(tf, CANCEL_RUN).filter(|value| history.cancel_run.as_ref() != Some(value))
}
