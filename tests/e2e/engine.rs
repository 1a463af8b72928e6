//! Engines: selected from the operator's catalogue, pinned, switched only with `allowSwitch`, and run without network access.

use alustan_api::{Engine, EngineName};
use alustan_tests::{Counter, Scene, condition, node, scene, scene_alone};
use kube::api::DeleteParams;
use serde_json::{Value, json};

fn module(counter: &Counter) -> String {
    format!(
        "output \"v\" {{ value = 1 }}\n{}",
        counter.counted_object("a")
    )
}

fn on(scene: &Scene, name: &str, engine: &Value) -> Value {
    let mut resource = scene.resource(name);
    resource["spec"]["engine"] = engine.clone();
    resource
}

/// Returns the lineage of a managed state.
async fn lineage(scene: &Scene, name: &str) -> String {
    let pointer = &scene.data(&format!("{name}-state")).await["pointer"];
    let pointer: Value = serde_json::from_str(pointer).unwrap();
    pointer["current"]["lineage"].as_str().unwrap().to_owned()
}

async fn engine(scene: &Scene, name: &str) -> Engine {
    let status = scene.ready(name).await.status.unwrap();
    status.engine.unwrap()
}

#[tokio::test]
async fn engine_switch_needs_permission_and_keeps_the_state() {
    scene("switch", |scene| async move {
        let counter = Counter::start().await;
        scene.commit("web", &[("main.tf", &module(&counter))]).await;
        let first = json!({"name": "terraform"});
        let next = json!({"name": "opentofu"});
        scene.apply(&on(&scene, "web", &first)).await;
        assert_eq!(engine(&scene, "web").await.name, EngineName::Terraform);
        let made = lineage(&scene, "web").await;
        scene.apply(&on(&scene, "web", &next)).await;
        let (reason, message) = scene.stalled("web").await;
        assert_eq!(reason, "EngineChangeNotAllowed", "{message}");
        assert!(
            message.contains("the last apply used terraform 1."),
            "{message}"
        );
        assert_eq!(scene.run_number("web").await, 1);

        let mut allowed = next.clone();
        allowed["allowSwitch"] = json!(true);
        scene.apply(&on(&scene, "web", &allowed)).await;
        scene.ready_after_run("web", 2).await;
        let current = engine(&scene, "web").await;
        assert_eq!(current.name, EngineName::Opentofu);
        assert!(current.version.starts_with("1."), "{current}");
        scene.log("web-apply-2", "OpenTofu").await;
        let status = scene.ready("web").await.status.unwrap();
        let base = status.image.unwrap().base;
        assert!(base.contains("/opentofu@sha256:"), "{base}");
        assert_eq!(lineage(&scene, "web").await, made);

        // The full version number selects the same image as the engine name alone.
        let whole = json!({"name": "opentofu", "version": current.version});
        scene.apply(&on(&scene, "web", &whole)).await;
        assert_eq!(engine(&scene, "web").await, current);
        assert_eq!(scene.run_number("web").await, 2);
        assert_eq!(scene.jobs("build").await.len(), 2);

        let unknown = json!({"name": "opentofu", "version": "0.1.0"});
        scene.apply(&on(&scene, "web", &unknown)).await;
        let (reason, message) = scene.stalled("web").await;
        assert_eq!(reason, "EngineUnknown", "{message}");
        assert!(message.contains(&current.to_string()), "{message}");
        assert_eq!(counter.creations_and_destructions(), (1, 0));
        scene.delete("web", &DeleteParams::foreground()).await;
        assert_eq!(counter.creations_and_destructions(), (1, 1));
        scene.nothing_left().await;
    })
    .await;
}

/// Module with a provider, a module from another repository, and a network probe on creation and destruction. `network` is the
/// expected result: `true`, `false` or `either`.
fn far_module(scene: &Scene) -> String {
    let url = scene.https("part");
    format!(
        r#"
terraform {{
  required_providers {{
    time = {{ source = "hashicorp/time" }}
  }}
}}
variable "network" {{}}
module "part" {{
  source = "git::{url}?ref=main"
  value  = var.network
}}
resource "time_static" "now" {{
  triggers = {{ network = var.network }}
}}
resource "terraform_data" "proof" {{
  input            = var.network
  triggers_replace = var.network
  provisioner "local-exec" {{
    interpreter = ["bash", "-c"]
    command     = "{probe}"
  }}
  provisioner "local-exec" {{
    when        = destroy
    interpreter = ["bash", "-c"]
    command     = "{probe}"
  }}
}}
output "v" {{ value = module.part.value }}
"#,
        probe = "found=false; timeout 5 git ls-remote URL >/dev/null 2>&1 && found=true; \
                 timeout 5 bash -c 'exec 3<>/dev/tcp/NODE/53' 2>/dev/null && found=true; \
                 echo network: $found; [ $found = true ] || [ ${self.input} != true ]; \
                 [ $found = false ] || [ ${self.input} != false ]"
            .replace("URL", &url)
            .replace("NODE", &node(53).ip().to_string())
    )
}

/// Tests that run while no other test runs: see `scene_alone`.
mod alone {
    use super::*;

    #[tokio::test]
    async fn engine_runs_offline_with_all_content_in_the_image() {
        scene_alone("offline", |scene| async move {
            let part =
                "variable \"value\" {}\noutput \"value\" { value = \"from afar: ${var.value}\" }\n";
            scene.commit("part", &[("main.tf", part)]).await;
            scene
                .commit("web", &[("main.tf", &far_module(&scene))])
                .await;
            let with = |network: &str| {
                let mut resource = scene.resource("web");
                resource["spec"]["variables"] = json!({"network": network});
                resource
            };
            // With a network, the probe must detect the network.
            scene.apply(&with("true")).await;
            scene.ready("web").await;
            assert_eq!(scene.data("web-outputs").await["v"], "from afar: true");
            scene.log("web-apply-1", "network: true").await;
            // Run 2 creates an object that run 3 replaces without a network. The probe of this object accepts both results.
            scene.apply(&with("either")).await;
            scene.ready_after_run("web", 2).await;

            scene.cluster.stop(&["registry"]).await;
            let outage = scene.cluster.disconnect_pods().await;
            scene.apply(&with("false")).await;
            scene.ready_after_run("web", 3).await;
            assert_eq!(scene.data("web-outputs").await["v"], "from afar: false");
            scene.log("web-apply-3", "network: false").await;
            scene
                .wait("web", "the repository to be missed", |tf| {
                    condition(tf, "SourceReady")
                        .is_some_and(|condition| condition.status == "False")
                })
                .await;
            // The network stays disconnected, because the probe of the object that run 3 created expects no network on destruction.
            scene.delete("web", &DeleteParams::foreground()).await;
            scene.nothing_left().await;
            drop(outage);
        })
        .await;
    }
}
