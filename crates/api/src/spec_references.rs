//! Secrets and ConfigMaps that a spec names.

use crate::references::{KeyRef, NameRef};
use crate::spec::{BackendSpec, ContainerRegistry, GitRepo, RunnerSpec, Scripts, TerraformSpec};
use crate::stack::VariablesFrom;

impl TerraformSpec {
    /// Whether a reconcile reads the Secret `name` in the namespace of the resource. Secrets of `spec.notifications` do not count: the operator
    /// reads them when it delivers a notification.
    pub fn uses_secret(&self, name: &str) -> bool {
        let GitRepo {
            ssh_key_secret,
            credentials_secret,
            ..
        } = &self.git_repo;
        let ContainerRegistry { secret_ref, .. } = &self.container_registry;
        let keys = [ssh_key_secret, secret_ref].into_iter().flatten();
        let backend = self.backend.as_ref();
        let backend = backend.and_then(|BackendSpec { secret_ref, .. }| secret_ref.as_ref());
        let runner = self.runner.iter();
        let environment = runner.flat_map(
            |RunnerSpec {
                 env_from_secrets, ..
             }| env_from_secrets,
        );
        let names = credentials_secret.iter().chain(backend).chain(environment);
        let variables = self.variables_from.iter();
        let mut variables =
            variables.filter_map(|VariablesFrom { secret_ref, .. }| secret_ref.as_ref());
        keys.map(|KeyRef { name, .. }| name)
            .chain(names.map(|NameRef { name }| name))
            .any(|used| used == name)
            || variables.any(|keys| keys.name == name)
    }

    /// Whether a reconcile reads the ConfigMap `name` in the namespace of the resource.
    pub fn uses_config_map(&self, name: &str) -> bool {
        let scripts = self.scripts.iter();
        let scripts = scripts.flat_map(
            |Scripts {
                 init,
                 plan,
                 apply,
                 destroy,
             }| [init, plan, apply, destroy],
        );
        let mut scripts = scripts
            .flatten()
            .filter_map(|script| script.config_map_ref.as_ref());
        let variables = self.variables_from.iter();
        let mut variables = variables.filter_map(|from| from.config_map_ref.as_ref());
        scripts.any(|key| key.name == name) || variables.any(|keys| keys.name == name)
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
                value = match property.strip_suffix("[]") {
                    Some(list) => json!({ list: [value] }),
                    None => json!({ property: value }),
                };
            }
            let mut spec = json!({
                "gitRepo": {"url": "https://git.test/r"},
                "containerRegistry": {"imageName": "registry.test/i"},
            });
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

    #[test]
    fn every_reference_of_the_schema_is_found() {
        let crd = serde_json::to_value(Terraform::crd()).unwrap();
        let schema = &crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"];
        let spec = &schema["properties"]["spec"];
        for (word, least, uses) in [
            (
                "secret",
                6,
                TerraformSpec::uses_secret as fn(&TerraformSpec, &str) -> bool,
            ),
            ("configmap", 5, TerraformSpec::uses_config_map),
        ] {
            let mut found = Vec::new();
            collect(spec, word, &[], &mut found);
            found.retain(|reference| reference.path[0] != "notifications[]");
            assert!(found.len() >= least, "{}", found.len());
            for reference in found {
                let spec = reference.spec();
                let path = reference.path.join(".");
                assert!(uses(&spec, "wanted"), "{path}");
                assert!(!uses(&spec, "other"), "{path}");
            }
        }
    }
}
