//! One call: signed in, bounded in time, tried once more when a kept session was refused.

use std::{
    future::Future,
    io,
    time::{Duration, Instant},
};

use bytes::{Bytes, BytesMut};
use futures::StreamExt as _;
use oci_client::{
    Client, Reference,
    errors::{DigestError, OciDistributionError},
    manifest::{OciDescriptor, OciManifest},
    secrets::RegistryAuth,
};

use reqwest::{Method, header::CONTENT_TYPE};

use super::{Inner, setup};
use crate::{
    artifact,
    auth::{Grant, Operation, Question},
    credential::Access,
    error::{self, Error, Failure},
    helper,
    name::ImageName,
    reference::{Digest, ImageRef},
    session::SessionKey,
};

const OTHER_BYTES: &str = "its bytes are not those of its digest";

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
        work: impl Fn(Client) -> F,
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

    async fn twice<T, F>(&self, work: impl Fn(Client) -> F) -> Result<T, Error>
    where
        F: Future<Output = Result<T, Error>>,
    {
        let key = SessionKey::new(self.name, self.operation, self.insecure(), self.access);
        if let Some(client) = self.inner.sessions.get(&key, Instant::now()) {
            match work(client).await {
                Err(error) if error.is_unauthorized() => self.inner.sessions.forget(&key),
                other => return other,
            }
        }
        work(self.sign_in(key).await?).await
    }

    async fn sign_in(&self, key: SessionKey) -> Result<Client, Error> {
        let (host, grant) = self.grant(None).await?;
        let client = setup::images(
            &self.inner.options,
            &self.inner.certificates,
            self.insecure(),
        )?;
        client.store_auth_if_needed(&host, &grant.auth).await;
        let now = Instant::now();
        self.inner
            .sessions
            .keep(key, client.clone(), now + grant.life, now);
        Ok(client)
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
        self.reference_by("latest").resolve_registry().to_owned()
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

    fn reference_by(&self, tag: &str) -> Reference {
        let (registry, repository) = (self.name.registry(), self.name.repository());
        Reference::with_tag(registry.to_owned(), repository.to_owned(), tag.to_owned())
    }

    fn reference(&self, image: &ImageRef) -> Reference {
        let (registry, repository) = (
            self.name.registry().to_owned(),
            self.name.repository().to_owned(),
        );
        match (image.digest(), image.tag()) {
            (Some(digest), _) => Reference::with_digest(registry, repository, digest.to_string()),
            (None, tag) => self.reference_by(tag.unwrap_or("latest")),
        }
    }

    pub(super) async fn digest(&self, client: Client, image: &ImageRef) -> Result<Digest, Error> {
        // The session's credentials are stored already and win over those given here.
        let reference = self.reference(image);
        let digest = client.fetch_manifest_digest(&reference, &RegistryAuth::Anonymous);
        let digest = digest.await.map_err(|error| self.failed(&error))?;
        Digest::parse(&digest).map_err(|_| self.not_a_context("the registry gave no digest"))
    }

    pub(super) async fn push(
        &self,
        client: Client,
        image: &ImageRef,
        context: &Digest,
        bytes: Bytes,
    ) -> Result<Digest, Error> {
        let manifest = artifact::manifest(context, bytes.len());
        let digest = artifact::artifact_digest(context, bytes.len());
        if self.is_there(&client, image, &digest).await? {
            return Ok(digest);
        }
        self.push_blob(&client, Bytes::from_static(artifact::EMPTY))
            .await?;
        self.push_blob(&client, bytes).await?;
        let kind = artifact::MANIFEST_TYPE
            .parse()
            .map_err(|_| self.not_a_context("no media type"))?;
        let reference = self.reference(image);
        let pushed = client.push_manifest_raw(&reference, manifest.clone(), kind);
        match pushed.await.map_err(|error| self.failed(&error)) {
            Ok(_) => Ok(digest),
            Err(error) if error.may_be_the_tag() => self.without_tag(manifest, digest, error).await,
            Err(error) => Err(error),
        }
    }

    /// The tag is taken, and this registry lets nobody move one: nobody needs the tag, contexts are
    /// pulled by digest.
    async fn without_tag(
        &self,
        manifest: Vec<u8>,
        digest: Digest,
        refused: Error,
    ) -> Result<Digest, Error> {
        let raw = self.raw(None).await?;
        let path = format!("manifests/{digest}");
        let request = raw.request(Method::PUT, &path);
        let request = request.header(CONTENT_TYPE, artifact::MANIFEST_TYPE);
        match self.send(request.body(manifest)).await {
            Ok(_) => Ok(digest),
            // What the registry said first says more.
            Err(_) => Err(refused),
        }
    }

    async fn is_there(
        &self,
        client: &Client,
        image: &ImageRef,
        wanted: &Digest,
    ) -> Result<bool, Error> {
        match self.digest(client.clone(), image).await {
            Ok(found) => Ok(found == *wanted),
            Err(Error::Request {
                failure: Failure::NotFound,
                ..
            }) => Ok(false),
            Err(error) => Err(error),
        }
    }

    async fn push_blob(&self, client: &Client, bytes: Bytes) -> Result<(), Error> {
        let (reference, digest) = (self.reference_by("latest"), Digest::of(&bytes));
        let there = client.blob_exists(&reference, digest.as_str()).await;
        if there.map_err(|error| self.failed(&error))? {
            return Ok(());
        }
        let pushed = client.push_blob(&reference, bytes, digest.as_str()).await;
        pushed.map(drop).map_err(|error| self.failed(&error))
    }

    pub(super) async fn pull(&self, client: Client, image: &ImageRef) -> Result<Bytes, Error> {
        let reference = self.reference(image);
        // The client checks the manifest against the digest in the reference.
        let manifest = client
            .pull_manifest(&reference, &RegistryAuth::Anonymous)
            .await;
        let (manifest, _) = manifest.map_err(|error| self.failed(&error))?;
        let OciManifest::Image(manifest) = manifest else {
            return Err(self.not_a_context("it is an index of images"));
        };
        let layer = artifact::layer(&self.subject, &manifest, self.inner.options.context_bytes)?;
        let bytes = self.pull_blob(&client, &reference, &layer).await?;
        if Digest::of(&bytes) != layer {
            return Err(self.not_a_context(OTHER_BYTES));
        }
        Ok(bytes)
    }

    async fn pull_blob(
        &self,
        client: &Client,
        reference: &Reference,
        layer: &Digest,
    ) -> Result<Bytes, Error> {
        let descriptor = OciDescriptor {
            digest: layer.to_string(),
            ..OciDescriptor::default()
        };
        let stream = client.pull_blob_stream(reference, &descriptor).await;
        let mut stream = stream.map_err(|error| self.failed(&error))?.stream;
        let mut bytes = BytesMut::new();
        while let Some(chunk) = stream.next().await {
            bytes.extend_from_slice(&chunk.map_err(|error| self.cut_short(error))?);
            if bytes.len() as u64 > self.inner.options.context_bytes {
                return Err(self.not_a_context("it is larger than it says"));
            }
        }
        Ok(bytes.freeze())
    }

    /// The client checks the digest while it reads; all else is the connection.
    fn cut_short(&self, error: io::Error) -> Error {
        let digest = error
            .get_ref()
            .and_then(|inner| inner.downcast_ref::<DigestError>());
        if digest.is_some() {
            return self.not_a_context(OTHER_BYTES);
        }
        self.failed(&error.into())
    }

    pub(super) fn failed(&self, error: &OciDistributionError) -> Error {
        let (failure, detail) = error::read(error);
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

    fn not_a_context(&self, why: &str) -> Error {
        Error::NotAContext {
            subject: self.subject.clone(),
            why: why.to_owned(),
        }
    }
}
