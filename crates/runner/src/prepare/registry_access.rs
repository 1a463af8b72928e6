//! Client and credentials of the registries that a build reads from and pushes to.

use std::fs;
use std::path::Path;

use alustan_api::report::{Failure, FailureClass};
use alustan_registry::{Access, DockerConfig, ImageRef, Options, Registry};

use crate::certificates;
use crate::failure::{chain, failure};
use crate::layout::Vars;

/// Creates the client of registries from the environment.
pub(super) fn registry(vars: &Vars) -> Result<Registry, Failure> {
    let insecure = vars.get("ALUSTAN_INSECURE_REGISTRIES");
    let insecure = insecure.iter().flat_map(|hosts| hosts.split(','));
    let options = Options {
        insecure_hosts: insecure
            .map(str::trim)
            .filter(|host| !host.is_empty())
            .map(str::to_owned)
            .collect(),
        ca_pem: Vec::from_iter(vars.get(certificates::BUNDLE).cloned()),
        ..Options::default()
    };
    Registry::new(options).map_err(|error| of_registry(&error))
}

/// Returns the access to `image` in a build that pushes to the registry `own`. The credential helper serves only that registry: a base
/// image in another one is read with the login of the docker configuration, or anonymously.
pub(super) fn access(image: &ImageRef, own: &str, vars: &Vars) -> Result<Access, Failure> {
    let same = image.name().registry() == own;
    let helper = vars.get("ALUSTAN_CREDENTIAL_HELPER").filter(|_| same);
    let file = Path::new(vars.get("DOCKER_CONFIG").map_or("", String::as_str)).join("config.json");
    let config = fs::read(file)
        .ok()
        .map(|bytes| DockerConfig::parse(&bytes))
        .transpose()
        .map_err(|error| of_registry(&error))?;
    let login = config.as_ref().map(|config| config.open(image.name()));
    let credential = match login.transpose() {
        Err(error) if same && helper.is_none() => return Err(of_registry(&error)),
        login => login.ok().flatten().flatten().cloned(),
    };
    Ok(Access {
        credential,
        helper: helper.cloned(),
        ..Access::default()
    })
}

/// Converts an error of a registry to a failure. The user must resolve only invalid credentials and names. Any other response may differ on
/// the next attempt, so it counts as a failed build (rule 10).
pub(super) fn of_registry(error: &alustan_registry::Error) -> Failure {
    use alustan_registry::{Error, Failure as Refused};
    let class = match error {
        Error::InvalidImageName { .. }
        | Error::InvalidCredentials { .. }
        | Error::Request {
            failure: Refused::Unauthorized | Refused::Forbidden,
            ..
        } => FailureClass::User,
        Error::LayerFile { .. } => FailureClass::Transient,
        error if error.is_transient() => FailureClass::Transient,
        _ => FailureClass::Module,
    };
    failure(class, error.reason(), chain(error))
}
