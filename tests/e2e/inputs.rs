//! Values from elsewhere: Secrets, ConfigMaps, outputs of others, fields of any object (rules 14 and 17).

use alustan_tests::{Scene, condition, scene};
use serde_json::{Value, json};

/// What others take.
const NETWORK: &str = r#"
variable "zones" { default = ["a", "b"] }
output "zones" { value = var.zones }
output "count" { value = length(var.zones) }
output "id" { value = "net-1" }
output "token" {
  value     = "token-of-the-network"
  sensitive = true
}
"#;

/// Types matter: a text is no list, and no number.
const WEB: &str = r#"
variable "password" {}
variable "color" {}
variable "size" { default = "none" }
variable "zones" { type = list(string) }
variable "zone_count" { type = number }
variable "token" {}
variable "ip" {}
variable "ports" {}
output "zones" { value = join("+", var.zones) }
output "count" { value = var.zone_count + 1 }
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

/// Lets the operator read objects of a kind, as long as the scene lasts.
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
async fn inputs_of_every_kind_are_waited_for_keep_their_types_and_cause_one_run() {
    scene("inputs", |scene| async move {
        scene.commit("network", &[("main.tf", NETWORK)]).await;
        scene.commit("web", &[("main.tf", WEB)]).await;
        scene.apply(&web(&scene)).await;
        let message = scene.reason("web", "DependencyNotFound").await;
        assert!(
            message.contains(
                "spec.variablesFrom[2].terraformRef: there is no Terraform resource network"
            ),
            "{message}"
        );
        scene.apply(&scene.resource("network")).await;
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
            message.contains("spec.variablesFrom[3].objectRef")
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
        assert_eq!(outputs["plain"], "blue none None");
        assert_eq!(outputs["secrets"], "correct horse token-of-the-network");
        let log = scene.log("web-apply-1", "color=blue").await;
        assert!(
            !log.contains("correct horse") && !log.contains("token-of"),
            "{log}"
        );

        // One change, one run; what is not used is none.
        scene
            .config_map(
                "settings",
                &[("color", "blue"), ("size", "big"), ("unused", "x")],
            )
            .await;
        let tf = scene.ready_after_run("web", 2).await;
        let run = &tf.status.as_ref().unwrap().runs[0];
        assert_eq!(
            (run.trigger.as_str(), run.result.as_str()),
            ("input ConfigMap settings", "Done")
        );
        assert_eq!(scene.data("web-outputs").await["plain"], "blue big None");

        // The next one is not that soon.
        let mut network = scene.resource("network");
        network["spec"]["variables"] = json!({"zones": ["c"]});
        scene.apply(&network).await;
        let message = scene.reason("web", "InputChanged").await;
        assert!(
            message.contains("Terraform network changed again; the next run is at"),
            "{message}"
        );
        let tf = scene.ready_after_run("web", 3).await;
        let run = &tf.status.as_ref().unwrap().runs[0];
        assert_eq!(
            (run.trigger.as_str(), run.result.as_str()),
            ("input Terraform network", "Done")
        );
        assert_eq!(scene.data("web-outputs").await["zones"], "c");
    })
    .await;
}

#[tokio::test]
async fn inputs_by_selector_are_lists_that_grow_with_the_stack() {
    scene("selector", |scene| async move {
        let cluster = "variable \"ip\" {}\noutput \"ip\" { value = var.ip }\n";
        let endpoint = "variable \"ips\" { type = list(string) }\noutput \"all\" { value = join(\" \", var.ips) }\n";
        scene.commit("cluster", &[("main.tf", cluster)]).await;
        scene.commit("endpoint", &[("main.tf", endpoint)]).await;
        let mut shared = scene.resource("endpoint");
        shared["spec"]["variablesFrom"] = json!([{"terraformRef": {
            "selector": {"matchLabels": {"role": "cluster"}}, "outputs": {"ips": "ip"},
        }}]);
        scene.apply(&shared).await;
        let message = scene.reason("endpoint", "DependencyNotFound").await;
        assert!(message.contains("spec.variablesFrom[0].terraformRef.selector"), "{message}");
        let member = |name: &str, ip: &str| {
            let mut cluster = scene.resource_of(name, "cluster");
            cluster["metadata"]["labels"] = json!({"role": "cluster"});
            cluster["spec"]["variables"] = json!({"ip": ip});
            cluster
        };
        for (name, ip) in [("bravo", "10.0.0.2"), ("alpha", "10.0.0.1")] {
            scene.apply(&member(name, ip)).await;
        }
        scene.ready("endpoint").await;
        assert_eq!(scene.data("endpoint-outputs").await["all"], "10.0.0.1 10.0.0.2");
        let before = scene.run_number("endpoint").await;
        scene.apply(&member("charlie", "10.0.0.3")).await;
        scene.ready_after_run("endpoint", before + 1).await;
        assert_eq!(scene.data("endpoint-outputs").await["all"], "10.0.0.1 10.0.0.2 10.0.0.3");
    })
    .await;
}

#[tokio::test]
async fn inputs_that_cannot_be_are_told_with_reason_and_field() {
    scene("noinputs", |scene| async move {
        scene.commit("network", &[("main.tf", NETWORK)]).await;
        scene.apply(&scene.resource("network")).await;
        scene.config_map("there", &[("key", "value")]).await;
        scene.config_map("large", &[("key", &"x".repeat(400_000))]).await;
        let object = |values: Value| json!({"objectRef": {
            "apiVersion": "v1", "kind": "ConfigMap", "name": "there", "values": values,
        }});
        let cases = [
            ("output", json!({"terraformRef": {"name": "network", "outputs": {"v": "subnets"}}}),
             "OutputNotFound", "spec.variablesFrom[0].terraformRef.outputs: Terraform network has no output subnets, or it is null (it has: count, id, token, zones)"),
            ("elsewhere", json!({"terraformRef": {"name": "network", "namespace": "default", "outputs": {"v": "id"}}}),
             "CrossNamespaceReference", "spec.variablesFrom[0].terraformRef.namespace: default is another namespace"),
            ("syntax", object(json!({"v": "object.data."})),
             "InvalidExpression", "spec.variablesFrom[0].objectRef.values.v: it is no expression in CEL"),
            ("kind", json!({"objectRef": {"apiVersion": "example.com/v1", "kind": "Nothing", "name": "x", "values": {"v": "object.x"}}}),
             "KindNotFound", "spec.variablesFrom[0].objectRef: the cluster has no kind Nothing of example.com/v1"),
            ("field", object(json!({"v": "object.data.gone"})),
             "FieldNotFound", "spec.variablesFrom[0].objectRef.values.v: ConfigMap there has no such field yet"),
            ("large", json!({"configMapRef": {"name": "large"}}),
             "InputTooLarge", "spec.variablesFrom[0]: with ConfigMap large the values have 400002 bytes"),
            ("missing", json!({"secretRef": {"name": "gone"}}),
             "SecretNotFound", "spec.variablesFrom[0].secretRef: Secret gone does not exist"),
        ];
        for (name, from, _, _) in &cases {
            let mut resource = scene.resource_of(name, "network");
            resource["spec"]["variablesFrom"] = json!([from]);
            scene.apply(&resource).await;
        }
        scene.ready("network").await;
        for (name, _, reason, text) in &cases {
            let message = scene.reason(name, reason).await;
            assert!(message.contains(text), "{name}: {message}");
        }
        // What is optional is not missed.
        let mut optional = scene.resource_of("optional", "network");
        optional["spec"]["variablesFrom"] = json!([{"secretRef": {"name": "gone", "optional": true}}]);
        scene.apply(&optional).await;
        scene.ready("optional").await;
    })
    .await;
}
