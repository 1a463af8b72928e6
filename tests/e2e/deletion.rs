//! Deletion in each phase of a resource.

use alustan_api::State;
use alustan_tests::{Counter, Scene, condition, scene};
use k8s_openapi::api::core::v1::Namespace;
use kube::api::{Api, DeleteParams};
use serde_json::{Value, json};

use crate::drift;

/// Returns data and pointer of a managed state. Omits `writer`, the run that last claimed the pointer.
async fn state(scene: &Scene, name: &str) -> (String, Value) {
    let secret = scene.data(name).await;
    let mut pointer: Value = serde_json::from_str(&secret["pointer"]).unwrap();
    pointer.as_object_mut().unwrap().remove("writer");
    (secret["data"].clone(), pointer)
}

#[tokio::test]
async fn unapplied_resource_is_removed_without_a_run() {
    scene("never", |scene| async move {
        scene.commit("web", &[("main.tf", "")]).await;
        // Three resources: one without a commit, one with a build that cannot start, and one that is deleted directly after creation.
        let mut lost = scene.resource_of("lost", "web");
        lost["spec"]["gitRepo"]["branch"] = json!("no-such-branch");
        let mut stuck = scene.resource_of("stuck", "web");
        stuck["spec"]["containerRegistry"]["builder"] =
            json!({"image": "registry.alustan.test:5000/no/such-builder"});
        let quick = scene.resource_of("quick", "web");
        scene.apply(&lost).await;
        scene.apply(&stuck).await;
        scene.apply(&quick).await;
        scene.delete("quick", &DeleteParams::background()).await;
        scene.reason("lost", "BranchNotFound").await;
        scene.delete("lost", &DeleteParams::foreground()).await;
        let building = scene.wait_for_message("stuck", "ImagePull").await;
        assert_eq!(building.status.unwrap().state, State::Building);
        scene.delete("stuck", &DeleteParams::foreground()).await;
        assert!(scene.jobs("run").await.is_empty(), "nothing was run");
        scene.nothing_left().await;
    })
    .await;
}

#[tokio::test]
async fn a_run_that_cannot_start_is_cancelled_by_deletion() {
    scene("pull", |scene| async move {
        scene.commit("web", &[("main.tf", "")]).await;
        let mut web = scene.resource("web");
        web["spec"]["containerRegistry"]["builder"] =
            json!({"image": "registry.alustan.test:5000/no/such-builder"});
        scene.apply(&web).await;
        let tf = scene.wait_for_message("web", "ImagePull").await;
        let tag = tf.status.unwrap().image.unwrap().tag;
        scene.delete("web", &DeleteParams::background()).await;
        // The build cannot start, so the runner image does not exist. Pushes an image that no node can unpack under the tag of the runner
        // image.
        scene.spoil("web", &tag).await;
        scene.apply(&web).await;
        scene
            .wait_for_message("web", "run 1 (created) cannot start: ")
            .await;
        scene.delete("web", &DeleteParams::foreground()).await;
        scene.nothing_left().await;
    })
    .await;
}

#[tokio::test]
async fn deletion_cancels_a_plan_and_waits_for_an_apply() {
    scene("cancel", |scene| async move {
        let counter = Counter::start().await;
        counter.hold("/planning");
        scene
            .commit("web", &[("main.tf", &counter.counted_object("a"))])
            .await;
        let mut web = scene.resource("web");
        let plan = format!(
            "{}\nterraform plan -out=$ALUSTAN_PLAN_FILE",
            counter.command("/planning")
        );
        web["spec"]["scripts"] = json!({"plan": {"inline": plan}});
        scene.apply(&web).await;
        counter.reached("/planning").await;
        // The plan script blocks. Without cancellation the run would not end.
        scene.delete("web", &DeleteParams::foreground()).await;
        assert_eq!(counter.count("/made"), 0);
        scene.nothing_left().await;
        counter.release("/planning");

        // Applies the same module without the script. The image of the module is in the registry, so no build starts.
        counter.hold("/made");
        scene.apply(&scene.resource("web")).await;
        counter.reached("/made").await;
        assert!(scene.jobs("build").await.is_empty(), "nothing was built");
        let uid = scene
            .begin_to_delete("web", &DeleteParams::background())
            .await;
        scene
            .wait_for_message("web", "applying and is not interrupted")
            .await;
        counter.release("/made");
        scene.deleted("web", &uid).await;
        assert_eq!(counter.creations_and_destructions(), (1, 1));
        scene.nothing_left().await;
    })
    .await;
}

/// Destroy script that fails.
const LOCKED: &str = "echo 'the gate is locked' >&2\nexit 3\n";
/// Corrected destroy script.
const OPEN: &str = "terraform destroy -auto-approve\n";

#[tokio::test]
async fn failed_destroy_is_retried_up_to_limit_and_once_fixed() {
    scene("mended", |scene| async move {
        let counter = scene.commit_counted_object("web").await;
        let mut web = scene.resource("web");
        web["spec"]["retry"] = json!({"limit": 2, "minBackoff": "3s", "maxBackoff": "5s"});
        web["spec"]["scripts"] = json!({"destroy": {"inline": LOCKED}});
        scene.apply(&web).await;
        scene.ready("web").await;
        let uid = scene
            .begin_to_delete("web", &DeleteParams::foreground())
            .await;
        let tf = scene.wait_for_message("web", "failure 1 of 2").await;
        let ready = condition(&tf, "Ready").unwrap();
        assert_eq!(
            (ready.status.as_str(), ready.reason.as_str()),
            ("False", "ScriptFailed")
        );
        let message = &ready.message;
        for part in [
            "scripts.destroy failed with exit code 3",
            "the gate is locked",
            "next attempt at",
            "job/web-destroy-2",
        ] {
            assert!(message.contains(part), "no {part:?} in {message}");
        }
        scene.event("web", "ScriptFailed").await;

        let (reason, message) = scene.stalled("web").await;
        assert_eq!(reason, "ScriptFailed", "{message}");
        for part in [
            "the gate is locked",
            "retry limit reached (failures: 2)",
            "change the module or the resource",
            "alustan.io/abandon=true",
        ] {
            assert!(message.contains(part), "no {part:?} in {message}");
        }
        let runs = ["web-apply-1", "web-destroy-2", "web-destroy-3"];
        assert_eq!(scene.jobs("run").await, runs);
        assert_eq!(counter.creations_and_destructions(), (1, 0));
        web["spec"]["scripts"]["destroy"]["inline"] = json!(OPEN);
        scene.apply(&web).await;
        scene.deleted("web", &uid).await;
        assert_eq!(counter.creations_and_destructions(), (1, 1));
        scene.nothing_left().await;
    })
    .await;
}

#[tokio::test]
async fn abandoned_resource_leaves_its_objects_and_state() {
    scene("abandon", |scene| async move {
        scene.provider_credentials("credentials").await;
        scene
            .commit("greeting", &[("main.tf", drift::MODULE)])
            .await;
        let mut web = drift::resource(&scene, "web", "Ignore");
        web["spec"]["retry"]["limit"] = json!(1);
        web["spec"]["scripts"] = json!({"destroy": {"inline": LOCKED}});
        scene.apply(&web).await;
        scene.ready("web").await;
        let before = state(&scene, "web-state").await;
        let uid = scene
            .begin_to_delete("web", &DeleteParams::foreground())
            .await;
        let (reason, message) = scene.stalled("web").await;
        assert_eq!(reason, "ScriptFailed", "{message}");
        scene.annotate("web", alustan_api::ABANDON, "true").await;
        scene.deleted("web", &uid).await;
        let text = drift::text(&scene, "web").await;
        assert_eq!(text.as_deref(), Some("hello"));
        scene
            .until("everything but the state to go", async || {
                let (_, names) = scene.ours(&["-o", "name"]).await;
                let mut names: Vec<_> = names.lines().map(str::to_owned).collect();
                names.sort_unstable();
                let slot = |slot: u32| format!("secret/web-state-slot-{slot}");
                (names == ["secret/web-state".to_owned(), slot(0), slot(1)]).then_some(())
            })
            .await;
        assert_eq!(state(&scene, "web-state").await, before);
    })
    .await;
}

#[tokio::test]
async fn a_namespace_that_is_deleted_does_not_hang() {
    scene("namespace", |scene| async move {
        let counter = scene.commit_counted_object("web").await;
        scene.apply(&scene.resource("web")).await;
        scene.ready("web").await;
        let namespaces: Api<Namespace> = Api::all(scene.cluster.client.clone());
        let delete = ["delete", "namespace", &scene.namespace, "--wait=false"];
        let (deleted, output) = scene.cluster.output("kubectl", &delete, None).await;
        let anyway = format!(
            "kubectl label namespace {} alustan.io/holds-state-",
            scene.namespace
        );
        assert!(!deleted && output.contains(&anyway), "{output}");
        // Runs the command in the message of the refused deletion.
        scene.cluster.run("bash", &["-c", &anyway]).await;
        scene.cluster.run("kubectl", &delete).await;
        scene
            .until("the namespace to go", async || {
                let namespace = namespaces.get_opt(&scene.namespace).await.ok()?;
                namespace.is_none().then_some(())
            })
            .await;
        // No destroy run can start in a terminating namespace.
        assert_eq!(counter.creations_and_destructions(), (1, 0));
    })
    .await;
}

#[tokio::test]
async fn delete_is_refused_if_protected_and_orphans_if_requested() {
    scene("kept", |scene| async move {
        let counter = scene.commit_counted_object("web").await;
        let mut safe = scene.resource_of("safe", "web");
        safe["spec"]["deletionProtection"] = json!(true);
        let mut orphan = scene.resource_of("orphan", "web");
        orphan["spec"]["deletionPolicy"] = json!("Orphan");
        scene.apply(&safe).await;
        scene.apply(&orphan).await;
        scene.ready("safe").await;
        scene.ready("orphan").await;
        let state = scene.data("orphan-state").await;
        let foreground = DeleteParams::foreground();
        scene.delete("orphan", &foreground).await;
        assert_eq!(scene.data("orphan-state").await, state);

        let (deleted, output) = scene.try_kubectl(&["delete", "tf", "safe"]).await;
        let allow = format!(
            "kubectl patch tf safe -n {} --type merge -p '{{\"spec\":{{\"deletionProtection\":false}}}}'",
            scene.namespace
        );
        assert!(!deleted && output.contains(&allow), "{output}");
        let tf = scene.ready("safe").await;
        assert_eq!(tf.metadata.deletion_timestamp, None);
        assert_eq!(counter.creations_and_destructions(), (2, 0));
        // Runs the command in the message of the refused deletion.
        scene.cluster.run("bash", &["-c", &allow]).await;
        scene.delete("safe", &foreground).await;
        assert_eq!(counter.creations_and_destructions(), (2, 1));
    })
    .await;
}

#[tokio::test]
async fn delete_needs_nothing_but_the_pin() {
    scene("pin", |scene| async move {
        let counter = scene.commit_counted_object("web").await;
        let destroy = "[ \"$PROVIDER_KEY\" = opens ] && terraform destroy -auto-approve\n";
        scene.config_map("scripts", &[("destroy", destroy)]).await;
        scene
            .secret("provider", "Opaque", &[("PROVIDER_KEY", "opens")])
            .await;
        let mut web = scene.resource("web");
        web["spec"]["runner"] = json!({"envFromSecrets": [{"name": "provider"}]});
        let script = json!({"configMapRef": {"name": "scripts", "key": "destroy"}});
        web["spec"]["scripts"] = json!({"destroy": script});
        scene.apply(&web).await;
        scene.ready("web").await;
        scene.remove_secret("provider").await;
        scene.kubectl(&["delete", "configmap", "scripts"]).await;
        scene.remove_repositories();
        scene.delete("web", &DeleteParams::foreground()).await;
        assert_eq!(counter.creations_and_destructions(), (1, 1));
        scene.nothing_left().await;
    })
    .await;
}
