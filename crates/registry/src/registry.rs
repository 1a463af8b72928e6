//! Client of OCI registries, for the controller and for build pods.

mod append;
mod authenticated_call;
mod blobs;
mod contexts;
mod inventory;
mod options;
mod requests;
mod session;
mod session_cache;
mod setup;
mod shared;
mod tags;
mod upload_content;

pub use options::Options;

use std::{collections::BTreeSet, path::Path, sync::Arc, time::Duration};

use bytes::Bytes;
use futures::FutureExt as _;

use crate::{
    artifact::{self, ModuleArtifact},
    auth::Operation,
    credential::Access,
    error::{Error, Failure},
    name::ImageName,
    prune::TaggedImage,
    reference::{Digest, ImageRef},
};

use authenticated_call::Call;
use session_cache::SessionCache;
use shared::Shared;
use upload_content::blob_of;

/// Timeout for [`Registry::inventory`], which sends a request for each tag.
const PATIENCE: Duration = Duration::from_mins(10);

/// Client for all registries. Clones are cheap and share sessions. Methods may run concurrently.
#[derive(Clone)]
pub struct Registry {
    shared: Arc<Shared>,
}

impl Registry {
    /// Creates the HTTP clients. The program must have installed a crypto provider for rustls.
    ///
    /// # Errors
    /// Returns [`Error::Setup`] if no crypto provider is installed, if the system has no trusted certificates, if a CA certificate is invalid, or if
    /// the CA bundle of credential helpers cannot be written to the temporary folder.
    pub fn new(options: Options) -> Result<Self, Error> {
        let certificates = setup::certificates(&options)?;
        let http = setup::tokens(&options, &certificates)?;
        let reads = setup::reads(&options, &certificates)?;
        let writes = setup::writes(&options, &certificates)?;
        let helper_certificates = setup::helper_certificates(&options)?;
        Ok(Self {
            shared: Arc::new(Shared {
                options,
                http,
                reads,
                writes,
                helper_certificates,
                sessions: SessionCache::default(),
            }),
        })
    }

    /// Returns the current digest of an image; `None` if the image does not exist. Sends a `HEAD` request for the manifest.
    ///
    /// # Errors
    /// Fails if the request fails. A missing image is not an error.
    pub async fn digest_of(
        &self,
        image: &ImageRef,
        access: &Access,
    ) -> Result<Option<Digest>, Error> {
        let call = self.call(
            "look up",
            image.to_string(),
            image.name(),
            Operation::Pull,
            access,
        );
        let digest = call
            .with_session(self.shared.options.timeout, |session| {
                call.digest(session, image)
            })
            .await;
        match digest {
            Err(Error::Request {
                failure: Failure::NotFound,
                ..
            }) => Ok(None),
            other => other.map(Some),
        }
    }

    /// Pushes the context in `file`, unless the repository already has it. Returns the digest of its manifest, by which clients pull the context.
    /// The content is transferred as a stream.
    ///
    /// # Errors
    /// Fails if `file` cannot be read, if `context` is not the digest of its content, or if the registry refuses the push.
    pub async fn push_context(
        &self,
        repository: &ImageName,
        context: &Digest,
        file: &Path,
        access: &Access,
    ) -> Result<Digest, Error> {
        let image = ImageRef::tagged(repository.clone(), &artifact::context_tag(context))?;
        let blob = blob_of(file).await?;
        if blob.digest != *context {
            let why = format!("the content does not match {context}");
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
        let push = |session| call.push(session, &image, &blob, file).boxed();
        call.with_session(self.shared.options.transfer_timeout, push)
            .await
    }

    /// Pulls a context by the digest of its manifest. Verifies the digests of manifest and content.
    ///
    /// # Errors
    /// Fails if the registry does not have the manifest, or if the content is not a context.
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
        call.with_session(self.shared.options.transfer_timeout, |session| {
            call.pull(session, manifest)
        })
        .await
    }

    /// Pulls the artifact of a module by the digest of its manifest, into a temporary file in `folder`. Verifies the digests of manifest and
    /// content.
    ///
    /// # Errors
    /// Fails if the registry does not have the manifest, if the artifact is not that of a module, or if `folder` cannot be written.
    pub async fn pull_module(
        &self,
        repository: &ImageName,
        manifest: &Digest,
        access: &Access,
        folder: &Path,
    ) -> Result<ModuleArtifact, Error> {
        let image = ImageRef::by_digest(repository.clone(), manifest.clone());
        let call = self.call(
            "pull the artifact",
            image.to_string(),
            repository,
            Operation::Pull,
            access,
        );
        call.with_session(self.shared.options.transfer_timeout, |session| {
            call.pull_module(session, manifest, folder)
        })
        .await
    }

    /// Returns the tags of a repository; none if the repository does not exist.
    ///
    /// # Errors
    /// Fails if a request fails, or if the registry does not list tags.
    pub async fn tags(
        &self,
        repository: &ImageName,
        access: &Access,
    ) -> Result<BTreeSet<String>, Error> {
        let call = self.call(
            "list the tags of",
            repository.to_string(),
            repository,
            Operation::Pull,
            access,
        );
        let list = async { call.tags(&call.authenticate(None).await?).await };
        call.with_timeout(self.shared.options.timeout, list).await
    }

    /// Returns the tags of a repository with their images, for pruning. Omits tags of contexts and of layers in a kaniko cache.
    ///
    /// # Errors
    /// Fails if a request fails, or if the registry does not list tags.
    pub async fn inventory(
        &self,
        repository: &ImageName,
        access: &Access,
    ) -> Result<Vec<TaggedImage>, Error> {
        let call = self.call(
            "list the images in",
            repository.to_string(),
            repository,
            Operation::Pull,
            access,
        );
        call.with_timeout(PATIENCE, call.inventory()).await
    }

    /// Deletes a manifest with all of its tags. A missing manifest is not an error.
    ///
    /// # Errors
    /// Fails with [`Failure::Unsupported`] if the registry does not support deletion.
    pub async fn delete(
        &self,
        repository: &ImageName,
        digest: &Digest,
        access: &Access,
    ) -> Result<(), Error> {
        let subject = format!("{repository}@{digest}");
        let call = self.call("remove", subject, repository, Operation::Delete, access);
        call.with_timeout(self.shared.options.timeout, call.delete(digest))
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
            shared: &self.shared,
            action,
            subject,
            name,
            operation,
            access,
        }
    }
}
