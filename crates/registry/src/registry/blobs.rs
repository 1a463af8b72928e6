//! Uploads and downloads of manifests and blobs of one repository. Blobs are transferred as streams.

use std::{
    io,
    path::Path,
    pin::pin,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use bytes::{Bytes, BytesMut};
use futures::{Stream, StreamExt as _, stream};
use reqwest::{Body, Method, Response, StatusCode, Url, header};
use tokio::{fs::File, io::AsyncReadExt as _, sync::Mutex, time::timeout};

use super::{authenticated_call::Call, requests::MANIFESTS, session::Session};
use crate::{
    error::{Error, Failure, read_request},
    image::{Blob, Layer},
    name::ImageName,
    reference::{Digest, Hasher},
};

/// Size of the chunks in which files are read, in bytes.
const CHUNK: usize = 128 << 10;
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
        let download = Download {
            response: self.open_blob(Method::GET, &blob.digest).await?,
            hasher: Some(blob.digest.hasher()),
            digest: blob.digest.clone(),
            left: blob.size,
            held: None,
            action: self.call.action,
            subject: self.call.subject.clone(),
        };
        Ok(stream::try_unfold(download, Download::next))
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

/// Returns the content of the file of a layer as a stream.
pub(super) async fn file(
    layer: &Layer,
) -> Result<impl Stream<Item = Result<Bytes, Error>> + Send + use<>, Error> {
    let path = layer.file.clone();
    let failed = move |why: String| Error::LayerFile {
        file: path.clone(),
        why,
    };
    let (file, size) = open_file(&layer.file)
        .await
        .map_err(|error| failed(error.to_string()))?;
    if size != layer.size {
        return Err(failed(format!(
            "the file has {size} bytes, not {}",
            layer.size
        )));
    }
    let chunks = stream::try_unfold(file.take(size), |mut file| async {
        let mut chunk = BytesMut::with_capacity(CHUNK);
        let read = file.read_buf(&mut chunk).await?;
        io::Result::Ok((read > 0).then(|| (chunk.freeze(), file)))
    });
    Ok(chunks.map(move |chunk| chunk.map_err(|error| failed(error.to_string()))))
}

async fn open_file(path: &Path) -> io::Result<(File, u64)> {
    let file = File::open(path).await?;
    let size = file.metadata().await?.len();
    Ok((file, size))
}

/// Returns `bytes` as a stream of one chunk.
pub(super) fn in_memory(bytes: Bytes) -> impl Stream<Item = Result<Bytes, Error>> + Send {
    stream::iter([Ok(bytes)])
}

/// Download of a blob. Returns each chunk only after the next chunk has arrived, and the last chunk only after the digest is verified. A
/// blob with the wrong content is therefore never copied completely.
struct Download {
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

/// Progress of an upload.
struct Progress {
    size: u64,
    sent: AtomicU64,
    /// Error that ended the reading of the content to upload; `None` without an error.
    fault: parking_lot::Mutex<Option<Error>>,
}

/// Error of an upload that made no progress for the contained duration.
struct Stalled(Duration);

impl Progress {
    fn new(size: u64) -> Self {
        Self {
            size,
            sent: AtomicU64::new(0),
            fault: parking_lot::Mutex::default(),
        }
    }

    /// Returns a request body that records its progress and its error in `self`.
    fn body(
        self: &Arc<Self>,
        content: impl Stream<Item = Result<Bytes, Error>> + Send + 'static,
    ) -> Body {
        let progress = self.clone();
        Body::wrap_stream(content.map(move |chunk| progress.note(chunk)))
    }

    fn note(&self, chunk: Result<Bytes, Error>) -> io::Result<Bytes> {
        match chunk {
            Ok(chunk) => {
                self.sent.fetch_add(chunk.len() as u64, Ordering::Relaxed);
                Ok(chunk)
            }
            Err(error) => {
                *self.fault.lock() = Some(error);
                Err(io::Error::other("failed to read the content of the upload"))
            }
        }
    }

    fn fault(&self) -> Option<Error> {
        self.fault.lock().take()
    }

    /// Waits for `work`, an upload. Fails if no byte is sent within `stall`, or if `work` does not end within `end` after the last byte.
    /// Checks the progress at intervals of `stall` until the last byte is sent, and then at intervals of `end`. An idle upload therefore
    /// fails after at most two intervals.
    async fn watch<T>(
        &self,
        work: impl Future<Output = T>,
        stall: Duration,
        end: Duration,
    ) -> Result<T, Stalled> {
        let mut work = pin!(work);
        loop {
            let before = self.sent.load(Ordering::Relaxed);
            let patience = if before < self.size { stall } else { end };
            match timeout(patience, &mut work).await {
                Ok(done) => return Ok(done),
                Err(_) if self.sent.load(Ordering::Relaxed) == before => {
                    return Err(Stalled(patience));
                }
                Err(_) => {}
            }
        }
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

    #[tokio::test(start_paused = true)]
    async fn upload_without_progress_is_stalled() {
        let progress = Progress::new(2);
        let stall = Duration::from_secs(1);
        let end = Duration::from_mins(1);
        let stuck = progress.watch(std::future::pending::<()>(), stall, end);
        assert_eq!(stuck.await.unwrap_err().0, stall);
        let slow = async {
            for _ in 0..2 {
                tokio::time::sleep(Duration::from_millis(1500)).await;
                progress.note(Ok(Bytes::from_static(b"x"))).unwrap();
            }
            tokio::time::sleep(Duration::from_secs(59)).await;
        };
        let stall = Duration::from_secs(2);
        assert!(progress.watch(slow, stall, end).await.is_ok());
        let stuck = progress.watch(std::future::pending::<()>(), stall, end);
        assert_eq!(stuck.await.unwrap_err().0, end);
    }
}
