//! Secrets and ConfigMaps that a spec names.

use crate::spec::TerraformSpec;

impl TerraformSpec {
    /// Returns the names of the Secrets in the namespace of the resource that a reconcile reads, possibly with duplicates. Secrets of
    /// `spec.notifications` are not included: the operator reads them when it delivers a notification. Of the Secrets in pod options, only those
    /// in `envFrom` of runs are included: the operator reads their keys, so that the runner can mask the values. The kubelet reads the others.
    pub fn secret_names(&self) -> impl Iterator<Item = &str> {
        let repository = self.git_repo.as_ref();
        let artifact = self.source.as_ref().and_then(|source| source.oci.as_ref());
        let keys = [
            repository.and_then(|repository| repository.ssh_key_secret.as_ref()),
            artifact.and_then(|artifact| artifact.secret_ref.as_ref()),
            self.container_registry.secret_ref.as_ref(),
        ]
        .into_iter()
        .flatten()
        .map(|key| &key.name);
        let backend = self.backend.iter().flat_map(|backend| &backend.secret_ref);
        let environment = self
            .runner
            .iter()
            .flat_map(|runner| &runner.env_from_secrets);
        let github_app = repository
            .and_then(|repository| repository.github_app.as_ref())
            .map(|app| &app.secret_ref);
        let secrets = repository
            .and_then(|repository| repository.credentials_secret.as_ref())
            .into_iter()
            .chain(github_app)
            .chain(backend)
            .chain(environment);
        let registries = self.terraform_registries.iter();
        let pod = self.runner.iter().flat_map(|runner| &runner.pod);
        let pod = pod
            .flat_map(|pod| &pod.env_from)
            .flat_map(|source| &source.secret_ref);
        let variables = self.variables_from.iter().flat_map(|from| &from.secret_ref);
        keys.chain(secrets.map(|secret| &secret.name))
            .chain(variables.map(|keys| &keys.name))
            .chain(registries.map(|registry| &registry.secret_ref.name))
            .chain(pod.map(|secret| &secret.name))
            .map(String::as_str)
    }

    /// Returns the names of the ConfigMaps in the namespace of the resource that a reconcile reads, possibly with duplicates.
    pub fn config_map_names(&self) -> impl Iterator<Item = &str> {
        let scripts = self.scripts.iter();
        let scripts = scripts
            .flat_map(|scripts| {
                [
                    &scripts.init,
                    &scripts.plan,
                    &scripts.apply,
                    &scripts.destroy,
                ]
            })
            .flatten()
            .flat_map(|script| &script.config_map_ref);
        let variables = self
            .variables_from
            .iter()
            .flat_map(|from| &from.config_map_ref);
        scripts
            .map(|key| &key.name)
            .chain(variables.map(|keys| &keys.name))
            .map(String::as_str)
    }
}

#[cfg(test)]
mod tests {
    use kube_core::CustomResourceExt as _;
    use serde_json::{Value, json};

    use super::*;
    use crate::Terraform;

    /// Reference in the schema of the CRD.
    struct Reference {
        /// Properties below `spec`. A property with `[]` is an item of a list.
        path: Vec<String>,
        is_list: bool,
        /// Whether the reference names one key of the object.
        has_key: bool,
    }

    impl Reference {
        /// Returns a spec that contains only this reference, to the object `wanted`.
        fn spec(&self) -> TerraformSpec {
            let mut value = json!({"name": "wanted"});
            if self.has_key {
                value["key"] = json!("k");
            }
            if self.is_list {
                value = json!([value]);
            }
            for property in self.path.iter().rev() {
                if property == "terraformRegistries[]" {
                    value["host"] = json!("registry.test");
                }
                value = match property.strip_suffix("[]") {
                    Some(list) => json!({ list: [value] }),
                    None => json!({ property: value }),
                };
            }
            let mut spec = json!({
                "gitRepo": {"url": "https://git.test/r"},
                "containerRegistry": {"imageName": "registry.test/i"},
            });
            if self
                .path
                .starts_with(&["source".to_owned(), "oci".to_owned()])
            {
                spec["source"] = json!({"oci": {"url": "oci://registry.test/m"}});
            }
            merge(&mut spec, value);
            serde_json::from_value(spec).unwrap()
        }
    }

    fn merge(into: &mut Value, from: Value) {
        match (into, from) {
            (Value::Object(into), Value::Object(from)) => {
                for (name, value) in from {
                    merge(into.entry(name).or_insert(Value::Null), value);
                }
            }
            (into, from) => *into = from,
        }
    }

    /// Collects the properties below `schema` that name a Secret (`word`: `secret`) or a ConfigMap (`configmap`).
    fn collect(schema: &Value, word: &str, path: &[String], found: &mut Vec<Reference>) {
        for (name, property) in schema["properties"].as_object().into_iter().flatten() {
            let is_list = property["type"] == "array";
            let object = if is_list {
                &property["items"]
            } else {
                property
            };
            let is_reference = object["properties"]["name"].is_object();
            let mut below = path.to_vec();
            if is_reference && name.to_lowercase().contains(word) {
                below.push(name.clone());
                found.push(Reference {
                    path: below,
                    is_list,
                    has_key: object["properties"]["key"].is_object(),
                });
                continue;
            }
            below.push(if is_list {
                format!("{name}[]")
            } else {
                name.clone()
            });
            collect(object, word, &below, found);
        }
    }

    /// References in pod options that only the kubelet reads.
    const READ_BY_KUBELET: [&str; 9] = [
        "env[].valueFrom.configMapKeyRef",
        "env[].valueFrom.secretKeyRef",
        "envFrom[].configMapRef",
        "imagePullSecrets",
        "volumes[].configMap",
        "volumes[].csi.nodePublishSecretRef",
        "volumes[].projected.sources[].configMap",
        "volumes[].projected.sources[].secret",
        // In builds. The operator reads the Secrets in `envFrom` of runs.
        "builder.pod.envFrom[].secretRef",
    ];

    #[test]
    fn every_reference_of_the_schema_is_found() {
        let crd = serde_json::to_value(Terraform::crd()).unwrap();
        let schema = &crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"];
        let spec = &schema["properties"]["spec"];
        let secret_names: fn(&TerraformSpec) -> Vec<&str> = |spec| spec.secret_names().collect();
        let config_map_names: fn(&TerraformSpec) -> Vec<&str> =
            |spec| spec.config_map_names().collect();
        for (word, least, names) in [
            ("secret", 6, secret_names),
            ("configmap", 5, config_map_names),
        ] {
            let mut found = Vec::new();
            collect(spec, word, &[], &mut found);
            found.retain(|reference| reference.path[0] != "notifications[]");
            assert!(found.len() >= least, "{}", found.len());
            for reference in found {
                let path = reference.path.join(".");
                let in_pod = path.contains(".pod.");
                if in_pod && READ_BY_KUBELET.iter().any(|end| path.ends_with(end)) {
                    continue;
                }
                let spec = reference.spec();
                assert_eq!(names(&spec), ["wanted"], "{path}");
            }
        }
    }
}
