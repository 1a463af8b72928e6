//! Status of a resource after a failed read or write.

use alustan_api::{Reason, State, Terraform, TerraformStatus};
use alustan_core::model::admission::limits_of;
use alustan_core::status::render::with_failure;

use crate::context::Context;
use crate::error::Error;

/// Returns the status after a failed read or write, with the cause. If the API server is unavailable, the status stays unchanged.
pub(crate) fn failure_status(
    ctx: &Context,
    tf: &Terraform,
    status: TerraformStatus,
    error: &Error,
) -> TerraformStatus {
    let is_building = status.state == State::Building;
    let own_namespace = tf.metadata.namespace.as_deref().unwrap_or_default();
    let namespace = if is_building {
        ctx.settings.build_namespace_of(tf)
    } else {
        own_namespace
    };
    let message = match error.reason() {
        Reason::ApiUnavailable => return tf.status.clone().unwrap_or(status),
        Reason::QuotaRefused | Reason::LimitRangeRefused => format!(
            "{}; retried within five minutes; see {}",
            error.chain(),
            limits_of(namespace)
        ),
        _ => error.chain(),
    };
    with_failure(tf, status, error.reason(), &message, ctx.clock.now())
}
