//! Client of OCI registries: image references, credentials, context artifacts, and images with appended layers.
//!
//! [`ImageName`], [`ImageRef`] and [`Digest`] validate input. [`DockerConfig`] reads the credentials of a Secret. [`Registry`] sends
//! requests. The controller pushes contexts and requests image digests. The build pod pulls contexts and can append layers to a base image.
//! A program that uses [`Registry`] must install a crypto provider of rustls in `main`; this crate installs none.

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
mod version_range;

pub use artifact::{
    ARTIFACT_TYPE, LAYER_TYPE, ModuleArtifact, ModuleFormat, artifact_digest, context_tag,
};
pub use credential::{Access, Credential};
pub use docker_config::DockerConfig;
pub use error::{Error, Failure};
pub use image::{ImageConfig, Layer};
pub use name::ImageName;
pub use prune::{Policy, RunnerImage, TaggedImage, Used, choose, is_image_tag};
pub use reference::{Digest, Hasher, ImageRef};
pub use registry::{Options, Registry};
pub use version_range::VersionRange;
