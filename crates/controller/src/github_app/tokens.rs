//! Tokens in memory: requests a token before the previous one expires, and never more than one at a time for the same App and
//! repositories.

use std::collections::HashMap;
use std::sync::Arc;

use alustan_api::report::{Failure, FailureClass};
use alustan_core::observed::GitToken;
use alustan_source::FairSemaphore;
use futures::future::BoxFuture;
use k8s_openapi::jiff::{SignedDuration, Timestamp};
use parking_lot::Mutex;
use tokio::sync::Mutex as AsyncMutex;

use crate::clock::Clock;
use crate::github_app::GitHubApp;
use crate::github_app::response::{Token, TokenFailure};

/// Remaining lifetime at which requests to the repository get a new token. A fetch takes up to five minutes.
pub(crate) const POLL_LEFT: SignedDuration = SignedDuration::from_mins(10);
/// Remaining lifetime at which builds get a new token. The pod of a build may wait for a node and its images before it uses the token.
pub(crate) const BUILD_LEFT: SignedDuration = SignedDuration::from_mins(45);
/// Remaining lifetime below which a token is not used, even if no new token can be requested.
const USABLE_LEFT: SignedDuration = SignedDuration::from_mins(5);
/// Minimum time between two successful requests for the same token.
const MIN_AGE: SignedDuration = SignedDuration::from_mins(1);
/// Time during which a failure is returned without a new request.
const FAILURE_AGE: SignedDuration = SignedDuration::from_secs(10);
/// Maximum number of concurrent requests for tokens, shared fairly by all namespaces.
const MAX_CONCURRENT_REQUESTS: usize = 8;

/// Requests a token.
type Request = Box<
    dyn Fn(Arc<GitHubApp>, Timestamp) -> BoxFuture<'static, Result<Token, TokenFailure>>
        + Send
        + Sync,
>;

/// Tokens of all Apps.
pub(crate) struct AppTokens {
    slots: Mutex<HashMap<String, Arc<AsyncMutex<Slot>>>>,
    permits: Arc<FairSemaphore>,
    clock: Clock,
    request: Request,
}

impl AppTokens {
    /// Creates an empty store. `request` requests a token.
    pub(crate) fn new(clock: Clock, request: Request) -> Arc<Self> {
        Arc::new(Self {
            slots: Mutex::default(),
            permits: FairSemaphore::new(MAX_CONCURRENT_REQUESTS),
            clock,
            request,
        })
    }

    /// Returns a token of `app` that is valid for at least `left`. Returns a token with less time left if no new token can be requested.
    /// `tenant`: namespace of the resource.
    ///
    /// # Errors
    /// The failure of the last request.
    pub(crate) async fn token(
        &self,
        app: &Arc<GitHubApp>,
        tenant: &str,
        left: SignedDuration,
    ) -> Result<GitToken, Failure> {
        let slot = self.slot(app);
        let mut slot = slot.lock().await;
        if let Some(answer) = slot.answer(self.clock.now(), left) {
            return answer;
        }
        let _permit = self.permits.acquire(&tenant.into()).await;
        let now = self.clock.now();
        let result = (self.request)(app.clone(), now).await;
        slot.record(app, result, now)
    }

    /// Discards the token of `app` after the host refused it, for example because the installation was suspended. The next request for a
    /// token then shows the cause.
    pub(crate) async fn discard(&self, app: &GitHubApp) {
        let slot = self.slot(app);
        let mut slot = slot.lock().await;
        slot.discard(self.clock.now());
    }

    fn slot(&self, app: &GitHubApp) -> Arc<AsyncMutex<Slot>> {
        let now = self.clock.now();
        let mut slots = self.slots.lock();
        if let Some(slot) = slots.get(app.identity()) {
            return slot.clone();
        }
        // Each use of a slot holds a reference to it.
        slots.retain(|_, slot| {
            Arc::strong_count(slot) > 1 || slot.try_lock().is_ok_and(|slot| !slot.is_expired(now))
        });
        slots.entry(app.identity().to_owned()).or_default().clone()
    }
}

/// The current token of an App, and the failure of the last request.
#[derive(Default)]
pub(super) struct Slot {
    /// The token, and the time of its request.
    token: Option<(Token, Timestamp)>,
    /// The failure, and the time of the next request.
    failure: Option<(Failure, Timestamp)>,
}

impl Slot {
    /// Returns the answer to a request for a token that is valid for at least `left`. `None` if a new token must be requested.
    pub(super) fn answer(
        &self,
        now: Timestamp,
        left: SignedDuration,
    ) -> Option<Result<GitToken, Failure>> {
        let is_new = |requested_at: Timestamp| now.duration_since(requested_at) < MIN_AGE;
        let current = self.token.as_ref().filter(|(token, requested_at)| {
            let remaining = token.expires_at.duration_since(now);
            remaining >= left || remaining >= USABLE_LEFT && is_new(*requested_at)
        });
        if let Some((token, _)) = current {
            return Some(Ok(token.value.clone()));
        }
        let (failure, next) = self.failure.as_ref()?;
        (now < *next).then(|| self.usable(now).ok_or_else(|| failure.clone()))
    }

    /// Records the result of a request at `now`, and returns the answer. After a transient failure, the previous token is used until it expires.
    pub(super) fn record(
        &mut self,
        app: &GitHubApp,
        result: Result<Token, TokenFailure>,
        now: Timestamp,
    ) -> Result<GitToken, Failure> {
        let result = result.and_then(|token| {
            let remaining = token.expires_at.duration_since(now);
            if remaining >= USABLE_LEFT {
                return Ok(token);
            }
            let why = format!(
                "the new token expires at {}, and the time of the operator is {now:.0}; check the clock \
                 of the operator",
                token.expires_at
            );
            let reason = alustan_api::Reason::GitAuthenticationFailed;
            Err(app.failure(FailureClass::Transient, reason, &why).into())
        });
        match result {
            Ok(token) => {
                self.failure = None;
                let value = token.value.clone();
                self.token = Some((token, now));
                Ok(value)
            }
            Err(TokenFailure {
                failure,
                not_before,
            }) => {
                if failure.class != FailureClass::Transient {
                    self.token = None;
                }
                let next = not_before.unwrap_or(now + FAILURE_AGE);
                self.failure = Some((failure.clone(), next));
                self.usable(now).ok_or(failure)
            }
        }
    }

    /// Discards the token, unless it is new.
    pub(super) fn discard(&mut self, now: Timestamp) {
        self.token
            .take_if(|(_, requested_at)| now.duration_since(*requested_at) >= MIN_AGE);
    }

    fn usable(&self, now: Timestamp) -> Option<GitToken> {
        let (token, _) = self.token.as_ref()?;
        let remaining = token.expires_at.duration_since(now);
        (remaining >= USABLE_LEFT).then(|| token.value.clone())
    }

    fn is_expired(&self, now: Timestamp) -> bool {
        let is_blocked = self.failure.as_ref().is_some_and(|(_, next)| now < *next);
        self.usable(now).is_none() && !is_blocked
    }
}
