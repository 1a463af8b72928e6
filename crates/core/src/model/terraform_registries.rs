//! Registries of modules and providers in `spec.terraformRegistries`.

use std::collections::BTreeSet;

use alustan_api::report::{Failure, RunReport};
use alustan_api::{
    MAX_TERRAFORM_REGISTRIES, Reason, Terraform, TerraformRegistry, check_registry_host, names,
};
use serde_json::{Value, json};

/// Prefix of the ASCII form of a label with other characters, in an internationalized host name (RFC 5890).
const ACE_PREFIX: &str = "xn--";

/// Returns the key of a token in a build Secret. `index`: index of the entry in `spec.terraformRegistries`.
pub fn token_key(index: usize) -> String {
    format!("terraform-registry-{index}")
}

/// Returns the failure of the first invalid entry. The CRD has the same checks; this check covers a CRD that is older than the operator.
pub(crate) fn violation(tf: &Terraform) -> Option<Failure> {
    let registries = &tf.spec.terraform_registries;
    let invalid = |message: String| Some(Failure::user(Reason::TerraformRegistryInvalid, message));
    if registries.len() > MAX_TERRAFORM_REGISTRIES {
        let count = registries.len();
        return invalid(format!(
            "spec.terraformRegistries: {count} entries; at most {MAX_TERRAFORM_REGISTRIES} are allowed"
        ));
    }
    let mut hosts = BTreeSet::new();
    for (index, TerraformRegistry { host, secret_ref }) in registries.iter().enumerate() {
        let path = format!("spec.terraformRegistries[{index}]");
        if let Err(why) = check_registry_host(host) {
            return invalid(format!("{path}.host {why}"));
        }
        if !hosts.insert(host) {
            return invalid(format!(
                "{path}.host: {host} has another entry; remove one of them"
            ));
        }
        if names::is_reserved_secret(&secret_ref.name) {
            return invalid(format!(
                "{path}.secretRef.name: {} is the name of a Secret of the operator; use another Secret",
                secret_ref.name
            ));
        }
    }
    None
}

/// Returns the entries as inputs of an image; `None` without entries. Resources share a build only if their entries have the same hosts and
/// Secrets in the same order: the build pod assigns tokens to hosts by their index.
pub(crate) fn inputs_of_build(tf: &Terraform) -> Option<Value> {
    let registries = &tf.spec.terraform_registries;
    (!registries.is_empty()).then(|| json!(registries))
}

/// Returns the hosts in the spec of `tf` of which the module uses neither modules nor providers, as `field (host)`. `last`: report of the last
/// run. Skips internationalized hosts, because the engine records their Unicode form.
pub(crate) fn unused(tf: &Terraform, last: Option<&RunReport>) -> Vec<String> {
    let Some(used) = last.and_then(|report| report.registry_hosts.as_ref()) else {
        return Vec::new();
    };
    let registries = tf.spec.terraform_registries.iter().enumerate();
    registries
        .filter(|(_, registry)| !used.contains(&registry.host))
        .filter(|(_, registry)| !registry.host.contains(ACE_PREFIX))
        .map(|(index, registry)| {
            format!("spec.terraformRegistries[{index}].host ({})", registry.host)
        })
        .collect()
}
