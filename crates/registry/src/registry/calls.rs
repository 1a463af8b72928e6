//! Calls to a registry with authentication and a timeout. A call is repeated once with a new session if the registry refuses the token of a
//! cached session.

use std::{
    future::Future,
    sync::Arc,
    time::{Duration, Instant},
};

use super::{inner::Inner, raw::Raw};
use crate::{
    auth::{Grant, Operation, Question},
    credential::Access,
    error::{self, Error, Failure},
    helper,
    name::{HUB_HOST, ImageName, is_docker_hub},
    session::SessionKey,
};

/// A call to one repository.
#[derive(Clone)]
pub(super) struct Call<'a> {
    pub(super) inner: &'a Inner,
    /// Action for error messages, as a verb phrase. `subject` is its object.
    pub(super) action: &'static str,
    pub(super) subject: String,
    pub(super) name: &'a ImageName,
    pub(super) operation: Operation,
    pub(super) access: &'a Access,
}

impl Call<'_> {
    /// Runs `work` with a session, within `time`. If the registry refuses a cached session, repeats `work` once with a new session.
    pub(super) async fn within<T, F>(
        &self,
        time: Duration,
        work: impl Fn(Arc<Raw>) -> F,
    ) -> Result<T, Error>
    where
        F: Future<Output = Result<T, Error>>,
    {
        self.in_time(time, self.twice(work)).await
    }

    /// Runs `work` within `time`.
    pub(super) async fn in_time<T>(
        &self,
        time: Duration,
        work: impl Future<Output = Result<T, Error>>,
    ) -> Result<T, Error> {
        let done = tokio::time::timeout(time, work).await;
        done.map_err(|_| self.late(time))?
    }

    pub(super) fn late(&self, after: Duration) -> Error {
        Error::Timeout {
            action: self.action,
            subject: self.subject.clone(),
            after,
        }
    }

    async fn twice<T, F>(&self, work: impl Fn(Arc<Raw>) -> F) -> Result<T, Error>
    where
        F: Future<Output = Result<T, Error>>,
    {
        let key = SessionKey::new(self.name, self.operation, self.insecure(), self.access);
        if let Some(raw) = self.inner.sessions.get(&key, Instant::now()) {
            match work(raw).await {
                Err(error) if error.is_unauthorized() => self.inner.sessions.forget(&key),
                other => return other,
            }
        }
        work(self.sign_in(key).await?).await
    }

    async fn sign_in(&self, key: SessionKey) -> Result<Arc<Raw>, Error> {
        let raw = Arc::new(self.raw(None).await?);
        let sessions = &self.inner.sessions;
        sessions.keep(key, raw.clone(), Instant::now());
        Ok(raw)
    }

    /// Authenticates to the registry. The token also permits pulls from `source`.
    pub(super) async fn raw(&self, source: Option<&ImageName>) -> Result<Raw, Error> {
        let (host, grant) = self.grant(source).await?;
        Ok(Raw {
            reads: self.inner.reads.clone(),
            writes: self.inner.writes.clone(),
            base: self.base(&host),
            repository: self.name.repository().to_owned(),
            authorization: grant.authorization,
            end: Instant::now() + grant.life,
        })
    }

    /// Returns the host of the registry and the authorization for the repository. The authorization also permits pulls from `source`.
    async fn grant(&self, source: Option<&ImageName>) -> Result<(String, Grant), Error> {
        let host = self.host();
        let helped = match (&self.access.credential, &self.access.helper) {
            (None, Some(program)) => Some(helper::ask(program, self.name.registry()).await?),
            _ => None,
        };
        let question = Question {
            http: &self.inner.http,
            base: &self.base(&host),
            name: self.name,
            operation: self.operation,
            source,
            credential: self.access.credential.as_ref().or(helped.as_ref()),
        };
        let grant = question.ask().await?;
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
        let hosts = &self.inner.options.insecure_hosts;
        self.access.insecure || hosts.iter().any(|host| host == self.name.registry())
    }

    pub(super) fn broken(&self, error: &reqwest::Error) -> Error {
        let (failure, detail) = error::read_request(error);
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
