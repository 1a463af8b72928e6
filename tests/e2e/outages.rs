//! Git, the registry and the API server go away for a while, with work in flight, and come back.

use alustan_api::Terraform;
use alustan_tests::{Counter, Operators, Scene, condition, scene_alone, scene_with_own_operators};
use kube::api::DeleteParams;
use serde_json::{Value, json};

/// A resource that has one try only for what is its own fault.
fn resource(scene: &Scene, name: &str) -> Value {
    let mut resource = scene.resource(name);
    resource["spec"]["variables"] = json!({"v": name});
    resource["spec"]["retry"]["limit"] = json!(1);
    resource
}

/// The status of a condition, and its reason.
fn is(tf: &Terraform, kind: &str) -> (String, String) {
    let found = condition(tf, kind);
    found
        .map(|it| (it.status.clone(), it.reason.clone()))
        .unwrap_or_default()
}

/// While no other test runs: see `scene_alone`.
mod alone {
    use super::*;

    #[tokio::test]
    async fn retry_outlasts_git_and_the_registry_without_a_loss_of_budget() {
        scene_alone("outage", |scene| async move {
            let counter = Counter::start().await;
            for name in ["rests", "runs", "comes"] {
                scene.commit(name, &[("main.tf", &counter.module())]).await;
            }
            scene.apply(&resource(&scene, "rests")).await;
            scene.ready("rests").await;
            counter.hold("/made");
            scene.apply(&resource(&scene, "runs")).await;
            counter.reached_times("/made", 2).await;

            scene.cluster.stop(&["fcgiwrap", "registry"]).await;
            let mut comes = resource(&scene, "comes");
            comes["spec"]["containerRegistry"]["builder"] = json!({"kind": "Kaniko"});
            scene.apply(&comes).await;
            scene.reason("comes", "RepositoryUnreachable").await;
            // What is known goes on: a variable needs nobody's answer, nor does what runs or rests.
            let mut rests = resource(&scene, "rests");
            rests["spec"]["variables"]["v"] = json!("changed");
            scene.apply(&rests).await;
            counter.release("/made");
            scene.ready_after_run("rests", 2).await;
            // Its run may have ended before the repository was due to be asked.
            let unreachable = ("False".into(), "RepositoryUnreachable".into());
            let tf = scene
                .wait("rests", "the repository to be missed", |tf| {
                    is(tf, "SourceReady") == unreachable
                })
                .await;
            assert_eq!(is(&tf, "Ready").0, "True");
            scene.ready("runs").await;

            // Git is back first: what is new gets as far as the registry.
            scene.cluster.start().await;
            scene.cluster.stop(&["registry"]).await;
            let tf = scene
                .wait("comes", "the registry to be missed", |tf| {
                    let (_, reason) = is(tf, "Ready");
                    ["RegistryUnreachable", "BuildFailed", "ImagePullBackOff"]
                        .contains(&reason.as_str())
                })
                .await;
            assert_eq!(is(&tf, "Stalled").0, "False");
            let more = "output \"more\" { value = 1 }\n";
            scene
                .commit("runs", &[("main.tf", &(counter.module() + more))])
                .await;
            scene.reason("runs", "RegistryUnreachable").await;
            scene.cluster.start().await;
            for (name, run) in [("comes", 1), ("runs", 2), ("rests", 2)] {
                scene.ready_without_failures(name, run).await;
            }
            assert_eq!(counter.lives(), (3, 0));
        })
        .await;
    }

    #[tokio::test]
    async fn retry_outlasts_the_api_server_and_nothing_is_lost_or_done_twice() {
        scene_alone("api", |scene| async move {
            let counter = Counter::start().await;
            for name in ["makes", "goes"] {
                scene.commit(name, &[("main.tf", &counter.module())]).await;
            }
            scene.apply(&resource(&scene, "goes")).await;
            scene.ready("goes").await;
            counter.hold("/made");
            counter.hold("/destroyed");
            scene.apply(&resource(&scene, "makes")).await;
            let uid = scene
                .begin_to_delete("goes", &DeleteParams::foreground())
                .await;
            counter.reached_times("/made", 2).await;
            counter.reached("/destroyed").await;
            scene.cluster.stop(&["apiserver"]).await;
            counter.release("/made");
            counter.release("/destroyed");
            // Both are done and have nobody to tell: their states and reports are waited with.
            scene.printed("makes-apply-1", "Creation complete").await;
            scene
                .printed("goes-destroy-2", "Destruction complete")
                .await;
            scene.cluster.start().await;
            scene.deleted("goes", &uid).await;
            let status = scene.ready("makes").await.status.unwrap();
            assert_eq!((status.run, status.retry), (Some(1), None));
            assert_eq!(counter.lives(), (2, 1));
            scene.delete("makes", &DeleteParams::foreground()).await;
            assert_eq!(counter.lives(), (2, 2));
            scene.nothing_left().await;
        })
        .await;
    }
}

/// While the installed operator is stopped: see `scene_with_own_operators`.
mod own_operators {
    use super::*;

    #[tokio::test]
    async fn retry_keeps_count_of_failures_when_the_operator_is_killed_after_each() {
        scene_with_own_operators("budget", |scene| async move {
            let operators = Operators::of(&scene).await;
            let broken = "resource \"terraform_data\" \"a\" {\n  provisioner \"local-exec\" {\n    \
                      command = \"echo the shelf is empty >&2; exit 3\"\n  }\n}\n";
            scene.commit("web", &[("main.tf", broken)]).await;
            let mut web = scene.resource("web");
            web["spec"]["retry"]["limit"] = json!(3);
            scene.apply(&web).await;
            for failures in 1..3 {
                let operator = operators.start(None);
                scene.said("web", &format!("failure {failures} of 3")).await;
                operator.kill().await;
            }
            let operator = operators.start(None);
            let (reason, message) = scene.stalled("web").await;
            assert_eq!(reason, "ApplyFailed");
            for part in [
                "the shelf is empty",
                "exit status 3",
                "failed 3 times in a row",
            ] {
                assert!(message.contains(part), "no {part:?} in {message}");
            }
            assert_eq!(scene.run_number("web").await, 3);
            operator.kill().await;
            // And the one that comes next does not begin again.
            web["spec"]["retry"]["maxBackoff"] = json!("6s");
            scene.apply(&web).await;
            let operator = operators.start(None);
            scene
                .wait("web", "the same verdict once more", |tf| {
                    let status = tf.status.as_ref().unwrap();
                    status.observed_generation == Some(2) && is(tf, "Stalled").0 == "True"
                })
                .await;
            operator.kill().await;
            assert_eq!(scene.jobs("run").await.len(), 3);
        })
        .await;
    }
}
