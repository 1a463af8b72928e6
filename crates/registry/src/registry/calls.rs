//! One call: signed in, bounded in time, tried once more when a kept session was refused.

use std::{
    future::Future,
    sync::Arc,
    time::{Duration, Instant},
};

use bytes::Bytes;
use reqwest::{Method, RequestBuilder, header};

use super::{
    Inner,
    blobs::{CONTENT_DIGEST, Repository, in_memory},
    raw::{MANIFEST, MANIFESTS, Raw},
};
use crate::{
    artifact,
    auth::{Grant, Operation, Question},
    credential::Access,
    error::{self, Error, Failure},
    helper,
    image::Blob,
    name::{HUB_HOST, ImageName, is_docker_hub},
    reference::{Digest, Hasher, ImageRef},
    session::SessionKey,
};

/// Maximum size of the manifest of a context, in bytes.
const CONTEXT_MANIFEST: usize = 64 << 10;

/// A call on one repository.
#[derive(Clone)]
pub(super) struct Call<'a> {
    pub(super) inner: &'a Inner,
    /// What is tried, and on what: for messages.
    pub(super) action: &'static str,
    pub(super) subject: String,
    pub(super) name: &'a ImageName,
    pub(super) operation: Operation,
    pub(super) access: &'a Access,
}

impl Call<'_> {
    /// Runs the work in the time given; when a session from an earlier call is refused, once more with a new one.
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

    /// Does the work in the time given.
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

    /// The host that is spoken to, and what opens the repository there, and `source` for pull.
    pub(super) async fn grant(&self, source: Option<&ImageName>) -> Result<(String, Grant), Error> {
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

    /// Returns the address of the registry, without a path.
    pub(super) fn registry_url(&self) -> String {
        self.base(&self.host())
    }

    pub(super) fn base(&self, host: &str) -> String {
        let scheme = if self.insecure() { "http" } else { "https" };
        format!("{scheme}://{host}")
    }

    fn insecure(&self) -> bool {
        let hosts = &self.inner.options.insecure_hosts;
        self.access.insecure || hosts.iter().any(|host| host == self.name.registry())
    }

    pub(super) async fn digest(&self, raw: Arc<Raw>, image: &ImageRef) -> Result<Digest, Error> {
        let path = format!("manifests/{}", reference(image));
        let ask = |method| {
            let request = raw.request(method, &path);
            request.header(header::ACCEPT, MANIFESTS.join(", "))
        };
        let told = match self.open(ask(Method::HEAD)).await {
            Ok(response) => response.headers().get(CONTENT_DIGEST).cloned(),
            Err(Error::Request {
                failure: Failure::Unsupported,
                ..
            }) => None,
            Err(error) => return Err(error),
        };
        let Some(told) = told else {
            return self.digest_of_manifest(ask(Method::GET)).await;
        };
        let digest = told.to_str().ok().map(Digest::parse);
        digest
            .and_then(Result::ok)
            .ok_or_else(|| self.refused(Failure::Other, "its digest is invalid".to_owned()))
    }

    /// Computes the digest of a manifest while it is read, so that no manifest is held in memory.
    async fn digest_of_manifest(&self, request: RequestBuilder) -> Result<Digest, Error> {
        let mut response = self.open(request).await?;
        let mut hasher = Hasher::sha256();
        let take = |chunk: &[u8]| hasher.update(chunk);
        let size = self.begin_chunks(&mut response, MANIFEST, take).await?;
        if size > MANIFEST {
            return Err(self.too_large(MANIFEST));
        }
        Ok(hasher.finish())
    }

    pub(super) async fn push(
        &self,
        raw: Arc<Raw>,
        image: &ImageRef,
        context: &Digest,
        bytes: Bytes,
    ) -> Result<Digest, Error> {
        let manifest = Bytes::from(artifact::manifest(context, bytes.len()));
        let digest = Digest::of(&manifest);
        match self.digest(raw.clone(), image).await {
            Ok(found) if found == digest => return Ok(digest),
            Err(error) if !error.is_not_found() => return Err(error),
            _ => {}
        }
        let repository = Repository::opened(self.clone(), raw);
        let empty = Bytes::from_static(artifact::EMPTY);
        for content in [empty, bytes] {
            self.push_blob(&repository, content).await?;
        }
        let put =
            |reference| repository.put_manifest(reference, artifact::MANIFEST_TYPE, &manifest);
        match put(reference(image)).await {
            // Some registries do not allow tags to be moved. Contexts are pulled by digest, so the tag is not needed.
            Err(refused) if refused.may_be_the_tag() => match put(digest.as_str()).await {
                Ok(_) => Ok(digest),
                Err(_) => Err(refused),
            },
            other => other.map(|_| digest),
        }
    }

    async fn push_blob(&self, repository: &Repository<'_>, content: Bytes) -> Result<(), Error> {
        let blob = Blob {
            digest: Digest::of(&content),
            size: content.len() as u64,
        };
        if repository.has_blob(&blob.digest).await? {
            return Ok(());
        }
        repository.upload(None, &blob, in_memory(content)).await
    }

    pub(super) async fn pull(&self, raw: Arc<Raw>, manifest: &Digest) -> Result<Bytes, Error> {
        let path = format!("manifests/{manifest}");
        let request = raw.request(Method::GET, &path);
        let request = request.header(header::ACCEPT, MANIFESTS.join(", "));
        let found = self.send_bounded(request, CONTEXT_MANIFEST).await?.body;
        self.check(&found, manifest)?;
        let most = self.inner.options.context_bytes;
        let layer = artifact::layer(&self.subject, &found, most)?;
        let request = raw.request(Method::GET, &format!("blobs/{layer}"));
        let content = self.send_bounded(request, most).await?.body;
        self.check(&content, &layer)?;
        Ok(content.into())
    }

    /// Verifies the digest of what the registry sent.
    fn check(&self, content: &[u8], digest: &Digest) -> Result<(), Error> {
        if Digest::of(content) == *digest {
            return Ok(());
        }
        Err(Error::NotAContext {
            subject: self.subject.clone(),
            why: format!("the content does not match {digest}"),
        })
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

/// Digest, tag or `latest`.
fn reference(image: &ImageRef) -> &str {
    let digest = image.digest().map(Digest::as_str);
    digest.or_else(|| image.tag()).unwrap_or("latest")
}
