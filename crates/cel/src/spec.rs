//! Checks of all expressions in a spec.

use alustan_api::report::Failure;
use alustan_api::{Reason, TerraformSpec};

use crate::{Nothing, OBJECT, approval, check};

/// Returns the failure of the first invalid expression in `spec.approval.rules`, `spec.waitFor` or `spec.healthChecks`. The message
/// names the field. Each expression is parsed in a new thread, so callers cache the result per generation.
pub fn invalid_expression(spec: &TerraformSpec) -> Option<Failure> {
    if let Err(error) = approval::check(&spec.approval.rules) {
        return Some(Failure::user(Reason::InvalidRule, error.to_string()));
    }
    let wait_for = spec.wait_for.iter().map(|test| &test.cel);
    let health_checks = spec.health_checks.iter().map(|test| &test.cel);
    (wait_for.enumerate().map(|test| ("waitFor", test)))
        .chain(health_checks.enumerate().map(|test| ("healthChecks", test)))
        .find_map(|(list, (index, expression))| {
            let expression = expression.as_ref()?;
            let Err(Nothing::Invalid(error)) = check(expression, OBJECT) else {
                return None;
            };
            let message = format!("spec.{list}[{index}].cel: {error}: {expression}");
            Some(Failure::user(Reason::InvalidExpression, message))
        })
}
