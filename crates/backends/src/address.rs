//! Address of a state, such as `s3://bucket/key`, from the configuration of its backend.

use alustan_api::run::BackendInputs;
use alustan_api::{BackendSpec, paths};

use crate::backend::{Config, Environment, Owner, config};
use crate::generic;
use crate::providers::{of, of_kind};

/// Whether the state at `address` is on the cache volume (rule 2).
pub fn is_on_the_volume(address: &str) -> bool {
    let path = address.strip_prefix("local://");
    path.is_some_and(|path| path.starts_with(paths::CACHE))
}

/// Returns the address of the state of a backend of type `kind`, such as `s3://bucket/key`. `workspace`: workspace of the engine, `None` for
/// `default`. The part after `://` is empty if `config` and the `environment` of the engine do not determine the location.
pub fn address(
    kind: &str,
    config: &Config,
    environment: &Environment,
    workspace: Option<&str>,
) -> String {
    let backend = of_kind(kind);
    let location = match backend {
        Some(backend) => backend.location(config, environment),
        None => generic::location(kind, config),
    };
    let location = match (location, workspace) {
        (Some(location), Some(workspace)) => Some(match backend {
            Some(backend) => backend.location_in(workspace, &location, config),
            None => format!("{location}#{workspace}"),
        }),
        (location, _) => location,
    };
    format!("{kind}://{}", location.unwrap_or_default())
}

/// Returns the address of the state of a run; `None` for a managed state and for a backend block of the module.
pub fn address_of(inputs: &BackendInputs) -> Option<String> {
    let kind = inputs
        .kind
        .as_deref()
        .filter(|_| inputs.managed.is_none())?;
    let workspace = inputs.workspace.as_deref();
    Some(address(
        kind,
        &inputs.whole_config(),
        &inputs.environment,
        workspace,
    ))
}

/// Returns the address that `spec` and `workspace` determine without the environment of the engine. `None` for a managed state, without a
/// provider, or if `spec` does not determine the location.
pub fn address_of_spec(
    spec: &BackendSpec,
    owner: Owner<'_>,
    workspace: Option<&str>,
) -> Option<String> {
    let backend = of(spec.provider?);
    if backend.managed() {
        return None;
    }
    let (kind, config) = (backend.kind(spec), config(backend, spec, owner));
    let address = address(kind, &config, &Environment::new(), workspace);
    is_known(&address).then_some(address)
}

/// Whether an [`address`] refers to the same state in every pod, so that two resources with this address use one state.
pub fn is_shared(address: &str) -> bool {
    let Some((kind, location)) = address.split_once("://") else {
        return false;
    };
    match of_kind(kind) {
        Some(backend) => backend.is_shared(location),
        None => generic::is_shared(kind) && !location.is_empty(),
    }
}

/// Whether an [`address`] has a location after `://`.
pub fn is_known(address: &str) -> bool {
    !address.ends_with("://")
}
