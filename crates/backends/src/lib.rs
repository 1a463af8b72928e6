//! Backends of Terraform state: validation, configuration and address. See [`providers`] for a new backend. The crate
//! performs no I/O: it computes [`BackendInputs`], and the runner configures the engine with them.

mod address;
mod aws;
mod azure;
mod backend;
mod gcp;
mod generic;
mod http;
mod kubernetes;
mod local;
mod managed;
mod migration;
mod pg;
mod providers;
mod secrets;

pub use address::{address, address_of, address_of_spec, is_known, is_on_the_volume, is_shared};
pub use backend::{Config, Environment, Invalid, Owner, Since};
pub use migration::{Migration, location, migration};

use alustan_api::run::{BackendInputs, ManagedState};
use alustan_api::{BackendProvider, BackendSpec, DEFAULT_WORKSPACE, Reason};
use serde_json::Value;
use thiserror::Error;

use backend::{Backend, config};
use providers::{of, of_kind};

/// Returns the minimum engine version for `inputs`; `None` if every supported version accepts them.
pub fn since(inputs: &BackendInputs) -> Option<Since> {
    of_kind(inputs.kind.as_deref()?)?.since(&inputs.config)
}

/// Reasons for which a backend cannot be used.
#[derive(Debug, Error, PartialEq, Eq)]
pub enum Error {
    /// Module and resource configure backends of different types (rule 11).
    #[error(
        "spec.backend.provider: the module has a `backend \"{module}\"` block, but provider \
         {provider} is a `{wanted}` backend. Remove the block or the field"
    )]
    Conflict {
        /// Type of the `backend` block in the module.
        module: String,
        /// Provider in `spec.backend.provider`.
        provider: &'static str,
        /// Backend type of that provider.
        wanted: String,
    },
    /// The module has a `local` backend block: the state would be deleted with the pod.
    #[error(
        "the module has a `backend \"local\"` block, whose state would be deleted with the pod of \
         each run. Set spec.backend.provider: local to keep the state on the cache volume, or \
         remove the block"
    )]
    Lost,
    /// `spec.workspace` names a workspace other than `default`, and the backend has no other workspace.
    #[error(
        "spec.workspace: backend {0} has one workspace, `default`. Remove the field, or set \
         spec.backend.provider to a backend with several workspaces, for example aws"
    )]
    Workspace(String),
    /// The environment variable `TF_WORKSPACE` names a workspace other than `default`, and the backend has no other workspace.
    #[error(
        "TF_WORKSPACE, in a Secret of spec.runner.envFromSecrets or spec.backend.secretRef: backend \
         {0} has one workspace, `default`. Remove the variable, or set spec.backend.provider to a \
         backend with several workspaces, for example aws"
    )]
    WorkspaceVariable(String),
    /// `spec.workspace` is `default`, and the environment variable `TF_WORKSPACE` names another workspace.
    #[error(
        "spec.workspace is `default`, but TF_WORKSPACE, in a Secret of spec.runner.envFromSecrets or \
         spec.backend.secretRef, selects another workspace. Remove the variable or the field"
    )]
    WorkspaceConflict,
    /// A field of `spec.backend` has an invalid value.
    #[error("spec.backend.{0}")]
    Invalid(#[from] Invalid),
}

impl Error {
    /// Returns the reason for the condition.
    pub fn reason(&self) -> Reason {
        match self {
            Self::Conflict { .. } | Self::WorkspaceConflict => Reason::BackendConflict,
            Self::Workspace(_) | Self::WorkspaceVariable(_) => Reason::WorkspaceUnsupported,
            Self::Lost | Self::Invalid(_) => Reason::InvalidBackend,
        }
    }
}

/// Returns the backend of a run: the provider in `spec`, else the `backend` block of the module, else the default `managed`. `module`: type of the
/// `backend` block in the module.
pub fn kind(spec: Option<&BackendSpec>, module: Option<&str>) -> BackendProviderOrOwn {
    match (spec.and_then(|spec| spec.provider), module) {
        (Some(provider), _) => BackendProviderOrOwn::Provider(provider),
        (None, None) => BackendProviderOrOwn::Provider(BackendProvider::Managed),
        (None, Some(_)) => BackendProviderOrOwn::Own,
    }
}

/// Origin of the backend configuration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BackendProviderOrOwn {
    /// `spec.backend.provider`, or the default `managed`.
    Provider(BackendProvider),
    /// The `backend` block of the module.
    Own,
}

/// Whether the state is in Secrets in the namespace of the resource (rule 12).
pub fn is_managed(spec: Option<&BackendSpec>, module: Option<&str>) -> bool {
    match kind(spec, module) {
        BackendProviderOrOwn::Provider(provider) => of(provider).managed(),
        BackendProviderOrOwn::Own => false,
    }
}

/// Returns the backend configuration for the runner.
///
/// `module`: type of the `backend` block in the module. `secret`: data of `spec.backend.secretRef`. `secrets`: names of the Secrets of a
/// managed state.
///
/// # Errors
/// [`Error`] if the backend cannot be used.
pub fn inputs(
    spec: Option<&BackendSpec>,
    module: Option<&str>,
    owner: Owner<'_>,
    secret: Environment,
    secrets: &ManagedState,
) -> Result<BackendInputs, Error> {
    let (environment, secret_config) = secrets::split(secret);
    if let Some(spec) = spec.filter(|spec| !spec.config.is_empty()) {
        takes_more(spec)?;
    }
    let BackendProviderOrOwn::Provider(provider) = kind(spec, module) else {
        return match module {
            Some("local") => Err(Error::Lost),
            Some(_) | None => Ok(BackendInputs {
                kind: None,
                write_block: false,
                config: Config::new(),
                environment,
                secret_config,
                bootstrap: None,
                workspace: None,
                managed: None,
            }),
        };
    };
    let (backend, none) = (of(provider), BackendSpec::default());
    let spec = spec.unwrap_or(&none);
    let kind = backend.kind(spec);
    if let Some(module) = module.filter(|module| *module != kind) {
        return Err(Error::Conflict {
            module: module.to_owned(),
            provider: backend.name(),
            wanted: kind.to_owned(),
        });
    }
    backend.validate(spec, owner)?;
    validate_type(provider, kind)?;
    secrets::validate(backend, spec)?;
    secrets::validate_keys(backend, spec, &secret_config)?;
    Ok(BackendInputs {
        kind: Some(kind.to_owned()),
        write_block: module.is_none(),
        config: config(backend, spec, owner),
        environment,
        secret_config,
        bootstrap: backend.bootstrap(spec),
        workspace: None,
        managed: backend.managed().then(|| secrets.clone()),
    })
}

/// Checks the workspace of a run. `module`: type of the `backend` block in the module. `workspace`: `spec.workspace`. `variable`: value of the
/// environment variable `TF_WORKSPACE`.
///
/// # Errors
/// - [`Error::Workspace`] or [`Error::WorkspaceVariable`] if the backend has only the workspace `default`.
/// - [`Error::WorkspaceConflict`] if `workspace` is `default` and `variable` another workspace: the runner would use the variable.
pub fn check_workspace(
    spec: Option<&BackendSpec>,
    module: Option<&str>,
    workspace: Option<&str>,
    variable: Option<&str>,
) -> Result<(), Error> {
    let selects_other = |name: Option<&str>| name.is_some_and(is_other_workspace);
    let name = match kind(spec, module) {
        BackendProviderOrOwn::Provider(provider) => {
            let backend = of(provider);
            (!backend.has_workspaces()).then(|| backend.name())
        }
        BackendProviderOrOwn::Own => module.filter(|kind| !has_workspaces(kind)),
    };
    match name {
        Some(name) if selects_other(workspace) => Err(Error::Workspace(name.to_owned())),
        Some(name) if selects_other(variable) => Err(Error::WorkspaceVariable(name.to_owned())),
        _ if workspace == Some(DEFAULT_WORKSPACE) && selects_other(variable) => {
            Err(Error::WorkspaceConflict)
        }
        Some(_) | None => Ok(()),
    }
}

/// Whether backends of type `kind` in the engine, for example `s3`, have workspaces other than `default`. True if the type is unknown.
pub fn has_workspaces(kind: &str) -> bool {
    of_kind(kind).is_none_or(Backend::has_workspaces)
}

/// Whether `TF_WORKSPACE` with the value `variable` selects a workspace other than `default`.
pub fn is_other_workspace(variable: &str) -> bool {
    !variable.is_empty() && variable != DEFAULT_WORKSPACE
}

/// Refuses `spec.backend.config` if the provider is absent, `managed` or `local`. The CRD has no CEL rule for this: CEL cannot read
/// `config`, because its values have no type in the schema.
fn takes_more(spec: &BackendSpec) -> Result<(), Invalid> {
    match spec.provider {
        None | Some(BackendProvider::Managed | BackendProvider::Local) => {
            let why = "requires a provider other than managed and local: remove the field, or set \
                       another provider";
            Err(Invalid::new("config", why))
        }
        Some(_) => Ok(()),
    }
}

/// Refuses provider `generic` for a type that has a dedicated provider.
fn validate_type(provider: BackendProvider, kind: &str) -> Result<(), Invalid> {
    match of_kind(kind).filter(|_| provider == BackendProvider::Generic) {
        Some(known) => Err(Invalid::new(
            "type",
            format!("use provider: {}", known.name()),
        )),
        None => Ok(()),
    }
}

/// Returns the provider for `backend` blocks of type `kind`, with its pairs of block argument and field of `spec.backend`. `None` if only provider
/// `generic` supports the type.
pub fn fields_of(kind: &str) -> Option<(&'static str, &'static [(&'static str, &'static str)])> {
    of_kind(kind).map(|backend| (backend.name(), backend.fields()))
}

/// Whether `value` of the block argument `name` looks like a secret. `spec.backend.config` must not contain it.
pub fn holds_secret(name: &str, value: &Value) -> bool {
    secrets::refuse(name, name, value).is_err()
}

/// Returns the field of `spec` that sets the location of the state. `None` without a provider.
pub fn location_field(spec: &BackendSpec) -> Option<&'static str> {
    spec.provider.map(|provider| of(provider).location_field())
}

#[cfg(test)]
mod tests;
