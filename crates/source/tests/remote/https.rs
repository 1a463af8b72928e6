//! Repositories over HTTPS, served by `git http-backend`.

use std::time::{Duration, Instant};

use alustan_source::{CacheOptions, Credentials, Error, GitCache, Reference, RepositoryUrl};

use crate::support::{self, HttpServer, Origin, Rules, TestCache, names};

/// Base64 of `me:p@ss/w:rd`, which the server requires in the header `Authorization`.
const ME: &str = "bWU6cEBzcy93OnJk";
const PASSWORD: &str = "p@ss/w:rd";

fn assert_failure(error: &Error, reason: &str, transient: bool, words: &[&str]) {
    let text = support::assert_failure(error, reason, transient, words);
    assert!(
        !text.contains(PASSWORD) && !text.contains("hunter2"),
        "{text}"
    );
}

async fn refusal(url: &str, credentials: &Credentials) -> Error {
    TestCache::new()
        .resolve(url, None, credentials)
        .await
        .unwrap_err()
}

fn origin() -> Origin {
    Origin::with(&[("main.tf", "terraform {\n  backend \"s3\" {}\n}\n")])
}

#[tokio::test]
async fn private_repository_is_read_with_password_and_ca() {
    let (origin, cache) = (origin(), TestCache::new());
    let server = HttpServer::tls(origin.folder.path(), Rules::requiring(ME)).await;
    let context = cache
        .context(&server.url(), "", &server.credentials(Some(PASSWORD)))
        .await
        .unwrap();
    assert_eq!(
        (names(&context), context.module_backend.as_deref()),
        (vec!["main.tf".to_owned()], Some("s3"))
    );
}

#[tokio::test]
async fn wrong_or_missing_password_is_reported() {
    let origin = origin();
    let server = HttpServer::tls(origin.folder.path(), Rules::requiring(ME)).await;
    for password in [Some("hunter2"), None] {
        let error = refusal(&server.url(), &server.credentials(password)).await;
        assert_failure(
            &error,
            "GitAuthenticationFailed",
            false,
            &["gitRepo.credentialsSecret"],
        );
    }
}

#[tokio::test]
async fn certificate_of_an_unknown_ca_is_refused() {
    let origin = origin();
    let server = HttpServer::tls(origin.folder.path(), Rules::default()).await;
    assert_failure(
        &refusal(&server.url(), &Credentials::default()).await,
        "GitTlsFailed",
        false,
        &["gitRepo.caBundle"],
    );
    let broken = Credentials {
        ca_bundle: Some("nonsense".into()),
        ..Credentials::default()
    };
    assert_failure(
        &refusal(&server.url(), &broken).await,
        "GitTlsFailed",
        false,
        &["gitRepo.caBundle"],
    );
}

#[tokio::test]
async fn repository_ca_is_added_to_the_system_ca() {
    let origin = origin();
    let first = HttpServer::tls(origin.folder.path(), Rules::default()).await;
    let second = HttpServer::tls(origin.folder.path(), Rules::default()).await;
    let folder = tempfile::tempdir().unwrap();
    let usual = folder.path().join("usual.pem");
    std::fs::write(&usual, first.ca.as_deref().unwrap()).unwrap();
    let mut options = CacheOptions::default();
    options
        .environment
        .insert("GIT_SSL_CAINFO".to_owned(), usual.into_os_string());
    let cache = TestCache::with(options);
    // The CA of the repository (`second`) is trusted in addition to the system CA (`first`).
    for server in [&first, &second] {
        let credentials = second.credentials(None);
        cache
            .resolve(&server.url(), None, &credentials)
            .await
            .unwrap();
    }
    let error = cache
        .resolve(&second.url(), None, &Credentials::default())
        .await
        .unwrap_err();
    assert_failure(&error, "GitTlsFailed", false, &["gitRepo.caBundle"]);
}

#[tokio::test]
async fn http_status_determines_the_reason() {
    let origin = origin();
    for (status, reason, transient) in [
        (503, "RepositoryUnreachable", true),
        (500, "RepositoryUnreachable", true),
        (429, "GitRateLimited", true),
        (403, "GitAuthenticationFailed", false),
        (404, "RepositoryNotFound", false),
    ] {
        let server = HttpServer::plain(
            origin.folder.path(),
            Rules {
                status: Some(status),
                ..Rules::default()
            },
        )
        .await;
        assert_failure(
            &refusal(&server.url(), &Credentials::default()).await,
            reason,
            transient,
            &["http://127.0.0.1"],
        );
    }
    let server = HttpServer::plain(origin.folder.path(), Rules::default()).await;
    let url = server.url().replace("r.git", "nothing.git");
    assert_failure(
        &refusal(&url, &Credentials::default()).await,
        "RepositoryNotFound",
        false,
        &["nothing.git"],
    );
}

#[tokio::test]
async fn unreachable_host_is_a_transient_failure() {
    let port = std::net::TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap()
        .port();
    let none = Credentials::default();
    assert_failure(
        &refusal(&format!("https://127.0.0.1:{port}/r"), &none).await,
        "RepositoryUnreachable",
        true,
        &[],
    );
    assert_failure(
        &refusal("https://no-such-host.invalid/r", &none).await,
        "RepositoryUnreachable",
        true,
        &[],
    );
}

#[tokio::test]
async fn silent_host_times_out() {
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let root = tempfile::tempdir().unwrap();
    let options = CacheOptions {
        resolve_timeout: Duration::from_millis(500),
        ..CacheOptions::default()
    };
    let cache = GitCache::with_options(root.path(), options).unwrap();
    let url = RepositoryUrl::parse(&format!("http://{}/r", silent.local_addr().unwrap())).unwrap();
    let started = Instant::now();
    let error = cache
        .resolve(&url, &Reference::Default, &Credentials::default())
        .await
        .unwrap_err();
    assert_failure(&error, "GitTimeout", true, &["timed out after"]);
    assert!(started.elapsed() < Duration::from_secs(10));
}

#[tokio::test]
async fn password_does_not_follow_a_redirect_to_another_host() {
    let origin = origin();
    let other = HttpServer::plain(origin.folder.path(), Rules::requiring(ME)).await;
    let moved_to = Some(other.url().replace("/r.git", ""));
    let server = HttpServer::plain(
        origin.folder.path(),
        Rules {
            moved_to,
            ..Rules::default()
        },
    )
    .await;
    let error = refusal(&server.url(), &server.credentials(Some(PASSWORD))).await;
    assert_failure(&error, "GitAuthenticationFailed", false, &[]);
    assert!(other.seen.lock().unwrap().is_empty());
}

#[tokio::test]
async fn tls_does_not_fall_back_to_plain_http() {
    let origin = origin();
    let other = HttpServer::plain(origin.folder.path(), Rules::default()).await;
    let moved_to = Some(other.url().replace("/r.git", ""));
    let server = HttpServer::tls(
        origin.folder.path(),
        Rules {
            moved_to,
            ..Rules::default()
        },
    )
    .await;
    let error = refusal(&server.url(), &server.credentials(None)).await;
    assert_eq!(error.reason().as_str(), "GitFailed", "{error}");
}

#[tokio::test]
async fn host_without_commit_fetch_is_queried_by_reference() {
    let (origin, cache, none) = (origin(), TestCache::new(), Credentials::default());
    let server = HttpServer::plain(
        origin.folder.path(),
        Rules {
            old: true,
            ..Rules::default()
        },
    )
    .await;
    let revision = cache.resolve(&server.url(), None, &none).await.unwrap();
    cache
        .context_of(&server.url(), "", &revision, &none)
        .await
        .unwrap();
    let stale = cache.resolve(&server.url(), None, &none).await.unwrap();
    origin.commit(&[("main.tf", "# later\n")]);
    let fresh = TestCache::new();
    let error = fresh
        .context_of(&server.url(), "", &stale, &none)
        .await
        .unwrap_err();
    assert_failure(&error, "RevisionMoved", true, &["retried automatically"]);
    let revision = fresh.resolve(&server.url(), None, &none).await.unwrap();
    fresh
        .context_of(&server.url(), "", &revision, &none)
        .await
        .unwrap();
}

#[tokio::test]
async fn missing_commit_is_reported_as_moved_revision() {
    let (origin, cache, none) = (origin(), TestCache::new(), Credentials::default());
    let server = HttpServer::plain(origin.folder.path(), Rules::default()).await;
    let mut revision = cache.resolve(&server.url(), None, &none).await.unwrap();
    revision.commit = alustan_source::CommitId::parse(&"a".repeat(40)).unwrap();
    let error = cache
        .context_of(&server.url(), "", &revision, &none)
        .await
        .unwrap_err();
    assert_failure(&error, "RevisionMoved", true, &["aaaaaaaa"]);
}
