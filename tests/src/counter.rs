//! An HTTP server outside the cluster that counts what really happened.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

/// The host's address on the link to the dev cluster.
const HOST: &str = "10.99.1.1";

/// Counts requests by path.
#[derive(Clone)]
pub struct Counter {
    /// `host:port` as pods reach it.
    pub address: String,
    counts: Arc<Mutex<BTreeMap<String, usize>>>,
}

impl Counter {
    /// Starts counting.
    pub async fn start() -> Self {
        let listener = TcpListener::bind((HOST, 0))
            .await
            .expect("an address of the dev cluster's link");
        let address = listener.local_addr().expect("an address").to_string();
        let counts: Arc<Mutex<BTreeMap<String, usize>>> = Arc::default();
        let counted = counts.clone();
        tokio::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                let counted = counted.clone();
                tokio::spawn(async move {
                    let mut request = [0; 1024];
                    let read = stream.read(&mut request).await.unwrap_or_default();
                    let text = String::from_utf8_lossy(&request[..read]).into_owned();
                    if let Some(path) = text.split_whitespace().nth(1) {
                        *counted.lock().unwrap().entry(path.to_owned()).or_default() += 1;
                    }
                    // A client that hangs up early was counted all the same.
                    let _ = stream
                        .write_all(b"HTTP/1.0 200 OK\r\ncontent-length: 0\r\n\r\n")
                        .await;
                });
            }
        });
        Self { address, counts }
    }

    /// How often `path` was asked for.
    pub fn count(&self, path: &str) -> usize {
        self.counts
            .lock()
            .unwrap()
            .get(path)
            .copied()
            .unwrap_or_default()
    }

    /// HCL of a command that counts `path`, for `local-exec` with `bash`.
    pub fn bash(&self, path: &str) -> String {
        let (host, port) = self.address.split_once(':').unwrap_or_default();
        format!(
            "exec 3<>/dev/tcp/{host}/{port} && printf 'GET {path} HTTP/1.0\\r\\n\\r\\n' >&3 && cat <&3 >/dev/null"
        )
    }
}
