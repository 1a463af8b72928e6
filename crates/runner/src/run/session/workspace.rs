//! Workspace of the engine in which a run plans, applies and destroys (`spec.workspace`).

use alustan_api::Reason;
use alustan_api::report::Failure;
use alustan_api::run::BackendInputs;

use crate::failure::user;
use crate::paths::Vars;

/// Environment variable that selects the workspace of every engine command.
pub(super) const VARIABLE: &str = "TF_WORKSPACE";

/// Message of the engine if `init` finds several workspaces in the backend, but not the selected workspace.
const MISSING: &str = "Currently selected workspace";

/// Returns the environment variable that selects the workspace of `backend`. `None` for the workspace `default`.
pub(super) fn workspace(backend: &BackendInputs) -> Option<(String, String)> {
    let name = backend.workspace.clone()?;
    Some((VARIABLE.to_owned(), name))
}

/// Whether `init` failed because `backend` does not have its workspace yet.
pub(super) fn is_missing(failure: &Failure, backend: &BackendInputs) -> bool {
    backend.workspace.is_some()
        && failure.message.contains(MISSING)
        && failure.message.contains("does not exist")
}

/// Fails if `environment`, from the image or from Secrets, selects a workspace that `backend` does not have. The engine would fail with
/// *workspaces not supported*. The message does not contain the value, which may come from a Secret.
pub(super) fn refuse_workspace(backend: &BackendInputs, environment: &Vars) -> Result<(), Failure> {
    let is_http = backend.managed.is_some() || backend.kind.as_deref() == Some("http");
    let selects_other = environment
        .get(VARIABLE)
        .is_some_and(|name| alustan_backends::is_other_workspace(name));
    if !is_http || !selects_other {
        return Ok(());
    }
    let name = if backend.managed.is_some() {
        "managed"
    } else {
        "http"
    };
    let message = format!(
        "the environment of the run sets {VARIABLE}, but backend {name} has one workspace, `default`. \
         Nothing was changed. Remove the variable from the image and from spec.runner, or set \
         spec.backend.provider to a backend with several workspaces"
    );
    Err(user(Reason::WorkspaceUnsupported, message))
}
