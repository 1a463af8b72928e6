use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use alustan_api::report::FailureClass;
use alustan_core::observed::GitToken;
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use k8s_openapi::jiff::{SignedDuration, Timestamp};
use parking_lot::Mutex;
use ring::signature::{RSA_PKCS1_2048_8192_SHA256, RsaKeyPair, UnparsedPublicKey};
use rustls::pki_types::PrivateKeyDer;
use rustls::pki_types::pem::PemObject as _;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;

use super::jwt::jwt;
use super::response::{Token, TokenFailure, TokenResponse};
use super::tokens::Slot;
use super::*;
use crate::clock::Clock;
use crate::self_signed;

/// Returns a new RSA key. `format`: `PEM` (PKCS #1, as GitHub generates it) or `PKCS8`.
fn rsa_key(format: &str) -> String {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("key");
    let made = Command::new("ssh-keygen")
        .args([
            "-q", "-t", "rsa", "-b", "2048", "-N", "", "-m", format, "-f",
        ])
        .arg(&file)
        .status();
    assert!(made.unwrap().success());
    std::fs::read_to_string(file).unwrap()
}

fn data(changes: &[(&str, &str)]) -> BTreeMap<String, ByteString> {
    let mut data = BTreeMap::from([
        (APP_ID, "12"),
        (INSTALLATION_ID, "34"),
        (PRIVATE_KEY, "PEM"),
    ]);
    data.extend(changes.iter().copied());
    data.into_iter()
        .map(|(key, value)| (key.to_owned(), ByteString(value.into())))
        .collect()
}

fn parse(url: &str, changes: &[(&str, &str)], more: &[&str]) -> Result<GitHubApp, Failure> {
    let more: Vec<String> = more.iter().map(|&name| name.to_owned()).collect();
    GitHubApp::new(&GitHubAppParts {
        url,
        repositories: &more,
        secret: "app",
        data: &data(changes),
        ca_bundle: None,
    })
}

fn app() -> GitHubApp {
    parse("https://github.com/team/infra", &[], &["modules"]).unwrap()
}

fn time() -> Timestamp {
    Timestamp::from_second(1_800_000_000).unwrap()
}

#[test]
fn jwt_is_signed_and_valid_for_minutes() {
    for format in ["PEM", "PKCS8"] {
        let pem = rsa_key(format);
        let token = jwt("12", pem.as_bytes(), time()).unwrap();
        let (text, signature) = token.rsplit_once('.').unwrap();
        let decode = |part: &str| URL_SAFE_NO_PAD.decode(part).unwrap();
        let key = match PrivateKeyDer::from_pem_slice(pem.as_bytes()).unwrap() {
            PrivateKeyDer::Pkcs1(der) => RsaKeyPair::from_der(der.secret_pkcs1_der()),
            PrivateKeyDer::Pkcs8(der) => RsaKeyPair::from_pkcs8(der.secret_pkcs8_der()),
            _ => panic!("{format}"),
        };
        let key = key.unwrap();
        UnparsedPublicKey::new(&RSA_PKCS1_2048_8192_SHA256, key.public())
            .verify(text.as_bytes(), &decode(signature))
            .unwrap();
        let (header, claims) = text.split_once('.').unwrap();
        let part = |part| serde_json::from_slice::<Value>(&decode(part)).unwrap();
        assert_eq!(part(header), json!({"alg": "RS256", "typ": "JWT"}));
        let now = time().as_second();
        let wanted = json!({"iss": "12", "iat": now - 60, "exp": now + 300});
        assert_eq!(part(claims), wanted);
    }
}

#[test]
fn invalid_key_is_refused_without_its_content() {
    let elliptic = rcgen::KeyPair::generate().unwrap().serialize_pem();
    for (key, wanted) in [
        ("hunter2", "PEM format"),
        (
            "-----BEGIN RSA PRIVATE KEY-----\nhunter2\n-----END RSA PRIVATE KEY-----",
            "",
        ),
        (&elliptic, "RSA key"),
        (&rsa_key("PEM").replacen("MII", "MIJ", 1), ""),
    ] {
        let error = jwt("12", key.as_bytes(), time()).unwrap_err();
        assert!(
            error.contains(wanted) && !error.contains("hunter2"),
            "{error}"
        );
    }
}

#[test]
fn api_is_on_the_host_of_the_repository() {
    for (url, base, wanted) in [
        (
            "https://github.com/team/infra/stacks",
            "",
            Ok("https://api.github.com"),
        ),
        (
            "https://github.com/team/infra.git",
            "https://api.github.com/",
            Ok("https://api.github.com"),
        ),
        (
            "https://octo.ghe.com/team/infra",
            "",
            Ok("https://api.octo.ghe.com"),
        ),
        (
            "https://git.test:8443/team/infra",
            "",
            Ok("https://git.test:8443/api/v3"),
        ),
        (
            "https://git.test/team/infra",
            "https://git.test",
            Ok("https://git.test/api/v3"),
        ),
        (
            "https://git.test/team/infra",
            "https://git.test/github/api/v3/",
            Ok("https://git.test/github/api/v3"),
        ),
        (
            "https://git.test/team/infra",
            "https://api.git.test",
            Ok("https://api.git.test"),
        ),
        (
            "https://git.test/team/infra",
            "https://other.test/api/v3",
            Err("on the host of gitRepo.url"),
        ),
        (
            "https://git.test/team/infra",
            "https://git.test:9443/api/v3",
            Err("on the host of gitRepo.url"),
        ),
        (
            "https://git.test/team/infra",
            "https://git.test@169.254.169.254/",
            Err("without user name"),
        ),
        (
            "https://git.test/team/infra",
            "http://git.test/api/v3",
            Err("https://HOST"),
        ),
        (
            "https://git.test/team/infra",
            "https://git.test/api?x=",
            Err("https://HOST"),
        ),
        ("https://git.test/team/infra", "api", Err("is not a URL")),
        (
            "http://git.test/team/infra",
            "",
            Err("must start with https://"),
        ),
        (
            "git@git.test:team/infra.git",
            "",
            Err("must start with https://"),
        ),
        ("https://git.test/infra", "", Err("OWNER/REPOSITORY")),
        ("https://git.test/a/b/c", "", Err("OWNER/REPOSITORY")),
    ] {
        match (parse(url, &[(BASE_URL, base)], &[]), wanted) {
            (Ok(app), Ok(wanted)) => {
                assert_eq!(
                    app.token_url(),
                    format!("{wanted}/app/installations/34/access_tokens")
                );
                assert_eq!(app.repositories, ["infra"]);
            }
            (Err(failure), Err(wanted)) => {
                assert_eq!(failure.reason, "InvalidGitHubApp");
                assert!(
                    failure.message.contains(wanted),
                    "{url} {base}: {failure:?}"
                );
            }
            (Ok(app), Err(_)) => panic!("{url} {base}: {}", app.api),
            (Err(failure), Ok(_)) => panic!("{url} {base}: {failure:?}"),
        }
    }
}

#[test]
fn invalid_values_of_the_secret_are_refused() {
    let long = "1".repeat(MAX_ID_LENGTH + 1);
    let large = "x".repeat(MAX_KEY_BYTES + 1);
    for (key, value) in [
        (APP_ID, ""),
        (APP_ID, "a b"),
        (APP_ID, &long),
        (INSTALLATION_ID, "abc"),
        (INSTALLATION_ID, "1/../2"),
        (PRIVATE_KEY, ""),
        (PRIVATE_KEY, &large),
    ] {
        let failure = parse("https://github.com/a/b", &[(key, value)], &[])
            .err()
            .unwrap();
        assert_eq!(
            (failure.class, &*failure.reason),
            (FailureClass::User, "InvalidGitHubApp")
        );
        assert!(
            failure.message.contains(key) && failure.message.len() < 300,
            "{failure:?}"
        );
    }
    assert!(
        parse(
            "https://github.com/a/b",
            &[(APP_ID, " Iv1.8a61f9b3a7aba766\n")],
            &[]
        )
        .is_ok()
    );
    for name in ["a/b", "", "x\"", &large] {
        assert!(parse("https://github.com/a/b", &[], &[name]).is_err());
    }
}

#[test]
fn identity_covers_all_that_determines_a_token() {
    let url = "https://github.com/team/infra";
    let identity = |url, changes: &[(&str, &str)], more: &[&str]| {
        parse(url, changes, more).unwrap().identity().to_owned()
    };
    let same = identity(url, &[], &["a", "b"]);
    assert_eq!(same, identity(url, &[], &["b", "a", "infra"]));
    for other in [
        identity(url, &[(APP_ID, "13")], &["a", "b"]),
        identity(url, &[(INSTALLATION_ID, "35")], &["a", "b"]),
        identity(url, &[(PRIVATE_KEY, "OTHER")], &["a", "b"]),
        identity(url, &[], &["a"]),
        identity("https://github.com/team/other", &[], &["a", "b"]),
        identity("https://git.test/team/infra", &[], &["a", "b"]),
    ] {
        assert_ne!(same, other);
    }
}

fn response(status: u16, body: &Value) -> TokenResponse {
    TokenResponse {
        status,
        body: body.to_string().into_bytes(),
        ..TokenResponse::default()
    }
}

fn read(response: &TokenResponse) -> Result<Token, TokenFailure> {
    response.read(&app(), "the.j.wt", time())
}

#[test]
fn refusals_have_a_class_and_advice() {
    use FailureClass::{Transient, User};
    for (status, message, class, reason, advice) in [
        (
            401,
            "A JSON web token could not be decoded",
            User,
            "GitAuthenticationFailed",
            "githubAppPrivateKey in Secret app",
        ),
        (
            404,
            "Not Found",
            User,
            "GitAuthenticationFailed",
            "githubAppInstallationID",
        ),
        (
            403,
            "This installation has been suspended",
            User,
            "GitAuthenticationFailed",
            "unsuspend it",
        ),
        (
            403,
            "Resource not accessible",
            User,
            "GitAuthenticationFailed",
            "Contents: Read-only",
        ),
        (
            403,
            "API rate limit exceeded for installation",
            Transient,
            "GitRateLimited",
            "until 2027-01-15T08:01:00Z",
        ),
        (
            429,
            "",
            Transient,
            "GitRateLimited",
            "until 2027-01-15T08:01:00Z",
        ),
        (
            422,
            "There is at least one repository that does not exist",
            User,
            "GitAuthenticationFailed",
            "infra, modules",
        ),
        (302, "", User, "InvalidGitHubApp", "githubAppBaseURL"),
        (502, "", Transient, "RepositoryUnreachable", "status 502"),
        (418, "teapot", User, "GitFailed", "(teapot)"),
    ] {
        let failure = read(&response(status, &json!({"message": message})))
            .err()
            .unwrap()
            .failure;
        assert_eq!(
            (failure.class, &*failure.reason),
            (class, reason),
            "{failure:?}"
        );
        assert!(failure.message.contains(advice), "{failure:?}");
        let start = "spec.gitRepo.githubApp: failed to create a token of installation 34 of GitHub App 12 \
                     at https://api.github.com: ";
        assert!(failure.message.starts_with(start), "{failure:?}");
    }
}

#[test]
fn message_of_the_server_is_bounded_and_masked() {
    let message = format!("\u{1b}[31m the.j.wt\n\n{}", "x".repeat(100_000));
    let failure = read(&response(401, &json!({"message": message})))
        .err()
        .unwrap()
        .failure;
    assert!(failure.message.len() < 700, "{}", failure.message.len());
    assert!(failure.message.contains("[31m *** xxx"), "{failure:?}");
    assert!(!failure.message.contains(['\u{1b}', '\n']), "{failure:?}");
}

#[test]
fn rate_limit_names_the_next_request() {
    let next = |retry_after: &str, remaining: &str, reset: &str| {
        let limited = TokenResponse {
            retry_after: Some(retry_after.to_owned()).filter(|text| !text.is_empty()),
            remaining: Some(remaining.to_owned()),
            reset: Some(reset.to_owned()),
            ..response(403, &json!({}))
        };
        let not_before = read(&limited).err().unwrap().not_before.unwrap();
        not_before.duration_since(time()).as_secs()
    };
    let at = |seconds: i64| (time().as_second() + seconds).to_string();
    assert_eq!(next("90", "0", &at(600)), 90);
    assert_eq!(next("", "0", &at(600)), 600);
    assert_eq!(next("", "0", &at(-600)), 1);
    assert_eq!(next("", "0", "never"), 60);
    assert_eq!(next("99999999999", "5", ""), 3600);
    assert_eq!(next("-5", "5", ""), 1);
}

#[test]
fn token_in_a_response_is_checked() {
    let created = |token: &str, expires_at: &str| {
        read(&response(
            201,
            &json!({"token": token, "expires_at": expires_at}),
        ))
    };
    let token = created("ghs_1", "2027-01-15T08:30:00Z").ok().unwrap();
    assert_eq!(token.value.expose(), "ghs_1");
    assert_eq!(
        token.expires_at.duration_since(time()),
        SignedDuration::from_mins(30)
    );
    let token = created("ghs_1", "2199-01-15T08:30:00Z").ok().unwrap();
    assert_eq!(
        token.expires_at.duration_since(time()),
        SignedDuration::from_hours(1)
    );
    let long = "x".repeat(2049);
    for (token, expires_at) in [
        ("", "2027-01-15T08:30:00Z"),
        ("a\nb", "2027-01-15T08:30:00Z"),
        (&long, "2027-01-15T08:30:00Z"),
        ("ghs_1", "soon"),
    ] {
        let failure = created(token, expires_at).err().unwrap().failure;
        assert_eq!(
            (failure.class, &*failure.reason),
            (FailureClass::User, "GitFailed")
        );
        assert!(failure.message.len() < 300, "{failure:?}");
    }
    assert!(read(&response(201, &json!([]))).is_err());
}

fn token(name: &str, expires_at: Timestamp) -> Token {
    Token {
        value: GitToken::new(name),
        expires_at,
    }
}

fn outage(class: FailureClass, not_before: Option<Timestamp>) -> Result<Token, TokenFailure> {
    Err(TokenFailure {
        failure: Failure::new(class, Reason::RepositoryUnreachable, "gone"),
        not_before,
    })
}

/// Summarises an answer: the token, `gone` for a failure, `request` if a token must be requested.
fn text(answer: Option<Result<GitToken, Failure>>) -> String {
    match answer {
        Some(Ok(token)) => token.expose().to_owned(),
        Some(Err(failure)) => failure.message,
        None => "request".to_owned(),
    }
}

#[test]
fn token_is_replaced_before_it_expires() {
    let (mut slot, start) = (Slot::default(), time());
    let at = |minutes: i64| start + SignedDuration::from_mins(minutes);
    assert_eq!(text(slot.answer(start, POLL_LEFT)), "request");
    let answer = slot.record(&app(), Ok(token("first", at(60))), start);
    assert_eq!(text(Some(answer)), "first");
    for (minutes, left, wanted) in [
        (0, BUILD_LEFT, "first"),
        (15, BUILD_LEFT, "first"),
        (16, BUILD_LEFT, "request"),
        (50, POLL_LEFT, "first"),
        (51, POLL_LEFT, "request"),
    ] {
        assert_eq!(text(slot.answer(at(minutes), left)), wanted, "{minutes}");
    }
    // Without an answer of GitHub, the token is used until five minutes before its end.
    let answer = slot.record(&app(), outage(FailureClass::Transient, None), at(51));
    assert_eq!(text(Some(answer)), "first");
    let later = |seconds| at(51) + SignedDuration::from_secs(seconds);
    assert_eq!(text(slot.answer(later(9), POLL_LEFT)), "first");
    assert_eq!(text(slot.answer(later(10), POLL_LEFT)), "request");
    let answer = slot.record(&app(), outage(FailureClass::Transient, None), at(56));
    assert_eq!(text(Some(answer)), "gone");
    let answer = slot.record(&app(), Ok(token("second", at(117))), at(57));
    assert_eq!(text(Some(answer)), "second");
}

#[test]
fn rate_limit_delays_the_next_request() {
    let (mut slot, now) = (Slot::default(), time());
    let next = now + SignedDuration::from_mins(20);
    let limited = outage(FailureClass::Transient, Some(next));
    assert!(slot.record(&app(), limited, now).is_err());
    let before = next - SignedDuration::from_secs(1);
    assert_eq!(text(slot.answer(before, POLL_LEFT)), "gone");
    assert_eq!(text(slot.answer(next, POLL_LEFT)), "request");
}

#[test]
fn refused_token_is_discarded_once_a_minute() {
    let (mut slot, now) = (Slot::default(), time());
    let expiry = now + SignedDuration::from_hours(1);
    let _ = slot.record(&app(), Ok(token("first", expiry)), now);
    let later = |seconds| now + SignedDuration::from_secs(seconds);
    slot.discard(later(59));
    assert_eq!(text(slot.answer(later(59), POLL_LEFT)), "first");
    slot.discard(later(60));
    assert_eq!(text(slot.answer(later(60), POLL_LEFT)), "request");
    // A refusal of the App ends the use of the previous token.
    let _ = slot.record(&app(), Ok(token("second", expiry)), later(60));
    let refused = slot.record(&app(), outage(FailureClass::User, None), later(600));
    assert_eq!(text(Some(refused)), "gone");
}

#[test]
fn wrong_clock_is_reported() {
    let (mut slot, now) = (Slot::default(), time());
    let early = now - SignedDuration::from_hours(3);
    let failure = slot
        .record(&app(), Ok(token("first", early)), now)
        .err()
        .unwrap();
    assert!(
        failure.message.contains("check the clock of the operator"),
        "{failure:?}"
    );
    // A token with a short lifetime is used, and causes one request per minute.
    let short = now + SignedDuration::from_mins(7);
    let _ = slot.record(&app(), Ok(token("short", short)), now);
    let later = |seconds| now + SignedDuration::from_secs(seconds);
    assert_eq!(text(slot.answer(later(59), BUILD_LEFT)), "short");
    assert_eq!(text(slot.answer(later(60), BUILD_LEFT)), "request");
}

/// Returns a store with a simulated clock, and the number of its requests. Each token is valid for an hour.
fn store(clock: &Arc<Mutex<Timestamp>>) -> (Arc<AppTokens>, Arc<AtomicUsize>) {
    let requests = Arc::new(AtomicUsize::new(0));
    let count = requests.clone();
    let store = AppTokens::new(
        Clock::simulated(clock.clone()),
        Box::new(move |_, now| {
            let number = count.fetch_add(1, Ordering::SeqCst);
            Box::pin(async move {
                tokio::task::yield_now().await;
                Ok(token(
                    &number.to_string(),
                    now + SignedDuration::from_hours(1),
                ))
            })
        }),
    );
    (store, requests)
}

#[tokio::test]
async fn concurrent_requests_share_one_token() {
    let clock = Arc::new(Mutex::new(time()));
    let (store, requests) = store(&clock);
    let (one, same) = (Arc::new(app()), Arc::new(app()));
    let other = Arc::new(parse("https://github.com/team/other", &[], &[]).unwrap());
    let all = [&one, &same, &one].map(|app| store.token(app, "team", POLL_LEFT));
    for answer in futures::future::join_all(all).await {
        assert_eq!(text(Some(answer)), "0");
    }
    assert_eq!(
        text(Some(store.token(&other, "team", POLL_LEFT).await)),
        "1"
    );
    *clock.lock() += SignedDuration::from_mins(49);
    assert_eq!(text(Some(store.token(&one, "team", POLL_LEFT).await)), "0");
    *clock.lock() += SignedDuration::from_mins(2);
    assert_eq!(text(Some(store.token(&one, "team", POLL_LEFT).await)), "2");
    *clock.lock() += SignedDuration::from_mins(2);
    store.discard(&one).await;
    assert_eq!(text(Some(store.token(&one, "team", POLL_LEFT).await)), "3");
    assert_eq!(requests.load(Ordering::SeqCst), 4);
}

/// HTTPS server with a self-signed certificate.
struct TlsServer {
    listener: TcpListener,
    acceptor: TlsAcceptor,
    certificate: String,
}

impl TlsServer {
    async fn start() -> Self {
        // Another test may have installed the provider.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let (acceptor, certificate) = self_signed::acceptor();
        Self {
            listener: TcpListener::bind("127.0.0.1:0").await.unwrap(),
            acceptor,
            certificate,
        }
    }

    /// Returns an App whose API is this server.
    fn app(&self, ca_bundle: Option<&str>) -> GitHubApp {
        let url = format!("https://{}/team/infra", self.listener.local_addr().unwrap());
        GitHubApp::new(&GitHubAppParts {
            url: &url,
            repositories: &[],
            secret: "app",
            data: &data(&[(PRIVATE_KEY, &rsa_key("PEM"))]),
            ca_bundle,
        })
        .unwrap()
    }

    /// Reads one request and sends `response`. Without a response, keeps the connection open and lets the simulated time pass. Returns the
    /// request.
    async fn answer(&self, response: Option<&str>) -> String {
        let (stream, _) = self.listener.accept().await.unwrap();
        let mut stream = self.acceptor.accept(stream).await.unwrap();
        let mut request = Vec::new();
        while !request.ends_with(b"]}") {
            request.push(stream.read_u8().await.unwrap());
        }
        if let Some(response) = response {
            // Ignores an error: the client closes the connection after the maximum size.
            drop(stream.write_all(response.as_bytes()).await);
        } else {
            tokio::time::pause();
            tokio::time::sleep(std::time::Duration::from_mins(1)).await;
        }
        String::from_utf8(request).unwrap()
    }

    /// Returns the result of a request that the server answers with `response`.
    async fn request(&self, response: Option<&str>) -> Result<Token, Failure> {
        let app = self.app(Some(&self.certificate));
        let answered = async {
            let request = self.answer(response).await;
            let start = "POST /api/v3/app/installations/34/access_tokens HTTP/1.1\r\n";
            assert!(request.starts_with(start), "{request}");
            let (head, body) = request.split_once("\r\n\r\n").unwrap();
            assert!(head.contains("authorization: Bearer ey"), "{head}");
            let body: Value = serde_json::from_str(body).unwrap();
            let wanted = json!({"repositories": ["infra"], "permissions": {"contents": "read"}});
            assert_eq!(body, wanted);
            std::future::pending::<()>().await;
        };
        tokio::select! {
            result = request(&app, time()) => result.map_err(|failure| failure.failure),
            () = answered => panic!("no result"),
        }
    }
}

#[tokio::test]
async fn request_creates_a_token() {
    let server = TlsServer::start().await;
    let body = r#"{"token": "ghs_1", "expires_at": "2027-01-15T09:00:00Z"}"#;
    let response = format!(
        "HTTP/1.1 201 Created\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    );
    let token = server.request(Some(&response)).await.ok().unwrap();
    assert_eq!(token.value.expose(), "ghs_1");
}

#[tokio::test]
async fn response_of_github_has_bounds() {
    let server = TlsServer::start().await;
    let large = format!(
        "HTTP/1.1 201 Created\r\nContent-Length: {}\r\n\r\n{}",
        2 << 20,
        " ".repeat(2 << 20)
    );
    let failure = server.request(Some(&large)).await.err().unwrap();
    assert!(
        failure.message.contains("more than 1048576 bytes"),
        "{failure:?}"
    );
    let failure = server.request(None).await.err().unwrap();
    assert_eq!(
        (failure.class, &*failure.reason),
        (FailureClass::Transient, "GitTimeout")
    );
}

#[tokio::test]
async fn redirect_of_github_is_not_followed() {
    let server = TlsServer::start().await;
    let address = server.listener.local_addr().unwrap();
    let response = format!(
        "HTTP/1.1 307 Temporary Redirect\r\nLocation: https://{address}/x\r\nContent-Length: 0\r\n\r\n"
    );
    let failure = server.request(Some(&response)).await.err().unwrap();
    assert_eq!(failure.reason, "InvalidGitHubApp");
    assert!(failure.message.contains("redirects"), "{failure:?}");
}

#[tokio::test]
async fn failed_connections_have_a_class() {
    let server = TlsServer::start().await;
    let app = server.app(None);
    let refused = async {
        let (stream, _) = server.listener.accept().await.unwrap();
        drop(server.acceptor.accept(stream).await);
        std::future::pending::<()>().await;
    };
    let failure = tokio::select! {
        result = request(&app, time()) => result.err().unwrap().failure,
        () = refused => panic!("no result"),
    };
    assert_eq!(
        (failure.class, &*failure.reason),
        (FailureClass::User, "GitTlsFailed")
    );
    drop(server);
    let failure = request(&app, time()).await.err().unwrap().failure;
    let wanted = (FailureClass::Transient, "RepositoryUnreachable");
    assert_eq!((failure.class, &*failure.reason), wanted, "{failure:?}");
}
