//! Where Terraform state lives. A backend is one file and one line in [`of`]; this crate is pure:
//! it says what the engine is told, the runner tells it.

mod aws;
mod azure;
mod gcp;
mod generic;
mod http;
mod kubernetes;
mod local;
mod managed;
mod pg;
mod place;
mod secrets;

pub use place::{Move, is_known, place, step};

use std::collections::BTreeMap;

use alustan_api::run::{BackendInputs, Bootstrap, ManagedState};
use alustan_api::{BackendProvider, BackendSpec, paths};
use serde_json::Value;
use thiserror::Error;

/// Part of a backend block, by the engine's names.
pub type Config = BTreeMap<String, Value>;
/// Environment variables by name.
pub type Environment = BTreeMap<String, String>;

/// The resource that a state belongs to.
#[derive(Clone, Copy, Debug)]
pub struct Owner<'a> {
    /// Its namespace.
    pub namespace: &'a str,
    /// Its name.
    pub name: &'a str,
}

impl Owner<'_> {
    /// What tells its state from those of others in one place.
    fn path(self) -> String {
        format!("{}/{}", self.namespace, self.name)
    }

    /// The key of its state, where none is given.
    fn key(self, spec: &BackendSpec) -> String {
        let own = spec.key.clone();
        own.unwrap_or_else(|| format!("{}.tfstate", self.path()))
    }
}

/// One kind of backend. Only the first three are needed.
trait Backend: Sync {
    /// The provider's name in `spec.backend.provider`.
    fn name(&self) -> &'static str;

    /// The type of the engine's `backend` block.
    fn kind<'a>(&self, spec: &'a BackendSpec) -> &'a str;

    /// The partial configuration that goes with the block, without `spec.config`; nothing secret.
    fn config(&self, spec: &BackendSpec, owner: Owner<'_>) -> Config;

    /// Names of the block that fields of the spec stand for: `spec.config` may not give them.
    fn fields(&self) -> &'static [(&'static str, &'static str)] {
        &[]
    }

    /// What is wrong with `spec`, beyond what the API server refuses.
    fn validate(&self, _: &BackendSpec, _: Owner<'_>) -> Result<(), Invalid> {
        Ok(())
    }

    /// Since which version engines take a block with `config`, and what wants that.
    fn since(&self, _: &Config) -> Option<Since> {
        None
    }

    /// What is to be made before the first run.
    fn bootstrap(&self, _: &BackendSpec) -> Option<Bootstrap> {
        None
    }

    /// Where a block with `config` has its state, if that is known; nothing secret.
    fn place(&self, _: &Config, _: &Environment) -> Option<String> {
        None
    }

    /// The field of the spec that names another place.
    fn place_field(&self) -> &'static str {
        "config"
    }

    /// Whether `place` is the same for everybody.
    fn is_shared(&self, place: &str) -> bool {
        !place.is_empty()
    }

    /// Whether the state is kept in Secrets by the runner's own server.
    fn managed(&self) -> bool {
        false
    }
}

fn of(provider: BackendProvider) -> &'static dyn Backend {
    match provider {
        BackendProvider::Managed => &managed::Managed,
        BackendProvider::Aws => &aws::Aws,
        BackendProvider::Gcp => &gcp::Gcp,
        BackendProvider::Azure => &azure::Azure,
        BackendProvider::Kubernetes => &kubernetes::Kubernetes,
        BackendProvider::Pg => &pg::Pg,
        BackendProvider::Http => &http::Http,
        BackendProvider::Local => &local::Local,
        BackendProvider::Generic => &generic::Generic,
    }
}

/// The backend of the engine's type `kind`, where there is a provider for it.
fn of_kind(kind: &str) -> Option<&'static dyn Backend> {
    let provider = match kind {
        "s3" => BackendProvider::Aws,
        "gcs" => BackendProvider::Gcp,
        "azurerm" => BackendProvider::Azure,
        "kubernetes" => BackendProvider::Kubernetes,
        "pg" => BackendProvider::Pg,
        "http" => BackendProvider::Http,
        "local" => BackendProvider::Local,
        _ => return None,
    };
    Some(of(provider))
}

/// A version of Terraform and `OpenTofu`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Since {
    /// The version.
    pub version: &'static str,
    /// What wants it, and what does without it.
    pub why: &'static str,
}

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

/// A field says what cannot be.
#[derive(Debug, Error, PartialEq, Eq)]
#[error("{field}: {why}")]
pub struct Invalid {
    /// Its path below `spec.backend`.
    pub field: String,
    /// Why, and what to do.
    pub why: String,
}

impl Invalid {
    fn new(field: impl Into<String>, why: impl Into<String>) -> Self {
        Self {
            field: field.into(),
            why: why.into(),
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

/// Whether the state at `address` is on the cache volume (rule 2).
pub fn is_on_the_volume(address: &str) -> bool {
    let path = address.strip_prefix("local://");
    path.is_some_and(|path| path.starts_with(paths::CACHE))
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

fn config(backend: &dyn Backend, spec: &BackendSpec, owner: Owner<'_>) -> Config {
    let mut config = backend.config(spec, owner);
    let own = spec.config.iter();
    config.extend(own.map(|(name, value)| (name.clone(), value.0.clone())));
    config
}

/// Where the state of a block of the type `kind` lives, such as `s3://bucket/key`, as far as that
/// is known from its `config` and the engine's `environment`.
pub fn address(kind: &str, config: &Config, environment: &Environment) -> String {
    let place = match of_kind(kind) {
        Some(backend) => backend.place(config, environment),
        None => generic::place(kind, config),
    };
    format!("{kind}://{}", place.unwrap_or_default())
}

/// The same of what a run was told.
pub fn address_of(inputs: &BackendInputs) -> Option<String> {
    let kind = inputs
        .kind
        .as_deref()
        .filter(|_| inputs.managed.is_none())?;
    Some(address(kind, &inputs.whole_config(), &inputs.environment))
}

/// The same, where `spec` alone tells.
pub fn described(spec: &BackendSpec, owner: Owner<'_>) -> Option<String> {
    let backend = of(spec.provider?);
    if backend.managed() {
        return None;
    }
    let (kind, config) = (backend.kind(spec), config(backend, spec, owner));
    let address = address(kind, &config, &Environment::new());
    is_known(&address).then_some(address)
}

/// The field of `spec` that gives the state another place.
pub fn place_field(spec: &BackendSpec) -> Option<&'static str> {
    spec.provider.map(|provider| of(provider).place_field())
}

/// Whether an [`address`] names one place for everybody.
pub fn is_shared(address: &str) -> bool {
    let Some((kind, place)) = address.split_once("://") else {
        return false;
    };
    match of_kind(kind) {
        Some(backend) => backend.is_shared(place),
        None => generic::is_shared(kind) && !place.is_empty(),
    }
}

fn text<'a>(config: &'a Config, name: &str) -> Option<&'a str> {
    let text = config.get(name).and_then(Value::as_str);
    text.filter(|it| !it.is_empty())
}

#[cfg(test)]
mod tests;
