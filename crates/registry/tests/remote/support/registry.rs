//! An in-memory registry with blobs and manifests, and with faults injected by tests.

use std::{
    collections::BTreeMap,
    convert::Infallible,
    sync::{Arc, Mutex, MutexGuard},
};

use alustan_registry::{Digest, ImageName, ImageRef};
use axum::{
    Router,
    body::{Body, Bytes},
    extract::{Request, State},
    http::{Response, header},
};
use futures::{StreamExt as _, stream};
use serde_json::{Value, json};
use tokio::net::TcpListener;

use super::fake::Seen;

pub(crate) const OCI_MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";
pub(crate) const OCI_INDEX: &str = "application/vnd.oci.image.index.v1+json";
const OCI_CONFIG: &str = "application/vnd.oci.image.config.v1+json";
pub(crate) const OCI_LAYER: &str = "application/vnd.oci.image.layer.v1.tar+gzip";

/// Fault that the registry injects instead of a correct response.
pub(crate) enum Fault {
    Status(u16),
    /// Sends this status, these headers and this body.
    Answer(u16, Vec<(&'static str, String)>, String),
    /// Sends a body without end.
    Endless,
    /// Sends a status and a body with this number of spaces, and never ends the body.
    Stuck(u16, usize),
    /// Reads the first chunk of the request body and closes the connection.
    Break,
    /// Sends these bytes of the response body and closes the connection.
    Cut(Vec<u8>),
    /// Never answers.
    Hang,
}

type Faults = dyn Fn(&Seen, usize) -> Option<Fault> + Send + Sync;

#[derive(Default)]
struct Repository {
    blobs: BTreeMap<String, Bytes>,
    /// Manifests by digest and by tag.
    manifests: BTreeMap<String, Bytes>,
}

struct Inner {
    host: String,
    /// Accepted `Authorization` header: `Basic …`, or `Bearer` for any token. Empty for anonymous access.
    authorization: String,
    repositories: Mutex<BTreeMap<String, Repository>>,
    seen: Mutex<Vec<Seen>>,
    faults: Box<Faults>,
}

pub(crate) struct FakeRegistry {
    pub(crate) host: String,
    inner: Arc<Inner>,
    task: tokio::task::JoinHandle<()>,
}

impl FakeRegistry {
    /// Starts a registry that injects no faults and requires no credentials.
    pub(crate) async fn honest() -> Self {
        Self::start("", |_, _| None).await
    }

    /// Starts a registry with the faults that `faults` returns. The second argument of `faults` is the number of earlier requests with the
    /// same method and path. `authorization`: the accepted `Authorization` header, or `Bearer` for any token; empty for anonymous access.
    pub(crate) async fn start(
        authorization: &str,
        faults: impl Fn(&Seen, usize) -> Option<Fault> + Send + Sync + 'static,
    ) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let host = listener.local_addr().unwrap().to_string();
        let inner = Arc::new(Inner {
            host: host.clone(),
            authorization: authorization.to_owned(),
            repositories: Mutex::default(),
            seen: Mutex::default(),
            faults: Box::new(faults),
        });
        let app = Router::new().fallback(serve).with_state(inner.clone());
        let task = tokio::spawn(async move { axum::serve(listener, app).await.unwrap() });
        Self { host, inner, task }
    }

    pub(crate) fn name(&self, repository: &str) -> ImageName {
        ImageName::parse(&format!("{}/{repository}", self.host)).unwrap()
    }

    pub(crate) fn add_blob(&self, repository: &str, content: &[u8]) -> Digest {
        let digest = Digest::of(content);
        self.set_blob(repository, &digest, content);
        digest
    }

    /// Stores `content` as the blob `digest`, even if the digest does not match.
    pub(crate) fn set_blob(&self, repository: &str, digest: &Digest, content: &[u8]) {
        let mut repositories = self.inner.repositories();
        let blobs = &mut repositories.entry(repository.into()).or_default().blobs;
        blobs.insert(digest.to_string(), Bytes::copy_from_slice(content));
    }

    pub(crate) fn add_manifest(&self, repository: &str, manifest: &Value) -> ImageRef {
        let bytes = Bytes::from(manifest.to_string());
        let digest = Digest::of(&bytes);
        let mut repositories = self.inner.repositories();
        let manifests = &mut repositories.entry(repository.into()).or_default().manifests;
        manifests.insert(digest.to_string(), bytes);
        ImageRef::by_digest(self.name(repository), digest)
    }

    pub(crate) fn tag(&self, image: &ImageRef, tag: &str) {
        let digest = image.digest().unwrap().to_string();
        let mut repositories = self.inner.repositories();
        let repository = repositories.get_mut(image.name().repository()).unwrap();
        let manifest = repository.manifests[&digest].clone();
        repository.manifests.insert(tag.to_owned(), manifest);
    }

    /// Adds an image for `linux` and `architecture`.
    pub(crate) fn add_image(
        &self,
        repository: &str,
        architecture: &str,
        layers: &[&[u8]],
    ) -> ImageRef {
        let config = json!({
            "architecture": architecture,
            "os": "linux",
            "config": {"Cmd": ["sh"]},
            "rootfs": {"type": "layers", "diff_ids": vec!["sha256:base"; layers.len()]},
            "history": vec![json!({"created_by": "base"}); layers.len()],
        })
        .to_string();
        let descriptor = |kind: &str, content: &[u8]| {
            let digest = self.add_blob(repository, content);
            json!({"mediaType": kind, "digest": digest.as_str(), "size": content.len()})
        };
        let layers = layers.iter().map(|layer| descriptor(OCI_LAYER, layer));
        let manifest = json!({
            "schemaVersion": 2,
            "mediaType": OCI_MANIFEST,
            "layers": layers.collect::<Vec<_>>(),
            "config": descriptor(OCI_CONFIG, config.as_bytes()),
        });
        self.add_manifest(repository, &manifest)
    }

    pub(crate) fn blob(&self, repository: &str, digest: &str) -> Option<Bytes> {
        let repositories = self.inner.repositories();
        repositories.get(repository)?.blobs.get(digest).cloned()
    }

    pub(crate) fn blobs(&self, repository: &str) -> usize {
        let repositories = self.inner.repositories();
        repositories
            .get(repository)
            .map_or(0, |repository| repository.blobs.len())
    }

    /// Returns the manifest of a tag or digest.
    pub(crate) fn manifest(&self, repository: &str, reference: &str) -> Option<Value> {
        let repositories = self.inner.repositories();
        let bytes = repositories.get(repository)?.manifests.get(reference)?;
        Some(serde_json::from_slice(bytes).unwrap())
    }

    /// Returns all requests so far.
    pub(crate) fn seen(&self) -> Vec<Seen> {
        self.inner.seen.lock().unwrap().clone()
    }

    /// Returns the requests with `method` so far whose path and query contain `part`.
    pub(crate) fn requests(&self, method: &str, part: &str) -> Vec<Seen> {
        let matches = |seen: &Seen| {
            seen.method == method && format!("{}?{}", seen.path, seen.fields).contains(part)
        };
        self.seen().into_iter().filter(matches).collect()
    }
}

impl Drop for FakeRegistry {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Inner {
    fn repositories(&self) -> MutexGuard<'_, BTreeMap<String, Repository>> {
        self.repositories.lock().unwrap()
    }

    /// Records a request. Returns its position in the record, and the number of earlier requests with the same method and path.
    fn note(&self, seen: &Seen) -> (usize, usize) {
        let mut all = self.seen.lock().unwrap();
        let same = |other: &&Seen| (&other.method, &other.path) == (&seen.method, &seen.path);
        let before = all.iter().filter(same).count();
        all.push(seen.clone());
        (all.len() - 1, before)
    }

    fn note_body(&self, position: usize, body: &[u8]) {
        let seen = &mut self.seen.lock().unwrap()[position];
        seen.bytes = body.len();
        if seen.path == "/token" && seen.method == "POST" {
            seen.fields = String::from_utf8_lossy(body).into_owned();
        }
    }

    fn is_authorized(&self, seen: &Seen) -> bool {
        seen.path == "/token" || seen.authorization.starts_with(&self.authorization)
    }

    fn refuse(&self) -> Response<Body> {
        let challenge = match self.authorization.as_str() {
            "Bearer" => format!("Bearer realm=\"http://{}/token\",service=\"s\"", self.host),
            _ => "Basic realm=\"x\"".to_owned(),
        };
        Response::builder()
            .status(401)
            .header(header::WWW_AUTHENTICATE, challenge)
            .body(Body::empty())
            .unwrap()
    }

    fn answer(&self, seen: &Seen, content: Bytes) -> Response<Body> {
        let path = seen.path.as_str();
        if path == "/token" {
            return answer(200, &[], r#"{"token":"good"}"#);
        }
        if path == "/v2/" {
            return answer(200, &[], "{}");
        }
        let path = path.strip_prefix("/v2/").unwrap();
        if let Some((repository, id)) = path.split_once("/blobs/uploads/") {
            return match (seen.method.as_str(), id) {
                ("POST", "") => self.begin(repository, seen),
                ("PUT", _) => self.finish(repository, seen, content),
                _ => answer(405, &[], ""),
            };
        }
        if let Some((repository, digest)) = path.split_once("/blobs/") {
            let content = self
                .repositories()
                .get(repository)
                .and_then(|repository| repository.blobs.get(digest).cloned());
            return found(content, None);
        }
        let (repository, reference) = path.split_once("/manifests/").unwrap();
        if seen.method == "PUT" {
            return self.put_manifest(repository, reference, content);
        }
        let content = self
            .repositories()
            .get(repository)
            .and_then(|repository| repository.manifests.get(reference).cloned());
        let digest = content.as_ref().map(|bytes| Digest::of(bytes).to_string());
        found(content, digest)
    }

    fn begin(&self, repository: &str, seen: &Seen) -> Response<Body> {
        let fields = fields(seen);
        let source = fields.get("from").zip(fields.get("mount"));
        let mut repositories = self.repositories();
        let blob = source.and_then(|(from, digest)| {
            let blob = repositories.get(from)?.blobs.get(digest)?.clone();
            Some((digest.clone(), blob))
        });
        let repository_content = repositories.entry(repository.into()).or_default();
        if let Some((digest, blob)) = blob {
            repository_content.blobs.insert(digest, blob);
            return answer(201, &[], "");
        }
        let place = format!("/v2/{repository}/blobs/uploads/1?state=a%3Db");
        answer(202, &[("Location", place)], "")
    }

    fn finish(&self, repository: &str, seen: &Seen, content: Bytes) -> Response<Body> {
        let digest = Digest::of(&content).to_string();
        if fields(seen).get("digest") != Some(&digest) {
            return answer(400, &[], r#"{"errors":[{"code":"DIGEST_INVALID"}]}"#);
        }
        let mut repositories = self.repositories();
        let blobs = &mut repositories.entry(repository.into()).or_default().blobs;
        blobs.insert(digest, content);
        answer(201, &[], "")
    }

    fn put_manifest(&self, repository: &str, tag: &str, content: Bytes) -> Response<Body> {
        let digest = Digest::of(&content).to_string();
        let mut repositories = self.repositories();
        let repository = repositories.entry(repository.into()).or_default();
        let manifest: Value = serde_json::from_slice(&content).unwrap();
        let mut needed = manifest["layers"]
            .as_array()
            .unwrap()
            .iter()
            .filter(|layer| layer.get("urls").is_none())
            .chain([&manifest["config"]]);
        if !needed.all(|descriptor| {
            repository
                .blobs
                .contains_key(descriptor["digest"].as_str().unwrap())
        }) {
            return answer(400, &[], r#"{"errors":[{"code":"MANIFEST_BLOB_UNKNOWN"}]}"#);
        }
        let manifests = &mut repository.manifests;
        manifests.insert(tag.to_owned(), content.clone());
        manifests.insert(digest.clone(), content);
        answer(201, &[("Docker-Content-Digest", digest)], "")
    }
}

fn fields(seen: &Seen) -> BTreeMap<String, String> {
    let decode = |text: &str| text.replace("%3A", ":").replace("%2F", "/");
    seen.fields
        .split('&')
        .filter_map(|pair| pair.split_once('='))
        .map(|(key, value)| (key.to_owned(), decode(value)))
        .collect()
}

fn found(content: Option<Bytes>, digest: Option<String>) -> Response<Body> {
    let Some(content) = content else {
        return answer(404, &[], "");
    };
    let mut response = Response::builder()
        .status(200)
        .header(header::CONTENT_TYPE, OCI_MANIFEST);
    if let Some(digest) = digest {
        response = response.header("Docker-Content-Digest", digest);
    }
    response.body(Body::from(content)).unwrap()
}

fn answer(status: u16, headers: &[(&str, String)], body: &str) -> Response<Body> {
    let mut response = Response::builder().status(status);
    for (name, value) in headers {
        response = response.header(*name, value);
    }
    response.body(Body::from(body.to_owned())).unwrap()
}

async fn serve(State(inner): State<Arc<Inner>>, request: Request) -> Response<Body> {
    let (head, body) = request.into_parts();
    let authorization = head.headers.get(header::AUTHORIZATION);
    let seen = Seen {
        method: head.method.to_string(),
        path: head.uri.path().to_owned(),
        fields: head.uri.query().unwrap_or_default().to_owned(),
        authorization: authorization
            .map_or("", |value| value.to_str().unwrap())
            .to_owned(),
        bytes: 0,
    };
    let (position, before) = inner.note(&seen);
    let mut body = body.into_data_stream();
    let fault = (inner.faults)(&seen, before);
    if let Some(Fault::Break) = fault {
        let _ = body.next().await;
        // Ends the task, and so the connection. `resume_unwind` prints no panic message.
        std::panic::resume_unwind(Box::new("the connection breaks"));
    }
    let mut content = Vec::new();
    while let Some(Ok(chunk)) = body.next().await {
        content.extend_from_slice(&chunk);
    }
    inner.note_body(position, &content);
    match fault {
        Some(Fault::Status(status)) => answer(status, &[], ""),
        Some(Fault::Answer(status, headers, body)) => answer(status, &headers, &body),
        Some(Fault::Endless) => endless(),
        Some(Fault::Stuck(status, spaces)) => stuck(status, spaces),
        Some(Fault::Cut(start)) => cut(start),
        Some(Fault::Hang) => std::future::pending().await,
        None if !inner.is_authorized(&seen) => inner.refuse(),
        Some(Fault::Break) | None => inner.answer(&seen, content.into()),
    }
}

fn endless() -> Response<Body> {
    let piece = Bytes::from(vec![b' '; 1 << 16]);
    let pieces = stream::repeat_with(move || Ok::<_, Infallible>(piece.clone()));
    Response::new(Body::from_stream(pieces))
}

fn stuck(status: u16, spaces: usize) -> Response<Body> {
    let start = Ok::<_, Infallible>(Bytes::from(vec![b' '; spaces]));
    let pieces = stream::iter([start]).chain(stream::pending());
    Response::builder()
        .status(status)
        .body(Body::from_stream(pieces))
        .unwrap()
}

fn cut(start: Vec<u8>) -> Response<Body> {
    let pieces = [Ok(Bytes::from(start)), Err(std::io::Error::other("cut"))];
    Response::new(Body::from_stream(stream::iter(pieces)))
}
