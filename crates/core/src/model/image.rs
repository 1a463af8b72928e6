//! The runner image: what goes into it, and the tag that follows from that (rule 1).

use alustan_api::paths::{self, LAYERS, RUNNER_LAYER};
use alustan_api::report::{Failure, FailureClass};
use alustan_api::run::{PROTOCOL, PinnedImage};
use alustan_api::{Architecture, BuilderKind, Terraform};
use serde_json::json;

use crate::digest;
use crate::model::base_image;
use crate::observed::SourceSeen;
use crate::settings::Settings;

/// Changes when the layout of runner images changes.
const FORMAT: u32 = 1;

/// What an image is built from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ImagePlan {
    /// Digest over everything below: 40 hexadecimal characters.
    pub tag: String,
    /// The context's digest.
    pub context: String,
    /// The base image by digest.
    pub base: String,
    /// Architecture of the image and of the node that builds it.
    pub architecture: Architecture,
    /// Whether the base image may lack the runner, so that the build brings it.
    pub inject: bool,
    /// The backend that the image is initialised for, so that runs need no `init`.
    pub backend: Option<&'static str>,
    /// The Dockerfile: it only copies (rule 2).
    pub dockerfile: String,
    /// The path of the Dockerfile in the context that stands before ours.
    pub before: Option<String>,
}

/// Why the image of `tf` may not be built as it says.
pub fn refusal(tf: &Terraform, settings: &Settings) -> Option<Failure> {
    unlent(tf, settings)
        .or_else(|| forbidden(tf, settings))
        .or_else(|| unsupported(tf, settings))
}

/// The operator's identity opens registries of others as well.
fn unlent(tf: &Terraform, settings: &Settings) -> Option<Failure> {
    let registry = &tf.spec.container_registry;
    let (helper, name) = (registry.provider.helper(), &registry.image_name);
    (helper.is_some() && !settings.lends_identity_to(name)).then(|| Failure {
        class: FailureClass::User,
        reason: "RegistryIdentityNotAllowed".to_owned(),
        message: format!(
            "spec.containerRegistry.provider: this operator does not use its own identity for {name}; name a \
             Secret in secretRef instead, or start the operator with --identity-registry and the registry, or the \
             part of it that resources may use"
        ),
    })
}

fn forbidden(tf: &Terraform, settings: &Settings) -> Option<Failure> {
    let path = tf.spec.container_registry.dockerfile.as_ref()?;
    (!settings.dockerfiles).then(|| Failure {
        class: FailureClass::User,
        reason: "DockerfileNotAllowed".to_owned(),
        message: format!(
            "spec.containerRegistry.dockerfile: this operator builds from no Dockerfile of a repository ({path}), \
             since its commands would run as root beside the credentials that push; remove the field, or start \
             the operator with --allow-dockerfiles"
        ),
    })
}

/// The API server refuses this, too, unless its CRD is older than this operator.
fn unsupported(tf: &Terraform, settings: &Settings) -> Option<Failure> {
    let path = tf.spec.container_registry.dockerfile.as_ref()?;
    (settings.builder_of(tf) == BuilderKind::Append).then(|| Failure {
        class: FailureClass::User,
        reason: "DockerfileUnsupported".to_owned(),
        message: format!(
            "spec.containerRegistry.dockerfile: builder.kind Append cannot build {path}; set \
             spec.containerRegistry.builder.kind to Kaniko, or remove dockerfile"
        ),
    })
}

/// The image of `tf` for what is in its repository.
pub fn plan(
    tf: &Terraform,
    source: &SourceSeen,
    base: &PinnedImage,
    architecture: Architecture,
    namespace_uid: &str,
    settings: &Settings,
) -> ImagePlan {
    let before = tf.spec.container_registry.dockerfile.clone();
    let inject = before.is_some() || base_image::may_lack_runner(base, settings);
    let from = before.is_none().then_some(base.resolved.as_str());
    let dockerfile = dockerfile(from, inject);
    let managed = alustan_backends::is_managed(tf.spec.backend.as_ref(), source.backend.as_deref());
    let own_init = tf
        .spec
        .scripts
        .as_ref()
        .is_some_and(|scripts| scripts.init.is_some());
    let backend = (managed && source.backend.is_none() && !own_init).then_some("http");
    let mut inputs = json!({
        "context": source.context, "path": source.path, "dockerfile": dockerfile,
        "backend": backend, "architecture": architecture, "format": FORMAT, "protocol": PROTOCOL,
        "namespace": namespace_uid, "repository": repository(tf),
    });
    if let (Some(path), Some(inputs)) = (&before, inputs.as_object_mut()) {
        let before = json!({ "path": path, "base": base.resolved });
        inputs.insert("before".to_owned(), before);
    }
    ImagePlan {
        tag: digest::plain(&inputs).chars().take(40).collect(),
        context: source.context.clone(),
        base: base.resolved.clone(),
        architecture,
        inject,
        backend,
        dockerfile,
        before,
    }
}

/// A digest of what a resource and its repository say of the image, with the base image that the resource `asked` for, if it
/// did. A new base image of the operator, a new protocol and another architecture are not in it: the next run gets them, and
/// none is started for them.
pub(crate) fn content(tf: &Terraform, source: &SourceSeen, asked: Option<&str>) -> String {
    let dockerfile = &tf.spec.container_registry.dockerfile;
    digest::plain(&json!([source.context, repository(tf), dockerfile, asked]))
}

/// The repository of the images of `tf`, under the name that builder, kubelet and operator all know
/// it by: Docker Hub has many, and programs look for its credentials under one.
pub fn repository(tf: &Terraform) -> String {
    canonical(&tf.spec.container_registry.image_name)
}

/// An image's name with its registry, as docker reads it: `web` is `docker.io/library/web`.
pub fn canonical(image: &str) -> String {
    let (host, path) = match image.split_once('/') {
        Some((host, path)) if host == "localhost" || host.contains(['.', ':']) => (host, path),
        _ => (DOCKER_HUB, image),
    };
    match (DOCKER_HUB_NAMES.contains(&host), path.contains('/')) {
        (true, true) => format!("{DOCKER_HUB}/{path}"),
        (true, false) => format!("{DOCKER_HUB}/library/{path}"),
        (false, _) => image.to_owned(),
    }
}

/// Docker Hub.
pub(crate) const DOCKER_HUB: &str = "docker.io";
const DOCKER_HUB_NAMES: [&str; 4] = [
    DOCKER_HUB,
    "index.docker.io",
    "registry-1.docker.io",
    "registry.hub.docker.com",
];

/// The context of `source` in the registry of `tf`, by digest.
pub fn artifact(tf: &Terraform, source: &SourceSeen) -> String {
    format!("{}@{}", repository(tf), source.artifact)
}

fn dockerfile(base: Option<&str>, inject: bool) -> String {
    let from = base.map(|base| format!("FROM {base}"));
    let copies = inject
        .then_some(RUNNER_LAYER)
        .into_iter()
        .chain(LAYERS)
        .map(|layer| {
            let owner = layer.owner;
            let source = layer.source;
            format!("COPY --chown={owner}:{owner} {source}/ {}/", layer.target)
        });
    let user = paths::USER;
    let last = [
        format!("USER {user}:{user}"),
        format!("ENTRYPOINT [\"{}\"]\n", paths::RUNNER),
    ];
    from.into_iter()
        .chain(copies)
        .chain(last)
        .collect::<Vec<_>>()
        .join("\n")
}
