//! `POST /hooks/{github,gitlab,generic}`: polls a repository immediately after a push, not at the next interval.

mod payload;

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use alustan_api::Reason;
use anyhow::Context as _;
use axum::Router;
use axum::extract::{Request, State};
use axum::http::header::{CONTENT_TYPE, RETRY_AFTER};
use axum::http::{HeaderMap, HeaderName, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use k8s_openapi::jiff::Timestamp;
use parking_lot::Mutex;
use reqwest::{Client, redirect};
use ring::digest::{self, digest};
use serde_json::{Value, json};
use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;
use tracing::{info, warn};

pub(crate) use payload::{Push, Sender};

use super::request_body::{BodyBudget, BodyError};
use super::shared_secrets::secrets_in;
use crate::error::with_causes;
use crate::leader::Leader;
use crate::response_body;
use crate::standard_webhooks::{self, SharedSecret};

/// Maximum size of a message, in bytes. A message of GitHub lists at most 2048 commits of a push.
const MAX_BODY_BYTES: usize = 5 << 20;

/// Time during which a repeated message is ignored.
const DUPLICATE_WINDOW: Duration = Duration::from_mins(10);

/// Maximum number of remembered messages. Repeating a forgotten message may cause one additional poll of its repository.
const MAX_REMEMBERED: usize = 10_000;

/// Maximum time that a response waits for the controller, which may still be starting, or for the leader.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(5);

/// Maximum size of the response of the leader, in bytes.
const MAX_LEADER_RESPONSE_BYTES: usize = 64 << 10;

/// A push, and the channel for the number of affected resources.
pub(crate) type PushRequest = (Push, oneshot::Sender<usize>);

/// Headers that a replica forwards to the leader: content type, message ids, signatures, tokens and event types.
const FORWARDED_HEADERS: [&str; 9] = [
    "content-type",
    "webhook-id",
    "webhook-timestamp",
    "webhook-signature",
    "x-github-event",
    "x-gitlab-event",
    "x-gitlab-event-uuid",
    "x-gitlab-token",
    "x-hub-signature-256",
];

/// Header of forwarded messages. A message with this header is not forwarded again.
const FORWARDED_MARKER: &str = "alustan-replica";

/// Delay after which the sender should retry a message that no replica could accept, in seconds. By then, another replica has become the leader.
const RETRY_AFTER_SECONDS: &str = "20";

/// State of the `/hooks` endpoints.
#[derive(Clone)]
pub(crate) struct WebhookEndpoints {
    secrets: Option<PathBuf>,
    pushes: mpsc::Sender<PushRequest>,
    /// Time at which a message was accepted, by the SHA-256 of its identity (see [`verify`]).
    accepted_at: Arc<Mutex<HashMap<Vec<u8>, Instant>>>,
    budget: BodyBudget,
    leader: Leader,
    http: Client,
}

impl WebhookEndpoints {
    /// Accepts messages signed with a secret in the directory `secrets`. Sends their pushes to `pushes`, or forwards them to the
    /// leader. Without a directory, refuses all messages.
    pub(crate) fn new(
        secrets: Option<PathBuf>,
        pushes: mpsc::Sender<PushRequest>,
        leader: Leader,
    ) -> anyhow::Result<Self> {
        let http = Client::builder()
            .no_proxy()
            .timeout(RESPONSE_TIMEOUT)
            .redirect(redirect::Policy::none())
            .build();
        Ok(Self {
            secrets,
            pushes,
            accepted_at: Arc::default(),
            budget: BodyBudget::default(),
            leader,
            http: http.context("failed to create the HTTP client for /hooks")?,
        })
    }

    /// Returns whether `message` was accepted within [`DUPLICATE_WINDOW`].
    fn is_duplicate(&self, message: &[u8]) -> bool {
        let now = Instant::now();
        let mut accepted_at = self.accepted_at.lock();
        accepted_at.retain(|_, time| now.duration_since(*time) < DUPLICATE_WINDOW);
        accepted_at.contains_key(message)
    }

    fn remember(&self, message: Vec<u8>) {
        let mut accepted_at = self.accepted_at.lock();
        if accepted_at.len() >= MAX_REMEMBERED {
            accepted_at.clear();
        }
        accepted_at.insert(message, Instant::now());
    }
}

/// Returns the routes of `/hooks`, one for each [`Sender`].
pub(crate) fn router(hooks: WebhookEndpoints) -> Router {
    let route = |sender: Sender| {
        post(
            async move |State(hooks): State<WebhookEndpoints>, request: Request| {
                let result = handle(&hooks, sender, request).await;
                result.inspect_err(
                    |WebhookRefusal {
                         reason, message, ..
                     }| {
                        info!(?sender, reason, message, "refused a request to /hooks");
                    },
                )
            },
        )
    };
    Router::new()
        .route(Sender::Github.path(), route(Sender::Github))
        .route(Sender::Gitlab.path(), route(Sender::Gitlab))
        .route(Sender::Generic.path(), route(Sender::Generic))
        .with_state(hooks)
}

/// Error response to a message.
struct WebhookRefusal {
    status: StatusCode,
    reason: &'static str,
    message: String,
}

impl IntoResponse for WebhookRefusal {
    fn into_response(self) -> Response {
        let body = json!({"reason": self.reason, "message": self.message});
        let response = json_response(self.status, &body);
        match self.status {
            StatusCode::SERVICE_UNAVAILABLE => {
                ([(RETRY_AFTER, RETRY_AFTER_SECONDS)], response).into_response()
            }
            _ => response,
        }
    }
}

/// Reason in the response if no leader is reachable.
const NOT_LEADER: &str = Reason::NotLeader.as_str();

async fn handle(
    hooks: &WebhookEndpoints,
    sender: Sender,
    request: Request,
) -> Result<Response, WebhookRefusal> {
    let secrets = secrets(hooks.secrets.as_deref()).await?;
    let (parts, body) = request.into_parts();
    let headers = &parts.headers;
    let body = hooks.budget.receive(body, MAX_BODY_BYTES).await;
    let body = body.map_err(body_refusal)?;
    let body = body.bytes.as_slice();
    let message = verify(sender, headers, body, &secrets, Timestamp::now())?;
    let message = digest(&digest::SHA256, &message).as_ref().to_vec();
    if hooks.is_duplicate(&message) {
        return Ok(ignored("duplicate delivery"));
    }
    if let Some(event) = ignored_event(sender, headers) {
        return Ok(ignored(&format!("event {event} is not a push")));
    }
    if sender == Sender::Github && is_form(headers) {
        return Err(WebhookRefusal {
            status: StatusCode::UNSUPPORTED_MEDIA_TYPE,
            reason: "UnsupportedType",
            message: "the body is a form; set the content type of the webhook to application/json"
                .to_owned(),
        });
    }
    let push = payload::parse(sender, body).map_err(|message| WebhookRefusal {
        status: StatusCode::UNPROCESSABLE_ENTITY,
        reason: "InvalidPush",
        message,
    })?;
    if !hooks.leader.holds_lease() {
        return forward(hooks, sender, headers, body).await;
    }
    let resources = deliver(hooks, push).await.ok_or_else(|| WebhookRefusal {
        status: StatusCode::SERVICE_UNAVAILABLE,
        reason: "NotReady",
        message: "the operator is starting; retry the delivery".to_owned(),
    })?;
    hooks.remember(message);
    let response = json!({"resources": resources});
    Ok(json_response(StatusCode::ACCEPTED, &response))
}

fn body_refusal(error: BodyError) -> WebhookRefusal {
    match error {
        BodyError::TooSlow => WebhookRefusal {
            status: StatusCode::REQUEST_TIMEOUT,
            reason: "TooSlow",
            message: "the request body was not received within three seconds".to_owned(),
        },
        BodyError::TooLarge => WebhookRefusal {
            status: StatusCode::PAYLOAD_TOO_LARGE,
            reason: "TooLarge",
            message: format!("the request body exceeds {MAX_BODY_BYTES} bytes"),
        },
        BodyError::Broken(error) => WebhookRefusal {
            status: StatusCode::BAD_REQUEST,
            reason: "BrokenOff",
            message: format!("failed to receive the request body: {error}"),
        },
        BodyError::Busy => WebhookRefusal {
            status: StatusCode::SERVICE_UNAVAILABLE,
            reason: "Busy",
            message: "too many concurrent requests; retry the delivery".to_owned(),
        },
    }
}

/// Forwards a message to the leader, which verifies its signature as well.
async fn forward(
    hooks: &WebhookEndpoints,
    sender: Sender,
    headers: &HeaderMap,
    body: &[u8],
) -> Result<Response, WebhookRefusal> {
    let is_first_hop = !headers.contains_key(FORWARDED_MARKER);
    let Some(leader) = hooks.leader.address().filter(|_| is_first_hop) else {
        return Err(not_leader("no replica of the operator is the leader"));
    };
    let headers_to_forward = FORWARDED_HEADERS
        .iter()
        .filter_map(|name| Some((HeaderName::from_static(name), headers.get(*name)?.clone())));
    let request = hooks
        .http
        .post(format!("http://{leader}{}", sender.path()))
        .headers(headers_to_forward.collect())
        .header(FORWARDED_MARKER, "once")
        .body(body.to_vec())
        .send();
    let unreachable = |error: reqwest::Error| {
        let cause = with_causes(&error);
        not_leader(&format!(
            "failed to forward the request to the leader: {cause}"
        ))
    };
    let mut response = request.await.map_err(unreachable)?;
    let status = response.status();
    let response_body = response_body::read(&mut response, MAX_LEADER_RESPONSE_BYTES)
        .await
        .map_err(unreachable)?
        .ok_or_else(|| not_leader("the response of the leader is larger than 64 KiB"))?;
    Ok((status, [(CONTENT_TYPE, "application/json")], response_body).into_response())
}

/// Returns the refusal of a message if no leader is reachable. No push is lost: the next leader polls all repositories immediately.
fn not_leader(cause: &str) -> WebhookRefusal {
    let message = format!(
        "{cause}. The next leader polls all repositories immediately; retry the delivery in \
         {RETRY_AFTER_SECONDS} s"
    );
    warn!(message, "failed to handle a request to /hooks");
    WebhookRefusal {
        status: StatusCode::SERVICE_UNAVAILABLE,
        reason: NOT_LEADER,
        message,
    }
}

/// Sends a push to the controller. Returns the number of affected resources, or `None` if the controller does not respond.
async fn deliver(hooks: &WebhookEndpoints, push: Push) -> Option<usize> {
    let (reply, count) = oneshot::channel();
    let delivery = async {
        hooks.pushes.send((push, reply)).await.ok()?;
        count.await.ok()
    };
    tokio::time::timeout(RESPONSE_TIMEOUT, delivery)
        .await
        .ok()
        .flatten()
}

fn ignored(cause: &str) -> Response {
    json_response(StatusCode::OK, &json!({"ignored": cause}))
}

fn json_response(status: StatusCode, body: &Value) -> Response {
    let content_type = [(CONTENT_TYPE, "application/json")];
    (status, content_type, body.to_string()).into_response()
}

/// Reads the secrets that verify messages. Returns at least one secret.
async fn secrets(folder: Option<&Path>) -> Result<Vec<SharedSecret>, WebhookRefusal> {
    let unavailable = |reason, message: String| WebhookRefusal {
        status: StatusCode::SERVICE_UNAVAILABLE,
        reason,
        message,
    };
    let folder = folder.ok_or_else(|| {
        unavailable(
            "HooksOff",
            "--hook-secrets is not set; the operator cannot authenticate requests".to_owned(),
        )
    })?;
    let secrets = secrets_in(folder).await.map_err(|error| {
        warn!(
            folder = %folder.display(),
            error = with_causes(&error),
            "failed to read --hook-secrets"
        );
        unavailable(
            "SecretsUnreadable",
            "the operator failed to read --hook-secrets; see its log".to_owned(),
        )
    })?;
    if secrets.is_empty() {
        return Err(unavailable(
            "HooksOff",
            "the directory of --hook-secrets contains no secret".to_owned(),
        ));
    }
    Ok(secrets)
}

/// Verifies a message. Returns its identity, which is the same for repeated deliveries.
fn verify(
    sender: Sender,
    headers: &HeaderMap,
    body: &[u8],
    secrets: &[SharedSecret],
    now: Timestamp,
) -> Result<Vec<u8>, WebhookRefusal> {
    let header = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
    if let Some(signatures) =
        header(standard_webhooks::SIGNATURE).filter(|_| sender != Sender::Github)
    {
        let (id, at) = (
            header(standard_webhooks::ID),
            header(standard_webhooks::TIMESTAMP),
        );
        let at = at.and_then(|at| at.parse().ok());
        let (Some(id), Some(at)) = (id, at) else {
            return Err(invalid_signature(
                "header webhook-id or webhook-timestamp is missing or invalid",
            ));
        };
        if !standard_webhooks::is_recent(at, now) {
            return Err(invalid_signature(
                "header webhook-timestamp differs from the current time by more than five minutes: \
                 the message is old, or a clock is wrong",
            ));
        }
        return secrets
            .iter()
            .any(|secret| secret.has_valid_signature(signatures, id, at, body))
            .then(|| id.as_bytes().to_vec())
            .ok_or_else(|| {
                invalid_signature(
                    "header webhook-signature does not match any secret of --hook-secrets",
                )
            });
    }
    match sender {
        Sender::Github => {
            let tag = header("x-hub-signature-256")
                .and_then(|value| value.strip_prefix("sha256="))
                .and_then(|tag| hex::decode(tag).ok())
                .ok_or_else(|| {
                    invalid_signature(
                        "header x-hub-signature-256 is missing or is not a digest; set a secret \
                         for the webhook",
                    )
                })?;
            secrets
                .iter()
                .any(|secret| secret.has_valid_hmac(&tag, body))
                .then_some(tag)
                .ok_or_else(|| {
                    invalid_signature(
                        "header x-hub-signature-256 does not match any secret of --hook-secrets",
                    )
                })
        }
        Sender::Gitlab => {
            let token = header("x-gitlab-token").ok_or_else(|| {
                invalid_signature(
                    "headers webhook-signature and x-gitlab-token are missing; set a signing token \
                     for the webhook",
                )
            })?;
            let id = header("x-gitlab-event-uuid").unwrap_or_default();
            secrets
                .iter()
                .any(|secret| secret.matches_token(token.as_bytes()))
                .then(|| [id.as_bytes(), body].concat())
                .ok_or_else(|| {
                    invalid_signature(
                        "header x-gitlab-token does not match any secret of --hook-secrets",
                    )
                })
        }
        Sender::Generic => Err(invalid_signature(
            "header webhook-signature is missing; sign the request according to \
             https://www.standardwebhooks.com",
        )),
    }
}

fn invalid_signature(message: &str) -> WebhookRefusal {
    WebhookRefusal {
        status: StatusCode::UNAUTHORIZED,
        reason: "InvalidSignature",
        message: message.to_owned(),
    }
}

/// Returns whether the body is a form, which is the default content type of GitHub webhooks.
fn is_form(headers: &HeaderMap) -> bool {
    let content_type = headers
        .get(CONTENT_TYPE)
        .and_then(|value| value.to_str().ok());
    content_type.is_some_and(|value| value.starts_with("application/x-www-form-urlencoded"))
}

/// Returns the event type of a message that is not a push. `None`: the message is a push.
fn ignored_event(sender: Sender, headers: &HeaderMap) -> Option<&str> {
    let (header, pushes): (_, &[&str]) = match sender {
        Sender::Github => ("x-github-event", &["push"]),
        Sender::Gitlab => ("x-gitlab-event", &["Push Hook", "Tag Push Hook"]),
        Sender::Generic => return None,
    };
    let event = headers.get(header)?.to_str().ok()?;
    (!pushes.contains(&event)).then_some(event)
}

#[cfg(test)]
mod tests;
