//! HTTP server outside of the cluster that counts requests of modules and scripts and can delay them.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

use crate::addresses::host;

/// Maximum time until an expected request arrives.
const DEADLINE: Duration = Duration::from_mins(3);

/// Counts requests by path.
#[derive(Clone)]
pub struct Counter {
    /// `host:port`, as reached by pods.
    pub address: String,
    counts: Arc<watch::Sender<BTreeMap<String, usize>>>,
    order: Arc<Mutex<Vec<String>>>,
    held: Arc<Mutex<BTreeMap<String, watch::Sender<bool>>>>,
    redirects: Arc<Mutex<BTreeMap<String, String>>>,
}

/// Reads the whole head of a request. If bytes were unread, closing the connection would reset it, and the client would fail.
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
    /// Starts the server.
    pub async fn start() -> Self {
        let listener = TcpListener::bind((host(), 0))
            .await
            .expect("an address of the dev cluster's link");
        let address = listener.local_addr().expect("an address").to_string();
        let counter = Self {
            address,
            counts: Arc::new(watch::Sender::new(BTreeMap::new())),
            order: Arc::default(),
            held: Arc::default(),
            redirects: Arc::default(),
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
            // Ignores an error: `release` drops the sender, which ends the wait with an error.
            let _ = held.wait_for(|free| *free).await;
        }
        let redirect = self
            .redirects
            .lock()
            .unwrap()
            .get(path)
            .cloned()
            .unwrap_or_default();
        let answer = format!("HTTP/1.0 200 OK\r\n{redirect}content-length: 0\r\n\r\n");
        // Ignores an error: a request is counted even if the client disconnects before the response.
        let _ = stream.write_all(answer.as_bytes()).await;
    }

    /// Answers requests for `path` with `source` as the address of the module
    /// (<https://developer.hashicorp.com/terraform/language/modules/sources#http-urls>).
    pub fn redirect_module(&self, path: &str, source: &str) {
        let path = format!("{path}?terraform-get=1");
        let header = format!("X-Terraform-Get: {source}\r\n");
        self.redirects.lock().unwrap().insert(path, header);
    }

    /// Returns the number of requests for `path`.
    pub fn count(&self, path: &str) -> usize {
        self.counts.borrow().get(path).copied().unwrap_or_default()
    }

    /// Waits for a request for `path`.
    pub async fn reached(&self, path: &str) {
        self.reached_times(path, 1).await;
    }

    /// Waits for `times` requests for `path`.
    pub async fn reached_times(&self, path: &str, times: usize) {
        let mut counts = self.counts.subscribe();
        let reached = counts.wait_for(|counts| counts.get(path) >= Some(&times));
        let waited = tokio::time::timeout(DEADLINE, reached).await.is_ok();
        assert!(
            waited,
            "{path} was not asked for {times} times within {DEADLINE:?}"
        );
    }

    /// Delays requests for `path` until [`Self::release`].
    pub fn hold(&self, path: &str) {
        let mut held = self.held.lock().unwrap();
        held.insert(path.to_owned(), watch::Sender::new(false));
    }

    /// Answers delayed and later requests for `path`.
    pub fn release(&self, path: &str) {
        self.held.lock().unwrap().remove(path);
    }

    /// Returns a command of `bash` that requests `path` and waits for the response.
    pub fn command(&self, path: &str) -> String {
        let (host, port) = self.address.rsplit_once(':').unwrap_or_default();
        // bash expects no brackets around an IPv6 address.
        let host = host.trim_matches(['[', ']']);
        format!(
            "exec 3<>/dev/tcp/{host}/{port} && printf 'GET {path} HTTP/1.0\\r\\n\\r\\n' >&3 && cat <&3 >/dev/null"
        )
    }

    /// Returns HCL of a resource that requests `path` on creation. Adds `more` to the resource block.
    pub fn resource(&self, name: &str, path: &str, more: &str) -> String {
        format!(
            "resource \"terraform_data\" \"{name}\" {{\n  {more}\n  provisioner \"local-exec\" {{\n    \
             interpreter = [\"bash\", \"-c\"]\n    command     = \"{}\"\n  }}\n}}\n",
            self.command(path)
        )
    }

    /// Returns a module with one counted object (see [`Self::counted_object`]), and a variable `v` that is also an output.
    pub fn module(&self) -> String {
        let object = self.counted_object("a");
        format!("variable \"v\" {{}}\noutput \"v\" {{ value = var.v }}\n{object}")
    }

    /// Returns HCL of a resource that requests `/made` on creation and `/destroyed` on destruction.
    pub fn counted_object(&self, name: &str) -> String {
        let destroyed = format!(
            "provisioner \"local-exec\" {{\n    when = destroy\n    interpreter = [\"bash\", \"-c\"]\n    \
             command = \"{}\"\n  }}",
            self.command("/destroyed")
        );
        self.resource(name, "/made", &destroyed)
    }

    /// Returns all requested paths in order.
    pub fn requested_paths(&self) -> Vec<String> {
        self.order.lock().unwrap().clone()
    }

    /// Returns HCL of a resource that requests `/made/VALUE` on creation and `/destroyed/VALUE` on destruction. VALUE is the value of
    /// `expression`.
    pub fn counted_object_per_value(&self, expression: &str) -> String {
        let command = |path: &str| self.command(&format!("{path}/${{self.input}}"));
        format!(
            "resource \"terraform_data\" \"life\" {{\n  input = {expression}\n  provisioner \"local-exec\" {{\n    \
             interpreter = [\"bash\", \"-c\"]\n    command = \"{}\"\n  }}\n  provisioner \"local-exec\" {{\n    \
             when = destroy\n    interpreter = [\"bash\", \"-c\"]\n    command = \"{}\"\n  }}\n}}\n",
            command("/made"),
            command("/destroyed"),
        )
    }

    /// Returns the number of requests for `/made` and for `/destroyed`.
    pub fn creations_and_destructions(&self) -> (usize, usize) {
        (self.count("/made"), self.count("/destroyed"))
    }
}
