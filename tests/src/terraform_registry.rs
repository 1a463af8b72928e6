//! Private registry of modules and providers, and network mirror of its providers, over TLS and with a token.
//!
//! Protocols: <https://developer.hashicorp.com/terraform/internals/module-registry-protocol>, `provider-registry-protocol` and
//! `provider-network-mirror-protocol`. Archives have unguessable paths and need no token, like the signed URLs of real registries.

use std::collections::BTreeMap;
use std::io::{Cursor, Write};
use std::path::Path as FilePath;
use std::process::Command;
use std::sync::{Arc, Mutex};

use axum::Router;
use axum::extract::{Request, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use ring::digest::{SHA256, digest};
use serde_json::{Value, json};
use zip::ZipWriter;
use zip::write::SimpleFileOptions;

use crate::tls::{Certificate, TlsListener};

/// Response header with the location of a module.
const LOCATION: &str = "X-Terraform-Get";
/// Version of all modules and providers.
const VERSION: &str = "1.0.0";
/// Platform of all providers.
const PLATFORM: (&str, &str) = ("linux", "amd64");

/// Registry, which stops with the runtime that started it.
#[derive(Clone)]
pub struct TerraformRegistry {
    /// `host:port`, as in sources of modules and providers.
    pub host: String,
    /// Certificate authority to trust, in PEM.
    pub authority: String,
    content: Arc<Mutex<Content>>,
}

#[derive(Default)]
struct Content {
    token: String,
    /// Responses that require the token, by path.
    protected: BTreeMap<String, Answer>,
    /// Archives and checksums, by path.
    files: BTreeMap<String, Vec<u8>>,
    /// Locations of modules, by path.
    redirects: BTreeMap<String, String>,
    /// Paths of requests, and whether the request had the token.
    requests: Vec<(String, bool)>,
}

#[derive(Clone)]
enum Answer {
    Json(Value),
    /// Location of the archive of a module.
    Location(String),
}

impl TerraformRegistry {
    /// Starts an empty registry on a free port of the IP address `host`. It accepts only `token`.
    pub async fn start(host: &str, token: &str, own: &Certificate) -> Self {
        let listener = TlsListener::bind(host, own).await;
        let content = Content {
            token: token.to_owned(),
            ..Content::default()
        };
        let registry = Self {
            host: listener.address(),
            authority: own.certificate.clone(),
            content: Arc::new(Mutex::new(content)),
        };
        let router = Router::new().fallback(serve).with_state(registry.clone());
        tokio::spawn(async move { axum::serve(listener, router).await });
        registry
    }

    /// Publishes a module with one file `main.tf`. `address`: `namespace/name/provider`.
    pub fn publish_module(&self, address: &str, text: &str) {
        let archive = archive(&[("main.tf", text.as_bytes(), 0o644)]);
        let url = self.publish_file("module.zip", archive);
        let versions = json!({"modules": [{"versions": [{"version": VERSION}]}]});
        let path = format!("/v1/modules/{address}");
        self.publish(format!("{path}/versions"), Answer::Json(versions));
        let location = Answer::Location(format!("{url}?archive=zip"));
        self.publish(format!("{path}/{VERSION}/download"), location);
    }

    /// Answers requests for `path` without a token with `location` as the location of a module
    /// (<https://developer.hashicorp.com/terraform/language/modules/sources#http-urls>). Returns the URL of `path`.
    pub fn redirect(&self, path: &str, location: &str) -> String {
        let mut content = self.content.lock().unwrap();
        content
            .redirects
            .insert(path.to_owned(), location.to_owned());
        format!("https://{}{path}", self.host)
    }

    /// Publishes a provider in the registry, and in the network mirror under any host. `address`: `namespace/type`. `program`: content of the executable.
    pub fn publish_provider(&self, address: &str, program: &[u8]) {
        let (os, arch) = PLATFORM;
        let kind = address.rsplit('/').next().unwrap();
        let file = format!("terraform-provider-{kind}_{VERSION}_{os}_{arch}.zip");
        let name = format!("terraform-provider-{kind}_v{VERSION}");
        let archive = archive(&[(&name, program, 0o755)]);
        let sum = hex::encode(digest(&SHA256, &archive));
        let sums = format!("{sum}  {file}\n").into_bytes();
        let signature = Signature::of(&sums);
        let url = self.publish_file(&file, archive);
        let package = json!({
            "protocols": ["5.0"], "os": os, "arch": arch, "filename": file, "download_url": url, "shasum": sum,
            "shasums_url": self.publish_file("SHA256SUMS", sums),
            "shasums_signature_url": self.publish_file("SHA256SUMS.sig", signature.bytes),
            "signing_keys": {"gpg_public_keys": [{"key_id": signature.key_id, "ascii_armor": signature.public_key}]},
        });
        let platforms = [json!({"os": os, "arch": arch})];
        let version = json!({"version": VERSION, "protocols": ["5.0"], "platforms": platforms});
        let path = format!("/v1/providers/{address}");
        let versions = json!({"versions": [version]});
        self.publish(format!("{path}/versions"), Answer::Json(versions));
        let download = format!("{path}/{VERSION}/download/{os}/{arch}");
        self.publish(download, Answer::Json(package));
        let mirrored = format!("/mirror/*/{address}");
        let index = json!({"versions": {VERSION: {}}});
        self.publish(format!("{mirrored}/index.json"), Answer::Json(index));
        let archives = json!({"archives": {format!("{os}_{arch}"): {"url": url}}});
        let archives = Answer::Json(archives);
        self.publish(format!("{mirrored}/{VERSION}.json"), archives);
    }

    /// Returns the URL of the network mirror.
    pub fn mirror(&self) -> String {
        format!("https://{}/mirror/", self.host)
    }

    /// Returns the number of requests whose path begins with `path` and whose token was accepted.
    pub fn accepted(&self, path: &str) -> usize {
        let content = self.content.lock().unwrap();
        let requests = content.requests.iter();
        requests
            .filter(|(asked, accepted)| *accepted && asked.starts_with(path))
            .count()
    }

    fn publish(&self, path: String, answer: Answer) {
        self.content.lock().unwrap().protected.insert(path, answer);
    }

    /// Publishes a file at an unguessable path and returns its URL.
    fn publish_file(&self, name: &str, bytes: Vec<u8>) -> String {
        let sum = hex::encode(digest(&SHA256, &bytes));
        let path = format!("/files/{sum}/{name}");
        let url = format!("https://{}{path}", self.host);
        self.content.lock().unwrap().files.insert(path, bytes);
        url
    }
}

async fn serve(State(registry): State<TerraformRegistry>, request: Request) -> Response {
    let path = request.uri().path().to_owned();
    let mut content = registry.content.lock().unwrap();
    let wanted = format!("Bearer {}", content.token);
    let given = request.headers().get(header::AUTHORIZATION);
    let accepted = given.is_some_and(|given| given == wanted.as_str());
    content.requests.push((path.clone(), accepted));
    if path == "/.well-known/terraform.json" {
        let services = json!({"modules.v1": "/v1/modules/", "providers.v1": "/v1/providers/"});
        return json_response(&services);
    }
    if let Some(file) = content.files.get(&path) {
        return file.clone().into_response();
    }
    if let Some(location) = content.redirects.get(&path).cloned() {
        return [(LOCATION, location)].into_response();
    }
    if !accepted {
        return StatusCode::UNAUTHORIZED.into_response();
    }
    match content.protected.get(&published(&path)).cloned() {
        Some(Answer::Json(value)) => json_response(&value),
        Some(Answer::Location(location)) => {
            (StatusCode::NO_CONTENT, [(LOCATION, location)]).into_response()
        }
        None => StatusCode::NOT_FOUND.into_response(),
    }
}

/// Returns the path under which the response for `path` is published: the network mirror has its providers under any host.
fn published(path: &str) -> String {
    let mirrored = path.strip_prefix("/mirror/");
    match mirrored.and_then(|rest| rest.split_once('/')) {
        Some((_, rest)) => format!("/mirror/*/{rest}"),
        None => path.to_owned(),
    }
}

fn json_response(value: &Value) -> Response {
    let kind = [(header::CONTENT_TYPE, "application/json")];
    (kind, value.to_string()).into_response()
}

/// Returns a zip archive of files, each with its permissions.
fn archive(files: &[(&str, &[u8], u32)]) -> Vec<u8> {
    let mut writer = ZipWriter::new(Cursor::new(Vec::new()));
    for (name, bytes, mode) in files {
        let options = SimpleFileOptions::default().unix_permissions(*mode);
        writer.start_file(*name, options).unwrap();
        writer.write_all(bytes).unwrap();
    }
    writer.finish().unwrap().into_inner()
}

/// `OpenPGP` signature of a file, and the key that verifies it. The engine requires both.
struct Signature {
    key_id: String,
    public_key: String,
    bytes: Vec<u8>,
}

impl Signature {
    fn of(bytes: &[u8]) -> Self {
        let home = tempfile::tempdir().unwrap();
        let file = home.path().join("file");
        std::fs::write(&file, bytes).unwrap();
        let user = "registry@alustan.test";
        let key = [
            "--passphrase",
            "",
            "--quick-generate-key",
            user,
            "rsa2048",
            "sign",
            "never",
        ];
        gpg(home.path(), &key);
        let list = gpg(home.path(), &["--with-colons", "--list-keys"]);
        let list = String::from_utf8(list).unwrap();
        let line = list.lines().find(|line| line.starts_with("pub:")).unwrap();
        let public_key = gpg(home.path(), &["--armor", "--export", user]);
        let signature = Self {
            key_id: line.split(':').nth(4).unwrap().to_owned(),
            public_key: String::from_utf8(public_key).unwrap(),
            bytes: gpg(
                home.path(),
                &["--output", "-", "--detach-sign", file.to_str().unwrap()],
            ),
        };
        let stopped = Command::new("gpgconf")
            .arg("--homedir")
            .arg(home.path())
            .args(["--kill", "gpg-agent"])
            .status();
        assert!(stopped.unwrap().success());
        signature
    }
}

/// Returns the output of gpg. `home`: folder of its keys.
fn gpg(home: &FilePath, arguments: &[&str]) -> Vec<u8> {
    let done = Command::new("gpg")
        .arg("--homedir")
        .arg(home)
        .args(["--batch", "--no-tty", "--pinentry-mode", "loopback"])
        .args(arguments)
        .output()
        .expect("gpg is not on PATH: run `make setup`");
    assert!(
        done.status.success(),
        "{}",
        String::from_utf8_lossy(&done.stderr)
    );
    done.stdout
}
