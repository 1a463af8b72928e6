//! Nodes of the schema of `spec`, valid values for them, and changes of a spec at a node.

use std::fmt;
use std::sync::LazyLock;

use alustan_api::Terraform;
use kube::CustomResourceExt;
use serde_json::{Map, Value, json};

/// Key of a map entry that is sent a second time as [`ENTRY`]. JSON libraries cannot represent an object with two equal keys.
pub(crate) const SECOND_ENTRY: &str = "second-entry-of-the-same-name";
/// Key of an entry that a change adds to a map without entries.
pub(crate) const ENTRY: &str = "entry";

/// Fields of an object of which at most one is set, by the suffix of the path of the object.
const ALTERNATIVES: [(&str, &[&str]); 11] = [
    ("spec", &["gitRepo", "source"]),
    (".source", &["module", "inline", "oci"]),
    (".gitRepo", &["branch", "tag", "commit"]),
    (
        ".gitRepo",
        &["githubApp", "credentialsSecret", "sshKeySecret"],
    ),
    (".oci", &["tag", "semver", "digest"]),
    ("For[]", &["name", "selector"]),
    ("Checks[]", &["name", "selector"]),
    (".terraformRef", &["name", "selector"]),
    (
        ".variablesFrom[]",
        &["secretRef", "configMapRef", "terraformRef", "objectRef"],
    ),
    (
        ".volumes[]",
        &[
            "configMap",
            "secret",
            "projected",
            "csi",
            "emptyDir",
            "persistentVolumeClaim",
        ],
    ),
    (
        ".valueFrom",
        &[
            "configMapKeyRef",
            "secretKeyRef",
            "fieldRef",
            "resourceFieldRef",
        ],
    ),
];

/// A provider of `spec.backend`.
struct Backend {
    provider: &'static str,
    /// Fields that require the provider.
    fields: &'static [&'static str],
    /// Fields that the provider requires, with values.
    required: &'static [(&'static str, &'static str)],
}

const BACKENDS: [Backend; 7] = [
    Backend {
        provider: "aws",
        fields: &[
            "s3",
            "dynamoDB",
            "lockFile",
            "region",
            "endpoint",
            "bootstrap",
            "key",
        ],
        required: &[("s3", "bucket"), ("region", "us-east-1")],
    },
    Backend {
        provider: "gcp",
        fields: &["gcs", "prefix"],
        required: &[("gcs", "bucket")],
    },
    Backend {
        provider: "azure",
        fields: &["storageAccount", "container", "resourceGroup"],
        required: &[("storageAccount", "account"), ("container", "states")],
    },
    Backend {
        provider: "kubernetes",
        fields: &["secretSuffix"],
        required: &[],
    },
    Backend {
        provider: "pg",
        fields: &["schemaName"],
        required: &[],
    },
    Backend {
        provider: "http",
        fields: &["address", "lockAddress", "unlockAddress"],
        required: &[("address", "http://127.0.0.1:1/state")],
    },
    Backend {
        provider: "generic",
        fields: &["type", "config", "secretRef"],
        required: &[("type", "oss")],
    },
];

/// One step from a value to a part of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// Property of an object.
    Field(String),
    /// First item of a list.
    Item,
    /// First entry of a map.
    Entry,
}

/// A node of the schema.
#[derive(Clone, Debug)]
pub(crate) struct Node {
    /// Steps from `spec`.
    pub(crate) steps: Vec<Step>,
    /// Path as in messages of the API server, with `[]` for items and `{}` for entries.
    pub(crate) path: String,
    pub(crate) schema: &'static Value,
}

impl Node {
    /// Whether the schema has no nodes below this one.
    pub(crate) fn is_leaf(&self) -> bool {
        children(self.schema).is_empty()
    }

    /// Number of the steps whose values exist in `spec`.
    pub(crate) fn depth_in(&self, spec: &Value) -> usize {
        let values = self.steps.iter().scan(Some(spec), |value, step| {
            *value = value.and_then(|value| match step {
                Step::Field(name) => value.get(name),
                Step::Item => value.get(0),
                Step::Entry => value.as_object()?.values().next(),
            });
            *value
        });
        values.count()
    }
}

impl fmt::Display for Node {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.path)
    }
}

/// Schema of `spec` in the CRD.
static SCHEMA: LazyLock<Value> = LazyLock::new(|| {
    let crd = serde_json::to_value(Terraform::crd()).unwrap();
    crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"].clone()
});

/// Returns all nodes below `spec`.
pub(crate) fn nodes() -> Vec<Node> {
    let root = Node {
        steps: Vec::new(),
        path: "spec".to_owned(),
        schema: &SCHEMA,
    };
    let mut nodes = vec![root];
    let mut visited = 0;
    while let Some(node) = nodes.get(visited).cloned() {
        visited += 1;
        nodes.extend(
            children(node.schema)
                .into_iter()
                .map(|(step, schema)| Node {
                    path: child_path(&node.path, &step),
                    steps: [&node.steps[..], &[step]].concat(),
                    schema,
                }),
        );
    }
    nodes.remove(0);
    nodes
}

fn children(schema: &Value) -> Vec<(Step, &Value)> {
    let properties = schema["properties"].as_object().into_iter().flatten();
    let fields = properties.map(|(name, schema)| (Step::Field(name.clone()), schema));
    let items = schema.get("items").map(|schema| (Step::Item, schema));
    let entries = schema
        .get("additionalProperties")
        .map(|schema| (Step::Entry, schema));
    fields.chain(items).chain(entries).collect()
}

fn child_path(path: &str, step: &Step) -> String {
    match step {
        Step::Field(name) => format!("{path}.{name}"),
        Step::Item => format!("{path}[]"),
        Step::Entry => format!("{path}{{}}"),
    }
}

/// Returns a valid value for `schema` at `path`.
pub(crate) fn sample(schema: &Value, path: &str) -> Value {
    if let Some(value) = known_sample(path) {
        return value;
    }
    if let Some(first) = schema["enum"].get(0) {
        return first.clone();
    }
    match schema["type"].as_str() {
        Some("object") if schema.get("additionalProperties").is_some() => {
            let entry = sample(&schema["additionalProperties"], &format!("{path}{{}}"));
            json!({ENTRY: entry})
        }
        Some("object") => {
            let required = schema["required"].as_array().into_iter().flatten();
            let fields = required.map(|name| {
                let name = name.as_str().unwrap();
                let path = format!("{path}.{name}");
                (name.to_owned(), sample(&schema["properties"][name], &path))
            });
            fields.collect::<Map<_, _>>().into()
        }
        Some("array") => json!([sample(&schema["items"], &format!("{path}[]"))]),
        Some("integer") => json!(1),
        Some("boolean") => json!(true),
        Some("string") => json!("text"),
        // An integer or a string, or any value.
        _ => json!("1"),
    }
}

/// Returns a valid value where the types of the schema do not suffice to choose one.
fn known_sample(path: &str) -> Option<Value> {
    const DURATIONS: [&str; 9] = [
        "interval",
        "olderThan",
        "timeout",
        "minBackoff",
        "maxBackoff",
        "lockTimeout",
        "cacheLifetime",
        "apply",
        "destroy",
    ];
    let name = path.rsplit('.').next().unwrap_or(path);
    let is_script = path.contains(".scripts.");
    if !is_script && (DURATIONS.contains(&name) || path == "spec.timeouts.plan") {
        return Some(json!("2h"));
    }
    if path.ends_with(".selector") || name == "labelSelector" || name == "namespaceSelector" {
        return Some(json!({"matchLabels": {"role": "web"}}));
    }
    let value = match name {
        "matchExpressions[]" => json!({"key": "role", "operator": "In", "values": ["web"]}),
        "matchFields[]" => json!({"key": "metadata.name", "operator": "In", "values": ["a"]}),
        "operator" if path.contains("tolerations") => json!("Exists"),
        "operator" => json!("In"),
        "effect" => json!("NoSchedule"),
        "volumes[]" => json!({"name": "company", "emptyDir": {}}),
        "volumeMounts[]" => json!({"name": "company", "mountPath": "/etc/company"}),
        "mountPath" => json!("/etc/company"),
        "whenUnsatisfiable" => json!("ScheduleAnyway"),
        "nodeAffinityPolicy" | "nodeTaintsPolicy" => json!("Honor"),
        "topologyKey" => json!("kubernetes.io/hostname"),
        "ip" => json!("10.0.0.1"),
        "nameservers[]" => json!("10.0.0.2"),
        "hostnames[]" | "searches[]" => json!("git.test"),
        "fieldPath" => json!("metadata.name"),
        "resource" => json!("limits.cpu"),
        "medium" => json!("Memory"),
        "env[]" => json!({"name": "SIZE", "value": "1"}),
        "expirationSeconds" => json!(3600),
        "mode" | "defaultMode" if path.contains("volumes") => json!(256),
        "apiVersion" if path.contains("pod") => json!("v1"),
        "apiVersion" => json!("v1"),
        "kind" if path.contains("builder") => json!("Kaniko"),
        "kind" => json!("ConfigMap"),
        "waitFor[]" | "healthChecks[]" => {
            json!({"apiVersion": "v1", "kind": "ConfigMap", "name": "present"})
        }
        "objectRef" => {
            json!({"apiVersion": "v1", "kind": "ConfigMap", "name": "present", "values": {"a": "object.data.key"}})
        }
        "values{}" if path.contains("objectRef") => json!("object.data.key"),
        "cel" => json!("has(object.data)"),
        "when" => json!("plan.destroy > 0"),
        "url" if path.contains("oci") => json!("oci://127.0.0.1:1/team/artifact"),
        "url" => json!("https://127.0.0.1:1/team/infra"),
        "address" | "lockAddress" | "unlockAddress" | "endpoint" => {
            json!("http://127.0.0.1:1/state")
        }
        "commit" => json!("0123456789abcdef0123456789abcdef01234567"),
        "digest" => json!(format!("sha256:{}", "0".repeat(64))),
        "caBundle" => json!("-----BEGIN CERTIFICATE-----\n-----END CERTIFICATE-----\n"),
        "files" => json!({"main.tf": "output \"a\" { value = 1 }\n"}),
        "source" if path.contains("module") => json!("team/network/aws"),
        "module" => json!({"source": "team/network/aws", "version": "1.2.0"}),
        "version" | "wrapperVersion" => json!("1.2.0"),
        "varFiles[]" => json!("common.tfvars"),
        "dockerfile" => json!("Dockerfile"),
        "host" => json!("registry.test"),
        "imageName" | "image" | "cacheRepository" | "baseImage" => json!("127.0.0.1:1/team/image"),
        "size" => json!("6Gi"),
        "repositories[]" => json!("modules"),
        "terminationGracePeriodSeconds" => json!(600),
        "type" => json!("oss"),
        "key" if !path.contains(".pod.") => json!("key"),
        "configMapRef" | "configMap" => json!({"name": "present", "key": "key"}),
        "weight" => json!(10),
        "name" | "secretName" | "claimName" => json!("present"),
        _ => return None,
    };
    // The properties of a sample for one type must exist in all types with this name.
    Some(match (name, value) {
        ("configMapRef", Value::Object(mut fields)) if !is_script => {
            fields.remove("key");
            Value::Object(fields)
        }
        ("configMap", Value::Object(mut fields)) => {
            fields.remove("key");
            Value::Object(fields)
        }
        (_, value) => value,
    })
}

/// A change of one value.
#[derive(Clone, Debug)]
pub(crate) enum Change {
    /// Removes the value.
    Remove,
    /// Replaces the value.
    Set(Value),
    /// Repeats the first item of a list, or the first entry of a map with the same key.
    Repeat,
}

/// Changes the value of `node` in `spec`. Adds missing values on the path, and removes alternatives of the fields on it.
pub(crate) fn change(spec: &mut Value, node: &Node, change: &Change) {
    let mut value = spec;
    let mut schema = &*SCHEMA;
    let mut path = "spec".to_owned();
    let (last, before) = node.steps.split_last().unwrap();
    for step in before {
        (value, schema) = enter(value, schema, &path, step);
        path = child_path(&path, step);
    }
    if matches!(change, Change::Remove) {
        remove(value, last);
        return;
    }
    let (value, schema) = enter(value, schema, &path, last);
    match change {
        Change::Remove => {}
        Change::Set(new) => *value = new.clone(),
        Change::Repeat => repeat(value, schema, &node.path),
    }
}

fn enter<'a, 's>(
    value: &'a mut Value,
    schema: &'s Value,
    path: &str,
    step: &Step,
) -> (&'a mut Value, &'s Value) {
    match step {
        Step::Field(name) => {
            let schema = &schema["properties"][name];
            let fields = object(value);
            let alternatives = ALTERNATIVES
                .iter()
                .filter(|(suffix, names)| path.ends_with(suffix) && names.contains(&name.as_str()));
            for (_, names) in alternatives {
                fields.retain(|field, _| field == name || !names.contains(&field.as_str()));
            }
            if path == "spec.backend" {
                select_backend(fields, name);
            }
            let added = || sample(schema, &format!("{path}.{name}"));
            (fields.entry(name.clone()).or_insert_with(added), schema)
        }
        Step::Item => {
            let schema = &schema["items"];
            if value.as_array().is_none_or(Vec::is_empty) {
                *value = json!([sample(schema, &format!("{path}[]"))]);
            }
            (&mut value[0], schema)
        }
        Step::Entry => {
            let schema = &schema["additionalProperties"];
            let entries = object(value);
            if entries.is_empty() {
                entries.insert(ENTRY.to_owned(), sample(schema, &format!("{path}{{}}")));
            }
            (entries.values_mut().next().unwrap(), schema)
        }
    }
}

fn object(value: &mut Value) -> &mut Map<String, Value> {
    if !value.is_object() {
        *value = json!({});
    }
    value.as_object_mut().unwrap()
}

/// Replaces the fields of `spec.backend` by those of the provider of `field`, unless the provider is selected.
fn select_backend(fields: &mut Map<String, Value>, field: &str) {
    let Some(backend) = BACKENDS
        .iter()
        .find(|backend| backend.fields.contains(&field))
    else {
        return;
    };
    if fields.get("provider").and_then(Value::as_str) == Some(backend.provider) {
        return;
    }
    fields.clear();
    fields.insert("provider".to_owned(), backend.provider.into());
    for (name, value) in backend.required {
        fields.insert((*name).to_owned(), (*value).into());
    }
}

fn remove(value: &mut Value, step: &Step) {
    match (step, value) {
        (Step::Field(name), Value::Object(fields)) => {
            fields.remove(name);
        }
        (Step::Item, Value::Array(items)) if !items.is_empty() => {
            items.remove(0);
        }
        (Step::Entry, Value::Object(entries)) => {
            let first = entries.keys().next().cloned();
            first.and_then(|first| entries.remove(&first));
        }
        _ => {}
    }
}

fn repeat(value: &mut Value, schema: &Value, path: &str) {
    if schema["type"] == "array" {
        let item = value.get(0).cloned();
        let item = item.unwrap_or_else(|| sample(&schema["items"], &format!("{path}[]")));
        *value = json!([item, item]);
    } else {
        let entry = sample(&schema["additionalProperties"], &format!("{path}{{}}"));
        *value = json!({ENTRY: entry, SECOND_ENTRY: entry});
    }
}

/// Returns the JSON of `resource`, in which [`SECOND_ENTRY`] is the same key as [`ENTRY`].
pub(crate) fn to_json(resource: &Value) -> String {
    let text = resource.to_string();
    text.replace(&format!("\"{SECOND_ENTRY}\""), &format!("\"{ENTRY}\""))
}
