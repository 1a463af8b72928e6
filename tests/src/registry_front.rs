//! Proxy of the dev cluster's registry that injects faults.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::io::{AsyncReadExt, AsyncWriteExt, copy_bidirectional};
use tokio::net::{TcpListener, TcpStream};

use crate::Cluster;
use crate::addresses::{host, node};

/// Port of the registry of the dev cluster.
const REGISTRY: u16 = 5000;
/// Minimum size of an upload that [`Fault::CutsUploads`] interrupts, in bytes. Layers of the base image are larger; uploads of the operator
/// are smaller.
const LARGE: usize = 1 << 20;

/// Fault that the proxy injects.
pub enum Fault {
    /// Refuses pushes to tags that exist, and pushes to tags that start with this prefix.
    Immutable(&'static str),
    /// Answers a cross-repository mount with an upload (202), as the specification allows.
    MountsNothing,
    /// Refuses cross-repository mounts (405).
    RefusesMounts,
    /// Refuses cross-repository mounts. Closes the connection in the middle of uploads of at least [`LARGE`] bytes. The value is the number
    /// of uploads that are still to be interrupted.
    CutsUploads(Arc<AtomicUsize>),
}

/// Plain HTTP proxy, which stops when dropped. The node pulls images through the proxy as well.
pub struct RegistryFront {
    /// `host:port`, as reached by pods and the operator.
    pub address: String,
    injected: Arc<AtomicUsize>,
    node: PathBuf,
    server: tokio::task::JoinHandle<()>,
}

impl RegistryFront {
    /// Starts the proxy.
    ///
    /// # Panics
    /// If the dev cluster does not exist.
    pub async fn start(cluster: &Cluster, fault: Fault) -> Self {
        let listener = TcpListener::bind((host(), 0))
            .await
            .expect("an address of the dev cluster's link");
        let address = listener.local_addr().expect("an address").to_string();
        let injected = Arc::new(AtomicUsize::new(0));
        let counter = injected.clone();
        let fault = Arc::new(fault);
        let server = tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let fault = fault.clone();
                let counter = counter.clone();
                tokio::spawn(async move { pass(stream, &fault, &counter).await });
            }
        });
        let node = cluster.folder.join("containerd/certs.d").join(&address);
        std::fs::create_dir_all(&node).expect("a folder");
        let hosts = format!("server = \"http://{address}\"\n[host]\n");
        std::fs::write(node.join("hosts.toml"), hosts).expect("a file");
        Self {
            address,
            injected,
            node,
            server,
        }
    }
}

impl RegistryFront {
    /// Returns the number of requests that the fault has changed so far.
    pub fn injected(&self) -> usize {
        self.injected.load(Ordering::SeqCst)
    }
}

impl Drop for RegistryFront {
    fn drop(&mut self) {
        self.server.abort();
        // Ignores an error: the folder is missing if the dev cluster was recreated.
        let _ = std::fs::remove_dir_all(&self.node);
    }
}

/// Head of a request.
struct Head {
    method: String,
    path: String,
    /// Header lines, without the request line.
    lines: Vec<String>,
}

impl Head {
    async fn read(stream: &mut TcpStream) -> Option<Self> {
        let mut head = vec![stream.read_u8().await.ok()?];
        if !head.is_ascii() || !head[0].is_ascii_alphabetic() {
            // Response of a plain HTTP server to a TLS handshake.
            let refusal = b"HTTP/1.1 400 Bad Request\r\n\r\n";
            stream.write_all(refusal).await.ok()?;
            return None;
        }
        while !head.ends_with(b"\r\n\r\n") {
            head.push(stream.read_u8().await.ok()?);
        }
        let head = String::from_utf8(head).ok()?;
        let mut lines = head.lines().filter(|line| !line.is_empty());
        let mut words = lines.next()?.split(' ');
        Some(Self {
            method: words.next()?.to_owned(),
            path: words.next()?.to_owned(),
            lines: lines.map(str::to_owned).collect(),
        })
    }

    fn header(&self, wanted: &str) -> Option<&str> {
        self.lines.iter().find_map(|line| {
            let (name, value) = line.split_once(':')?;
            name.eq_ignore_ascii_case(wanted).then(|| value.trim())
        })
    }

    /// Returns the length of the body, in bytes.
    fn length(&self) -> usize {
        let length = self.header("content-length");
        length.and_then(|length| length.parse().ok()).unwrap_or(0)
    }

    fn is_mount(&self) -> bool {
        self.method == "POST" && self.path.contains("mount=")
    }

    fn is_upload(&self) -> bool {
        matches!(self.method.as_str(), "PUT" | "PATCH") && self.path.contains("/blobs/uploads/")
    }

    /// Returns the tag of a pushed manifest.
    fn pushed_tag(&self) -> Option<&str> {
        let (_, tag) = self.path.rsplit_once("/manifests/")?;
        (self.method == "PUT" && !tag.contains(':')).then_some(tag)
    }

    /// Reads the body of the request, because closing a connection with unread bytes resets it.
    async fn skip_body(&self, stream: &mut TcpStream) -> Option<()> {
        let mut body = vec![0; self.length()];
        stream.read_exact(&mut body).await.ok().map(drop)
    }
}

/// Handles one connection with one request.
async fn pass(mut stream: TcpStream, fault: &Fault, injected: &AtomicUsize) -> Option<()> {
    let inject = || injected.fetch_add(1, Ordering::SeqCst);
    let mut head = Head::read(&mut stream).await?;
    match fault {
        Fault::Immutable(taken) => {
            if let Some(tag) = head.pushed_tag()
                && (tag.starts_with(taken) || exists(&head.path).await?)
            {
                inject();
                head.skip_body(&mut stream).await?;
                let why = "the tag exists and is immutable";
                return refuse(&mut stream, "400 Bad Request", "TAG_INVALID", why).await;
            }
        }
        Fault::MountsNothing if head.is_mount() => {
            inject();
            let upload = head.path.split('?').next().unwrap_or_default();
            head.path = upload.to_owned();
        }
        Fault::RefusesMounts | Fault::CutsUploads(_) if head.is_mount() => {
            inject();
            let why = "mounts are switched off";
            return refuse(&mut stream, "405 Method Not Allowed", "UNSUPPORTED", why).await;
        }
        Fault::CutsUploads(remaining) if head.is_upload() && head.length() >= LARGE => {
            let spare = |remaining: usize| remaining.checked_sub(1);
            if remaining
                .fetch_update(Ordering::SeqCst, Ordering::SeqCst, spare)
                .is_ok()
            {
                inject();
                let mut part = vec![0; LARGE / 2];
                return stream.read_exact(&mut part).await.ok().map(drop);
            }
        }
        Fault::MountsNothing | Fault::RefusesMounts | Fault::CutsUploads(_) => {}
    }
    let mut server = TcpStream::connect(node(REGISTRY)).await.ok()?;
    let kept: Vec<&str> = head
        .lines
        .iter()
        .filter(|line| {
            let name = line.split(':').next().unwrap_or_default();
            !name.eq_ignore_ascii_case("connection")
        })
        .map(String::as_str)
        .collect();
    let request = format!(
        "{} {} HTTP/1.1\r\n{}\r\nConnection: close\r\n\r\n",
        head.method,
        head.path,
        kept.join("\r\n")
    );
    server.write_all(request.as_bytes()).await.ok()?;
    copy_bidirectional(&mut stream, &mut server).await.ok()?;
    Some(())
}

async fn refuse(stream: &mut TcpStream, status: &str, code: &str, why: &str) -> Option<()> {
    let body = format!(r#"{{"errors":[{{"code":"{code}","message":"{why}"}}]}}"#);
    let length = body.len();
    let answer = format!(
        "HTTP/1.1 {status}\r\nContent-Type: application/json\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n{body}"
    );
    stream.write_all(answer.as_bytes()).await.ok()
}

async fn exists(path: &str) -> Option<bool> {
    let mut server = TcpStream::connect(node(REGISTRY)).await.ok()?;
    let question = format!(
        "HEAD {path} HTTP/1.1\r\nHost: {}\r\nAccept: */*\r\nConnection: close\r\n\r\n",
        node(REGISTRY)
    );
    server.write_all(question.as_bytes()).await.ok()?;
    let mut answer = String::new();
    server.read_to_string(&mut answer).await.ok()?;
    Some(answer.starts_with("HTTP/1.1 200"))
}
