//! Errors of a request.

use axum::http::StatusCode;

/// Error of a request. The text is shown to the user.
#[derive(Debug, thiserror::Error)]
pub enum PageError {
    /// The user is not signed in, or the credentials expired.
    #[error("{0}")]
    SignInRequired(String),
    /// The user has no permission.
    #[error("{0}")]
    Forbidden(String),
    /// The object does not exist.
    #[error("{0}")]
    NotFound(String),
    /// The request is invalid.
    #[error("{0}")]
    Invalid(String),
    /// The object changed after the page was shown.
    #[error("{0}")]
    Conflict(String),
    /// The user has too many requests or streams.
    #[error("{0}")]
    TooMany(String),
    /// The API server does not answer.
    #[error("{0}")]
    Unavailable(String),
}

impl PageError {
    /// Returns the status code of the response.
    pub(crate) fn status(&self) -> StatusCode {
        match self {
            Self::SignInRequired(_) => StatusCode::UNAUTHORIZED,
            Self::Forbidden(_) => StatusCode::FORBIDDEN,
            Self::NotFound(_) => StatusCode::NOT_FOUND,
            Self::Invalid(_) => StatusCode::BAD_REQUEST,
            Self::Conflict(_) => StatusCode::CONFLICT,
            Self::TooMany(_) => StatusCode::TOO_MANY_REQUESTS,
            Self::Unavailable(_) => StatusCode::BAD_GATEWAY,
        }
    }

    /// Returns the error of a failed call to the API server. `action` names the call, for example `read Terraform team/web`.
    pub(crate) fn of_call(action: &str, error: kube::Error) -> Self {
        if matches!(error, kube::Error::SerdeError(_)) {
            return Self::Unavailable(format!(
                "failed to {action}: this version of the page cannot read the object: {error}"
            ));
        }
        if matches!(error, kube::Error::Auth(_)) {
            return Self::Unavailable(format!(
                "failed to {action}: the credentials of the kubeconfig cannot be obtained: {error}"
            ));
        }
        let kube::Error::Api(status) = error else {
            tracing::warn!(%error, action, "call to the API server failed");
            return Self::Unavailable(format!(
                "failed to {action}: the API server cannot be reached"
            ));
        };
        let text = format!("failed to {action}: {}", status.message);
        match status.code {
            401 => Self::SignInRequired(
                "the API server does not accept the credentials: sign in again".to_owned(),
            ),
            403 => Self::Forbidden(text),
            404 => Self::NotFound(text),
            409 => Self::Conflict(text),
            400 | 422 => Self::Invalid(text),
            429 => Self::TooMany(text),
            _ => Self::Unavailable(text),
        }
    }
}
