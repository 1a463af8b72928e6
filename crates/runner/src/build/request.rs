//! Inputs of the steps of a build, from the environment variables of their containers.

use alustan_api::report::Failure;
use alustan_api::{Reason, WrapperName};

use crate::failure::module;
use crate::paths::Vars;

/// Inputs of [`pull`](super::pull).
pub struct ContextRequest {
    /// Reference of the context artifact, by digest.
    pub context: String,
    /// Dockerfile for the builder.
    pub dockerfile: String,
    /// Path, in the context, of the user's Dockerfile, which is inserted before [`Self::dockerfile`].
    pub before: Option<String>,
    /// Whether to add the runner to the image, because the base image does not contain the runner.
    pub inject: bool,
}

impl ContextRequest {
    /// Reads the inputs from environment variables.
    pub fn from_vars(vars: &Vars) -> Result<Self, Failure> {
        let needed = |name: &str| {
            vars.get(name)
                .cloned()
                .ok_or_else(|| module(Reason::PrepareFailed, format!("{name} is not set")))
        };
        Ok(Self {
            context: needed("ALUSTAN_CONTEXT")?,
            dockerfile: needed("ALUSTAN_DOCKERFILE")?,
            before: vars.get("ALUSTAN_DOCKERFILE_BEFORE").cloned(),
            inject: vars
                .get("ALUSTAN_INJECT")
                .is_some_and(|value| value == "true"),
        })
    }
}

/// Inputs of [`prepare`](super::prepare).
pub(super) struct ModuleRequest {
    /// Path of the module in the context.
    pub(super) path: String,
    /// Type of the backend with which `init` runs; `None` for `-backend=false`.
    pub(super) backend: Option<String>,
    /// Wrapper whose configuration names the module.
    pub(super) wrapper: Option<WrapperName>,
}

impl ModuleRequest {
    /// Reads the inputs from environment variables.
    pub(super) fn from_vars(vars: &Vars) -> Self {
        let text = |name: &str| vars.get(name).cloned().unwrap_or_default();
        Self {
            path: text("ALUSTAN_MODULE_PATH"),
            backend: Some(text("ALUSTAN_BACKEND_KIND")).filter(|kind| !kind.is_empty()),
            wrapper: WrapperName::parse(&text("ALUSTAN_WRAPPER")),
        }
    }
}
