use std::net::SocketAddr;

use alustan_source::{CacheOptions, HttpsCredentials, SecretString};
use axum::Router;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::HeaderMap;
use axum::response::Response as Answer;
use tempfile::TempDir;
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

use super::*;
use crate::self_signed;

const A: &str = "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa";
const ADVERTISEMENT: &str = "application/x-git-upload-pack-advertisement";
const RESULT: &str = "application/x-git-upload-pack-result";
const GET: &str = "GET /team/infra/info/refs?service=git-upload-pack";
const POST: &str = "POST /team/infra/git-upload-pack";

type Respond = Box<dyn Fn(&str) -> Answer + Send + Sync>;

struct Served {
    respond: Respond,
    requests: Mutex<Vec<(String, HeaderMap)>>,
}

struct Server {
    address: SocketAddr,
    certificate: Option<String>,
    served: Arc<Served>,
    task: tokio::task::JoinHandle<()>,
}

impl Server {
    /// Starts a server. `respond` gets method and path of a request.
    async fn plain(respond: impl Fn(&str) -> Answer + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (served, app) = app(Box::new(respond));
        let task = tokio::spawn(async move { axum::serve(listener, app).await.unwrap() });
        Self {
            address,
            certificate: None,
            served,
            task,
        }
    }

    async fn tls(respond: impl Fn(&str) -> Answer + Send + Sync + 'static) -> Self {
        let (acceptor, certificate) = self_signed::acceptor();
        let listener = TlsListener {
            listener: TcpListener::bind("127.0.0.1:0").await.unwrap(),
            acceptor,
        };
        let address = listener.listener.local_addr().unwrap();
        let (served, app) = app(Box::new(respond));
        let task = tokio::spawn(async move { axum::serve(listener, app).await.unwrap() });
        Self {
            address,
            certificate: Some(certificate),
            served,
            task,
        }
    }

    fn url(&self) -> RepositoryUrl {
        let scheme = self.certificate.as_ref().map_or("http", |_| "https");
        RepositoryUrl::parse(&format!("{scheme}://{}/team/infra", self.address)).unwrap()
    }

    fn credentials(&self) -> Credentials {
        Credentials {
            https: Some(HttpsCredentials {
                username: SecretString::new("me"),
                password: SecretString::new("hunter2"),
            }),
            ca_bundle: self.certificate.clone(),
            ..Credentials::default()
        }
    }

    /// Returns the requests so far, by method and path.
    fn requests(&self) -> Vec<String> {
        let requests = self.served.requests.lock();
        requests
            .iter()
            .map(|(request, _)| request.clone())
            .collect()
    }

    /// Returns the values of the header `name` of all requests so far.
    fn headers(&self, name: &str) -> Vec<Option<String>> {
        let requests = self.served.requests.lock();
        requests
            .iter()
            .map(|(_, headers)| Some(headers.get(name)?.to_str().unwrap().to_owned()))
            .collect()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.task.abort();
    }
}

fn app(respond: Respond) -> (Arc<Served>, Router) {
    let requests = Mutex::default();
    let served = Arc::new(Served { respond, requests });
    let app = Router::new().fallback(serve).with_state(served.clone());
    (served, app)
}

async fn serve(State(served): State<Arc<Served>>, request: Request) -> Answer {
    let line = format!("{} {}", request.method(), request.uri());
    let answer = (served.respond)(&line);
    let headers = request.headers().clone();
    served.requests.lock().push((line, headers));
    answer
}

struct TlsListener {
    listener: TcpListener,
    acceptor: TlsAcceptor,
}

impl axum::serve::Listener for TlsListener {
    type Io = TlsStream<TcpStream>;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (Self::Io, Self::Addr) {
        loop {
            let (stream, address) = self.listener.accept().await.unwrap();
            if let Ok(stream) = self.acceptor.accept(stream).await {
                return (stream, address);
            }
        }
    }

    fn local_addr(&self) -> std::io::Result<Self::Addr> {
        self.listener.local_addr()
    }
}

fn answer(status: u16, headers: &[(&str, &str)], body: impl Into<Body>) -> Answer {
    let builder = Answer::builder().status(status);
    headers
        .iter()
        .fold(builder, |builder, (name, value)| {
            builder.header(*name, *value)
        })
        .body(body.into())
        .unwrap()
}

fn lines(lines: &[&str]) -> String {
    let packet = |line: &&str| format!("{:04x}{line}\n", line.len() + 5);
    lines.iter().map(packet).collect::<String>() + "0000"
}

fn advertisement() -> Answer {
    let body = lines(&[
        "version 2",
        "agent=x",
        "ls-refs=unborn",
        "object-format=sha1",
    ]);
    answer(200, &[("content-type", ADVERTISEMENT)], body)
}

fn result() -> Answer {
    let body = lines(&[
        &format!("{A} HEAD symref-target:refs/heads/main"),
        &format!("{A} refs/heads/main"),
    ]);
    answer(200, &[("content-type", RESULT)], body)
}

/// Responds like a git server with one branch, `main`.
fn version_2(request: &str) -> Answer {
    match request {
        GET => advertisement(),
        POST => result(),
        _ => answer(404, &[], ""),
    }
}

/// Returns a cache without the program git.
fn without_git() -> (GitCache, TempDir) {
    let root = tempfile::tempdir().unwrap();
    let path = root.path().join("no-such-folder");
    let options = CacheOptions {
        environment: [("PATH".to_owned(), path.into_os_string())].into(),
        at_once: 1,
        ..CacheOptions::default()
    };
    (GitCache::with_options(root.path(), options).unwrap(), root)
}

fn main_branch() -> BTreeSet<Reference> {
    [Reference::branch(Some("main")).unwrap()].into()
}

/// Lists branch `main` without git.
async fn list(server: &Server, credentials: &Credentials) -> Result<Listing, NoListing> {
    let (git, _root) = without_git();
    let url = server.url();
    let query = git.ls_refs(&url, &main_branch()).unwrap();
    SmartHttp::default()
        .list(&git, &url, &query, credentials)
        .await
}

fn commit(listing: &Listing) -> String {
    let branch = Reference::branch(Some("main")).unwrap();
    listing.find(&branch).unwrap().commit.to_string()
}

#[tokio::test]
async fn references_are_listed_without_git() {
    let (server, (git, _root)) = (Server::plain(version_2).await, without_git());
    let (http, url, none) = (SmartHttp::default(), server.url(), Credentials::default());
    let listing = http
        .references(&git, &url, "r", &main_branch(), &none)
        .await;
    assert_eq!(commit(&listing.unwrap()), A);
    assert_eq!(server.requests(), [GET, POST]);
    let version = Some("version=2".to_owned());
    assert_eq!(server.headers("git-protocol"), [version.clone(), version]);
    let user_agent = server.headers("user-agent")[0].clone().unwrap();
    assert!(user_agent.starts_with("git/2.0 (alustan "), "{user_agent}");
}

#[tokio::test]
async fn password_is_sent_over_tls_only() {
    let server = Server::tls(version_2).await;
    let listing = list(&server, &server.credentials()).await;
    assert_eq!(commit(&listing.unwrap()), A);
    let basic = Some("Basic bWU6aHVudGVyMg==".to_owned());
    assert_eq!(server.headers("authorization"), [basic.clone(), basic]);
    let server = Server::plain(version_2).await;
    let listing = list(&server, &server.credentials()).await;
    assert_eq!(commit(&listing.unwrap()), A);
    assert_eq!(server.headers("authorization"), [None, None]);
}

#[tokio::test]
async fn certificate_of_an_unknown_ca_is_refused() {
    let (server, other) = (Server::tls(version_2).await, Server::tls(version_2).await);
    for ca_bundle in [None, other.certificate.clone(), Some("nonsense".to_owned())] {
        let credentials = Credentials {
            ca_bundle,
            ..server.credentials()
        };
        let reason = list(&server, &credentials).await.unwrap_err().to_string();
        assert!(reason.contains("certificate"), "{reason}");
    }
    assert!(server.requests().is_empty());
}

#[tokio::test]
async fn control_character_in_a_password_falls_back_to_git() {
    let server = Server::tls(version_2).await;
    let mut credentials = server.credentials();
    credentials.https = Some(HttpsCredentials {
        username: SecretString::new("me"),
        password: SecretString::new("hunter2\n"),
    });
    let reason = list(&server, &credentials).await.unwrap_err().to_string();
    assert!(reason.contains("control character"), "{reason}");
    assert!(server.requests().is_empty());
}

#[tokio::test]
async fn redirect_on_the_same_host_is_followed() {
    let moved = "/team/infra.git/info/refs?service=git-upload-pack";
    let server = Server::tls(move |request| match request {
        GET => answer(301, &[("location", moved)], ""),
        "GET /team/infra.git/info/refs?service=git-upload-pack" => advertisement(),
        "POST /team/infra.git/git-upload-pack" => result(),
        _ => answer(404, &[], ""),
    })
    .await;
    let listing = list(&server, &server.credentials()).await;
    assert_eq!(commit(&listing.unwrap()), A);
    assert!(server.headers("authorization").iter().all(Option::is_some));
}

#[tokio::test]
async fn redirect_to_another_host_falls_back_to_git() {
    let other = Server::plain(version_2).await;
    let to = format!("{}/info/refs?service=git-upload-pack", other.url());
    let server = Server::tls(move |_| answer(302, &[("location", &to)], "")).await;
    let reason = list(&server, &server.credentials())
        .await
        .unwrap_err()
        .to_string();
    assert!(reason.contains("302"), "{reason}");
    assert!(other.requests().is_empty());
}

#[tokio::test]
async fn other_responses_fall_back_to_git() {
    let redirect = |location: &'static str| {
        move |request: &str| match request {
            GET => answer(301, &[("location", location)], ""),
            _ => version_2(GET),
        }
    };
    let on_get = |status: u16, kind: &'static str, body: String| {
        move |_: &str| answer(status, &[("content-type", kind)], body.clone())
    };
    let moved = "/team/infra/info/refs?service=git-upload-pack";
    let on_post = |status: u16, kind: &'static str, body: String| {
        move |request: &str| match request {
            GET => advertisement(),
            _ => answer(
                status,
                &[("content-type", kind), ("location", moved)],
                body.clone(),
            ),
        }
    };
    let old = lines(&[&format!("{A} HEAD\0symref=HEAD:refs/heads/main")]);
    let fitting = lines(&["version 2", "ls-refs", "object-format=sha1"]);
    let too_long = |most: usize| "0".repeat(most + 1);
    let cases: Vec<(&str, Respond)> = vec![
        ("401", Box::new(on_get(401, ADVERTISEMENT, fitting.clone()))),
        ("404", Box::new(on_get(404, ADVERTISEMENT, fitting.clone()))),
        ("503", Box::new(on_get(503, ADVERTISEMENT, fitting.clone()))),
        ("Content-Type", Box::new(on_get(200, "text/html", fitting))),
        ("version 2", Box::new(on_get(200, ADVERTISEMENT, old))),
        (
            "more than 65536 bytes",
            Box::new(on_get(
                200,
                ADVERTISEMENT,
                too_long(LsRefs::ADVERTISEMENT_BYTES),
            )),
        ),
        ("500", Box::new(on_post(500, RESULT, lines(&[])))),
        ("302", Box::new(on_post(302, RESULT, lines(&[])))),
        (
            "Content-Type",
            Box::new(on_post(200, "text/plain", lines(&[]))),
        ),
        (
            "not a listing",
            Box::new(on_post(200, RESULT, lines(&["ERR no"]))),
        ),
        (
            "more than 1048576 bytes",
            Box::new(on_post(200, RESULT, too_long(LsRefs::RESPONSE_BYTES))),
        ),
        ("301", Box::new(redirect("/login"))),
        (
            "301",
            Box::new(redirect("/team/infra/info/refs?service=git-upload-pack")),
        ),
    ];
    for (expected, respond) in cases {
        let server = Server::plain(respond).await;
        let reason = list(&server, &Credentials::default())
            .await
            .unwrap_err()
            .to_string();
        assert!(reason.contains(expected), "{expected}: {reason}");
    }
}

#[tokio::test]
async fn url_that_the_client_would_change_falls_back_to_git() {
    let (git, _root) = without_git();
    let url = RepositoryUrl::parse("http://127.0.0.1:80/team/infra").unwrap();
    let query = git.ls_refs(&url, &main_branch()).unwrap();
    let none = Credentials::default();
    let http = SmartHttp::default();
    let reason = http
        .list(&git, &url, &query, &none)
        .await
        .unwrap_err()
        .to_string();
    assert!(reason.contains("normal form"), "{reason}");
}

/// Git lists the references of a server that speaks only version 0 with one request.
#[tokio::test]
async fn version_0_server_is_queried_by_git_for_ten_minutes() {
    let body = lines(&["# service=git-upload-pack"])
        + &lines(&[
            &format!("{A} HEAD\0symref=HEAD:refs/heads/main"),
            &format!("{A} refs/heads/main"),
        ]);
    let server =
        Server::plain(move |_| answer(200, &[("content-type", ADVERTISEMENT)], body.clone())).await;
    let root = tempfile::tempdir().unwrap();
    let git = GitCache::new(root.path()).unwrap();
    let (http, url, none) = (SmartHttp::default(), server.url(), Credentials::default());
    for requests in [2, 3] {
        let listing = http
            .references(&git, &url, "r", &main_branch(), &none)
            .await;
        assert_eq!(commit(&listing.unwrap()), A);
        assert_eq!(server.requests().len(), requests);
    }
    let left = http.git_only.lock()["r"] - Instant::now();
    assert!(left > GIT_ONLY / 2 && left <= GIT_ONLY, "{left:?}");
    http.git_only.lock().insert("r".to_owned(), Instant::now());
    let listing = http
        .references(&git, &url, "r", &main_branch(), &none)
        .await;
    assert_eq!(commit(&listing.unwrap()), A);
    assert_eq!(server.requests().len(), 5);
}

/// A server that refuses a login counts it. In the next ten minutes, only git sends one.
#[tokio::test]
async fn refusal_by_the_server_is_returned_and_remembered() {
    let server = Server::plain(|_| answer(503, &[], "")).await;
    let root = tempfile::tempdir().unwrap();
    let git = GitCache::new(root.path()).unwrap();
    let (http, url, none) = (SmartHttp::default(), server.url(), Credentials::default());
    for requests in [[GET, GET].as_slice(), &[GET, GET, GET]] {
        let listing = http
            .references(&git, &url, "r", &main_branch(), &none)
            .await;
        let error = listing.unwrap_err();
        assert_eq!(error.reason().as_str(), "RepositoryUnreachable", "{error}");
        assert_eq!(server.requests(), requests);
    }
}

#[tokio::test]
async fn unreachable_server_is_not_remembered() {
    let root = tempfile::tempdir().unwrap();
    let git = GitCache::new(root.path()).unwrap();
    let url = RepositoryUrl::parse("http://127.0.0.1:1/r").unwrap();
    let (http, none) = (SmartHttp::default(), Credentials::default());
    let listing = http
        .references(&git, &url, "r", &main_branch(), &none)
        .await;
    assert!(listing.is_err());
    assert!(http.git_only.lock().is_empty());
}

#[tokio::test(start_paused = true)]
async fn silent_server_times_out() {
    let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let (git, _root) = without_git();
    let url = format!("http://{}/r", silent.local_addr().unwrap());
    let url = RepositoryUrl::parse(&url).unwrap();
    let query = git.ls_refs(&url, &main_branch()).unwrap();
    let (http, none) = (SmartHttp::default(), Credentials::default());
    let reason = http
        .list(&git, &url, &query, &none)
        .await
        .unwrap_err()
        .to_string();
    assert_eq!(reason, "timed out after 10 s");
}

#[tokio::test]
async fn requests_wait_for_a_permit_of_git() {
    let (server, (git, _root)) = (Server::plain(version_2).await, without_git());
    let (http, url, none) = (SmartHttp::default(), server.url(), Credentials::default());
    let query = git.ls_refs(&url, &main_branch()).unwrap();
    let permit = git.remote_permit().await;
    let listing = http.list(&git, &url, &query, &none);
    let mut listing = std::pin::pin!(listing);
    let waited = timeout(Duration::from_millis(200), &mut listing).await;
    assert!(waited.is_err() && server.requests().is_empty());
    drop(permit);
    assert_eq!(commit(&listing.await.unwrap()), A);
}

#[tokio::test(start_paused = true)]
async fn clients_are_limited_in_number_and_age() {
    let (git, _root) = without_git();
    let http = SmartHttp::default();
    let bundle = |number: usize| format!("# {number}");
    for number in 0..=MAX_CLIENTS {
        http.client(&git, Some(&bundle(number))).unwrap();
        tokio::time::advance(Duration::from_secs(1)).await;
    }
    let has = |bundle: &str| http.clients.lock().contains_key(bundle);
    assert_eq!(http.clients.lock().len(), MAX_CLIENTS);
    assert!(!has(&bundle(0)) && has(&bundle(1)));
    http.client(&git, Some(&bundle(1))).unwrap();
    assert_eq!(http.clients.lock().len(), MAX_CLIENTS);
    tokio::time::advance(MAX_CLIENT_AGE).await;
    http.client(&git, None).unwrap();
    assert!(http.clients.lock().keys().eq([""]));
}

#[tokio::test]
async fn invalid_certificates_fall_back_to_git() {
    let (git, _root) = without_git();
    let http = SmartHttp::default();
    let broken = "-----BEGIN CERTIFICATE-----\n!\n-----END CERTIFICATE-----\n";
    assert!(http.client(&git, Some(broken)).is_err());
    assert!(http.clients.lock().is_empty());
}
