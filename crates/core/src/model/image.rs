//! Inputs of the runner image, and the tag derived from them (rule 1).

use alustan_api::paths::{self, LAYERS, RUNNER_LAYER};
use alustan_api::report::Failure;
use alustan_api::run::{History, PROTOCOL, Pin, PinnedImage};
use alustan_api::{Architecture, BuilderKind, Reason, Terraform};
use serde_json::json;

use crate::digest;
use crate::model::{base_image, pod_options, terraform_registries};
use crate::observed::{Answer, BuildSeen, GitToken, SourceSeen};
use crate::settings::Settings;

/// Layout version of runner images.
const FORMAT: u32 = 1;

/// Inputs of an image build.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ImagePlan {
    /// Image tag: digest of the inputs, 40 hexadecimal characters.
    pub tag: String,
    /// Digest of the context.
    pub context: String,
    /// Base image by digest.
    pub base: String,
    /// Architecture of the image and of the node that builds it.
    pub architecture: Architecture,
    /// Whether the build adds the runner, because the base image may lack it (rule 4).
    pub inject: bool,
    /// Whether the build pod uses the runner of the operator, because the runner of the base image may not have the build steps of this
    /// operator version.
    pub inject_into_pod: bool,
    /// Type of the backend that the image is initialised for, so that runs need no `init`.
    pub backend: Option<&'static str>,
    /// Text of the generated Dockerfile, which only copies files (rule 2).
    pub dockerfile: String,
    /// Path, in the context, of the user's Dockerfile (`containerRegistry.dockerfile`). The build appends the text in field `dockerfile` to
    /// the user's Dockerfile.
    pub user_dockerfile: Option<String>,
}

/// Runner image of a resource: what it is built from, its digest and its build. Input of the second phase of a decision,
/// [`decide`](crate::decide::decide).
#[derive(Clone)]
pub struct ImageSeen {
    /// Commit and context. The operator sends no request to repository and registry for a suspended resource: `source` and `digest` are
    /// [`Answer::Pending`], and `base` is known only from the run record.
    pub source: Answer<SourceSeen>,
    /// The base image, resolved to a digest.
    pub base: Answer<PinnedImage>,
    /// Inputs of the image build, see [`Prepared::plan`](crate::decide::prepare::Prepared::plan). `None` until they are known.
    pub plan: Option<ImagePlan>,
    /// Digest of the image of `plan`, in the pin or in the registry; `None` if the registry does not contain the image.
    pub digest: Answer<Option<String>>,
    /// Result of the push of the context to the registry: reference of the context, by digest. `None` if no push was started with
    /// [`Step::PushContext`](crate::step::Step::PushContext).
    pub artifact: Option<Answer<String>>,
    /// Token of the GitHub App for the build, or for a destroy in the base image. `None` if neither needs it, see
    /// [`Prepared::needs_git_token`](crate::decide::prepare::Prepared::needs_git_token).
    pub git_token: Option<Answer<GitToken>>,
    /// Build Job of the runner image.
    pub build: Option<BuildSeen>,
    /// Whether the removal of unused images from the registry is due. It is due if the resource is not deleted and uses its newest image,
    /// `spec.containerRegistry.prune` is set, and no removal for this image has started today.
    pub is_pruning_due: bool,
}

/// Returns the failure if the operator does not support or allow the settings of builds in the spec of `tf`.
pub(crate) fn settings_violation(tf: &Terraform, settings: &Settings) -> Option<Failure> {
    identity_not_allowed(tf, settings)
        .or_else(|| dockerfile_not_allowed(tf, settings))
        .or_else(|| dockerfile_unsupported(tf, settings))
        .or_else(|| terraform_registries::violation(tf))
        .or_else(|| wrapper_with_scripts(tf))
}

/// Refuses the use of the operator's cloud identity for a registry that `--identity-registry` does not list, because the identity may also
/// have access to registries of other users.
fn identity_not_allowed(tf: &Terraform, settings: &Settings) -> Option<Failure> {
    let registry = &tf.spec.container_registry;
    let name = &registry.image_name;
    let is_refused = registry.provider.identity().is_some() && !settings.allows_identity_for(name);
    is_refused.then(|| {
        Failure::user(
            Reason::RegistryIdentityNotAllowed,
            format!(
                "spec.containerRegistry.provider: the operator does not use its cloud identity for \
             {name}; set spec.containerRegistry.secretRef instead, or add the registry or a \
             repository prefix to the operator flag --identity-registry"
            ),
        )
    })
}

fn dockerfile_not_allowed(tf: &Terraform, settings: &Settings) -> Option<Failure> {
    let path = tf.spec.container_registry.dockerfile.as_ref()?;
    (!settings.dockerfiles).then(|| {
        Failure::user(
            Reason::DockerfileNotAllowed,
            format!(
                "spec.containerRegistry.dockerfile: the operator does not build Dockerfiles of \
             repositories ({path}), because their commands run as root and can access the push \
             credentials; remove the field, or start the operator with --allow-dockerfiles"
            ),
        )
    })
}

/// Refuses a Dockerfile with builder kind `Append`. The CRD schema has the same check; this check covers a CRD that is older than the
/// operator.
fn dockerfile_unsupported(tf: &Terraform, settings: &Settings) -> Option<Failure> {
    let path = tf.spec.container_registry.dockerfile.as_ref()?;
    (settings.builder_of(tf) == BuilderKind::Append).then(|| {
        Failure::user(
            Reason::DockerfileUnsupported,
            format!(
                "spec.containerRegistry.dockerfile: builder.kind Append cannot build {path}; set \
             spec.containerRegistry.builder.kind to Kaniko, or remove dockerfile"
            ),
        )
    })
}

/// Refuses scripts with a wrapper. The CRD schema has the same check; this check covers a CRD that is older than the operator.
fn wrapper_with_scripts(tf: &Terraform) -> Option<Failure> {
    let wrapper = tf.spec.wrapper().filter(|_| tf.spec.scripts.is_some())?;
    Some(Failure::user(
        Reason::WrapperUnsupported,
        format!(
            "spec.engine.wrapper: {wrapper} cannot be combined with spec.scripts, because a script calls the \
             wrapper itself; remove one of the fields"
        ),
    ))
}

/// Returns the inputs of the build of the runner image of `tf` for the commit and context in `source`.
pub fn plan(
    tf: &Terraform,
    source: &SourceSeen,
    base: &PinnedImage,
    architecture: Architecture,
    namespace_uid: &str,
    settings: &Settings,
) -> ImagePlan {
    let user_dockerfile = tf.spec.container_registry.dockerfile.clone();
    let inject = user_dockerfile.is_some() || base_image::may_lack_runner(base, settings);
    let inject_into_pod = inject || base_image::may_lack_build_steps(base, settings);
    let from_image = user_dockerfile.is_none().then_some(base.resolved.as_str());
    let dockerfile = dockerfile(from_image, inject);
    let managed = alustan_backends::is_managed(tf.spec.backend.as_ref(), source.backend.as_deref());
    let has_init_script = tf
        .spec
        .scripts
        .as_ref()
        .is_some_and(|scripts| scripts.init.is_some());
    let wrapper = tf.spec.wrapper();
    let is_initialised = !has_init_script && wrapper.is_none();
    let backend = (managed && source.backend.is_none() && is_initialised).then_some("http");
    let mut inputs = json!({
        "context": source.context, "path": source.path, "dockerfile": dockerfile,
        "backend": backend, "architecture": architecture, "format": FORMAT, "protocol": PROTOCOL,
        "namespace": namespace_uid, "repository": repository(tf),
    });
    if let (Some(path), Some(inputs)) = (&user_dockerfile, inputs.as_object_mut()) {
        let before = json!({ "path": path, "base": base.resolved });
        inputs.insert("before".to_owned(), before);
    }
    if let (Some(wrapper), Some(inputs)) = (wrapper, inputs.as_object_mut()) {
        inputs.insert("wrapper".to_owned(), json!(wrapper));
    }
    // The commands of `init` read them, so images with different values may differ.
    if let (Some(pod), Some(inputs)) = (pod_options::inputs_of_build(tf), inputs.as_object_mut()) {
        inputs.insert("pod".to_owned(), pod);
    }
    let registries = terraform_registries::inputs_of_build(tf);
    if let (Some(registries), Some(inputs)) = (registries, inputs.as_object_mut()) {
        inputs.insert("registries".to_owned(), registries);
    }
    ImagePlan {
        tag: digest::plain(&inputs).chars().take(40).collect(),
        context: source.context.clone(),
        base: base.resolved.clone(),
        architecture,
        inject,
        inject_into_pod,
        backend,
        dockerfile,
        user_dockerfile,
    }
}

/// Returns a digest of the image inputs that resource and repository determine. `base`: base image, if the resource sets a base image or
/// an engine. Excludes the default base image, the protocol and the architecture: a change of one of them starts no run, and the next run
/// uses the new value.
pub(crate) fn content(tf: &Terraform, source: &SourceSeen, base: Option<&str>) -> String {
    let dockerfile = &tf.spec.container_registry.dockerfile;
    digest::plain(&json!([source.context, repository(tf), dockerfile, base]))
}

/// Returns the image repository of `tf`, with the canonical host name of the registry. Docker Hub has several host names, but clients look
/// up its credentials under one of them.
pub fn repository(tf: &Terraform) -> String {
    canonical(&tf.spec.container_registry.image_name)
}

/// Returns `image` with its registry, by the rules of Docker: `web` becomes `docker.io/library/web`.
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

/// Canonical host name of Docker Hub.
pub(crate) const DOCKER_HUB: &str = "docker.io";
const DOCKER_HUB_NAMES: [&str; 4] = [
    DOCKER_HUB,
    "index.docker.io",
    "registry-1.docker.io",
    "registry.hub.docker.com",
];

/// Returns the reference of the context artifact of `source` in the registry of `tf`, by digest.
pub fn artifact(tf: &Terraform, source: &SourceSeen) -> String {
    format!("{}@{}", repository(tf), source.artifact)
}

/// Returns the digest of the image with tag `tag`, from the current or previous pin, without a request to the registry. `None` if no pin
/// has this tag, or if a run could not pull the image.
pub fn pinned<'a>(tag: &str, pin: Option<&'a Pin>, history: Option<&History>) -> Option<&'a str> {
    let lost = history.and_then(|history| history.lost_image.as_ref());
    let mut pins = std::iter::successors(pin, |pin| pin.before.as_deref());
    let pin = pins.find(|pin| pin.tag == tag && lost != Some(&pin.image))?;
    pin.image.split_once('@').map(|(_, digest)| digest)
}

/// Returns base image and architecture of a destroy that cannot use the image of `pin`. `None` if it uses that image, or if the pin has no
/// base image.
pub(crate) fn base_of_destroy(
    tf: &Terraform,
    pin: &Pin,
    history: &History,
    settings: &Settings,
) -> Option<(String, Architecture)> {
    let image_lost = history.lost_image.as_ref() == Some(&pin.image);
    // The runner in an image of another protocol version may write to objects that the Role of the run does not permit.
    let protocol_changed = pin.protocol != PROTOCOL;
    let architecture = settings.architecture_of(tf, Some(pin.architecture));
    let architecture_changed = architecture != pin.architecture;
    let base = pin.base.clone()?;
    (image_lost || protocol_changed || architecture_changed).then_some((base, architecture))
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
    let footer = [
        format!("USER {user}:{user}"),
        format!("ENTRYPOINT [\"{}\"]\n", paths::RUNNER),
    ];
    from.into_iter()
        .chain(copies)
        .chain(footer)
        .collect::<Vec<_>>()
        .join("\n")
}
