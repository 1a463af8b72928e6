//! References, credentials and context artifacts in OCI registries.
//!
//! [`ImageName`], [`ImageRef`] and [`Digest`] are read at the edge, [`DockerConfig`] reads the credentials of a
//! Secret, [`Registry`] asks and pushes. The controller pushes contexts and looks for images; the build pod pulls contexts and
//! can append layers to a base image.
//! No crypto provider is installed here: the program does that first of all in `main`.

mod artifact;
mod auth;
mod credential;
mod docker_config;
mod error;
mod helper;
mod image;
mod name;
mod prune;
mod reference;
mod registry;
mod session;

pub use artifact::{ARTIFACT_TYPE, LAYER_TYPE, artifact_digest, context_tag};
pub use credential::{Access, Credential};
pub use docker_config::DockerConfig;
pub use error::{Error, Failure};
pub use image::{ImageConfig, Layer};
pub use name::ImageName;
pub use prune::{Found, Ours, Policy, Used, choose, is_image_tag};
pub use reference::{Digest, Hasher, ImageRef};
pub use registry::{Options, Registry};
