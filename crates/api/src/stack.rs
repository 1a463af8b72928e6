//! Inputs, dependencies, tests of objects (`spec.waitFor`) and outputs of a `Terraform` resource.

#![expect(
    clippy::struct_field_names,
    reason = "names of reference fields end in Ref, as in the Kubernetes API"
)]

use std::collections::BTreeMap;
use std::time::Duration as StdDuration;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use kube_core::Duration;
use kube_derive::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::bounded::selector;
use crate::references::{NOT_OURS, NOT_OURS_HELP, OBJECT, OBJECT_HELP};

/// Patterns `NAMESPACE`, `NAME` and `DURATION` are part of the OpenAPI schema: a CEL rule for each entry of a list would exceed the cost limit of
/// the API server.
const NAMESPACE: &str = "^[a-z0-9]([-a-z0-9]*[a-z0-9])?$";
const NAME: &str = "^[a-z0-9]([-.a-z0-9]*[a-z0-9])?$";
const API_VERSION: &str = "^([a-z0-9]([-.a-z0-9]*[a-z0-9])?/)?[a-z]([-a-z0-9]*[a-z0-9])?$";
const KIND: &str = "^[A-Za-z]([-A-Za-z0-9]*[A-Za-z0-9])?$";
/// Name of an object of any kind: a segment of a path
/// (<https://kubernetes.io/docs/concepts/overview/working-with-objects/names/#path-segment-names>).
const SEGMENT: &str =
    r"^([^/%.\x00-\x20\x7f]|[.][^/%.\x00-\x20\x7f]|[.][.][^/%\x00-\x20\x7f])[^/%\x00-\x20\x7f]*$";
const DURATION: &str = r"^([0-9]{1,4}(\.[0-9]{1,3})?(s|m|h)){1,3}$";
const KEYS: &str = "self.all(key, key.size() <= 253 && key.matches('^[-._a-zA-Z0-9]+$'))";
const KEYS_HELP: &str = "each key must be a valid key of a Secret or ConfigMap: at most 253 letters, digits, '-', '_' and '.'";
const LABELS: &str = "self.all(key, !format.qualifiedName().validate(key).hasValue() && !format.labelValue().validate(self[key]).hasValue())";
const LABELS_HELP: &str = "must be valid Kubernetes labels";
const OUR_LABELS: &str = "!self.exists(key, key.startsWith('alustan.io/') || key in ['app.kubernetes.io/managed-by', 'app.kubernetes.io/component'])";
const OUR_LABELS_HELP: &str = "must not have app.kubernetes.io/managed-by, app.kubernetes.io/component or alustan.io/…: these labels are reserved for the operator";
const ANNOTATIONS: &str = "self.all(key, !format.qualifiedName().validate(key).hasValue())";
const ANNOTATIONS_HELP: &str = "each key must be a valid annotation name";
const OUR_ANNOTATIONS: &str = "!self.exists(key, ['alustan.io/', 'kubernetes.io/', 'kubectl.kubernetes.io/', 'control-plane.alpha.kubernetes.io/'].exists(prefix, key.startsWith(prefix)))";
const OUR_ANNOTATIONS_HELP: &str = "must not have alustan.io/…, kubernetes.io/…, kubectl.kubernetes.io/… or control-plane.alpha.kubernetes.io/…: these annotations are reserved for the operator and for Kubernetes";
/// Prefixes of the annotations in [`OUR_ANNOTATIONS`].
const RESERVED_ANNOTATIONS: [&str; 4] = [
    "alustan.io/",
    "kubernetes.io/",
    "kubectl.kubernetes.io/",
    "control-plane.alpha.kubernetes.io/",
];
const ONE_ANNOTATION: &str = "!(has(self.annotations) && has(self.constantAnnotations) && self.annotations.exists(key, key in self.constantAnnotations))";
const ONE_ANNOTATION_HELP: &str =
    "annotations and constantAnnotations must not have the same annotation";

/// Source of values of variables. Exactly one of `secretRef`, `configMapRef`, `terraformRef` and `objectRef` must be set. The resource
/// waits until each value exists.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[x_kube(crates(kube_core = "::kube_core"))]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("[has(self.secretRef), has(self.configMapRef), has(self.terraformRef), has(self.objectRef)].filter(it, it).size() == 1").message("exactly one of secretRef, configMapRef, terraformRef and objectRef must be set"))]
pub struct VariablesFrom {
    /// Secret in the namespace of the resource. Its values are strings and are masked in logs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secret_ref: Option<KeysRef>,
    /// ConfigMap in the namespace of the resource. Its values are strings.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub config_map_ref: Option<KeysRef>,
    /// Outputs of other `Terraform` resources, with their types. The other resources are dependencies and are applied first.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub terraform_ref: Option<OutputsRef>,
    /// Fields of an object of any kind except Secret. The operator needs permission to read the kind.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub object_ref: Option<ValuesRef>,
}

/// Keys of a Secret or ConfigMap.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
#[x_kube(crates(kube_core = "::kube_core"))]
#[serde(rename_all = "camelCase")]
pub struct KeysRef {
    /// Name of the Secret or ConfigMap.
    #[schemars(length(max = 253), regex(pattern = NAME))]
    pub name: String,
    /// Key that contains the value of each variable, by name of the variable. Example: `password: db-password`. Default: every key,
    /// as the variable of the same name.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(extend("maxProperties" = 100, "additionalProperties" = {"type": "string", "maxLength": 253}))]
    pub keys: BTreeMap<String, String>,
    /// Handling of a missing Secret, ConfigMap or key. If true, the variable is not set, and the module uses its default. If false, the
    /// resource waits for the value. Default: false.
    #[serde(default)]
    pub optional: bool,
    /// If true, a changed value starts a run. If false, the next run uses the changed value. Default: true.
    #[serde(default = "yes")]
    pub trigger: bool,
}

/// Outputs of another resource (`name`), or of all resources with matching labels (`selector`). Exactly one of `name` and `selector` must
/// be set.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq)]
#[x_kube(crates(kube_core = "::kube_core"))]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("has(self.name) != has(self.selector)").message("exactly one of name and selector must be set"))]
pub struct OutputsRef {
    /// Name of the resource.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253), regex(pattern = NAME))]
    pub name: Option<String>,
    /// Label selector of the resources. The value of each variable is a list with one output per resource, in the order of the names of the
    /// resources.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "selector")]
    pub selector: Option<LabelSelector>,
    /// Namespace of the resources. Another namespace requires `--allow-cross-namespace-refs` of the operator. Default: the namespace of
    /// this resource.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 63), regex(pattern = NAMESPACE))]
    pub namespace: Option<String>,
    /// Name of the output that sets each variable, by name of the variable. Example: `subnets: private_subnet_ids`.
    #[schemars(extend("minProperties" = 1, "maxProperties" = 100, "additionalProperties" = {"type": "string", "maxLength": 253}))]
    pub outputs: BTreeMap<String, String>,
    /// If true, a changed value starts a run. If false, the next run uses the changed value. Default: true.
    #[serde(default = "yes")]
    pub trigger: bool,
}

/// Fields of an object.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
#[x_kube(crates(kube_core = "::kube_core"))]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("!(self.kind == 'Secret' && self.apiVersion == 'v1')").message("kind: use secretRef to read Secrets"))]
pub struct ValuesRef {
    /// API version of the object. Example: `networking.k8s.io/v1`.
    #[schemars(length(min = 1, max = 253), regex(pattern = API_VERSION))]
    pub api_version: String,
    /// Kind of the object. Example: `Ingress`.
    #[schemars(length(min = 1, max = 63), regex(pattern = KIND))]
    pub kind: String,
    /// Name of the object.
    #[schemars(length(min = 1, max = 253), regex(pattern = SEGMENT))]
    pub name: String,
    /// Namespace of the object, if its kind is namespaced. Another namespace requires `--allow-cross-namespace-refs` of the operator.
    /// Default: the namespace of this resource.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 63), regex(pattern = NAMESPACE))]
    pub namespace: Option<String>,
    /// CEL expression over `object` for each variable, by name of the variable.
    /// Example: `hostname: object.status.loadBalancer.ingress[0].hostname`. The resource waits until the field exists.
    #[schemars(extend("minProperties" = 1, "maxProperties" = 100, "additionalProperties" = {"type": "string", "maxLength": 1000}))]
    pub values: BTreeMap<String, String>,
    /// If true, a changed value starts a run. If false, the next run uses the changed value. Default: true.
    #[serde(default = "yes")]
    pub trigger: bool,
}

/// Reference to another `Terraform` resource.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[x_kube(crates(kube_core = "::kube_core"))]
#[serde(rename_all = "camelCase")]
pub struct DependencyRef {
    /// Name of the resource.
    #[schemars(length(max = 253), regex(pattern = NAME))]
    pub name: String,
    /// Namespace of the resource. Another namespace requires `--allow-cross-namespace-refs` of the operator. Default: the namespace of this
    /// resource.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 63), regex(pattern = NAMESPACE))]
    pub namespace: Option<String>,
}

/// Test of objects of one kind: one object (`name`), or all objects with matching labels (`selector`). Exactly one of `name` and `selector`
/// must be set.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq)]
#[x_kube(crates(kube_core = "::kube_core"))]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("has(self.name) != has(self.selector)").message("exactly one of name and selector must be set"))]
pub struct ObjectTest {
    /// API version of the objects. Example: `apps/v1`.
    #[schemars(length(min = 1, max = 253), regex(pattern = API_VERSION))]
    pub api_version: String,
    /// Kind of the objects. Example: `Deployment`. The operator reads only the metadata of Secrets.
    #[schemars(length(min = 1, max = 63), regex(pattern = KIND))]
    pub kind: String,
    /// Name of the object.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253), regex(pattern = SEGMENT))]
    pub name: Option<String>,
    /// Label selector of the objects. At least one object must match, and all matching objects must pass.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "selector")]
    pub selector: Option<LabelSelector>,
    /// Namespace of the objects, if their kind is namespaced. Another namespace requires `--allow-cross-namespace-refs` of the operator.
    /// Default: the namespace of this resource.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 63), regex(pattern = NAMESPACE))]
    pub namespace: Option<String>,
    /// Type of a condition that must be `True`. Example: `Available`. Default: no condition, the object must only exist.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 316))]
    pub condition: Option<String>,
    /// CEL expression over `object` that must be true. Example: `object.status.readyReplicas == object.spec.replicas`. At most 1,000
    /// bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 1000))]
    pub cel: Option<String>,
    /// Time after which a failing test makes the resource `Stalled`. Reconciliation resumes automatically once the test passes.
    /// Default: 10m.
    #[serde(default = "ten_minutes")]
    #[schemars(length(max = 64), regex(pattern = DURATION))]
    pub timeout: Duration,
}

/// Objects that must not exist: one object (`name`), all objects with matching labels (`selector`), or all objects of the kind.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq)]
#[x_kube(crates(kube_core = "::kube_core"))]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("!(has(self.name) && has(self.selector))").message("at most one of name and selector may be set"))]
pub struct ObjectsGone {
    /// API version of the objects. Example: `networking.k8s.io/v1`.
    #[schemars(length(min = 1, max = 253), regex(pattern = API_VERSION))]
    pub api_version: String,
    /// Kind of the objects. Example: `Ingress`.
    #[schemars(length(min = 1, max = 63), regex(pattern = KIND))]
    pub kind: String,
    /// Name of the object.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253), regex(pattern = SEGMENT))]
    pub name: Option<String>,
    /// Label selector of the objects. Default: all objects of the kind in the namespace.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "selector")]
    pub selector: Option<LabelSelector>,
    /// Namespace of the objects, if their kind is namespaced. Another namespace requires `--allow-cross-namespace-refs` of the operator.
    /// Default: the namespace of this resource.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 63), regex(pattern = NAMESPACE))]
    pub namespace: Option<String>,
    /// Time after which remaining objects make the resource `Stalled`. Reconciliation resumes automatically once the objects are deleted.
    /// Default: 10m.
    #[serde(default = "ten_minutes")]
    #[schemars(length(max = 64), regex(pattern = DURATION))]
    pub timeout: Duration,
}

/// Secret, ConfigMap and status for the outputs of the module.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq)]
#[x_kube(crates(kube_core = "::kube_core"))]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new(ONE_ANNOTATION).message(ONE_ANNOTATION_HELP))]
pub struct OutputsSpec {
    /// Name of the Secret with the outputs, one key per output. Strings are stored verbatim, other values as JSON. An existing Secret that
    /// does not belong to this resource is not overwritten (`OutputsOwnershipConflict`). Default: `<name>-outputs`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253))]
    #[x_kube(validation = Rule::new(OBJECT).message(OBJECT_HELP))]
    #[x_kube(validation = Rule::new(NOT_OURS).message(NOT_OURS_HELP))]
    pub secret_name: Option<String>,
    /// Name of a ConfigMap with the outputs that the module does not mark as sensitive. An existing ConfigMap that does not belong to this
    /// resource is not overwritten (`OutputsOwnershipConflict`). Default: no ConfigMap.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253))]
    #[x_kube(validation = Rule::new(OBJECT).message(OBJECT_HELP))]
    pub config_map_name: Option<String>,
    /// Name of the output that each key of the Secret and the ConfigMap contains, by key. Other resources refer to an output by its key.
    /// Example: `server: cluster_endpoint`. Default: all outputs, each with its own name as the key.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(extend("maxProperties" = 100, "additionalProperties" = {"type": "string", "maxLength": 253}))]
    #[x_kube(validation = Rule::new(KEYS).message(KEYS_HELP))]
    pub keys: BTreeMap<String, String>,
    /// Labels of the Secret and the ConfigMap. Example: `argocd.argoproj.io/secret-type: cluster`.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(extend("maxProperties" = 50, "additionalProperties" = {"type": "string", "maxLength": 63}))]
    #[x_kube(validation = Rule::new(LABELS).message(LABELS_HELP))]
    #[x_kube(validation = Rule::new(OUR_LABELS).message(OUR_LABELS_HELP))]
    pub labels: BTreeMap<String, String>,
    /// Annotations of the Secret and the ConfigMap whose values are outputs: name of the output, by annotation.
    /// Example: `example.com/vpc-id: vpc_id`. An output that the module marks as sensitive is refused (`OutputSensitive`).
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(extend("maxProperties" = 50, "additionalProperties" = {"type": "string", "maxLength": 253}))]
    #[x_kube(validation = Rule::new(ANNOTATIONS).message(ANNOTATIONS_HELP))]
    #[x_kube(validation = Rule::new(OUR_ANNOTATIONS).message(OUR_ANNOTATIONS_HELP))]
    pub annotations: BTreeMap<String, String>,
    /// Names of outputs whose values are copied to `status.outputs.values`, for example for kro or Crossplane. Example: `[url, vpc_id]`.
    /// Users who can read the resource can read the values. Outputs that the module marks as sensitive are never copied. Limits: at most 64
    /// outputs, in total 16 KiB of JSON, 1,000 JSON values, and 32 levels of nesting. `status.outputs.omitted` and condition `Ready` name each
    /// output that is not copied, with the reason. Default: none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64), inner(length(min = 1, max = 253)), extend("x-kubernetes-list-type" = "set"))]
    pub status: Vec<String>,
    /// Annotations of the Secret and the ConfigMap with constant values, for controllers that read them. Each value has at most 4,096
    /// characters. Example: `reflector.v1.k8s.emberstack.com/reflection-allowed: "true"`.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(extend("maxProperties" = 50, "additionalProperties" = {"type": "string", "maxLength": 4096}))]
    #[x_kube(validation = Rule::new(ANNOTATIONS).message(ANNOTATIONS_HELP))]
    #[x_kube(validation = Rule::new(OUR_ANNOTATIONS).message(OUR_ANNOTATIONS_HELP))]
    pub constant_annotations: BTreeMap<String, String>,
}

impl OutputsSpec {
    /// Returns the field and the name of the first annotation that is reserved for the operator or for Kubernetes.
    pub fn reserved_annotation(&self) -> Option<(&'static str, &str)> {
        let from = self.annotations.keys().map(|key| ("annotations", key));
        let constant = self.constant_annotations.keys();
        let mut all = from.chain(constant.map(|key| ("constantAnnotations", key)));
        let is_reserved = |key: &str| {
            let mut prefixes = RESERVED_ANNOTATIONS.iter();
            prefixes.any(|prefix| key.starts_with(prefix))
        };
        all.find(|(_, key)| is_reserved(key))
            .map(|(field, key)| (field, key.as_str()))
    }
}

/// Resource that blocks this resource: a dependency that is not ready, or a dependent of a deleted resource.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct BlockedBy {
    /// Name of the resource, with prefix `<namespace>/` if it is in another namespace. Example: `network` or `infra/network`.
    pub name: String,
    /// For a dependency, the reason of its `Ready` condition, or `DependencyNotFound` if it does not exist. For a dependent, `Dependent`: it
    /// must be destroyed before this resource.
    pub reason: String,
}

fn yes() -> bool {
    true
}

fn ten_minutes() -> Duration {
    StdDuration::from_mins(10).into()
}
