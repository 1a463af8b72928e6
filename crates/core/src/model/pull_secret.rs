//! Secrets with registry credentials for the pods of a resource.

use alustan_api::{Terraform, names};
use kube_core::ResourceExt;

use crate::objects::secrets;
use crate::observed::Seen;

/// Returns name and key of the Secret with the docker configuration: the Secret in `containerRegistry.secretRef`, or the pull secret that
/// the operator derives. The operator derives a pull secret if the kubelet or kaniko cannot read the format of that Secret, and, from the
/// pin, if that Secret is missing during a destroy.
pub(crate) fn docker_secret<'a>(tf: &Terraform, seen: &'a Seen) -> Option<(String, &'a str)> {
    let inputs = seen.found();
    if inputs.pull_config.is_some() {
        return Some((names::pull_secret(&tf.name_any()), secrets::DOCKER_CONFIG));
    }
    let secret_ref = tf.spec.container_registry.secret_ref.as_ref()?;
    Some((secret_ref.name.clone(), inputs.registry_key.as_deref()?))
}

/// Returns the name of the pull secret of the runner image: the Secret in `containerRegistry.secretRef`, or the pull secret that the
/// operator derives from it. If an input of the spec is missing, returns the pull secret that the pin names.
pub fn pull_secret(tf: &Terraform, seen: &Seen) -> Option<String> {
    let secret_name = tf
        .spec
        .container_registry
        .secret_ref
        .as_ref()
        .map(|secret| secret.name.clone());
    match &seen.inputs {
        Ok(inputs) if inputs.pull_config.is_some() => Some(names::pull_secret(&tf.name_any())),
        Ok(_) => secret_name,
        Err(_) => seen
            .pin
            .as_ref()
            .map_or(secret_name, |pin| pin.pull_secret.clone()),
    }
}
