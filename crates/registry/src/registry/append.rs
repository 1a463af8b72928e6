//! Appends layers to an image in a registry, without unpacking the image.

use std::{collections::BTreeSet, time::Duration};

use backon::{ExponentialBuilder, Retryable as _};
use bytes::Bytes;
use futures::{StreamExt as _, TryStreamExt as _, stream};
use reqwest::StatusCode;
use tokio::sync::Mutex;
use tracing::debug;

use super::{
    Registry,
    blobs::{Content, Mount, Repository},
    upload_content::{file, in_memory},
};
use crate::{
    auth::Operation,
    credential::Access,
    error::{Error, Failure, short},
    image::{self, BaseManifest, Blob, Document, Image, ImageConfig, Layer},
    name::invalid,
    reference::{Digest, ImageRef},
};

/// Timeout for [`Registry::append`], including a copy of the layers of the base image.
const APPEND_TIME: Duration = Duration::from_mins(30);
/// Maximum size of a manifest of the base image, in bytes: 8 KiB for each of 127 layers. Descriptors of layers are kept as JSON values,
/// because the new manifest contains them unchanged. In the worst case (`{"":0}`), a JSON value takes 133 bytes of memory per byte of text.
/// While the manifest is composed, three copies of these values are in memory, 400 MiB in total.
const MANIFEST_SIZE: usize = 1 << 20;
/// Maximum size of the config of the base image, in bytes. Fields that are not changed are kept as JSON values. In the worst case, parsing
/// these fields takes 200 MiB of memory. Config and manifest together fit into the memory limit of the container: 1 GiB.
const CONFIG_SIZE: usize = 1 << 20;
/// Number of blobs that are transferred concurrently.
const CONCURRENCY: usize = 3;
/// Number of retries of a request after transient failures.
const RETRIES: usize = 3;
/// Maximum delay between two retries.
const MAX_DELAY: Duration = Duration::from_secs(10);

impl Registry {
    /// Appends `layers` to the image `base` (by digest), pushes the new image as `target` (by tag) and returns the digest of the new
    /// manifest. If the tag already exists, returns the manifest digest of the existing image and does not replace the tag. Checks for the
    /// tag at the start, and again directly before the push of the manifest. A tag that another client creates after the second check is
    /// replaced, unless the registry has immutable tags.
    ///
    /// Layers of the base image are mounted from the repository of the base image if registry and credentials permit mounts. Otherwise, the
    /// layers are copied. If `base` is an index, the image for the platform in `config` is used. The same input gives the same digest.
    /// Memory use does not depend on the size of the layers.
    ///
    /// # Errors
    /// - [`Error::InvalidImageName`] if `base` has no digest or `target` has no tag.
    /// - [`Error::BaseImageNotFound`] if the registry does not have the base image, or one of its manifests or blobs.
    /// - [`Error::InvalidBaseImage`] if layers cannot be appended to the base image, or if a downloaded manifest or blob does not match its digest.
    /// - [`Error::UploadFile`] if a layer cannot be read.
    /// - [`Error::Request`] and [`Error::Timeout`] if a request fails. Transient failures are retried first.
    pub async fn append(
        &self,
        base: &ImageRef,
        base_access: &Access,
        target: &ImageRef,
        access: &Access,
        layers: &[Layer],
        config: &ImageConfig,
    ) -> Result<Digest, Error> {
        let digest = base
            .digest()
            .ok_or_else(|| invalid(&base.to_string(), "the base image must have a digest"))?;
        let tag = target
            .tag()
            .ok_or_else(|| invalid(&target.to_string(), "the new image must have a tag"))?;
        let read = self.call(
            "read the base image",
            base.to_string(),
            base.name(),
            Operation::Pull,
            base_access,
        );
        let push = self.call(
            "push the image",
            target.to_string(),
            target.name(),
            Operation::Push,
            access,
        );
        let may_mount =
            base.name().registry() == target.name().registry() && base.name() != target.name();
        let append = Append {
            registry: self,
            source: Repository::new(read, None),
            mounts: Repository::new(push.clone(), Some(base.name())),
            target: Repository::new(push.clone(), None),
            may_mount: Mutex::new(may_mount),
            access,
            base,
            digest,
            image: ImageRef::tagged(target.name().clone(), tag)?,
            tag,
            layers,
            config,
        };
        push.with_timeout(APPEND_TIME, Box::pin(append.run())).await
    }
}

/// Arguments and connections of one call of [`Registry::append`].
struct Append<'a> {
    registry: &'a Registry,
    source: Repository<'a>,
    target: Repository<'a>,
    /// The target repository, with a token that also permits pulls from the repository of the base image.
    mounts: Repository<'a>,
    /// Whether to try to mount blobs from the repository of the base image.
    may_mount: Mutex<bool>,
    access: &'a Access,
    base: &'a ImageRef,
    /// Digest of the base image.
    digest: &'a Digest,
    /// Reference of the new image, by tag.
    image: ImageRef,
    tag: &'a str,
    layers: &'a [Layer],
    config: &'a ImageConfig,
}

/// Whether to push a blob that the registry already has.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Push {
    IfMissing,
    Always,
}

/// Origin of a blob to push.
enum Origin<'a> {
    /// Layer of the base image.
    Base,
    Layer(&'a Layer),
    Bytes(Bytes),
}

impl Append<'_> {
    async fn run(&self) -> Result<Digest, Error> {
        if let Some(digest) = self.existing().await? {
            return Ok(digest);
        }
        let base = self.base_manifest().await?;
        let config = self.base_config(&base.config).await?;
        let image = image::compose(&base, &config, self.layers, self.config)
            .map_err(|why| self.invalid_base(&why))?;
        match self.push_image(&base, &image, Push::IfMissing).await {
            Err(error) if error.is_blob_missing() => {
                debug!(%error, "the registry lost a pushed blob; pushing all blobs again");
                self.push_image(&base, &image, Push::Always).await
            }
            other => other,
        }
    }

    async fn push_image(
        &self,
        base: &BaseManifest,
        image: &Image,
        push: Push,
    ) -> Result<Digest, Error> {
        self.push_layers(base, push).await?;
        self.push_config(image, push).await?;
        self.push_manifest(base.format.manifest_type(), image.manifest.clone().into())
            .await
    }

    /// Returns the manifest digest of the image with the tag, if the tag exists.
    async fn existing(&self) -> Result<Option<Digest>, Error> {
        self.retried(|| self.tagged()).await
    }

    async fn tagged(&self) -> Result<Option<Digest>, Error> {
        self.registry.digest_of(&self.image, self.access).await
    }

    async fn base_manifest(&self) -> Result<BaseManifest, Error> {
        let index = match self.read_manifest(self.digest).await? {
            Document::Image(manifest) => return Ok(manifest),
            Document::Index(index) => index,
        };
        let digest = index
            .choose(&self.config.os, &self.config.architecture)
            .map_err(|why| self.invalid_base(&why))?;
        match self.read_manifest(&digest).await? {
            Document::Image(manifest) => Ok(manifest),
            Document::Index(_) => {
                Err(self.invalid_base("the image index refers to another image index"))
            }
        }
    }

    async fn read_manifest(&self, digest: &Digest) -> Result<Document, Error> {
        let bytes = self
            .read_base(Content::Manifest, digest, MANIFEST_SIZE)
            .await?;
        image::read(&bytes).map_err(|why| self.invalid_base(&why))
    }

    async fn base_config(&self, blob: &Blob) -> Result<Vec<u8>, Error> {
        self.read_base(Content::Blob, &blob.digest, CONFIG_SIZE)
            .await
    }

    async fn read_base(
        &self,
        content: Content,
        digest: &Digest,
        limit: usize,
    ) -> Result<Vec<u8>, Error> {
        let bytes = self
            .retried(|| self.source.read(content, digest, limit))
            .await
            .map_err(|error| self.base_error(error))?;
        if digest.matches(&bytes) {
            return Ok(bytes);
        }
        Err(self.invalid_base(&format!("the content does not match {digest}")))
    }

    async fn push_layers(&self, base: &BaseManifest, push: Push) -> Result<(), Error> {
        let inherited = base
            .layers
            .iter()
            .filter(|layer| !layer.foreign)
            .map(|layer| (layer.blob.clone(), Origin::Base));
        let own = self.layers.iter().map(|layer| {
            let blob = Blob {
                digest: layer.digest.clone(),
                size: layer.size,
            };
            (blob, Origin::Layer(layer))
        });
        // An image may have the same layer more than once. The blob of the layer is pushed once.
        let mut seen = BTreeSet::new();
        let blobs: Vec<_> = inherited
            .chain(own)
            .filter(|(blob, _)| seen.insert(blob.digest.clone()))
            .collect();
        stream::iter(blobs)
            .map(Ok)
            .try_for_each_concurrent(CONCURRENCY, |(blob, origin)| self.push(blob, origin, push))
            .await
    }

    async fn push_config(&self, image: &Image, push: Push) -> Result<(), Error> {
        let bytes = Bytes::from(image.config.clone());
        let blob = Blob::of(&bytes);
        self.push(blob, Origin::Bytes(bytes), push).await
    }

    async fn push(&self, blob: Blob, origin: Origin<'_>, push: Push) -> Result<(), Error> {
        self.retried(|| self.try_push(&blob, &origin, push)).await
    }

    async fn try_push(&self, blob: &Blob, origin: &Origin<'_>, push: Push) -> Result<(), Error> {
        if push == Push::IfMissing && self.target.has_blob(&blob.digest).await? {
            return Ok(());
        }
        match origin {
            Origin::Base => self.mount_or_copy(blob).await,
            Origin::Layer(layer) => {
                let content = file(&layer.file, layer.size).await?;
                self.target.upload(None, blob, content).await
            }
            Origin::Bytes(bytes) => {
                let content = in_memory(bytes.clone());
                self.target.upload(None, blob, content).await
            }
        }
    }

    async fn mount_or_copy(&self, blob: &Blob) -> Result<(), Error> {
        let upload_url = match self.mount(&blob.digest).await {
            Mount::Done => return Ok(()),
            Mount::Refused(upload_url) => upload_url,
        };
        let content = self
            .source
            .download(blob)
            .await
            .map_err(|error| self.base_error(error))?;
        self.target.upload(upload_url, blob, content).await
    }

    /// Mounts a blob from the repository of the base image. A failed mount is not an error, because the blob can be copied.
    async fn mount(&self, digest: &Digest) -> Mount {
        self.try_mount(digest).await.unwrap_or_else(|error| {
            debug!(%digest, %error, "failed to mount a layer; copying the layer");
            Mount::Refused(None)
        })
    }

    async fn try_mount(&self, digest: &Digest) -> Result<Mount, Error> {
        if !self.mounts_are_open().await? {
            return Ok(Mount::Refused(None));
        }
        let mount = || self.mounts.mount(digest, self.base.name());
        let mounted = match mount().await {
            // The token may have expired: retry once with a new token.
            Err(error) if error.may_be_the_token() => {
                self.mounts.forget_token().await;
                mount().await
            }
            other => other,
        };
        if let Err(error) = &mounted {
            *self.may_mount.lock().await &= error.is_not_found() || error.is_transient();
        }
        mounted
    }

    /// Whether to try to mount blobs. First requests a token that permits mounts. Fails if this request fails. After a permanent failure,
    /// all further layers are copied instead of mounted.
    async fn mounts_are_open(&self) -> Result<bool, Error> {
        let mut may_mount = self.may_mount.lock().await;
        if *may_mount && let Err(error) = self.mounts.sign_in().await {
            *may_mount = error.is_transient();
            return Err(error);
        }
        Ok(*may_mount)
    }

    async fn push_manifest(&self, media_type: &str, manifest: Bytes) -> Result<Digest, Error> {
        match self
            .retried(|| self.try_push_manifest(media_type, &manifest))
            .await
        {
            Ok(digest) => Ok(digest),
            // Another client may have created the tag concurrently. A registry with immutable tags then refuses the push. The error differs
            // between registries, so check whether the tag exists.
            Err(error) if error.may_be_the_tag() => match self.existing().await {
                Ok(Some(existing)) => Ok(existing),
                _ => Err(error),
            },
            Err(error) => Err(error),
        }
    }

    /// Pushes the manifest, unless another client has created the tag. Returns the manifest digest of the image with the tag.
    async fn try_push_manifest(&self, media_type: &str, manifest: &Bytes) -> Result<Digest, Error> {
        if let Some(existing) = self.tagged().await? {
            return Ok(existing);
        }
        let digest = Digest::of(manifest);
        let (status, reported) = self
            .target
            .put_manifest(self.tag, media_type, manifest)
            .await?;
        let stored = match (status, reported) {
            (StatusCode::CREATED, None) => self.tagged().await?.map(|digest| digest.to_string()),
            (StatusCode::CREATED | StatusCode::OK | StatusCode::ACCEPTED, reported) => reported,
            _ => None,
        };
        match stored {
            Some(stored) if stored == digest.as_str() => Ok(digest),
            Some(other) => Err(self.target.call.refused(
                Failure::Other,
                format!(
                    "the digest of the pushed manifest is {digest}, but the registry reports {}",
                    short(&other)
                ),
            )),
            None => Err(self.target.call.refused(
                Failure::Other,
                format!("status {status}, but the registry did not store the manifest {digest}"),
            )),
        }
    }

    /// Runs `work`. Repeats `work` after transient failures, and once with new tokens if the registry refuses a token.
    async fn retried<T, F>(&self, work: impl Fn() -> F) -> Result<T, Error>
    where
        F: Future<Output = Result<T, Error>>,
    {
        let attempt = || async {
            match work().await {
                Err(error) if error.may_be_the_token() => {
                    self.source.forget_token().await;
                    self.target.forget_token().await;
                    work().await
                }
                other => other,
            }
        };
        let delays = ExponentialBuilder::default()
            .with_min_delay(self.registry.shared.options.retry_delay)
            .with_max_delay(MAX_DELAY)
            .with_max_times(RETRIES)
            .with_jitter();
        attempt
            .retry(delays)
            .when(Error::is_transient)
            .notify(|error, delay| debug!(%error, ?delay, "retrying"))
            .await
    }

    /// Converts the error of a request for the base image: [`Failure::NotFound`] becomes [`Error::BaseImageNotFound`].
    fn base_error(&self, error: Error) -> Error {
        match error {
            Error::Request {
                failure: Failure::NotFound,
                detail,
                ..
            } => Error::BaseImageNotFound {
                subject: self.base.to_string(),
                detail,
            },
            other => other,
        }
    }

    fn invalid_base(&self, why: &str) -> Error {
        Error::InvalidBaseImage {
            subject: self.base.to_string(),
            why: short(why),
        }
    }
}
