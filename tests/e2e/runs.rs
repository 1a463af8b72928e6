//! Records of finished runs: `TerraformRun`.

use alustan_api::{Terraform, TerraformRun};
use alustan_tests::{Scene, scene};
use kube::api::{DeleteParams, ListParams};
use serde_json::json;

use crate::approval::{approve, pending};

/// Value of a variable that the module declares as sensitive.
const SENSITIVE: &str = "correct-horse-battery";

/// Module with an object whose input has a sensitive part.
const MODULE: &str = r#"
variable "size" { type = number }
variable "password" {
  type      = string
  sensitive = true
}
resource "terraform_data" "a" {
  input = { size = var.size, password = var.password }
}
output "size" { value = var.size }
"#;

/// Object whose plan fails.
const FAILING: &str = r#"
resource "terraform_data" "b" {
  lifecycle {
    precondition {
      condition     = var.size > 5
      error_message = "The size is too small."
    }
  }
}
"#;

/// Returns the records of the namespace, sorted by run.
async fn records(scene: &Scene) -> Vec<TerraformRun> {
    let (api, parameters) = (scene.api::<TerraformRun>(), ListParams::default());
    let mut runs = api.list(&parameters).await.unwrap().items;
    runs.sort_by_key(|run| run.spec.number);
    runs
}

fn numbers(runs: &[TerraformRun]) -> Vec<i64> {
    runs.iter().map(|run| run.spec.number).collect()
}

/// Binds `user` to `ClusterRole` `alustan-viewer` in the namespace.
async fn add_viewer(scene: &Scene, user: &str) {
    let role = "--clusterrole=alustan-viewer";
    let user = format!("--user={user}");
    scene
        .kubectl(&["create", "rolebinding", "viewers", role, &user])
        .await;
}

#[tokio::test]
async fn finished_runs_are_recorded_and_readable_without_access_to_secrets() {
    Box::pin(scene("runs", |scene| async move {
        add_viewer(&scene, "viewer").await;
        let commit = scene.commit("web", &[("main.tf", MODULE)]).await;
        let mut web = scene.resource("web");
        let spec = &mut web["spec"];
        spec["approval"] = json!({"mode": "Manual"});
        spec["variables"] = json!({"size": 1, "password": SENSITIVE});
        spec["history"] = json!({"runs": 2});
        spec["retry"]["limit"] = json!(2);
        scene.apply(&web).await;
        let (id, tf) = pending(&scene, "web", None).await;
        let runs = records(&scene).await;
        let [plan] = &runs[..] else {
            panic!("{runs:#?}")
        };
        assert_eq!(plan.spec.terraform.uid, tf.metadata.uid.unwrap());
        assert_eq!(plan.spec.revision.as_ref(), Some(&commit));
        let commit = plan.spec.commit.clone().unwrap();
        assert_eq!(
            (commit.subject.as_str(), commit.author.as_str()),
            ("update", "dev")
        );
        let status = plan.status.clone().unwrap();
        assert_eq!(
            (status.result.as_str(), status.plan_id),
            ("Changes", Some(id.clone()))
        );
        assert!(
            status
                .plan
                .unwrap()
                .contains("terraform_data.a will be created")
        );
        let changes = status.changes.unwrap();
        let object = &changes.resources[0];
        assert_eq!(
            (object.address.as_str(), object.action.as_str()),
            ("terraform_data.a", "create")
        );
        let shown: Vec<_> = object
            .attributes
            .iter()
            .map(|attribute| {
                (
                    attribute.path.as_str(),
                    attribute.values.after.as_deref(),
                    attribute.values.sensitive,
                )
            })
            .collect();
        assert!(
            shown.contains(&("input.size", Some("1"), false)),
            "{shown:?}"
        );
        assert!(shown.contains(&("input.password", None, true)), "{shown:?}");

        approve(&scene, "web", &id).await;
        scene.ready("web").await;
        let runs = records(&scene).await;
        assert_eq!(numbers(&runs), [1, 2]);
        let approval = runs[1].spec.approval.clone().unwrap();
        assert_eq!(approval.plan, id);
        assert!(approval.by.is_some() && approval.at.is_some());
        let log = &runs[1].status.as_ref().unwrap().log;
        assert!(log.head.contains("Apply complete!"), "{log:?}");
        let all = serde_json::to_string(&runs).unwrap();
        assert!(!all.contains(SENSITIVE), "{all}");

        // A user without access to Secrets, Jobs and logs of pods.
        let viewer = async |arguments: &[&str]| scene.alustan_as("viewer", arguments).await;
        let table = viewer(&["runs", "web"]).await;
        for part in ["Changes", "Done", "+1 ~0 -0", &format!("approval {id}")] {
            assert!(table.contains(part), "no {part:?} in {table}");
        }
        let details = viewer(&["runs", "web", "1"]).await;
        assert!(
            details.contains("input.password: (sensitive value)"),
            "{details}"
        );
        assert!(
            viewer(&["plan", "web", "--run", "1"])
                .await
                .contains("terraform_data.a will be created")
        );
        assert!(
            viewer(&["logs", "web", "--run", "2"])
                .await
                .contains("Apply complete!")
        );
        let (allowed, answer) = scene.try_kubectl(&["get", "secrets", "--as=viewer"]).await;
        assert!(!allowed, "{answer}");

        // Retries with the same failure share a record. Only the last two records remain.
        scene
            .commit("web", &[("main.tf", &[MODULE, FAILING].concat())])
            .await;
        scene
            .wait_for_message("web", "retry limit reached (failures: 2)")
            .await;
        let runs = records(&scene).await;
        assert_eq!(numbers(&runs), [2, 3]);
        let failed = runs[1].status.as_ref().unwrap();
        assert_eq!((failed.count, failed.last_number), (2, 4));
        assert_eq!(failed.result, "Failed");
        assert!(viewer(&["runs", "web", "4"]).await.contains("2 times"));

        // The records remain when the resource is deleted.
        let uid = scene
            .begin_to_delete("web", &DeleteParams::foreground())
            .await;
        scene.deleted("web", &uid).await;
        scene.nothing_left().await;
        let runs = records(&scene).await;
        assert_eq!(numbers(&runs), [3, 5]);
        assert_eq!(runs[1].spec.kind.to_string(), "destroy");
        let tfs = scene.api::<Terraform>().list(&ListParams::default()).await;
        assert!(tfs.unwrap().items.is_empty());
    }))
    .await;
}
