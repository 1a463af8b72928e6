//! Calls to the API server with a timeout.

use std::time::Duration;

use crate::error::PageError;

/// Time limit of one call.
const TIMEOUT: Duration = Duration::from_secs(20);

/// Executes `call`. `action` names the operation in errors, for example `read Terraform team/web`.
///
/// # Errors
/// If the API server refuses the call or does not answer in time.
pub(crate) async fn call<T>(
    action: &str,
    call: impl Future<Output = Result<T, kube::Error>>,
) -> Result<T, PageError> {
    match tokio::time::timeout(TIMEOUT, call).await {
        Ok(result) => result.map_err(|error| PageError::of_call(action, error)),
        Err(_) => Err(PageError::Unavailable(format!(
            "failed to {action}: the API server did not answer within {} s",
            TIMEOUT.as_secs()
        ))),
    }
}
