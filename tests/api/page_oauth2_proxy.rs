//! The page behind oauth2-proxy and Dex, as in docs/page-sign-in.md: the API server accepts the ID tokens of Dex, and oauth2-proxy sends them to the
//! page.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::sync::Arc;

use alustan_tests::Certificate;
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use parking_lot::Mutex;
use reqwest::header::{COOKIE, LOCATION, SET_COOKIE};
use reqwest::{Client, RequestBuilder, Response, StatusCode, Url, redirect};
use serde_json::{Value, json};

use crate::page_in_cluster::{Page, SignIn, bind, create_awaiting, csrf};
use crate::server::{Loopback, Server, free_ports, spawn_guarded, until};
use crate::space::Space;

/// User of Dex. The password is `password`.
const USER: &str = "jane@example.com";

/// bcrypt hash of `password`, of the example configuration of Dex.
const PASSWORD_HASH: &str = "$2a$10$2b2cU8CPhOTaGrs1HRQuAueS7JTT5ZHsHSzYiFPm1leZck7Mc8T4W";

/// Maximum number of redirects of one sign-in.
const MAX_REDIRECTS: usize = 10;

/// Returns the path of a program that hack/tools/build built.
fn tool(variable: &str, program: &str) -> PathBuf {
    let folder = std::env::var_os(variable);
    let help = format!("{variable} is not set: run make api T=page_oauth2_proxy");
    PathBuf::from(folder.expect(&help)).join(program)
}

/// Dex at `issuer`.
fn start_dex(folder: &Path, issuer: &Url, proxy: &str) -> Child {
    let path = |name: &str| folder.join(name).display().to_string();
    let config = json!({
        "Issuer": issuer.as_str(),
        "Listen": format!("127.0.0.1:{}", issuer.port().unwrap()),
        "Cert": path("dex.crt"),
        "Key": path("dex.key"),
        "Client": {"id": "alustan", "secret": "secret", "redirectURIs": [format!("{proxy}/oauth2/callback")]},
        "Passwords": [{
            "email": USER, "username": "jane", "userID": "1", "hash": BASE64_STANDARD.encode(PASSWORD_HASH),
        }],
    });
    std::fs::write(folder.join("dex.json"), config.to_string()).unwrap();
    let mut dex = Command::new(tool("ALUSTAN_DEX", "dex"));
    dex.arg("-config").arg(folder.join("dex.json"));
    spawn_guarded(&mut dex, &folder.join("dex.log"))
}

/// oauth2-proxy at `proxy`, in front of the page at `page`.
fn start_proxy(folder: &Path, issuer: &Url, proxy: &Url, page: u16) -> Child {
    let mut program = Command::new(tool("ALUSTAN_OAUTH2_PROXY", "oauth2-proxy"));
    let port = proxy.port().unwrap();
    program
        .args([
            "--provider=oidc",
            "--client-id=alustan",
            "--client-secret=secret",
        ])
        .args(["--email-domain=*", "--pass-authorization-header=true"])
        .args(["--skip-provider-button=true", "--cookie-secure=false"])
        .args([
            "--cookie-secret=0123456789abcdef0123456789abcdef",
            "--scope=openid email",
        ])
        .arg(format!("--oidc-issuer-url={issuer}"))
        .arg(format!("--redirect-url={proxy}oauth2/callback"))
        .arg(format!("--http-address=127.0.0.1:{port}"))
        .arg(format!("--upstream=http://127.0.0.1:{page}"))
        .arg(format!(
            "--provider-ca-file={}",
            folder.join("dex.crt").display()
        ));
    spawn_guarded(&mut program, &folder.join("oauth2-proxy.log"))
}

/// A browser without JavaScript: keeps cookies and follows redirects.
struct Visitor {
    http: Client,
    cookies: Mutex<BTreeMap<String, String>>,
}

impl Visitor {
    fn new(authority: &str) -> Self {
        // Ignores an error: another test of this process may have installed the crypto provider of rustls.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let authority = reqwest::Certificate::from_pem(authority.as_bytes()).unwrap();
        let http = Client::builder()
            .tls_certs_only([authority])
            .redirect(redirect::Policy::none());
        Self {
            http: http.build().unwrap(),
            cookies: Mutex::default(),
        }
    }

    /// Waits until a server responds at `url`.
    async fn wait_for(&self, url: &str) {
        until(url, async || {
            let response = self.http.get(url).send().await;
            response.map(drop).map_err(|error| error.to_string())
        })
        .await;
    }

    async fn send(&self, request: RequestBuilder) -> Response {
        let cookies: Vec<String> = self
            .cookies
            .lock()
            .iter()
            .map(|(name, value)| format!("{name}={value}"))
            .collect();
        let response = request
            .header(COOKIE, cookies.join("; "))
            .send()
            .await
            .unwrap();
        for cookie in response.headers().get_all(SET_COOKIE) {
            let cookie = cookie.to_str().unwrap().split(';').next().unwrap();
            let (name, value) = cookie.split_once('=').unwrap();
            self.cookies
                .lock()
                .insert(name.to_owned(), value.to_owned());
        }
        response
    }

    /// Follows the redirects of `response`, and returns the last response.
    async fn follow(&self, mut response: Response) -> Response {
        for _ in 0..MAX_REDIRECTS {
            let Some(location) = response.headers().get(LOCATION) else {
                return response;
            };
            let url = response.url().join(location.to_str().unwrap()).unwrap();
            response = self.send(self.http.get(url)).await;
        }
        panic!("more than {MAX_REDIRECTS} redirects: {}", response.url());
    }

    async fn open(&self, url: Url) -> Response {
        let response = self.send(self.http.get(url)).await;
        self.follow(response).await
    }

    /// Opens the page at `url`, and enters the password on the page of Dex.
    async fn sign_in(&self, url: &Url) -> Response {
        let form = self.open(url.clone()).await;
        let action = form.url().clone();
        assert_eq!(form.status(), StatusCode::OK, "{action}");
        let html = form.text().await.unwrap();
        assert!(html.contains("name=\"password\""), "{action}: {html}");
        let form = [("login", USER), ("password", "password")];
        let response = self.send(self.http.post(action).form(&form)).await;
        self.follow(response).await
    }
}

/// Starts an API server that accepts the ID tokens of Dex.
async fn start_server(folder: &Path, issuer: &Url, authority: &str) -> Arc<Server> {
    let config = json!({
        "apiVersion": "apiserver.config.k8s.io/v1", "kind": "AuthenticationConfiguration",
        "jwt": [{
            "issuer": {"url": issuer.as_str(), "audiences": ["alustan"], "certificateAuthority": authority},
            "claimMappings": {"username": {"claim": "email", "prefix": ""}},
        }],
    });
    let file = folder.join("authentication.json");
    std::fs::write(&file, config.to_string()).unwrap();
    let flag = format!("--authentication-config={}", file.display());
    Server::of_its_own_with(Loopback::V4, &[&flag]).await
}

#[tokio::test]
async fn approval_of_dex_user_is_audited_with_user_name() {
    let folder = tempfile::tempdir().unwrap();
    let certificate = Certificate::self_signed("127.0.0.1");
    std::fs::write(folder.path().join("dex.crt"), &certificate.certificate).unwrap();
    std::fs::write(folder.path().join("dex.key"), &certificate.key).unwrap();
    let [dex, proxy, page] = free_ports();
    let issuer: Url = format!("https://127.0.0.1:{dex}/dex").parse().unwrap();
    let url: Url = format!("http://127.0.0.1:{proxy}/").parse().unwrap();
    let mut processes = vec![start_dex(
        folder.path(),
        &issuer,
        url.as_str().trim_end_matches('/'),
    )];
    let visitor = Visitor::new(&certificate.certificate);
    let discovery = format!("{issuer}/.well-known/openid-configuration");
    visitor.wait_for(&discovery).await;
    let server = start_server(folder.path(), &issuer, &certificate.certificate).await;
    let _page = Page::start_on(server.clone(), SignIn::Token, page, url.as_str()).await;
    processes.push(start_proxy(folder.path(), &issuer, &url, page));

    let space = Space::of(&server, json!({})).await;
    let api = create_awaiting(&space).await;
    bind(&space, "alustan-approver", "User", USER).await;

    visitor.wait_for(url.join("ping").unwrap().as_str()).await;
    let path = format!("ns/{}/tf/web", space.namespace);
    let resource_url = url.join(&path).unwrap();
    let html = visitor.sign_in(&resource_url).await.text().await.unwrap();
    for part in [USER, "Plan waits for approval", "abc123"] {
        assert!(html.contains(part), "no {part:?} in {html}");
    }

    // Events pass through the proxy while the connection is open.
    let live = url.join(&format!("{path}/live")).unwrap();
    let mut stream = visitor.send(visitor.http.get(live)).await;
    assert_eq!(stream.status(), StatusCode::OK);

    let form = [("plan", "abc123"), ("csrf", &csrf(&html))];
    let approve = url.join(&format!("{path}/approve")).unwrap();
    let approved = visitor.send(visitor.http.post(approve).form(&form)).await;
    assert_eq!(approved.status(), StatusCode::SEE_OTHER);
    let approval = api.get("web").await.unwrap().spec.approval;
    assert_eq!(
        (approval.plan.as_deref(), approval.by.as_deref()),
        (Some("abc123"), Some(USER))
    );
    let is_approval = |call: &Value| call["verb"] == "patch" && call["user"]["username"] == USER;
    assert!(server.audit().iter().any(is_approval));
    let event = stream.chunk().await.unwrap().unwrap();
    assert!(event.starts_with(b"event: change"), "{event:?}");
}
