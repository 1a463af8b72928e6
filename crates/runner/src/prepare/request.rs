//! Request of a build, from the environment of the pod.

use alustan_api::report::Failure;

use crate::failure::module;
use crate::layout::Vars;

/// What the build asks for.
pub struct Request {
    /// The context artifact, by digest.
    pub context: String,
    /// Path of the module in the context.
    pub path: String,
    /// The Dockerfile for the builder.
    pub dockerfile: String,
    /// The path of the Dockerfile in the context that comes first.
    pub before: Option<String>,
    /// The backend to initialise the module for; `None` for none.
    pub backend: Option<String>,
    /// Whether the image needs a runner, because its base has none.
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
