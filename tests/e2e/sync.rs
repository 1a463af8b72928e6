//! `--driver=metacontroller`: an operator of the test, and a fake metacontroller that calls its hooks over HTTP.
//! `tests/api/sync/program.rs` tests with metacontroller itself.

use std::net::TcpListener;
use std::sync::Arc;
use std::time::Duration;

use alustan_tests::metacontroller::{FakeMetacontroller, Hooks};
use alustan_tests::{Counter, Operator, Operators, Scene, node, scene_with_own_operators};
use kube::api::{Api, DeleteParams};
use serde_json::json;

const TOKEN: &str = "the-token-of-this-test";

/// Operator that reconciles only when a hook is called.
struct HookDrivenOperator {
    operators: Operators,
    url: String,
    _tokens: tempfile::TempDir,
}

impl HookDrivenOperator {
    async fn of(scene: &Scene) -> Self {
        let tokens = tempfile::tempdir().unwrap();
        std::fs::write(tokens.path().join("token"), TOKEN).unwrap();
        let free = TcpListener::bind(("0.0.0.0", 0)).unwrap();
        let port = free.local_addr().unwrap().port();
        let operators = Operators::of(scene)
            .await
            .with("ALUSTAN_DRIVER", "metacontroller")
            .with("ALUSTAN_LISTEN", &node(port).to_string())
            .with("ALUSTAN_SYNC_TOKEN_DIR", tokens.path().to_str().unwrap());
        Self {
            operators,
            url: format!("http://{}/sync", node(port)),
            _tokens: tokens,
        }
    }

    fn start(&self, scene: &Scene, hooks: Hooks) -> (Operator, FakeMetacontroller) {
        let client = scene.cluster.client.clone();
        let metacontroller =
            FakeMetacontroller::start(client, &scene.namespace, &self.url, TOKEN, hooks);
        (self.operators.start(None), metacontroller)
    }
}

async fn commit(scene: &Scene, counter: &Counter) {
    let object = counter.counted_object("a");
    let module = format!("variable \"v\" {{}}\noutput \"v\" {{ value = var.v }}\n{object}");
    scene.commit("web", &[("main.tf", &module)]).await;
}

/// Asserts that the operator answered each call of a hook within 8 seconds.
fn assert_answered(metacontroller: &FakeMetacontroller) {
    for call in metacontroller.calls() {
        assert!(matches!(call.status, 200 | 304 | 429), "{call:?}");
        assert!(call.took < Duration::from_secs(8), "{:?}", call.took);
    }
}

/// Tests that run with the installed operator scaled to zero: see `scene_with_own_operators`.
mod own_operators {
    use super::*;

    #[tokio::test]
    async fn sync_driver_switch_during_a_run_repeats_nothing() {
        scene_with_own_operators("sync-drivers", async |scene: Arc<Scene>| {
            let counter = Counter::start().await;
            commit(&scene, &counter).await;
            counter.hold("/made");
            let mut web = scene.resource("web");
            web["spec"]["variables"] = json!({"v": "1"});
            let webhook = HookDrivenOperator::of(&scene).await;
            let (first, metacontroller) = webhook.start(&scene, Hooks::V2);
            scene.apply(&web).await;
            counter.reached("/made").await;
            assert_answered(&metacontroller);
            drop(metacontroller);
            first.kill().await;

            let native = Operators::of(&scene).await;
            let second = native.start(None);
            counter.release("/made");
            scene.ready("web").await;
            assert_eq!(counter.creations_and_destructions(), (1, 0));
            second.kill().await;

            let finalize = Hooks {
                version: "v1",
                finalize: true,
            };
            let (third, metacontroller) = webhook.start(&scene, finalize);
            web["spec"]["variables"] = json!({"v": "2"});
            scene.apply(&web).await;
            let tf = scene.ready_after_run("web", 2).await;
            assert_eq!(tf.status.unwrap().observed_generation, Some(2));
            let uid = scene
                .begin_to_delete("web", &DeleteParams::background())
                .await;
            scene.deleted("web", &uid).await;
            assert_eq!(counter.creations_and_destructions(), (1, 1));
            assert_answered(&metacontroller);
            third.kill().await;
            let api: Api<k8s_openapi::api::batch::v1::Job> = scene.api();
            let jobs = api.list(&kube::api::ListParams::default()).await.unwrap();
            assert!(jobs.items.is_empty(), "{:?}", jobs.items.len());
        })
        .await;
    }
}
