//! `POST /sync`: the sync and the finalize hook of metacontroller's `CompositeController`.

use std::path::PathBuf;
use std::pin::Pin;
use std::sync::Arc;

use alustan_api::Reason;
use alustan_core::metacontroller::{
    HookRequest, HookResponse, MAX_REQUEST_BYTES, Refusal, entity_tag, is_known, read,
};
use axum::Router;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::header::{
    ALLOW, AUTHORIZATION, CONNECTION, CONTENT_TYPE, ETAG, IF_NONE_MATCH, RETRY_AFTER,
    WWW_AUTHENTICATE,
};
use axum::http::{HeaderMap, HeaderName, StatusCode, response};
use axum::response::Response;
use axum::routing::post;
use tracing::{debug, error};

use super::request_body::{BODY_TIMEOUT, BodyBudget, BodyError, RequestBody};
use super::shared_secrets::secrets_in;
use crate::args::Driver;
use crate::metacontroller::SyncHandler;
use crate::standard_webhooks::SharedSecret;

/// Value of `Retry-After` in responses with status 429, in seconds.
const RETRY_AFTER_SECONDS: &str = "2";

type ReconcileFuture = Pin<Box<dyn Future<Output = Result<HookResponse, Refusal>> + Send>>;

/// Authenticates requests and passes them to the reconciler.
#[derive(Clone)]
pub(super) struct SyncEndpoint {
    driver: Driver,
    tokens: Option<PathBuf>,
    budget: BodyBudget,
    reconcile: Arc<dyn Fn(HookRequest) -> ReconcileFuture + Send + Sync>,
}

impl SyncEndpoint {
    /// Accepts callers with a token in the directory `tokens`. Without a directory, accepts all callers, for example because TLS
    /// authenticates them.
    pub(super) fn new(
        driver: Driver,
        tokens: Option<PathBuf>,
        sync_handler: Arc<SyncHandler>,
    ) -> Self {
        Self {
            driver,
            tokens,
            budget: BodyBudget::default(),
            reconcile: Arc::new(move |request| Box::pin(sync_handler.clone().sync(request))),
        }
    }

    async fn answer(&self, request: Request) -> Result<Response, Refusal> {
        if self.driver == Driver::Native {
            let message = "this operator runs with --driver=native and reconciles resources \
                           without metacontroller. Delete the CompositeController, or start the \
                           operator with --driver=metacontroller";
            return Err(Refusal::new(409, "WrongDriver", message));
        }
        let (parts, body) = request.into_parts();
        self.authenticate(&parts.headers).await?;
        let sync_request = read(&self.json_body(&parts.headers, body).await?.bytes)?;
        let answer = (self.reconcile)(sync_request).await?;
        Ok(answer_response(&parts.headers, &answer))
    }

    async fn json_body(&self, headers: &HeaderMap, body: Body) -> Result<RequestBody, Refusal> {
        let content_type = headers
            .get(CONTENT_TYPE)
            .and_then(|value| value.to_str().ok());
        let content_type = content_type
            .and_then(|value| value.split(';').next())
            .map(str::trim);
        if !content_type.is_some_and(|value| value.eq_ignore_ascii_case("application/json")) {
            let message = "the content type is not application/json";
            return Err(Refusal::new(415, "UnsupportedType", message));
        }
        let body = self.budget.receive(body, MAX_REQUEST_BYTES).await;
        body.map_err(|error| match error {
            BodyError::TooSlow => {
                let message = format!("the request body was not received within {BODY_TIMEOUT:?}");
                Refusal::new(408, "TooSlow", message)
            }
            BodyError::TooLarge => {
                let message = format!(
                    "the request body exceeds {MAX_REQUEST_BYTES} bytes; remove spec.childResources \
                     and the customize hook of the CompositeController, which add objects to the \
                     request"
                );
                Refusal::new(413, "TooLarge", message)
            }
            BodyError::Broken(error) => {
                let message = format!("failed to receive the request body: {error}");
                Refusal::new(400, "InvalidRequest", message)
            }
            BodyError::Busy => Refusal::new(429, "Busy", "too many concurrent requests; retry"),
        })
    }

    async fn authenticate(&self, headers: &HeaderMap) -> Result<(), Refusal> {
        let Some(folder) = &self.tokens else {
            return Ok(());
        };
        let tokens = secrets_in(folder).await.map_err(|error| {
            let folder = folder.display();
            error!(
                %folder,
                %error,
                "failed to read --sync-token-dir; all requests to /sync are refused"
            );
            let message = "the operator failed to read its tokens (--sync-token-dir); see its log";
            Refusal::new(503, "NoTokens", message)
        })?;
        if has_token(&tokens, headers) {
            return Ok(());
        }
        let message = "header Authorization does not match any token of the operator \
                       (--sync-token-dir). Set authorization in the webhook of the \
                       CompositeController; metacontroller reads a changed Secret when it starts, \
                       or when the spec changes";
        Err(Refusal::new(401, "Unauthorized", message))
    }
}

/// Returns whether the bearer token in `headers` is one of `tokens`.
fn has_token(tokens: &[SharedSecret], headers: &HeaderMap) -> bool {
    let authorization = headers
        .get(AUTHORIZATION)
        .and_then(|value| value.to_str().ok());
    let authorization = authorization.and_then(|value| value.split_once(' '));
    authorization.is_some_and(|(scheme, bearer)| {
        let bearer = bearer.trim().as_bytes();
        scheme.eq_ignore_ascii_case("bearer")
            && tokens.iter().any(|token| token.matches_token(bearer))
    })
}

/// Builds the response. If `If-None-Match` shows that the caller has this answer, the response has status 304 and no body
/// (<https://metacontroller.github.io/metacontroller/api/hook.html#etag-reference>).
fn answer_response(headers: &HeaderMap, answer: &HookResponse) -> Response {
    let body = answer.body();
    let tag = entity_tag(&body);
    let known_tags = headers.get_all(IF_NONE_MATCH).iter();
    let mut known_tags = known_tags.filter_map(|value| value.to_str().ok());
    if known_tags.any(|known_tag| is_known(known_tag, &tag)) {
        return respond(StatusCode::NOT_MODIFIED, &[(ETAG, &tag)], String::new());
    }
    respond(StatusCode::OK, &[(ETAG, &tag)], body)
}

fn refusal_response(refusal: &Refusal) -> Response {
    let Refusal {
        status,
        reason,
        message,
    } = refusal;
    debug!(status, reason, message, "refused a request to /sync");
    let status = StatusCode::from_u16(*status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let headers: &[_] = match status {
        StatusCode::UNAUTHORIZED => &[(WWW_AUTHENTICATE, "Bearer")],
        StatusCode::METHOD_NOT_ALLOWED => &[(ALLOW, "POST")],
        // Close the connection: the next connection of metacontroller may reach the leader.
        StatusCode::TOO_MANY_REQUESTS if *reason == Reason::NotLeader.as_str() => {
            &[(RETRY_AFTER, RETRY_AFTER_SECONDS), (CONNECTION, "close")]
        }
        StatusCode::TOO_MANY_REQUESTS => &[(RETRY_AFTER, RETRY_AFTER_SECONDS)],
        _ => &[],
    };
    respond(status, headers, refusal.body())
}

fn respond(status: StatusCode, headers: &[(HeaderName, &str)], body: String) -> Response {
    let response = response::Builder::new()
        .status(status)
        .header(CONTENT_TYPE, "application/json");
    let response = headers.iter().fold(response, |response, (name, value)| {
        response.header(name, *value)
    });
    response.body(Body::from(body)).unwrap_or_default()
}

/// Returns the route `/sync`.
pub(super) fn router(endpoint: SyncEndpoint) -> Router {
    let hook = |State(endpoint): State<SyncEndpoint>, request: Request| async move {
        let answer = endpoint.answer(request).await;
        answer.unwrap_or_else(|refusal| refusal_response(&refusal))
    };
    let other_methods = || async {
        let message = "method not allowed: metacontroller calls hooks with POST";
        refusal_response(&Refusal::new(405, "WrongMethod", message))
    };
    Router::new()
        .route("/sync", post(hook).fallback(other_methods))
        .with_state(endpoint)
}

#[cfg(test)]
mod tests;
