//! Fields for modules of existing repositories: variable files, workspace, and arguments of engine commands.

use alustan_tests::scene;
use kube::api::DeleteParams;
use serde_json::json;

/// Module that prints the command line of the engine during apply.
const MODULE: &str = r#"
variable "a" {}
variable "b" {}
variable "c" {}
resource "terraform_data" "a" {
  input = "${var.a} ${var.b} ${var.c} ${terraform.workspace}"
  provisioner "local-exec" {
    interpreter = ["bash", "-c"]
    command     = "tr '\\0' ' ' </proc/$PPID/cmdline"
  }
}
output "all" { value = terraform_data.a.output }
"#;

#[tokio::test]
async fn modules_use_var_files_workspace_and_engine_arguments() {
    scene("modules", |scene| async move {
        let mut files = vec![
            ("stack/main.tf", MODULE),
            (
                "stack/common.tfvars",
                "a = \"common\"\nb = \"common\"\nc = \"common\"\n",
            ),
            ("env/prod.tfvars", "b = \"prod\"\nc = \"prod\"\n"),
            ("env/other.tfvars", "b = \"other\"\n"),
        ];
        scene.commit("web", &files).await;
        let account = format!("--serviceaccount={}:web-runner", scene.namespace);
        let rights = [
            "--resource=secrets,leases.coordination.k8s.io",
            "--verb=get,list,create,update,delete",
        ];
        scene
            .kubectl(&[&["create", "role", "tfstate"][..], &rights].concat())
            .await;
        scene
            .kubectl(&[
                "create",
                "rolebinding",
                "tfstate",
                "--role=tfstate",
                &account,
            ])
            .await;
        let mut web = scene.resource("web");
        web["spec"]["gitRepo"]["path"] = json!("stack");
        web["spec"]["backend"] = json!({"provider": "kubernetes"});
        web["spec"]["workspace"] = json!("staging");
        web["spec"]["varFiles"] = json!(["common.tfvars", "../env/prod.tfvars"]);
        web["spec"]["variables"] = json!({"c": "own"});
        web["spec"]["engine"] = json!({"parallelism": 3, "refresh": false, "lockTimeout": "5s"});
        scene.apply(&web).await;
        scene.ready("web").await;
        assert_eq!(
            scene.data("web-outputs").await["all"],
            "common prod own staging"
        );
        scene
            .log("web-apply-1", "-parallelism=3 -lock-timeout=5000ms")
            .await;
        scene
            .kubectl(&["get", "secret", "tfstate-staging-web-state"])
            .await;

        // A variable file outside the folder of the module is part of the module; other arguments start no run.
        files[2] = ("env/prod.tfvars", "b = \"new\"\n");
        files[3] = ("env/other.tfvars", "b = \"new\"\n");
        scene.commit("web", &files).await;
        scene.ready_after_run("web", 2).await;
        assert_eq!(
            scene.data("web-outputs").await["all"],
            "common new own staging"
        );
        web["spec"]["engine"]["parallelism"] = json!(4);
        scene.apply(&web).await;
        scene.ready("web").await;
        assert_eq!(scene.run_number("web").await, 2);

        for (file, reason) in [
            ("../env/missing.tfvars", "VarFileNotFound"),
            ("../../outside.tfvars", "InvalidPath"),
        ] {
            let mut wrong = web.clone();
            wrong["spec"]["varFiles"] = json!([file]);
            scene.apply(&wrong).await;
            let message = scene.reason("web", reason).await;
            assert!(message.contains("spec.varFiles"), "{message}");
        }
        scene.apply(&web).await;
        scene.ready("web").await;
        assert_eq!(scene.run_number("web").await, 2);

        // Without `backend`, the API server does not know that the state is managed.
        let mut plain = scene.resource_of("plain", "web");
        plain["spec"]["gitRepo"]["path"] = json!("stack");
        plain["spec"]["workspace"] = json!("staging");
        scene.apply(&plain).await;
        let (reason, message) = scene.stalled("plain").await;
        assert_eq!(reason, "WorkspaceUnsupported", "{message}");
        plain["spec"]["backend"] = json!({"provider": "managed"});
        let refusal = scene.try_apply(&plain).await.unwrap_err().to_string();
        assert!(
            refusal.contains("workspace requires a backend with several workspaces"),
            "{refusal}"
        );
        scene.delete("plain", &DeleteParams::foreground()).await;
        scene.delete("web", &DeleteParams::foreground()).await;
        scene.nothing_left().await;
    })
    .await;
}

#[tokio::test]
async fn modules_call_tools_of_the_base_image() {
    scene("tools", |scene| async move {
        let module = "resource \"terraform_data\" \"a\" {\n  provisioner \"local-exec\" {\n    command = \"helm version --short\"\n  }\n}\n";
        scene.commit("web", &[("main.tf", module)]).await;
        let mut web = scene.resource("web");
        // Image of the recipe in docs/engines.md (images/tools/Dockerfile).
        let image = "registry.alustan.test:5000/alustan/tools:dev";
        web["spec"]["containerRegistry"]["baseImage"] = json!(image);
        scene.apply(&web).await;
        scene.ready("web").await;
        scene.log("web-apply-1", "(local-exec): v3.").await;
        scene.delete("web", &DeleteParams::foreground()).await;
        scene.nothing_left().await;
    })
    .await;
}
