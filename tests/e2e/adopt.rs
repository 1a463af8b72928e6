//! Adoption of states that were created outside of the operator.

use std::io::Write as _;

use alustan_tests::{Counter, Scene, scene};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use flate2::Compression;
use flate2::write::GzEncoder;
use kube::api::DeleteParams;
use serde_json::{Value, json};

use crate::approval;

/// Name of the CRD of tofu-controller.
const TOFU_CONTROLLER: &str = "terraforms.infra.contrib.fluxcd.io";

/// Applies the repository `web` with an earlier resource, and deletes this resource but not its objects. Returns the state. Afterwards, real
/// objects and their state remain, as after the use of an engine outside of the cluster.
async fn state_made_elsewhere(scene: &Scene, variables: Value) -> String {
    let mut old = scene.resource_of("old", "web");
    old["spec"]["deletionPolicy"] = json!("Orphan");
    old["spec"]["variables"] = variables;
    scene.apply(&old).await;
    scene.ready("old").await;
    let state = scene.alustan(&["state", "pull", "old"]).await;
    scene.delete("old", &DeleteParams::foreground()).await;
    scene.remove_secret("old-state").await;
    state
}

fn image_name(scene: &Scene) -> String {
    let resource = scene.resource("web");
    let name = &resource["spec"]["containerRegistry"]["imageName"];
    name.as_str().unwrap().to_owned()
}

#[tokio::test]
async fn adopt_local_state_pushed_before_first_run_recreates_nothing() {
    scene("adopt-local", |scene| async move {
        let counter = scene.commit_counted_object("web").await;
        let state = state_made_elsewhere(&scene, json!({})).await;
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("terraform.tfstate");
        std::fs::write(&file, state).unwrap();
        let file = file.to_str().unwrap();

        // Steps of docs/migration-plain.md.
        let url = scene.https("web");
        let image = image_name(&scene);
        let adopt = [
            "adopt",
            "--from",
            "state",
            file,
            "--name",
            "web",
            "--url",
            &url,
            "--branch",
            "main",
            "--image-name",
            &image,
            "--apply",
        ];
        scene.alustan(&adopt).await;
        scene.reason("web", "Suspended").await;
        scene.alustan(&["state", "push", "web", file]).await;
        scene.alustan(&["resume", "web"]).await;
        let runs = scene.ready("web").await.status.unwrap().runs;
        let results: Vec<_> = runs.iter().map(|run| run.result.as_str()).collect();
        assert_eq!(results, ["NoChanges"]);
        assert_eq!(counter.creations_and_destructions(), (1, 0));
        scene.delete("web", &DeleteParams::foreground()).await;
        assert_eq!(counter.creations_and_destructions(), (1, 1));
    })
    .await;
}

/// Creates a minimal CRD that accepts any field. It has no short name: other tests that run at the same time use `tf`.
async fn crd(scene: &Scene, group: &str, version: &str, kind: &str, plural: &str) {
    let any = json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true});
    let name = format!("{plural}.{group}");
    scene
        .create(&json!({
            "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
            "metadata": {"name": name},
            "spec": {
                "group": group, "scope": "Namespaced",
                "names": {"kind": kind, "plural": plural, "singular": kind.to_lowercase()},
                "versions": [{
                    "name": version, "served": true, "storage": true,
                    "schema": {"openAPIV3Schema": {"type": "object", "properties": {"spec": any, "status": any}}},
                }],
            },
        }))
        .await;
    let established = [
        "wait",
        "--for=condition=Established",
        "--timeout=60s",
        "crd",
    ];
    scene
        .kubectl(&[&established[..], &[name.as_str()]].concat())
        .await;
}

/// Creates the Secret of the `kubernetes` backend with `state`.
async fn state_secret(scene: &Scene, suffix: &str, state: &str) {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::default());
    encoder.write_all(state.as_bytes()).unwrap();
    let packed = STANDARD.encode(encoder.finish().unwrap());
    scene
        .create(&json!({
            "apiVersion": "v1", "kind": "Secret",
            "metadata": {
                "name": format!("tfstate-default-{suffix}"), "namespace": scene.namespace,
                "annotations": {"encoding": "gzip"},
                "labels": {
                    "tfstate": "true", "tfstateSecretSuffix": suffix, "tfstateWorkspace": "default",
                    "app.kubernetes.io/managed-by": "terraform",
                },
            },
            "data": {"tfstate": packed},
        }))
        .await;
}

/// Creates the ServiceAccount of the runners of tofu-controller, with its permissions for the state.
async fn tf_runner(scene: &Scene) {
    scene
        .kubectl(&["create", "serviceaccount", "tf-runner"])
        .await;
    scene
        .kubectl(&[
            "create",
            "role",
            "tf-runner",
            "--resource=secrets,leases.coordination.k8s.io",
            "--verb=get,list,create,update,delete",
        ])
        .await;
    let account = format!("--serviceaccount={}:tf-runner", scene.namespace);
    scene
        .kubectl(&[
            "create",
            "rolebinding",
            "tf-runner",
            "--role=tf-runner",
            &account,
        ])
        .await;
}

/// Returns whether the object of tofu-controller is suspended.
async fn is_suspended(scene: &Scene) -> bool {
    let get = [
        "get",
        TOFU_CONTROLLER,
        "web",
        "-o",
        "jsonpath={.spec.suspend}",
    ];
    scene.kubectl(&get).await == "true"
}

#[tokio::test]
async fn adopt_from_tofu_controller_recreates_nothing() {
    scene("adopt-tofu", |scene| async move {
        let counter = Counter::start().await;
        let module = counter.module();
        scene.commit("web", &[("main.tf", &module)]).await;
        let state = state_made_elsewhere(&scene, json!({"v": "one"})).await;
        let lineage = serde_json::from_str::<Value>(&state).unwrap()["lineage"].clone();

        // Objects in the form of tofu-controller and Flux.
        crd(
            &scene,
            "infra.contrib.fluxcd.io",
            "v1alpha2",
            "Terraform",
            "terraforms",
        )
        .await;
        crd(
            &scene,
            "source.toolkit.fluxcd.io",
            "v1",
            "GitRepository",
            "gitrepositories",
        )
        .await;
        tf_runner(&scene).await;
        state_secret(&scene, "web", &state).await;
        scene
            .secret("settings", "Opaque", &[("value", "one")])
            .await;
        scene.secret("web-out", "Opaque", &[("v", "one")]).await;
        scene
            .create(&json!({
                "apiVersion": "source.toolkit.fluxcd.io/v1", "kind": "GitRepository",
                "metadata": {"name": "infra", "namespace": scene.namespace},
                "spec": {"url": scene.https("web"), "interval": "30s", "ref": {"branch": "main"}},
            }))
            .await;
        scene
            .create(&json!({
                "apiVersion": "infra.contrib.fluxcd.io/v1alpha2", "kind": "Terraform",
                "metadata": {"name": "web", "namespace": scene.namespace},
                "spec": {
                    "interval": "10m", "path": "./", "approvePlan": "auto", "workspace": "default",
                    "sourceRef": {"kind": "GitRepository", "name": "infra"},
                    "varsFrom": [{"kind": "Secret", "name": "settings", "varsKeys": ["value:v"]}],
                    "writeOutputsToSecret": {"name": "web-out"},
                    "destroyResourcesOnDeletion": true, "serviceAccountName": "tf-runner",
                },
            }))
            .await;

        // Without `--apply`, the command changes nothing.
        let image = image_name(&scene);
        let adopt = [
            "adopt",
            "--from",
            "tofu-controller",
            "web",
            "--image-name",
            &image,
        ];
        let yaml = scene.alustan(&adopt).await;
        assert!(yaml.contains("secretSuffix: web"), "{yaml}");
        assert!(!is_suspended(&scene).await);
        let (exists, _) = scene
            .try_kubectl(&["get", "terraforms.alustan.io", "web"])
            .await;
        assert!(!exists);

        // Steps of docs/migration-tofu-controller.md.
        scene.alustan(&[&adopt[..], &["--apply"]].concat()).await;
        assert!(is_suspended(&scene).await);
        scene.reason("web", "Suspended").await;
        let allow = [
            "annotate",
            "serviceaccount",
            "tf-runner",
            "alustan.io/allow-runs=true",
        ];
        scene.kubectl(&allow).await;
        scene.remove_secret("web-out").await;
        scene.alustan(&["resume", "web"]).await;
        let status = scene.ready("web").await.status.unwrap();
        let results: Vec<_> = status.runs.iter().map(|run| run.result.as_str()).collect();
        assert_eq!(results, ["NoChanges"]);
        let address = format!("kubernetes://{}/web", scene.namespace);
        assert_eq!(status.state_address, Some(address));
        assert_eq!(scene.data("web-out").await["v"], "one");
        assert_eq!(counter.creations_and_destructions(), (1, 0));

        // A later change is planned, waits for approval, and is applied to the adopted state.
        scene
            .secret("settings", "Opaque", &[("value", "two")])
            .await;
        let (id, _) = approval::pending(&scene, "web", None).await;
        approval::approve(&scene, "web", &id).await;
        scene
            .until("the changed output", async || {
                let outputs = scene.data("web-out").await;
                (outputs["v"] == "two").then_some(())
            })
            .await;
        assert_eq!(counter.creations_and_destructions(), (1, 0));
        let get = [
            "get",
            "secret",
            "tfstate-default-web",
            "-o",
            "jsonpath={.data.tfstate}",
        ];
        let packed = STANDARD.decode(scene.kubectl(&get).await).unwrap();
        let state: Value =
            serde_json::from_reader(flate2::read::GzDecoder::new(&packed[..])).unwrap();
        assert_eq!(state["lineage"], lineage);

        let theirs = ["delete", TOFU_CONTROLLER, "web"];
        scene.kubectl(&theirs).await;
        scene.delete("web", &DeleteParams::foreground()).await;
        assert_eq!(counter.creations_and_destructions(), (1, 1));
        for name in [TOFU_CONTROLLER, "gitrepositories.source.toolkit.fluxcd.io"] {
            scene.kubectl(&["delete", "crd", name]).await;
        }
    })
    .await;
}
