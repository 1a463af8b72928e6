//! Requests for tokens, and faulty responses of token services and registries.

use std::{
    io::{Read as _, Write as _},
    net::TcpListener,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use alustan_registry::{Access, Credential, Error, ImageRef, Options, Registry};
use rustls::{ServerConfig, ServerConnection, StreamOwned, pki_types::PrivateKeyDer};

use crate::support::{
    Fake, PASSWORD, Seen, USER, assert_failure, basic, client, plain, request_digest, tag,
};

fn bearer(host: &str) -> String {
    format!("Bearer realm=\"http://{host}/token\",service=\"s\"")
}

/// Returns the response of a registry that requires a token. `token`: status and body of the response of the token service.
fn with_tokens(host: &str, seen: &Seen, token: (u16, &str)) -> (u16, Option<String>, String) {
    match seen.path.as_str() {
        "/token" => (token.0, None, token.1.to_owned()),
        "/v2/" => (401, Some(bearer(host)), String::new()),
        _ if seen.authorization == "Bearer good" => (404, None, String::new()),
        _ => (401, Some(bearer(host)), String::new()),
    }
}

const GOOD: (u16, &str) = (200, r#"{"token":"good","expires_in":300}"#);

#[tokio::test]
async fn token_is_requested_with_password_and_cached() {
    let server = Fake::start(|host, seen| with_tokens(host, seen, GOOD)).await;
    let (client, image) = (client(Options::default()), tag(&server.host, "x"));
    let access = plain(basic(USER, PASSWORD));
    for _ in 0..3 {
        assert_eq!(client.digest_of(&image, &access).await.unwrap(), None);
    }
    let requests = server.seen("/token");
    assert_eq!(requests.len(), 1, "{requests:?}");
    assert_eq!(
        (
            requests[0].method.as_str(),
            requests[0].authorization.as_str()
        ),
        ("GET", "Basic bWU6aHVudGVyMg==")
    );
    assert_eq!(
        requests[0].fields,
        "scope=repository%3Ateam%2Fx%3Apull&service=s"
    );
}

/// Requests the digest of an image in each of `count` repositories.
async fn poll(client: &Registry, host: &str, count: usize) {
    for number in 0..count {
        let image = ImageRef::parse(&format!("{host}/team/{number}:x")).unwrap();
        assert_eq!(client.digest_of(&image, &plain(None)).await.unwrap(), None);
    }
}

#[tokio::test]
async fn polls_of_300_repositories_request_one_token_each() {
    const REPOSITORIES: usize = 300;
    let server = Fake::start(|host, seen| with_tokens(host, seen, GOOD)).await;
    let client = client(Options::default());
    for _ in 0..3 {
        poll(&client, &server.host, REPOSITORIES).await;
    }
    assert_eq!(server.seen("/token").len(), REPOSITORIES);
}

#[tokio::test]
async fn cached_tokens_have_a_limit_in_bytes() {
    const REPOSITORIES: usize = 400;
    // The tokens of all repositories have 12 MB, more than the limit of the cache.
    let token = format!(r#"{{"token":"{}","expires_in":300}}"#, "x".repeat(30_000));
    let server = Fake::start(move |host, seen| match seen.path.as_str() {
        "/token" => (200, None, token.clone()),
        "/v2/" => (401, Some(bearer(host)), String::new()),
        _ => (404, None, String::new()),
    })
    .await;
    let client = client(Options::default());
    poll(&client, &server.host, REPOSITORIES).await;
    assert_eq!(server.seen("/token").len(), REPOSITORIES);
    poll(&client, &server.host, REPOSITORIES).await;
    let again = server.seen("/token").len() - REPOSITORIES;
    assert!((100..REPOSITORIES).contains(&again), "{again}");
}

#[tokio::test]
async fn refresh_token_is_exchanged_for_an_access_token() {
    let server =
        Fake::start(|host, seen| with_tokens(host, seen, (200, r#"{"access_token":"good"}"#)))
            .await;
    let access = plain(Some(Credential::Identity("refresh-me".into())));
    assert_eq!(request_digest(&server.host, &access).await.unwrap(), None);
    let requests = server.seen("/token");
    assert_eq!(requests[0].method, "POST");
    assert!(
        requests[0]
            .fields
            .contains("grant_type=refresh_token&refresh_token=refresh-me"),
        "{requests:?}"
    );
}

#[tokio::test]
async fn access_token_is_sent_unchanged() {
    let server = Fake::start(|host, seen| with_tokens(host, seen, (500, ""))).await;
    assert_eq!(
        request_digest(
            &server.host,
            &plain(Some(Credential::Bearer("good".into())))
        )
        .await
        .unwrap(),
        None
    );
    assert!(server.seen("/token").is_empty());
}

#[tokio::test]
async fn expired_token_is_requested_again() {
    static ASKED: AtomicUsize = AtomicUsize::new(0);
    static USED: AtomicUsize = AtomicUsize::new(0);
    let server = Fake::start(|host, seen| match seen.path.as_str() {
        "/token" => {
            let n = ASKED.fetch_add(1, Ordering::SeqCst);
            (
                200,
                None,
                format!("{{\"token\":\"t{n}\",\"expires_in\":300}}"),
            )
        }
        // The first token is valid for two requests.
        "/v2/team/x/manifests/x"
            if seen.authorization == "Bearer t0" && USED.fetch_add(1, Ordering::SeqCst) < 2 =>
        {
            (404, None, String::new())
        }
        "/v2/team/x/manifests/x" if seen.authorization == "Bearer t1" => (404, None, String::new()),
        _ => (401, Some(bearer(host)), String::new()),
    })
    .await;
    let (client, image) = (client(Options::default()), tag(&server.host, "x"));
    for _ in 0..3 {
        assert_eq!(client.digest_of(&image, &plain(None)).await.unwrap(), None);
    }
    assert_eq!(server.seen("/token").len(), 2);
}

#[tokio::test]
async fn refusal_of_a_token_service_is_classified() {
    for (status, reason, transient) in [
        (401, "RegistryUnauthorized", false),
        (400, "RegistryUnauthorized", false),
        (403, "RegistryForbidden", false),
        (404, "RegistryError", false),
        (429, "RegistryRateLimited", true),
        (503, "RegistryUnreachable", true),
        (200, "RegistryError", false),
    ] {
        let server =
            Fake::start(move |host, seen| with_tokens(host, seen, (status, "<html>no</html>")))
                .await;
        let error = request_digest(&server.host, &plain(basic(USER, PASSWORD)))
            .await
            .unwrap_err();
        assert_failure(&error, reason, transient, &["token service", &server.host]);
    }
}

#[tokio::test]
async fn token_response_larger_than_64_kib_is_refused() {
    for (spaces, accepted) in [(60 << 10, true), (64 << 10, false)] {
        let answer = format!("{}{}", " ".repeat(spaces), GOOD.1);
        let server =
            Fake::start(move |host, seen| with_tokens(host, seen, (200, answer.as_str()))).await;
        let result = request_digest(&server.host, &plain(None)).await;
        assert_eq!(result.is_ok(), accepted, "{result:?}");
        if let Err(error) = result {
            assert_failure(&error, "RegistryError", false, &["too large"]);
        }
    }
}

/// Starts a TLS registry that sends one response. Returns its host and its PEM certificate.
fn with_tls(answer: String) -> (String, String) {
    let made = rcgen::generate_simple_self_signed(vec!["127.0.0.1".to_owned()]).unwrap();
    let key = PrivateKeyDer::try_from(made.signing_key.serialize_der()).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![made.cert.der().clone()], key)
        .unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let host = listener.local_addr().unwrap().to_string();
    std::thread::spawn(move || {
        let (socket, _) = listener.accept().unwrap();
        let connection = ServerConnection::new(Arc::new(config)).unwrap();
        let mut stream = StreamOwned::new(connection, socket);
        assert!(stream.read(&mut [0; 4096]).unwrap() > 0);
        stream.write_all(answer.as_bytes()).unwrap();
    });
    (host, made.cert.pem())
}

#[tokio::test]
async fn token_service_without_tls_gets_no_credentials() {
    let tokens = Fake::start(|_, _| (200, None, GOOD.1.to_owned())).await;
    let (host, ca) = with_tls(format!(
        "HTTP/1.1 401 Unauthorized\r\nWWW-Authenticate: {}\r\nContent-Length: 0\r\n\r\n",
        bearer(&tokens.host)
    ));
    let client = client(Options {
        ca_pem: vec![ca],
        ..Options::default()
    });
    let access = Access::with(Some(basic(USER, PASSWORD)));
    let result = client.digest_of(&tag(&host, "x"), &access).await;
    assert_failure(
        &result.unwrap_err(),
        "RegistryError",
        false,
        &["plain http"],
    );
    assert!(tokens.seen("/token").is_empty());
}

#[tokio::test]
async fn token_service_redirect_forwards_no_credentials() {
    let other = Fake::start(|_, _| (200, None, GOOD.1.to_owned())).await;
    let place = format!("http://{}/elsewhere", other.host);
    for (status, followed) in [(302, true), (307, false), (308, false)] {
        let place = place.clone();
        let server = Fake::start(move |host, seen| with_tokens(host, seen, (status, &place))).await;
        for credential in [
            Credential::Identity("refresh-me".into()),
            basic(USER, PASSWORD),
        ] {
            let result = request_digest(&server.host, &plain(Some(credential))).await;
            assert_eq!(result.is_ok(), followed, "{status}: {result:?}");
        }
    }
    let seen = other.seen("/elsewhere");
    assert!(!seen.is_empty());
    for seen in seen {
        assert_eq!(seen.authorization, "");
        assert!(!seen.fields.contains("refresh-me"), "{seen:?}");
    }
}

/// A registry chooses the URL of its token service, and may choose the URL of a server inside the cluster. Errors must therefore not quote
/// the response of the token service.
#[tokio::test]
async fn token_service_response_is_not_quoted_in_errors() {
    for status in [200, 401, 403, 404, 500] {
        let server = Fake::start(move |host, seen| {
            with_tokens(host, seen, (status, r#"{"Token":"inside"}"#))
        });
        let error = request_digest(&server.await.host, &plain(None))
            .await
            .unwrap_err();
        let message = format!("{error} {error:?}");
        assert!(!message.contains("inside"), "{message}");
    }
}

#[tokio::test]
async fn refusal_of_a_registry_is_classified() {
    let envelope = |code| format!(r#"{{"errors":[{{"code":"{code}","message":"why"}}]}}"#);
    for (status, body, reason, transient) in [
        (403, envelope("DENIED"), "RegistryForbidden", false),
        (403, String::new(), "RegistryForbidden", false),
        (
            429,
            envelope("TOOMANYREQUESTS"),
            "RegistryRateLimited",
            true,
        ),
        (429, String::new(), "RegistryRateLimited", true),
        (500, String::new(), "RegistryUnreachable", true),
        (502, "<html>".to_owned(), "RegistryUnreachable", true),
    ] {
        let server = Fake::start(move |_, seen| match seen.path.as_str() {
            "/v2/" => (200, None, String::new()),
            _ => (status, None, body.clone()),
        })
        .await;
        assert_failure(&refused(&server).await, reason, transient, &[&server.host]);
    }
}

#[tokio::test]
async fn server_without_registry_api_is_an_error() {
    for (status, challenge, reason) in [
        (404, None, "RegistryError"),
        (401, None, "RegistryError"),
        (401, Some("Negotiate"), "RegistryError"),
        (503, None, "RegistryUnreachable"),
        (429, None, "RegistryRateLimited"),
    ] {
        let server =
            Fake::start(move |_, _| (status, challenge.map(str::to_owned), "<html>".into())).await;
        assert_eq!(refused(&server).await.reason().as_str(), reason, "{status}");
    }
}

async fn refused(server: &Fake) -> Error {
    request_digest(&server.host, &plain(None))
        .await
        .unwrap_err()
}
