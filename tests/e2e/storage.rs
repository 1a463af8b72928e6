//! Faults of disks, of the node that has them, and of its clock.

use alustan_api::Terraform;
use alustan_tests::{ClockJump, Counter, Operators, Scene, scene, scene_alone};
use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use kube::ResourceExt;
use kube::api::DeleteParams;
use serde_json::{Value, json};

/// Module with a provider, which the cache volume stores.
fn module(text: &str) -> String {
    format!(
        "terraform {{\n  required_providers {{\n    time = {{ source = \"hashicorp/time\" }}\n  }}\n}}\n\
         resource \"time_static\" \"now\" {{}}\noutput \"text\" {{ value = \"{text}\" }}\n"
    )
}

fn failed_runs(tf: &Terraform) -> usize {
    let runs = &tf.status.as_ref().unwrap().runs;
    runs.iter().filter(|run| run.result == "Failed").count()
}

#[tokio::test]
async fn storage_that_is_slow_fails_no_run_and_loses_no_state() {
    scene("slow", |scene| async move {
        let disk = scene.slow_disk().await;
        let mut web = scene.resource("web");
        web["spec"]["backend"] = json!({"provider": "local"});
        web["spec"]["cache"] = json!({"storageClassName": disk.class, "size": "64Mi"});
        scene.apply(&web).await;
        for (run, text) in [(1, "one"), (2, "two")] {
            scene.commit("web", &[("main.tf", &module(text))]).await;
            let tf = scene.ready_after_run("web", run).await;
            assert_eq!(failed_runs(&tf), 0);
            assert_eq!(scene.data("web-outputs").await["text"], text);
        }
        let state = std::fs::read_to_string(disk.folder.join("state/terraform.tfstate")).unwrap();
        assert!(state.contains("\"value\": \"two\""), "{state}");
        scene.delete("web", &DeleteParams::background()).await;
        scene.remove_disk(disk).await;
    })
    .await;
}

#[tokio::test]
async fn storage_that_is_full_keeps_the_state_of_an_apply() {
    scene("full", |scene| async move {
        let disk = scene.disk(1024).await;
        let counter = Counter::start().await;
        scene.commit("web", &[("main.tf", &counter.module())]).await;
        let mut web = scene.resource("web");
        web["spec"]["backend"] = json!({"provider": "local"});
        web["spec"]["cache"] = json!({"storageClassName": disk.class, "size": "1Mi"});
        web["spec"]["variables"] = json!({"v": "one"});
        counter.hold("/made");
        scene.apply(&web).await;
        counter.reached("/made").await;
        disk.fill();
        counter.release("/made");
        scene
            .wait_for_message("web", "it is kept in Secret web-report")
            .await;
        assert!(disk.is_full());
        disk.free();
        scene.ready("web").await;
        assert_eq!(counter.creations_and_destructions(), (1, 0));
        scene.delete("web", &DeleteParams::background()).await;
        assert_eq!(counter.creations_and_destructions(), (1, 1));
        scene.remove_disk(disk).await;
    })
    .await;
}

fn resource(scene: &Scene, name: &str) -> Value {
    let mut resource = scene.resource_of(name, "web");
    resource["spec"]["variables"] = json!({"v": name});
    if name == "keeps" {
        resource["spec"]["backend"] = json!({"provider": "local"});
    }
    resource
}

/// Tests that run while no other test runs: see `scene_alone`.
mod alone {
    use super::*;

    #[tokio::test]
    async fn storage_of_a_removed_node_is_replaced_if_it_has_no_state() {
        scene_alone("removed", |scene| async move {
            scene.cluster.scale_operator(0).await;
            let operators = Operators::of(&scene).await;
            let operators = operators.with("ALUSTAN_SCHEDULING_TIMEOUT", "1m");
            let _operator = operators.start(None);
            let counter = Counter::start().await;
            let commit = async |number: usize| {
                let text = format!("{}output \"n\" {{ value = {number} }}\n", counter.module());
                scene.commit("web", &[("main.tf", &text)]).await;
            };
            commit(1).await;
            for name in ["caches", "keeps"] {
                scene.apply(&resource(&scene, name)).await;
                scene.ready(name).await;
            }
            // The first run mounts no cache volume.
            commit(2).await;
            for name in ["caches", "keeps"] {
                scene.ready_after_run(name, 2).await;
            }
            let claims = scene.api::<PersistentVolumeClaim>();
            let before = claims.get("caches-cache").await.unwrap().uid();

            scene.cluster.rename_node("node2").await;
            commit(3).await;
            // Builds continue without the volumes.
            let message = "the state is on PersistentVolumeClaim keeps-cache";
            scene.wait_for_message("keeps", message).await;
            let tf = scene.ready("caches").await;
            assert_eq!(failed_runs(&tf), 0, "{:?}", tf.status);
            let mut caches = resource(&scene, "caches");
            caches["spec"]["variables"]["v"] = json!("again");
            scene.apply(&caches).await;
            scene.ready("caches").await;
            let replaced = claims.get("caches-cache").await.unwrap().uid();
            assert_ne!(replaced, before);
            scene.reason("keeps", "Unschedulable").await;

            // Deleted here, because its volume belongs to the other node now.
            scene.delete("caches", &DeleteParams::background()).await;

            // The node returns, and with it the state.
            scene.cluster.rename_node("node1").await;
            let status = scene.ready("keeps").await.status.unwrap();
            assert_eq!(status.retry, None);
            assert_eq!(counter.creations_and_destructions(), (2, 1));
            scene.delete("keeps", &DeleteParams::background()).await;
            assert_eq!(counter.creations_and_destructions(), (2, 2));
        })
        .await;
    }

    /// The clock of the node jumps ahead by ten minutes during an apply whose time limit is five minutes, and back before another apply.
    #[tokio::test]
    async fn storage_node_with_a_jumping_clock_applies_once() {
        scene_alone("clock", |scene| async move {
            let counter = Counter::start().await;
            scene.commit("web", &[("main.tf", &counter.module())]).await;
            let mut web = scene.resource("web");
            web["spec"]["variables"] = json!({"v": "one"});
            web["spec"]["timeouts"] = json!({"plan": "5m", "apply": "5m", "destroy": "5m"});
            counter.hold("/made");
            scene.apply(&web).await;
            counter.reached("/made").await;
            let ahead = ClockJump::ten_minutes_ahead();
            counter.release("/made");
            scene.ready_without_failures("web", 1).await;
            web["spec"]["variables"]["v"] = json!("two");
            scene.apply(&web).await;
            scene.ready_without_failures("web", 2).await;
            // The API server would refuse the completion of a Job that started in the future.
            let complete = ["wait", "--for=condition=Complete", "job/web-apply-2"];
            scene.kubectl(&complete).await;
            drop(ahead);
            // Times in the run record are in the future now.
            web["spec"]["variables"]["v"] = json!("three");
            scene.apply(&web).await;
            // A drift check may be due first, because the time of the last one is in the future.
            let tf = scene.ready("web").await;
            assert_eq!(failed_runs(&tf), 0, "{:?}", tf.status);
            assert_eq!(scene.data("web-outputs").await["v"], "three");
            scene.delete("web", &DeleteParams::background()).await;
            assert_eq!(counter.creations_and_destructions(), (1, 1));
        })
        .await;
    }
}
