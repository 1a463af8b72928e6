//! Minimal git server and registry for an operator.

use std::collections::{BTreeSet, HashMap};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use axum::Router;
use axum::body::{Body, Bytes, to_bytes};
use axum::extract::{Request, State};
use axum::http::{Method, Response};
use sha2::{Digest as _, Sha256};
use tokio::io::AsyncWriteExt as _;
use tokio::net::TcpListener;
use tokio::process::Command;

/// Git server and registry. Every git repository has the same content. In the registry, the repository `base` has every tag, each with a
/// different image. The repository `present` and all repositories below it have every tag until [`Outside::forget_images`] is called.
pub(crate) struct Outside {
    /// `host:port`, for plain HTTP.
    pub(crate) address: String,
    served: Arc<Served>,
    task: tokio::task::JoinHandle<()>,
}

struct Served {
    repository: PathBuf,
    /// Blobs and manifests by path.
    stored: Mutex<HashMap<String, Bytes>>,
    uploads: AtomicUsize,
    has_images: AtomicBool,
}

impl Outside {
    /// Starts the servers with a module that has one output. The repository is in `folder`.
    pub(crate) async fn start(folder: &Path) -> Self {
        Self::with_files(folder, |repository| {
            let module = "output \"a\" { value = 1 }\n";
            std::fs::write(repository.join("main.tf"), module).unwrap();
        })
        .await
    }

    /// Starts the servers with the files that `write` creates in the repository.
    pub(crate) async fn with_files(folder: &Path, write: impl FnOnce(&Path)) -> Self {
        let repository = folder.join("repository");
        std::fs::create_dir_all(&repository).unwrap();
        write(&repository);
        for arguments in [
            &["init", "--quiet", "--initial-branch=main"][..],
            &["config", "uploadpack.allowAnySHA1InWant", "true"],
            &["config", "uploadpack.allowFilter", "true"],
        ] {
            run_git(&repository, arguments).await;
        }
        commit_all(&repository).await;
        let served = Arc::new(Served {
            repository,
            stored: Mutex::default(),
            uploads: AtomicUsize::default(),
            has_images: AtomicBool::new(true),
        });
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let app = Router::new().fallback(serve).with_state(served.clone());
        let task = tokio::spawn(async move { axum::serve(listener, app).await.unwrap() });
        Self {
            address,
            served,
            task,
        }
    }

    /// Returns the response of the git server or registry, for another server in front of them.
    pub(crate) async fn respond(&self, request: Request) -> Response<Body> {
        serve(State(self.served.clone()), request).await
    }

    /// Commits `module` as the module of the repository. Returns the revision.
    pub(crate) async fn commit(&self, module: &str) -> String {
        let repository = &self.served.repository;
        std::fs::write(repository.join("main.tf"), module).unwrap();
        commit_all(repository).await
    }

    /// Removes all tags from the repository `present` and the repositories below it, except tags of pushed images.
    pub(crate) fn forget_images(&self) {
        self.served.has_images.store(false, Ordering::SeqCst);
    }

    /// Pushes the image `tag` to `repository`, like a build.
    pub(crate) fn push_image(&self, repository: &str, tag: &str) {
        let place = format!("/v2/{repository}/manifests/{tag}");
        let mut stored = self.served.stored.lock().unwrap();
        stored.insert(place.clone(), place.into());
    }

    /// Pushes an artifact with the file `main.tf`, as `flux push artifact` does. Returns the digest of its manifest.
    pub(crate) async fn push_artifact(&self, repository: &str, tag: &str, module: &str) -> String {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("main.tf"), module).unwrap();
        let mut tar = Command::new("tar");
        tar.arg("-C").arg(folder.path()).args(["-czf", "-", "."]);
        let layer = Bytes::from(tar.output().await.unwrap().stdout);
        let (config, flux) = (Bytes::from_static(b"{}"), "application/vnd.cncf.flux");
        let manifest = serde_json::json!({
            "schemaVersion": 2, "mediaType": "application/vnd.oci.image.manifest.v1+json",
            "config": {"mediaType": format!("{flux}.config.v1+json"), "digest": digest(&config), "size": 2},
            "layers": [{
                "mediaType": format!("{flux}.content.v1.tar+gzip"), "digest": digest(&layer), "size": layer.len(),
            }],
        });
        let manifest = Bytes::from(manifest.to_string());
        let manifest_digest = digest(&manifest);
        let mut stored = self.served.stored.lock().unwrap();
        for content in [config, layer] {
            let path = format!("/v2/{repository}/blobs/{}", digest(&content));
            stored.insert(path, content);
        }
        for reference in [tag, &manifest_digest] {
            let path = format!("/v2/{repository}/manifests/{reference}");
            stored.insert(path, manifest.clone());
        }
        manifest_digest
    }

    /// Returns the repositories with pushed images.
    pub(crate) fn pushed_to(&self) -> BTreeSet<String> {
        let stored = self.served.stored.lock().unwrap();
        stored
            .keys()
            .filter_map(|path| path.split_once("/manifests/"))
            .map(|(repository, _)| repository.to_owned())
            .collect()
    }
}

/// Commits all files of a repository. Returns the revision.
async fn commit_all(repository: &Path) -> String {
    run_git(repository, &["add", "."]).await;
    let author = ["-c", "user.name=a", "-c", "user.email=a@b.test"];
    let commit = ["commit", "--quiet", "-m", "a"];
    run_git(repository, &[&author[..], &commit].concat()).await;
    run_git(repository, &["rev-parse", "HEAD"]).await
}

async fn run_git(repository: &Path, arguments: &[&str]) -> String {
    let mut git = Command::new("git");
    git.args(arguments).current_dir(repository);
    let output = git.output().await.unwrap();
    let text = |bytes| String::from_utf8_lossy(bytes).trim().to_owned();
    assert!(
        output.status.success(),
        "git {arguments:?}: {}",
        text(&output.stderr)
    );
    text(&output.stdout)
}

impl Drop for Outside {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn serve(State(served): State<Arc<Served>>, request: Request) -> Response<Body> {
    let (head, body) = request.into_parts();
    let body = to_bytes(body, 1 << 24).await.unwrap();
    let path = head.uri.path();
    let protocol = head.headers.get("git-protocol");
    let protocol = protocol.map_or("", |version| version.to_str().unwrap());
    let upload_pack = |arguments| upload_pack(&served.repository, arguments, protocol, &body);
    if path.ends_with("/info/refs") {
        let mut response = b"001e# service=git-upload-pack\n0000".to_vec();
        response.extend(upload_pack(&["--advertise-refs"]).await);
        return git("advertisement", response);
    }
    if path.ends_with("/git-upload-pack") {
        return git("result", upload_pack(&[]).await);
    }
    registry(
        &served,
        &head.method,
        path,
        head.uri.query().unwrap_or_default(),
        body,
    )
}

/// Runs `git upload-pack` with the version `protocol` of the git protocol; see <https://git-scm.com/docs/http-protocol>.
async fn upload_pack(
    repository: &Path,
    arguments: &[&str],
    protocol: &str,
    request: &[u8],
) -> Vec<u8> {
    let mut git = Command::new("git")
        .args(["upload-pack", "--stateless-rpc"])
        .args(arguments)
        .arg(repository)
        .env("GIT_PROTOCOL", protocol)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdin = git.stdin.take().unwrap();
    // Ignores an error: if git only lists references, it does not read its input.
    let _ = stdin.write_all(request).await;
    drop(stdin);
    git.wait_with_output().await.unwrap().stdout
}

fn git(kind: &str, body: Vec<u8>) -> Response<Body> {
    Response::builder()
        .header(
            "content-type",
            format!("application/x-git-upload-pack-{kind}"),
        )
        .body(body.into())
        .unwrap()
}

/// Serves the registry; see <https://github.com/opencontainers/distribution-spec/blob/main/spec.md>.
fn registry(
    served: &Served,
    method: &Method,
    path: &str,
    query: &str,
    body: Bytes,
) -> Response<Body> {
    let mut stored = served.stored.lock().unwrap();
    let answer = |status: u16| Response::builder().status(status);
    if path == "/v2/" {
        return answer(200).body(Body::empty()).unwrap();
    }
    if *method == Method::GET || *method == Method::HEAD {
        let is_present = path.starts_with("/v2/present") && path.contains("/manifests/");
        let is_image = path.starts_with("/v2/base/manifests/")
            || (is_present && served.has_images.load(Ordering::SeqCst));
        let image = is_image.then(|| Bytes::from(path.to_owned()));
        let content = stored.get(path).cloned().or(image);
        let Some(content) = content else {
            let nothing = r#"{"errors": [{"code": "MANIFEST_UNKNOWN", "message": ""}]}"#;
            return answer(404)
                .header("content-type", "application/json")
                .body(nothing.into())
                .unwrap();
        };
        return answer(200)
            .header("content-type", "application/vnd.oci.image.manifest.v1+json")
            .header("docker-content-digest", digest(&content))
            .body(content.into())
            .unwrap();
    }
    let begun = path.split_once("/blobs/uploads/");
    match begun {
        Some((repository, "")) => {
            let upload = served.uploads.fetch_add(1, Ordering::Relaxed);
            let place = format!("{repository}/blobs/uploads/{upload}");
            answer(202)
                .header("location", place)
                .body(Body::empty())
                .unwrap()
        }
        Some(_) if *method == Method::PATCH => {
            let upload = [stored.remove(path).unwrap_or_default(), body].concat();
            stored.insert(path.to_owned(), upload.into());
            answer(202)
                .header("location", path)
                .body(Body::empty())
                .unwrap()
        }
        Some((repository, _)) => {
            let blob = Bytes::from([stored.remove(path).unwrap_or_default(), body].concat());
            assert!(query.contains("digest="), "{path}?{query}");
            let place = format!("{repository}/blobs/{}", digest(&blob));
            stored.insert(place.clone(), blob);
            answer(201)
                .header("location", place)
                .body(Body::empty())
                .unwrap()
        }
        None => {
            let (repository, _) = path.rsplit_once('/').unwrap();
            let digest = digest(&body);
            stored.insert(format!("{repository}/{digest}"), body.clone());
            stored.insert(path.to_owned(), body);
            let made = answer(201).header("location", format!("{repository}/{digest}"));
            made.header("docker-content-digest", digest)
                .body(Body::empty())
                .unwrap()
        }
    }
}

fn digest(bytes: &[u8]) -> String {
    format!("sha256:{}", hex::encode(Sha256::digest(bytes)))
}
