//! Adoption of existing states, and migration between backends (`docs/development/rules.md`, rule 11).

use alustan_tests::{Counter, Scene, node, scene};
use kube::api::DeleteParams;
use serde_json::{Value, json};

use crate::approval;

const TABLE: &str = "locks";

async fn bucket(scene: &Scene) {
    scene.aws_with_secret(&scene.namespace, TABLE).await;
}

fn module(counter: &Counter) -> String {
    let object = counter.counted_object("a");
    format!(
        "terraform {{\n  backend \"s3\" {{}}\n}}\nvariable \"v\" {{}}\n\
         resource \"terraform_data\" \"v\" {{ input = var.v }}\noutput \"v\" {{ value = var.v }}\n{object}"
    )
}

/// Runs the engine on the host, as a user does without the operator, in a folder with `module`.
async fn by_hand(scene: &Scene, module: &str, key: &str, v: &str) {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("main.tf"), module).unwrap();
    let script = r#"
        set -euo pipefail
        export AWS_ACCESS_KEY_ID=test AWS_SECRET_ACCESS_KEY=test CHECKPOINT_DISABLE=1
        export AWS_ENDPOINT_URL_S3=http://$1 AWS_ENDPOINT_URL_DYNAMODB=http://$1 AWS_ENDPOINT_URL_STS=http://$1
        . hack/lib/common.sh
        engine=$(command -v terraform || echo "$(tool_bin opentofu)/tofu")
        cd "$2"
        "$engine" init -input=false -backend-config=bucket="$3" -backend-config=key="$4" \
          -backend-config=region=us-east-1 -backend-config=encrypt=true -backend-config=use_path_style=true
        "$engine" apply -input=false -auto-approve -var "v=$5"
    "#;
    let path = folder.path().to_str().unwrap();
    let aws = node(5566).to_string();
    let arguments = [
        "-c",
        script,
        "by-hand",
        &aws,
        path,
        &scene.namespace,
        key,
        v,
    ];
    scene.cluster.run("bash", &arguments).await;
}

fn in_bucket(scene: &Scene, key: &str, v: &str) -> Value {
    let mut resource = scene.resource("web");
    resource["spec"]["backend"] = scene.s3_backend(&scene.namespace, TABLE, key);
    resource["spec"]["variables"] = json!({"v": v});
    resource
}

/// Returns the state in the bucket.
async fn state(scene: &Scene, key: &str) -> Value {
    let text = scene.s3(&scene.namespace, key).await;
    serde_json::from_str(&text).unwrap()
}

/// Returns the current version in the pointer of the managed state.
async fn managed(scene: &Scene) -> Value {
    let pointer = &scene.data("web-state").await["pointer"];
    let pointer: Value = serde_json::from_str(pointer).unwrap();
    pointer["current"].clone()
}

#[tokio::test]
async fn backend_adopt_takes_over_a_state_applied_by_hand() {
    scene("adopt", |scene| async move {
        let counter = Counter::start().await;
        bucket(&scene).await;
        let module = module(&counter);
        by_hand(&scene, &module, "state", "one").await;
        assert_eq!(counter.creations_and_destructions(), (1, 0));
        let made = state(&scene, "state").await;
        scene.commit("web", &[("main.tf", &module)]).await;
        let mut web = in_bucket(&scene, "state", "two");
        scene.apply(&web).await;
        let (reason, message) = scene.stalled("web").await;
        assert_eq!(reason, "StateOwnershipConflict", "{message}");
        assert_eq!(state(&scene, "state").await, made);

        // The first plan after adoption waits for approval. It creates and destroys nothing.
        web["spec"]["backend"]["adopt"] = json!(true);
        scene.apply(&web).await;
        let (id, tf) = approval::pending(&scene, "web", None).await;
        let plan = tf.status.unwrap().plan.unwrap();
        assert_eq!((plan.add, plan.change, plan.destroy), (0, 1, 0));
        assert_eq!(state(&scene, "state").await, made);
        approval::approve(&scene, "web", &id).await;
        scene.ready("web").await;
        let now = state(&scene, "state").await;
        assert_eq!(now["lineage"], made["lineage"]);
        assert_eq!(scene.data("web-outputs").await["v"], "two");
        assert_eq!(counter.creations_and_destructions(), (1, 0));
        scene.delete("web", &DeleteParams::foreground()).await;
        assert_eq!(counter.creations_and_destructions(), (1, 1));
    })
    .await;
}

#[tokio::test]
async fn backend_adopt_without_changes_needs_no_approval() {
    scene("adopted", |scene| async move {
        let counter = Counter::start().await;
        bucket(&scene).await;
        let module = module(&counter);
        by_hand(&scene, &module, "state", "one").await;
        let made = state(&scene, "state").await;
        scene.commit("web", &[("main.tf", &module)]).await;
        let mut web = in_bucket(&scene, "state", "one");
        web["spec"]["backend"]["adopt"] = json!(true);
        scene.apply(&web).await;
        let status = scene.ready("web").await.status.unwrap();
        assert_eq!(status.runs[0].result, "NoChanges");
        assert_eq!(state(&scene, "state").await, made);
        scene.delete("web", &DeleteParams::foreground()).await;
        assert_eq!(counter.creations_and_destructions(), (1, 1));
    })
    .await;
}

#[tokio::test]
async fn backend_migrate_copies_state_to_a_bucket_and_back() {
    scene("migrate", |scene| async move {
        let counter = Counter::start().await;
        bucket(&scene).await;
        let module = counter.module();
        scene.commit("web", &[("main.tf", &module)]).await;
        let mut web = scene.resource("web");
        web["spec"]["variables"] = json!({"v": "one"});
        scene.apply(&web).await;
        scene.ready("web").await;
        let made = managed(&scene).await;

        let mut moved = in_bucket(&scene, "state", "one");
        scene.apply(&moved).await;
        let (reason, message) = scene.stalled("web").await;
        assert_eq!(reason, "BackendChanged", "{message}");
        let hint = r#"-p '{"spec":{"backend":{"migrate":true}}}'"#;
        let place = format!("s3://{}/state", scene.namespace);
        for part in [hint, "Secret web-state", &place] {
            assert!(message.contains(part), "no {part:?} in {message}");
        }
        assert_eq!(scene.run_number("web").await, 1);

        moved["spec"]["backend"]["migrate"] = json!(true);
        scene.apply(&moved).await;
        let status = scene.ready_after_run("web", 2).await.status.unwrap();
        assert_eq!(status.runs[0].result, "NoChanges");
        assert_eq!(status.state_address.as_deref(), Some(place.as_str()));
        assert!(
            status.message.contains("the original is kept"),
            "{}",
            status.message
        );
        let copy = state(&scene, "state").await;
        assert_eq!(copy["lineage"], made["lineage"]);
        assert_eq!(managed(&scene).await, made);

        // Migrates to another key of the bucket, and changes a variable in the same run.
        let mut on = in_bucket(&scene, "other", "two");
        on["spec"]["backend"]["migrate"] = json!(true);
        scene.apply(&on).await;
        scene.ready_after_run("web", 3).await;
        assert_eq!(scene.data("web-outputs").await["v"], "two");
        assert_eq!(state(&scene, "state").await, copy);
        let last = state(&scene, "other").await;
        assert_eq!(last["lineage"], made["lineage"]);

        // Migrates back to Secrets, which still contain an older version of the state.
        web["spec"]["variables"] = json!({"v": "three"});
        web["spec"]["backend"] = json!({"provider": "managed", "migrate": true});
        scene.apply(&web).await;
        scene.ready_after_run("web", 4).await;
        assert_eq!(managed(&scene).await["lineage"], made["lineage"]);
        assert_eq!(state(&scene, "other").await, last);
        assert_eq!(counter.creations_and_destructions(), (1, 0));
        scene.delete("web", &DeleteParams::foreground()).await;
        assert_eq!(counter.creations_and_destructions(), (1, 1));
        scene.nothing_left().await;
    })
    .await;
}

/// The runner is killed after it has copied the state and before it changes an object. Then the resource is deleted.
#[tokio::test]
async fn backend_migrate_killed_midway_destroys_from_the_old_state() {
    scene("cutshort", |scene| async move {
        let counter = Counter::start().await;
        bucket(&scene).await;
        let module = counter.counted_object("a");
        scene.commit("web", &[("main.tf", &module)]).await;
        scene.apply(&scene.resource("web")).await;
        scene.ready("web").await;
        // The plan script blocks the run before its first change.
        let mut web = in_bucket(&scene, "state", "one");
        web["spec"]["variables"] = json!({});
        web["spec"]["backend"]["migrate"] = json!(true);
        web["spec"]["scripts"] = json!({"plan": {"inline": counter.command("/planned")}});
        web["spec"]["retry"] = json!({"minBackoff": "1h", "maxBackoff": "1h"});
        counter.hold("/planned");
        scene.apply(&web).await;
        counter.reached("/planned").await;
        let copy = state(&scene, "state").await;
        assert_eq!(copy["lineage"], managed(&scene).await["lineage"]);
        let pod = "job-name=web-apply-2";
        scene.cluster.kill(&scene.namespace, pod).await;
        scene.reason("web", "PodTerminated").await;
        counter.release("/planned");
        scene.delete("web", &DeleteParams::foreground()).await;
        assert_eq!(counter.creations_and_destructions(), (1, 1));
        // Destroy used the old state: the copy in the bucket is unchanged.
        assert_eq!(state(&scene, "state").await, copy);
    })
    .await;
}
