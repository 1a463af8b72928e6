//! Scenarios of `deploy/examples`. `hack/twin` applies the twin of each example: the same resources, with modules that run in the dev
//! cluster.

use std::collections::BTreeMap;

use alustan_api::{State, Terraform};
use alustan_tests::{Scene, condition, scene};
use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use k8s_openapi::api::networking::v1::Ingress;
use kube::ResourceExt;
use kube::api::{Api, DeleteParams, ListParams, Patch, PatchParams};
use serde_json::{Value, json};

/// Applies the twin of an example with one command, in the order of the resources in the example's file. The twin is the example with
/// modules that run in the dev cluster (`hack/twin`).
async fn twin(scene: &Scene, example: &str) {
    let arguments = [example, &scene.namespace];
    scene.cluster.run("hack/twin", &arguments).await;
}

/// Returns the data of a `ConfigMap` that a module created, if it exists.
async fn made(scene: &Scene, name: &str) -> Option<BTreeMap<String, String>> {
    let map = scene.api::<ConfigMap>().get_opt(name).await.unwrap()?;
    Some(map.data.unwrap_or_default())
}

/// Patches the spec of the resource `name` as `kubectl patch` does.
async fn change(scene: &Scene, name: &str, spec: Value) {
    let patch = json!({"spec": spec});
    let api = scene.api::<Terraform>();
    api.patch(name, &PatchParams::default(), &Patch::Merge(&patch))
        .await
        .unwrap();
}

/// Deletes all resources with one request. Returns their names and uids.
async fn delete_all(scene: &Scene) -> Vec<(String, String)> {
    let (all, now) = (ListParams::default(), DeleteParams::background());
    let api = scene.api::<Terraform>();
    let resources = api.list(&all).await.unwrap().items;
    api.delete_collection(&now, &all).await.unwrap();
    resources
        .iter()
        .map(|tf| (tf.name_any(), tf.uid().unwrap()))
        .collect()
}

/// Waits for run `number` of the resource `name`. Returns its trigger.
async fn trigger(scene: &Scene, name: &str, number: i64) -> String {
    let tf = scene.ready_after_run(name, number).await;
    tf.status.unwrap().runs[0].trigger.clone()
}

#[tokio::test]
async fn examples_cluster_is_created_before_and_destroyed_after_apps() {
    scene("apps", |scene| async move {
        twin(&scene, "cluster-then-apps").await;
        scene.ready("apps").await;
        let cluster = json!({"name": "blue"});
        assert_eq!(json!(made(&scene, "cluster").await), cluster);
        for app in ["app-blog", "app-postfix"] {
            let data = made(&scene, app).await.unwrap();
            assert_eq!(data["cluster"], "blue", "{app}");
        }
        // The credentials come from the outputs of `cluster` alone, and appear in no object that users without access to Secrets can read.
        let token = scene.data("module-credentials").await["KUBE_TOKEN"].clone();
        let kubeconfig: Value =
            serde_json::from_str(&scene.data("cluster-outputs").await["kubeconfig"]).unwrap();
        assert_eq!(kubeconfig["token"], token);
        let apps = scene.api::<Terraform>().get("apps").await.unwrap();
        assert!(apps.spec.runner.is_none());
        let all = scene.all_that_can_be_read().await;
        assert!(!all.contains(&token));

        change(&scene, "cluster", json!({"variables": {"name": "green"}})).await;
        let because = trigger(&scene, "apps", 2).await;
        assert_eq!(because, "input Terraform cluster");
        let data = made(&scene, "app-blog").await.unwrap();
        assert_eq!(data["cluster"], "green");

        let how = DeleteParams::foreground();
        let uid = scene.begin_to_delete("cluster", &how).await;
        scene
            .wait_for_message("cluster", "dependents are destroyed first: apps")
            .await;
        assert!(made(&scene, "app-blog").await.is_some());
        scene.delete("apps", &how).await;
        assert!(made(&scene, "app-blog").await.is_none());
        scene.deleted("cluster", &uid).await;
        assert!(made(&scene, "cluster").await.is_none());
        scene.nothing_left().await;
    })
    .await;
}

/// Simulates the load balancer controller of the Ingress.
struct Controller(Api<Ingress>);

impl Controller {
    const FINALIZER: &str = "ingress.k8s.aws/resources";

    async fn makes_a_load_balancer(&self, hostname: &str) {
        let parameters = PatchParams::default();
        let mine = json!({"metadata": {"finalizers": [Self::FINALIZER]}});
        self.0
            .patch("shop", &parameters, &Patch::Merge(&mine))
            .await
            .unwrap();
        let status = json!({"status": {"loadBalancer": {"ingress": [{"hostname": hostname}]}}});
        self.0
            .patch_status("shop", &parameters, &Patch::Merge(&status))
            .await
            .unwrap();
    }

    async fn has_removed_it(&self) {
        let done = json!({"metadata": {"finalizers": null}});
        self.0
            .patch("shop", &PatchParams::default(), &Patch::Merge(&done))
            .await
            .unwrap();
    }
}

#[tokio::test]
async fn examples_data_passes_both_ways_between_module_and_workload() {
    scene("both", |scene| async move {
        let controller = Controller(scene.api());
        twin(&scene, "pass-data-both-ways").await;
        // The module passes the ARN of the role to the workload.
        scene.ready("identity").await;
        let arn = scene.data("shop-cluster").await["role_arn"].clone();
        assert!(arn.starts_with("arn:aws:iam::"), "{arn}");
        let secret = scene.api::<Secret>().get("shop-cluster").await.unwrap();
        let read_by_argo_cd = secret.labels().get("argocd.argoproj.io/secret-type");
        assert_eq!(read_by_argo_cd.map(String::as_str), Some("cluster"));
        assert_eq!(secret.annotations()["example.com/shop-role-arn"], arn);
        let running = format!("running as {arn}");
        scene
            .until(&running, async || {
                let (_, log) = scene.try_kubectl(&["logs", "deployment/shop"]).await;
                log.contains(&running).then_some(())
            })
            .await;

        // The workload passes the hostname of the load balancer to the module.
        scene.ready("platform").await;
        scene.reason("dns", "FieldNotFound").await;
        let name = "shop.example.com";
        for (run, hostname) in [(1, "one.elb.amazonaws.com"), (2, "two.elb.amazonaws.com")] {
            controller.makes_a_load_balancer(hostname).await;
            scene.ready_after_run("dns", run).await;
            let zone = made(&scene, "zone").await;
            assert_eq!(json!(zone), json!({name: hostname}));
        }
        for untouched in ["platform", "identity"] {
            assert_eq!(scene.run_number(untouched).await, 1, "{untouched}");
        }

        // `dns` is destroyed. Its dependency `platform` stays until the load balancer controller removes its own finalizer from the
        // Ingress.
        let all = delete_all(&scene).await;
        let api = &controller.0;
        api.delete("shop", &DeleteParams::default()).await.unwrap();
        let tf = scene
            .wait_for_message("platform", Controller::FINALIZER)
            .await;
        assert_eq!(tf.status.unwrap().state, State::Destroying);
        assert!(made(&scene, "zone").await.is_none());
        assert!(made(&scene, "platform").await.is_some());
        controller.has_removed_it().await;
        for (name, uid) in all {
            scene.deleted(&name, &uid).await;
        }
        assert!(made(&scene, "platform").await.is_none());
        scene.nothing_left().await;
    })
    .await;
}

#[tokio::test]
async fn examples_k3s_changes_run_only_the_affected_dependents() {
    scene("k3s", |scene| async move {
        twin(&scene, "k3s-stack").await;
        let others = ["alpha-workers", "bravo-workers", "bravo-control-plane"];
        for name in others.iter().chain(&["shared-endpoint"]) {
            scene.ready_after_run(name, 1).await;
        }
        let zone = made(&scene, "zone").await;
        let before = json!({
            "api--alpha.example.com": "10.1.1.1 10.1.1.2 10.1.1.3",
            "api--bravo.example.com": "10.2.1.1 10.2.1.2 10.2.1.3",
            "blog.example.com": "alpha bravo",
        });
        assert_eq!(json!(zone), before);
        let workers = made(&scene, "alpha-workers").await.unwrap();
        assert_eq!(workers["server"], "https://api--alpha.example.com:6443");

        // The replacement of server `b` changes its address.
        let servers = json!({"variables": {"servers": {"b": 2}}});
        change(&scene, "alpha-control-plane", servers).await;
        let because = trigger(&scene, "shared-endpoint", 2).await;
        assert_eq!(
            because,
            "input Terraform with example.com/role=control-plane"
        );
        let zone = made(&scene, "zone").await.unwrap();
        let addresses = &zone["api--alpha.example.com"];
        assert_eq!(addresses, "10.1.1.1 10.1.2.2 10.1.1.3");
        for name in others {
            assert_eq!(scene.run_number(name).await, 1, "{name}");
        }

        // A new token starts a run of the resource `alpha-workers`, whose servers join the cluster with the token.
        let token = json!({"variables": {"token": 2}});
        change(&scene, "alpha-control-plane", token).await;
        let because = trigger(&scene, "alpha-workers", 2).await;
        assert_eq!(because, "input Terraform alpha-control-plane");
        let after = made(&scene, "alpha-workers").await.unwrap();
        assert!(after["token"] != workers["token"]);
        assert_eq!(scene.run_number("bravo-workers").await, 1);
        assert_eq!(scene.run_number("shared-endpoint").await, 2);

        // One request deletes all resources. The operator still destroys dependents before their dependencies.
        let all = delete_all(&scene).await;
        let tf = scene
            .wait_for_message("alpha-control-plane", "dependents are destroyed first")
            .await;
        assert_eq!(condition(&tf, "Ready").unwrap().reason, "DependentsExist");
        for (name, uid) in all {
            scene.deleted(&name, &uid).await;
        }
        let names: Vec<_> = scene
            .api::<ConfigMap>()
            .list(&ListParams::default())
            .await
            .unwrap()
            .iter()
            .map(ResourceExt::name_any)
            .collect();
        assert_eq!(names, ["kube-root-ca.crt"]);
        scene.nothing_left().await;
    })
    .await;
}

#[tokio::test]
async fn examples_terragrunt_ingress_waits_for_its_controller() {
    scene("grunt", |scene| async move {
        let controller = Controller(scene.api());
        twin(&scene, "eks-alb-terragrunt").await;
        // Without the inputs of root.hcl and terragrunt.hcl, the module would lack variables.
        scene.ready("cluster").await;
        let status = scene.ready("cluster").await.status.unwrap();
        let base = status.image.unwrap().base;
        assert!(base.contains("/terragrunt@sha256:"), "{base}");
        scene.reason("ingress", "HealthCheckPending").await;
        let host = "one.elb.amazonaws.com";
        controller.makes_a_load_balancer(host).await;
        scene.ready_after_run("ingress", 1).await;
        let url = &scene.data("ingress-outputs").await["url"];
        assert_eq!(url, "https://shop.main.example.com");

        let all = delete_all(&scene).await;
        scene.log("ingress-destroy-2", "Still destroying").await;
        let shop = controller.0.get("shop").await.unwrap();
        assert!(shop.metadata.deletion_timestamp.is_some());
        scene
            .wait_for_message("cluster", "dependents are destroyed first: ingress")
            .await;
        assert!(made(&scene, "cluster").await.is_some());
        controller.has_removed_it().await;
        for (name, uid) in all {
            scene.deleted(&name, &uid).await;
        }
        assert!(made(&scene, "cluster").await.is_none());
        scene.nothing_left().await;
    })
    .await;
}
