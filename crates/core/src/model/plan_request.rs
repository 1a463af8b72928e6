//! Plans that annotation `alustan.io/plan-at` requests.

use alustan_api::run::History;
use alustan_api::{PLAN_AT, Terraform};

use crate::model::user_request;

/// Returns the value of annotation `alustan.io/plan-at`, truncated, if it requests a plan that has not started yet.
pub fn requested_plan(tf: &Terraform, history: &History) -> Option<String> {
    user_request::value(tf, PLAN_AT).filter(|value| history.plan_at.as_ref() != Some(value))
}
