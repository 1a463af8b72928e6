//! User scripts in place of the engine's commands.

use alustan_tests::{Counter, scene};
use kube::api::DeleteParams;
use serde_json::json;

#[tokio::test]
async fn inline_scripts_apply_and_destroy() {
    scene("inline", |scene| async move {
        let counter = Counter::start().await;
        let destroyed = format!(
            "input = [var.var1, var.var2]\n  provisioner \"local-exec\" {{\n    when = destroy\n    interpreter = \
             [\"bash\", \"-c\"]\n    command = \"{}\"\n  }}",
            counter.command("/destroyed")
        );
        let module = format!(
            "variable \"var1\" {{}}\nvariable \"var2\" {{}}\noutput \"both\" {{ value = \"${{var.var1}} ${{var.var2}}\" }}\n{}",
            counter.resource("a", "/made", &destroyed)
        );
        scene.commit("web", &[("main.tf", &module)]).await;
        let mut web = scene.resource("web");
        web["spec"]["variables"] = json!({"var1": "value1", "TF_VAR_var2": "value2"});
        web["spec"]["scripts"] = json!({
            "apply": {"inline": "echo \"bare: $var1, $TF_VAR_var2\"\nterraform apply -auto-approve\n"},
            "destroy": {"inline": "terraform destroy -auto-approve\n"},
        });
        scene.apply(&web).await;
        scene.ready("web").await;
        assert_eq!(scene.data("web-outputs").await["both"], "value1 value2");
        scene.log("web-apply-1", "bare: value1, value2").await;
        scene.delete("web", &DeleteParams::foreground()).await;
        assert_eq!((counter.count("/made"), counter.count("/destroyed")), (1, 1));
        scene.nothing_left().await;
    })
    .await;
}

#[tokio::test]
async fn changed_script_of_a_config_map_is_run_again() {
    scene("map", |scene| async move {
        let counter = Counter::start().await;
        let text = |path: &str| {
            format!(
                "#!/bin/bash\necho \"asking for {path}\"\n{}\n",
                counter.command(path)
            )
        };
        let put = async |apply: &str| {
            let data = [
                ("apply-script.sh", text(apply)),
                ("destroy-script.sh", text("/destroyed")),
            ];
            let data: Vec<_> = data
                .iter()
                .map(|(key, text)| (*key, text.as_str()))
                .collect();
            scene.config_map("terraform-scripts", &data).await;
        };
        scene.commit("web", &[("main.tf", "")]).await;
        let mut web = scene.resource("web");
        let from = |key: &str| json!({"configMapRef": {"name": "terraform-scripts", "key": key}});
        web["spec"]["scripts"] =
            json!({"apply": from("apply-script.sh"), "destroy": from("destroy-script.sh")});
        // The resource is created before the ConfigMap. Reconciliation resumes automatically.
        scene.apply(&web).await;
        scene.reason("web", "ConfigMapNotFound").await;
        put("/one").await;
        scene.ready_after_run("web", 1).await;
        scene.log("web-apply-1", "asking for /one").await;
        put("/two").await;
        scene.ready_after_run("web", 2).await;
        assert_eq!((counter.count("/one"), counter.count("/two")), (1, 1));
        scene.delete("web", &DeleteParams::foreground()).await;
        assert_eq!(counter.count("/destroyed"), 1);
    })
    .await;
}
