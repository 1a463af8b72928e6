//! Where Terraform state lives. A backend is one file and one line in [`providers::of`]; this crate
//! is pure: it says what the engine is told, the runner tells it.

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
mod pg;
mod place;
mod providers;
mod secrets;

pub use address::{address, address_of, described, is_known, is_on_the_volume, is_shared};
pub use backend::{Config, Environment, Invalid, Owner, Since};
pub use place::{Move, place, step};

use alustan_api::run::{BackendInputs, ManagedState};
use alustan_api::{BackendProvider, BackendSpec};
use thiserror::Error;

use backend::config;
use providers::{of, of_kind};

/// Since which version engines take what they are told by `inputs`, where it is not all of them.
pub fn since(inputs: &BackendInputs) -> Option<Since> {
    of_kind(inputs.kind.as_deref()?)?.since(&inputs.config)
}

/// Why a backend cannot be used.
#[derive(Debug, Error, PartialEq, Eq)]
pub enum Error {
    /// The module has a backend of one type, the resource asks for another (rule 11).
    #[error(
        "spec.backend.provider: the module has a `backend \"{module}\"` block, but provider \
         {provider} is a `{wanted}` backend; remove one of them"
    )]
    Conflict {
        /// The type of the module's block.
        module: String,
        /// What the resource asks for.
        provider: &'static str,
        /// The type that goes with it.
        wanted: String,
    },
    /// The module's own `local` backend: its state would end with the pod.
    #[error(
        "the module has a `backend \"local\"` block, whose state would be gone with the pod of each \
         run; set spec.backend.provider: local to keep it on the cache volume, or remove the block"
    )]
    Lost,
    /// A field says what cannot be.
    #[error("spec.backend.{0}")]
    Invalid(#[from] Invalid),
}

impl Error {
    /// The stable reason.
    pub fn reason(&self) -> &'static str {
        match self {
            Self::Conflict { .. } => "BackendConflict",
            Self::Lost | Self::Invalid(_) => "InvalidBackend",
        }
    }
}

/// The type of the backend that a run will use: of the resource, of the module, or managed.
/// `module` is the type of the module's own block.
pub fn kind(spec: Option<&BackendSpec>, module: Option<&str>) -> BackendProviderOrOwn {
    match (spec.and_then(|spec| spec.provider), module) {
        (Some(provider), _) => BackendProviderOrOwn::Provider(provider),
        (None, None) => BackendProviderOrOwn::Provider(BackendProvider::Managed),
        (None, Some(_)) => BackendProviderOrOwn::Own,
    }
}

/// Who decides about the state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BackendProviderOrOwn {
    /// The resource or the default.
    Provider(BackendProvider),
    /// The module's own block.
    Own,
}

/// Whether the state is kept in Secrets of the resource's namespace.
pub fn is_managed(spec: Option<&BackendSpec>, module: Option<&str>) -> bool {
    match kind(spec, module) {
        BackendProviderOrOwn::Provider(provider) => of(provider).managed(),
        BackendProviderOrOwn::Own => false,
    }
}

/// What the runner is told about the backend. `module` is the type of the module's own block,
/// `secret` the data of `spec.backend.secretRef`, `secrets` the Secrets of a managed state.
///
/// # Errors
/// Why it cannot be used.
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
        managed: backend.managed().then(|| secrets.clone()),
    })
}

/// The schema cannot say it, since it knows nothing of what is in `config`.
fn takes_more(spec: &BackendSpec) -> Result<(), Invalid> {
    match spec.provider {
        None | Some(BackendProvider::Managed | BackendProvider::Local) => {
            let why = "only providers other than managed and local take more of a block: remove it, or \
                       name one";
            Err(Invalid::new("config", why))
        }
        Some(_) => Ok(()),
    }
}

/// Refuses provider `generic` for a type that has its own provider.
fn validate_type(provider: BackendProvider, kind: &str) -> Result<(), Invalid> {
    match of_kind(kind).filter(|_| provider == BackendProvider::Generic) {
        Some(known) => Err(Invalid::new(
            "type",
            format!("say provider: {}", known.name()),
        )),
        None => Ok(()),
    }
}

/// The field of `spec` that gives the state another place.
pub fn place_field(spec: &BackendSpec) -> Option<&'static str> {
    spec.provider.map(|provider| of(provider).place_field())
}

#[cfg(test)]
mod tests;
