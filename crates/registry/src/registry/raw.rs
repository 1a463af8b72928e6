//! Requests that oci-client does not make: all tags, page by page, what an image says of itself, deletions.

use std::collections::BTreeSet;

use oci_client::{
    errors::{OciDistributionError, OciEnvelope},
    secrets::RegistryAuth,
};
use reqwest::{Client, Method, RequestBuilder, Response, StatusCode, header};
use serde_json::Value;

use super::calls::Call;
use crate::{
    artifact,
    error::Error,
    prune::{Found, Ours, is_cache_tag, is_context_tag, is_image_tag, read_config},
    reference::Digest,
};

/// Bytes of an answer.
const ANSWER: usize = 8 << 20;
/// Tags of one page.
const PAGE: usize = 500;
/// The forms of manifests that registries keep.
const MANIFESTS: [&str; 4] = [
    artifact::MANIFEST_TYPE,
    "application/vnd.docker.distribution.manifest.v2+json",
    "application/vnd.oci.image.index.v1+json",
    "application/vnd.docker.distribution.manifest.list.v2+json",
];

/// The way into one repository.
pub(super) struct Raw {
    http: Client,
    base: String,
    repository: String,
    auth: RegistryAuth,
}

impl Raw {
    /// A request for what is at `path` of the repository.
    pub(super) fn request(&self, method: Method, path: &str) -> RequestBuilder {
        let url = format!("{}/v2/{}/{path}", self.base, self.repository);
        let request = self.http.request(method, url);
        match &self.auth {
            RegistryAuth::Anonymous => request,
            RegistryAuth::Basic(user, password) => request.basic_auth(user, Some(password)),
            RegistryAuth::Bearer(token) => request.bearer_auth(token),
        }
    }
}

impl Call<'_> {
    /// Signs in.
    pub(super) async fn raw(&self) -> Result<Raw, Error> {
        let (host, grant) = self.grant().await?;
        Ok(Raw {
            http: self.inner.http.clone(),
            base: self.base(&host),
            repository: self.name.repository().to_owned(),
            auth: grant.auth,
        })
    }

    /// Sends a request whose answer must be good.
    pub(super) async fn send(&self, request: RequestBuilder) -> Result<Answer, Error> {
        let response = request.send().await;
        let mut response = response.map_err(|error| self.failed(&error.into()))?;
        let body = self.body(&mut response).await?;
        let status = response.status();
        if status.is_success() {
            let headers = response.headers().clone();
            return Ok(Answer { headers, body });
        }
        let url = response.url().to_string();
        // The status says more than an envelope that says nothing.
        let unsupported = status == StatusCode::METHOD_NOT_ALLOWED;
        let error = match serde_json::from_slice::<OciEnvelope>(&body) {
            Ok(envelope) if !unsupported && !envelope.errors.is_empty() => {
                OciDistributionError::RegistryError { envelope, url }
            }
            _ => OciDistributionError::ServerError {
                code: status.as_u16(),
                url,
                message: String::from_utf8_lossy(&body).into_owned(),
            },
        };
        Err(self.failed(&error))
    }

    async fn body(&self, response: &mut Response) -> Result<Vec<u8>, Error> {
        let mut body = Vec::new();
        while let Some(chunk) = response
            .chunk()
            .await
            .map_err(|error| self.failed(&error.into()))?
        {
            body.extend_from_slice(&chunk);
            if body.len() > ANSWER {
                let without_end =
                    OciDistributionError::GenericError(Some("an answer without end".into()));
                return Err(self.failed(&without_end));
            }
        }
        Ok(body)
    }

    /// What is there, as far as pruning must know it.
    pub(super) async fn inventory(&self) -> Result<Vec<Found>, Error> {
        let raw = self.raw().await?;
        let mut found = Vec::new();
        let tags = self.tags(&raw).await?;
        for tag in tags
            .into_iter()
            .filter(|tag| !is_cache_tag(tag) && !is_context_tag(tag))
        {
            found.extend(self.found(&raw, tag).await?);
        }
        Ok(found)
    }

    /// All tags. Some registries know no pages and send all at once, again and again.
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
            let body: Value = serde_json::from_slice(&answer.body).unwrap_or_default();
            let page = body.get("tags").and_then(Value::as_array);
            let page = page.into_iter().flatten().filter_map(Value::as_str);
            let page: Vec<String> = page.map(str::to_owned).collect();
            let more = answer.headers.contains_key(header::LINK) || page.len() >= PAGE;
            let before = tags.len();
            last = page.last().cloned();
            tags.extend(page);
            if !more || tags.len() == before {
                return Ok(tags);
            }
        }
    }

    /// The manifest of `tag`, unless somebody was faster and removed it.
    async fn found(&self, raw: &Raw, tag: String) -> Result<Option<Found>, Error> {
        let request = raw.request(Method::GET, &format!("manifests/{tag}"));
        let request = request.header(header::ACCEPT, MANIFESTS.join(", "));
        let answer = match self.send(request).await {
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
        let manifest: Value = serde_json::from_slice(manifest).unwrap_or_default();
        let config = manifest.pointer("/config/digest").and_then(Value::as_str);
        let Some(config) = config.and_then(|digest| Digest::parse(digest).ok()) else {
            return Ok(None);
        };
        let request = raw.request(Method::GET, &format!("blobs/{config}"));
        match self.send(request).await {
            Err(error) if error.is_not_found() => Ok(None),
            other => Ok(read_config(&other?.body)),
        }
    }

    pub(super) async fn delete(&self, digest: &Digest) -> Result<(), Error> {
        let raw = self.raw().await?;
        let request = raw.request(Method::DELETE, &format!("manifests/{digest}"));
        match self.send(request).await {
            Err(error) if error.is_not_found() => Ok(()),
            other => other.map(drop),
        }
    }
}

/// A good answer.
pub(super) struct Answer {
    headers: header::HeaderMap,
    body: Vec<u8>,
}
