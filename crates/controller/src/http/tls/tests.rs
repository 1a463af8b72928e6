use axum::Router;
use axum::routing::get;
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use reqwest::{Client, ClientBuilder};
use tempfile::TempDir;
use tokio::io::AsyncReadExt as _;

use super::*;
use crate::http::connections::{listen, listen_with};

type Authority = CertifiedIssuer<'static, KeyPair>;

fn authority() -> Authority {
    let mut parameters = CertificateParams::new([]).unwrap();
    parameters.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    CertifiedIssuer::self_signed(parameters, KeyPair::generate().unwrap()).unwrap()
}

/// Returns a certificate for `name` and its key.
fn issued(by: &Authority, name: &str) -> (String, String) {
    let key = KeyPair::generate().unwrap();
    let parameters = CertificateParams::new([name.to_owned()]).unwrap();
    let certificate = parameters.signed_by(&key, by).unwrap();
    (certificate.pem(), key.serialize_pem())
}

/// Returns a directory like a mounted Secret of type `kubernetes.io/tls`, and flags that require client certificates of the CA `clients`,
/// if it is set.
fn folder(server: &Authority, clients: Option<&Authority>) -> (TempDir, SyncFlags) {
    // Ignore the error: another test of this process may have installed the TLS provider.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let folder = tempfile::tempdir().unwrap();
    let (certificate, key) = issued(server, "localhost");
    std::fs::write(folder.path().join("tls.crt"), certificate).unwrap();
    std::fs::write(folder.path().join("tls.key"), key).unwrap();
    let client_ca = clients.map(|clients| {
        let file = folder.path().join("clients.crt");
        std::fs::write(&file, clients.pem()).unwrap();
        file
    });
    let flags = SyncFlags {
        tls_dir: Some(folder.path().to_owned()),
        client_ca_file: client_ca,
        ..SyncFlags::default()
    };
    (folder, flags)
}

/// Starts a server with these flags. Returns its URL.
async fn served(flags: &SyncFlags) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let listener = TlsListener::new(listener, Identity::of(flags).unwrap()).unwrap();
    let url = format!("https://localhost:{}/", listener.address.port());
    let router = Router::new().route("/", get(|| async { "hello" }));
    tokio::spawn(listen(listener, router, std::future::pending()));
    url
}

fn client(server: &Authority) -> ClientBuilder {
    let trusted = reqwest::Certificate::from_pem(server.pem().as_bytes()).unwrap();
    let client = Client::builder().tls_certs_only([trusted]);
    client.resolve("localhost", "127.0.0.1:0".parse().unwrap())
}

async fn hello(client: ClientBuilder, url: &str) -> Option<String> {
    let response = client.build().unwrap().get(url).send().await;
    response.ok()?.text().await.ok()
}

fn presenting(client: ClientBuilder, by: &Authority) -> ClientBuilder {
    let (certificate, key) = issued(by, "metacontroller");
    let pem = format!("{certificate}{key}");
    client.identity(reqwest::Identity::from_pem(pem.as_bytes()).unwrap())
}

#[tokio::test]
async fn client_that_trusts_the_server_certificate_connects() {
    let (server, stranger) = (authority(), authority());
    let (_folder, flags) = folder(&server, None);
    let url = served(&flags).await;
    assert_eq!(hello(client(&server), &url).await.as_deref(), Some("hello"));
    assert_eq!(hello(client(&stranger), &url).await, None);
}

#[tokio::test]
async fn only_client_certificates_of_the_client_ca_are_accepted() {
    let (server, clients, stranger) = (authority(), authority(), authority());
    let (_folder, flags) = folder(&server, Some(&clients));
    let url = served(&flags).await;
    let right = presenting(client(&server), &clients);
    assert_eq!(hello(right, &url).await.as_deref(), Some("hello"));
    assert_eq!(hello(client(&server), &url).await, None);
    for by in [&stranger, &server] {
        assert_eq!(hello(presenting(client(&server), by), &url).await, None);
    }
}

#[tokio::test]
async fn optional_client_certificate_is_verified_and_reported() {
    let (server, clients, stranger) = (authority(), authority(), authority());
    let (_folder, flags) = folder(&server, Some(&clients));
    let mut files = TlsFiles::of_sync(&flags);
    files.client_ca = files
        .client_ca
        .map(|(file, _)| (file, ClientCertificates::Optional));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let listener = TlsListener::new(listener, Identity::new(files).unwrap()).unwrap();
    let url = format!("https://localhost:{}/", listener.address.port());
    let router_of = |stream: &_| {
        let text = has_client_certificate(stream).to_string();
        Router::new().route("/", get(|| async { text }))
    };
    tokio::spawn(listen_with(listener, router_of, std::future::pending()));
    let presented = hello(presenting(client(&server), &clients), &url).await;
    assert_eq!(presented.as_deref(), Some("true"));
    let anonymous = hello(client(&server), &url).await;
    assert_eq!(anonymous.as_deref(), Some("false"));
    for by in [&stranger, &server] {
        assert_eq!(hello(presenting(client(&server), by), &url).await, None);
    }
}

#[tokio::test]
async fn silent_connection_does_not_block_others() {
    let server = authority();
    let (_folder, flags) = folder(&server, None);
    let url = served(&flags).await;
    let port = url.trim_end_matches('/').rsplit(':').next().unwrap();
    let address = format!("127.0.0.1:{port}");
    let _silent = TcpStream::connect(&address).await.unwrap();
    assert_eq!(hello(client(&server), &url).await.as_deref(), Some("hello"));
}

#[tokio::test(start_paused = true)]
async fn tls_handshake_times_out() {
    let (_folder, flags) = folder(&authority(), None);
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let listener = TlsListener::new(listener, Identity::of(&flags).unwrap()).unwrap();
    let mut silent = TcpStream::connect(listener.address).await.unwrap();
    let began = tokio::time::Instant::now();
    let read = tokio::time::timeout(HANDSHAKE_TIMEOUT * 2, silent.read(&mut [0; 1])).await;
    assert_eq!(read.unwrap().unwrap(), 0);
    assert!(began.elapsed() >= HANDSHAKE_TIMEOUT);
}

#[test]
fn changed_certificate_is_loaded_and_broken_one_ignored() {
    let (server, other) = (authority(), authority());
    let (folder, flags) = folder(&server, None);
    let identity = Identity::of(&flags).unwrap();
    let config = || identity.loaded.lock().config.clone();
    let long_ago = || identity.loaded.lock().at -= RELOAD_INTERVAL;
    let first = config();
    identity.acceptor();
    assert!(Arc::ptr_eq(&first, &config()), "read again too soon");

    let (certificate, key) = issued(&other, "localhost");
    std::fs::write(folder.path().join("tls.crt"), certificate).unwrap();
    long_ago();
    identity.acceptor();
    assert!(
        Arc::ptr_eq(&first, &config()),
        "a certificate without its key counts"
    );
    std::fs::write(folder.path().join("tls.key"), key).unwrap();
    long_ago();
    identity.acceptor();
    assert!(!Arc::ptr_eq(&first, &config()));
}

#[test]
fn unreadable_certificate_is_reported_with_its_flag() {
    let server = authority();
    let (folder, flags) = folder(&server, Some(&server));
    let problem = |flags: &SyncFlags| with_causes(&*Identity::of(flags).err().unwrap());
    let ca = folder.path().join("clients.crt");
    std::fs::write(&ca, "nothing").unwrap();
    let text = problem(&flags);
    assert!(
        text.contains("--sync-client-ca-file") && text.contains("clients.crt"),
        "{text}"
    );
    std::fs::remove_file(folder.path().join("tls.key")).unwrap();
    let text = problem(&flags);
    assert!(
        text.contains("--sync-tls-dir") && text.contains("tls.key"),
        "{text}"
    );
}
