//! Private registries of modules and providers (`spec.terraformRegistries`).

use alustan_tests::{
    Canaries, Certificate, Scene, Sweep, TerraformRegistry, condition, host, scene,
};
use kube::api::DeleteParams;
use serde_json::{Value, json};

use crate::canary::is_nowhere_else;

/// Creates a certificate for [`host`] that the authority of the dev cluster signs. Builds trust this authority.
async fn certificate(scene: &Scene) -> Certificate {
    let folder = tempfile::tempdir().unwrap();
    let script = "cd \"$0\" && \
        openssl req -new -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -keyout key -subj /CN=registry -out request 2>/dev/null && \
        echo \"subjectAltName=IP:$1\" >extensions && \
        openssl x509 -req -in request -CA \"$2/ca.crt\" -CAkey \"$2/ca.key\" -set_serial \"0x$(openssl rand -hex 8)\" -days 2 \
          -extfile extensions -out certificate 2>/dev/null";
    let path = folder.path().to_str().unwrap();
    let authority = scene.cluster.folder.join("pki");
    let host = host().to_string();
    let arguments = ["-c", script, path, &host, authority.to_str().unwrap()];
    scene.cluster.run("bash", &arguments).await;
    let read = |name: &str| std::fs::read_to_string(folder.path().join(name)).unwrap();
    Certificate {
        certificate: read("certificate"),
        key: read("key"),
    }
}

/// Returns the program of the provider `time`.
async fn provider(scene: &Scene) -> Vec<u8> {
    let script =
        ". hack/lib/common.sh && hack/tools/build provider-time >&2 && tool_bin provider-time";
    let folder = scene.cluster.run("bash", &["-c", script]).await;
    let program = std::path::Path::new(folder.trim()).join("terraform-provider-time");
    std::fs::read(program).unwrap()
}

/// Starts a registry with the module `e2e/shared/null` and the provider `e2e/time`. Commits a module `web` that uses both.
async fn registry(scene: &Scene, token: &str) -> TerraformRegistry {
    let registry =
        TerraformRegistry::start(&host().to_string(), token, &certificate(scene).await).await;
    registry.publish_module(
        "e2e/shared/null",
        "output \"name\" { value = \"shared\" }\n",
    );
    registry.publish_provider("e2e/time", &provider(scene).await);
    let host = &registry.host;
    let module = format!(
        "terraform {{\n  required_providers {{\n    time = {{ source = \"{host}/e2e/time\" }}\n  }}\n}}\n\
         module \"shared\" {{\n  source  = \"{host}/e2e/shared/null\"\n  version = \"1.0.0\"\n}}\n\
         resource \"time_static\" \"a\" {{}}\noutput \"name\" {{ value = module.shared.name }}\n"
    );
    scene.commit("web", &[("main.tf", &module)]).await;
    registry
}

/// Adds an entry to `spec.terraformRegistries`.
fn with_registry(mut resource: Value, host: &str, secret: &str) -> Value {
    let entry = json!({"host": host, "secretRef": {"name": secret}});
    match resource["spec"]["terraformRegistries"].as_array_mut() {
        Some(entries) => entries.push(entry),
        None => resource["spec"]["terraformRegistries"] = json!([entry]),
    }
    resource
}

#[tokio::test]
async fn registries_tokens_are_in_no_layer_log_event_or_status() {
    scene("registries", |scene| async move {
        let mut canaries = Canaries::default();
        let sweep = Sweep::begin(&scene.cluster, &scene.namespace).await;
        let (token, wrong) = (canaries.plain("token"), canaries.plain("wrong"));
        let registry = registry(&scene, &token).await;
        scene.secret("tokens", "Opaque", &[("token", &token)]).await;
        scene.secret("wrong", "Opaque", &[("token", &wrong)]).await;

        let mut append = scene.resource_of("append", "web");
        append["spec"]["containerRegistry"]["builder"] = json!({"kind": "Append"});
        let mut kaniko = scene.resource_of("kaniko", "web");
        kaniko["spec"]["containerRegistry"]["builder"] = json!({"kind": "Kaniko"});
        for resource in [append, kaniko] {
            let name = resource["metadata"]["name"].as_str().unwrap().to_owned();
            scene
                .apply(&with_registry(resource, &registry.host, "tokens"))
                .await;
            scene.ready(&name).await;
        }
        assert!(registry.accepted("/v1/modules/") > 0);
        assert!(registry.accepted("/v1/providers/") > 0);

        let mut refused = scene.resource_of("refused", "web");
        refused["spec"]["retry"]["limit"] = json!(1);
        scene
            .apply(&with_registry(refused, &registry.host, "wrong"))
            .await;
        let (reason, message) = scene.stalled("refused").await;
        assert_eq!(reason, "TerraformRegistryUnauthorized", "{message}");

        for name in ["append", "kaniko", "refused"] {
            scene.delete(name, &DeleteParams::foreground()).await;
        }
        scene.nothing_left().await;
        let allowed: [(&str, &[&str]); 2] =
            [("token", &["tokens token"]), ("wrong", &["wrong token"])];
        is_nowhere_else(&scene, sweep, &canaries, &allowed).await;
    })
    .await;
}

#[tokio::test]
async fn registries_wrong_token_is_reported_and_replaced_at_once() {
    scene("registries-wrong", |scene| async move {
        let registry = registry(&scene, "right-token-0123456789").await;
        let wrong = [("token", "wrong-token-0123456789")];
        scene.secret("tokens", "Opaque", &wrong).await;
        let mut web = with_registry(scene.resource("web"), &registry.host, "tokens");
        web["spec"]["retry"] = json!({"minBackoff": "30m", "maxBackoff": "30m"});
        let web = with_registry(web, "unused.alustan.test", "tokens");
        scene.apply(&web).await;
        let message = scene.reason("web", "TerraformRegistryUnauthorized").await;
        let advice = format!(
            "spec.terraformRegistries[0].secretRef: registry {} refused the token",
            registry.host
        );
        assert!(message.contains(&advice), "{message}");
        assert!(!message.contains("wrong-token"), "{message}");

        let right = [("token", "right-token-0123456789")];
        scene.secret("tokens", "Opaque", &right).await;
        let tf = scene.ready("web").await;
        let message = &condition(&tf, "Ready").unwrap().message;
        let unused = "uses no module and no provider of spec.terraformRegistries[1].host (unused.alustan.test)";
        assert!(message.contains(unused), "{message}");
    })
    .await;
}

#[tokio::test]
async fn registries_source_on_the_host_is_refused_before_a_build() {
    scene("registries-host", |scene| async move {
        let module = "module \"stolen\" {\n  source = \"/alustan-registries\"\n}\n";
        scene.commit("web", &[("main.tf", module)]).await;
        scene.apply(&scene.resource("web")).await;
        let (reason, message) = scene.stalled("web").await;
        assert_eq!(reason, "ModuleSourceNotAllowed", "{message}");
        assert!(
            message.contains("main.tf:1: module \"stolen\""),
            "{message}"
        );
        assert!(scene.jobs("build").await.is_empty());
    })
    .await;
}
