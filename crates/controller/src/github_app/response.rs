//! Responses of GitHub to the request for a token. Performs no I/O.

use alustan_api::Reason;
use alustan_api::report::{Failure, FailureClass};
use alustan_core::observed::GitToken;
use k8s_openapi::jiff::{SignedDuration, Timestamp};
use serde::Deserialize;

use crate::github_app::{APP_ID, BASE_URL, GitHubApp, INSTALLATION_ID, PRIVATE_KEY};

/// Maximum size of a token, in bytes. Tokens of GitHub have 40 to 520 characters.
const MAX_TOKEN_BYTES: usize = 2048;
/// Maximum lifetime of a token. A later expiry is not believed.
const MAX_LIFETIME: SignedDuration = SignedDuration::from_hours(1);
/// Maximum length of a message of GitHub in a condition.
const MAX_MESSAGE_CHARS: usize = 200;
/// Delay after a rate limit without the time of the next request.
const RATE_LIMIT_DELAY: SignedDuration = SignedDuration::from_mins(1);
/// Maximum delay after a rate limit.
const MAX_DELAY: SignedDuration = SignedDuration::from_hours(1);

/// Token of an installation.
#[derive(Clone)]
pub(crate) struct Token {
    pub(super) value: GitToken,
    pub(super) expires_at: Timestamp,
}

/// Why a token was not created.
#[derive(Debug)]
pub(crate) struct TokenFailure {
    pub(super) failure: Failure,
    /// Time before which GitHub refuses further requests.
    pub(super) not_before: Option<Timestamp>,
}

impl From<Failure> for TokenFailure {
    fn from(failure: Failure) -> Self {
        Self {
            failure,
            not_before: None,
        }
    }
}

/// Response to the request for a token.
#[derive(Default)]
pub(super) struct TokenResponse {
    pub(super) status: u16,
    /// Value of `retry-after`.
    pub(super) retry_after: Option<String>,
    /// Value of `x-ratelimit-remaining`.
    pub(super) remaining: Option<String>,
    /// Value of `x-ratelimit-reset`.
    pub(super) reset: Option<String>,
    pub(super) body: Vec<u8>,
}

#[derive(Deserialize)]
struct Created {
    token: String,
    expires_at: String,
}

#[derive(Default, Deserialize)]
struct Refused {
    #[serde(default)]
    message: String,
}

impl TokenResponse {
    /// Returns the token in the response to a request that `jwt` authenticated.
    ///
    /// # Errors
    /// The failure with the message of GitHub, in which `jwt` is masked.
    pub(super) fn read(
        &self,
        app: &GitHubApp,
        jwt: &str,
        now: Timestamp,
    ) -> Result<Token, TokenFailure> {
        if self.status == 201 {
            return self.token(app, now).map_err(TokenFailure::from);
        }
        let message = self.message(jwt);
        if self.is_rate_limited(&message) {
            let next = self.next_request(now);
            let why = format!(
                "GitHub rate-limits the App until {}{}",
                next.strftime("%Y-%m-%dT%H:%M:%SZ"),
                in_brackets(&message)
            );
            let failure = app.failure(FailureClass::Transient, Reason::GitRateLimited, &why);
            return Err(TokenFailure {
                failure,
                not_before: Some(next),
            });
        }
        Err(self.refusal(app, &message).into())
    }

    fn token(&self, app: &GitHubApp, now: Timestamp) -> Result<Token, Failure> {
        let unusable = |why: &str| app.failure(FailureClass::User, Reason::GitFailed, why);
        let created: Created = serde_json::from_slice(&self.body).map_err(|_| {
            unusable("the response has no token: check that githubAppBaseURL is the URL of the API")
        })?;
        let is_plain = created.token.bytes().all(|byte| byte.is_ascii_graphic());
        if created.token.is_empty() || created.token.len() > MAX_TOKEN_BYTES || !is_plain {
            return Err(unusable(
                "the token in the response is not a token of GitHub",
            ));
        }
        let expires_at: Timestamp = created
            .expires_at
            .parse()
            .map_err(|_| unusable("the response has no time at which the token expires"))?;
        Ok(Token {
            value: GitToken::new(created.token),
            expires_at: expires_at.min(now + MAX_LIFETIME),
        })
    }

    /// Returns the message of GitHub: one line of at most [`MAX_MESSAGE_CHARS`] characters.
    fn message(&self, jwt: &str) -> String {
        let refused: Refused = serde_json::from_slice(&self.body).unwrap_or_default();
        let masked = refused.message.replace(jwt, "***");
        let line = masked.split_whitespace().collect::<Vec<_>>().join(" ");
        let plain = line.chars().filter(|c| !c.is_control());
        plain.take(MAX_MESSAGE_CHARS).collect()
    }

    fn is_rate_limited(&self, message: &str) -> bool {
        let is_exhausted = self.remaining.as_deref() == Some("0")
            || self.retry_after.is_some()
            || message.to_lowercase().contains("rate limit");
        self.status == 429 || self.status == 403 && is_exhausted
    }

    /// Returns the time of the next request after a rate limit.
    fn next_request(&self, now: Timestamp) -> Timestamp {
        let number = |text: &Option<String>| text.as_ref()?.trim().parse::<i64>().ok();
        let after = number(&self.retry_after).map(SignedDuration::from_secs);
        let reset = number(&self.reset).and_then(|reset| Timestamp::from_second(reset).ok());
        let delay = after
            .or_else(|| Some(reset?.duration_since(now)))
            .unwrap_or(RATE_LIMIT_DELAY);
        now + delay.clamp(SignedDuration::from_secs(1), MAX_DELAY)
    }

    fn refusal(&self, app: &GitHubApp, message: &str) -> Failure {
        use FailureClass::{Transient, User};
        let status = self.status;
        let secret = &app.secret;
        let refused = |advice: String| {
            let why = format!("status {status}{}; {advice}", in_brackets(message));
            (User, Reason::GitAuthenticationFailed, why)
        };
        let (class, reason, why) = match status {
            401 => refused(format!(
                "check {APP_ID} and {PRIVATE_KEY} in Secret {secret}: the key must be one of this App. \
                 Check the clock of the operator, too: GitHub refuses signatures from the future"
            )),
            404 => refused(format!(
                "the installation does not exist: check {INSTALLATION_ID} and {APP_ID} in Secret \
                 {secret}, and install the App again if it was uninstalled"
            )),
            403 if message.to_lowercase().contains("suspended") => refused(
                "the installation is suspended: unsuspend it in the settings of its owner".to_owned(),
            ),
            403 => refused(
                "grant the App the repository permission `Contents: Read-only`, and accept the new \
                 permissions in the installation"
                    .to_owned(),
            ),
            422 => refused(format!(
                "the installation must have access to the repositories {}, and the repository \
                 permission `Contents: Read-only`",
                app.repositories.join(", ")
            )),
            300..=399 => (
                User,
                Reason::InvalidGitHubApp,
                format!("status {status}: the API redirects; correct {BASE_URL} in Secret {secret}"),
            ),
            408 | 500.. => (
                Transient,
                Reason::RepositoryUnreachable,
                format!("status {status}{}", in_brackets(message)),
            ),
            _ => (
                User,
                Reason::GitFailed,
                format!("status {status}{}", in_brackets(message)),
            ),
        };
        app.failure(class, reason, &why)
    }
}

fn in_brackets(message: &str) -> String {
    if message.is_empty() {
        String::new()
    } else {
        format!(" ({message})")
    }
}
