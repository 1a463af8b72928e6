//! Calls to a registry with authentication and a timeout. A call is repeated once with a new session if the registry refuses the token of a
//! cached session.

use std::{
    future::Future,
    sync::Arc,
    time::{Duration, Instant},
};

use super::{session::Session, session_cache::SessionKey, shared::Shared};
use crate::{
    auth::{AuthRequest, Grant, Operation},
    credential::Access,
    error::{Error, Failure, response::read_request},
    helper,
    name::{HUB_HOST, ImageName, is_docker_hub},
};

/// A call to one repository.
#[derive(Clone)]
pub(super) struct Call<'a> {
    pub(super) shared: &'a Shared,
    /// Beginning of a verb phrase for error messages, for example `push the context to`. `subject` completes the phrase, for example with an
    /// image reference.
    pub(super) action: &'static str,
    pub(super) subject: String,
    pub(super) name: &'a ImageName,
    pub(super) operation: Operation,
    pub(super) access: &'a Access,
}

impl Call<'_> {
    /// Runs `work` with a session. Fails with [`Error::Timeout`] if `work` takes longer than `time`. If the registry refuses the token of a
    /// cached session, repeats `work` once with a new session.
    pub(super) async fn with_session<T, F>(
        &self,
        time: Duration,
        work: impl Fn(Arc<Session>) -> F,
    ) -> Result<T, Error>
    where
        F: Future<Output = Result<T, Error>>,
    {
        self.with_timeout(time, self.with_retry(work)).await
    }

    /// Runs `work`. Fails with [`Error::Timeout`] if `work` takes longer than `time`.
    pub(super) async fn with_timeout<T>(
        &self,
        time: Duration,
        work: impl Future<Output = Result<T, Error>>,
    ) -> Result<T, Error> {
        tokio::time::timeout(time, work)
            .await
            .map_err(|_| self.timeout_error(time))?
    }

    pub(super) fn timeout_error(&self, after: Duration) -> Error {
        Error::Timeout {
            action: self.action,
            subject: self.subject.clone(),
            after,
        }
    }

    async fn with_retry<T, F>(&self, work: impl Fn(Arc<Session>) -> F) -> Result<T, Error>
    where
        F: Future<Output = Result<T, Error>>,
    {
        let key = SessionKey::new(self.name, self.operation, self.insecure(), self.access);
        if let Some(session) = self.shared.sessions.get(&key, Instant::now()) {
            match work(session).await {
                Err(error) if error.is_unauthorized() => self.shared.sessions.remove(&key),
                other => return other,
            }
        }
        work(self.sign_in(key).await?).await
    }

    async fn sign_in(&self, key: SessionKey) -> Result<Arc<Session>, Error> {
        let session = Arc::new(self.authenticate(None).await?);
        self.shared.sessions.insert(key, session.clone());
        Ok(session)
    }

    /// Authenticates to the registry. The token also permits pulls from `source`.
    pub(super) async fn authenticate(&self, source: Option<&ImageName>) -> Result<Session, Error> {
        let (host, grant) = self.grant(source).await?;
        Ok(Session {
            reads: self.shared.reads.clone(),
            writes: self.shared.writes.clone(),
            base: self.base(&host),
            repository: self.name.repository().to_owned(),
            authorization: grant.authorization,
            renew_at: Instant::now() + grant.lifetime,
        })
    }

    /// Returns the host of the registry and the authorization for the repository. The authorization also permits pulls from `source`.
    async fn grant(&self, source: Option<&ImageName>) -> Result<(String, Grant), Error> {
        let host = self.host();
        let helper_credential = match (&self.access.credential, &self.access.helper) {
            (None, Some(program)) => {
                let certificates = self.shared.helper_certificates.as_deref();
                Some(helper::credential(program, self.name.registry(), certificates).await?)
            }
            _ => None,
        };
        let request = AuthRequest {
            http: &self.shared.http,
            base: &self.base(&host),
            name: self.name,
            operation: self.operation,
            source,
            credential: self
                .access
                .credential
                .as_ref()
                .or(helper_credential.as_ref()),
        };
        let grant = request.authorize().await?;
        Ok((host, grant))
    }

    fn host(&self) -> String {
        let registry = self.name.registry();
        if is_docker_hub(registry) {
            HUB_HOST.to_owned()
        } else {
            registry.to_owned()
        }
    }

    /// Returns the URL of the registry, without a path.
    pub(super) fn registry_url(&self) -> String {
        self.base(&self.host())
    }

    fn base(&self, host: &str) -> String {
        let scheme = if self.insecure() { "http" } else { "https" };
        format!("{scheme}://{host}")
    }

    fn insecure(&self) -> bool {
        let hosts = &self.shared.options.insecure_hosts;
        self.access.insecure || hosts.iter().any(|host| host == self.name.registry())
    }

    pub(super) fn transport_error(&self, error: &reqwest::Error) -> Error {
        let (failure, detail) = read_request(error);
        self.refused(failure, detail)
    }

    pub(super) fn refused(&self, failure: Failure, detail: String) -> Error {
        Error::Request {
            action: self.action,
            subject: self.subject.clone(),
            failure,
            detail,
        }
    }
}
