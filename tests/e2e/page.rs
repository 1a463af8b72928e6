//! The page in the cluster: `alustan-controller page`.

use std::fs;
use std::process::Stdio;

use alustan_tests::{Cluster, Counter, Scene, scene};
use reqwest::header::{ACCEPT, AUTHORIZATION, HOST};
use reqwest::redirect::Policy;
use reqwest::{Client, Method, RequestBuilder, Response, StatusCode};
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio::process::{Child, ChildStdout, Command};

use crate::approval::pending;
use crate::kustomize::controller_digest;

const SYSTEM: &str = "alustan-system";
const REGISTRY: &str = "registry.alustan.test:5000";

/// Address under which the page accepts requests.
const PAGE_HOST: &str = "localhost:8090";

/// The page, and the token of a user.
struct Page {
    http: Client,
    address: String,
    token: String,
    /// `kubectl port-forward`, and its output: the program ends when it cannot write.
    _forward: (Child, BufReader<ChildStdout>),
}

impl Page {
    /// Installs the component of the page, and waits until a pod is ready.
    async fn install(scene: &Scene, token: String) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let up = "../".repeat(folder.path().canonicalize().unwrap().components().count() - 1);
        let deploy = Cluster::root()
            .canonicalize()
            .unwrap()
            .join("deploy/kustomize");
        let deploy = format!("{up}{}", deploy.strip_prefix("/").unwrap().display());
        let digest = controller_digest(scene).await;
        let overlay = json!({
            "resources": [format!("{deploy}/base")],
            "components": [format!("{deploy}/components/page")],
            "images": [{"name": "docker.io/alustan/controller", "newName": format!("{REGISTRY}/alustan/controller"), "digest": digest}],
        });
        fs::write(
            folder.path().join("kustomization.yaml"),
            overlay.to_string(),
        )
        .unwrap();
        let kustomize = ["kustomize", folder.path().to_str().unwrap()];
        let manifests = scene.cluster.run("kubectl", &kustomize).await;
        let of_page = |manifest: &&str| manifest.contains("\n  name: alustan-page");
        let manifests: Vec<&str> = manifests.split("\n---\n").filter(of_page).collect();
        let file = folder.path().join("page.yaml");
        let secret = json!({
            "apiVersion": "v1", "kind": "Secret",
            "metadata": {"name": "alustan-page", "namespace": SYSTEM},
            "stringData": {"keys": "AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8="},
        });
        let manifests = format!("{}\n---\n{secret}", manifests.join("\n---\n"));
        fs::write(&file, manifests).unwrap();
        let apply = ["apply", "--server-side", "-f", file.to_str().unwrap()];
        scene.cluster.run("kubectl", &apply).await;
        let rollout = [
            "rollout",
            "status",
            "deployment/alustan-page",
            "--timeout=120s",
            "-n",
            SYSTEM,
        ];
        scene.cluster.run("kubectl", &rollout).await;
        let forward = [
            "port-forward",
            "-n",
            SYSTEM,
            "deployment/alustan-page",
            ":8090",
        ];
        let mut forward = Command::new("kubectl")
            .args(forward)
            .env("KUBECONFIG", scene.cluster.kubeconfig())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        // Forwarding from 127.0.0.1:40123 -> 8090
        let mut line = String::new();
        let mut output = BufReader::new(forward.stdout.take().unwrap());
        output.read_line(&mut line).await.unwrap();
        let address = line.split(' ').nth(2).unwrap().to_owned();
        Self {
            http: Client::builder().redirect(Policy::none()).build().unwrap(),
            address,
            token,
            _forward: (forward, output),
        }
    }

    /// Removes everything that [`install`](Self::install) created.
    async fn uninstall(scene: &Scene) {
        let namespaced = [
            "delete",
            "-n",
            SYSTEM,
            "deployment/alustan-page",
            "service/alustan-page",
            "serviceaccount/alustan-page",
            "networkpolicy/alustan-page",
            "secret/alustan-page",
        ];
        scene.cluster.run("kubectl", &namespaced).await;
        let names = ["alustan-page", "alustan-page-sign-in"];
        for kind in ["clusterrole", "clusterrolebinding"] {
            let delete = [&["delete", kind][..], &names].concat();
            scene.cluster.run("kubectl", &delete).await;
        }
    }

    fn request(&self, method: Method, path: &str) -> RequestBuilder {
        let url = format!("http://{}{path}", self.address);
        let request = self.http.request(method, url).header(HOST, PAGE_HOST);
        request.header(AUTHORIZATION, format!("Bearer {}", self.token))
    }

    async fn get(&self, path: &str) -> Response {
        self.request(Method::GET, path).send().await.unwrap()
    }

    async fn text(&self, path: &str) -> String {
        let response = self.get(path).await;
        assert_eq!(response.status(), StatusCode::OK, "{path}");
        response.text().await.unwrap()
    }

    async fn json(&self, path: &str) -> Value {
        let request = self
            .request(Method::GET, path)
            .header(ACCEPT, "application/json");
        let response = request.send().await.unwrap();
        assert_eq!(response.status(), StatusCode::OK, "{path}");
        serde_json::from_str(&response.text().await.unwrap()).unwrap()
    }

    /// Presses the button of `action` on the page at `path`.
    async fn press(&self, path: &str, action: &str, field: (&str, &str)) {
        let html = self.text(path).await;
        let (_, rest) = html.split_once("name=\"csrf\" value=\"").unwrap();
        let csrf = rest.split('"').next().unwrap();
        let request = self.request(Method::POST, &format!("{path}/{action}"));
        let request = request.form(&[("csrf", csrf), field]);
        let response = request.send().await.unwrap();
        assert_eq!(response.status(), StatusCode::SEE_OTHER, "{action}");
    }
}

/// Creates a user who may approve plans, and read logs of pods. Returns the token of the user.
async fn user(scene: &Scene) -> String {
    for arguments in [
        &["create", "serviceaccount", "jane"][..],
        &[
            "create",
            "role",
            "logs",
            "--verb=get,list",
            "--resource=pods,pods/log",
        ],
        &[
            "create",
            "rolebinding",
            "approver",
            "--clusterrole=alustan-approver",
        ],
        &["create", "rolebinding", "logs", "--role=logs"],
    ] {
        let account = format!("--serviceaccount={}:jane", scene.namespace);
        let binding: &[&str] = if arguments[1] == "rolebinding" {
            &[&account]
        } else {
            &[]
        };
        scene.kubectl(&[arguments, binding].concat()).await;
    }
    let token = scene.kubectl(&["create", "token", "jane"]).await;
    token.trim().to_owned()
}

/// Reads the events of `stream` until `text` appears.
async fn read_until(stream: &mut Response, text: &str) -> String {
    let mut events = String::new();
    while !events.contains(text) {
        let chunk = stream.chunk().await.unwrap();
        assert!(chunk.is_some(), "no {text:?} in {events}");
        let chunk = chunk.unwrap_or_default();
        events.push_str(&String::from_utf8_lossy(&chunk));
    }
    events
}

#[tokio::test]
async fn log_of_a_run_is_live_then_stored_at_one_address() {
    Box::pin(scene("page", |scene| async move {
        let counter = Counter::start().await;
        scene
            .commit("web", &[("main.tf", &counter.counted_object("a"))])
            .await;
        counter.hold("/made");
        let mut web = scene.resource("web");
        web["spec"]["approval"] = json!({"mode": "Manual"});
        scene.apply(&web).await;
        let (plan, _) = pending(&scene, "web", None).await;

        let page = Page::install(&scene, user(&scene).await).await;
        let path = format!("/ns/{}/tf/web", scene.namespace);
        let list = page.json("/").await;
        assert_eq!(list["rows"].as_array().map(Vec::len), Some(1), "{list}");
        page.press(&path, "approve", ("plan", &plan)).await;
        counter.reached("/made").await;
        let run = scene
            .until("the active run on the page", async || {
                page.json(&path).await["activeRun"].as_i64()
            })
            .await;
        assert_eq!(run, 2);
        let run = format!("{path}/runs/{run}");
        let mut stream = page.get(&format!("{run}/live")).await;
        read_until(&mut stream, "terraform_data.a: Creating...").await;
        counter.release("/made");
        let events = read_until(&mut stream, "event: end").await;
        assert!(events.contains("Apply complete!"), "{events}");
        let tf = scene.ready("web").await;
        let approval = tf.spec.approval;
        let jane = format!("system:serviceaccount:{}:jane", scene.namespace);
        assert_eq!((approval.plan, approval.by), (Some(plan), Some(jane)));

        let live = page.text(&format!("{run}/log")).await;
        scene.kubectl(&["delete", "job", "web-apply-2"]).await;
        let stored = scene
            .until("the log without the pod", async || {
                let view = page.json(&run).await;
                let is_stored = view["log"]["kind"] == "stored";
                is_stored.then_some(page.text(&format!("{run}/log")).await)
            })
            .await;
        assert!(stored.contains("Apply complete!"), "{stored}");
        assert!(live.contains("Apply complete!"), "{live}");
        Page::uninstall(&scene).await;
    }))
    .await;
}
