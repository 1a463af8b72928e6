//! Units of Terragrunt (`spec.engine.wrapper`), with the real program.

use alustan_tests::scene;
use kube::api::DeleteParams;
use serde_json::json;

const ROOT: &str = r#"
locals { common = yamldecode(file("common.yaml")) }
inputs = {
  owner = local.common.owner
  unit  = path_relative_to_include()
}
"#;
const UNIT: &str = r#"
include "root" { path = find_in_parent_folders("root.hcl") }
terraform { source = "${get_repo_root()}/modules//app" }
inputs = { size = 2 }
"#;
const MODULE: &str = r#"
terraform {
  required_providers {
    time = { source = "hashicorp/time" }
  }
}
variable "owner" {}
variable "unit" {}
variable "size" { type = number }
resource "time_static" "created" {}
resource "terraform_data" "a" { input = "${var.owner} ${var.unit} ${var.size}" }
output "all" { value = terraform_data.a.output }
"#;

#[tokio::test]
async fn terragrunt_unit_follows_parents_and_module_of_the_repository() {
    scene("unit", |scene| async move {
        let mut files = vec![
            ("live/root.hcl", ROOT),
            ("live/common.yaml", "owner: team-a\n"),
            ("live/prod/app/terragrunt.hcl", UNIT),
            ("live/prod/other/terragrunt.hcl", "inputs = {}\n"),
            ("modules/app/main.tf", MODULE),
        ];
        scene.commit("live", &files).await;
        let mut app = scene.resource_of("app", "live");
        app["spec"]["gitRepo"]["path"] = json!("live/prod/app");
        app["spec"]["engine"] = json!({"wrapper": "terragrunt", "wrapperVersion": "1"});
        scene.apply(&app).await;
        let status = scene.ready("app").await.status.unwrap();
        assert_eq!(scene.data("app-outputs").await["all"], "team-a prod/app 2");
        let base = status.image.unwrap().base;
        assert!(base.contains("/terragrunt@sha256:"), "{base}");
        assert_eq!(status.engine.unwrap().version.split('.').next(), Some("1"));

        // A file of the parent folder is part of the unit, another unit is not.
        files[3] = ("live/prod/other/terragrunt.hcl", "inputs = { a = 1 }\n");
        files[1] = ("live/common.yaml", "owner: team-b\n");
        scene.commit("live", &files).await;
        app["spec"]["variables"] = json!({"size": 7});
        scene.apply(&app).await;
        scene
            .until("the outputs of both changes", async || {
                let outputs = scene.data("app-outputs").await;
                (outputs["all"] == "team-b prod/app 7").then_some(())
            })
            .await;

        app["spec"]["engine"]["wrapperVersion"] = json!("0.1.0");
        scene.apply(&app).await;
        let (reason, message) = scene.stalled("app").await;
        assert_eq!(reason, "EngineUnknown", "{message}");
        assert!(message.contains("with terragrunt 1."), "{message}");
        app["spec"]["scripts"] = json!({"init": {"inline": "true"}});
        let refusal = scene.try_apply(&app).await.unwrap_err().to_string();
        assert!(
            refusal.contains("engine.wrapper cannot be combined with scripts"),
            "{refusal}"
        );
        scene.delete("app", &DeleteParams::foreground()).await;
        scene.nothing_left().await;
    })
    .await;
}
