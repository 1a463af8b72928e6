//! Request of a build, from the environment of the pod.

use alustan_api::report::Failure;

use crate::failure::module;
use crate::layout::Vars;

/// Inputs of a build.
pub struct Request {
    /// Reference of the context artifact, by digest.
    pub context: String,
    /// Path of the module in the context.
    pub path: String,
    /// Text of the Dockerfile for the builder.
    pub dockerfile: String,
    /// Path in the context of the Dockerfile that precedes [`Self::dockerfile`].
    pub before: Option<String>,
    /// Type of the backend to initialise the module for; `None` for `-backend=false`.
    pub backend: Option<String>,
    /// Whether to add the runner to the image, because the base image has none.
    pub inject: bool,
}

impl Request {
    /// Reads the request from the environment.
    pub fn from_vars(vars: &Vars) -> Result<Self, Failure> {
        let text = |name: &str| vars.get(name).cloned().unwrap_or_default();
        let needed = |name: &str| {
            vars.get(name)
                .cloned()
                .ok_or_else(|| module("PrepareFailed", format!("{name} is not set")))
        };
        Ok(Self {
            context: needed("ALUSTAN_CONTEXT")?,
            path: text("ALUSTAN_MODULE_PATH"),
            dockerfile: needed("ALUSTAN_DOCKERFILE")?,
            before: vars.get("ALUSTAN_DOCKERFILE_BEFORE").cloned(),
            backend: Some(text("ALUSTAN_BACKEND_KIND")).filter(|kind| !kind.is_empty()),
            inject: text("ALUSTAN_INJECT") == "true",
        })
    }
}
