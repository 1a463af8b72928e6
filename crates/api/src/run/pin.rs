//! Pin: the Secret with everything that destroy needs.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::architecture::Architecture;
use crate::run::inputs::RunInputs;

/// Pin: everything that destroy needs, written before the first apply starts.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Pin {
    /// Number of the run for which the pin was written.
    pub number: i64,
    /// Runner image by digest.
    pub image: String,
    /// Architecture of the image.
    #[serde(default = "Architecture::own")]
    pub architecture: Architecture,
    /// Tag of the image: a digest of the inputs of the build (rule 1).
    pub tag: String,
    /// Revision of the run.
    pub revision: Option<String>,
    /// Digest of the context in the image.
    pub context: Option<String>,
    /// Reference of the context in the registry, by digest.
    #[serde(default)]
    pub artifact: Option<String>,
    /// Base image by digest. Destroy uses the base image and the context if the runner image does not exist, or if the protocol version of
    /// its runner is not [`PROTOCOL`](super::PROTOCOL).
    #[serde(default)]
    pub base: Option<String>,
    /// [`PROTOCOL`](super::PROTOCOL) of the runner in the image.
    #[serde(default)]
    pub protocol: u32,
    /// Name of the pull secret of the image.
    pub pull_secret: Option<String>,
    /// Docker configuration with the credentials of the registry.
    #[serde(default)]
    pub docker_config: Option<String>,
    /// Spec without variables, which are part of [`Self::inputs`]. Stored as JSON value: a later version that cannot parse the spec can
    /// still read the rest of the pin.
    #[serde(default)]
    pub spec: Value,
    /// Inputs of the run.
    pub inputs: RunInputs,
    /// Values of the Secrets in `spec.runner.envFromSecrets`, by name of the Secret.
    #[serde(default)]
    pub environment: BTreeMap<String, BTreeMap<String, String>>,
    /// Pin of the last apply that reached [`RunPhase::Applying`](super::RunPhase::Applying). Kept until the run [`Self::number`] reaches that
    /// phase.
    #[serde(default)]
    pub before: Option<Box<Self>>,
}

impl Pin {
    /// Returns the pin for destroy: the pin of the last apply that may have changed objects. `attempted` is the number of the last apply that
    /// reached [`RunPhase::Applying`](super::RunPhase::Applying). If [`Self::number`] is higher than `attempted`, the run of `self` has changed
    /// no object: returns [`Self::before`] if it is set. Returns `self` in all other cases.
    pub fn of_what_exists(&self, attempted: i64) -> &Self {
        match &self.before {
            Some(before) if self.number > attempted => before,
            Some(_) | None => self,
        }
    }
}
