//! Valid resources with which chains of edits begin: the samples, the examples, and resources with the fields that those lack.

use std::collections::BTreeSet;
use std::path::Path;

use k8s_openapi::api::core::v1::{ConfigMap, PersistentVolumeClaim, Secret, ServiceAccount};
use serde_json::{Value, json};

use crate::samples;
use crate::space::{Space, with_spec};

/// Name of each resource.
pub(crate) const NAME: &str = "web";

/// A valid resource.
#[derive(Clone, Debug)]
pub(crate) struct Seed {
    /// File of the sample, or name of a resource of this module.
    pub(crate) origin: String,
    pub(crate) resource: Value,
}

/// Returns all seeds, for a git server and registry at `address`.
pub(crate) fn all(address: &str) -> Vec<Seed> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut seeds = Vec::new();
    let mut specs = BTreeSet::new();
    for folder in [
        folder.join("api/samples"),
        folder.join("../deploy/examples"),
    ] {
        for file in samples::files(&folder) {
            let text = std::fs::read_to_string(&file).unwrap();
            let documents: Vec<Value> = serde_saphyr::from_multiple(&text).unwrap();
            for document in documents.iter().flat_map(samples::terraforms) {
                let spec = served_by(address, document["spec"].clone());
                if specs.insert(spec.to_string()) {
                    seeds.push(Seed {
                        origin: file.strip_prefix(&folder).unwrap().display().to_string(),
                        resource: with_annotations(spec),
                    });
                }
            }
        }
    }
    let git = json!({"url": format!("http://{address}/team/infra")});
    let registry = json!({"imageName": format!("{address}/present/web")});
    for (origin, mut spec) in own(address) {
        if spec.get("source").is_none() && spec.get("gitRepo").is_none() {
            spec["gitRepo"] = git.clone();
        }
        if spec.get("containerRegistry").is_none() {
            spec["containerRegistry"] = registry.clone();
        }
        seeds.push(Seed {
            origin: origin.to_owned(),
            resource: with_annotations(spec),
        });
    }
    seeds
}

fn with_annotations(spec: Value) -> Value {
    let mut resource = with_spec(NAME, spec);
    resource["metadata"]["annotations"] = json!({});
    resource
}

/// Returns `spec` with the git server and registry at `address`, and without references to other resources and to objects that no
/// test creates.
fn served_by(address: &str, mut spec: Value) -> Value {
    let git = spec["gitRepo"].as_object_mut().unwrap();
    git.insert(
        "url".to_owned(),
        format!("http://{address}/team/infra").into(),
    );
    git.remove("sshKeySecret");
    git.remove("path");
    spec["containerRegistry"]["imageName"] = format!("{address}/present/web").into();
    let fields = spec.as_object_mut().unwrap();
    for name in ["dependsOn", "healthChecks", "engine"] {
        fields.remove(name);
    }
    if let Some(inputs) = fields
        .get_mut("variablesFrom")
        .and_then(Value::as_array_mut)
    {
        inputs.retain(|input| input.get("secretRef").is_some());
    }
    spec
}

/// Returns the resources of this module. Those without a source or registry get the default ones.
fn own(address: &str) -> Vec<(&'static str, Value)> {
    let pod = json!({
        "resources": {"requests": {"cpu": 1}, "limits": {"memory": "4Gi"}},
        "nodeSelector": {"pool": "terraform"},
        "tolerations": [{"key": "pool", "operator": "Exists", "effect": "NoSchedule"}],
        "topologySpreadConstraints": [{
            "maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "ScheduleAnyway",
            "labelSelector": {"matchLabels": {"a": "b"}},
        }],
        "imagePullSecrets": [{"name": "present"}],
        "hostAliases": [{"ip": "10.0.0.1", "hostnames": ["git.test"]}],
        "dnsConfig": {"nameservers": ["10.0.0.2"], "options": [{"name": "ndots", "value": "2"}]},
        "volumes": [{"name": "company", "configMap": {"name": "present"}}],
        "volumeMounts": [{"name": "company", "mountPath": "/etc/company", "readOnly": true}],
        "env": [{"name": "A", "value": "b"}],
        "envFrom": [{"prefix": "B_", "configMapRef": {"name": "present"}}],
        "labels": {"team": "web"}, "annotations": {"team": "web"},
    });
    let object = json!({"apiVersion": "v1", "kind": "ConfigMap", "name": "present"});
    vec![
        ("minimal", json!({})),
        (
            "pod options",
            json!({
                "runner": {"pod": pod, "serviceAccountName": "present", "tokens": [{"name": "cloud", "audience": "sts.test"}]},
                "containerRegistry": {
                    "imageName": format!("{address}/built/web"),
                    "builder": {"pod": pod, "kind": "Kaniko", "cacheLifetime": "24h"},
                    "prune": {"keep": 3, "olderThan": "48h"},
                },
            }),
        ),
        (
            "inputs",
            json!({
                "variables": {"size": 3, "zones": ["a", "b"]},
                "variablesFrom": [
                    {"configMapRef": {"name": "present", "keys": {"a": "key"}}},
                    {"secretRef": {"name": "present", "keys": {"b": "key"}}},
                    {"objectRef": {"apiVersion": "v1", "kind": "ConfigMap", "name": "present", "values": {"c": "object.data.key"}}},
                ],
                "waitFor": [object], "healthChecks": [object],
                "destroyWaitFor": [{"apiVersion": "v1", "kind": "ConfigMap", "name": "absent"}],
                "outputs": {"secretName": "told", "configMapName": "told", "keys": {"b": "a"}, "labels": {"x": "y"}, "status": ["a"]},
                "notifications": [{"secretRef": {"name": "present"}, "events": ["Failed"]}],
                "terraformRegistries": [{"host": "registry.test", "secretRef": {"name": "present"}}],
                "varFiles": ["common.tfvars"],
            }),
        ),
        (
            "limits",
            json!({
                "gitRepo": {"url": format!("http://{address}/team/infra"), "branch": "main", "interval": "2h", "include": ["modules"]},
                "approval": {"mode": "Manual", "rules": [{"when": "plan.destroy > 0", "then": "Ask"}]},
                "retry": {"limit": 3, "minBackoff": "1s", "maxBackoff": "1m"},
                "timeouts": {"plan": "10m", "apply": "20m", "destroy": "30m"},
                "history": {"runs": 3, "values": "Names"},
                "driftDetection": {"mode": "Report", "interval": "24h"},
                "engine": {"parallelism": 4, "lockTimeout": "1m", "refresh": true},
                "cache": {"size": "2Gi"},
                "deletionProtection": true,
            }),
        ),
        (
            "planned only",
            json!({"mode": "PlanOnly", "backend": {"provider": "managed"}}),
        ),
        (
            "orphaned",
            json!({"deletionPolicy": "Orphan", "cache": {"enabled": false}}),
        ),
        ("suspended", json!({"suspend": true})),
        (
            "inline module",
            json!({"source": {"inline": {"files": {"main.tf": "output \"a\" { value = 1 }\n"}}}}),
        ),
        (
            "module of a registry",
            json!({"source": {"module": {"source": "team/network/aws", "version": "1.2.0", "outputs": [{"name": "a"}]}}}),
        ),
        (
            "OCI artifact",
            json!({"source": {"oci": {"url": format!("oci://{address}/team/artifact"), "tag": "1", "interval": "1h"}}}),
        ),
        (
            "scripts",
            json!({"scripts": {
                "init": {"inline": "terraform init"}, "plan": {"inline": "terraform plan"},
                "apply": {"configMapRef": {"name": "present", "key": "key"}},
                "destroy": {"inline": "terraform destroy"},
            }}),
        ),
        (
            "state in a server",
            json!({
                "backend": {"provider": "http", "address": "http://127.0.0.1:1/state", "secretRef": {"name": "present"}},
                "cache": {"claimName": "present"},
            }),
        ),
    ]
}

/// Writes the module of all seeds into the git repository.
pub(crate) fn write_repository(repository: &Path) {
    let write = |name: &str, text: &str| {
        let file = repository.join(name);
        std::fs::create_dir_all(file.parent().unwrap()).unwrap();
        std::fs::write(file, text).unwrap();
    };
    write("main.tf", "output \"a\" { value = 1 }\n");
    write("common.tfvars", "");
    write("modules/shared/main.tf", "");
}

/// Creates the objects that `seed` and the valid values of edits name.
pub(crate) async fn create_inputs(space: &Space, seed: &Seed) {
    let text = seed.resource.to_string();
    let is_named = |name: &str| name == "present" || text.contains(name);
    let login = r#"{"auths":{}}"#;
    let present = json!({"key": "value", "token": "a-token", "url": "https://127.0.0.1:1/hook", "AWS_REGION": "us-east-1"});
    for (name, data) in [
        ("present", present),
        ("my-registry-secret", json!({".dockerconfigjson": login})),
        ("my-dockerhub-secret", json!({"dockerhub-cred": login})),
        ("aws", json!({"AWS_REGION": "us-east-1"})),
        ("module-credentials", json!({"TOKEN": "a-token"})),
        ("alpha-datastore", json!({"endpoint": "a"})),
        ("bravo-datastore", json!({"endpoint": "b"})),
    ] {
        if is_named(name) {
            let secret = json!({"metadata": {"name": name}, "stringData": data});
            space.create::<Secret>(secret).await;
        }
    }
    for (name, data) in [
        ("present", json!({"key": "value"})),
        (
            "terraform-scripts",
            json!({"apply-script.sh": "true", "destroy-script.sh": "true"}),
        ),
    ] {
        if is_named(name) {
            let map = json!({"metadata": {"name": name}, "data": data});
            space.create::<ConfigMap>(map).await;
        }
    }
    let allowed = json!({"alustan.io/allow-runs": "true", "alustan.io/allow-cache": "true"});
    let metadata = json!({"name": "present", "annotations": allowed});
    space
        .create::<ServiceAccount>(json!({"metadata": metadata}))
        .await;
    let volume =
        json!({"accessModes": ["ReadWriteMany"], "resources": {"requests": {"storage": "1Gi"}}});
    space
        .create::<PersistentVolumeClaim>(json!({"metadata": metadata, "spec": volume}))
        .await;
}
