//! What a `Terraform` resource takes from others, waits for, and hands on.

#![expect(
    clippy::struct_field_names,
    reason = "references end in Ref, as everywhere in Kubernetes"
)]

use std::collections::BTreeMap;
use std::time::Duration as StdDuration;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use kube::KubeSchema;
use kube::core::Duration;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::references::{NOT_OURS, NOT_OURS_HELP, OBJECT, OBJECT_HELP};

/// Patterns: within lists, rules in CEL would cost more than the API server allows.
const NAMESPACE: &str = "^[a-z0-9]([-a-z0-9]*[a-z0-9])?$";
const NAME: &str = "^[a-z0-9]([-.a-z0-9]*[a-z0-9])?$";
const DURATION: &str = r"^([0-9]{1,4}(\.[0-9]{1,3})?(s|m|h)){1,3}$";
const KEYS: &str = "self.all(key, key.size() <= 253 && key.matches('^[-._a-zA-Z0-9]+$'))";
const KEYS_HELP: &str =
    "must have keys of a Secret or ConfigMap: letters, digits, '-', '_' and '.'";
const LABELS: &str = "self.all(key, !format.qualifiedName().validate(key).hasValue() && !format.labelValue().validate(self[key]).hasValue())";
const LABELS_HELP: &str = "must be labels as Kubernetes takes them";
const OUR_LABELS: &str = "!self.exists(key, key.startsWith('alustan.io/') || key in ['app.kubernetes.io/managed-by', 'app.kubernetes.io/component'])";
const OUR_LABELS_HELP: &str = "must not have app.kubernetes.io/managed-by, app.kubernetes.io/component or alustan.io/…, which are the operator's own";
const ANNOTATIONS: &str = "self.all(key, !format.qualifiedName().validate(key).hasValue())";
const ANNOTATIONS_HELP: &str = "must have names of annotations";
const OUR_ANNOTATIONS: &str = "!self.exists(key, key.startsWith('alustan.io/'))";
const OUR_ANNOTATIONS_HELP: &str = "must not have alustan.io/…, which are the operator's own";

/// Where values of variables come from: exactly one of `secretRef`, `configMapRef`, `terraformRef`
/// and `objectRef`. A value that is not there yet is waited for.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("[has(self.secretRef), has(self.configMapRef), has(self.terraformRef), has(self.objectRef)].filter(it, it).size() == 1").message("exactly one of secretRef, configMapRef, terraformRef and objectRef must be given"))]
pub struct VariablesFrom {
    /// A Secret in this namespace. Its values are strings, and are never printed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secret_ref: Option<KeysRef>,
    /// A ConfigMap in this namespace. Its values are strings.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub config_map_ref: Option<KeysRef>,
    /// Outputs of other `Terraform` resources, with the types that their modules give them. They
    /// are applied first.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub terraform_ref: Option<OutputsRef>,
    /// Fields of any object but Secrets, once the operator is granted to read it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub object_ref: Option<ValuesRef>,
}

/// Keys of a Secret or ConfigMap.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct KeysRef {
    /// Its name.
    #[schemars(length(max = 253), regex(pattern = NAME))]
    pub name: String,
    /// Which key each variable has its value from, for example `password: db-password`. Absent:
    /// every key is a variable of its own name.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(extend("maxProperties" = 100))]
    pub keys: BTreeMap<String, String>,
    /// Whether the module's own default stands in for what is missing. Default: false, which waits
    /// for it.
    #[serde(default)]
    pub optional: bool,
    /// Whether a change is applied at once; otherwise it waits for the next run. Default: true.
    #[serde(default = "yes")]
    pub trigger: bool,
}

/// Outputs of other resources: of one by its `name`, or of all that a `selector` selects.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("has(self.name) != has(self.selector)").message("exactly one of name and selector must be given"))]
pub struct OutputsRef {
    /// Name of the resource.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253), regex(pattern = NAME))]
    pub name: Option<String>,
    /// Labels of the resources. Each variable is then the list of their outputs, in the order of
    /// the resources' names.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub selector: Option<LabelSelector>,
    /// Their namespace. Default: this one. Another one needs the operator's flag
    /// `--allow-cross-namespace-refs`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 63), regex(pattern = NAMESPACE))]
    pub namespace: Option<String>,
    /// Which output each variable has its value from, for example `subnets: private_subnet_ids`.
    #[schemars(extend("minProperties" = 1, "maxProperties" = 100))]
    pub outputs: BTreeMap<String, String>,
    /// Whether a change is applied at once; otherwise it waits for the next run. Default: true.
    #[serde(default = "yes")]
    pub trigger: bool,
}

/// Fields of an object.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("!(self.kind == 'Secret' && self.apiVersion == 'v1')").message("kind: Secrets are read with secretRef"))]
pub struct ValuesRef {
    /// Its API version: `networking.k8s.io/v1`.
    #[schemars(length(min = 1, max = 253))]
    pub api_version: String,
    /// Its kind: `Ingress`.
    #[schemars(length(min = 1, max = 63))]
    pub kind: String,
    /// Its name.
    #[schemars(length(min = 1, max = 253))]
    pub name: String,
    /// Its namespace. Default: this one, if its kind has namespaces. Another one needs the
    /// operator's flag `--allow-cross-namespace-refs`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 63), regex(pattern = NAMESPACE))]
    pub namespace: Option<String>,
    /// The value of each variable: an expression in CEL over `object`, for example
    /// `hostname: object.status.loadBalancer.ingress[0].hostname`. A field that is not there yet is
    /// waited for.
    #[schemars(extend("minProperties" = 1, "maxProperties" = 100))]
    pub values: BTreeMap<String, String>,
    /// Whether a change is applied at once; otherwise it waits for the next run. Default: true.
    #[serde(default = "yes")]
    pub trigger: bool,
}

/// Another `Terraform` resource.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[serde(rename_all = "camelCase")]
pub struct DependencyRef {
    /// Its name.
    #[schemars(length(max = 253), regex(pattern = NAME))]
    pub name: String,
    /// Its namespace. Default: this one. Another one needs the operator's flag
    /// `--allow-cross-namespace-refs`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 63), regex(pattern = NAMESPACE))]
    pub namespace: Option<String>,
}

/// Objects of one kind: one by its `name`, or all that a `selector` selects.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("has(self.name) != has(self.selector)").message("exactly one of name and selector must be given"))]
pub struct ObjectTest {
    /// Their API version: `apps/v1`.
    #[schemars(length(min = 1, max = 253))]
    pub api_version: String,
    /// Their kind: `Deployment`. Secrets are read as metadata only.
    #[schemars(length(min = 1, max = 63))]
    pub kind: String,
    /// Name of the object.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253))]
    pub name: Option<String>,
    /// Labels of the objects. There must be one at least, and all must pass.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub selector: Option<LabelSelector>,
    /// Their namespace. Default: this one, if their kind has namespaces. Another one needs the
    /// operator's flag `--allow-cross-namespace-refs`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 63), regex(pattern = NAMESPACE))]
    pub namespace: Option<String>,
    /// The type of a condition that must be `True`: `Available`. Default: it is enough that the
    /// object exists.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 316))]
    pub condition: Option<String>,
    /// What must be true: an expression in CEL over `object`, for example
    /// `object.status.readyReplicas == object.spec.replicas`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 1000))]
    pub cel: Option<String>,
    /// After how long the resource says that it waits too long. It goes on by itself all the same,
    /// once the test passes. Default: 10m.
    #[serde(default = "ten_minutes")]
    #[schemars(regex(pattern = DURATION))]
    pub timeout: Duration,
}

/// Objects that must be gone: one by its `name`, all that a `selector` selects, or all of a kind.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("!(has(self.name) && has(self.selector))").message("at most one of name and selector may be given"))]
pub struct ObjectsGone {
    /// Their API version: `networking.k8s.io/v1`.
    #[schemars(length(min = 1, max = 253))]
    pub api_version: String,
    /// Their kind: `Ingress`.
    #[schemars(length(min = 1, max = 63))]
    pub kind: String,
    /// Name of the object.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253))]
    pub name: Option<String>,
    /// Labels of the objects. Default: all of that kind in the namespace.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub selector: Option<LabelSelector>,
    /// Their namespace. Default: this one, if their kind has namespaces. Another one needs the
    /// operator's flag `--allow-cross-namespace-refs`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 63), regex(pattern = NAMESPACE))]
    pub namespace: Option<String>,
    /// After how long the resource says that it waits too long. It goes on by itself all the same,
    /// once they are gone. Default: 10m.
    #[serde(default = "ten_minutes")]
    #[schemars(regex(pattern = DURATION))]
    pub timeout: Duration,
}

/// Where the module's outputs go.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct OutputsSpec {
    /// The Secret with the outputs, one key each: strings as they are, other values as JSON.
    /// Default: `<name>-outputs`. A Secret that somebody else made is never overwritten. One that is
    /// removed is written again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253))]
    #[x_kube(validation = Rule::new(OBJECT).message(OBJECT_HELP))]
    #[x_kube(validation = Rule::new(NOT_OURS).message(NOT_OURS_HELP))]
    pub secret_name: Option<String>,
    /// A ConfigMap with those of them that the module does not mark as sensitive. Default: none. A
    /// ConfigMap that somebody else made is never overwritten. One that is removed is written again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253))]
    #[x_kube(validation = Rule::new(OBJECT).message(OBJECT_HELP))]
    pub config_map_name: Option<String>,
    /// Which outputs are handed on, and the key that each gets, for example
    /// `server: cluster_endpoint`. Default: all, each under its own name. Other resources find
    /// outputs by their keys.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(extend("maxProperties" = 100))]
    #[x_kube(validation = Rule::new(KEYS).message(KEYS_HELP))]
    pub keys: BTreeMap<String, String>,
    /// Labels of the Secret and the ConfigMap, for example
    /// `argocd.argoproj.io/secret-type: cluster`.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(extend("maxProperties" = 50, "additionalProperties" = {"type": "string", "maxLength": 63}))]
    #[x_kube(validation = Rule::new(LABELS).message(LABELS_HELP))]
    #[x_kube(validation = Rule::new(OUR_LABELS).message(OUR_LABELS_HELP))]
    pub labels: BTreeMap<String, String>,
    /// Annotations of the Secret and the ConfigMap, with outputs as their values: which output each
    /// annotation has, for example `example.com/vpc-id: vpc_id`. Not for outputs that the module
    /// marks as sensitive.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(extend("maxProperties" = 50))]
    #[x_kube(validation = Rule::new(ANNOTATIONS).message(ANNOTATIONS_HELP))]
    #[x_kube(validation = Rule::new(OUR_ANNOTATIONS).message(OUR_ANNOTATIONS_HELP))]
    pub annotations: BTreeMap<String, String>,
}

/// A dependency that stands in the way.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct BlockedBy {
    /// Its name, with its namespace in front where that is another one: `network`, `infra/network`.
    pub name: String,
    /// Why: the reason of its `Ready` condition, or `DependencyNotFound`.
    pub reason: String,
}

fn yes() -> bool {
    true
}

fn ten_minutes() -> Duration {
    StdDuration::from_mins(10).into()
}
