//! Uploads and downloads of manifests and blobs of one repository. Blobs are transferred as streams.

mod download;
mod progress;

use std::{sync::Arc, time::Instant};

use bytes::Bytes;
use futures::Stream;
use reqwest::{Method, Response, StatusCode, Url, header};
use tokio::sync::Mutex;

use download::Download;
use progress::{Progress, Stalled};

use super::{authenticated_call::Call, requests::MANIFESTS, session::Session};
use crate::{
    error::{Error, Failure},
    image::Blob,
    name::ImageName,
    reference::Digest,
};

pub(super) const CONTENT_DIGEST: &str = "docker-content-digest";
const BLOB_TYPE: &str = "application/octet-stream";

/// A repository, and the token for requests to it. The token is renewed before it expires.
pub(super) struct Repository<'a> {
    pub(super) call: Call<'a>,
    /// Repository of the same registry from which blobs are mounted. The token permits pulls from it.
    source: Option<&'a ImageName>,
    session: Mutex<Option<Arc<Session>>>,
}

/// Kind of content that is read by digest.
#[derive(Clone, Copy)]
pub(super) enum Content {
    Manifest,
    Blob,
}

impl Content {
    fn path(self) -> &'static str {
        match self {
            Self::Manifest => "manifests",
            Self::Blob => "blobs",
        }
    }

    fn accept(self) -> String {
        match self {
            Self::Manifest => MANIFESTS.join(", "),
            Self::Blob => "*/*".to_owned(),
        }
    }
}

/// Response to a mount request.
pub(super) enum Mount {
    /// The repository has the blob.
    Done,
    /// The blob must be uploaded. Contains the upload URL if the registry has started an upload.
    Refused(Option<Url>),
}

impl<'a> Repository<'a> {
    pub(super) fn new(call: Call<'a>, source: Option<&'a ImageName>) -> Self {
        Self {
            call,
            source,
            session: Mutex::default(),
        }
    }

    /// Returns the repository with the authorization of `session`.
    pub(super) fn opened(call: Call<'a>, session: Arc<Session>) -> Self {
        Self {
            call,
            source: None,
            session: Mutex::new(Some(session)),
        }
    }

    /// Discards the token. The next request obtains a new one.
    pub(super) async fn forget_token(&self) {
        *self.session.lock().await = None;
    }

    async fn session(&self) -> Result<Arc<Session>, Error> {
        let mut kept = self.session.lock().await;
        if let Some(session) = kept
            .as_ref()
            .filter(|session| session.renew_at > Instant::now())
        {
            return Ok(session.clone());
        }
        let session = Arc::new(
            self.with_timeout(self.call.authenticate(self.source))
                .await?,
        );
        *kept = Some(session.clone());
        Ok(session)
    }

    /// Obtains a token. Without this call, the first request obtains the token.
    pub(super) async fn sign_in(&self) -> Result<(), Error> {
        self.session().await.map(drop)
    }

    /// Runs a request. Fails if the request takes longer than `Options::timeout`.
    async fn with_timeout<T>(
        &self,
        work: impl Future<Output = Result<T, Error>>,
    ) -> Result<T, Error> {
        let time = self.call.shared.options.timeout;
        self.call.with_timeout(time, work).await
    }

    /// Reads a manifest or a blob of at most `limit` bytes. The caller verifies the digest.
    pub(super) async fn read(
        &self,
        content: Content,
        digest: &Digest,
        limit: usize,
    ) -> Result<Vec<u8>, Error> {
        self.with_timeout(async {
            let request = self
                .session()
                .await?
                .request(Method::GET, &format!("{}/{digest}", content.path()))
                .header(header::ACCEPT, content.accept());
            Ok(self.call.send_bounded(request, limit).await?.body)
        })
        .await
    }

    pub(super) async fn has_blob(&self, digest: &Digest) -> Result<bool, Error> {
        match self.open_blob(Method::HEAD, digest).await {
            Ok(_) => Ok(true),
            Err(error) if error.is_not_found() => Ok(false),
            Err(error) => Err(error),
        }
    }

    async fn open_blob(&self, method: Method, digest: &Digest) -> Result<Response, Error> {
        self.with_timeout(async {
            let path = format!("blobs/{digest}");
            let request = self.session().await?.request(method, &path);
            self.call.open(request).await
        })
        .await
    }

    /// Requests a mount of a blob from the repository `from`.
    pub(super) async fn mount(&self, digest: &Digest, from: &ImageName) -> Result<Mount, Error> {
        let query = [("mount", digest.as_str()), ("from", from.repository())];
        let response = self.post_upload(&query).await?;
        if response.status() == StatusCode::CREATED {
            return Ok(Mount::Done);
        }
        Ok(Mount::Refused(upload_url(&response).ok()))
    }

    async fn post_upload(&self, query: &[(&str, &str)]) -> Result<Response, Error> {
        self.with_timeout(async {
            let request = self
                .session()
                .await?
                .request(Method::POST, "blobs/uploads/")
                .header(header::CONTENT_LENGTH, 0)
                .query(query);
            self.call.open(request).await
        })
        .await
    }

    async fn begin_upload(&self) -> Result<Url, Error> {
        let response = self.post_upload(&[]).await?;
        upload_url(&response).map_err(|why| self.call.refused(Failure::Other, why.to_owned()))
    }

    /// Uploads a blob in one request. `upload_url`: URL of an upload that the registry has started; with `None`, requests a new upload
    /// first. Fails if no byte is sent within `Options::timeout`, or if the registry does not respond within `Options::transfer_timeout`
    /// after the last byte.
    pub(super) async fn upload(
        &self,
        upload_url: Option<Url>,
        blob: &Blob,
        content: impl Stream<Item = Result<Bytes, Error>> + Send + 'static,
    ) -> Result<(), Error> {
        let mut upload_url = match upload_url {
            Some(upload_url) => upload_url,
            None => self.begin_upload().await?,
        };
        upload_url
            .query_pairs_mut()
            .append_pair("digest", blob.digest.as_str());
        let progress = Arc::new(Progress::new(blob.size));
        let request = self
            .session()
            .await?
            .request_to(Method::PUT, upload_url)
            .header(header::CONTENT_TYPE, BLOB_TYPE)
            .header(header::CONTENT_LENGTH, blob.size)
            .body(progress.body(content));
        let options = &self.call.shared.options;
        let put = progress.watch(
            self.call.open_upload(request),
            options.timeout,
            options.transfer_timeout,
        );
        match put.await {
            Ok(Ok(response)) => self.stored(&blob.digest, response.status()).await,
            Ok(Err(error)) => Err(progress.fault().unwrap_or(error)),
            Err(Stalled(after)) => Err(self.call.timeout_error(after)),
        }
    }

    /// Verifies that the registry has stored the blob. For a status other than 201, checks whether the registry has the blob.
    async fn stored(&self, digest: &Digest, status: StatusCode) -> Result<(), Error> {
        if status == StatusCode::CREATED || self.has_blob(digest).await? {
            return Ok(());
        }
        let detail = format!("status {status}, but the registry did not store blob {digest}");
        Err(self.call.refused(Failure::UploadLost, detail))
    }

    /// Returns the content of a blob as a stream. If size or digest do not match, the stream fails before its last chunk.
    pub(super) async fn download(
        &self,
        blob: &Blob,
    ) -> Result<impl Stream<Item = Result<Bytes, Error>> + Send + use<>, Error> {
        let response = self.open_blob(Method::GET, &blob.digest).await?;
        Ok(Download::new(&self.call, response, blob).stream())
    }

    /// Pushes a manifest. `reference` is a tag or the digest of the manifest. Returns the HTTP status, and the digest if the registry
    /// reports it.
    pub(super) async fn put_manifest(
        &self,
        reference: &str,
        media_type: &str,
        manifest: &Bytes,
    ) -> Result<(StatusCode, Option<String>), Error> {
        self.with_timeout(async {
            let request = self
                .session()
                .await?
                .request(Method::PUT, &format!("manifests/{reference}"))
                .header(header::CONTENT_TYPE, media_type)
                .body(manifest.clone());
            let response = self.call.open(request).await?;
            let digest = response
                .headers()
                .get(CONTENT_DIGEST)
                .map(|value| String::from_utf8_lossy(value.as_bytes()).into_owned());
            Ok((response.status(), digest))
        })
        .await
    }
}

/// Returns the URL of an upload that the registry has started.
fn upload_url(response: &Response) -> Result<Url, &'static str> {
    let location = response
        .headers()
        .get(header::LOCATION)
        .and_then(|value| value.to_str().ok())
        .unwrap_or_default();
    resolve(response.url(), location)
}

fn resolve(from: &Url, location: &str) -> Result<Url, &'static str> {
    if location.is_empty() {
        return Err("the registry returned no upload URL");
    }
    let url = from
        .join(location)
        .map_err(|_| "the registry returned an invalid upload URL")?;
    match (from.scheme(), url.scheme()) {
        (_, "https") | ("http", "http") => Ok(url),
        (_, "http") => Err("the registry returned an upload URL with plain http"),
        _ => Err("the registry returned an upload URL that is neither https nor http"),
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case(
        "https://r/v2/x/uploads/",
        "/v2/x/u?state=a%3D",
        "https://r/v2/x/u?state=a%3D"
    )]
    #[case("http://r/v2/", "http://s:1/u", "http://s:1/u")]
    #[case("http://r/v2/", "https://s/u", "https://s/u")]
    #[case("https://r/v2/", "//s/u", "https://s/u")]
    fn upload_address_is_resolved(#[case] from: &str, #[case] to: &str, #[case] expected: &str) {
        let url = resolve(&Url::parse(from).unwrap(), to).unwrap();
        assert_eq!(url.as_str(), expected);
    }

    #[rstest]
    #[case("http://r/u", "plain http")]
    #[case("file:///etc/passwd", "neither")]
    #[case("https://", "invalid")]
    #[case("", "no upload URL")]
    fn unsafe_upload_address_is_refused(#[case] to: &str, #[case] word: &str) {
        let why = resolve(&Url::parse("https://r/v2/").unwrap(), to).unwrap_err();
        assert!(why.contains(word), "{why}");
    }
}
