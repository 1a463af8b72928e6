//! Questions to registries, and contexts to and from them. Called by the controller and by build pods.

mod append;
mod blobs;
mod calls;
mod contexts;
mod inner;
mod options;
pub(crate) mod raw;
mod requests;
mod setup;

pub use options::Options;

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use futures::FutureExt as _;

use crate::{
    artifact,
    auth::Operation,
    credential::Access,
    error::{Error, Failure},
    name::ImageName,
    prune::Found,
    reference::{Digest, ImageRef},
    session::Sessions,
};

use calls::Call;
use inner::Inner;

/// How long it may take to look through a repository.
const PATIENCE: Duration = Duration::from_mins(10);

/// The way to every registry. Cheap to clone; every method may run many times at once.
#[derive(Clone)]
pub struct Registry {
    inner: Arc<Inner>,
}

impl Registry {
    /// Makes the clients. The program must have installed a crypto provider for rustls before.
    ///
    /// # Errors
    /// [`Error::Setup`] without a crypto provider, without any trusted certificate, or with one that cannot be read.
    pub fn new(options: Options) -> Result<Self, Error> {
        let certificates = setup::certificates(&options)?;
        let http = setup::tokens(&options, &certificates)?;
        let reads = setup::reads(&options, &certificates)?;
        let writes = setup::writes(&options, &certificates)?;
        Ok(Self {
            inner: Arc::new(Inner {
                options,
                http,
                reads,
                writes,
                sessions: Sessions::default(),
            }),
        })
    }

    /// The digest that the registry has for an image now, `None` when it has none (a `HEAD` of the manifest).
    ///
    /// # Errors
    /// When the registry cannot be asked; an image that is not there is no error.
    pub async fn digest_of(
        &self,
        image: &ImageRef,
        access: &Access,
    ) -> Result<Option<Digest>, Error> {
        let call = self.call(
            "look for",
            image.to_string(),
            image.name(),
            Operation::Pull,
            access,
        );
        let digest = call
            .within(self.inner.options.timeout, |raw| call.digest(raw, image))
            .await;
        match digest {
            Err(Error::Request {
                failure: Failure::NotFound,
                ..
            }) => Ok(None),
            other => other.map(Some),
        }
    }

    /// Pushes a context unless it is there, and tells the digest of its manifest, by which it is pulled.
    ///
    /// # Errors
    /// When the bytes are not those of the digest, and when the registry does not take them.
    pub async fn push_context(
        &self,
        repository: &ImageName,
        context: &Digest,
        bytes: Bytes,
        access: &Access,
    ) -> Result<Digest, Error> {
        let image = ImageRef::tagged(repository.clone(), &artifact::context_tag(context))?;
        if Digest::of(&bytes) != *context {
            let why = format!("its bytes are not those of {context}");
            return Err(Error::NotAContext {
                subject: image.to_string(),
                why,
            });
        }
        let call = self.call(
            "push the context to",
            image.to_string(),
            repository,
            Operation::Push,
            access,
        );
        let push = |raw| call.push(raw, &image, context, bytes.clone()).boxed();
        call.within(self.inner.options.transfer_timeout, push).await
    }

    /// Pulls a context by the digest of its manifest. Digests of manifest and content are checked.
    ///
    /// # Errors
    /// When the registry does not have it, or what it has is no context.
    pub async fn pull_context(
        &self,
        repository: &ImageName,
        manifest: &Digest,
        access: &Access,
    ) -> Result<Bytes, Error> {
        let image = ImageRef::by_digest(repository.clone(), manifest.clone());
        let call = self.call(
            "pull the context",
            image.to_string(),
            repository,
            Operation::Pull,
            access,
        );
        call.within(self.inner.options.transfer_timeout, |raw| {
            call.pull(raw, manifest)
        })
        .await
    }

    /// What is in a repository, as far as pruning must know it.
    ///
    /// # Errors
    /// When the registry cannot be asked, or does not list its tags.
    pub async fn inventory(
        &self,
        repository: &ImageName,
        access: &Access,
    ) -> Result<Vec<Found>, Error> {
        let call = self.call(
            "list the images of",
            repository.to_string(),
            repository,
            Operation::Pull,
            access,
        );
        call.in_time(PATIENCE, call.inventory()).await
    }

    /// Removes a manifest, and with it all tags that point at it. One that is gone is removed.
    ///
    /// # Errors
    /// [`Failure::Unsupported`] from a registry that removes nothing.
    pub async fn delete(
        &self,
        repository: &ImageName,
        digest: &Digest,
        access: &Access,
    ) -> Result<(), Error> {
        let subject = format!("{repository}@{digest}");
        let call = self.call("remove", subject, repository, Operation::Delete, access);
        call.in_time(self.inner.options.timeout, call.delete(digest))
            .await
    }

    fn call<'a>(
        &'a self,
        action: &'static str,
        subject: String,
        name: &'a ImageName,
        operation: Operation,
        access: &'a Access,
    ) -> Call<'a> {
        Call {
            inner: &self.inner,
            action,
            subject,
            name,
            operation,
            access,
        }
    }
}
