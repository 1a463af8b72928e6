//! The kustomize overlays, installed with the registry and the git server of the dev cluster.

use std::path::Path;
use std::time::{Duration, Instant};

use alustan_api::Terraform;
use alustan_tests::{Cluster, Scene, node, scene_without_operator};
use kube::api::{Api, DeleteParams, Patch, PatchParams};
use serde_json::{Value, json};

use crate::approval::{approve, pending};

const REGISTRY: &str = "registry.alustan.test:5000";

/// Returns the digest of the operator image in the registry of the dev cluster.
pub(crate) async fn controller_digest(scene: &Scene) -> String {
    let image = format!("docker://{}/alustan/controller:dev", node(5000));
    let inspect = [
        "inspect",
        "--tls-verify=false",
        "--format",
        "{{.Digest}}",
        &image,
    ];
    let digest = scene.cluster.run("skopeo", &inspect).await;
    digest.trim().to_owned()
}

/// Writes an overlay on top of `overlay`, as a user does. The overlay sets image digests, the certificate authorities and the builder of
/// the dev cluster, and the allow-lists of registries and repositories.
async fn overlay_of(scene: &Scene, overlay: &str, folder: &Path) {
    let digest = controller_digest(scene).await;
    let deploy = Cluster::root()
        .canonicalize()
        .unwrap()
        .join("deploy/kustomize/overlays");
    // kustomize accepts relative paths only.
    let up = "../".repeat(folder.canonicalize().unwrap().components().count() - 1);
    let base = format!(
        "{up}{}/{overlay}",
        deploy.strip_prefix("/").unwrap().display()
    );
    let allowed = json!({
        "apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "alustan-allowed"},
        "data": {
            "registries": format!("{REGISTRY}/{}", scene.namespace),
            "repositories": format!("https://git.alustan.test/{}", scene.namespace),
        },
    });
    let kustomization = json!({
        "resources": [base],
        "namespace": "alustan-system",
        "images": [{
            "name": "registry.example.com/alustan/controller",
            "newName": format!("{REGISTRY}/alustan/controller"), "digest": digest,
        }],
        "patches": [{"path": "controller.yaml"}, {"path": "allowed.json"}],
    });
    std::fs::write(folder.join("kustomization.yaml"), kustomization.to_string()).unwrap();
    std::fs::write(folder.join("allowed.json"), allowed.to_string()).unwrap();
    std::fs::copy(
        deploy.join("dev/controller.yaml"),
        folder.join("controller.yaml"),
    )
    .unwrap();
}

/// Installs an overlay with `make install OVERLAY=…`.
async fn install(scene: &Scene, overlay: &str) {
    let folder = tempfile::tempdir().unwrap();
    overlay_of(scene, overlay, folder.path()).await;
    let folder = folder.path().to_str().unwrap();
    scene.cluster.run("hack/install", &[folder]).await;
}

async fn installed(scene: &Scene, kind: &str, path: &str) -> String {
    let path = format!("jsonpath={path}");
    let get = ["get", kind, "-n", "alustan-system", "-o", &path];
    scene.cluster.run("kubectl", &get).await
}

/// Waits until a policy refuses `resource`: the API server enforces new policies and parameters about a second after their creation.
async fn in_force(scene: &Scene, resource: &Value) {
    let api: Api<Terraform> = scene.api();
    let name = resource["metadata"]["name"].as_str().unwrap();
    let parameters = PatchParams::apply("e2e").dry_run();
    let tries = async || {
        let tried = api.patch(name, &parameters, &Patch::Apply(resource)).await;
        !matches!(tried, Err(kube::Error::Api(_)))
    };
    let end = Instant::now() + Duration::from_secs(30);
    while tries().await {
        assert!(Instant::now() < end, "no policy refuses {name}");
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
}

/// Tests that run while no other test runs: see `scene_alone`.
mod alone {
    use super::*;

    #[tokio::test]
    async fn kustomize_overlays_install_a_working_operator_and_policies() {
        scene_without_operator("kustomize", async |scene| {
            let module = "resource \"terraform_data\" \"a\" {}\n";
            scene.commit("web", &[("main.tf", module)]).await;

            install(&scene, "staging").await;
            let controller = "deployment/alustan-controller";
            assert_eq!(
                installed(&scene, controller, "{.status.readyReplicas}").await,
                "1"
            );
            let policy = "networkpolicy/alustan-controller";
            assert_eq!(
                installed(&scene, policy, "{.metadata.name}").await,
                "alustan-controller"
            );
            let mut web = scene.resource("web");
            let refused = |result: Result<(), kube::Error>| result.unwrap_err().to_string();
            in_force(&scene, &web).await;
            let message = refused(scene.try_apply(&web).await);
            assert!(
                message.contains("spec.approval.destroy must be Manual"),
                "{message}"
            );
            web["spec"]["approval"] = json!({"destroy": "Manual"});
            let mut elsewhere = web.clone();
            elsewhere["spec"]["gitRepo"]["url"] = json!("https://git.alustan.test/others/web");
            let message = refused(scene.try_apply(&elsewhere).await);
            assert!(
                message.contains("spec.gitRepo.url (or spec.source.module.source")
                    && message.contains("must begin with https://git.alustan.test/"),
                "{message}"
            );
            scene.apply(&web).await;
            scene.ready("web").await;

            install(&scene, "prod").await;
            assert_eq!(
                installed(&scene, controller, "{.status.readyReplicas}").await,
                "2"
            );
            assert_eq!(
                installed(&scene, "pdb/alustan-controller", "{.spec.maxUnavailable}").await,
                "1"
            );
            let image = installed(&scene, controller, "{..containers[0].image}").await;
            assert!(image.contains("/controller@sha256:"), "{image}");
            let mut manual = scene.resource_of("asks", "web");
            manual["spec"]["approval"] = json!({"destroy": "Manual"});
            in_force(&scene, &manual).await;
            let message = refused(scene.try_apply(&manual).await);
            assert!(
                message.contains("spec.approval.mode must be Manual"),
                "{message}"
            );
            manual["spec"]["approval"] = json!({"mode": "Manual", "destroy": "Manual"});
            scene.apply(&manual).await;
            let (plan, _) = pending(&scene, "asks", None).await;
            approve(&scene, "asks", &plan).await;
            scene.ready("asks").await;

            // `web` was created before the policy that requires `spec.approval.mode: Manual`. It is still reconciled, and its deletion
            // needs an approval.
            let api: Api<Terraform> = scene.api();
            let uid = scene
                .begin_to_delete("web", &DeleteParams::background())
                .await;
            let (plan, _) = pending(&scene, "web", None).await;
            approve(&scene, "web", &plan).await;
            scene.deleted("web", &uid).await;
            assert!(api.get_opt("asks").await.unwrap().is_some());
        })
        .await;
    }
}
