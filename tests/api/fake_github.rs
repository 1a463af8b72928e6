//! Fake of GitHub: the request for tokens of an installation, in front of a real git server that accepts only these tokens.

use std::process::Command;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use alustan_tests::{Certificate, TlsListener};
use axum::Router;
use axum::body::{Body, to_bytes};
use axum::extract::{Request, State};
use axum::http::header::AUTHORIZATION;
use axum::http::{HeaderMap, Response};
use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use k8s_openapi::jiff::Timestamp;
use ring::signature::{KeyPair as _, RSA_PKCS1_2048_8192_SHA256, RsaKeyPair, UnparsedPublicKey};
use rustls::pki_types::PrivatePkcs1KeyDer;
use rustls::pki_types::pem::PemObject as _;
use serde_json::{Value, json};

use crate::outside::Outside;

/// Id of the App.
pub(crate) const APP: &str = "12";
/// Id of the installation.
pub(crate) const INSTALLATION: &str = "34";

/// Fake of GitHub with one App, one installation and one repository, `team/infra`.
pub(crate) struct FakeGitHub {
    /// URL of the server: `https://host:port`.
    pub(crate) url: String,
    /// Certificate of the server, in PEM format.
    pub(crate) certificate: String,
    /// Private key of the App, in PEM format.
    pub(crate) key: String,
    served: Arc<Served>,
    task: tokio::task::JoinHandle<()>,
}

struct Served {
    outside: Outside,
    public_key: Vec<u8>,
    lifetime: Duration,
    tokens: Mutex<Vec<String>>,
    /// Number of requests to the git server with a password that is no token.
    refused: Mutex<usize>,
}

impl FakeGitHub {
    /// Starts the server in front of `outside`. Tokens expire after `lifetime`.
    pub(crate) async fn start(outside: Outside, lifetime: Duration) -> Self {
        let own = Certificate::self_signed("127.0.0.1");
        let listener = TlsListener::bind("127.0.0.1", &own).await;
        let url = format!("https://{}", listener.address());
        let key = rsa_key();
        let der = PrivatePkcs1KeyDer::from_pem_slice(key.as_bytes()).unwrap();
        let pair = RsaKeyPair::from_der(der.secret_pkcs1_der()).unwrap();
        let served = Arc::new(Served {
            outside,
            public_key: pair.public_key().as_ref().to_vec(),
            lifetime,
            tokens: Mutex::default(),
            refused: Mutex::default(),
        });
        let app = Router::new().fallback(serve).with_state(served.clone());
        let task = tokio::spawn(async move { axum::serve(listener, app).await.unwrap() });
        Self {
            url,
            certificate: own.certificate,
            key,
            served,
            task,
        }
    }

    /// Returns the git server and registry without authentication.
    pub(crate) fn outside(&self) -> &Outside {
        &self.served.outside
    }

    /// Returns all tokens, oldest first.
    pub(crate) fn tokens(&self) -> Vec<String> {
        self.served.tokens.lock().unwrap().clone()
    }

    /// Returns the number of requests to the git server with a password that is no token.
    pub(crate) fn refused(&self) -> usize {
        *self.served.refused.lock().unwrap()
    }
}

impl Drop for FakeGitHub {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Returns a new private key in the format that GitHub generates.
pub(crate) fn rsa_key() -> String {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("key");
    let made = Command::new("ssh-keygen")
        .args(["-q", "-t", "rsa", "-b", "2048", "-N", "", "-m", "PEM", "-f"])
        .arg(&file)
        .status();
    assert!(made.unwrap().success());
    std::fs::read_to_string(file).unwrap()
}

async fn serve(State(served): State<Arc<Served>>, request: Request) -> Response<Body> {
    let url = format!("/api/v3/app/installations/{INSTALLATION}/access_tokens");
    if request.uri().path() == url {
        let (head, body) = request.into_parts();
        let body = to_bytes(body, 1 << 16).await.unwrap();
        let body: Value = serde_json::from_slice(&body).unwrap();
        let wanted = json!({"repositories": ["infra"], "permissions": {"contents": "read"}});
        assert_eq!(body, wanted);
        return served.token(&head.headers);
    }
    match password(request.headers()) {
        Some(password) if served.tokens.lock().unwrap().contains(&password) => {
            served.outside.respond(request).await
        }
        password => {
            *served.refused.lock().unwrap() += usize::from(password.is_some());
            let refused = Response::builder().status(401);
            let refused = refused.header("www-authenticate", "Basic realm=\"GitHub\"");
            refused.body(Body::empty()).unwrap()
        }
    }
}

impl Served {
    /// Creates a token, if the App signed the request.
    fn token(&self, headers: &HeaderMap) -> Response<Body> {
        let answer = |status: u16, body: Value| {
            let answer = Response::builder().status(status);
            answer.body(body.to_string().into()).unwrap()
        };
        let signature = headers.get(AUTHORIZATION).and_then(|header| {
            let jwt = header.to_str().ok()?.strip_prefix("Bearer ")?;
            self.is_signed(jwt).then_some(())
        });
        if signature.is_none() {
            let message = "A JSON web token could not be decoded";
            return answer(401, json!({ "message": message }));
        }
        let now = Timestamp::now();
        let token = format!("ghs_{:036x}", now.as_nanosecond());
        self.tokens.lock().unwrap().push(token.clone());
        let expires_at = now + self.lifetime;
        let expires_at = expires_at.strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
        answer(201, json!({"token": token, "expires_at": expires_at}))
    }

    fn is_signed(&self, jwt: &str) -> bool {
        let Some((text, signature)) = jwt.rsplit_once('.') else {
            return false;
        };
        let decode = |part: &str| URL_SAFE_NO_PAD.decode(part).unwrap();
        let key = UnparsedPublicKey::new(&RSA_PKCS1_2048_8192_SHA256, &self.public_key);
        if key.verify(text.as_bytes(), &decode(signature)).is_err() {
            return false;
        }
        let (_, claims) = text.split_once('.').unwrap();
        let claims: Value = serde_json::from_slice(&decode(claims)).unwrap();
        let (from, to) = (
            claims["iat"].as_i64().unwrap(),
            claims["exp"].as_i64().unwrap(),
        );
        let now = Timestamp::now().as_second();
        claims["iss"] == APP && from <= now && now < to && to - from <= 600
    }
}

/// Returns the password of a request to the git server.
fn password(headers: &HeaderMap) -> Option<String> {
    let header = headers.get(AUTHORIZATION)?.to_str().ok()?;
    let login = STANDARD.decode(header.strip_prefix("Basic ")?).ok()?;
    let login = String::from_utf8(login).ok()?;
    login.strip_prefix("x-access-token:").map(str::to_owned)
}
