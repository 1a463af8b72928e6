//! `git http-backend` behind a small server, with and without TLS.

use std::{
    path::{Path, PathBuf},
    process::Stdio,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
};

use alustan_source::{Credentials, HttpsCredentials, SecretString};
use axum::{
    Router,
    body::{Body, to_bytes},
    extract::{Request, State},
    http::{HeaderMap, Response, StatusCode, header},
};
use tokio::{
    io::AsyncWriteExt as _,
    net::{TcpListener, TcpStream},
    process::Command,
};
use tokio_rustls::{TlsAcceptor, server::TlsStream};

const BACKEND: &str = "/usr/lib/git-core/git-http-backend";

/// Behaviour of the server.
#[derive(Clone, Default)]
pub(crate) struct Rules {
    /// Required `Authorization`: base64 of `user:password`.
    pub(crate) wants: Option<&'static str>,
    /// Status of every response; `None` for the responses of `git http-backend`.
    pub(crate) status: Option<u16>,
    /// Whether the server uses version 0 of the git protocol, which serves only advertised objects.
    pub(crate) old: bool,
    /// Target of a redirect of every request.
    pub(crate) moved_to: Option<String>,
}

impl Rules {
    /// Requires `authorization`: base64 of `user:password`.
    pub(crate) fn requiring(authorization: &'static str) -> Self {
        Self {
            wants: Some(authorization),
            ..Self::default()
        }
    }
}

pub(crate) struct HttpServer {
    address: String,
    /// PEM certificate of the server, if it uses TLS.
    pub(crate) ca: Option<String>,
    /// `Authorization` headers of all requests so far.
    pub(crate) seen: Arc<Mutex<Vec<String>>>,
    task: tokio::task::JoinHandle<()>,
}

struct Served {
    root: PathBuf,
    rules: Rules,
    seen: Arc<Mutex<Vec<String>>>,
}

impl HttpServer {
    pub(crate) async fn plain(root: &Path, rules: Rules) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = format!("http://{}", listener.local_addr().unwrap());
        let (app, seen) = app(root, rules);
        let task = tokio::spawn(async move { axum::serve(listener, app).await.unwrap() });
        Self {
            address,
            ca: None,
            seen,
            task,
        }
    }

    pub(crate) async fn tls(root: &Path, rules: Rules) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = format!("https://{}", listener.local_addr().unwrap());
        let (acceptor, ca) = acceptor();
        let (app, seen) = app(root, rules);
        let listener = TlsListener { listener, acceptor };
        let task = tokio::spawn(async move { axum::serve(listener, app).await.unwrap() });
        Self {
            address,
            ca: Some(ca),
            seen,
            task,
        }
    }

    pub(crate) fn url(&self) -> String {
        format!("{}/r.git", self.address)
    }

    /// Returns credentials that trust the server, and authenticate if `password` is given.
    pub(crate) fn credentials(&self, password: Option<&str>) -> Credentials {
        let https = password.map(|password| HttpsCredentials {
            username: SecretString::new("me"),
            password: SecretString::new(password),
        });
        Credentials {
            https,
            ca_bundle: self.ca.clone(),
            ..Credentials::default()
        }
    }
}

impl Drop for HttpServer {
    fn drop(&mut self) {
        self.task.abort();
    }
}

fn app(root: &Path, rules: Rules) -> (Router, Arc<Mutex<Vec<String>>>) {
    assert!(
        Path::new(BACKEND).exists(),
        "{BACKEND} is missing: install git"
    );
    let seen = Arc::new(Mutex::new(Vec::new()));
    let served = Served {
        root: root.to_owned(),
        rules,
        seen: seen.clone(),
    };
    (
        Router::new().fallback(serve).with_state(Arc::new(served)),
        seen,
    )
}

async fn serve(State(served): State<Arc<Served>>, request: Request) -> Response<Body> {
    let given = request
        .headers()
        .get(header::AUTHORIZATION)
        .and_then(|value| value.to_str().ok());
    if let Some(given) = given {
        served.seen.lock().unwrap().push(given.to_owned());
    }
    if let Some(status) = served.rules.status {
        return plain(status);
    }
    if let Some(base) = &served.rules.moved_to {
        let to = format!("{base}{}", request.uri().path_and_query().unwrap());
        return Response::builder()
            .status(301)
            .header(header::LOCATION, to)
            .body(Body::empty())
            .unwrap();
    }
    if let Some(wanted) = served.rules.wants
        && given != Some(format!("Basic {wanted}").as_str())
    {
        let refusal = Response::builder()
            .status(401)
            .header(header::WWW_AUTHENTICATE, "Basic realm=\"r\"");
        return refusal.body(Body::empty()).unwrap();
    }
    backend(&served, request).await
}

fn plain(status: u16) -> Response<Body> {
    Response::builder()
        .status(status)
        .body(Body::empty())
        .unwrap()
}

/// Runs the CGI program: <https://git-scm.com/docs/git-http-backend>.
async fn backend(served: &Served, request: Request) -> Response<Body> {
    let (head, body) = request.into_parts();
    let body = to_bytes(body, 64 << 20).await.unwrap();
    let text = |headers: &HeaderMap, name: &str| {
        headers
            .get(name)
            .map(|value| value.to_str().unwrap().to_owned())
            .unwrap_or_default()
    };
    let mut command = Command::new(BACKEND);
    command
        .env("GIT_PROJECT_ROOT", &served.root)
        .env("GIT_HTTP_EXPORT_ALL", "1")
        .env("REMOTE_USER", "me");
    command
        .env("PATH_INFO", head.uri.path())
        .env("QUERY_STRING", head.uri.query().unwrap_or_default());
    command
        .env("REQUEST_METHOD", head.method.as_str())
        .env("CONTENT_TYPE", text(&head.headers, "content-type"));
    command.env("CONTENT_LENGTH", body.len().to_string());
    command.env(
        "HTTP_CONTENT_ENCODING",
        text(&head.headers, "content-encoding"),
    );
    command
        .env("GIT_CONFIG_COUNT", "1")
        .env("GIT_CONFIG_KEY_0", "safe.directory")
        .env("GIT_CONFIG_VALUE_0", "*");
    if !served.rules.old {
        command.env("GIT_PROTOCOL", text(&head.headers, "git-protocol"));
    }
    command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .kill_on_drop(true);
    let mut child = command.spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    let feed = tokio::spawn(async move {
        let _ = stdin.write_all(&body).await;
    });
    let output = child.wait_with_output().await.unwrap().stdout;
    feed.await.unwrap();
    cgi(&output)
}

fn cgi(output: &[u8]) -> Response<Body> {
    let end = output
        .windows(4)
        .position(|four| four == b"\r\n\r\n")
        .unwrap();
    let head = std::str::from_utf8(output.get(..end).unwrap()).unwrap();
    let body = output.get(end + 4..).unwrap();
    let mut response = Response::builder();
    for (name, value) in head.lines().filter_map(|line| line.split_once(": ")) {
        response = match name {
            "Status" => response.status(
                value
                    .split(' ')
                    .next()
                    .unwrap()
                    .parse::<StatusCode>()
                    .unwrap(),
            ),
            _ => response.header(name, value),
        };
    }
    response.body(Body::from(body.to_vec())).unwrap()
}

fn acceptor() -> (TlsAcceptor, String) {
    // Each CA needs its own name, because TLS clients find a CA by its name.
    static NUMBER: AtomicUsize = AtomicUsize::new(0);
    let name = format!("test {}", NUMBER.fetch_add(1, Ordering::SeqCst));
    let mut parameters = rcgen::CertificateParams::new(vec!["127.0.0.1".to_owned()]).unwrap();
    parameters
        .distinguished_name
        .push(rcgen::DnType::CommonName, name);
    let key = rcgen::KeyPair::generate().unwrap();
    let cert = parameters.self_signed(&key).unwrap();
    let key = rustls::pki_types::PrivateKeyDer::try_from(key.serialize_der()).unwrap();
    let config = rustls::ServerConfig::builder_with_provider(Arc::new(
        rustls::crypto::ring::default_provider(),
    ))
    .with_safe_default_protocol_versions()
    .unwrap()
    .with_no_client_auth()
    .with_single_cert(vec![cert.der().clone()], key)
    .unwrap();
    (TlsAcceptor::from(Arc::new(config)), cert.pem())
}

struct TlsListener {
    listener: TcpListener,
    acceptor: TlsAcceptor,
}

impl axum::serve::Listener for TlsListener {
    type Io = TlsStream<TcpStream>;
    type Addr = std::net::SocketAddr;

    async fn accept(&mut self) -> (Self::Io, Self::Addr) {
        loop {
            let (stream, address) = self.listener.accept().await.unwrap();
            // The TLS handshake fails if the client does not trust the certificate. The next connection is accepted.
            if let Ok(stream) = self.acceptor.accept(stream).await {
                return (stream, address);
            }
        }
    }

    fn local_addr(&self) -> std::io::Result<Self::Addr> {
        self.listener.local_addr()
    }
}
