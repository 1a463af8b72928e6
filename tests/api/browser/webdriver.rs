//! Client of the `WebDriver` protocol (<https://www.w3.org/TR/webdriver2/>), for chromedriver.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use reqwest::Method;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::server::{free_ports, spawn_guarded};

/// Name of the member with the id of an element in responses.
const ELEMENT: &str = "element-6066-11e4-a52e-4f735466cecf";

/// Maximum duration of each wait; the machine may be loaded.
const DEADLINE: Duration = Duration::from_mins(1);

/// Maximum duration of the load of a page, shorter than the time after which Chromium closes the connections of pages that the user left.
const PAGE_TIMEOUT: Duration = Duration::from_secs(40);

/// Interval between two checks of a condition.
const INTERVAL: Duration = Duration::from_millis(50);

/// Keys as `WebDriver` encodes them.
pub(super) const TAB: &str = "\u{e004}";
pub(super) const ENTER: &str = "\u{e007}";

/// A process of chromedriver, shared by all tests. Ends, with its browsers, when the test program ends.
struct Driver {
    port: u16,
    /// Folder of the profiles. `leash.sh` removes it.
    folder: PathBuf,
    _process: Child,
}

impl Driver {
    fn shared() -> &'static Self {
        static SHARED: OnceLock<Driver> = OnceLock::new();
        SHARED.get_or_init(|| {
            let [port] = free_ports();
            let folder = tempfile::tempdir().unwrap().keep();
            let mut command = Command::new("chromedriver");
            command
                .arg(format!("--port={port}"))
                .env("SIGNAL", "TERM")
                .env("TMPDIR", &folder)
                .env("FOLDER", &folder);
            let process = spawn_guarded(&mut command, &folder.join("chromedriver.log"));
            Self {
                port,
                folder,
                _process: process,
            }
        })
    }
}

/// Settings of a browser.
#[derive(Clone, Copy)]
pub(super) struct Settings {
    /// Whether pages may execute scripts.
    pub(super) javascript: bool,
}

/// Colour scheme of the system.
#[derive(Clone, Copy, Debug)]
pub(super) enum Scheme {
    Light,
    Dark,
}

impl Scheme {
    pub(super) const fn as_str(self) -> &'static str {
        match self {
            Self::Light => "light",
            Self::Dark => "dark",
        }
    }
}

/// A browser with a separate profile.
pub(super) struct Browser {
    client: reqwest::Client,
    port: u16,
    session: String,
    _profile: TempDir,
}

impl Browser {
    /// Starts Chromium.
    pub(super) async fn start(settings: Settings) -> Self {
        let Driver { port, folder, .. } = Driver::shared();
        let profile = tempfile::tempdir_in(folder).unwrap();
        let client = reqwest::Client::new();
        let address = format!("http://127.0.0.1:{port}");
        eventually("chromedriver", async || {
            let status = client.get(format!("{address}/status")).send().await;
            status.map_err(|error| error.to_string())
        })
        .await;
        let javascript = if settings.javascript { 1 } else { 2 };
        let capabilities = json!({"capabilities": {"alwaysMatch": {
            "browserName": "chrome",
            "timeouts": {"pageLoad": PAGE_TIMEOUT.as_millis()},
            "goog:loggingPrefs": {"browser": "ALL"},
            "goog:chromeOptions": {
                "binary": "/usr/bin/chromium",
                "args": arguments(profile.path()),
                "prefs": {"profile.managed_default_content_settings.javascript": javascript},
            },
        }}});
        let session = send(
            &client,
            Method::POST,
            &format!("{address}/session"),
            capabilities,
        )
        .await
        .unwrap_or_else(|error| panic!("Chromium does not start: {error}"));
        Self {
            session: session["sessionId"].as_str().unwrap().to_owned(),
            client,
            port: *port,
            _profile: profile,
        }
    }

    async fn try_command(&self, method: Method, path: &str, body: Value) -> Result<Value, String> {
        let Self { port, session, .. } = self;
        let url = format!("http://127.0.0.1:{port}/session/{session}/{path}");
        send(&self.client, method, &url, body).await
    }

    async fn command(&self, method: Method, path: &str, body: Value) -> Value {
        self.try_command(method, path, body)
            .await
            .unwrap_or_else(|error| panic!("{path}: {error}"))
    }

    /// Opens `url`, and waits until the page is loaded.
    pub(super) async fn open(&self, url: &str) {
        self.command(Method::POST, "url", json!({"url": url})).await;
    }

    /// Opens a tab and shows it. Returns the previous tab.
    pub(super) async fn open_tab(&self) -> String {
        let previous = text(self.command(Method::GET, "window", Value::Null).await);
        let tab = json!({"type": "tab"});
        let tab = self.command(Method::POST, "window/new", tab).await;
        self.show_tab(tab["handle"].as_str().unwrap()).await;
        previous
    }

    /// Shows `tab`.
    pub(super) async fn show_tab(&self, tab: &str) {
        self.command(Method::POST, "window", json!({"handle": tab}))
            .await;
        self.devtools("Page.bringToFront", json!({})).await;
    }

    /// Goes back to the previous page.
    pub(super) async fn back(&self) {
        self.command(Method::POST, "back", json!({})).await;
    }

    /// Returns the URL of the page.
    pub(super) async fn url(&self) -> String {
        text(self.command(Method::GET, "url", Value::Null).await)
    }

    /// Waits until the path of the page is `path`.
    pub(super) async fn until_path(&self, path: &str) {
        eventually(path, async || {
            let url = self.url().await;
            let is_reached = url.split('?').next().unwrap().ends_with(path);
            is_reached.then_some(()).ok_or(url)
        })
        .await;
    }

    /// Waits for an element that matches `selector`, and returns it.
    pub(super) async fn element(&self, selector: &str) -> Element<'_> {
        let id = eventually(selector, async || self.find(selector).await).await;
        Element { browser: self, id }
    }

    async fn find(&self, selector: &str) -> Result<String, String> {
        let body = json!({"using": "css selector", "value": selector});
        let found = self.try_command(Method::POST, "element", body).await?;
        Ok(text(found[ELEMENT].clone()))
    }

    /// Returns the number of elements that match `selector`.
    pub(super) async fn count(&self, selector: &str) -> usize {
        let body = json!({"using": "css selector", "value": selector});
        let found = self.command(Method::POST, "elements", body).await;
        found.as_array().unwrap().len()
    }

    /// Clicks the element that matches `selector`. Retries if the page replaces the element.
    pub(super) async fn click(&self, selector: &str) {
        eventually(selector, async || {
            let id = self.find(selector).await?;
            let path = format!("element/{id}/click");
            self.try_command(Method::POST, &path, json!({})).await
        })
        .await;
    }

    /// Returns the displayed text of the page.
    pub(super) async fn text(&self) -> String {
        eventually("text", async || {
            let id = self.find("body").await?;
            let path = format!("element/{id}/text");
            self.try_command(Method::GET, &path, Value::Null).await
        })
        .await
        .as_str()
        .unwrap()
        .to_owned()
    }

    /// Waits until the page displays `part`.
    pub(super) async fn until_text(&self, part: &str) {
        eventually(part, async || {
            let text = self.text().await;
            text.contains(part).then_some(()).ok_or(text)
        })
        .await;
    }

    /// Executes `script`, the body of a function, and returns its result. The content security policy of the page does not apply.
    pub(super) async fn execute(&self, script: &str) -> Value {
        let body = json!({"script": script, "args": []});
        self.command(Method::POST, "execute/sync", body).await
    }

    /// Executes `script`, whose last argument is a function that returns the result.
    pub(super) async fn execute_async(&self, script: &str) -> Value {
        let body = json!({"script": script, "args": []});
        self.command(Method::POST, "execute/async", body).await
    }

    /// Sends a command of the Chrome `DevTools` protocol.
    pub(super) async fn devtools(&self, command: &str, parameters: Value) -> Value {
        let body = json!({"cmd": command, "params": parameters});
        self.command(Method::POST, "goog/cdp/execute", body).await
    }

    /// Sets the colour scheme of the system.
    pub(super) async fn set_scheme(&self, scheme: Scheme) {
        let feature = json!({"name": "prefers-color-scheme", "value": scheme.as_str()});
        self.devtools("Emulation.setEmulatedMedia", json!({"features": [feature]}))
            .await;
    }

    /// Presses `key`.
    pub(super) async fn press(&self, key: &str) {
        let actions = json!([
            {"type": "keyDown", "value": key},
            {"type": "keyUp", "value": key},
        ]);
        let source = json!({"type": "key", "id": "keyboard", "actions": actions});
        self.command(Method::POST, "actions", json!({"actions": [source]}))
            .await;
    }

    /// Returns the window as PNG.
    pub(super) async fn screenshot(&self) -> Vec<u8> {
        let encoded = text(self.command(Method::GET, "screenshot", Value::Null).await);
        BASE64_STANDARD.decode(encoded).unwrap()
    }

    /// Whether a dialog is open, for example of `alert`.
    pub(super) async fn has_dialog(&self) -> bool {
        self.try_command(Method::GET, "alert/text", Value::Null)
            .await
            .is_ok()
    }

    /// Fails if the console contains errors, for example violations of the content security policy. Refused requests of pages do not count.
    pub(super) async fn assert_clean_console(&self) {
        let body = json!({"type": "browser"});
        let entries = self.command(Method::POST, "se/log", body).await;
        let errors: Vec<&Value> = entries
            .as_array()
            .unwrap()
            .iter()
            .filter(|entry| {
                let message = entry["message"].as_str().unwrap();
                let is_violation = message.contains("Content Security Policy");
                is_violation || (entry["level"] == "SEVERE" && entry["source"] != "network")
            })
            .collect();
        assert!(errors.is_empty(), "errors in the console: {errors:#?}");
    }
}

impl Drop for Browser {
    /// Ends Chromium, also after a panic. Its processes are in the process group of chromedriver, which ends with the test program.
    fn drop(&mut self) {
        let Ok(mut stream) = TcpStream::connect(("127.0.0.1", self.port)) else {
            return;
        };
        let request = format!(
            "DELETE /session/{} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n",
            self.session
        );
        // Waits for the response: the profile must not be removed before.
        let _ = stream.set_read_timeout(Some(Duration::from_secs(10)));
        let _ = stream.write_all(request.as_bytes());
        let _ = stream.read(&mut [0; 1024]);
    }
}

/// An element of a page.
pub(super) struct Element<'a> {
    browser: &'a Browser,
    id: String,
}

impl Element<'_> {
    async fn get(&self, what: &str) -> Value {
        let path = format!("element/{}/{what}", self.id);
        self.browser.command(Method::GET, &path, Value::Null).await
    }

    /// Returns the value of the attribute `name`.
    pub(super) async fn attribute(&self, name: &str) -> Option<String> {
        let value = self.get(&format!("attribute/{name}")).await;
        value.as_str().map(str::to_owned)
    }

    /// Whether the element is enabled.
    pub(super) async fn is_enabled(&self) -> bool {
        self.get("enabled").await == true
    }
}

fn arguments(profile: &Path) -> Vec<String> {
    let mut arguments: Vec<String> = [
        "--headless=new",
        "--window-size=1280,800",
        // The shared memory of a container may be too small.
        "--disable-dev-shm-usage",
        "--disable-gpu",
        "--disable-extensions",
        "--disable-component-update",
        "--disable-background-networking",
        "--force-color-profile=srgb",
        "--hide-scrollbars",
        "--no-first-run",
    ]
    .map(str::to_owned)
    .into();
    arguments.push(format!("--user-data-dir={}", profile.display()));
    // Chromium refuses its sandbox as root.
    if std::fs::metadata("/proc/self").unwrap().uid() == 0 {
        arguments.push("--no-sandbox".to_owned());
    }
    arguments
}

async fn send(
    client: &reqwest::Client,
    method: Method,
    url: &str,
    body: Value,
) -> Result<Value, String> {
    let mut request = client.request(method, url);
    if !body.is_null() {
        request = request
            .header("Content-Type", "application/json")
            .body(body.to_string());
    }
    let response = request.send().await.map_err(|error| error.to_string())?;
    let is_success = response.status().is_success();
    let body = response.bytes().await.map_err(|error| error.to_string())?;
    let mut body: Value = serde_json::from_slice(&body).map_err(|error| error.to_string())?;
    let value = body["value"].take();
    if is_success {
        Ok(value)
    } else {
        Err(text(value["message"].clone()))
    }
}

fn text(value: Value) -> String {
    match value {
        Value::String(text) => text,
        other => other.to_string(),
    }
}

/// Waits until `wanted` returns a value. Panics with the last error of `wanted` after [`DEADLINE`].
pub(super) async fn eventually<T>(what: &str, wanted: impl AsyncFn() -> Result<T, String>) -> T {
    let since = Instant::now();
    loop {
        match wanted().await {
            Ok(value) => return value,
            Err(not_yet) => assert!(since.elapsed() < DEADLINE, "waited for {what}: {not_yet}"),
        }
        tokio::time::sleep(INTERVAL).await;
    }
}
