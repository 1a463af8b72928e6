//! Backup, restore, and the move to another cluster, as in docs/backup.md.

use alustan_api::{State, Terraform};
use alustan_tests::{Counter, Scene, scene};
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, ServiceAccount};
use kube::ResourceExt;
use kube::api::{DeleteParams, Patch, PatchParams};
use serde_json::{Value, json};

use crate::approval;

const OURS: &str = "app.kubernetes.io/managed-by=alustan";

/// Objects of a backup.
struct Backup {
    resources: Value,
    secrets: Value,
    /// Other objects that Velero backs up.
    others: Value,
}

async fn objects(scene: &Scene, arguments: &[&str]) -> Value {
    let arguments = [&["get"], arguments, &["-o", "json"]].concat();
    serde_json::from_str(&scene.kubectl(&arguments).await).unwrap()
}

async fn back_up(scene: &Scene) -> Backup {
    Backup {
        resources: objects(scene, &["tf"]).await,
        secrets: objects(scene, &["secrets", "-l", OURS]).await,
        others: objects(
            scene,
            &["sa,role,rolebinding,poddisruptionbudget", "-l", OURS],
        )
        .await,
    }
}

/// Creates the objects of `list` as a restore does: with new uids and without status.
async fn create(scene: &Scene, mut list: Value) {
    for object in list["items"].as_array_mut().unwrap() {
        object.as_object_mut().unwrap().remove("status");
        let metadata = object["metadata"].as_object_mut().unwrap();
        let kept = ["name", "labels", "annotations", "finalizers"];
        metadata.retain(|field, _| kept.contains(&field.as_str()));
    }
    let arguments = ["create", "-n", &scene.namespace, "-f", "-"];
    let text = list.to_string();
    let (good, said) = scene
        .cluster
        .output("kubectl", &arguments, Some(&text))
        .await;
    assert!(good, "{said}");
}

/// Deletes everything of the operator in the namespace, except claims, without a destroy.
async fn lose_everything(scene: &Scene, names: &[&str]) {
    let api = scene.api::<Terraform>();
    let edit = PatchParams::default();
    for name in names {
        let suspended = Patch::Merge(json!({"spec": {"suspend": true}}));
        api.patch(name, &edit, &suspended).await.unwrap();
        scene.reason(name, "Suspended").await;
        let uid = scene
            .begin_to_delete(name, &DeleteParams::background())
            .await;
        let free = Patch::Merge(json!({"metadata": {"finalizers": null}}));
        api.patch(name, &edit, &free).await.unwrap();
        scene.deleted(name, &uid).await;
    }
    // kubectl waits until the pods have ended: the command refuses a restore before.
    let kinds = "job,pod,secret,configmap,poddisruptionbudget,rolebinding,role,serviceaccount";
    scene.kubectl(&["delete", kinds, "-l", OURS]).await;
}

async fn results(scene: &Scene, name: &str) -> Vec<(i64, String)> {
    let runs = scene.ready(name).await.status.unwrap().runs;
    let runs = runs.iter().map(|run| (run.number, run.result.clone()));
    runs.collect()
}

/// Lineage and serial number of the managed state.
async fn head(scene: &Scene, name: &str) -> (String, i64) {
    let state: Value =
        serde_json::from_str(&scene.alustan(&["state", "pull", name]).await).unwrap();
    let lineage = state["lineage"].as_str().unwrap().to_owned();
    (lineage, state["serial"].as_i64().unwrap())
}

#[tokio::test]
async fn restore_in_the_same_namespace_after_loss_makes_nothing_twice() {
    scene("restore-same", |scene| async move {
        let counter = Counter::start().await;
        scene.commit("web", &[("main.tf", &counter.module())]).await;
        let mut web = scene.resource("web");
        web["spec"]["variables"] = json!({"v": "one"});
        let mut volume = scene.resource_of("volume", "web");
        volume["spec"]["variables"] = json!({"v": "one"});
        volume["spec"]["backend"] = json!({"provider": "local"});
        scene.apply(&web).await;
        scene.apply(&volume).await;
        scene.ready("web").await;
        scene.ready("volume").await;
        let before = head(&scene, "web").await;
        let Backup { secrets, .. } = back_up(&scene).await;

        // The volume of the local state is not lost.
        lose_everything(&scene, &["web", "volume"]).await;
        create(&scene, secrets).await;
        // As from a repository of manifests.
        scene.apply(&web).await;
        scene.apply(&volume).await;
        for name in ["web", "volume"] {
            let told = scene.reason(name, "RestoreRequired").await;
            let how = format!("kubectl alustan restore {name} -n {}", scene.namespace);
            assert!(told.contains(&how), "{told}");
            assert!(
                !told.contains("remove") && !told.contains("delete "),
                "{told}"
            );
        }
        assert!(scene.jobs("run").await.is_empty());
        for name in ["web", "volume"] {
            scene.alustan(&["restore", name]).await;
            assert_eq!(results(&scene, name).await, [(2, "NoChanges".to_owned())]);
        }
        assert_eq!(head(&scene, "web").await, before);
        assert_eq!(counter.lives(), (2, 0));
        assert_eq!(scene.data("web-outputs").await["v"], "one");
        let claims = scene.api::<PersistentVolumeClaim>();
        let uid = scene.ready("volume").await.uid();
        let claim = claims.get("volume-cache").await.unwrap();
        assert_eq!(
            claim.labels().get(alustan_api::labels::UID),
            uid.as_ref(),
            "the claim with the state"
        );

        // From then on the resource is as any other.
        web["spec"]["variables"]["v"] = json!("two");
        scene.apply(&web).await;
        scene.ready_after_run("web", 3).await;
        assert_eq!(scene.data("web-outputs").await["v"], "two");
        for name in ["web", "volume"] {
            scene.delete(name, &DeleteParams::foreground()).await;
        }
        assert_eq!(counter.lives(), (2, 2));
        scene.nothing_left().await;
    })
    .await;
}

#[tokio::test]
async fn restore_with_new_uids_asks_before_changes() {
    scene("restore-uids", |scene| async move {
        let counter = Counter::start().await;
        scene
            .commit("web", &[("main.tf", &counter.life("a"))])
            .await;
        scene.apply(&scene.resource("web")).await;
        scene.ready("web").await;
        let backup = back_up(&scene).await;
        lose_everything(&scene, &["web"]).await;
        let claims = scene.api::<PersistentVolumeClaim>();
        let how = DeleteParams::background();
        claims.delete("web-cache", &how).await.unwrap();
        let more = format!("{}{}", counter.life("a"), counter.life("b"));
        scene.commit("web", &[("main.tf", &more)]).await;

        // As Velero restores it, with the resource first.
        create(&scene, backup.resources).await;
        let told = scene.reason("web", "RestoreRequired").await;
        assert!(told.contains("restore the Secrets web-run"), "{told}");
        create(&scene, backup.others).await;
        create(&scene, backup.secrets).await;
        scene
            .said(
                "web",
                "Secret web-run is the run record of an earlier resource",
            )
            .await;
        scene.alustan(&["restore", "web"]).await;
        let (plan, tf) = approval::pending(&scene, "web", None).await;
        let status = tf.status.unwrap();
        assert_eq!(status.state, State::AwaitingApproval);
        for part in [
            "the resource was restored from a backup",
            "+1 ~0 -0: create terraform_data.b",
        ] {
            assert!(
                status.message.contains(part),
                "no {part:?} in {}",
                status.message
            );
        }
        assert_eq!((status.run, counter.lives()), (Some(2), (1, 0)));
        scene.event("web", "Restored").await;
        approval::approve(&scene, "web", &plan).await;
        scene.ready_after_run("web", 3).await;
        assert_eq!(counter.lives(), (2, 0));
        let account = scene
            .api::<ServiceAccount>()
            .get("web-runner")
            .await
            .unwrap();
        let uid = scene.ready("web").await.uid();
        assert_eq!(account.labels().get(alustan_api::labels::UID), uid.as_ref());
        scene.delete("web", &DeleteParams::foreground()).await;
        assert_eq!(counter.lives(), (2, 2));
        scene.nothing_left().await;
    })
    .await;
}

#[tokio::test]
async fn restore_in_another_namespace_keeps_state_and_lineage() {
    scene("restore-from", |old| async move {
        let counter = Counter::start().await;
        old.commit("web", &[("main.tf", &counter.life("a"))]).await;
        old.apply(&old.resource("web")).await;
        old.ready("web").await;
        old.alustan(&["suspend", "web"]).await;
        old.reason("web", "Suspended").await;
        let before = head(&old, "web").await;
        let Backup {
            resources, secrets, ..
        } = back_up(&old).await;

        let lives = counter.clone();
        let from = old.clone();
        old.beside("restore-to".to_owned(), async move |new| {
            create(&new, secrets).await;
            create(&new, resources).await;
            // Both in one cluster: the state still belongs to the old one.
            let told = new.reason("web", "StateConflict").await;
            assert!(
                told.contains("in another namespace, which still exists"),
                "{told}"
            );
            let orphan = Patch::Merge(json!({"spec": {"deletionPolicy": "Orphan"}}));
            let api = from.api::<Terraform>();
            api.patch("web", &PatchParams::default(), &orphan)
                .await
                .unwrap();
            from.delete("web", &DeleteParams::foreground()).await;

            // The condition is refreshed every minute.
            new.reason("web", "RestoreRequired").await;
            new.alustan(&["restore", "web"]).await;
            new.reason("web", "Suspended").await;
            assert_eq!(head(&new, "web").await, before);
            new.alustan(&["resume", "web"]).await;
            assert_eq!(results(&new, "web").await, [(2, "NoChanges".to_owned())]);
            assert_eq!((head(&new, "web").await, lives.lives()), (before, (1, 0)));
            new.delete("web", &DeleteParams::foreground()).await;
            assert_eq!(lives.lives(), (1, 1));
            new.nothing_left().await;
        })
        .await;
    })
    .await;
}
