//! Flags of the operator. Each flag can also be set by an environment variable.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;

use alustan_api::{Architecture, BuilderKind, Engine, EngineName, Wrapper, WrapperName, engine};
use alustan_core::pod_policy::PodPolicy;
use alustan_core::settings::{
    CacheDefault, EngineImage, KANIKO, KANIKO_CAPABILITIES, PodUser, Settings,
};
use alustan_registry::ImageRef;
use anyhow::{Context as _, Result, bail, ensure};
use clap::{Args, Parser, ValueEnum};
use k8s_openapi::jiff::SignedDuration;

use crate::log_flags::LogFlags;
use crate::page_url::PageUrl;
use crate::{cli_config, pod_defaults};

/// Environment variables with proxy settings. The operator also sets them in builder and runner containers.
const PROXIES: [&str; 8] = [
    "ALL_PROXY",
    "HTTP_PROXY",
    "HTTPS_PROXY",
    "NO_PROXY",
    "all_proxy",
    "http_proxy",
    "https_proxy",
    "no_proxy",
];

/// Maximum size of `--ca-file`, in bytes. Pods receive the certificates in an environment variable, which Linux limits to 128 KiB
/// (`MAX_ARG_STRLEN`, <https://man7.org/linux/man-pages/man2/execve.2.html>).
const MAX_CA_FILE_BYTES: usize = 120 * 1024;

/// Runs Terraform from git on Kubernetes.
#[derive(Clone, Debug, Parser)]
#[command(version)]
pub(crate) struct Config {
    /// Base image of runner images, with an engine, git and the runner.
    #[arg(long, env = "ALUSTAN_BASE_IMAGE")]
    pub(crate) base_image: String,
    /// Base image for `spec.engine`, for example opentofu:1.12.6=registry.example.com/opentofu:1.12.6. May be repeated.
    #[arg(long = "engine", env = "ALUSTAN_ENGINES", value_delimiter = ',')]
    pub(crate) engines: Vec<String>,
    /// Image of this operator. Builds add the runner in this image to base images other than --base-image and --engine.
    #[arg(long, env = "ALUSTAN_OPERATOR_IMAGE")]
    pub(crate) operator_image: String,
    /// Builder of resources without `containerRegistry.builder.kind`: `kaniko`, or `append`, which needs neither root nor a builder
    /// image (docs/builder.md).
    #[arg(long, env = "ALUSTAN_BUILDER", default_value = "kaniko", value_parser = builder_kind)]
    pub(crate) builder: BuilderKind,
    /// Image of the builder: kaniko, or an image that accepts the same arguments.
    #[arg(long, env = "ALUSTAN_BUILDER_IMAGE", default_value = KANIKO)]
    pub(crate) builder_image: String,
    /// Additional argument of the builder. May be repeated.
    #[arg(
        long = "builder-arg",
        env = "ALUSTAN_BUILDER_ARGS",
        value_delimiter = ','
    )]
    pub(crate) builder_args: Vec<String>,
    /// Linux capabilities of the builder container.
    #[arg(long = "builder-capability", env = "ALUSTAN_BUILDER_CAPABILITIES", value_delimiter = ',',
          default_values_t = KANIKO_CAPABILITIES.map(str::to_owned))]
    pub(crate) builder_capabilities: Vec<String>,
    /// Run build pods in a user namespace (`hostUsers: false`): root in the pod is an unprivileged user on the node. The nodes must
    /// support user namespaces (docs/builder.md).
    #[arg(long, env = "ALUSTAN_BUILDER_USER_NAMESPACES")]
    pub(crate) builder_user_namespaces: bool,
    /// Namespace of all builds, for resources in namespaces that enforce PodSecurity restricted. Default: namespace of the resource. During
    /// a build, the namespace contains copies of the credentials of the registry and the git repository. Only the operator should have
    /// access to it.
    #[arg(long, env = "ALUSTAN_BUILD_NAMESPACE")]
    pub(crate) build_namespace: Option<String>,
    /// Cache volume of resources with neither `cache.enabled` nor `cache.claimName` (docs/cache.md): `per-resource`, a `PersistentVolumeClaim`
    /// for each resource; `none`, scratch space; or `claim:NAME`, the `PersistentVolumeClaim` of this name in the namespace of the resource,
    /// which the resources share. A change starts no runs.
    #[arg(long, env = "ALUSTAN_CACHE_VOLUME", default_value = "per-resource", value_parser = cache_default)]
    pub(crate) cache: CacheDefault,
    /// CPU architecture of images, and of the nodes of builds and runs, for resources without `runner.architecture`: `amd64` or
    /// `arm64`. Default: architecture of the last run of the resource; for new resources, architecture of the operator. A change
    /// starts no applies: the next run of each resource builds its image.
    #[arg(long, env = "ALUSTAN_ARCHITECTURE", value_parser = architecture)]
    pub(crate) architecture: Option<Architecture>,
    /// Registry to access over plain HTTP, as host:port. May be repeated.
    #[arg(
        long = "insecure-registry",
        env = "ALUSTAN_INSECURE_REGISTRIES",
        value_delimiter = ','
    )]
    pub(crate) insecure_registries: Vec<String>,
    /// File with CA certificates (PEM) to trust in addition to the default ones.
    #[arg(long, env = "ALUSTAN_CA_FILE")]
    pub(crate) ca_file: Option<PathBuf>,
    /// User id of the containers of runs and builds, also their group and `fsGroup`: 1 to 2147483647. `none` omits all three for clusters
    /// that set them when they admit a pod, such as OpenShift (docs/clusters.md). kaniko always runs as root.
    #[arg(long, env = "ALUSTAN_POD_USER", default_value = "65532", value_parser = pod_user)]
    pub(crate) pod_user: PodUser,
    /// Allow builds from a Dockerfile of the git repository (`containerRegistry.dockerfile`). Its commands run as root in the build pod,
    /// which contains the registry credentials.
    #[arg(long, env = "ALUSTAN_ALLOW_DOCKERFILES")]
    pub(crate) allow_dockerfiles: bool,
    /// Registry, or prefix of its repositories (`registry.example.com/team`), that resources may access with the cloud identity of
    /// the operator (`containerRegistry.provider`). May be repeated.
    #[arg(
        long = "identity-registry",
        env = "ALUSTAN_IDENTITY_REGISTRIES",
        value_delimiter = ','
    )]
    pub(crate) identity_registries: Vec<String>,
    /// Cache directory for git repositories and contexts.
    #[arg(long, env = "ALUSTAN_CACHE_DIR", default_value = "/var/cache/alustan")]
    pub(crate) cache_dir: PathBuf,
    /// Maximum total size of cached repositories, in MiB. The least recently used repositories are evicted. The volume needs 2 GiB
    /// more, for contexts and for incoming data.
    #[arg(long, env = "ALUSTAN_GIT_CACHE_MIB", default_value_t = 3072, value_parser = clap::value_parser!(u64).range(64..1 << 24))]
    pub(crate) git_cache_mib: u64,
    /// Maximum number of concurrent git processes that access servers. One namespace uses at most half of them. 0 means four per CPU core, at most 8.
    /// Each process may use 48 MiB of memory, and half as many processes read modules from the cache.
    #[arg(long, env = "ALUSTAN_GIT_CONCURRENCY", default_value_t = 0, value_parser = clap::value_parser!(u16).range(..=64))]
    pub(crate) git_concurrency: u16,
    /// Namespace to watch and act in. May be repeated. Default: all namespaces. With this flag, Roles in the namespaces suffice,
    /// and the namespaces are not labelled alustan.io/holds-state.
    #[arg(
        long,
        env = "ALUSTAN_WATCH_NAMESPACES",
        value_delimiter = ',',
        value_parser = clap::builder::NonEmptyStringValueParser::new()
    )]
    pub(crate) watch_namespaces: Vec<String>,
    /// Allow references to objects in other namespaces: outputs, dependencies, and objects to wait for.
    #[arg(long, env = "ALUSTAN_ALLOW_CROSS_NAMESPACE_REFS")]
    pub(crate) allow_cross_namespace_refs: bool,
    /// Maximum number of concurrent runs and builds of all resources. Drift checks use at most half of this number.
    #[arg(long, env = "ALUSTAN_MAX_CONCURRENT_RUNS", default_value_t = 50)]
    pub(crate) max_concurrent_runs: usize,
    /// Maximum number of concurrent runs and builds in one namespace. 0 means half of --max-concurrent-runs. A tenth of
    /// --max-concurrent-runs is reserved for namespaces without a run.
    #[arg(long, env = "ALUSTAN_MAX_RUNS_PER_NAMESPACE", default_value_t = 0)]
    pub(crate) max_runs_per_namespace: usize,
    /// Maximum number of finished run Jobs of all resources, with their pods, which are kept for `kubectl logs`. Each resource keeps at most
    /// its last three. Above the limit, first all but the last Job of each resource are deleted, then the last ones, in both cases the
    /// oldest first. The reports of runs, and the logs of the last three failed runs, do not depend on the Jobs.
    #[arg(long, env = "ALUSTAN_KEEP_JOBS", default_value_t = 500)]
    pub(crate) keep_jobs: usize,
    /// Time for which the records of finished runs (`TerraformRun`) of a deleted resource are kept (`720h`).
    #[arg(long, env = "ALUSTAN_KEEP_DELETED_RUNS", default_value = "720h", value_parser = timeout)]
    pub(crate) keep_deleted_runs: SignedDuration,
    /// Maximum size of the records of finished runs (`TerraformRun`) of all resources, in bytes (512 MiB). Above it, changes, text of the plan,
    /// and log are removed from the oldest records. The quota of etcd for all objects is 2 GiB by default.
    #[arg(long, env = "ALUSTAN_RUN_HISTORY_BYTES", default_value_t = 536_870_912)]
    pub(crate) run_history_bytes: u64,
    /// Maximum time that the pod of a run or build may wait for a node (`20m`, `1h`). After that, its Job is deleted and created
    /// again. Must be longer than the cluster takes to add a node.
    #[arg(
        long,
        env = "ALUSTAN_SCHEDULING_TIMEOUT",
        default_value = "20m",
        value_parser = timeout
    )]
    pub(crate) scheduling_timeout: SignedDuration,
    /// Maximum of `spec.timeouts` (`12h`). Longer values are reduced to it: a run that hangs holds a slot until its time limit.
    #[arg(long, env = "ALUSTAN_MAX_TIMEOUT", default_value = "24h", value_parser = timeout)]
    pub(crate) max_timeout: SignedDuration,
    /// Name of the Lease for leader election, in the namespace of the operator. Operators that share a namespace but watch
    /// different namespaces need different Leases.
    #[arg(long, env = "ALUSTAN_LEASE", default_value = "alustan")]
    pub(crate) lease: String,
    /// Name of this pod, for leader election: of several replicas, only the holder of the Lease reconciles. The Lease contains the pod
    /// name, by which a restarted process recognizes the Lease of the previous process of its pod.
    #[arg(long, env = "ALUSTAN_POD_NAME")]
    pub(crate) pod_name: Option<String>,
    /// IP address of this pod, at which other replicas reach --listen. Replicas that do not lead forward requests to /hooks to the
    /// leader.
    #[arg(long, env = "ALUSTAN_POD_IP")]
    pub(crate) pod_ip: Option<IpAddr>,
    /// Listen address of probes, `/version` and `/metrics`. `[::]` is all addresses of IPv6 and IPv4, or of IPv4 only on a node
    /// without IPv6.
    #[arg(long, env = "ALUSTAN_LISTEN", default_value = "[::]:8080")]
    pub(crate) listen: SocketAddr,
    /// File with the receivers of notifications about all resources, usually in a mounted Secret, as a JSON list: `[{"url":
    /// "https://…", "secret": "whsec_…", "events": ["Failed"]}]`. The file may be missing. Changes apply without a restart.
    #[arg(long, env = "ALUSTAN_NOTIFICATIONS")]
    pub(crate) notifications: Option<PathBuf>,
    /// URL of the page (docs/page-sign-in.md), for links in notifications: `https://HOST`.
    #[arg(long, env = "ALUSTAN_PAGE_URL")]
    pub(crate) page_url: Option<PageUrl>,
    /// Directory with allow lists for resources, usually the mounted ConfigMap alustan-allowed: files named registries,
    /// repositories, builders, serviceAccounts, approval and destroy. A missing file sets no limit. The directory may be missing.
    /// Changes apply without a restart.
    #[arg(long, env = "ALUSTAN_ALLOWED")]
    pub(crate) allowed: Option<PathBuf>,
    /// YAML file with defaults and limits of pod options (docs/pods.md), usually in the mounted ConfigMap alustan-pods. The file may be
    /// missing: there are then no defaults, and no options that need permission. It is read when the operator starts.
    #[arg(long, env = "ALUSTAN_POD_DEFAULTS")]
    pub(crate) pod_defaults: Option<PathBuf>,
    /// File with a CLI configuration of the engine (docs/private-registries.md), usually in the mounted ConfigMap alustan-cli-config:
    /// `provider_installation` with `network_mirror` and `direct`, and `host`. Builds and runs use it. The file may be missing. It is
    /// read when the operator starts.
    #[arg(long = "terraform-cli-config", env = "ALUSTAN_TERRAFORM_CLI_CONFIG")]
    pub(crate) cli_config_file: Option<PathBuf>,
    /// Directory with the secrets that sign requests to /hooks, usually a mounted Secret, with one secret per file. All secrets are
    /// accepted, so that a new one can be added before the old one is removed. Without this flag, /hooks refuses all requests.
    #[arg(long, env = "ALUSTAN_HOOK_SECRETS")]
    pub(crate) hook_secrets: Option<PathBuf>,
    /// Component that triggers reconciles: `native` (watches of the operator), or `metacontroller` (requests to POST /sync).
    #[arg(long, env = "ALUSTAN_DRIVER", value_enum, default_value_t = Driver::Native)]
    pub(crate) driver: Driver,
    #[command(flatten)]
    pub(crate) sync: SyncFlags,
    #[command(flatten)]
    pub(crate) log: LogFlags,
}

/// Component that triggers reconciles and writes the status.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Driver {
    /// The operator.
    Native,
    /// Metacontroller.
    Metacontroller,
}

/// Flags for requests of metacontroller and their authentication.
#[derive(Clone, Debug, Default, Args)]
pub(crate) struct SyncFlags {
    /// Directory with tokens that callers of /sync may send (Authorization: Bearer), usually a mounted Secret, with one token per file. It is read on
    /// each request.
    #[arg(
        id = "sync_token_dir",
        long = "sync-token-dir",
        env = "ALUSTAN_SYNC_TOKEN_DIR"
    )]
    pub(crate) token_dir: Option<PathBuf>,
    /// Listen address of /sync with TLS. Without this flag, /sync is available at --listen over plain HTTP.
    #[arg(
        id = "sync_listen",
        long = "sync-listen",
        env = "ALUSTAN_SYNC_LISTEN",
        requires = "sync_tls_dir"
    )]
    pub(crate) listen: Option<SocketAddr>,
    /// Directory with tls.crt and tls.key for --sync-listen, usually a mounted Secret of type kubernetes.io/tls. Changed files are reloaded.
    #[arg(
        id = "sync_tls_dir",
        long = "sync-tls-dir",
        env = "ALUSTAN_SYNC_TLS_DIR",
        requires = "sync_listen"
    )]
    pub(crate) tls_dir: Option<PathBuf>,
    /// File with CA certificates (PEM). Callers at --sync-listen must present a certificate that one of these CAs signed.
    #[arg(
        id = "sync_client_ca_file",
        long = "sync-client-ca-file",
        env = "ALUSTAN_SYNC_CLIENT_CA_FILE",
        requires = "sync_listen"
    )]
    pub(crate) client_ca_file: Option<PathBuf>,
}

impl Config {
    /// Checks that the flags let the operator authenticate metacontroller.
    ///
    /// # Errors
    /// If `--driver=metacontroller` has neither `--sync-token-dir` nor `--sync-client-ca-file`.
    pub(crate) fn check(&self) -> Result<()> {
        let is_authenticated = self.sync.token_dir.is_some() || self.sync.client_ca_file.is_some();
        ensure!(
            is_authenticated || self.driver == Driver::Native,
            "--driver=metacontroller requires --sync-token-dir or --sync-client-ca-file to \
             authenticate metacontroller"
        );
        Ok(())
    }

    /// Returns the address at which other replicas reach this one.
    pub(crate) fn address(&self) -> Option<SocketAddr> {
        let port = Some(self.listen.port()).filter(|port| *port > 0);
        Some(SocketAddr::new(self.pod_ip?, port?))
    }

    /// Returns the base images for `spec.engine`.
    fn engine_images(&self) -> Result<Vec<EngineImage>> {
        let engines = self
            .engines
            .iter()
            .map(|engine| engine.trim())
            .filter(|engine| !engine.is_empty())
            .map(engine_image)
            .collect::<Result<Vec<_>>>()
            .context("--engine")?;
        if let Some(duplicate) = first_duplicate(&engines) {
            bail!("--engine: {duplicate} has two images; set one image for each version");
        }
        Ok(engines)
    }

    /// Converts the flags to [`Settings`]. Reads the files of `--ca-file`, `--pod-defaults` and `--terraform-cli-config`, and the proxy environment variables.
    pub(crate) fn settings(&self) -> Result<Settings> {
        let engines = self.engine_images()?;
        let ca_bundle = self
            .ca_file
            .as_ref()
            .map(|file| {
                let text = std::fs::read_to_string(file)
                    .with_context(|| format!("--ca-file: failed to read {}", file.display()))?;
                ensure!(
                    text.len() <= MAX_CA_FILE_BYTES,
                    "--ca-file: {} is {} bytes; at most {MAX_CA_FILE_BYTES} bytes can be passed to pods. \
                     Remove the certificates of public certificate authorities",
                    file.display(),
                    text.len()
                );
                Ok(text)
            })
            .transpose()?;
        let environment: BTreeMap<String, String> = PROXIES
            .iter()
            .filter_map(|name| Some(((*name).to_owned(), std::env::var(name).ok()?)))
            .collect();
        let pods = match &self.pod_defaults {
            Some(file) => pod_defaults::read(file, &environment)
                .with_context(|| format!("--pod-defaults: failed to read {}", file.display()))?,
            None => PodPolicy::default(),
        };
        let cli_config = match &self.cli_config_file {
            Some(file) => cli_config::read(file).with_context(|| {
                format!("--terraform-cli-config: failed to read {}", file.display())
            })?,
            None => None,
        };
        Ok(Settings {
            base_image: self.base_image.clone(),
            engines,
            builder: self.builder,
            builder_image: self.builder_image.clone(),
            builder_args: self.builder_args.clone(),
            builder_capabilities: self.builder_capabilities.clone(),
            builder_user_namespaces: self.builder_user_namespaces,
            build_namespace: self.build_namespace.clone(),
            operator_image: self.operator_image.clone(),
            insecure_registries: self.insecure_registries.clone(),
            ca_bundle,
            architecture: self.architecture,
            own_architecture: Architecture::own(),
            pod_user: self.pod_user,
            cli_config,
            environment,
            dockerfiles: self.allow_dockerfiles,
            identity_registries: self.identity_registries.clone(),
            scheduling_timeout: self.scheduling_timeout,
            max_timeout: self.max_timeout,
            cross_namespace_refs: self.allow_cross_namespace_refs,
            marks_namespaces: self.watch_namespaces.is_empty(),
            pods,
            cache: self.cache.clone(),
        })
    }
}

/// Parses a duration of at least one minute.
fn timeout(text: &str) -> Result<SignedDuration> {
    let timeout: SignedDuration = text
        .parse()
        .context("expected a duration, for example 20m or 1h30m")?;
    ensure!(
        timeout >= SignedDuration::from_mins(1),
        "the duration must be at least 1m"
    );
    Ok(timeout)
}

/// Parses a kind of builder, case-insensitively.
fn builder_kind(text: &str) -> Result<BuilderKind> {
    let kinds = [BuilderKind::Kaniko, BuilderKind::Append];
    let kind = kinds
        .into_iter()
        .find(|kind| format!("{kind:?}").eq_ignore_ascii_case(text));
    kind.with_context(|| format!("invalid builder kind {text:?}: expected kaniko or append"))
}

/// Parses the user of pods: `none`, or a user id that is not root.
fn pod_user(text: &str) -> Result<PodUser> {
    if text == "none" {
        return Ok(PodUser::SetByCluster);
    }
    let id = text.parse::<i32>().ok().filter(|id| *id > 0);
    id.map(|id| PodUser::Id(id.into())).with_context(|| {
        format!(
            "invalid user {text:?}: expected none, or a user id from 1 to {}",
            i32::MAX
        )
    })
}

/// Parses `none`, `per-resource` or `claim:NAME`.
fn cache_default(text: &str) -> Result<CacheDefault> {
    match text {
        "none" => Ok(CacheDefault::None),
        "per-resource" => Ok(CacheDefault::PerResource),
        _ => {
            let name = text
                .strip_prefix("claim:")
                .filter(|name| is_object_name(name));
            name.map(|name| CacheDefault::Claim(name.to_owned()))
                .with_context(|| {
                    format!(
                        "invalid cache volume {text:?}: expected none, per-resource or claim:NAME, \
                         where NAME is the name of a PersistentVolumeClaim"
                    )
                })
        }
    }
}

/// Whether `name` is an RFC 1123 subdomain.
fn is_object_name(name: &str) -> bool {
    let is_inner = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    name.len() <= 253
        && name.split('.').all(|label| {
            let bytes = label.as_bytes();
            bytes.first().copied().is_some_and(is_inner)
                && bytes.last().copied().is_some_and(is_inner)
                && bytes.iter().all(|byte| is_inner(*byte) || *byte == b'-')
        })
}

/// Parses an architecture.
fn architecture(text: &str) -> Result<Architecture> {
    Architecture::parse(text)
        .with_context(|| format!("invalid architecture {text:?}: expected amd64 or arm64"))
}

/// Parses `NAME:VERSION=IMAGE` or `NAME:VERSION+WRAPPER:VERSION=IMAGE`.
fn engine_image(text: &str) -> Result<EngineImage> {
    let invalid = || {
        let names = EngineName::VARIANTS
            .iter()
            .map(|name| name.as_str())
            .collect::<Vec<_>>()
            .join(" or ");
        format!(
            "invalid engine {text:?}: expected NAME:VERSION=IMAGE or \
             NAME:VERSION+terragrunt:VERSION=IMAGE, where NAME is {names} and VERSION is complete, \
             for example opentofu:1.12.6=registry.example.com/opentofu:1.12.6"
        )
    };
    let (engine, image) = text.split_once('=').with_context(invalid)?;
    let (engine, wrapper) = match engine.split_once('+') {
        Some((engine, wrapper)) => (engine, Some(wrapper)),
        None => (engine, None),
    };
    let (name, version) = versioned(engine).with_context(invalid)?;
    let name = EngineName::parse(name).with_context(invalid)?;
    let wrapper = wrapper
        .map(|text| wrapper_version(text).with_context(invalid))
        .transpose()?;
    ImageRef::parse(image)
        .with_context(|| format!("invalid engine {text:?}: invalid image {image:?}"))?;
    Ok(EngineImage {
        engine: Engine { name, version },
        wrapper,
        image: image.to_owned(),
    })
}

/// Parses `NAME:VERSION` with a full version.
fn versioned(text: &str) -> Option<(&str, String)> {
    let (name, version) = text.split_once(':')?;
    engine::is_version(version).then(|| (name, version.to_owned()))
}

fn wrapper_version(text: &str) -> Option<Wrapper> {
    let (name, version) = versioned(text)?;
    let name = WrapperName::parse(name)?;
    Some(Wrapper { name, version })
}

/// Returns the first entry whose engine and wrapper occur twice in `engines`.
fn first_duplicate(engines: &[EngineImage]) -> Option<&EngineImage> {
    let mut numbered_engines = engines.iter().enumerate();
    let duplicate = numbered_engines.find(|(index, engine)| {
        let mut earlier_engines = engines.iter().take(*index);
        earlier_engines
            .any(|earlier| (&earlier.engine, &earlier.wrapper) == (&engine.engine, &engine.wrapper))
    });
    duplicate.map(|(_, engine)| engine)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn engine_flag_requires_name_version_and_image() {
        let read = engine_image("opentofu:1.12.6=registry.test:5000/opentofu:1.12.6").unwrap();
        assert_eq!(read.engine.to_string(), "opentofu 1.12.6");
        assert_eq!(read.image, "registry.test:5000/opentofu:1.12.6");
        let wrapped = engine_image("terraform:1.11.4+terragrunt:1.0.0=x.test/terragrunt").unwrap();
        assert_eq!(
            wrapped.to_string(),
            "terraform 1.11.4 with terragrunt 1.0.0"
        );
        for wrong in [
            "",
            "opentofu=x",
            "opentofu:1.12.6",
            "opentofu:1.12=x",
            "tofu:1.12.6=x",
            "opentofu:1.12.6=",
            "opentofu:1.12.6+=x",
            "opentofu:1.12.6+terragrunt=x",
            "opentofu:1.12.6+terragrunt:1.0=x",
            "opentofu:1.12.6+other:1.0.0=x",
            "opentofu:1.12.6=Not An Image",
        ] {
            assert!(engine_image(wrong).is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn cache_flag_accepts_three_forms() {
        assert_eq!(cache_default("none").unwrap(), CacheDefault::None);
        let per_resource = cache_default("per-resource").unwrap();
        assert_eq!(per_resource, CacheDefault::PerResource);
        let claim = cache_default("claim:terraform.plans-1").unwrap();
        assert_eq!(claim, CacheDefault::Claim("terraform.plans-1".to_owned()));
        for wrong in [
            "",
            "all",
            "claim:",
            "claim:A",
            "claim:team/a",
            "claim:-a",
            "claim:a..b",
        ] {
            assert!(cache_default(wrong).is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn ca_file_over_the_size_limit_is_refused() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let flag = format!("--ca-file={}", file.path().display());
        let flags = ["alustan", "--base-image=a", "--operator-image=b", &flag];
        let config = Config::try_parse_from(flags).unwrap();
        std::fs::write(file.path(), "x".repeat(MAX_CA_FILE_BYTES)).unwrap();
        assert!(config.settings().is_ok());
        std::fs::write(file.path(), "x".repeat(MAX_CA_FILE_BYTES + 1)).unwrap();
        let error = config.settings().unwrap_err().to_string();
        assert!(error.contains("can be passed to pods"), "{error}");
    }

    #[test]
    fn architecture_is_amd64_or_arm64() {
        for known in Architecture::ALL {
            assert_eq!(architecture(known.as_str()).unwrap(), known);
        }
        let error = architecture("x86_64").unwrap_err().to_string();
        assert!(error.contains("expected amd64 or arm64"), "{error}");
    }

    #[test]
    fn pod_user_is_an_id_other_than_root_or_none() {
        let flags = ["alustan", "--base-image=a", "--operator-image=b"];
        let default = Config::try_parse_from(flags).unwrap().pod_user;
        assert_eq!(default.id(), Some(alustan_api::paths::USER));
        assert_eq!(pod_user("none").unwrap().id(), None);
        assert_eq!(pod_user("2147483647").unwrap().id(), Some(2_147_483_647));
        for wrong in ["", "0", "-1", "2147483648", "root", "None"] {
            let error = pod_user(wrong).unwrap_err().to_string();
            assert!(error.contains("expected none, or a user id"), "{error}");
        }
    }

    #[test]
    fn watch_namespaces_accepts_repeated_flags_and_lists() {
        let parsed = |more: &[&str]| {
            let least = ["alustan", "--base-image", "a", "--operator-image", "b"];
            Config::try_parse_from(least.iter().chain(more))
        };
        assert!(parsed(&[]).unwrap().watch_namespaces.is_empty());
        for flags in [
            &["--watch-namespaces=a,b"][..],
            &["--watch-namespaces=a", "--watch-namespaces=b"],
        ] {
            assert_eq!(parsed(flags).unwrap().watch_namespaces, ["a", "b"]);
        }
        // An empty name is refused: it must not select all namespaces.
        for nothing in ["--watch-namespaces=", "--watch-namespaces=a,"] {
            assert!(parsed(&[nothing]).is_err(), "{nothing}");
        }
    }

    #[test]
    fn metacontroller_driver_requires_authentication() {
        let parsed = |more: &[&str]| {
            let least = ["alustan", "--base-image", "a", "--operator-image", "b"];
            Config::try_parse_from(least.iter().chain(more))
        };
        assert!(parsed(&[]).unwrap().check().is_ok());
        let driver = "--driver=metacontroller";
        let nothing = parsed(&[driver]).unwrap().check().unwrap_err();
        assert!(
            nothing.to_string().contains("--sync-token-dir"),
            "{nothing}"
        );
        let token = parsed(&[driver, "--sync-token-dir=/t"]).unwrap();
        assert!(token.check().is_ok());
        let (listen, tls) = ("--sync-listen=0.0.0.0:8443", "--sync-tls-dir=/s");
        let certificate = parsed(&[driver, listen, tls, "--sync-client-ca-file=/c"]).unwrap();
        assert!(certificate.check().is_ok());
        for alone in [listen, tls, "--sync-client-ca-file=/c"] {
            assert!(
                parsed(&[driver, "--sync-token-dir=/t", alone]).is_err(),
                "{alone}"
            );
        }
    }

    #[test]
    fn duplicate_engine_version_is_detected() {
        let engine = |text| engine_image(text).unwrap();
        let first = engine("terraform:1.11.4=a.test/x:1");
        let second = engine("terraform:1.11.5=a.test/x:1");
        assert_eq!(first_duplicate(&[first.clone(), second.clone()]), None);
        let twice = [first.clone(), second, first.clone()];
        assert_eq!(first_duplicate(&twice), Some(&first));
    }
}
