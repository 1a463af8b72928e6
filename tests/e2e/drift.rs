//! Drift: real objects that another client changed.

use alustan_api::State;
use alustan_tests::{Scene, condition, scene};
use k8s_openapi::api::core::v1::ConfigMap;
use serde_json::{Value, json};

/// Module with one real object.
pub(crate) const MODULE: &str = r#"
terraform {
  required_providers {
    kubectl = { source = "gavinbunney/kubectl" }
  }
}
variable "name" { type = string }
variable "namespace" { type = string }
resource "kubectl_manifest" "greeting" {
  yaml_body = yamlencode({
    apiVersion = "v1"
    kind       = "ConfigMap"
    metadata   = { name = var.name, namespace = var.namespace }
    data       = { text = "hello" }
  })
}
"#;

/// Returns a resource of [`MODULE`]. The ConfigMap has the name of the resource.
pub(crate) fn resource(scene: &Scene, name: &str, mode: &str) -> Value {
    let mut resource = scene.resource_of(name, "greeting");
    let spec = &mut resource["spec"];
    spec["variables"] = json!({"name": name, "namespace": scene.namespace});
    spec["runner"] = json!({"envFromSecrets": [{"name": "credentials"}]});
    spec["driftDetection"] = json!({"mode": mode, "interval": "3s"});
    resource
}

/// Returns the text in the ConfigMap `name`; `None` if it does not exist.
pub(crate) async fn text(scene: &Scene, name: &str) -> Option<String> {
    let map = scene.api::<ConfigMap>().get(name).await.ok()?;
    map.data?.remove("text")
}

#[tokio::test]
async fn drift_is_corrected_reported_or_ignored_as_configured() {
    scene("drift", |scene| async move {
        scene.provider_credentials("credentials").await;
        scene.commit("greeting", &[("main.tf", MODULE)]).await;
        scene.apply(&resource(&scene, "correct", "Correct")).await;
        scene.apply(&resource(&scene, "report", "Report")).await;
        scene.apply(&resource(&scene, "ignore", "Ignore")).await;
        let change = ["--type=merge", "-p", "{\"data\":{\"text\":\"changed\"}}"];
        for name in ["ignore", "correct", "report"] {
            scene.ready(name).await;
            assert_eq!(text(&scene, name).await.as_deref(), Some("hello"));
            let mut arguments = vec!["patch", "configmap", name];
            arguments.extend(change);
            scene.kubectl(&arguments).await;
        }
        scene
            .until("the ConfigMap to be put right", async || {
                (text(&scene, "correct").await? == "hello").then_some(())
            })
            .await;
        scene
            .wait("correct", "the run that corrected it", |tf| {
                let runs = tf.status.as_ref().map(|status| status.runs.as_slice());
                runs.is_some_and(|runs| runs.iter().any(|run| run.trigger == "drift"))
            })
            .await;

        let tf = scene
            .wait("report", "drift", |tf| {
                condition(tf, "InSync").is_some_and(|condition| condition.status == "False")
            })
            .await;
        assert_eq!(condition(&tf, "Ready").unwrap().status, "True");
        let status = tf.status.unwrap();
        assert_eq!(status.state, State::Drifted);
        let drift = status.drift.unwrap();
        assert_eq!((drift.add, drift.change, drift.destroy), (0, 1, 0));
        assert_eq!(drift.resources[0].address, "kubectl_manifest.greeting");
        assert_eq!(text(&scene, "report").await.as_deref(), Some("changed"));

        scene.apply(&resource(&scene, "report", "Correct")).await;
        scene
            .until("the other ConfigMap to be put right", async || {
                (text(&scene, "report").await? == "hello").then_some(())
            })
            .await;
        scene
            .wait("report", "no more drift", |tf| {
                tf.status
                    .as_ref()
                    .is_some_and(|status| status.drift.is_none())
                    && condition(tf, "InSync").is_some_and(|condition| condition.status == "True")
            })
            .await;

        // All resources have the same drift interval, and the other resources were checked more than once. If `ignore` had drift checks,
        // one would have run as well.
        assert_eq!(text(&scene, "ignore").await.as_deref(), Some("changed"));
        let jobs = scene.jobs("run").await;
        let own: Vec<_> = jobs
            .iter()
            .filter(|job| job.starts_with("ignore-"))
            .collect();
        assert_eq!(own, ["ignore-apply-1"]);
        let status = scene.ready("ignore").await.status.unwrap();
        assert_eq!((status.run, status.state), (Some(1), State::Success));
    })
    .await;
}
