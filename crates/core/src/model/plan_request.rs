//! Plans that annotation `alustan.io/plan-at` requests.

use alustan_api::run::History;
use alustan_api::{PLAN_AT, Terraform};
use kube_core::ResourceExt;

use crate::model::progress;

/// Maximum size of the value of the annotation in run record, status and logs, in bytes.
const MAX_REQUEST: usize = 64;

/// Returns the value of annotation `alustan.io/plan-at`, truncated to [`MAX_REQUEST`] bytes, if it requests a plan that has not started yet.
pub fn requested_plan(tf: &Terraform, history: &History) -> Option<String> {
    let value = tf.annotations().get(PLAN_AT)?;
    let value = progress::truncate(value, MAX_REQUEST);
    (history.plan_at.as_ref() != Some(&value)).then_some(value)
}
