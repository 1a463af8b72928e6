//! Git uses the proxies in the environment of the operator.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use alustan_source::{CacheOptions, Reference, RepositoryUrl};
use tokio::{
    io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader, copy_bidirectional},
    net::{TcpListener, TcpStream},
};

use crate::support::{HttpServer, Origin, Rules, TestCache, names};

/// A proxy that supports `CONNECT` and counts connections.
struct Proxy {
    address: String,
    joined: Arc<AtomicUsize>,
    task: tokio::task::JoinHandle<()>,
}

impl Proxy {
    async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = format!("http://{}", listener.local_addr().unwrap());
        let joined = Arc::new(AtomicUsize::new(0));
        let counter = joined.clone();
        let task = tokio::spawn(async move {
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                let counter = counter.clone();
                tokio::spawn(async move { join(stream, &counter).await.unwrap() });
            }
        });
        Self {
            address,
            joined,
            task,
        }
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn join(stream: TcpStream, counter: &AtomicUsize) -> std::io::Result<()> {
    let mut stream = BufReader::new(stream);
    let mut request = String::new();
    stream.read_line(&mut request).await?;
    let mut line = String::new();
    while stream.read_line(&mut line).await? > 2 {
        line.clear();
    }
    let target = request.strip_prefix("CONNECT ").unwrap();
    let mut server = TcpStream::connect(target.split(' ').next().unwrap()).await?;
    counter.fetch_add(1, Ordering::SeqCst);
    stream.write_all(b"HTTP/1.1 200 Joined\r\n\r\n").await?;
    // Ignores an error: either side may close the connection.
    let _ = copy_bidirectional(&mut stream, &mut server).await;
    Ok(())
}

fn options(variables: &[(&str, &str)]) -> CacheOptions {
    let mut options = CacheOptions::default();
    for name in [
        "http_proxy",
        "HTTP_PROXY",
        "https_proxy",
        "HTTPS_PROXY",
        "all_proxy",
        "ALL_PROXY",
        "no_proxy",
        "NO_PROXY",
    ] {
        options.environment.remove(name);
    }
    let variables = variables.iter();
    options
        .environment
        .extend(variables.map(|(name, value)| ((*name).to_owned(), (*value).into())));
    options
}

#[tokio::test]
async fn repositories_use_the_proxy_unless_no_proxy_matches() {
    let origin = Origin::with(&[("main.tf", "")]);
    let server = HttpServer::tls(origin.folder.path(), Rules::default()).await;
    let (proxy, credentials) = (Proxy::start().await, server.credentials(None));
    let through = [("HTTPS_PROXY", proxy.address.as_str())];
    let cache = TestCache::with(options(&through));
    let context = cache
        .context(&server.url(), "", &credentials)
        .await
        .unwrap();
    assert_eq!(names(&context), ["main.tf"]);
    let joined = proxy.joined.load(Ordering::SeqCst);
    assert!(joined >= 2, "the question and the fetch: {joined}");
    let past = [through[0], ("NO_PROXY", "10.0.0.0,127.0.0.1")];
    TestCache::with(options(&past))
        .context(&server.url(), "", &credentials)
        .await
        .unwrap();
    assert_eq!(proxy.joined.load(Ordering::SeqCst), joined);
}

#[tokio::test]
async fn unreachable_proxy_is_a_transient_failure() {
    let origin = Origin::with(&[("main.tf", "")]);
    let server = HttpServer::tls(origin.folder.path(), Rules::default()).await;
    let port = TcpListener::bind("127.0.0.1:0")
        .await
        .unwrap()
        .local_addr()
        .unwrap()
        .port();
    let proxy = format!("http://127.0.0.1:{port}");
    let cache = TestCache::with(options(&[("HTTPS_PROXY", &proxy)]));
    let error = cache
        .resolve(&server.url(), None, &server.credentials(None))
        .await
        .unwrap_err();
    assert_eq!(
        (error.reason().as_str(), error.is_transient()),
        ("RepositoryUnreachable", true),
        "{error}"
    );
}

#[tokio::test]
async fn only_direct_http_connections_replace_git() {
    let has_query = |variables: &[(&str, &str)], url: &str| {
        let cache = TestCache::with(options(variables)).cache;
        let url = RepositoryUrl::parse(url).unwrap();
        cache.ls_refs(&url, &[Reference::Default].into()).is_some()
    };
    let (http, https) = ("http://host/r", "https://host/r");
    assert!(has_query(&[], http) && has_query(&[], https));
    assert!(!has_query(&[], "git@host:r"));
    let (lower, upper) = (
        [("https_proxy", "http://p:1")],
        [("HTTP_PROXY", "http://p:1")],
    );
    assert!(has_query(&lower, http) && !has_query(&lower, https));
    assert!(!has_query(&upper, http) && has_query(&upper, https));
    let all = [("ALL_PROXY", "http://p:1"), ("NO_PROXY", "host")];
    assert!(!has_query(&all, http) && !has_query(&all, https));
    let none = [("HTTPS_PROXY", ""), ("NO_PROXY", "*")];
    assert!(has_query(&none, http) && has_query(&none, https));
}
