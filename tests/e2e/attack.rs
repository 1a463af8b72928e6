//! Attacks by module code: writes with the token of the runner pod, and reads of the registry credentials during `init`.

use alustan_api::paths;
use alustan_tests::{Counter, Scene, condition, scene};
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::Secret;
use kube::ResourceExt;
use kube::api::ListParams;
use serde_json::{Value, json};

/// Module that writes to a Secret. It authenticates with the ServiceAccount token of the runner.
const MODULE: &str = r#"
terraform {
  required_providers {
    kubectl = { source = "gavinbunney/kubectl" }
  }
}
variable "secret" { type = any }
locals {
  account = "/var/run/secrets/kubernetes.io/serviceaccount"
}
provider "kubectl" {
  host                   = "https://kubernetes.default.svc"
  token                  = file("${local.account}/token")
  cluster_ca_certificate = file("${local.account}/ca.crt")
  load_config_file       = false
}
resource "kubectl_manifest" "forged" {
  yaml_body         = yamlencode(var.secret)
  server_side_apply = true
  force_conflicts   = true
  validate_schema   = false
}
"#;

/// Creates a resource whose module writes `forged` to the Secret `secret`. Failed runs are retried after 30 minutes.
async fn attacks(scene: &Scene, name: &str, secret: &str, mut forged: Value) {
    let namespace = &scene.namespace;
    forged["apiVersion"] = json!("v1");
    forged["kind"] = json!("Secret");
    forged["metadata"]["name"] = json!(secret);
    forged["metadata"]["namespace"] = json!(namespace);
    let mut resource = scene.resource_of(name, "attack");
    resource["spec"]["variables"] = json!({"secret": forged});
    resource["spec"]["retry"] = json!({"minBackoff": "30m", "maxBackoff": "30m"});
    resource["spec"]["driftDetection"] = json!({"mode": "Ignore"});
    scene.apply(&resource).await;
}

/// Waits until run 1 of `name` has ended and its result is in the run record. Returns the result and the message of condition `Ready`.
async fn recorded(scene: &Scene, name: &str) -> (String, String) {
    let ended = scene
        .wait(name, "its run to be recorded", |tf| {
            let status = tf.status.as_ref();
            status.is_some_and(|status| !status.runs.is_empty())
        })
        .await;
    let run = &ended.status.as_ref().unwrap().runs[0];
    let ready = condition(&ended, "Ready").unwrap();
    (run.result.clone(), ready.message.clone())
}

#[tokio::test]
async fn attack_on_run_secrets_affects_no_other_resource() {
    scene("attack", |scene| async move {
        let quiet = "resource \"terraform_data\" \"a\" {}";
        scene.commit("quiet", &[("main.tf", quiet)]).await;
        scene.commit("attack", &[("main.tf", MODULE)]).await;
        scene.apply(&scene.resource("quiet")).await;
        scene.ready("quiet").await;

        let data = |key: &str, value: &Value| json!({"stringData": {key: value.to_string()}});
        let run = json!({
            "kind": "apply", "job": "quiet-apply-1", "image": "evil", "serviceAccount": "default",
        });
        // Forges the run record: names another ServiceAccount and image, and says that no state was created (`stateMade: false`).
        let record = json!({"number": 2, "phase": "Starting", "run": run, "attempted": 0, "stateMade": false});
        attacks(&scene, "record", "record-run", data("record", &record)).await;
        // Forges the progress in the run report: another active run, which requests `u32::MAX` state slots.
        let progress = json!({"number": 2, "phase": "Starting", "slotsWanted": u32::MAX, "run": run});
        attacks(&scene, "progress", "progress-report", data("progress", &progress)).await;
        // Forges the report of a finished run while the run applies. The forged report contains the state address of the resource `quiet`.
        let at = "2026-01-01T00:00:00Z";
        let done = json!({
            "number": 1, "kind": "destroy", "result": "Done", "job": "quiet-apply-1",
            "stateAddress": format!("secret://{}/quiet-state", scene.namespace),
            "startedAt": at, "finishedAt": at,
        });
        attacks(&scene, "done", "done-report", data("report", &done)).await;
        let labels = json!({"metadata": {"labels": {"alustan.io/terraform": "quiet"}}});
        attacks(&scene, "labels", "labels-report", labels).await;
        attacks(&scene, "neighbour", "quiet-report", data("progress", &progress)).await;

        for (name, why) in [
            ("record", "secrets \"record-run\" is forbidden"),
            ("labels", "not its metadata"),
            ("neighbour", "secrets \"quiet-report\" is forbidden"),
        ] {
            let (result, message) = recorded(&scene, name).await;
            assert_eq!(result, "Failed", "{name}: {message}");
            assert!(message.contains(why), "{name}: {message}");
        }
        let (result, message) = recorded(&scene, "progress").await;
        assert_eq!(result, "Failed");
        assert!(message.contains("ended without a report"), "{message}");
        let (result, _) = recorded(&scene, "done").await;
        assert_eq!(result, "Done");

        let all = ListParams::default();
        let secrets = scene.api::<Secret>().list(&all).await.unwrap().items;
        assert!(secrets.len() < 60, "{} Secrets", secrets.len());
        let jobs = scene.api::<Job>().list(&all).await.unwrap();
        for job in jobs {
            let name = job.name_any();
            let pod = job.spec.unwrap().template.spec.unwrap();
            let account = pod.service_account_name.unwrap_or_default();
            let is_run = name.contains("-apply-");
            assert!(!is_run || account.ends_with("-runner"), "{name}: {account}");
            for container in pod.containers {
                assert_ne!(container.image.as_deref(), Some("evil"), "{name}");
            }
        }
        let jobs = scene.jobs("run").await;
        let count = |name: &str| jobs.iter().filter(|job| job.starts_with(name)).count();
        assert_eq!((count("quiet-"), count("done-")), (1, 1), "{jobs:?}");
        // The operator ignores the forged state address: the resource `quiet` still owns its state, and can run.
        scene.annotate("quiet", alustan_api::RECONCILE_AT, "now").await;
        scene.ready_after_run("quiet", 2).await;
    })
    .await;
}

/// The source of the module is the `..data` folder of the Secret volume with the registry credentials. `init` finds no such folder, so it
/// cannot copy the credentials into the image.
#[tokio::test]
async fn attack_on_registry_credentials_during_init_finds_no_file() {
    scene("attack-init", |scene| async move {
        let host = "private-registry.alustan.test";
        let counter = Counter::start().await;
        let config = scene.docker_config(host, "alustan", "alustan-test");
        let kind = "kubernetes.io/dockerconfigjson";
        scene
            .secret("regcred", kind, &[(".dockerconfigjson", &config)])
            .await;
        for (name, builder, folder) in [
            ("append", "Append", paths::DOCKER_CONFIG),
            ("kaniko", "Kaniko", "/kaniko/.docker"),
        ] {
            let path = format!("/{name}");
            counter.redirect_module(&path, &format!("file://{folder}//..data"));
            let source = format!("http://{}{path}", counter.address);
            let module = format!("module \"stolen\" {{ source = \"{source}\" }}");
            scene.commit(name, &[("main.tf", &module)]).await;
            let mut resource = scene.resource(name);
            resource["spec"]["containerRegistry"] = json!({
                "imageName": format!("{host}/{}/{name}", scene.namespace),
                "secretRef": {"name": "regcred", "key": ".dockerconfigjson"},
                "builder": {"kind": builder},
            });
            scene.apply(&resource).await;
            let message = scene.reason(name, "ModulesUnavailable").await;
            assert!(message.contains(folder), "{message}");
            assert!(counter.count(&format!("{path}?terraform-get=1")) > 0);
        }
    })
    .await;
}
