//! Containers that unpack a context and install its providers. They are part of build pods, and of run pods that use the base image.
//!
//! `init` of the engine evaluates the module, which can read files and execute programs. Therefore, the container that executes `init` has
//! no registry credentials. It also cannot change the programs and configuration of a container that has registry credentials.

use alustan_api::{cli_config, paths};
use k8s_openapi::api::core::v1::{
    Container, EnvVar, KeyToPath, ProjectedVolumeSource, SecretProjection, SecretVolumeSource,
    Volume, VolumeMount, VolumeProjection,
};

use alustan_api::Terraform;

use super::{cache_pvc, pod};
use crate::model::cache_location::CacheMount;
use crate::model::image::canonical;
use crate::model::terraform_registries::token_key;
use crate::settings::Settings;

/// Volume with the prepared context.
pub(crate) const VOLUME: &str = "build";
/// Volume with the docker configuration of the registry.
pub(crate) const DOCKER: &str = "docker";
const INJECT: &str = "inject";
const GIT: &str = "git";
/// Volume with the tokens of `spec.terraformRegistries`.
const REGISTRIES: &str = "registries";
/// Volume for `/tmp` of the containers that have the credentials of the registry. Programs in these containers read configuration from
/// `/tmp` (`HOME=/tmp`). The container of `init` does not mount the volume, so that the module cannot write this configuration.
const REGISTRY_TMP: &str = "tmp-registry";

/// Name of the container that pulls the context for kaniko, or for a run.
pub const PULL_CONTAINER: &str = "pull";
/// Name of the container that executes `init` of the engine.
pub const PREPARE_CONTAINER: &str = "prepare";

/// Inputs of the containers that prepare a context.
#[derive(Clone, Debug)]
pub(crate) struct Prepare<'a> {
    /// Reference of the base image, by digest.
    pub(crate) base: &'a str,
    /// OCI reference of the context, by digest.
    pub(crate) artifact: &'a str,
    /// Path of the module in the context.
    pub(crate) path: &'a str,
    /// Text of the generated Dockerfile; empty in a run pod, which builds no image.
    pub(crate) dockerfile: &'a str,
    /// Type of the backend, for example `s3`, that `init` configures. If empty, the container executes `init -backend=false`.
    pub(crate) backend: &'a str,
    /// Whether the pod uses the runner of the operator image. True if the base image may have no runner, or another version of the runner.
    pub(crate) inject: bool,
    /// Whether the build copies the runner into a layer of the built image.
    pub(crate) layer: bool,
    /// Whether the pod has a volume with a docker configuration.
    pub(crate) docker: bool,
    /// Path of the user's Dockerfile in the context. The text in `dockerfile` is appended to the user's Dockerfile.
    pub(crate) user_dockerfile: Option<&'a str>,
    /// Name of the build Secret, which contains a copy of the credentials of the resource. Set only for a build in another namespace.
    pub(crate) build_secret: Option<&'a str>,
    /// Cache volume of the container that executes `init`.
    pub(crate) cache: CacheMount,
    /// Name of the Secret with the token of the GitHub App, in the namespace of the resource. `None` if `build_secret` contains the token, or
    /// if there is no token.
    pub(crate) token_secret: Option<&'a str>,
}

/// Returns the name of the credential helper for `containerRegistry.provider`. The operator image contains the helper.
fn helper(tf: &Terraform) -> Option<&'static str> {
    let identity = tf.spec.container_registry.provider.identity();
    identity.map(|identity| identity.helper)
}

/// Returns the init containers that pull and prepare the context, in order.
pub(crate) fn containers(
    tf: &Terraform,
    prepare: &Prepare<'_>,
    settings: &Settings,
) -> Vec<Container> {
    let injected = inject(tf, prepare, settings);
    let prepared = [pull(tf, prepare, settings), init(tf, prepare, settings)];
    injected.into_iter().chain(prepared).collect()
}

/// Returns the container `prepare` of builder kind `Append`. It starts together with the container `build`. `build` pulls and unpacks the
/// context, and `prepare` waits for it before it executes `init`.
pub(crate) fn beside_builder(
    tf: &Terraform,
    prepare: &Prepare<'_>,
    settings: &Settings,
) -> Container {
    let mut container = init(tf, prepare, settings);
    // The kubelet creates the folders of `subPath` mounts in the order of the mounts. The container `build` waits for the folder of the
    // last mount, `handover`, before it writes to the volume.
    let handover = VolumeMount {
        sub_path: Some(paths::HANDOVER.to_owned()),
        ..pod::mount(VOLUME, &format!("{}/{}", paths::BUILD, paths::HANDOVER))
    };
    container
        .volume_mounts
        .get_or_insert_default()
        .push(handover);
    let env = container.env.get_or_insert_default();
    env.push(pod::env("ALUSTAN_HANDOVER", "true"));
    container
}

/// Returns the volumes of the containers that prepare a context. Does not return the cache volume and the `/tmp` volume of container
/// `prepare`: the caller adds these two.
pub(crate) fn volumes(tf: &Terraform, prepare: &Prepare<'_>) -> Vec<Volume> {
    let injected = (!injected(tf, prepare).is_empty()).then(|| pod::scratch(INJECT));
    [VOLUME, REGISTRY_TMP]
        .map(pod::scratch)
        .into_iter()
        .chain(injected)
        .chain(git_credentials(tf, prepare))
        .chain(registry_tokens(tf, prepare.build_secret))
        .collect()
}

/// Names of the files with git credentials for HTTPS.
pub const HTTPS_FILES: [&str; 3] = ["username", "password", "ca.crt"];
/// Names of the files with git credentials for SSH: private key and host keys.
pub const SSH_FILES: [&str; 2] = ["ssh-key", "known_hosts"];

/// Key in the data of every build Secret. The operator writes all entries of a build Secret in one request. So if this key exists, the
/// Secret is complete. Pods of previous versions require this name of the key.
pub const COMPLETENESS_KEY: &str = "lent";

/// Volume with git credentials, for private modules. Only the container that executes `init` mounts it. The Secrets that the spec names are
/// optional in the volume, so that a deleted Secret blocks only builds that use its credentials. Key [`COMPLETENESS_KEY`] of a Secret that the
/// operator creates is required, so that the pod waits for the Secret. The private key of a GitHub App is never part of the volume.
fn git_credentials(tf: &Terraform, prepare: &Prepare<'_>) -> Option<Volume> {
    let repo = tf.spec.git_repo.as_ref()?;
    let build_secret = prepare.build_secret;
    let [ssh_key, known_hosts] = SSH_FILES;
    let ssh = repo.ssh_key_secret.iter().map(|ssh| {
        let key = build_secret.map_or(ssh.key.as_str(), |_| ssh_key);
        let keys = [(key, ssh_key), (known_hosts, known_hosts)];
        projection(build_secret.unwrap_or(&ssh.name), &keys, true)
    });
    let https = repo.credentials_secret.iter().map(|https| {
        let keys = HTTPS_FILES.map(|key| (key, key));
        projection(build_secret.unwrap_or(&https.name), &keys, true)
    });
    let [username, password, authorities] = HTTPS_FILES;
    let app = repo.github_app.iter().map(|app| match build_secret {
        Some(build_secret) => projection(build_secret, &HTTPS_FILES.map(|key| (key, key)), true),
        None => projection(&app.secret_ref.name, &[(authorities, authorities)], true),
    });
    let token = prepare
        .token_secret
        .map(|name| projection(name, &[username, password].map(|key| (key, key)), false));
    let completeness = build_secret
        .filter(|_| repo.has_credentials())
        .or(prepare.token_secret)
        .map(completeness);
    let sources = ssh.chain(https).chain(app).chain(token);
    credentials(GIT, sources.chain(completeness))
}

/// Volume with the tokens of `spec.terraformRegistries`, in files named by the index of the entry. Only the container that executes `init`
/// mounts it. For optional Secrets and the key [`COMPLETENESS_KEY`], see [`git_credentials`].
fn registry_tokens(tf: &Terraform, build_secret: Option<&str>) -> Option<Volume> {
    let registries = &tf.spec.terraform_registries;
    let tokens = registries.iter().enumerate().map(|(index, registry)| {
        let reference = &registry.secret_ref;
        let token_key = token_key(index);
        let key = build_secret.map_or(reference.key.as_str(), |_| &token_key);
        let file = index.to_string();
        projection(
            build_secret.unwrap_or(&reference.name),
            &[(key, &file)],
            true,
        )
    });
    let completeness = build_secret
        .filter(|_| !registries.is_empty())
        .map(completeness);
    credentials(REGISTRIES, tokens.chain(completeness))
}

/// Returns the projection of `keys` of Secret `name`. Each key is followed by the name of its file.
fn projection(name: &str, keys: &[(&str, &str)], optional: bool) -> VolumeProjection {
    let items = keys.iter().map(|(key, path)| KeyToPath {
        key: (*key).to_owned(),
        path: (*path).to_owned(),
        mode: None,
    });
    VolumeProjection {
        secret: Some(SecretProjection {
            name: name.to_owned(),
            items: Some(items.collect()),
            optional: Some(optional),
        }),
        ..VolumeProjection::default()
    }
}

/// Returns the required projection of the key [`COMPLETENESS_KEY`] of a build Secret.
fn completeness(build_secret: &str) -> VolumeProjection {
    projection(build_secret, &[(COMPLETENESS_KEY, COMPLETENESS_KEY)], false)
}

/// Returns volume `name` with the files of `sources`; `None` without sources.
fn credentials(name: &str, sources: impl Iterator<Item = VolumeProjection>) -> Option<Volume> {
    let sources: Vec<_> = sources.collect();
    (!sources.is_empty()).then(|| Volume {
        name: name.to_owned(),
        projected: Some(ProjectedVolumeSource {
            default_mode: Some(0o440),
            sources: Some(sources),
        }),
        ..Volume::default()
    })
}

/// Returns the paths, in the operator image, of the programs that an init container copies into the pod, because the base image may lack
/// them.
fn injected(tf: &Terraform, prepare: &Prepare<'_>) -> Vec<String> {
    let runner = prepare.inject.then(|| paths::RUNNER.to_owned());
    let helper = helper(tf).map(|helper| format!("{}/{helper}", paths::PROGRAMS));
    runner.into_iter().chain(helper).collect()
}

/// Returns a volume with the docker configuration at `key` of Secret `name`, as `config.json`.
pub(crate) fn docker_config(name: &str, key: &str) -> Volume {
    Volume {
        name: DOCKER.to_owned(),
        secret: Some(SecretVolumeSource {
            secret_name: Some(name.to_owned()),
            items: Some(vec![KeyToPath {
                key: key.to_owned(),
                path: "config.json".to_owned(),
                mode: None,
            }]),
            ..SecretVolumeSource::default()
        }),
        ..Volume::default()
    }
}

/// Returns the read-only mount of the docker configuration.
pub(crate) fn docker_mount(path: &str) -> VolumeMount {
    read_only(pod::mount(DOCKER, path))
}

fn read_only(mount: VolumeMount) -> VolumeMount {
    VolumeMount {
        read_only: Some(true),
        ..mount
    }
}

/// Returns the path of the runner. `inject`: whether the pod uses the runner that was copied from the operator image.
pub(crate) fn runner(inject: bool) -> String {
    if inject {
        format!("{}/alustan-runner", paths::INJECT)
    } else {
        paths::RUNNER.to_owned()
    }
}

/// Returns the read-only mount of the volume with the programs that were copied from the operator image.
pub(crate) fn inject_mount() -> VolumeMount {
    read_only(pod::mount(INJECT, paths::INJECT))
}

/// Init container that copies programs from the image of the operator; `None` if the pod needs no program from that image.
pub(crate) fn inject(
    tf: &Terraform,
    prepare: &Prepare<'_>,
    settings: &Settings,
) -> Option<Container> {
    let programs = injected(tf, prepare);
    if programs.is_empty() {
        return None;
    }
    let mut command = vec!["cp".to_owned()];
    command.extend(programs);
    command.push(paths::INJECT.to_owned());
    Some(Container {
        name: INJECT.to_owned(),
        image: Some(settings.operator_image.clone()),
        command: Some(command),
        resources: Some(pod::resources("10m", "16Mi", "64Mi")),
        security_context: Some(pod::restricted(settings.pod_user)),
        volume_mounts: Some(vec![pod::mount(INJECT, paths::INJECT)]),
        ..Container::default()
    })
}

/// Init container that pulls the context, unpacks it and writes the files for the builder.
fn pull(tf: &Terraform, prepare: &Prepare<'_>, settings: &Settings) -> Container {
    Container {
        name: PULL_CONTAINER.to_owned(),
        args: Some(vec!["pull".to_owned()]),
        ..with_registry(tf, prepare, settings, context(prepare))
    }
}

/// Environment variables for pulling and unpacking the context.
pub(crate) fn context(prepare: &Prepare<'_>) -> Vec<EnvVar> {
    let mut env = vec![
        pod::env("ALUSTAN_CONTEXT", prepare.artifact),
        pod::env("ALUSTAN_DOCKERFILE", prepare.dockerfile),
    ];
    if prepare.layer {
        env.push(pod::env("ALUSTAN_INJECT", "true"));
    }
    env.extend(
        prepare
            .user_dockerfile
            .map(|path| pod::env("ALUSTAN_DOCKERFILE_BEFORE", path)),
    );
    env
}

/// Returns a container of the base image with `env` and the registry credentials. The caller sets name and arguments. Because the container
/// has registry credentials, it must not execute files from the git repository.
pub(crate) fn with_registry(
    tf: &Terraform,
    prepare: &Prepare<'_>,
    settings: &Settings,
    mut env: Vec<EnvVar>,
) -> Container {
    let mut mounts = vec![
        pod::mount(VOLUME, paths::BUILD),
        pod::mount(REGISTRY_TMP, "/tmp"),
    ];
    env.push(pod::env(
        "ALUSTAN_INSECURE_REGISTRIES",
        insecure(tf, settings).join(","),
    ));
    env.push(pod::env("DOCKER_CONFIG", paths::DOCKER_CONFIG));
    env.extend(environment(settings));
    if !injected(tf, prepare).is_empty() {
        mounts.push(inject_mount());
    }
    if let Some(helper) = helper(tf) {
        let program = format!("{}/{helper}", paths::INJECT);
        env.push(pod::env("ALUSTAN_CREDENTIAL_HELPER", program));
    }
    if prepare.docker {
        mounts.push(docker_mount(paths::DOCKER_CONFIG));
    }
    Container {
        env: Some(env),
        volume_mounts: Some(mounts),
        ..in_base(prepare, settings)
    }
}

/// Container that executes `init`, which installs providers and modules. From the build volume, the container mounts only the folders that
/// become layers. Therefore, `init` can neither change the Dockerfile nor replace these folders by links.
fn init(tf: &Terraform, prepare: &Prepare<'_>, settings: &Settings) -> Container {
    let layer = |layer: paths::Layer| VolumeMount {
        sub_path: Some(format!("src/{}", layer.source)),
        ..pod::mount(VOLUME, &format!("{}/src/{}", paths::BUILD, layer.source))
    };
    let mut mounts = vec![cache_pvc::mount(tf, &prepare.cache)];
    mounts.extend(paths::LAYERS.map(layer));
    mounts.push(pod::mount("tmp", "/tmp"));
    let mut env = vec![
        pod::env("ALUSTAN_MODULE_PATH", prepare.path),
        pod::env("ALUSTAN_BACKEND_KIND", prepare.backend),
        pod::env("ALUSTAN_WORK_DIR", "/tmp"),
    ];
    let wrapper = tf.spec.wrapper();
    env.extend(wrapper.map(|wrapper| pod::env("ALUSTAN_WRAPPER", wrapper.as_str())));
    env.extend(environment(settings));
    if prepare.inject {
        mounts.push(inject_mount());
    }
    let repo = tf.spec.git_repo.as_ref();
    let authority = repo.and_then(|repo| repo.ca_bundle.as_deref());
    env.extend(authority.map(|text| pod::env("ALUSTAN_GIT_CA_BUNDLE", text)));
    if let Some(repo) = repo.filter(|repo| repo.has_credentials()) {
        mounts.push(read_only(pod::mount(GIT, paths::GIT)));
        env.push(pod::env("ALUSTAN_GIT_CREDENTIALS", paths::GIT));
        env.push(pod::env("ALUSTAN_GIT_URL", &repo.url));
    }
    let registries = &tf.spec.terraform_registries;
    if !registries.is_empty() {
        let hosts: Vec<_> = registries
            .iter()
            .map(|registry| registry.host.as_str())
            .collect();
        mounts.push(read_only(pod::mount(REGISTRIES, paths::REGISTRIES)));
        env.push(pod::env("ALUSTAN_REGISTRY_TOKENS", paths::REGISTRIES));
        env.push(pod::env("ALUSTAN_REGISTRY_HOSTS", hosts.join(",")));
    }
    env.extend(cli_config(settings));
    Container {
        name: PREPARE_CONTAINER.to_owned(),
        args: Some(vec!["prepare".to_owned()]),
        env: Some(env),
        volume_mounts: Some(mounts),
        ..in_base(prepare, settings)
    }
}

/// Returns a container that executes the runner in the base image.
fn in_base(prepare: &Prepare<'_>, settings: &Settings) -> Container {
    Container {
        image: Some(prepare.base.to_owned()),
        image_pull_policy: Some("IfNotPresent".to_owned()),
        command: Some(vec![runner(prepare.inject)]),
        resources: Some(pod::resources("100m", "128Mi", "1Gi")),
        security_context: Some(pod::restricted(settings.pod_user)),
        ..Container::default()
    }
}

/// Hosts of registries that use plain HTTP: hosts from the settings of the operator, and the registry of a resource with `insecure: true`.
pub(crate) fn insecure(tf: &Terraform, settings: &Settings) -> Vec<String> {
    let registry = &tf.spec.container_registry;
    let own_host = registry
        .insecure
        .then(|| host(&canonical(&registry.image_name)).to_owned());
    let mut hosts = settings.insecure_registries.clone();
    hosts.extend(own_host);
    hosts.sort();
    hosts.dedup();
    hosts
}

/// Returns the host of a canonical image name.
pub(crate) fn host(image: &str) -> &str {
    image.split_once('/').map_or(image, |(host, _)| host)
}

/// Environment variable with the operator-wide CLI configuration, for containers that execute the engine.
pub(crate) fn cli_config(settings: &Settings) -> Option<EnvVar> {
    let config = settings.cli_config.as_ref()?;
    let text = serde_json::to_string(config).ok()?;
    Some(pod::env(cli_config::VARIABLE, text))
}

/// Environment variables of every container: proxies and the CA bundle.
pub(crate) fn environment(settings: &Settings) -> Vec<EnvVar> {
    let proxies = settings
        .environment
        .iter()
        .map(|(name, value)| pod::env(name, value));
    let ca = settings
        .ca_bundle
        .as_ref()
        .map(|text| pod::env("ALUSTAN_CA_BUNDLE", text));
    proxies.chain(ca).collect()
}
