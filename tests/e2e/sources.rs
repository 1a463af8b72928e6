//! Modules from sources other than a git repository of the resource.

use alustan_tests::{Scene, scene};
use serde_json::{Value, json};

/// Returns a resource whose module is from `source`.
fn with_source(scene: &Scene, name: &str, source: &Value) -> Value {
    let mut resource = scene.resource(name);
    let spec = resource["spec"].as_object_mut().unwrap();
    spec.remove("gitRepo");
    spec.insert("source".to_owned(), source.clone());
    resource
}

/// Returns a module with one object and the output `v`.
fn module(value: u32) -> String {
    format!(
        "resource \"terraform_data\" \"a\" {{ input = {value} }}\noutput \"v\" {{ value = terraform_data.a.output }}\n"
    )
}

#[tokio::test]
async fn modules_of_inline_files_are_applied_after_each_change() {
    scene("inline", |scene| async move {
        let inline = |value: u32| json!({"inline": {"files": {"main.tf": module(value)}}});
        scene.apply(&with_source(&scene, "web", &inline(1))).await;
        let status = scene.ready_after_run("web", 1).await.status.unwrap();
        let first = status.source.unwrap().revision;
        assert!(first.starts_with("sha256:"), "{first}");
        assert_eq!(scene.data("web-outputs").await["v"], "1");
        scene.apply(&with_source(&scene, "web", &inline(2))).await;
        let status = scene.ready_after_run("web", 2).await.status.unwrap();
        assert_ne!(status.source.unwrap().revision, first);
        assert_eq!(scene.data("web-outputs").await["v"], "2");
    })
    .await;
}

#[tokio::test]
async fn modules_of_an_oci_artifact_follow_the_newest_version() {
    scene("artifact", |scene| async move {
        let files = |value: u32| [("net/main.tf", module(value))];
        let first = scene.push_artifact("modules", "1.0.0", &files(1)).await;
        let source = json!({"oci": {
            "url": format!("oci://registry.alustan.test:5000/{}/modules", scene.namespace),
            "semver": "1.x", "path": "net", "interval": "5s",
        }});
        scene.apply(&with_source(&scene, "web", &source)).await;
        scene.ready_at("web", &first).await;
        assert_eq!(scene.data("web-outputs").await["v"], "1");
        scene.push_artifact("modules", "2.0.0", &files(3)).await;
        let next = scene.push_artifact("modules", "1.1.0", &files(2)).await;
        scene.ready_at("web", &next).await;
        assert_eq!(scene.data("web-outputs").await["v"], "2");
    })
    .await;
}

#[tokio::test]
async fn modules_of_a_remote_source_get_variables_and_outputs() {
    scene("remote", |scene| async move {
        let text = "variable \"size\" { type = number }\n\
                    variable \"zones\" { type = list(string) }\n\
                    variable \"other\" { default = \"unset\" }\n\
                    variable \"token\" {}\n\
                    output \"sum\" { value = \"${var.size} ${join(\",\", var.zones)} ${var.other}\" }\n\
                    output \"token\" {\n  value     = var.token\n  sensitive = true\n}\n";
        scene.commit("net", &[("main.tf", text)]).await;
        scene.secret("login", "Opaque", &[("token", "t0ken")]).await;
        let source = json!({"module": {
            "source": format!("git::{}?ref=main", scene.https("net")),
            "outputs": [{"name": "sum"}, {"name": "token", "sensitive": true}],
        }});
        let mut web = with_source(&scene, "web", &source);
        web["spec"]["variables"] = json!({"size": 3, "zones": ["a", "b"]});
        web["spec"]["variablesFrom"] = json!([{"secretRef": {"name": "login"}}]);
        scene.apply(&web).await;
        scene.ready("web").await;
        let outputs = scene.data("web-outputs").await;
        assert_eq!(outputs["sum"], "3 a,b unset");
        assert_eq!(outputs["token"], "t0ken");
    })
    .await;
}
