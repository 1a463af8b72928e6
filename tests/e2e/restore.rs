//! Backup, restore, and the move to another cluster, as in docs/backup.md.

use alustan_api::{State, Terraform};
use alustan_tests::{Counter, Operators, Scene, scene, scene_with_own_operators};
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, ServiceAccount};
use kube::ResourceExt;
use kube::api::{DeleteParams, Patch, PatchParams};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::approval;

const OURS: &str = "app.kubernetes.io/managed-by=alustan";

/// Objects of a backup.
struct Backup {
    resources: Value,
    secrets: Value,
    /// Objects that Velero backs up, except resources and Secrets.
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
    let (good, output) = scene
        .cluster
        .output("kubectl", &arguments, Some(&text))
        .await;
    assert!(good, "{output}");
}

/// Deletes all objects of the operator in the namespace except `PersistentVolumeClaim`s, without destroy runs. The resources must be
/// suspended.
async fn lose_everything(scene: &Scene, names: &[&str]) {
    let api = scene.api::<Terraform>();
    let edit = PatchParams::default();
    for name in names {
        scene.reason(name, "Suspended").await;
        let uid = scene
            .begin_to_delete(name, &DeleteParams::background())
            .await;
        let free = Patch::Merge(json!({"metadata": {"finalizers": null}}));
        api.patch(name, &edit, &free).await.unwrap();
        scene.deleted(name, &uid).await;
    }
    // `kubectl delete` also waits until the pods have ended: `kubectl alustan restore` is refused while a pod of the resource exists.
    let kinds = "job,pod,secret,configmap,poddisruptionbudget,rolebinding,role,serviceaccount";
    scene.kubectl(&["delete", kinds, "-l", OURS]).await;
}

/// Commands of docs/backup.md, and the files that they write.
struct Page {
    folder: TempDir,
}

impl Page {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        Self { folder }
    }

    /// Runs the code block that contains `part` in section `heading`, in the test's namespace. Replaces the placeholders in `values` by
    /// their values. Returns the output of the commands.
    async fn run(
        &self,
        scene: &Scene,
        heading: &str,
        part: &str,
        values: &[(&str, &str)],
    ) -> String {
        let page = include_str!("../../docs/backup.md");
        let block = page
            .split("\n## ")
            .map(|section| section.split_once('\n').unwrap())
            .filter(|section| section.0 == heading)
            .flat_map(|section| section.1.split("```sh\n").skip(1))
            .map(|block| block.split("```").next().unwrap())
            .find(|block| block.contains(part));
        assert!(block.is_some(), "no {part:?} in section {heading:?}");
        let block = block.unwrap().replace("NAMESPACE", &scene.namespace);
        let commands = values.iter().fold(block, |text, (placeholder, value)| {
            text.replace(placeholder, value)
        });
        let programs = Scene::programs();
        let script = format!(
            "PATH={}:$PATH; cd {}; set -euxo pipefail; {commands}",
            programs.display(),
            self.folder.path().display()
        );
        scene.cluster.run("bash", &["-c", &script]).await
    }

    /// Repeats the code block that suspends the resources, until its output lists no pod.
    async fn suspend(&self, scene: &Scene, heading: &str, values: &[(&str, &str)]) {
        scene
            .until("the end of all pods", async || {
                let part = "alustan suspend";
                let listed = self.run(scene, heading, part, values).await;
                (!listed.contains("STATUS")).then_some(())
            })
            .await;
    }
}

async fn results(scene: &Scene, name: &str) -> Vec<(i64, String)> {
    let runs = scene.ready(name).await.status.unwrap().runs;
    runs.iter()
        .map(|run| (run.number, run.result.clone()))
        .collect()
}

/// Returns lineage and serial of the managed state.
async fn head(scene: &Scene, name: &str) -> (String, i64) {
    let state: Value =
        serde_json::from_str(&scene.alustan(&["state", "pull", name]).await).unwrap();
    let lineage = state["lineage"].as_str().unwrap().to_owned();
    (lineage, state["serial"].as_i64().unwrap())
}

#[tokio::test]
async fn restore_into_the_same_namespace_recreates_nothing() {
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
        let page = Page::new();
        page.suspend(&scene, "Back up", &[]).await;
        page.run(&scene, "Back up", "secrets.json", &[]).await;

        // The volume with the local state is kept.
        lose_everything(&scene, &["web", "volume"]).await;
        page.run(&scene, "Restore", "kubectl create", &[]).await;
        for name in ["web", "volume"] {
            let message = scene.reason(name, "RestoreRequired").await;
            let how = format!("kubectl alustan restore {name} -n {}", scene.namespace);
            assert!(message.contains(&how), "{message}");
            assert!(
                !message.contains("remove") && !message.contains("delete "),
                "{message}"
            );
        }
        assert!(scene.jobs("run").await.is_empty());
        for name in ["web", "volume"] {
            let values = [("NAME", name)];
            let listed = page
                .run(&scene, "Restore", "alustan restore", &values)
                .await;
            assert!(listed.contains("RestoreRequired"), "{listed}");
        }
        page.run(&scene, "Back up", "alustan resume", &[]).await;
        for name in ["web", "volume"] {
            assert_eq!(results(&scene, name).await, [(2, "NoChanges".to_owned())]);
        }
        assert_eq!(head(&scene, "web").await, before);
        assert_eq!(counter.creations_and_destructions(), (2, 0));
        assert_eq!(scene.data("web-outputs").await["v"], "one");
        let claims = scene.api::<PersistentVolumeClaim>();
        let uid = scene.ready("volume").await.uid();
        let claim = claims.get("volume-cache").await.unwrap();
        assert_eq!(
            claim.labels().get(alustan_api::labels::UID),
            uid.as_ref(),
            "the claim with the state"
        );

        // A change of a restored resource is applied.
        web["spec"]["variables"]["v"] = json!("two");
        scene.apply(&web).await;
        scene.ready_after_run("web", 3).await;
        assert_eq!(scene.data("web-outputs").await["v"], "two");
        for name in ["web", "volume"] {
            scene.delete(name, &DeleteParams::foreground()).await;
        }
        assert_eq!(counter.creations_and_destructions(), (2, 2));
        scene.nothing_left().await;
    })
    .await;
}

#[tokio::test]
async fn restore_with_new_uids_needs_approval_of_changes() {
    scene("restore-uids", |scene| async move {
        let counter = scene.commit_counted_object("web").await;
        scene.apply(&scene.resource("web")).await;
        scene.ready("web").await;
        let backup = back_up(&scene).await;
        scene.alustan(&["suspend", "web"]).await;
        lose_everything(&scene, &["web"]).await;
        let more = format!(
            "{}{}",
            counter.counted_object("a"),
            counter.counted_object("b")
        );
        scene.commit("web", &[("main.tf", &more)]).await;

        // Restores as Velero does: the resource first, then its Secrets.
        create(&scene, backup.resources).await;
        let message = scene.reason("web", "RestoreRequired").await;
        assert!(message.contains("restore the Secrets web-run"), "{message}");
        create(&scene, backup.others).await;
        create(&scene, backup.secrets).await;
        scene
            .wait_for_message(
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
        assert_eq!(
            (status.run, counter.creations_and_destructions()),
            (Some(2), (1, 0))
        );
        scene.event("web", "Restored").await;
        approval::approve(&scene, "web", &plan).await;
        scene.ready_after_run("web", 3).await;
        assert_eq!(counter.creations_and_destructions(), (2, 0));
        let account = scene
            .api::<ServiceAccount>()
            .get("web-runner")
            .await
            .unwrap();
        let uid = scene.ready("web").await.uid();
        assert_eq!(account.labels().get(alustan_api::labels::UID), uid.as_ref());
        scene.delete("web", &DeleteParams::foreground()).await;
        assert_eq!(counter.creations_and_destructions(), (2, 2));
        scene.nothing_left().await;
    })
    .await;
}

mod own_operators {
    use super::*;

    /// Two operators simulate two clusters. Each has its own signing key and watches only its own namespace.
    #[tokio::test]
    async fn restore_into_another_cluster_follows_the_documentation() {
        scene_with_own_operators("restore-from", |old| async move {
            let _operator = Operators::of(&old).await.start(None);
            let counter = old.commit_counted_object("web").await;
            old.aws_with_secret(&old.namespace, "locks").await;
            let mut web = old.resource("web");
            web["spec"]["approval"] = json!({"mode": "Manual"});
            let mut bucket = old.resource_of("bucket", "web");
            bucket["spec"]["backend"] = old.s3_backend(&old.namespace, "locks", "web");
            old.apply(&web).await;
            old.apply(&bucket).await;
            let (id, _) = approval::pending(&old, "web", None).await;
            let page = Page::new();
            let values = [("PLAN-ID", id.as_str()), ("NAME", "web")];
            page.run(&old, "Restore", "alustan approve", &values).await;
            old.ready("web").await;
            old.ready("bucket").await;
            let before = head(&old, "web").await;

            let from = old.clone();
            old.beside("restore-to".to_owned(), async move |new| {
                new.aws_with_secret(&from.namespace, "locks").await;
                let _operator = Operators::of(&new).await.start(None);
                for name in ["web", "bucket"] {
                    let (old, values) = (&from, [("NAME", name)]);
                    let section = "Move to another cluster";
                    page.suspend(old, section, &values).await;
                    page.run(&new, "Restore", "kubectl create", &values).await;
                    new.reason(name, "RestoreRequired").await;
                    page.run(&new, "Restore", "alustan restore", &values).await;
                    new.reason(name, "Suspended").await;
                    page.run(old, section, "Orphan", &values).await;
                    page.run(&new, section, "alustan resume", &values).await;
                    let results = results(&new, name).await;
                    assert!(
                        matches!(&*results, [(2 | 3, result)] if result == "NoChanges"),
                        "{results:?}"
                    );
                }
                assert_eq!(head(&new, "web").await, before);
                assert_eq!(counter.creations_and_destructions(), (2, 0));
                for name in ["web", "bucket"] {
                    new.delete(name, &DeleteParams::foreground()).await;
                }
                assert_eq!(counter.creations_and_destructions(), (2, 2));
                new.nothing_left().await;
            })
            .await;
        })
        .await;
    }
}
