//! Requests to one repository, with bounded responses. For pruning, lists tags and image labels, and deletes manifests.

use std::collections::BTreeSet;

use reqwest::{Method, RequestBuilder, Response, header};
use serde::Deserialize;

use super::{
    calls::Call,
    raw::{Raw, is_of_registry},
    tags::{TAGS, TagList},
};
use crate::{
    error::{self, Error, Failure},
    image::{DOCKER_LIST, DOCKER_MANIFEST, OCI_INDEX, OCI_MANIFEST},
    prune::{Found, Ours, is_cache_tag, is_context_tag, is_image_tag, read_config},
    reference::Digest,
};

/// Maximum size of a tag list or an image config, in bytes.
const ANSWER: usize = 8 << 20;
/// Maximum size of a manifest, in bytes:
/// <https://github.com/opencontainers/distribution-spec/blob/main/spec.md#pushing-manifests>.
pub(super) const MANIFEST: usize = 4 << 20;
/// Maximum number of bytes that are read from the body of an error response. The value is low, because the number of concurrent requests
/// has no limit. An error message shows at most 300 bytes.
const ERROR: usize = 64 << 10;
/// Number of tags per page.
const PAGE: usize = 500;
/// Accepted media types of manifests.
pub(super) const MANIFESTS: [&str; 4] = [OCI_MANIFEST, DOCKER_MANIFEST, OCI_INDEX, DOCKER_LIST];

impl Call<'_> {
    /// Sends a request and reads the response. Fails if the status is not a success, or if the body exceeds [`ANSWER`] bytes.
    pub(super) async fn send(&self, request: RequestBuilder) -> Result<Answer, Error> {
        self.send_bounded(request, ANSWER).await
    }

    /// Sends a request and reads the response. Fails if the status is not a success, or if the body exceeds `limit` bytes.
    pub(super) async fn send_bounded(
        &self,
        request: RequestBuilder,
        limit: usize,
    ) -> Result<Answer, Error> {
        let mut response = self.open(request).await?;
        let body = self.body(&mut response, limit).await?;
        Ok(Answer {
            headers: response.headers().clone(),
            body,
        })
    }

    /// Sends a request and returns the response without reading its body. Fails if the status is not a success.
    pub(super) async fn open(&self, request: RequestBuilder) -> Result<Response, Error> {
        self.open_with(request, error::read_answer).await
    }

    /// Like [`Self::open`] for a request with the content of a blob, but recognises a lost upload session.
    pub(super) async fn open_upload(&self, request: RequestBuilder) -> Result<Response, Error> {
        self.open_with(request, error::read_upload_answer).await
    }

    async fn open_with(
        &self,
        request: RequestBuilder,
        read: fn(u16, &[u8]) -> (Failure, String),
    ) -> Result<Response, Error> {
        let mut response = request.send().await.map_err(|error| self.broken(&error))?;
        let status = response.status();
        if status.is_success() {
            return Ok(response);
        }
        if status.is_redirection() {
            let detail = format!("status {status}: the redirect is not followed");
            return Err(self.refused(Failure::Other, detail));
        }
        // Error messages contain response text only of the registry, not of other hosts to which its redirects and upload URLs refer.
        let body = if is_of_registry(&self.registry_url(), response.url()) {
            self.begin_body(&mut response, ERROR).await?
        } else {
            Vec::new()
        };
        let (failure, detail) = read(status.as_u16(), &body);
        Err(self.refused(failure, detail))
    }

    async fn body(&self, response: &mut Response, limit: usize) -> Result<Vec<u8>, Error> {
        let body = self.begin_body(response, limit).await?;
        if body.len() > limit {
            return Err(self.too_large(limit));
        }
        Ok(body)
    }

    /// Reads the body to its end, or until it exceeds `limit` bytes.
    async fn begin_body(&self, response: &mut Response, limit: usize) -> Result<Vec<u8>, Error> {
        let mut body = Vec::new();
        let take = |chunk: &[u8]| body.extend_from_slice(chunk);
        self.begin_chunks(response, limit, take).await?;
        Ok(body)
    }

    /// Passes the body to `take` in chunks, to its end or until it exceeds `limit` bytes. Returns the number of bytes.
    pub(super) async fn begin_chunks(
        &self,
        response: &mut Response,
        limit: usize,
        mut take: impl FnMut(&[u8]),
    ) -> Result<usize, Error> {
        let mut size = 0;
        while size <= limit
            && let Some(chunk) = response
                .chunk()
                .await
                .map_err(|error| self.broken(&error))?
        {
            size += chunk.len();
            take(&chunk);
        }
        Ok(size)
    }

    pub(super) fn too_large(&self, limit: usize) -> Error {
        self.refused(
            Failure::Other,
            format!("the response is larger than {limit} bytes"),
        )
    }

    /// Returns the tags of the repository with their images, except tags of contexts and of layers in a kaniko cache.
    pub(super) async fn inventory(&self) -> Result<Vec<Found>, Error> {
        let raw = self.raw(None).await?;
        let mut images = Vec::new();
        let tags = self.tags(&raw).await?;
        for tag in tags
            .into_iter()
            .filter(|tag| !is_cache_tag(tag) && !is_context_tag(tag))
        {
            images.extend(self.found(&raw, tag).await?);
        }
        Ok(images)
    }

    /// Returns all tags. Registries without pagination return the complete list in each response.
    async fn tags(&self, raw: &Raw) -> Result<BTreeSet<String>, Error> {
        let mut tags = BTreeSet::new();
        let mut last: Option<String> = None;
        loop {
            let mut request = raw.request(Method::GET, "tags/list").query(&[("n", PAGE)]);
            if let Some(last) = &last {
                request = request.query(&[("last", last)]);
            }
            let answer = match self.send(request).await {
                Err(error) if error.is_not_found() => return Ok(tags),
                other => other?,
            };
            let TagList { tags: page } =
                serde_json::from_slice(&answer.body).map_err(|error| self.invalid_tags(&error))?;
            let page = page.unwrap_or_default();
            let more = answer.headers.contains_key(header::LINK) || page.size >= PAGE;
            let before = tags.len();
            last = page.valid.last().cloned();
            tags.extend(page.valid);
            if page.size > TAGS || tags.len() > TAGS {
                let detail = format!("the registry lists more than {TAGS} tags");
                return Err(self.refused(Failure::Other, detail));
            }
            if !more || tags.len() == before {
                return Ok(tags);
            }
        }
    }

    /// Returns the error for an invalid list of tags. Invalid lists are refused, because an incomplete list could cause the deletion of an
    /// image that has another tag. The message omits the text of the response, which may come from another host after a redirect.
    fn invalid_tags(&self, error: &serde_json::Error) -> Error {
        let (line, column) = (error.line(), error.column());
        let detail = format!("the list of tags is invalid (line {line}, column {column})");
        self.refused(Failure::Other, detail)
    }

    /// Returns digest and metadata of the image with `tag`; `None` if the tag was deleted concurrently.
    async fn found(&self, raw: &Raw, tag: String) -> Result<Option<Found>, Error> {
        let request = raw.request(Method::GET, &format!("manifests/{tag}"));
        let request = request.header(header::ACCEPT, MANIFESTS.join(", "));
        let answer = match self.send_bounded(request, MANIFEST).await {
            Err(error) if error.is_not_found() => return Ok(None),
            other => other?,
        };
        let digest = Digest::of(&answer.body);
        let ours = if is_image_tag(&tag) {
            self.ours(raw, &answer.body).await?
        } else {
            None
        };
        Ok(Some(Found { tag, digest, ours }))
    }

    async fn ours(&self, raw: &Raw, manifest: &[u8]) -> Result<Option<Ours>, Error> {
        let Some(config) = config_digest(manifest) else {
            return Ok(None);
        };
        let request = raw.request(Method::GET, &format!("blobs/{config}"));
        match self.send(request).await {
            Err(error) if error.is_not_found() => Ok(None),
            other => Ok(read_config(&other?.body)),
        }
    }

    pub(super) async fn delete(&self, digest: &Digest) -> Result<(), Error> {
        let raw = self.raw(None).await?;
        let request = raw.request(Method::DELETE, &format!("manifests/{digest}"));
        match self.open(request).await {
            Err(error) if error.is_not_found() => Ok(()),
            other => other.map(drop),
        }
    }
}

/// Fields of an image manifest that pruning reads.
#[derive(Deserialize)]
struct ImageManifest {
    config: ConfigDescriptor,
}

#[derive(Deserialize)]
struct ConfigDescriptor {
    digest: String,
}

/// Returns the digest of the config in a manifest; `None` if the manifest is not that of an image.
fn config_digest(manifest: &[u8]) -> Option<Digest> {
    let manifest: ImageManifest = serde_json::from_slice(manifest).ok()?;
    Digest::parse(&manifest.config.digest).ok()
}

/// A successful response.
pub(super) struct Answer {
    pub(super) headers: header::HeaderMap,
    pub(super) body: Vec<u8>,
}
