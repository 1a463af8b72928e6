//! A registry in which a tag is for ever: what it refuses, and the dev cluster's for all else.

use std::path::PathBuf;

use tokio::io::{AsyncReadExt, AsyncWriteExt, copy_bidirectional};
use tokio::net::{TcpListener, TcpStream};

use crate::Cluster;
use crate::counter::HOST;

/// The dev cluster's registry.
const REGISTRY: &str = "10.99.1.2:5000";
/// What such registries say.
const REFUSAL: &str =
    r#"{"errors":[{"code":"TAG_INVALID","message":"the tag exists and is immutable"}]}"#;

/// Speaks plain http; the node pulls from it, too. It ends with this.
pub struct ImmutableRegistry {
    /// `host:port` as pods and the operator reach it.
    pub address: String,
    node: PathBuf,
    server: tokio::task::JoinHandle<()>,
}

impl ImmutableRegistry {
    /// One in which no tag moves, and in which every tag that begins with `taken` is taken.
    ///
    /// # Panics
    /// Without the dev cluster.
    pub async fn start(cluster: &Cluster, taken: &'static str) -> Self {
        let listener = TcpListener::bind((HOST, 0))
            .await
            .expect("an address of the dev cluster's link");
        let address = listener.local_addr().expect("an address").to_string();
        let server = tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(pass(stream, taken));
            }
        });
        let node = cluster.folder.join("containerd/certs.d").join(&address);
        std::fs::create_dir_all(&node).expect("a folder");
        let hosts = format!("server = \"http://{address}\"\n[host]\n");
        std::fs::write(node.join("hosts.toml"), hosts).expect("a file");
        Self {
            address,
            node,
            server,
        }
    }
}

impl Drop for ImmutableRegistry {
    fn drop(&mut self) {
        self.server.abort();
        // Another cluster has none.
        let _ = std::fs::remove_dir_all(&self.node);
    }
}

/// One request: each has a connection of its own.
async fn pass(mut stream: TcpStream, taken: &str) -> Option<()> {
    let mut head = vec![stream.read_u8().await.ok()?];
    if !head.is_ascii() || !head[0].is_ascii_alphabetic() {
        // As any server does that is spoken to in TLS and knows none.
        return stream
            .write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n")
            .await
            .ok();
    }
    while !head.ends_with(b"\r\n\r\n") {
        head.push(stream.read_u8().await.ok()?);
    }
    let head = String::from_utf8(head).ok()?;
    let (first, rest) = head.split_once("\r\n")?;
    let mut words = first.split(' ');
    let (method, path) = (words.next()?, words.next()?);
    let tag = path.rsplit_once("/manifests/").map(|(_, tag)| tag);
    let tag = tag.filter(|tag| method == "PUT" && !tag.contains(':'));
    if let Some(tag) = tag
        && (tag.starts_with(taken) || exists(path).await?)
    {
        // What is not read would be answered with a reset.
        let length = rest.lines().find_map(|line| {
            let (name, value) = line.split_once(':')?;
            name.eq_ignore_ascii_case("content-length")
                .then(|| value.trim().parse().ok())?
        });
        let mut body = vec![0; length.unwrap_or(0)];
        stream.read_exact(&mut body).await.ok()?;
        let answer = format!(
            "HTTP/1.1 400 Bad Request\r\nContent-Type: application/json\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{REFUSAL}",
            REFUSAL.len()
        );
        return stream.write_all(answer.as_bytes()).await.ok();
    }
    let mut server = TcpStream::connect(REGISTRY).await.ok()?;
    let kept = rest.lines().filter(|line| {
        let name = line.split(':').next().unwrap_or_default();
        !name.eq_ignore_ascii_case("connection")
    });
    let kept: Vec<&str> = kept.filter(|line| !line.is_empty()).collect();
    let head = format!(
        "{first}\r\n{}\r\nConnection: close\r\n\r\n",
        kept.join("\r\n")
    );
    server.write_all(head.as_bytes()).await.ok()?;
    copy_bidirectional(&mut stream, &mut server).await.ok()?;
    Some(())
}

async fn exists(path: &str) -> Option<bool> {
    let mut server = TcpStream::connect(REGISTRY).await.ok()?;
    let question = format!(
        "HEAD {path} HTTP/1.1\r\nHost: {REGISTRY}\r\nAccept: */*\r\nConnection: close\r\n\r\n"
    );
    server.write_all(question.as_bytes()).await.ok()?;
    let mut answer = String::new();
    server.read_to_string(&mut answer).await.ok()?;
    Some(answer.starts_with("HTTP/1.1 200"))
}
