//! The CRD as a whole: the source of `kubectl explain` and `kubectl get`.

use alustan_api::Terraform;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::CustomResourceExt;
use kube::api::Api;
use serde_json::Value;

use crate::server::Server;

/// Collects every field below `schema`, with its path.
fn fields(schema: &Value, path: &str, all: &mut Vec<(String, Value)>) {
    if let Some(properties) = schema["properties"].as_object() {
        for (name, field) in properties {
            let path = format!("{path}.{name}");
            all.push((path.clone(), field.clone()));
            fields(field, &path, all);
        }
    }
    for inner in ["items", "additionalProperties"] {
        if schema[inner].is_object() {
            fields(&schema[inner], &format!("{path}[]"), all);
        }
    }
}

fn all_fields() -> Vec<(String, Value)> {
    let crd = serde_json::to_value(Terraform::crd()).unwrap();
    let mut all = Vec::new();
    let schema = &crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"];
    fields(schema, "", &mut all);
    assert!(all.len() > 100, "only {} fields", all.len());
    all
}

fn text<'a>(field: &'a Value, name: &str) -> &'a str {
    field[name].as_str().unwrap_or_default()
}

/// Fields of pod options with types of Kubernetes. The CRD has no descriptions of the fields below them.
const KUBERNETES_TYPES: [&str; 13] = [
    "affinity",
    "configMap",
    "csi",
    "dnsConfig",
    "emptyDir",
    "env",
    "envFrom",
    "hostAliases",
    "persistentVolumeClaim",
    "projected",
    "secret",
    "tolerations",
    "topologySpreadConstraints",
];

/// Whether the field at `path` belongs to a type of Kubernetes in pod options.
fn is_of_kubernetes(path: &str) -> bool {
    let Some((_, option)) = path.split_once(".pod.") else {
        return false;
    };
    let mut parents: Vec<_> = option.split('.').collect();
    parents.pop();
    let name = |part: &str| part.trim_end_matches("[]").to_owned();
    parents
        .into_iter()
        .any(|part| KUBERNETES_TYPES.contains(&name(part).as_str()))
}

/// `kubectl apply` stores the object in an annotation, and annotations have at most 256 KiB:
/// <https://kubernetes.io/docs/concepts/overview/working-with-objects/annotations/>.
#[test]
fn crd_fits_into_the_annotation_of_kubectl_apply() {
    let bytes = serde_json::to_vec(&Terraform::crd()).unwrap().len();
    assert!(bytes < 200 << 10, "{bytes} bytes");
}

#[test]
fn every_field_has_a_description() {
    let bare: Vec<_> = all_fields()
        .into_iter()
        .filter(|(path, _)| !is_of_kubernetes(path))
        .filter(|(_, field)| text(field, "description").len() < 5)
        .map(|(path, _)| path)
        .collect();
    assert!(bare.is_empty(), "no description: {bare:#?}");
}

#[test]
fn description_names_the_default_of_a_field() {
    let silent: Vec<_> = all_fields()
        .into_iter()
        .filter(|(path, field)| {
            let default = &field["default"];
            path.starts_with(".spec") && !default.is_null() && !default.is_object()
        })
        .filter(|(_, field)| !text(field, "description").contains("Default: "))
        .map(|(path, _)| path)
        .collect();
    assert!(silent.is_empty(), "no word of the default: {silent:#?}");
}

/// The API server does not know formats such as `uint32`, and warns about them.
#[test]
fn no_field_has_an_unsigned_format() {
    let odd: Vec<_> = all_fields()
        .into_iter()
        .filter(|(_, field)| text(field, "format").starts_with("uint"))
        .collect();
    assert!(odd.is_empty(), "{odd:#?}");
}

#[test]
fn every_rule_has_a_message() {
    for (path, field) in all_fields() {
        for rule in field["x-kubernetes-validations"]
            .as_array()
            .into_iter()
            .flatten()
        {
            assert!(!text(rule, "message").is_empty(), "{path}: {rule}");
        }
    }
}

#[tokio::test]
async fn the_schema_is_structural_and_served() {
    let server = Server::shared().await;
    let crds: Api<CustomResourceDefinition> = Api::all(server.client().await);
    let crd = crds.get("terraforms.alustan.io").await.unwrap();
    let status = crd.status.unwrap();
    let conditions: Vec<_> = status
        .conditions
        .iter()
        .flatten()
        .map(|condition| (condition.type_.as_str(), condition.status.as_str()))
        .collect();
    assert!(
        conditions.contains(&("NamesAccepted", "True")),
        "{conditions:?}"
    );
    assert!(
        conditions.contains(&("Established", "True")),
        "{conditions:?}"
    );
    assert!(
        !conditions.contains(&("NonStructuralSchema", "True")),
        "{conditions:?}"
    );
    let names = status.accepted_names.unwrap();
    assert_eq!(names.short_names, Some(vec!["tf".to_owned()]));
    let version = &crd.spec.versions[0];
    assert!(version.subresources.as_ref().unwrap().status.is_some());
}
