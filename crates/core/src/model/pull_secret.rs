//! Registry credentials of a resource: the Secrets for its pods, and the docker configuration in its pin.

use alustan_api::run::Pin;
use alustan_api::{Terraform, names};
use kube_core::ResourceExt;

use crate::observed::{RecordSeen, Seen};

/// Returns name and key of the Secret with the docker configuration; `None` without `containerRegistry.secretRef`. Normally this is the
/// Secret in `containerRegistry.secretRef`. If the kubelet or kaniko cannot read the format of that Secret, it is the pull secret that the
/// operator derives from it. If that Secret is missing during a destroy, it is the pull secret that the operator derives from the pin.
pub(crate) fn docker_secret<'a>(tf: &Terraform, seen: &'a Seen) -> Option<(String, &'a str)> {
    let inputs = seen.found();
    if inputs.pull_config.is_some() {
        return Some((names::pull_secret(&tf.name_any()), names::DOCKER_CONFIG_KEY));
    }
    let secret_ref = tf.spec.container_registry.secret_ref.as_ref()?;
    Some((secret_ref.name.clone(), inputs.registry_key.as_deref()?))
}

/// Returns the name of the pull secret of the runner image: the Secret in `containerRegistry.secretRef`, or the pull secret that the
/// operator derives from it. If a Secret or ConfigMap that the spec names is missing, returns the name that the pin contains.
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

/// Returns the docker configuration in the `pin` of the last apply, for requests to the registry. `None` if `tf` is not deleted or names no
/// registry Secret.
pub fn docker_config<'a>(
    tf: &Terraform,
    record: Option<&RecordSeen>,
    pin: Option<&'a Pin>,
) -> Option<&'a str> {
    tf.metadata.deletion_timestamp.as_ref()?;
    tf.spec.container_registry.secret_ref.as_ref()?;
    let attempted = record.map_or(i64::MAX, |record| record.record.attempted);
    let pin = pin?.of_what_exists(attempted);
    pin.docker_config.as_deref()
}
