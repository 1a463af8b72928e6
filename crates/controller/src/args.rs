//! Flags of the operator. Each can be given as an environment variable, too.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;

use alustan_api::{Architecture, BuilderKind, Engine, EngineName, engine};
use alustan_core::settings::{EngineImage, KANIKO, KANIKO_CAPABILITIES, Settings};
use alustan_registry::ImageRef;
use anyhow::{Context as _, Result, bail, ensure};
use clap::{Args, Parser, ValueEnum};
use k8s_openapi::jiff::SignedDuration;

/// Proxies reach the controller, the builder and the runner alike.
const PROXIES: [&str; 6] = [
    "HTTP_PROXY",
    "HTTPS_PROXY",
    "NO_PROXY",
    "http_proxy",
    "https_proxy",
    "no_proxy",
];

/// The certificates reach pods in an environment variable, which Linux allows 128 KiB
/// (`MAX_ARG_STRLEN`, <https://man7.org/linux/man-pages/man2/execve.2.html>).
const CA_BYTES: usize = 120 * 1024;

/// Runs Terraform from git on Kubernetes.
#[derive(Clone, Debug, Parser)]
#[command(version)]
pub(crate) struct Config {
    /// Base image of runner images: an engine, git and the runner.
    #[arg(long, env = "ALUSTAN_BASE_IMAGE")]
    pub(crate) base_image: String,
    /// A base image for `spec.engine`, as opentofu:1.12.6=registry.example.com/opentofu:1.12.6; may be
    /// repeated.
    #[arg(long = "engine", env = "ALUSTAN_ENGINES", value_delimiter = ',')]
    pub(crate) engines: Vec<String>,
    /// This operator's own image; the runner in it goes into images built from other bases.
    #[arg(long, env = "ALUSTAN_OPERATOR_IMAGE")]
    pub(crate) operator_image: String,
    /// How images are built, unless a resource says otherwise (`containerRegistry.builder.kind`): `kaniko`, or
    /// `append`, which needs no root and no builder image (docs/builder.md).
    #[arg(long, env = "ALUSTAN_BUILDER", default_value = "kaniko", value_parser = builder_kind)]
    pub(crate) builder: BuilderKind,
    /// The builder's image: kaniko, or one that takes the same arguments.
    #[arg(long, env = "ALUSTAN_BUILDER_IMAGE", default_value = KANIKO)]
    pub(crate) builder_image: String,
    /// A further argument of the builder; may be repeated.
    #[arg(
        long = "builder-arg",
        env = "ALUSTAN_BUILDER_ARGS",
        value_delimiter = ','
    )]
    pub(crate) builder_args: Vec<String>,
    /// Capabilities of the builder's container.
    #[arg(long = "builder-capability", env = "ALUSTAN_BUILDER_CAPABILITIES", value_delimiter = ',',
          default_values_t = KANIKO_CAPABILITIES.map(str::to_owned))]
    pub(crate) builder_capabilities: Vec<String>,
    /// Whether build pods have a user namespace of their own (`hostUsers: false`): root in them is nobody on
    /// the node. The nodes must be able to (docs/builder.md).
    #[arg(long, env = "ALUSTAN_BUILDER_USER_NAMESPACES")]
    pub(crate) builder_user_namespaces: bool,
    /// The namespace in which all images are built, for resources whose own enforces PodSecurity restricted;
    /// that of the resource if it is not given. Credentials of registry and repository are lent to it for the
    /// time of a build, so that nobody but the operator should have rights there.
    #[arg(long, env = "ALUSTAN_BUILD_NAMESPACE")]
    pub(crate) build_namespace: Option<String>,
    /// CPU architecture of images, and of the nodes of builds and runs, unless a resource names one (`runner.architecture`):
    /// `amd64` or `arm64`. Default: for each resource that of its last run, and for a new one that of this operator. A change
    /// applies nothing: the next run of each resource builds its image.
    #[arg(long, env = "ALUSTAN_ARCHITECTURE", value_parser = architecture)]
    pub(crate) architecture: Option<Architecture>,
    /// A registry that is spoken to in plain http, as host:port; may be repeated.
    #[arg(
        long = "insecure-registry",
        env = "ALUSTAN_INSECURE_REGISTRIES",
        value_delimiter = ','
    )]
    pub(crate) insecure_registries: Vec<String>,
    /// A file with certificates (PEM) to trust besides the usual ones.
    #[arg(long, env = "ALUSTAN_CA_FILE")]
    pub(crate) ca_file: Option<PathBuf>,
    /// Whether an image may be built from a Dockerfile of its repository (`containerRegistry.dockerfile`):
    /// its commands run as root in the build pod, beside the credentials that push.
    #[arg(long, env = "ALUSTAN_ALLOW_DOCKERFILES")]
    pub(crate) allow_dockerfiles: bool,
    /// A registry, or a part of its repositories (`registry.example.com/team`), that resources may use
    /// by the operator's own identity in a cloud (`containerRegistry.provider`); may be repeated.
    #[arg(
        long = "identity-registry",
        env = "ALUSTAN_IDENTITY_REGISTRIES",
        value_delimiter = ','
    )]
    pub(crate) identity_registries: Vec<String>,
    /// Where repositories and contexts are cached.
    #[arg(long, env = "ALUSTAN_CACHE_DIR", default_value = "/var/cache/alustan")]
    pub(crate) cache_dir: PathBuf,
    /// How many MiB all cached repositories may have together; the longest unused make room. The
    /// volume needs 2 GiB more, for contexts and for what arrives.
    #[arg(long, env = "ALUSTAN_GIT_CACHE_MIB", default_value_t = 3072, value_parser = clap::value_parser!(u64).range(64..1 << 24))]
    pub(crate) git_cache_mib: u64,
    /// A namespace to watch and act in; may be repeated. Without any, all are watched. With some, Roles in
    /// them are enough, and they are not labelled alustan.io/holds-state.
    #[arg(
        long,
        env = "ALUSTAN_WATCH_NAMESPACES",
        value_delimiter = ',',
        value_parser = clap::builder::NonEmptyStringValueParser::new()
    )]
    pub(crate) watch_namespaces: Vec<String>,
    /// Whether a resource may refer to objects in other namespaces than its own: to outputs of others,
    /// to what it depends on and waits for.
    #[arg(long, env = "ALUSTAN_ALLOW_CROSS_NAMESPACE_REFS")]
    pub(crate) allow_cross_namespace_refs: bool,
    /// Maximum number of concurrent runs of all resources. A build for a run counts as one. Drift checks take at most half of them.
    #[arg(long, env = "ALUSTAN_MAX_CONCURRENT_RUNS", default_value_t = 50)]
    pub(crate) max_concurrent_runs: usize,
    /// Maximum number of concurrent runs and builds in one namespace. 0 means half of --max-concurrent-runs. A tenth of
    /// --max-concurrent-runs is reserved for namespaces without a run.
    #[arg(long, env = "ALUSTAN_MAX_RUNS_PER_NAMESPACE", default_value_t = 0)]
    pub(crate) max_runs_per_namespace: usize,
    /// How long the pod of a run or a build may wait for a node (`20m`, `1h`), before its Job is deleted and made anew:
    /// longer than the cluster takes to make one.
    #[arg(
        long,
        env = "ALUSTAN_SCHEDULING_TIMEOUT",
        default_value = "20m",
        value_parser = timeout
    )]
    pub(crate) scheduling_timeout: SignedDuration,
    /// Maximum of `spec.timeouts` (`12h`). Longer ones count as this: a run that hangs holds a slot until its time limit.
    #[arg(long, env = "ALUSTAN_MAX_TIMEOUT", default_value = "24h", value_parser = timeout)]
    pub(crate) max_timeout: SignedDuration,
    /// The Lease in the operator's namespace by which one of several replicas acts. Operators of different
    /// namespaces that share one of their own need different ones.
    #[arg(long, env = "ALUSTAN_LEASE", default_value = "alustan")]
    pub(crate) lease: String,
    /// The name of this pod. Of several replicas one acts, as long as it holds the Lease; by its pod's name
    /// a process that was started again knows its own.
    #[arg(long, env = "ALUSTAN_POD_NAME")]
    pub(crate) pod_name: Option<String>,
    /// The address of this pod, at which other replicas reach --listen: they hand on what is told at
    /// their /hooks to the one that acts.
    #[arg(long, env = "ALUSTAN_POD_IP")]
    pub(crate) pod_ip: Option<IpAddr>,
    /// Where probes, `/version` and `/metrics` are answered. `[::]` is every address of IPv6 and IPv4, or of IPv4 alone on a node
    /// without IPv6.
    #[arg(long, env = "ALUSTAN_LISTEN", default_value = "[::]:8080")]
    pub(crate) listen: SocketAddr,
    /// A file, mostly in a mounted Secret, with places that are told of every resource, as a list in JSON:
    /// `[{"url": "https://…", "secret": "whsec_…", "events": ["Failed"]}]`. It is followed while the
    /// operator runs, and need not be there.
    #[arg(long, env = "ALUSTAN_NOTIFICATIONS")]
    pub(crate) notifications: Option<PathBuf>,
    /// A folder, mostly the mounted ConfigMap alustan-allowed, with what resources may use: files named
    /// registries, repositories, builders, serviceAccounts, approval and destroy. What has no file is not
    /// limited. It is followed while the operator runs, and need not be there.
    #[arg(long, env = "ALUSTAN_ALLOWED")]
    pub(crate) allowed: Option<PathBuf>,
    /// A folder, mostly a mounted Secret, with the secrets that those who send to /hooks sign with: one in
    /// each file, all of them accepted, so that a new one may come before the old one goes. Without it,
    /// /hooks takes nothing.
    #[arg(long, env = "ALUSTAN_HOOK_SECRETS")]
    pub(crate) hook_secrets: Option<PathBuf>,
    /// Who says when to look at a resource: the operator's own watches, or metacontroller by POST /sync.
    #[arg(long, env = "ALUSTAN_DRIVER", value_enum, default_value_t = Driver::Native)]
    pub(crate) driver: Driver,
    #[command(flatten)]
    pub(crate) sync: SyncFlags,
    /// error, info or debug; or a filter such as `info,kube=debug`.
    #[arg(long, env = "ALUSTAN_LOG_LEVEL", default_value = "info")]
    pub(crate) log_level: String,
    /// A file with another level, which is followed while the operator runs; where there is none, or
    /// nothing in it, --log-level counts.
    #[arg(long, env = "ALUSTAN_LOG_LEVEL_FILE")]
    pub(crate) log_level_file: Option<PathBuf>,
    /// How log lines look on standard error.
    #[arg(long, env = "ALUSTAN_LOG_FORMAT", value_enum, default_value_t = LogFormat::Text)]
    pub(crate) log_format: LogFormat,
}

/// Who says when to look at a resource, and writes its status.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Driver {
    /// The operator itself.
    Native,
    /// Metacontroller.
    Metacontroller,
}

/// How metacontroller reaches the operator, and proves that it is it.
#[derive(Clone, Debug, Default, Args)]
pub(crate) struct SyncFlags {
    /// A folder, such as a mounted Secret: each file in it is a token that callers of /sync may give
    /// (Authorization: Bearer). It is read anew for each call.
    #[arg(
        id = "sync_token_dir",
        long = "sync-token-dir",
        env = "ALUSTAN_SYNC_TOKEN_DIR"
    )]
    pub(crate) token_dir: Option<PathBuf>,
    /// Where /sync is answered by TLS; without it, it is answered at --listen in plain http.
    #[arg(
        id = "sync_listen",
        long = "sync-listen",
        env = "ALUSTAN_SYNC_LISTEN",
        requires = "sync_tls_dir"
    )]
    pub(crate) listen: Option<SocketAddr>,
    /// A folder with tls.crt and tls.key, as a Secret of that type has them, for --sync-listen. They are
    /// read anew when they change.
    #[arg(
        id = "sync_tls_dir",
        long = "sync-tls-dir",
        env = "ALUSTAN_SYNC_TLS_DIR",
        requires = "sync_listen"
    )]
    pub(crate) tls_dir: Option<PathBuf>,
    /// A file with certificates (PEM): callers at --sync-listen must have one signed by one of these.
    #[arg(
        id = "sync_client_ca_file",
        long = "sync-client-ca-file",
        env = "ALUSTAN_SYNC_CLIENT_CA_FILE",
        requires = "sync_listen"
    )]
    pub(crate) client_ca_file: Option<PathBuf>,
}

/// How log lines look.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum LogFormat {
    /// For people.
    Text,
    /// One object a line.
    Json,
}

impl Config {
    /// Nobody is told of the resources who does not prove who they are.
    pub(crate) fn check(&self) -> Result<()> {
        let proof = self.sync.token_dir.is_some() || self.sync.client_ca_file.is_some();
        ensure!(
            proof || self.driver == Driver::Native,
            "--driver=metacontroller needs --sync-token-dir or --sync-client-ca-file: by one of them \
             metacontroller proves that it is it"
        );
        Ok(())
    }

    /// Where other replicas reach this one.
    pub(crate) fn address(&self) -> Option<SocketAddr> {
        let port = Some(self.listen.port()).filter(|port| *port > 0);
        Some(SocketAddr::new(self.pod_ip?, port?))
    }

    /// The base images for `spec.engine`.
    fn catalogue(&self) -> Result<Vec<EngineImage>> {
        let given = self.engines.iter().map(|it| it.trim());
        let engines = given
            .filter(|it| !it.is_empty())
            .map(engine_image)
            .collect::<Result<Vec<_>>>()
            .context("--engine")?;
        if let Some(twice) = given_twice(&engines) {
            bail!("--engine: {twice} is given twice; a version has one image");
        }
        Ok(engines)
    }

    /// What behaviour depends on.
    pub(crate) fn settings(&self) -> Result<Settings> {
        let engines = self.catalogue()?;
        let ca_bundle = self
            .ca_file
            .as_ref()
            .map(|file| {
                let text = std::fs::read_to_string(file)
                    .with_context(|| format!("--ca-file: read {}", file.display()))?;
                ensure!(
                    text.len() <= CA_BYTES,
                    "--ca-file: {} has {} bytes; more than {CA_BYTES} cannot be handed to pods: \
                     leave only the certificates that are not trusted everywhere",
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
            environment,
            dockerfiles: self.allow_dockerfiles,
            identity_registries: self.identity_registries.clone(),
            scheduling_timeout: self.scheduling_timeout,
            max_timeout: self.max_timeout,
            cross_namespace_refs: self.allow_cross_namespace_refs,
            marks_namespaces: self.watch_namespaces.is_empty(),
        })
    }
}

/// Parses a duration of at least one minute.
fn timeout(text: &str) -> Result<SignedDuration> {
    let timeout: SignedDuration = text.parse().context("as in 20m or 1h30m")?;
    ensure!(timeout >= SignedDuration::from_mins(1), "at least 1m");
    Ok(timeout)
}

/// Reads a kind of builder, in any case of its letters.
fn builder_kind(text: &str) -> Result<BuilderKind> {
    let kinds = [BuilderKind::Kaniko, BuilderKind::Append];
    let found = kinds
        .into_iter()
        .find(|kind| format!("{kind:?}").eq_ignore_ascii_case(text));
    found.with_context(|| format!("invalid builder kind {text:?}: expected kaniko or append"))
}

/// Parses an architecture.
fn architecture(text: &str) -> Result<Architecture> {
    Architecture::parse(text)
        .with_context(|| format!("invalid architecture {text:?}: expected amd64 or arm64"))
}

/// Reads `NAME:VERSION=IMAGE`.
fn engine_image(text: &str) -> Result<EngineImage> {
    let wrong = || {
        format!(
            "{text:?} is not of the form NAME:VERSION=IMAGE with the name terraform or opentofu and \
             a whole version, such as opentofu:1.12.6=registry.example.com/opentofu:1.12.6"
        )
    };
    let (engine, image) = text.split_once('=').with_context(wrong)?;
    let (name, version) = engine.split_once(':').with_context(wrong)?;
    let name = EngineName::parse(name).with_context(wrong)?;
    ensure!(engine::is_version(version), wrong());
    ImageRef::parse(image).with_context(|| format!("{text:?}: {image:?} is no image"))?;
    Ok(EngineImage {
        engine: Engine {
            name,
            version: version.to_owned(),
        },
        image: image.to_owned(),
    })
}

/// The first engine that is in `engines` twice.
fn given_twice(engines: &[EngineImage]) -> Option<&Engine> {
    let mut all = engines.iter().enumerate();
    let twice = all.find(|(index, one)| {
        let mut before = engines.iter().take(*index);
        before.any(|other| other.engine == one.engine)
    });
    twice.map(|(_, it)| &it.engine)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_engine_has_a_name_a_version_and_an_image() {
        let read = engine_image("opentofu:1.12.6=registry.test:5000/opentofu:1.12.6").unwrap();
        assert_eq!(read.engine.to_string(), "opentofu 1.12.6");
        assert_eq!(read.image, "registry.test:5000/opentofu:1.12.6");
        for wrong in [
            "",
            "opentofu=x",
            "opentofu:1.12.6",
            "opentofu:1.12=x",
            "tofu:1.12.6=x",
            "opentofu:1.12.6=",
            "opentofu:1.12.6=Not An Image",
        ] {
            assert!(engine_image(wrong).is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn certificates_that_no_pod_takes_are_refused() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let flag = format!("--ca-file={}", file.path().display());
        let flags = ["alustan", "--base-image=a", "--operator-image=b", &flag];
        let config = Config::try_parse_from(flags).unwrap();
        std::fs::write(file.path(), "x".repeat(CA_BYTES)).unwrap();
        assert!(config.settings().is_ok());
        std::fs::write(file.path(), "x".repeat(CA_BYTES + 1)).unwrap();
        let error = config.settings().unwrap_err().to_string();
        assert!(error.contains("cannot be handed to pods"), "{error}");
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
    fn namespaces_are_named_one_by_one_or_in_one_list() {
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
        // Whoever names none by mistake does not act everywhere.
        for nothing in ["--watch-namespaces=", "--watch-namespaces=a,"] {
            assert!(parsed(&[nothing]).is_err(), "{nothing}");
        }
    }

    #[test]
    fn metacontroller_must_be_able_to_prove_who_it_is() {
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
    fn an_engine_is_given_once() {
        let engine = |text| engine_image(text).unwrap();
        let one = engine("terraform:1.11.4=a.test/x:1");
        let other = engine("terraform:1.11.5=a.test/x:1");
        assert_eq!(given_twice(&[one.clone(), other.clone()]), None);
        let twice = [one.clone(), other, one.clone()];
        assert_eq!(given_twice(&twice), Some(&one.engine));
    }
}
