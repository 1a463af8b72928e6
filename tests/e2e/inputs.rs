//! Values from other objects: Secrets, ConfigMaps, outputs of other resources, fields of any object (`docs/development/rules.md`, rules 14
//! and 17).

use alustan_tests::{Scene, condition, scene};
use serde_json::{Value, json};

/// Module whose outputs are inputs of other resources.
const NETWORK: &str = r#"
variable "zones" { default = ["a", "b"] }
variable "id" { default = "net-1" }
output "zones" { value = var.zones }
output "count" { value = length(var.zones) }
output "id" { value = var.id }
output "token" {
  value     = "token-of-the-network"
  sensitive = true
}
"#;

/// Module with variables of type string, number and list. The expressions of its outputs fail if a variable of type number or list has a
/// value of another type.
const WEB: &str = r#"
variable "password" {}
variable "color" {}
variable "size" { default = "none" }
variable "zones" { type = list(string) }
variable "zone_count" { type = number }
variable "token" {}
variable "ids" { type = list(string) }
variable "ip" {}
variable "ports" {}
output "zones" { value = join("+", var.zones) }
output "count" { value = var.zone_count + 1 }
output "ids" { value = join("+", var.ids) }
output "ports" { value = var.ports[0] + 1 }
output "plain" { value = "${var.color} ${var.size} ${var.ip}" }
output "secrets" {
  value     = "${var.password} ${var.token}"
  sensitive = true
}
resource "terraform_data" "says" {
  input = "${var.password} ${var.token}"
  provisioner "local-exec" {
    command = "echo color=${var.color} password=${var.password} token=${var.token}"
  }
}
"#;

/// Grants the operator read access to `resource`, a resource type of Kubernetes, until the end of the test.
pub(crate) async fn grant(scene: &Scene, resource: &str) {
    let namespace = scene
        .kubectl(&[
            "get",
            "namespace",
            &scene.namespace,
            "-o",
            "jsonpath={.metadata.uid}",
        ])
        .await;
    let role = json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole",
        "metadata": {
            "name": format!("{}-{}", scene.namespace, resource.replace(['/', '.'], "-")),
            "labels": {"alustan.io/aggregate-to-controller": "true"},
            "ownerReferences": [{
                "apiVersion": "v1", "kind": "Namespace", "name": scene.namespace, "uid": namespace,
            }],
        },
        "rules": [{
            "apiGroups": [resource.split_once('/').map_or("", |(group, _)| group)],
            "resources": [resource.rsplit('/').next().unwrap()],
            "verbs": ["get", "list", "watch"],
        }],
    });
    scene.create(&role).await;
}

fn web(scene: &Scene) -> Value {
    let mut web = scene.resource("web");
    web["spec"]["variablesFrom"] = json!([
        {"configMapRef": {"name": "settings"}},
        {"secretRef": {"name": "db", "keys": {"password": "db-password"}}},
        {"terraformRef": {"name": "network", "outputs": {
            "zones": "zones", "zone_count": "count", "token": "token",
        }}},
        {"terraformRef": {
            "selector": {"matchLabels": {"role": "network"}}, "outputs": {"ids": "id"},
        }},
        {"objectRef": {"apiVersion": "v1", "kind": "Service", "name": "lb", "values": {
            "ip": "object.spec.clusterIP", "ports": "object.spec.ports.map(p, p.port)",
        }}},
    ]);
    web
}

fn service(scene: &Scene, ip: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Service",
        "metadata": {"name": "lb", "namespace": scene.namespace},
        "spec": {"clusterIP": ip, "ports": [{"port": 80}]},
    })
}

#[tokio::test]
async fn inputs_are_awaited_keep_their_types_and_start_one_run() {
    scene("inputs", |scene| async move {
        scene.commit("network", &[("main.tf", NETWORK)]).await;
        scene.commit("web", &[("main.tf", WEB)]).await;
        scene.apply(&web(&scene)).await;
        let message = scene.reason("web", "DependencyNotFound").await;
        assert!(
            message.contains(
                "spec.variablesFrom[2].terraformRef: Terraform resource network does not exist"
            ),
            "{message}"
        );
        let network = |name: &str| {
            let mut network = scene.resource_of(name, "network");
            network["metadata"]["labels"] = json!({"role": "network"});
            network
        };
        scene.apply(&network("network")).await;
        let message = scene.reason("web", "ConfigMapNotFound").await;
        assert!(
            message.contains("spec.variablesFrom[0].configMapRef: ConfigMap settings"),
            "{message}"
        );
        scene
            .config_map("settings", &[("color", "blue"), ("unused", "x")])
            .await;
        scene.reason("web", "SecretNotFound").await;
        scene.secret("db", "Opaque", &[("other", "x")]).await;
        let message = scene.reason("web", "SecretKeyNotFound").await;
        assert!(message.contains("has no key db-password"), "{message}");
        scene
            .secret("db", "Opaque", &[("db-password", "correct horse")])
            .await;
        let message = scene.reason("web", "ObjectForbidden").await;
        assert!(
            message.contains("spec.variablesFrom[4].objectRef")
                && message.contains("resources: [services]"),
            "{message}"
        );
        grant(&scene, "services").await;
        scene
            .annotate("web", alustan_api::RECONCILE_AT, "granted")
            .await;
        let message = scene.reason("web", "ObjectNotFound").await;
        assert!(message.contains("Service lb does not exist"), "{message}");
        scene.create(&service(&scene, "None")).await;

        let tf = scene.ready_after_run("web", 1).await;
        assert_eq!(condition(&tf, "DependenciesReady").unwrap().status, "True");
        let outputs = scene.data("web-outputs").await;
        assert_eq!(outputs["zones"], "a+b");
        assert_eq!(
            (outputs["count"].as_str(), outputs["ports"].as_str()),
            ("3", "81")
        );
        assert_eq!(outputs["ids"], "net-1");
        assert_eq!(outputs["plain"], "blue none None");
        assert_eq!(outputs["secrets"], "correct horse token-of-the-network");
        let log = scene.log("web-apply-1", "color=blue").await;
        assert!(
            !log.contains("correct horse") && !log.contains("token-of"),
            "{log}"
        );

        // A second resource that matches the selector starts one run. The values of the selected resources are in the order of the resource
        // names.
        let mut annex = network("annex");
        annex["spec"]["variables"] = json!({"id": "net-2"});
        scene.apply(&annex).await;
        let tf = scene.ready_after_run("web", 2).await;
        let run = &tf.status.as_ref().unwrap().runs[0];
        assert_eq!(run.result, "Done");
        assert!(
            run.trigger.starts_with("input Terraform with "),
            "{}",
            run.trigger
        );
        assert_eq!(scene.data("web-outputs").await["ids"], "net-2+net-1");

        for (name, from, reason, text) in [
            (
                "lacks",
                json!({"name": "network", "outputs": {"v": "subnets"}}),
                "OutputNotFound",
                "spec.variablesFrom[0].terraformRef.outputs: output subnets of Terraform network does not exist or is null (existing outputs: count, id, token, zones)",
            ),
            (
                "elsewhere",
                json!({"name": "network", "namespace": "default", "outputs": {"v": "id"}}),
                "CrossNamespaceReference",
                "spec.variablesFrom[0].terraformRef.namespace: default is another namespace",
            ),
        ] {
            let mut resource = scene.resource_of(name, "network");
            resource["spec"]["variablesFrom"] = json!([{"terraformRef": from}]);
            scene.apply(&resource).await;
            let message = scene.reason(name, reason).await;
            assert!(message.contains(text), "{name}: {message}");
        }
    })
    .await;
}
