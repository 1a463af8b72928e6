//! Content of a blob from a registry, verified against its digest.

use bytes::Bytes;
use futures::{Stream, stream};
use reqwest::Response;

use crate::{
    error::{Error, response::read_request},
    image::Blob,
    reference::{Digest, Hasher},
    registry::authenticated_call::Call,
};

/// Download of a blob. Returns each chunk only after the next chunk has arrived, and the last chunk only after the digest is verified. A
/// blob with the wrong content is therefore never copied completely.
pub(super) struct Download {
    response: Response,
    /// `None` after the last chunk.
    hasher: Option<Hasher>,
    digest: Digest,
    /// Number of bytes that have not been received yet.
    left: u64,
    held: Option<Bytes>,
    action: &'static str,
    subject: String,
}

impl Download {
    /// Reads `blob` from `response`. Errors describe `call`.
    pub(super) fn new(call: &Call<'_>, response: Response, blob: &Blob) -> Self {
        Self {
            response,
            hasher: Some(blob.digest.hasher()),
            digest: blob.digest.clone(),
            left: blob.size,
            held: None,
            action: call.action,
            subject: call.subject.clone(),
        }
    }

    pub(super) fn stream(self) -> impl Stream<Item = Result<Bytes, Error>> + Send {
        stream::try_unfold(self, Self::next)
    }

    async fn next(mut self) -> Result<Option<(Bytes, Self)>, Error> {
        while let Some(mut hasher) = self.hasher.take() {
            let chunk = self.response.chunk().await;
            let Some(chunk) = chunk.map_err(|error| self.transport_error(&error))? else {
                if self.left > 0 || hasher.finish() != self.digest {
                    return Err(self.other_content());
                }
                return Ok(self.held.take().map(|last| (last, self)));
            };
            self.left = self
                .left
                .checked_sub(chunk.len() as u64)
                .ok_or_else(|| self.other_content())?;
            hasher.update(&chunk);
            self.hasher = Some(hasher);
            if let Some(held) = self.held.replace(chunk) {
                return Ok(Some((held, self)));
            }
        }
        Ok(None)
    }

    fn transport_error(&self, error: &reqwest::Error) -> Error {
        let (failure, detail) = read_request(error);
        Error::Request {
            action: self.action,
            subject: self.subject.clone(),
            failure,
            detail,
        }
    }

    fn other_content(&self) -> Error {
        Error::InvalidBaseImage {
            subject: self.subject.clone(),
            why: format!("the content does not match {}", self.digest),
        }
    }
}
