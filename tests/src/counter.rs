//! An HTTP server outside the cluster that counts what really happened, and can make it wait.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

/// The host's address on the link to the dev cluster.
pub(crate) const HOST: &str = "10.99.1.1";
/// How long a request may take to come.
const DEADLINE: Duration = Duration::from_mins(3);

/// Counts requests by path.
#[derive(Clone)]
pub struct Counter {
    /// `host:port` as pods reach it.
    pub address: String,
    counts: Arc<watch::Sender<BTreeMap<String, usize>>>,
    order: Arc<Mutex<Vec<String>>>,
    held: Arc<Mutex<BTreeMap<String, watch::Sender<bool>>>>,
}

/// The whole head: a connection closed on unread bytes would be reset, and the client would take
/// an answer for a failure.
async fn read_request(stream: &mut TcpStream) -> String {
    let mut request = Vec::new();
    let mut part = [0; 1024];
    while !request.ends_with(b"\r\n\r\n") {
        match stream.read(&mut part).await {
            Ok(read) if read > 0 => request.extend(&part[..read]),
            _ => break,
        }
    }
    String::from_utf8_lossy(&request).into_owned()
}

impl Counter {
    /// Starts counting.
    pub async fn start() -> Self {
        let listener = TcpListener::bind((HOST, 0))
            .await
            .expect("an address of the dev cluster's link");
        let address = listener.local_addr().expect("an address").to_string();
        let counter = Self {
            address,
            counts: Arc::new(watch::Sender::new(BTreeMap::new())),
            order: Arc::default(),
            held: Arc::default(),
        };
        let serving = counter.clone();
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(serving.clone().serve(stream));
            }
        });
        counter
    }

    async fn serve(self, mut stream: TcpStream) {
        let text = read_request(&mut stream).await;
        let Some(path) = text.split_whitespace().nth(1) else {
            return;
        };
        self.order.lock().unwrap().push(path.to_owned());
        self.counts
            .send_modify(|counts| *counts.entry(path.to_owned()).or_default() += 1);
        let held = self
            .held
            .lock()
            .unwrap()
            .get(path)
            .map(watch::Sender::subscribe);
        if let Some(mut held) = held {
            // The sender is dropped on release.
            let _ = held.wait_for(|free| *free).await;
        }
        // A client that hangs up early was counted all the same.
        let _ = stream
            .write_all(b"HTTP/1.0 200 OK\r\ncontent-length: 0\r\n\r\n")
            .await;
    }

    /// How often `path` was asked for.
    pub fn count(&self, path: &str) -> usize {
        self.counts.borrow().get(path).copied().unwrap_or_default()
    }

    /// Waits until `path` was asked for.
    pub async fn reached(&self, path: &str) {
        self.reached_times(path, 1).await;
    }

    /// Waits until `path` was asked for so often.
    pub async fn reached_times(&self, path: &str, times: usize) {
        let mut counts = self.counts.subscribe();
        let reached = counts.wait_for(|counts| counts.get(path) >= Some(&times));
        let waited = tokio::time::timeout(DEADLINE, reached).await.is_ok();
        assert!(
            waited,
            "{path} was not asked for {times} times within {DEADLINE:?}"
        );
    }

    /// From now on requests for `path` get no answer until [`Self::release`].
    pub fn hold(&self, path: &str) {
        let mut held = self.held.lock().unwrap();
        held.insert(path.to_owned(), watch::Sender::new(false));
    }

    /// Answers those who wait for `path`, and those who come later.
    pub fn release(&self, path: &str) {
        self.held.lock().unwrap().remove(path);
    }

    /// A command of `bash` that asks for `path` and waits for the answer.
    pub fn command(&self, path: &str) -> String {
        let (host, port) = self.address.split_once(':').unwrap_or_default();
        format!(
            "exec 3<>/dev/tcp/{host}/{port} && printf 'GET {path} HTTP/1.0\\r\\n\\r\\n' >&3 && cat <&3 >/dev/null"
        )
    }

    /// HCL of a resource whose making asks for `path`; `more` goes into its block.
    pub fn resource(&self, name: &str, path: &str, more: &str) -> String {
        format!(
            "resource \"terraform_data\" \"{name}\" {{\n  {more}\n  provisioner \"local-exec\" {{\n    \
             interpreter = [\"bash\", \"-c\"]\n    command     = \"{}\"\n  }}\n}}\n",
            self.command(path)
        )
    }

    /// A module with one object that is counted (see [`Self::life`]), and a variable `v` that it gives back.
    pub fn module(&self) -> String {
        let object = self.life("a");
        format!("variable \"v\" {{}}\noutput \"v\" {{ value = var.v }}\n{object}")
    }

    /// HCL of a resource whose making asks for `/made`, and whose destruction for `/destroyed`.
    pub fn life(&self, name: &str) -> String {
        let destroyed = format!(
            "provisioner \"local-exec\" {{\n    when = destroy\n    interpreter = [\"bash\", \"-c\"]\n    \
             command = \"{}\"\n  }}",
            self.command("/destroyed")
        );
        self.resource(name, "/made", &destroyed)
    }

    /// All paths, in the order in which they were asked for.
    pub fn order(&self) -> Vec<String> {
        self.order.lock().unwrap().clone()
    }

    /// HCL of a resource whose making asks for `/made/<value>`, and whose destruction for
    /// `/destroyed/<value>`, with the value that `expression` gives.
    pub fn life_of(&self, expression: &str) -> String {
        let command = |path: &str| self.command(&format!("{path}/${{self.input}}"));
        format!(
            "resource \"terraform_data\" \"life\" {{\n  input = {expression}\n  provisioner \"local-exec\" {{\n    \
             interpreter = [\"bash\", \"-c\"]\n    command = \"{}\"\n  }}\n  provisioner \"local-exec\" {{\n    \
             when = destroy\n    interpreter = [\"bash\", \"-c\"]\n    command = \"{}\"\n  }}\n}}\n",
            command("/made"),
            command("/destroyed"),
        )
    }

    /// How often `/made` and `/destroyed` were asked for.
    pub fn lives(&self) -> (usize, usize) {
        (self.count("/made"), self.count("/destroyed"))
    }
}
