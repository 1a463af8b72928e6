//! Requests digests of images. Pushes and pulls contexts, and pulls artifacts of modules.

use std::{fs::File, io, path::Path, sync::Arc};

use bytes::Bytes;
use reqwest::{Method, RequestBuilder, header};
use tokio::io::{AsyncSeekExt as _, AsyncWriteExt as _};

use super::{
    authenticated_call::Call,
    blobs::{CONTENT_DIGEST, Repository},
    requests::{Body, MANIFEST, MANIFESTS},
    session::Session,
    upload_content::{self, in_memory},
};
use crate::{
    artifact::{self, MODULE_BYTES, ModuleArtifact},
    error::{Error, Failure},
    image::Blob,
    reference::{Digest, Hasher, ImageRef},
};

/// Maximum size of the manifest of a context, in bytes.
const CONTEXT_MANIFEST: usize = 64 << 10;

impl Call<'_> {
    pub(super) async fn digest(
        &self,
        session: Arc<Session>,
        image: &ImageRef,
    ) -> Result<Digest, Error> {
        let path = format!("manifests/{}", reference(image));
        let request = |method| {
            let request = session.request(method, &path);
            request.header(header::ACCEPT, MANIFESTS.join(", "))
        };
        let header = match self.open(request(Method::HEAD)).await {
            Ok(response) => response.headers().get(CONTENT_DIGEST).cloned(),
            Err(Error::Request {
                failure: Failure::Unsupported,
                ..
            }) => None,
            Err(error) => return Err(error),
        };
        let Some(header) = header else {
            return self.digest_of_manifest(request(Method::GET)).await;
        };
        let digest = header.to_str().ok().map(Digest::parse);
        digest.and_then(Result::ok).ok_or_else(|| {
            self.refused(
                Failure::Other,
                "the registry returned an invalid digest".to_owned(),
            )
        })
    }

    /// Computes the digest of a manifest while reading it, so that the manifest is not kept in memory.
    async fn digest_of_manifest(&self, request: RequestBuilder) -> Result<Digest, Error> {
        let mut body = Body::open(self, request, MANIFEST).await?;
        let mut hasher = Hasher::sha256();
        while let Some(chunk) = body.chunk().await? {
            hasher.update(&chunk);
        }
        Ok(hasher.finish())
    }

    pub(super) async fn push(
        &self,
        session: Arc<Session>,
        image: &ImageRef,
        context: &Blob,
        file: &Path,
    ) -> Result<Digest, Error> {
        let manifest = Bytes::from(artifact::manifest(&context.digest, context.size));
        let digest = Digest::of(&manifest);
        match self.digest(session.clone(), image).await {
            Ok(existing) if existing == digest => return Ok(digest),
            Err(error) if !error.is_not_found() => return Err(error),
            _ => {}
        }
        let repository = Repository::opened(self.clone(), session);
        let empty = Bytes::from_static(artifact::EMPTY);
        let blob = Blob::of(&empty);
        if !repository.has_blob(&blob.digest).await? {
            repository.upload(None, &blob, in_memory(empty)).await?;
        }
        if !repository.has_blob(&context.digest).await? {
            let stream = upload_content::file(file, context.size).await?;
            repository.upload(None, context, stream).await?;
        }
        let put =
            |reference| repository.put_manifest(reference, artifact::MANIFEST_TYPE, &manifest);
        match put(reference(image)).await {
            // Some registries refuse to replace the manifest of an existing tag. A push by digest is sufficient, because clients pull
            // contexts by digest.
            Err(refused) if refused.may_be_the_tag() => match put(digest.as_str()).await {
                Ok(_) => Ok(digest),
                Err(_) => Err(refused),
            },
            other => other.map(|_| digest),
        }
    }

    pub(super) async fn pull(
        &self,
        session: Arc<Session>,
        manifest: &Digest,
    ) -> Result<Bytes, Error> {
        let path = format!("manifests/{manifest}");
        let request = session
            .request(Method::GET, &path)
            .header(header::ACCEPT, MANIFESTS.join(", "));
        let bytes = self.send_bounded(request, CONTEXT_MANIFEST).await?.body;
        self.check(&bytes, manifest)?;
        let most = self.shared.options.context_bytes;
        let layer = artifact::layer(&self.subject, &bytes, most)?;
        let request = session.request(Method::GET, &format!("blobs/{layer}"));
        let content = self.send_bounded(request, most).await?.body;
        self.check(&content, &layer)?;
        Ok(content.into())
    }

    /// Pulls the artifact of a module by the digest of its manifest, into a temporary file in `folder`. Verifies the digests of manifest and
    /// content.
    pub(super) async fn pull_module(
        &self,
        session: Arc<Session>,
        manifest: &Digest,
        folder: &Path,
    ) -> Result<ModuleArtifact, Error> {
        let path = format!("manifests/{manifest}");
        let request = session
            .request(Method::GET, &path)
            .header(header::ACCEPT, MANIFESTS.join(", "));
        let bytes = self.send_bounded(request, CONTEXT_MANIFEST).await?.body;
        let mut hasher = manifest.hasher();
        hasher.update(&bytes);
        self.check_module(hasher, manifest)?;
        let (format, layer) = artifact::module_layer(&self.subject, &bytes)?;
        let request = session.request(Method::GET, &format!("blobs/{layer}"));
        let content = self.download(request, &layer, folder).await?;
        Ok(ModuleArtifact { format, content })
    }

    /// Downloads the blob `layer` into a temporary file in `folder`, and verifies its digest.
    async fn download(
        &self,
        request: RequestBuilder,
        layer: &Digest,
        folder: &Path,
    ) -> Result<File, Error> {
        let unwritable = |error: io::Error| Error::DownloadFolder {
            folder: folder.to_owned(),
            why: error.to_string(),
        };
        let mut body = Body::open(self, request, MODULE_BYTES).await?;
        let file = tempfile::tempfile_in(folder).map_err(unwritable)?;
        let mut file = tokio::fs::File::from_std(file);
        let mut hasher = layer.hasher();
        while let Some(chunk) = body.chunk().await? {
            hasher.update(&chunk);
            file.write_all(&chunk).await.map_err(unwritable)?;
        }
        self.check_module(hasher, layer)?;
        file.flush().await.map_err(unwritable)?;
        file.rewind().await.map_err(unwritable)?;
        Ok(file.into_std().await)
    }

    /// Verifies the digest of the content that `hasher` has read.
    fn check_module(&self, hasher: Hasher, digest: &Digest) -> Result<(), Error> {
        if hasher.finish() == *digest {
            return Ok(());
        }
        Err(Error::InvalidArtifact {
            subject: self.subject.clone(),
            why: format!("the content does not match {digest}"),
        })
    }

    /// Verifies the digest of content from the registry.
    fn check(&self, content: &[u8], digest: &Digest) -> Result<(), Error> {
        if Digest::of(content) == *digest {
            return Ok(());
        }
        Err(Error::NotAContext {
            subject: self.subject.clone(),
            why: format!("the content does not match {digest}"),
        })
    }
}

/// Returns the digest of `image`, or else its tag, or else `latest`.
fn reference(image: &ImageRef) -> &str {
    image
        .digest()
        .map(Digest::as_str)
        .or_else(|| image.tag())
        .unwrap_or("latest")
}
