//! Runs use only a ServiceAccount that is annotated to allow runs, and the operator uses each right that its roles grant.
//! `tests/src/bin/sweep.rs` compares used and granted rights after all tests.

use alustan_api::{State, Terraform};
use alustan_tests::{condition, scene, scene_alone};
use k8s_openapi::api::batch::v1::Job;
use kube::api::DeleteParams;
use serde_json::{Value, json};

use crate::approval::approve;

/// Path of the projected token in the runner pod.
const TOKEN: &str = "/var/run/secrets/alustan.io/tokens/cloud";

#[tokio::test]
async fn rbac_run_uses_only_a_service_account_that_allows_runs() {
    scene("identity", |scene| async move {
        let module = format!(
            "locals {{\n  part    = split(\".\", file(\"{TOKEN}\"))[1]\n  missing = (4 - length(local.part) % 4) % 4\n  \
             padded  = \"${{local.part}}${{substr(\"===\", 0, local.missing)}}\"\n  \
             claims  = jsondecode(base64decode(replace(replace(local.padded, \"-\", \"+\"), \"_\", \"/\")))\n}}\n\
             output \"audience\" {{ value = join(\",\", local.claims.aud) }}\n\
             output \"subject\" {{ value = local.claims.sub }}\n"
        );
        scene.commit("web", &[("main.tf", &module)]).await;
        let account = json!({
            "apiVersion": "v1", "kind": "ServiceAccount",
            "metadata": {"name": "cloud", "namespace": scene.namespace, "annotations": {"eks.amazonaws.com/role-arn": "arn:aws:iam::1:role/a"}},
        });
        scene.create(&account).await;
        let mut web = scene.resource("web");
        web["spec"]["runner"] = json!({
            "serviceAccountName": "cloud", "tokens": [{"name": "cloud", "audience": "sts.test"}],
        });
        let allow_runs = ["annotate", "serviceaccount", "cloud", "alustan.io/allow-runs=true"];
        scene.kubectl(&allow_runs).await;
        scene.apply(&web).await;
        scene.ready("web").await;
        let data = scene.data("web-outputs").await;
        assert_eq!(data["audience"], "sts.test");
        let subject = format!("system:serviceaccount:{}:cloud", scene.namespace);
        assert_eq!(data["subject"], subject);
        let pod = scene.pod_of("web-apply-1").await.spec.unwrap();
        assert_eq!(pod.service_account_name.as_deref(), Some("cloud"));

        // After the removal of the annotation `alustan.io/allow-runs`, no apply starts. A destroy run still uses the ServiceAccount that
        // created the objects.
        scene
            .kubectl(&["annotate", "serviceaccount", "cloud", "alustan.io/allow-runs-"])
            .await;
        web["spec"]["variables"] = json!({"more": "x"});
        scene.apply(&web).await;
        let message = scene.reason("web", "ServiceAccountNotAllowed").await;
        let command = allow_runs.join(" ").replacen("cloud ", &format!("cloud -n {} ", scene.namespace), 1);
        assert!(message.contains(&command), "no {command} in {message}");
        scene.delete("web", &DeleteParams::default()).await;
        scene.nothing_left().await;
    })
    .await;
}

/// Tests that run while no other test runs: see `scene_alone`.
mod alone {
    use super::*;

    /// Causes the situations in which the operator uses the rights of its roles.
    #[tokio::test]
    async fn rbac_operator_uses_all_its_rights() {
        scene_alone("rights", |scene| async move {
            // Deletes the Lease, so that the operator creates it.
            scene.cluster.scale_operator(0).await;
            let lease = ["delete", "lease", "alustan", "-n", "alustan-system"];
            scene.cluster.run("kubectl", &lease).await;
            scene.cluster.scale_operator(1).await;

            // The builder image contains no builder. The operator reads the cause of the failure from the log.
            scene.commit("broken", &[("main.tf", "")]).await;
            let mut broken = scene.resource("broken");
            let image = "registry.alustan.test:5000/alustan/controller:dev";
            broken["spec"]["containerRegistry"]["builder"] = json!({"image": image});
            scene.apply(&broken).await;
            scene
                .wait("broken", "its build to fail", |tf| {
                    condition(tf, "ImageReady")
                        .is_some_and(|condition| condition.reason == "BuildFailed")
                })
                .await;
            scene.delete("broken", &DeleteParams::default()).await;

            let module = "variable \"v\" {}\noutput \"v\" { value = var.v }\n";
            scene.commit("web", &[("main.tf", module)]).await;
            let mut web = scene.resource("web");
            web["spec"]["variables"] = json!({"v": "one"});
            web["spec"]["approval"] = json!({"mode": "Manual"});
            web["spec"]["outputs"] = json!({"configMapName": "told"});
            scene.apply(&web).await;
            let pending = |tf: &Terraform| {
                let status = tf.status.as_ref();
                status.is_some_and(|status| status.state == State::AwaitingApproval)
            };
            let tf = scene.wait("web", "a plan that asks", pending).await;
            let id = tf.status.unwrap().plan.unwrap().id.unwrap();
            approve(&scene, "web", &id).await;
            scene.ready("web").await;

            let quota = |pods: &str| -> Value {
                json!({
                    "apiVersion": "v1", "kind": "ResourceQuota",
                    "metadata": {"name": "small", "namespace": scene.namespace},
                    "spec": {"hard": {"pods": pods}},
                })
            };
            scene.create(&quota("0")).await;
            scene
                .until("the quota to count", async || {
                    let hard = "jsonpath={.status.hard.pods}";
                    let limit = scene.kubectl(&["get", "quota", "small", "-o", hard]).await;
                    (limit == "0").then_some(())
                })
                .await;
            web["spec"]["variables"] = json!({"v": "two"});
            web["spec"]["approval"] = json!({"mode": "Auto"});
            scene.apply(&web).await;
            scene.reason("web", "QuotaRefused").await;
            scene.create(&quota("20")).await;
            let tf = scene
                .wait("web", "the second run", |tf| {
                    let status = tf.status.as_ref();
                    status.is_some_and(|status| {
                        status.runs.len() > 2 && status.state == State::Success
                    })
                })
                .await;
            assert!(condition(&tf, "Ready").is_some_and(|condition| condition.status == "True"));
            assert!(
                !scene
                    .api::<Job>()
                    .list(&kube::api::ListParams::default())
                    .await
                    .unwrap()
                    .items
                    .is_empty()
            );
            scene.delete("web", &DeleteParams::default()).await;
            scene.nothing_left().await;
        })
        .await;
    }
}
