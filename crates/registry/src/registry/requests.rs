//! Sends requests to one repository. Bounds the size of responses.

use bytes::Bytes;
use reqwest::{RequestBuilder, Response, header};

use super::{authenticated_call::Call, session::is_of_registry};
use crate::{
    error::{Error, Failure, response},
    image::{DOCKER_LIST, DOCKER_MANIFEST, OCI_INDEX, OCI_MANIFEST},
};

/// Maximum size of a tag list or an image config, in bytes.
const ANSWER: usize = 8 << 20;
/// Maximum size of a manifest, in bytes:
/// <https://github.com/opencontainers/distribution-spec/blob/main/spec.md#pushing-manifests>.
pub(super) const MANIFEST: usize = 4 << 20;
/// Maximum number of bytes that are read from the body of an error response. The value is low, because the number of concurrent requests,
/// and so of buffers, has no limit. An error message shows at most 300 bytes.
const ERROR: usize = 64 << 10;
/// Accepted media types of manifests.
pub(super) const MANIFESTS: [&str; 4] = [OCI_MANIFEST, DOCKER_MANIFEST, OCI_INDEX, DOCKER_LIST];

impl Call<'_> {
    /// Sends a request and reads the response. Fails if the status is not a success, or if the body exceeds [`ANSWER`] bytes.
    pub(super) async fn send(&self, request: RequestBuilder) -> Result<BufferedResponse, Error> {
        self.send_bounded(request, ANSWER).await
    }

    /// Sends a request and reads the response. Fails if the status is not a success, or if the body exceeds `limit` bytes.
    pub(super) async fn send_bounded(
        &self,
        request: RequestBuilder,
        limit: usize,
    ) -> Result<BufferedResponse, Error> {
        let mut response = self.open(request).await?;
        let body = self.body(&mut response, limit).await?;
        Ok(BufferedResponse {
            headers: response.headers().clone(),
            body,
        })
    }

    /// Sends a request and returns the response without reading its body. Fails if the status is not a success.
    pub(super) async fn open(&self, request: RequestBuilder) -> Result<Response, Error> {
        self.open_with(request, response::read_answer).await
    }

    /// Like [`Self::open`] for a request with the content of a blob, but fails with [`Failure::UploadLost`] if the registry has lost the
    /// upload session.
    pub(super) async fn open_upload(&self, request: RequestBuilder) -> Result<Response, Error> {
        self.open_with(request, response::read_upload_answer).await
    }

    async fn open_with(
        &self,
        request: RequestBuilder,
        read: fn(u16, &[u8]) -> (Failure, String),
    ) -> Result<Response, Error> {
        let mut response = request
            .send()
            .await
            .map_err(|error| self.transport_error(&error))?;
        let status = response.status();
        if status.is_success() {
            return Ok(response);
        }
        if status.is_redirection() {
            let detail = format!("status {status}: the redirect is not followed");
            return Err(self.refused(Failure::Other, detail));
        }
        // Error messages quote a response only if the registry sent it. A response of another host, to which a redirect or an upload URL
        // refers, is not quoted.
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

    /// Reads the body. Stops after the chunk with which the body exceeds `limit` bytes.
    async fn begin_body(&self, response: &mut Response, limit: usize) -> Result<Vec<u8>, Error> {
        let mut body = Vec::new();
        while body.len() <= limit
            && let Some(chunk) = self.chunk(response).await?
        {
            body.extend_from_slice(&chunk);
        }
        Ok(body)
    }

    async fn chunk(&self, response: &mut Response) -> Result<Option<Bytes>, Error> {
        response
            .chunk()
            .await
            .map_err(|error| self.transport_error(&error))
    }

    fn too_large(&self, limit: usize) -> Error {
        self.refused(
            Failure::Other,
            format!("the response is larger than {limit} bytes"),
        )
    }
}

/// Body of a response, in chunks.
pub(super) struct Body<'a> {
    call: &'a Call<'a>,
    response: Response,
    /// Maximum size of the body, in bytes.
    limit: usize,
    /// Size of the chunks so far, in bytes.
    size: usize,
}

impl<'a> Body<'a> {
    /// Sends `request`. Fails if the status of the response is not a success. `limit`: maximum size of the body, in bytes.
    pub(super) async fn open(
        call: &'a Call<'a>,
        request: RequestBuilder,
        limit: usize,
    ) -> Result<Self, Error> {
        Ok(Self {
            call,
            response: call.open(request).await?,
            limit,
            size: 0,
        })
    }

    /// Returns the next chunk; `None` at the end. Fails if the body exceeds its maximum size.
    pub(super) async fn chunk(&mut self) -> Result<Option<Bytes>, Error> {
        let chunk = self.call.chunk(&mut self.response).await?;
        self.size += chunk.as_ref().map_or(0, Bytes::len);
        if self.size > self.limit {
            return Err(self.call.too_large(self.limit));
        }
        Ok(chunk)
    }
}

/// A successful response.
pub(super) struct BufferedResponse {
    pub(super) headers: header::HeaderMap,
    pub(super) body: Vec<u8>,
}
