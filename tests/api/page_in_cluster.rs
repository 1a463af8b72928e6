//! Sign-in of users at `alustan-controller page`, with the rights of its ServiceAccount in the manifests.

use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child, Command};
use std::sync::Arc;

use alustan_api::Terraform;
use k8s_openapi::api::core::v1::{Secret, ServiceAccount};
use k8s_openapi::api::rbac::v1::RoleBinding;
use kube::api::{Api, ListParams, Patch, PatchParams};
use reqwest::header::{COOKIE, SET_COOKIE};
use reqwest::{Client, Identity, Response, StatusCode, redirect};
use serde_json::{Value, json};

use crate::server::{Server, built, free_ports, root, spawn_guarded, until};
use crate::space::{Space, resource};

/// User name of the ServiceAccount of the page.
const PAGE: &str = "system:serviceaccount:alustan-system:alustan-page";

/// Sign-in of a page.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum SignIn {
    Token,
    Proxy,
}

/// A page and its API server.
pub(crate) struct Page {
    server: Arc<Server>,
    url: String,
    http: Client,
    _process: Child,
}

impl Page {
    /// Starts a page with the rights of its manifests. With [`SignIn::Proxy`], the page may impersonate the user `jane`.
    async fn start(sign_in: SignIn) -> Self {
        let [port] = free_ports();
        let scheme = if sign_in == SignIn::Proxy {
            "https"
        } else {
            "http"
        };
        let url = format!("{scheme}://localhost:{port}");
        Self::start_on(Server::of_its_own().await, sign_in, port, &url).await
    }

    /// Starts a page on `server` at `port`, which users open at `url`.
    pub(crate) async fn start_on(
        server: Arc<Server>,
        sign_in: SignIn,
        port: u16,
        url: &str,
    ) -> Self {
        install(&server, sign_in);
        let token = server
            .kubectl(&["create", "token", "alustan-page", "-n", "alustan-system"])
            .unwrap();
        let folder = server.folder();
        let keys = folder.join("keys");
        std::fs::write(&keys, "AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=\n").unwrap();
        let mut program = Command::new(built("alustan-controller").unwrap());
        program
            .arg("page")
            .args(["--listen", &format!("127.0.0.1:{port}"), "--url", url])
            .arg("--cookie-key-file")
            .arg(&keys)
            .env("KUBECONFIG", server.kubeconfig_file_with(token.trim()))
            .env("SIGNAL", "TERM");
        if sign_in == SignIn::Proxy {
            program.args(["--sign-in=proxy", "--impersonate-user=jane"]);
            for (flag, file) in [
                ("--tls-cert-file", "server.crt"),
                ("--tls-key-file", "server.key"),
                ("--client-ca-file", "ca.crt"),
            ] {
                program.arg(flag).arg(folder.join(file));
            }
        }
        let scheme = match sign_in {
            SignIn::Token => "http",
            SignIn::Proxy => "https",
        };
        let process = spawn_guarded(&mut program, &folder.join("page.log"));
        let http = client(folder, port, None);
        let page = Self {
            http,
            url: url.to_owned(),
            _process: process,
            server,
        };
        until("the page to get ready", async || {
            let ready = format!("{scheme}://localhost:{port}/readyz");
            let response = page.http.get(ready).send().await;
            let status = response.map_err(|error| error.to_string())?.status();
            let log = || std::fs::read_to_string(page.server.folder().join("page.log"));
            status
                .is_success()
                .then_some(())
                .ok_or_else(|| format!("{status}: {}", log().unwrap_or_default()))
        })
        .await;
        page
    }

    fn at(&self, path: &str) -> String {
        format!("{}{path}", self.url)
    }

    /// Returns a client that presents the certificate of the proxy.
    fn proxy(&self) -> Client {
        let (_, port) = self.url.rsplit_once(':').unwrap();
        client(self.server.folder(), port.parse().unwrap(), Some("admin"))
    }

    /// Returns the response to `GET /` in JSON, with the header `name`.
    async fn index(&self, http: &Client, headers: &[(&str, &str)]) -> Response {
        let mut request = http.get(self.at("/")).header("accept", "application/json");
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        request.send().await.unwrap()
    }
}

/// Returns a client that trusts the certificate authority of the server, and presents the certificate `identity`, if it is set.
fn client(folder: &Path, port: u16, identity: Option<&str>) -> Client {
    let read = |name: &str| std::fs::read(folder.join(name)).unwrap();
    let authority = reqwest::Certificate::from_pem(&read("ca.crt")).unwrap();
    let mut client = Client::builder()
        .tls_certs_only([authority])
        .redirect(redirect::Policy::none())
        .resolve("localhost", SocketAddr::from(([127, 0, 0, 1], port)));
    if let Some(name) = identity {
        let pem = [read(&format!("{name}.crt")), read(&format!("{name}.key"))].concat();
        client = client.identity(Identity::from_pem(&pem).unwrap());
    }
    client.build().unwrap()
}

/// Installs the manifests of the page.
fn install(server: &Server, sign_in: SignIn) {
    let folder = server.folder().join("overlay");
    std::fs::create_dir(&folder).unwrap();
    // kustomize accepts relative paths only.
    let up = folder.canonicalize().unwrap().components().count() - 1;
    let deploy = root().join("deploy/kustomize").canonicalize().unwrap();
    let deploy = format!(
        "{}{}",
        "../".repeat(up),
        deploy.strip_prefix("/").unwrap().display()
    );
    let page = format!("{deploy}/components/page");
    let rest = match sign_in {
        SignIn::Token => format!("components: [{page}]\n"),
        SignIn::Proxy => format!(
            "components: [{page}, {page}-proxy]
patches:
  - target: {{kind: ClusterRole, name: alustan-page-sign-in}}
    patch: |-
      - op: add
        path: /rules/-
        value: {{apiGroups: [''], resources: [users], resourceNames: [jane], verbs: [impersonate]}}\n"
        ),
    };
    let text = format!("resources: [{deploy}/base]\n{rest}");
    std::fs::write(folder.join("kustomization.yaml"), text).unwrap();
    let manifests = server
        .kubectl(&["kustomize", folder.to_str().unwrap()])
        .unwrap();
    let file = server.folder().join("page.yaml");
    std::fs::write(&file, manifests).unwrap();
    let file = file.to_str().unwrap();
    server
        .kubectl(&["apply", "--server-side", "--validate=strict", "-f", file])
        .unwrap();
}

/// Binds ClusterRole `role` to a user in the namespace of `space`. Waits until the API server uses the binding.
pub(crate) async fn bind(space: &Space, role: &str, kind: &str, name: &str) {
    let group = match kind {
        "User" => json!("rbac.authorization.k8s.io"),
        _ => Value::Null,
    };
    space
        .create::<RoleBinding>(json!({
            "metadata": {"name": format!("{role}-{name}")},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": role},
            "subjects": [{"apiGroup": group, "kind": kind, "name": name, "namespace": (kind != "User").then_some(&space.namespace)}],
        }))
        .await;
    let user = match kind {
        "User" => name.to_owned(),
        _ => format!("system:serviceaccount:{}:{name}", space.namespace),
    };
    until("the binding", async || {
        let arguments = ["auth", "can-i", "list", "tf", "--as", &user];
        let allowed = space
            .server
            .kubectl(&[&arguments[..], &["-n", &space.namespace]].concat());
        allowed.map(drop)
    })
    .await;
}

/// Creates ServiceAccount `name` with read access in its namespace. Returns its token.
async fn viewer(space: &Space, name: &str) -> String {
    space
        .create::<ServiceAccount>(json!({"metadata": {"name": name}}))
        .await;
    bind(space, "alustan-viewer", "ServiceAccount", name).await;
    let token = ["create", "token", name, "-n", &space.namespace];
    space.server.kubectl(&token).unwrap().trim().to_owned()
}

async fn text(response: Response) -> String {
    response.text().await.unwrap()
}

#[tokio::test]
async fn token_in_header_or_cookie_signs_in() {
    let page = Page::start(SignIn::Token).await;
    let spaces = [
        Space::of(&page.server, json!({})).await,
        Space::of(&page.server, json!({})).await,
    ];
    let mut tokens = Vec::new();
    for (space, name) in spaces.iter().zip(["jane", "john"]) {
        space.apply(&resource(&format!("of-{name}"))).await.unwrap();
        tokens.push(viewer(space, name).await);
    }
    let unknown = page.index(&page.http, &[]).await;
    assert_eq!(unknown.status(), StatusCode::UNAUTHORIZED);
    let wrong = [("authorization", "Bearer wrong")];
    let wrong = page.index(&page.http, &wrong).await;
    assert_eq!(wrong.status(), StatusCode::UNAUTHORIZED);

    let namespace = spaces[0].namespace.as_str();
    let other = [
        "create",
        "token",
        "jane",
        "--audience=other",
        "-n",
        namespace,
    ];
    let other = page.server.kubectl(&other).unwrap();
    let other = format!("Bearer {}", other.trim());
    let other = page.index(&page.http, &[("authorization", &other)]).await;
    assert_eq!(other.status(), StatusCode::UNAUTHORIZED, "other audience");

    let authorization = tokens.iter().map(|token| format!("Bearer {token}"));
    for (authorization, [sees, hidden]) in
        authorization.zip([["of-jane", "of-john"], ["of-john", "of-jane"]])
    {
        until("the resource of the user", async || {
            let index = page
                .index(&page.http, &[("authorization", &authorization)])
                .await;
            assert_eq!(index.status(), StatusCode::OK);
            let index = text(index).await;
            assert!(!index.contains(hidden), "{index}");
            index.contains(sees).then_some(()).ok_or(index)
        })
        .await;
    }

    let sign_in = async |token: &str| {
        page.http
            .post(page.at("/sign-in"))
            .header("origin", &page.url)
            .header("sec-fetch-site", "same-origin")
            .form(&[("token", token)])
            .send()
            .await
            .unwrap()
    };
    let refused = sign_in("wrong").await;
    assert_eq!(refused.status(), StatusCode::UNAUTHORIZED);
    assert!(!refused.headers().contains_key(SET_COOKIE));
    let accepted = sign_in(&tokens[0]).await;
    assert_eq!(accepted.status(), StatusCode::SEE_OTHER);
    let cookie = accepted.headers()[SET_COOKIE].to_str().unwrap();
    let (cookie, attributes) = cookie.split_once("; ").unwrap();
    assert!(cookie.starts_with("alustan="), "{cookie}");
    assert!(attributes.contains("HttpOnly; SameSite=Lax"));
    let index = page.index(&page.http, &[(COOKIE.as_str(), cookie)]).await;
    assert!(text(index).await.contains("of-jane"));
    let (_, value) = cookie.split_at(cookie.len() / 2);
    let forged = format!("alustan={value}");
    let index = page.index(&page.http, &[(COOKIE.as_str(), &forged)]).await;
    assert_eq!(index.status(), StatusCode::UNAUTHORIZED);
    let foreign = page.index(&page.http, &[("host", "evil.test")]).await;
    assert!(foreign.status().is_client_error(), "{}", foreign.status());
    uses_only_its_rights(&page.server);
}

/// Checks the calls of the ServiceAccount of the page in the audit log.
fn uses_only_its_rights(server: &Server) {
    let calls: Vec<Value> = server
        .audit()
        .into_iter()
        .filter(|call| call["user"]["username"] == PAGE)
        .collect();
    assert!(!calls.is_empty());
    for call in calls {
        assert_ne!(call["responseStatus"]["code"], 403, "{call}");
        assert_ne!(call["objectRef"]["resource"], "secrets", "{call}");
    }
}

#[tokio::test]
async fn page_cannot_read_secrets_and_logs_or_write() {
    for sign_in in [SignIn::Token, SignIn::Proxy] {
        let server = Server::of_its_own().await;
        install(&server, sign_in);
        let token = ["create", "token", "alustan-page", "-n", "alustan-system"];
        let token = server.kubectl(&token).unwrap();
        let client = server.client_with(token.trim()).await;
        let secrets: Api<Secret> = Api::all(client.clone());
        let forbidden = secrets.list(&ListParams::default()).await.unwrap_err();
        assert!(
            matches!(&forbidden, kube::Error::Api(status) if status.code == 403),
            "{forbidden}"
        );
        let may = |verb: &str, resource: &str| {
            let review = ["auth", "can-i", verb, resource, "-A", "--as", PAGE];
            server.kubectl(&review).is_ok()
        };
        assert!(may("watch", "terraforms.alustan.io"));
        for (verb, resource) in [
            ("get", "secrets"),
            ("list", "secrets"),
            ("watch", "secrets"),
            ("get", "pods"),
            ("get", "pods/log"),
            ("get", "configmaps"),
            ("patch", "terraforms.alustan.io"),
            ("update", "terraforms.alustan.io"),
            ("approve", "terraforms.alustan.io"),
            ("delete", "terraforms.alustan.io"),
            ("patch", "terraformruns.alustan.io"),
            ("impersonate", "users"),
            ("impersonate", "users/root"),
            ("impersonate", "groups/system:masters"),
            ("impersonate", "serviceaccounts"),
            ("create", "serviceaccounts/token"),
            ("create", "clusterrolebindings"),
        ] {
            assert!(!may(verb, resource), "{verb} {resource}");
        }
        let proxy = sign_in == SignIn::Proxy;
        assert_eq!(may("list", "terraformruns.alustan.io"), proxy);
        assert_eq!(may("impersonate", "users/jane"), proxy);
        assert_eq!(
            may("create", "subjectaccessreviews.authorization.k8s.io"),
            proxy
        );
        assert_eq!(may("create", "tokenreviews.authentication.k8s.io"), !proxy);
    }
}

#[tokio::test]
async fn user_headers_require_the_certificate_of_the_proxy() {
    let page = Page::start(SignIn::Proxy).await;
    let space = Space::of(&page.server, json!({})).await;
    space.apply(&resource("web")).await.unwrap();
    for name in ["jane", "john"] {
        bind(&space, "alustan-viewer", "User", name).await;
    }
    let proxy = page.proxy();
    for (http, headers, expected) in [
        (
            &page.http,
            &[("x-forwarded-user", "jane")][..],
            StatusCode::FORBIDDEN,
        ),
        (&page.http, &[], StatusCode::FORBIDDEN),
        (&proxy, &[], StatusCode::UNAUTHORIZED),
        (
            &proxy,
            &[("x-forwarded-user", "system:admin")],
            StatusCode::FORBIDDEN,
        ),
        (
            &proxy,
            &[
                ("x-forwarded-user", "jane"),
                ("x-forwarded-groups", "team,system:masters"),
            ],
            StatusCode::FORBIDDEN,
        ),
    ] {
        let status = page.index(http, headers).await.status();
        assert_eq!(status, expected, "{headers:?}");
    }
    for (user, sees) in [("jane", true), ("john", true), ("eve", false)] {
        let headers = [("x-forwarded-user", user)];
        until("the resource", async || {
            let index = page.index(&proxy, &headers).await;
            assert_eq!(index.status(), StatusCode::OK);
            let index = text(index).await;
            (index.contains("\"web\"") == sees)
                .then_some(())
                .ok_or(index)
        })
        .await;
    }
    let calls: Vec<Value> = page
        .server
        .audit()
        .into_iter()
        .filter(|call| call["user"]["username"] == PAGE)
        .collect();
    let impersonated: Vec<&Value> = calls
        .iter()
        .map(|call| &call["impersonatedUser"]["username"])
        .filter(|user| !user.is_null())
        .collect();
    assert!(!impersonated.is_empty());
    assert!(impersonated.iter().all(|user| *user == "jane"));
    uses_only_its_rights(&page.server);
}

/// Returns the CSRF token in the HTML of a page.
pub(crate) fn csrf(html: &str) -> String {
    let (_, rest) = html.split_once("name=\"csrf\"").expect(html);
    let (_, value) = rest.split_once("value=\"").expect(html);
    value.split('"').next().unwrap().to_owned()
}

/// Creates resource `web`, whose plan `abc123` waits for approval.
pub(crate) async fn create_awaiting(space: &Space) -> Api<Terraform> {
    let mut web = resource("web");
    web["spec"]["approval"] = json!({"mode": "Manual"});
    space.apply(&web).await.unwrap();
    let pending = json!({"status": {
        "state": "AwaitingApproval",
        "plan": {"id": "abc123", "pendingApproval": true, "summary": "+1 ~0 -0", "add": 1, "change": 0, "destroy": 0},
    }});
    let api = space.api::<Terraform>();
    api.patch_status("web", &PatchParams::default(), &Patch::Merge(&pending))
        .await
        .unwrap();
    api
}

#[tokio::test]
async fn only_listed_users_behind_a_proxy_approve() {
    let page = Page::start(SignIn::Proxy).await;
    let space = Space::of(&page.server, json!({})).await;
    let api = create_awaiting(&space).await;
    for name in ["jane", "john"] {
        bind(&space, "alustan-approver", "User", name).await;
    }
    let proxy = page.proxy();
    let path = page.at(&format!("/ns/{}/tf/web", space.namespace));
    for (user, allowed) in [("john", false), ("jane", true)] {
        let html = proxy
            .get(&path)
            .header("x-forwarded-user", user)
            .send()
            .await
            .unwrap();
        assert_eq!(html.status(), StatusCode::OK);
        let html = text(html).await;
        let read_only = html.contains("page.proxy.users");
        assert_eq!(read_only, !allowed, "{html}");
        let response = proxy
            .post(format!("{path}/approve"))
            .header("x-forwarded-user", user)
            .header("origin", &page.url)
            .header("sec-fetch-site", "same-origin")
            .form(&[("plan", "abc123"), ("csrf", &csrf(&html))])
            .send()
            .await
            .unwrap();
        let plan = api.get("web").await.unwrap().spec.approval.plan;
        if allowed {
            assert!(response.status().is_redirection(), "{}", response.status());
            assert_eq!(plan.as_deref(), Some("abc123"));
        } else {
            assert_eq!(response.status(), StatusCode::FORBIDDEN);
            assert_eq!(plan, None);
        }
    }
    let writes: Vec<Value> = page
        .server
        .audit()
        .into_iter()
        .filter(|call| call["user"]["username"] == PAGE && call["verb"] == "patch")
        .collect();
    assert_eq!(writes.len(), 1, "{writes:?}");
    assert_eq!(writes[0]["impersonatedUser"]["username"], "jane");
}
