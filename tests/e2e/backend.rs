//! Backends that the dev cluster can run or emulate. The tests create a state, lock the state, correct drift, and destroy.

use alustan_tests::{Counter, Scene, StateServer, around, condition, node, scene};
use kube::api::DeleteParams;
use serde_json::{Value, json};

use crate::drift;

/// Module that manages one object in the cluster. The provider reads its credentials from Terraform variables, because environment
/// variables could also change the configuration of the backend.
const MODULE: &str = r#"
terraform {
  required_providers {
    kubectl = { source = "gavinbunney/kubectl" }
  }
}
variable "name" { type = string }
variable "namespace" { type = string }
variable "text" { type = string }
variable "host" { type = string }
variable "token" { type = string }
variable "ca" { type = string }
provider "kubectl" {
  load_config_file       = false
  host                   = var.host
  token                  = var.token
  cluster_ca_certificate = var.ca
}
resource "kubectl_manifest" "greeting" {
  yaml_body = yamlencode({
    apiVersion = "v1"
    kind       = "ConfigMap"
    metadata   = { name = var.name, namespace = var.namespace }
    data       = { text = var.text }
  })
}
"#;

/// Returns a resource `name` that manages a ConfigMap of the same name.
fn resource(scene: &Scene, name: &str, backend: &Value) -> Value {
    let mut resource = scene.resource_of(name, "greeting");
    let spec = &mut resource["spec"];
    spec["backend"] = backend.clone();
    spec["variables"] = json!({"name": name, "namespace": scene.namespace, "text": "hello"});
    let keys = json!({
        "host": "KUBE_HOST", "token": "KUBE_TOKEN", "ca": "KUBE_CLUSTER_CA_CERT_DATA",
    });
    spec["variablesFrom"] = json!([{"secretRef": {"name": "credentials", "keys": keys}}]);
    spec["driftDetection"] = json!({"mode": "Correct", "interval": "3s"});
    spec["retry"]["limit"] = json!(1);
    resource
}

/// Commits the module and creates a Secret with the credentials of its provider.
async fn module(scene: &Scene) {
    scene.provider_credentials("credentials").await;
    scene.commit("greeting", &[("main.tf", MODULE)]).await;
}

/// Renders the backend block of a module.
fn block(kind: &str, config: &[(&str, &str)]) -> String {
    let config = config
        .iter()
        .map(|(name, value)| format!("    {name} = {}\n", json!(value)))
        .collect::<Vec<_>>()
        .concat();
    format!("terraform {{\n  backend \"{kind}\" {{\n{config}  }}\n}}\n")
}

/// Returns a script that starts a second process of the engine, which locks the state. The script then requests `/locked`, and ends the
/// process once the request is answered. The state does not change.
fn holder(counter: &Counter, block: &str) -> String {
    let wait = counter.command("/locked");
    format!(
        "unset TF_INPUT ${{!TF_HTTP_@}}\n\
         mkdir /tmp/other\n\
         cd /tmp/other\n\
         cat >main.tf <<'END'\n{block}output \"x\" {{ value = 1 }}\nEND\n\
         terraform init -no-color >init.log 2>&1 || {{ cat init.log; exit 1; }}\n\
         mkfifo answer\n\
         terraform apply -no-color <answer >apply.log 2>&1 &\n\
         exec 9>answer\n\
         until grep -q 'Enter a value' apply.log; do\n  \
         kill -0 $! || {{ cat apply.log; exit 1; }}\n  sleep 0.2\n\
         done\n\
         ({wait})\n\
         echo no >&9\n\
         wait || true\n"
    )
}

/// Asserts that `web` creates nothing while another engine process holds the lock of the state, and that `web` retries until the lock is
/// released.
async fn waits_for_the_lock(scene: &Scene, backend: &Value, block: &str, secret: Option<&str>) {
    let counter = Counter::start().await;
    counter.hold("/locked");
    let mut other = resource(scene, "other", &json!({"provider": "managed"}));
    other["spec"]["scripts"] = json!({
        "apply": {"inline": holder(&counter, block)}, "destroy": {"inline": "true"},
    });
    other["spec"]["driftDetection"] = json!({"mode": "Ignore"});
    if let Some(secret) = secret {
        other["spec"]["runner"] = json!({"envFromSecrets": [{"name": secret}]});
    }
    scene.apply(&other).await;
    counter.reached("/locked").await;
    scene.apply(&resource(scene, "web", backend)).await;
    is_locked(scene).await;
    assert_eq!(drift::text(scene, "web").await, None);
    counter.release("/locked");
    scene.ready("other").await;
    scene.delete("other", &DeleteParams::foreground()).await;
}

/// Waits until two runs of `web` failed to get the lock. A lock failure does not count against `spec.retry.limit`, which is 1.
async fn is_locked(scene: &Scene) {
    scene
        .wait("web", "a second run in vain", |tf| {
            let runs = tf.status.as_ref().map(|status| status.runs.len());
            let is_locked =
                condition(tf, "Ready").is_some_and(|condition| condition.reason == "StateLocked");
            is_locked && runs >= Some(2)
        })
        .await;
}

/// Waits until `web` is ready. Then changes its ConfigMap and waits for the correction.
async fn assert_drift_is_corrected(scene: &Scene, address: &str) {
    let status = scene.ready("web").await.status.unwrap();
    assert_eq!(status.state_address.as_deref(), Some(address));
    assert!(drift::text(scene, "web").await.is_some());
    let change = "{\"data\":{\"text\":\"changed\"}}";
    scene
        .kubectl(&["patch", "configmap", "web", "--type=merge", "-p", change])
        .await;
    scene
        .until("the ConfigMap to be put right", async || {
            (drift::text(scene, "web").await? != "changed").then_some(())
        })
        .await;
}

async fn is_destroyed(scene: &Scene) {
    scene.delete("web", &DeleteParams::foreground()).await;
    assert_eq!(drift::text(scene, "web").await, None);
    scene.nothing_left().await;
}

#[tokio::test]
async fn backend_aws_waits_for_the_lock_and_corrects_drift() {
    scene("aws", |scene| async move {
        module(&scene).await;
        let (bucket, key) = (scene.namespace.clone(), "web.tfstate");
        scene.aws_with_secret(&bucket, "locks").await;
        let backend = scene.s3_backend(&bucket, "locks", key);
        let config = [
            ("bucket", bucket.as_str()),
            ("key", key),
            ("region", "us-east-1"),
            ("dynamodb_table", "locks"),
        ];
        let block = block("s3", &config);
        waits_for_the_lock(&scene, &backend, &block, Some("aws")).await;
        assert_drift_is_corrected(&scene, &format!("s3://{bucket}/{key}")).await;
        is_destroyed(&scene).await;
        let state = scene.s3(&bucket, key).await;
        assert!(state.contains("\"resources\": []"), "{state}");
    })
    .await;
}

/// `bootstrap` creates a missing bucket and table and does not change existing ones.
#[tokio::test]
async fn backend_aws_bucket_is_created_only_with_bootstrap() {
    scene("boot", |scene| async move {
        module(&scene).await;
        let existing_bucket = format!("{}-there", scene.namespace);
        scene.aws_with_secret(&existing_bucket, "locks").await;
        let (bucket, table) = (scene.namespace.clone(), format!("{}-t", scene.namespace));
        let mut web = resource(&scene, "web", &scene.s3_backend(&bucket, &table, "web"));
        scene.apply(&web).await;
        let (reason, message) = scene.stalled("web").await;
        assert!(
            message.contains("spec.backend.bootstrap: true"),
            "{reason}: {message}"
        );
        web["spec"]["backend"]["bootstrap"] = json!(true);
        scene.apply(&web).await;
        scene.ready("web").await;
        for (subresource, wanted) in [
            ("versioning", "<Status>Enabled</Status>"),
            ("encryption", "<SSEAlgorithm>AES256</SSEAlgorithm>"),
            (
                "publicAccessBlock",
                "<BlockPublicPolicy>true</BlockPublicPolicy>",
            ),
            (
                "publicAccessBlock",
                "<RestrictPublicBuckets>true</RestrictPublicBuckets>",
            ),
        ] {
            let response = scene.about_bucket(&bucket, subresource).await;
            assert!(
                response.to_lowercase().contains(&wanted.to_lowercase()),
                "{subresource}: {response}"
            );
        }
        // `bootstrap` changes nothing if bucket and table exist.
        let mut own = resource(
            &scene,
            "own",
            &scene.s3_backend(&existing_bucket, "locks", "own"),
        );
        own["spec"]["backend"]["bootstrap"] = json!(true);
        scene.apply(&own).await;
        scene.ready("own").await;
        let response = scene.about_bucket(&existing_bucket, "versioning").await;
        assert!(!response.contains("Enabled"), "{response}");
        scene.delete("own", &DeleteParams::foreground()).await;
        is_destroyed(&scene).await;
    })
    .await;
}

#[tokio::test]
async fn backend_gcp_waits_for_the_lock_and_corrects_drift() {
    scene("gcp", |scene| async move {
        module(&scene).await;
        let bucket = scene.namespace.clone();
        scene.gcs(&bucket).await;
        let emulator = format!("http://{}", node(5567));
        let data = [
            ("GOOGLE_OAUTH_ACCESS_TOKEN", "token"),
            ("STORAGE_EMULATOR_HOST", emulator.as_str()),
        ];
        scene.secret("gcp", "Opaque", &data).await;
        let backend = json!({"provider": "gcp", "gcs": bucket, "secretRef": {"name": "gcp"}});
        let prefix = format!("{bucket}/web");
        let block = block("gcs", &[("bucket", &bucket), ("prefix", &prefix)]);
        waits_for_the_lock(&scene, &backend, &block, Some("gcp")).await;
        assert_drift_is_corrected(&scene, &format!("gcs://{bucket}/{prefix}")).await;
        is_destroyed(&scene).await;
        let state = scene
            .in_gcs(&bucket, &format!("{prefix}/default.tfstate"))
            .await;
        assert!(state.contains("\"resources\": []"), "{state}");
    })
    .await;
}

#[tokio::test]
async fn backend_pg_waits_for_the_lock_and_corrects_drift() {
    scene("pg", |scene| async move {
        module(&scene).await;
        let url = scene.pg().await;
        scene.secret("pg", "Opaque", &[("conn_str", &url)]).await;
        scene
            .secret("other", "Opaque", &[("PG_CONN_STR", &url)])
            .await;
        let backend = json!({"provider": "pg", "secretRef": {"name": "pg"}});
        let schema = format!("{}_web", scene.namespace);
        let block = block("pg", &[("schema_name", &schema)]);
        waits_for_the_lock(&scene, &backend, &block, Some("other")).await;
        assert_drift_is_corrected(&scene, &format!("pg://{}/postgres/{schema}", node(5432))).await;
        is_destroyed(&scene).await;
        let state = scene
            .in_pg(&format!("select data from \"{schema}\".states"))
            .await;
        assert!(state.contains("\"resources\": []"), "{state}");
        scene
            .in_pg(&format!("drop schema \"{schema}\" cascade"))
            .await;
    })
    .await;
}

#[tokio::test]
async fn backend_kubernetes_waits_for_the_lock_and_corrects_drift() {
    scene("kube", |scene| async move {
        module(&scene).await;
        scene
            .kubectl(&[
                "create",
                "role",
                "tfstate",
                "--resource=secrets,leases.coordination.k8s.io",
                "--verb=get,list,create,update,delete",
            ])
            .await;
        let account = |name: &str| format!("--serviceaccount={}:{name}-runner", scene.namespace);
        let (web, other) = (account("web"), account("other"));
        scene
            .kubectl(&[
                "create",
                "rolebinding",
                "tfstate",
                "--role=tfstate",
                &web,
                &other,
            ])
            .await;
        let backend = json!({"provider": "kubernetes"});
        let namespace = &scene.namespace;
        let config = [
            ("namespace", namespace.as_str()),
            ("secret_suffix", "web-state"),
            ("in_cluster_config", "true"),
        ];
        let block = block("kubernetes", &config);
        waits_for_the_lock(&scene, &backend, &block, None).await;
        assert_drift_is_corrected(&scene, &format!("kubernetes://{namespace}/web-state")).await;
        is_destroyed(&scene).await;
        scene
            .kubectl(&["get", "secret", "tfstate-default-web-state"])
            .await;
    })
    .await;
}

#[tokio::test]
async fn backend_http_waits_for_the_lock_and_corrects_drift() {
    // The script below contains the password in plain text. `tests/src/bin/sweep.rs` searches for secret values after all tests. It skips
    // this password, because the password has less than 12 bytes.
    const PASSWORD: &str = "x3marker-8k";
    scene("http", |scene| async move {
        module(&scene).await;
        let server = StateServer::start("alice", PASSWORD).await;
        let data = [
            ("TF_HTTP_USERNAME", "alice"),
            ("TF_HTTP_PASSWORD", PASSWORD),
        ];
        scene.secret("http", "Opaque", &data).await;
        let url = format!("http://{}/web", server.address);
        let backend = json!({
            "provider": "http", "address": url, "lockAddress": url, "secretRef": {"name": "http"},
        });
        let config = [
            ("address", url.as_str()),
            ("lock_address", &url),
            ("unlock_address", &url),
            ("username", "alice"),
            ("password", PASSWORD),
        ];
        let block = block("http", &config);
        waits_for_the_lock(&scene, &backend, &block, None).await;
        assert_drift_is_corrected(&scene, &format!("http://{}/web", server.address)).await;
        let all = scene.all_that_can_be_read().await;
        let state = server.state("web").unwrap();
        assert!(state.contains("kubectl_manifest"), "{state}");
        is_destroyed(&scene).await;
        let state = server.state("web").unwrap();
        assert!(state.contains("\"resources\": []"), "{state}");
        assert!(!all.contains(PASSWORD), "{}", around(&all, PASSWORD));
    })
    .await;
}

#[tokio::test]
async fn backend_local_waits_for_the_lock_and_corrects_drift() {
    scene("local", |scene| async move {
        module(&scene).await;
        let backend = json!({"provider": "local"});
        let mut web = resource(&scene, "web", &backend);
        scene.apply(&web).await;
        scene.ready("web").await;
        let state = scene
            .volume_of("web-cache")
            .await
            .join("state/terraform.tfstate");
        let held = Lock::of(&state).await;
        web["spec"]["variables"]["text"] = json!("again");
        scene.apply(&web).await;
        is_locked(&scene).await;
        held.release().await;
        assert_drift_is_corrected(&scene, "local:///var/lib/alustan/state/terraform.tfstate").await;
        assert_eq!(drift::text(&scene, "web").await.as_deref(), Some("again"));
        is_destroyed(&scene).await;
        scene
            .until("the volume to go", async || (!state.exists()).then_some(()))
            .await;
    })
    .await;
}

#[tokio::test]
async fn backend_local_is_not_recreated_after_loss_of_its_volume() {
    scene("lost", |scene| async move {
        module(&scene).await;
        let mut web = resource(&scene, "web", &json!({"provider": "local"}));
        scene.apply(&web).await;
        scene.ready("web").await;
        scene.lose_volume("web-cache").await;
        web["spec"]["variables"]["text"] = json!("again");
        scene.apply(&web).await;
        let (reason, message) = scene.stalled("web").await;
        assert_eq!(reason, "StateLost", "{message}");
        scene
            .begin_to_delete("web", &DeleteParams::foreground())
            .await;
        let tf = scene
            .wait("web", "a refusal to destroy", |tf| {
                let observed = tf
                    .status
                    .as_ref()
                    .and_then(|status| status.observed_generation);
                tf.metadata.deletion_timestamp.is_some() && observed == tf.metadata.generation
            })
            .await;
        assert_eq!(condition(&tf, "Ready").unwrap().reason, "StateLost");
        assert_eq!(drift::text(&scene, "web").await.as_deref(), Some("hello"));
    })
    .await;
}

/// File lock that another process on the node holds.
struct Lock(tokio::process::Child);

impl Lock {
    async fn of(file: &std::path::Path) -> Self {
        use tokio::io::AsyncReadExt;
        let program = "import fcntl, sys\nfile = open(sys.argv[1], 'r+')\n\
                       fcntl.lockf(file, fcntl.LOCK_EX)\nprint('held', flush=True)\nsys.stdin.read()";
        let mut child = tokio::process::Command::new("/usr/bin/python3")
            .args(["-c", program])
            .arg(file)
            .stdin(std::process::Stdio::piped())
            .stdout(std::process::Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        let mut output = [0; 4];
        let stdout = child.stdout.as_mut().unwrap();
        stdout.read_exact(&mut output).await.unwrap();
        Self(child)
    }

    async fn release(mut self) {
        drop(self.0.stdin.take());
        self.0.wait().await.unwrap();
    }
}
