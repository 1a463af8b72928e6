//! Puts a canary, a unique secret value, into every secret input, and searches for it in everything that the cluster stored or logged.
//!
//! Not searched for: values shorter than four characters, which the redactor does not mask, and values that a script encodes.

use std::net::SocketAddr;

use alustan_tests::{Canaries, Found, Inbox, Scene, StateServer, Sweep, node, scene};
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use kube::api::{DeleteParams, ListParams};
use serde_json::{Value, json};

use crate::{approval, drift};

/// Extends [`drift::MODULE`] by an object that stores and prints a secret, and a sensitive output.
const MORE: &str = r#"
variable "password" {}
variable "token" {}
variable "fail" { default = 0 }
resource "terraform_data" "told" {
  input            = var.password
  triggers_replace = var.fail
  provisioner "local-exec" {
    command = "echo \"it is $PASSWORD\"; echo \"and $PROVIDER_TOKEN\" >&2; exit ${var.fail}"
    environment = { PASSWORD = var.password }
  }
}
output "token" {
  value     = var.token
  sensitive = true
}
"#;

/// Debug script that prints secrets.
const CHATTY: &str = r#"
set -x
env
printf '%s\n' "$password" "$TF_VAR_token"
terraform output -json || true
terraform plan -no-color -out=/tmp/chatty.tfplan
terraform show -json /tmp/chatty.tfplan
TF_LOG=trace terraform apply -no-color /tmp/chatty.tfplan
terraform output -json
terraform state pull
"#;

/// Keys of the Secrets with the managed state of `web`.
const STATE: [&str; 3] = [
    "web-state data",
    "web-state-slot-0 data",
    "web-state-slot-1 data",
];

/// Returns the keys of Secrets that are expected to contain each canary. `allowed` names a key as `SECRET KEY` for a Secret in the
/// namespace of the test, and as `NAMESPACE/SECRET KEY` for a Secret in another namespace.
fn belongs(scene: &Scene, allowed: &[(&str, &[&str])]) -> Found {
    let mut places = Found::new();
    for (canary, secrets) in allowed {
        for name in *secrets {
            let key = match name.split_once('/') {
                Some((namespace, name)) => format!("etcd secrets/{namespace}/{name}"),
                None => format!("etcd secrets/{}/{name}", scene.namespace),
            };
            places.entry(key).or_default().insert((*canary).to_owned());
        }
    }
    places
}

/// Asserts that each canary is in all its expected places, which proves that the search works, and in no other place. Waits until the
/// kubelet has removed the volumes of all pods: the volumes of a run contain the inputs of the engine, for example
/// `spec.backend.secretRef`.
pub(crate) async fn is_nowhere_else(
    scene: &Scene,
    sweep: Sweep,
    canaries: &Canaries,
    allowed: &[(&str, &[&str])],
) {
    let pods = scene.cluster.folder.join("kubelet/pods");
    scene
        .until("the folders of pods to go with them", async || {
            let all = scene.api::<Pod>().list(&ListParams::default()).await.ok()?;
            let folders = all.iter().filter_map(|pod| {
                let own = pods.join(pod.uid()?);
                std::fs::read_dir(own.join("volumes/kubernetes.io~empty-dir")).ok()
            });
            (folders.flatten().count() == 0).then_some(())
        })
        .await;
    let places = sweep.end().await.search(canaries).await;
    assert_eq!(places, belongs(scene, allowed), "{places:#?}");
}

/// Authorizes users at the git server until dropped. Contains the changed files (`htpasswd`, `authorized_keys`) and the added lines.
struct TemporaryUsers {
    files: Vec<(std::path::PathBuf, String)>,
}

impl TemporaryUsers {
    fn authorize(scene: &Scene, lines: [(&str, String); 2]) -> Self {
        let files = lines.map(|(file, line)| {
            let file = scene.cluster.folder.join(file);
            let text = std::fs::read_to_string(&file).unwrap();
            std::fs::write(&file, format!("{text}{line}\n")).unwrap();
            (file, line)
        });
        Self {
            files: files.into(),
        }
    }
}

impl Drop for TemporaryUsers {
    fn drop(&mut self) {
        for (file, line) in &self.files {
            let text = std::fs::read_to_string(file).unwrap_or_default();
            let others: Vec<&str> = text.lines().filter(|other| other != line).collect();
            // Ignores an error: a line that stays in the file does not change the result of the test.
            let _ = std::fs::write(file, others.join("\n") + "\n");
        }
    }
}

/// Returns a part of a line from the middle of a private key.
fn middle(key: &str) -> String {
    key.lines().nth(2).unwrap()[..40].to_owned()
}

#[tokio::test]
async fn canary_of_each_input_appears_only_in_expected_secrets() {
    scene("canary", |scene| async move {
        let mut canaries = Canaries::default();
        let sweep = Sweep::begin(&scene.cluster, &scene.namespace).await;
        let owner = format!("private/{}", scene.namespace);
        let module = format!("{}{MORE}", drift::MODULE);
        scene
            .commit_with(&format!("{owner}/greeting"), |folder| {
                std::fs::write(folder.join("main.tf"), module).unwrap();
            })
            .await;
        let small = "variable \"password\" {}\nresource \"terraform_data\" \"a\" { input = var.password }\n";
        scene.commit("small", &[("main.tf", small)]).await;

        let https = canaries.plain("https");
        let hashed = scene.cluster.run("openssl", &["passwd", "-apr1", &https]).await;
        let (ssh, public) = scene.new_ssh_key().await;
        canaries.known("ssh", &middle(&ssh));
        let _users = TemporaryUsers::authorize(&scene, [
            ("nginx/htpasswd", format!("canary:{}", hashed.trim())),
            ("ssh/authorized_keys", public.trim().to_owned()),
        ]);
        let known = scene.ssh_file("known_hosts");
        scene.secret("https", "Opaque", &[("username", "canary"), ("password", &https)]).await;
        scene.secret("ssh", "Opaque", &[("id", &ssh), ("known_hosts", &known)]).await;
        // The registry requires no credentials. The test configures credentials, because they are a secret input of the operator.
        let registry = canaries.plain("registry");
        let config = scene.docker_config("registry.alustan.test:5000", "canary", &registry);
        scene.secret("registry", "Opaque", &[("config", &config)]).await;
        let (password, token) = (canaries.odd("password"), canaries.odd("token"));
        scene.secret("values", "Opaque", &[("password", &password), ("token", &token)]).await;
        let provider = canaries.odd("provider");
        scene.secret("provider", "Opaque", &[("PROVIDER_TOKEN", &provider)]).await;
        scene.provider_credentials("credentials").await;
        let account = scene.data("credentials").await["KUBE_TOKEN"].clone();
        canaries.known("account", account.rsplit('.').next().unwrap());
        let inbox = Inbox::start(2).await;
        let url = format!("http://{}/?token={}", inbox.address, canaries.plain("inbox-url"));
        let signing = canaries.odd("inbox-secret");
        scene.secret("inbox", "Opaque", &[("secret", &signing), ("url", &url)]).await;
        let state = canaries.plain("state");
        let server = StateServer::start("canary", &state).await;
        let login = [("TF_HTTP_USERNAME", "canary"), ("TF_HTTP_PASSWORD", state.as_str())];
        scene.secret("state", "Opaque", &login).await;

        // Creates two resources, and approves the plan of `web`.
        let mut web = drift::resource(&scene, "web", "Correct");
        let spec = &mut web["spec"];
        spec["gitRepo"] = json!({
            "url": format!("https://git.alustan.test/{owner}/greeting"), "branch": "main",
            "interval": "2s", "credentialsSecret": {"name": "https"},
        });
        spec["containerRegistry"]["secretRef"] = json!({"name": "registry", "key": "config"});
        spec["variablesFrom"] = json!([{"secretRef": {"name": "values"}}]);
        spec["runner"]["envFromSecrets"] = json!([{"name": "credentials"}, {"name": "provider"}]);
        spec["notifications"] = json!([{"secretRef": {"name": "inbox"}}]);
        spec["approval"] = json!({"mode": "Manual"});
        spec["retry"]["limit"] = json!(2);
        scene.apply(&web).await;
        let mut http = scene.resource("small");
        let address = format!("http://{}/small", server.address);
        http["spec"]["gitRepo"]["url"] =
            json!(format!("git@git.alustan.test:{}/small.git", scene.namespace));
        http["spec"]["gitRepo"]["sshKeySecret"] = json!({"name": "ssh", "key": "id"});
        http["spec"]["backend"] = json!({
            "provider": "http", "address": address, "lockAddress": address,
            "secretRef": {"name": "state"},
        });
        http["spec"]["variablesFrom"] =
            json!([{"secretRef": {"name": "values", "keys": {"password": "password"}}}]);
        scene.apply(&http).await;
        let (plan, _) = approval::pending(&scene, "web", None).await;
        approval::approve(&scene, "web", &plan).await;
        scene.ready("web").await;
        scene.ready("small").await;

        // Causes failed applies with verbose output until the resource is stalled.
        web["spec"]["approval"] = json!({"mode": "Auto"});
        web["spec"]["variables"]["fail"] = json!(1);
        web["spec"]["scripts"] = json!({"apply": {"inline": CHATTY}});
        scene.apply(&web).await;
        let (_, message) = scene.stalled("web").await;
        web["spec"]["variables"]["fail"] = json!(0);
        scene.apply(&web).await;
        scene.ready("web").await;
        assert!(!message.is_empty());

        // Causes drift, waits for the correction, and sends a webhook request about a push.
        let change = "{\"data\":{\"text\":\"changed\"}}";
        scene.kubectl(&["patch", "configmap", "web", "--type=merge", "-p", change]).await;
        scene
            .until("the ConfigMap to be put right", async || {
                (drift::text(&scene, "web").await? == "hello").then_some(())
            })
            .await;
        let server = scene.git_server().await;
        canaries.known("hook", server.secret());
        // The Secret is older than the searched history of etcd. The annotation adds a new version of the Secret to the history.
        let now = format!("e2e={}", scene.namespace);
        scene
            .kubectl(&["annotate", "secret", "alustan-hooks", "-n", "alustan-system", "--overwrite", &now])
            .await;
        let push = json!({"repository": http["spec"]["gitRepo"]["url"], "ref": "refs/heads/main"});
        assert_eq!(server.report(&push).await, json!({"resources": 1}));

        for name in ["web", "small"] {
            scene.delete(name, &DeleteParams::foreground()).await;
        }
        scene.nothing_left().await;
        assert!(inbox.messages().len() > 3);
        is_nowhere_else(
            &scene,
            sweep,
            &canaries,
            &[
                ("https", &["https password"]),
                ("ssh", &["ssh id"]),
                ("registry", &["registry config", "web-registry .dockerconfigjson", "web-pin pin"]),
                (
                    "password",
                    &[&["values password", "web-run inputs", "web-pin pin", "small-run inputs", "small-pin pin"], &STATE[..]].concat(),
                ),
                (
                    "token",
                    &[&["values token", "web-run inputs", "web-pin pin", "web-report outputs", "web-outputs token"], &STATE[..]].concat(),
                ),
                ("provider", &["provider PROVIDER_TOKEN", "web-pin pin"]),
                ("account", &["credentials KUBE_TOKEN", "web-pin pin"]),
                ("inbox-url", &["inbox url"]),
                ("inbox-secret", &["inbox secret"]),
                ("state", &["state TF_HTTP_PASSWORD", "small-run inputs", "small-pin pin"]),
                ("hook", &["alustan-system/alustan-hooks dev"]),
            ],
        )
        .await;
    })
    .await;
}

#[tokio::test]
async fn canary_of_invalid_input_appears_only_in_expected_secrets() {
    scene("canary-no", |scene| async move {
        let mut canaries = Canaries::default();
        let sweep = Sweep::begin(&scene.cluster, &scene.namespace).await;
        scene.pg().await;
        scene
            .commit(
                "web",
                &[(
                    "main.tf",
                    "variable \"n\" {\n  type = number\n  default = 1\n}\noutput \"n\" { value = var.n }\n",
                )],
            )
            .await;
        let private = |name: &str| {
            format!(
                "https://git.alustan.test/private/{}/{name}",
                scene.namespace
            )
        };
        let with = |name: &str, field: &str, value: Value| {
            let mut resource = scene.resource_of(name, "web");
            resource["spec"]["retry"]["limit"] = json!(2);
            resource["spec"][field] = value;
            resource
        };

        let https = canaries.plain("https");
        scene
            .secret(
                "https",
                "Opaque",
                &[("username", "canary"), ("password", &https)],
            )
            .await;
        let git = json!({"url": private("gone"), "credentialsSecret": {"name": "https"}});
        scene.apply(&with("https", "gitRepo", git)).await;

        let key = format!(
            "-----BEGIN OPENSSH PRIVATE KEY-----\n{}\n-----END OPENSSH PRIVATE KEY-----\n",
            canaries.plain("ssh")
        );
        let known = scene.ssh_file("known_hosts");
        scene
            .secret("ssh", "Opaque", &[("id", &key), ("known_hosts", &known)])
            .await;
        let url = format!("git@git.alustan.test:{}/web.git", scene.namespace);
        let git = json!({"url": url, "sshKeySecret": {"name": "ssh", "key": "id"}});
        scene.apply(&with("ssh", "gitRepo", git)).await;

        let key = format!(
            "-----BEGIN RSA PRIVATE KEY-----\n{}\n-----END RSA PRIVATE KEY-----\n",
            canaries.plain("app")
        );
        let app = [
            ("githubAppID", "12"),
            ("githubAppInstallationID", "34"),
            ("githubAppPrivateKey", key.as_str()),
        ];
        scene.secret("app", "Opaque", &app).await;
        let url = format!("https://git.alustan.test/{}/web", scene.namespace);
        let git = json!({"url": url, "githubApp": {"secretRef": {"name": "app"}}});
        scene.apply(&with("app", "gitRepo", git)).await;

        let host = "private-registry.alustan.test";
        let config = scene.docker_config(host, "canary", &canaries.plain("registry"));
        scene
            .secret("registry", "Opaque", &[("config", &config)])
            .await;
        let image = format!("{host}/{}/web", scene.namespace);
        let secret = json!({"name": "registry", "key": "config"});
        let registry = json!({"imageName": image, "secretRef": secret});
        scene
            .apply(&with("registry", "containerRegistry", registry))
            .await;

        let text = format!("{{\"auths\": {}", canaries.plain("garbage"));
        scene
            .secret("garbage", "Opaque", &[("config", &text)])
            .await;
        let secret = json!({"name": "garbage", "key": "config"});
        let registry = json!({"imageName": image, "secretRef": secret});
        scene
            .apply(&with("garbage", "containerRegistry", registry))
            .await;

        let url = format!(
            "postgres://canary:{}@{}/none?sslmode=disable",
            canaries.plain("pg"),
            node(5432)
        );
        scene.secret("pg", "Opaque", &[("conn_str", &url)]).await;
        let backend = json!({"provider": "pg", "secretRef": {"name": "pg"}});
        scene.apply(&with("pg", "backend", backend)).await;

        let server = StateServer::start("canary", "another").await;
        let state = canaries.odd("state");
        scene
            .secret(
                "state",
                "Opaque",
                &[("TF_HTTP_USERNAME", "canary"), ("TF_HTTP_PASSWORD", &state)],
            )
            .await;
        let address = format!("http://{}/state", server.address);
        let backend =
            json!({"provider": "http", "address": address, "secretRef": {"name": "state"}});
        scene.apply(&with("state", "backend", backend)).await;

        let number = canaries.odd("number");
        scene.secret("number", "Opaque", &[("n", &number)]).await;
        let from = json!([{"secretRef": {"name": "number"}}]);
        scene.apply(&with("number", "variablesFrom", from)).await;

        // No server listens on this port.
        let closed = SocketAddr::new(alustan_tests::host(), 1);
        let url = format!(
            "http://canary:{0}@{closed}/{0}?token={0}",
            canaries.plain("inbox-url")
        );
        let signing = canaries.odd("inbox-secret");
        scene
            .secret("inbox", "Opaque", &[("url", &url), ("secret", &signing)])
            .await;
        let sinks = json!([{"secretRef": {"name": "inbox"}}]);
        scene.apply(&with("inbox", "notifications", sinks)).await;
        let url = format!("gopher:{} x", canaries.plain("inbox-no-url"));
        scene
            .secret("no-url", "Opaque", &[("url", &url), ("secret", "whatever")])
            .await;
        let sinks = json!([{"secretRef": {"name": "no-url"}}]);
        scene.apply(&with("no-url", "notifications", sinks)).await;
        let signing = format!("whsec_no base64: {}", canaries.plain("inbox-no-secret"));
        scene
            .secret("no-key", "Opaque", &[("secret", &signing)])
            .await;
        let sinks = json!([{"url": format!("http://{closed}/"), "secretRef": {"name": "no-key"}}]);
        scene.apply(&with("no-key", "notifications", sinks)).await;

        for (name, reason) in [
            ("https", "GitAuthenticationFailed"),
            ("ssh", "SshKeyInvalid"),
            ("app", "InvalidGitHubApp"),
            ("registry", "RegistryUnauthorized"),
            ("garbage", "InvalidRegistryCredentials"),
        ] {
            scene.reason(name, reason).await;
        }
        for (name, reason) in [
            ("pg", "InitFailed"),
            ("state", "InitFailed"),
            ("number", "VariablesInvalid"),
        ] {
            assert_eq!(scene.stalled(name).await.0, reason);
        }
        for name in ["inbox", "no-url", "no-key"] {
            scene.event(name, "NotificationFailed").await;
        }
        is_nowhere_else(
            &scene,
            sweep,
            &canaries,
            &[
                ("https", &["https password"]),
                ("ssh", &["ssh id"]),
                ("app", &["app githubAppPrivateKey"]),
                ("registry", &["registry config"]),
                ("garbage", &["garbage config"]),
                ("pg", &["pg conn_str", "pg-run inputs", "pg-pin pin"]),
                (
                    "state",
                    &[
                        "state TF_HTTP_PASSWORD",
                        "state-run inputs",
                        "state-pin pin",
                    ],
                ),
                (
                    "number",
                    &["number n", "number-run inputs", "number-pin pin"],
                ),
                ("inbox-url", &["inbox url"]),
                ("inbox-secret", &["inbox secret"]),
                ("inbox-no-url", &["no-url url"]),
                ("inbox-no-secret", &["no-key secret"]),
            ],
        )
        .await;
    })
    .await;
}
