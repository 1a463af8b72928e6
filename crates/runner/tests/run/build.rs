//! Builds with the builder `Append` (`alustan-runner build` and `prepare`), a real engine and a real registry.

use std::collections::BTreeMap;
use std::fs;
use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use alustan_api::Architecture;
use alustan_api::report::{FailureClass, PrepareReport};
use alustan_registry::{Access, Digest, ImageName, ImageRef, Options, Registry};
use flate2::Compression;
use flate2::read::GzDecoder;
use flate2::write::GzEncoder;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::world::{as_user, make_read_only};

const MODULE: &str =
    "resource \"terraform_data\" \"a\" { input = file(\"${path.module}/run.sh\") }\n";
const RUNNER: &str = env!("CARGO_BIN_EXE_alustan-runner");
/// Shell script that executes the containers `prepare` and `build` of a build with the program `$0`. Before that, the script creates the folders that
/// the kubelet creates for the mounts of `prepare`.
const CONTAINERS: &str = r#"cd "$ALUSTAN_BUILD_DIR" && mkdir -p src/providers src/module handover &&
cd / && { "$0" prepare & exec "$0" build; }"#;
const MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";

/// Registry on loopback with a base image, and the folder for the files of builds.
struct Place {
    folder: TempDir,
    registry: Child,
    host: String,
    base: String,
}

impl Drop for Place {
    fn drop(&mut self) {
        let _ = self.registry.kill();
        let _ = self.registry.wait();
    }
}

/// Result of a build.
struct Built {
    code: Option<i32>,
    /// Termination message.
    message: String,
    stderr: String,
    /// Peak resident memory of the container `build`, in KiB.
    peak: u64,
}

/// Peak resident memory of a running process, in KiB.
fn peak(process: &Child) -> Option<u64> {
    let status = fs::read_to_string(format!("/proc/{}/status", process.id())).ok()?;
    let peak = status
        .lines()
        .find_map(|line| line.strip_prefix("VmHWM:"))?;
    peak.split_whitespace().next()?.parse().ok()
}

impl Built {
    fn digest(&self) -> Digest {
        assert_eq!(self.code, Some(0), "{} {}", self.message, self.stderr);
        Digest::parse(&self.message).unwrap()
    }

    fn failure(&self) -> (FailureClass, String, String) {
        assert_eq!(self.code, Some(1), "{}", self.stderr);
        let report: PrepareReport = serde_json::from_str(&self.message).unwrap();
        let failure = report.failure;
        (failure.class, failure.reason, failure.message)
    }
}

/// Starts `docker-registry` (Debian) with its files in `folder`, on a free port. `more`: further lines of its configuration. Returns the
/// process and `host:port`.
fn start_registry(folder: &Path, name: &str, more: &str) -> (Child, String) {
    let port = TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap()
        .port();
    let host = format!("127.0.0.1:{port}");
    let config = format!(
        "version: 0.1\nlog: {{level: error}}\nstorage: {{filesystem: {{rootdirectory: {}}}}}\nhttp: {{addr: {host}}}\n{more}",
        folder.join(name).display()
    );
    let file = folder.join(format!("{name}.yml"));
    fs::write(&file, config).unwrap();
    let registry = Command::new("docker-registry")
        .arg("serve")
        .arg(file)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap_or_else(|error| panic!("docker-registry: {error}; `make setup` installs it"));
    let started = Instant::now();
    while TcpStream::connect(&host).is_err() {
        assert!(
            started.elapsed() < Duration::from_mins(1),
            "no registry at {host}"
        );
        std::thread::yield_now();
    }
    (registry, host)
}

/// Pull-through cache of a registry.
struct PullThroughCache {
    registry: Child,
    host: String,
}

impl PullThroughCache {
    fn of(place: &Place) -> Self {
        let upstream = format!("proxy: {{remoteurl: \"http://{}\"}}\n", place.host);
        let (registry, host) = start_registry(place.folder.path(), "pull-through", &upstream);
        Self { registry, host }
    }
}

impl Drop for PullThroughCache {
    fn drop(&mut self) {
        let _ = self.registry.kill();
        let _ = self.registry.wait();
    }
}

impl Place {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let (registry, host) = start_registry(folder.path(), "registry", "");
        let mut place = Self {
            folder,
            registry,
            host,
            base: String::new(),
        };
        place.base = place.push_base();
        place
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Sends one request without TLS. Returns status, headers and body.
    fn send(&self, method: &str, path: &str, kind: &str, body: &[u8]) -> (u16, String, Vec<u8>) {
        let mut stream = TcpStream::connect(&self.host).unwrap();
        let head = format!(
            "{method} {path} HTTP/1.1\r\nHost: {}\r\nAccept: {MANIFEST}\r\nContent-Type: {kind}\r\n\
             Content-Length: {}\r\nConnection: close\r\n\r\n",
            self.host,
            body.len()
        );
        stream.write_all(head.as_bytes()).unwrap();
        stream.write_all(body).unwrap();
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).unwrap();
        let end = answer
            .windows(4)
            .position(|part| part == b"\r\n\r\n")
            .unwrap();
        let head = String::from_utf8(answer[..end].to_vec()).unwrap();
        let status = head.split(' ').nth(1).unwrap().parse().unwrap();
        (status, head, answer[end + 4..].to_vec())
    }

    fn push_blob(&self, bytes: &[u8]) -> Value {
        let (_, head, _) = self.send("POST", "/v2/team/base/blobs/uploads/", "", b"");
        let location = head
            .lines()
            .find_map(|line| line.strip_prefix("Location: "))
            .unwrap();
        let path = location
            .strip_prefix(&format!("http://{}", self.host))
            .unwrap();
        let digest = Digest::of(bytes);
        let put = format!("{path}&digest={digest}");
        let (status, ..) = self.send("PUT", &put, "application/octet-stream", bytes);
        assert_eq!(status, 201);
        json!({ "digest": digest.as_str(), "size": bytes.len() })
    }

    /// Pushes a base image of one layer. Returns its reference by digest.
    fn push_base(&self) -> String {
        let archive = tar::Builder::new(Vec::new()).into_inner().unwrap();
        let mut layer = GzEncoder::new(Vec::new(), Compression::fast());
        layer.write_all(&archive).unwrap();
        let mut layer = self.push_blob(&layer.finish().unwrap());
        layer["mediaType"] = "application/vnd.oci.image.layer.v1.tar+gzip".into();
        let config = json!({
            "architecture": Architecture::own(), "os": "linux",
            "config": { "Env": ["PATH=/usr/bin"], "Cmd": ["/bin/sh"] },
            "rootfs": { "type": "layers", "diff_ids": [Digest::of(&archive).as_str()] },
            "history": [{ "created_by": "base" }],
        });
        let mut config = self.push_blob(config.to_string().as_bytes());
        config["mediaType"] = "application/vnd.oci.image.config.v1+json".into();
        let manifest = json!({ "schemaVersion": 2, "mediaType": MANIFEST, "config": config, "layers": [layer] });
        let manifest = manifest.to_string();
        let (status, ..) = self.send(
            "PUT",
            "/v2/team/base/manifests/1",
            MANIFEST,
            manifest.as_bytes(),
        );
        assert_eq!(status, 201);
        format!(
            "{}/team/base:1@{}",
            self.host,
            Digest::of(manifest.as_bytes())
        )
    }

    /// Pushes the files of `module` as a context, as the operator does, and builds the runner image `team/web:tag` from the context.
    fn build(&self, module: &Path, tag: &str, environment: &[(&str, &str)]) -> Built {
        let mut containers = Command::new("sh");
        containers.args(["-c", CONTAINERS, RUNNER]);
        self.build_by(containers, module, tag, environment)
    }

    /// Builds a runner image like [`Self::build`], with a scratch space of `kib` KiB.
    fn build_within(&self, kib: u32, module: &Path, tag: &str) -> Built {
        let folder = self.path(&format!("build-{tag}"));
        fs::create_dir_all(&folder).unwrap();
        let mount = format!("mount -t tmpfs -o size={kib}k tmpfs {}", folder.display());
        let mut containers = Command::new("unshare");
        containers.args([
            "--user",
            "--map-root-user",
            "--mount",
            "sh",
            "-c",
            &format!("{mount} && {CONTAINERS}"),
            RUNNER,
        ]);
        self.build_by(containers, module, tag, &[])
    }

    /// Builds a runner image like [`Self::build`], as `user` with a read-only home.
    fn build_as(&self, user: u32, module: &Path, tag: &str) -> Built {
        let home = self.path("read-only");
        fs::create_dir_all(&home).unwrap();
        make_read_only(&home);
        let mut containers = as_user(user, "sh");
        containers.args(["-c", CONTAINERS, RUNNER]);
        self.build_by(containers, module, tag, &[("HOME", home.to_str().unwrap())])
    }

    fn build_by(
        &self,
        mut containers: Command,
        module: &Path,
        tag: &str,
        environment: &[(&str, &str)],
    ) -> Built {
        let mut archive = tar::Builder::new(GzEncoder::new(Vec::new(), Compression::fast()));
        archive.follow_symlinks(false);
        archive.append_dir_all("", module).unwrap();
        let context = archive.into_inner().unwrap().finish().unwrap();
        let repository = format!("{}/team/web", self.host);
        let context = self.push_context(&repository, &context);
        let build = self.path(&format!("build-{tag}"));
        let log = self.path(&format!("log-{tag}"));
        let stderr = self.path(&format!("stderr-{tag}"));
        for folder in [self.path("cache"), self.path("home"), build.clone()] {
            fs::create_dir_all(folder).unwrap();
        }
        let mut runner = containers
            .env("ALUSTAN_CONTEXT", format!("{repository}@{context}"))
            .env("ALUSTAN_DOCKERFILE", "")
            .env("ALUSTAN_HANDOVER", "true")
            .env("ALUSTAN_BACKEND_KIND", "http")
            .env("ALUSTAN_IMAGE", format!("{repository}:{tag}"))
            .env("ALUSTAN_BASE", &self.base)
            .env("ALUSTAN_NAMESPACE_UID", "uid-of-team")
            .env("ALUSTAN_CREATED", "2026-01-01T00:00:00Z")
            .env("ALUSTAN_INSECURE_REGISTRIES", &self.host)
            .env("ALUSTAN_BUILD_DIR", &build)
            .env("ALUSTAN_WORK_DIR", self.path(&format!("work-{tag}")))
            .env("ALUSTAN_CACHE_DIR", self.path("cache"))
            .env("ALUSTAN_BASE_PROVIDERS_DIR", self.path("plugins"))
            .env("ALUSTAN_TERMINATION_LOG", &log)
            .env("HOME", self.path("home"))
            .env_remove("TF_CLI_CONFIG_FILE")
            .envs(environment.iter().copied())
            .stdout(Stdio::null())
            .stderr(fs::File::create(&stderr).unwrap())
            .spawn()
            .unwrap();
        let mut peak_seen = 0;
        let status = loop {
            peak_seen = peak(&runner).unwrap_or(peak_seen);
            if let Some(status) = runner.try_wait().unwrap() {
                break status;
            }
            std::thread::sleep(Duration::from_millis(10));
        };
        Built {
            code: status.code(),
            message: fs::read_to_string(log).unwrap_or_default(),
            stderr: fs::read_to_string(stderr).unwrap(),
            peak: peak_seen,
        }
    }

    fn push_context(&self, repository: &str, bytes: &[u8]) -> Digest {
        let _ = rustls::crypto::ring::default_provider().install_default();
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        let options = Options {
            insecure_hosts: vec![self.host.clone()],
            ..Options::default()
        };
        let image = ImageRef::parse(repository).unwrap();
        let name: &ImageName = image.name();
        let digest = Digest::of(bytes);
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(bytes).unwrap();
        runtime.block_on(async {
            let registry = Registry::new(options).unwrap();
            registry
                .push_context(name, &digest, file.path(), &Access::anonymous())
                .await
                .unwrap()
        })
    }

    fn get(&self, path: &str) -> Vec<u8> {
        let (status, _, body) = self.send("GET", &format!("/v2/team/web/{path}"), "", b"");
        assert_eq!(status, 200, "{path}");
        body
    }

    fn manifest(&self, tag: &str) -> Value {
        serde_json::from_slice(&self.get(&format!("manifests/{tag}"))).unwrap()
    }

    /// Returns every entry of a layer, by path, in the format `MODE UID -> LINK_TARGET`.
    fn entries(&self, layer: &Value) -> BTreeMap<String, String> {
        let blob = self.get(&format!("blobs/{}", layer["digest"].as_str().unwrap()));
        let mut archive = tar::Archive::new(GzDecoder::new(blob.as_slice()));
        let entries = archive.entries().unwrap().map(|entry| {
            let entry = entry.unwrap();
            let link = entry
                .link_name()
                .unwrap()
                .map(|link| format!(" -> {}", link.display()));
            let header = entry.header();
            let link = link.unwrap_or_default();
            let mode = header.mode().unwrap();
            let uid = header.uid().unwrap();
            let path = entry.path().unwrap().display().to_string();
            (path, format!("{mode:o} {uid}{link}"))
        });
        entries.collect()
    }

    /// Creates a folder with a program, a link and a module.
    fn module(&self, name: &str) -> PathBuf {
        let folder = self.path(name);
        fs::create_dir_all(folder.join("sub")).unwrap();
        fs::write(folder.join("main.tf"), MODULE).unwrap();
        fs::write(folder.join("run.sh"), "#!/bin/sh\n").unwrap();
        fs::set_permissions(folder.join("run.sh"), fs::Permissions::from_mode(0o755)).unwrap();
        symlink("../run.sh", folder.join("sub/link")).unwrap();
        folder
    }
}

#[test]
fn append_pushes_the_module_on_top_of_the_base() {
    let place = Place::new();
    let module = place.module("module");
    let digest = place.build(&module, "one", &[]).digest();
    let bytes = place.get("manifests/one");
    assert_eq!(Digest::of(&bytes), digest);
    let manifest = place.manifest("one");
    let layers = manifest["layers"].as_array().unwrap();
    assert_eq!(layers.len(), 3, "{manifest:#}");
    assert_eq!(place.entries(&layers[1])["alustan/providers"], "755 65532");
    let files = place.entries(&layers[2]);
    assert_eq!(files["alustan"], "755 0");
    assert_eq!(files["alustan/module/main.tf"], "644 65532");
    assert_eq!(files["alustan/module/run.sh"], "755 65532");
    assert_eq!(files["alustan/module/sub/link"], "777 65532 -> ../run.sh");
    let config = manifest["config"]["digest"].as_str().unwrap();
    let config: Value = serde_json::from_slice(&place.get(&format!("blobs/{config}"))).unwrap();
    assert_eq!(config["config"]["User"], "65532:65532");
    assert_eq!(
        config["config"]["Entrypoint"],
        json!(["/usr/local/bin/alustan-runner"])
    );
    assert_eq!(config["config"]["Env"], json!(["PATH=/usr/bin"]));
    assert_eq!(config["config"]["Cmd"], Value::Null);
    assert_eq!(
        config["config"]["Labels"]["io.alustan.namespace"],
        "uid-of-team"
    );
    assert_eq!(config["created"], "2026-01-01T00:00:00Z");
}

#[test]
fn two_builds_of_one_content_have_one_digest() {
    let place = Place::new();
    let module = place.module("module");
    let first = place.build(&module, "one", &[]).digest();
    // The second build runs later and without the provider cache of the first, but pushes the same image.
    fs::remove_dir_all(place.path("cache")).unwrap();
    assert_eq!(place.build(&module, "two", &[]).digest(), first);
}

#[test]
fn image_does_not_depend_on_the_user_of_the_build() {
    let place = Place::new();
    let module = place.module("module");
    let first = place.build(&module, "one", &[]).digest();
    fs::remove_dir_all(place.path("cache")).unwrap();
    let second = place.build_as(1_000_650_000, &module, "two");
    assert_eq!(second.digest(), first);
}

#[test]
fn base_image_is_read_through_a_pull_through_cache() {
    let place = Place::new();
    let module = place.module("module");
    let cache = PullThroughCache::of(&place);
    let base = place.base.replace(&place.host, &cache.host);
    let hosts = format!("{},{}", place.host, cache.host);
    let environment = [
        ("ALUSTAN_BASE", base.as_str()),
        ("ALUSTAN_INSECURE_REGISTRIES", hosts.as_str()),
    ];
    let through = place.build(&module, "one", &environment).digest();
    assert_eq!(place.build(&module, "two", &[]).digest(), through);
}

#[test]
fn change_of_the_module_changes_only_its_layer() {
    let place = Place::new();
    let module = place.module("module");
    let first = place.build(&module, "one", &[]).digest();
    fs::write(module.join("more.tf"), "output \"more\" { value = 1 }\n").unwrap();
    assert_ne!(place.build(&module, "two", &[]).digest(), first);
    let manifest = place.manifest("one");
    let two = place.manifest("two");
    for layer in [0, 1] {
        assert_eq!(manifest["layers"][layer], two["layers"][layer]);
    }
    assert_ne!(manifest["layers"][2], two["layers"][2]);
}

#[test]
fn existing_tag_is_kept() {
    let place = Place::new();
    let module = place.module("module");
    let first = place.build(&module, "one", &[]).digest();
    fs::write(module.join("more.tf"), "output \"more\" { value = 1 }\n").unwrap();
    fs::remove_dir_all(place.path("build-one")).unwrap();
    assert_eq!(place.build(&module, "one", &[]).digest(), first);
}

#[test]
fn whiteout_in_a_module_is_refused_by_its_path() {
    let place = Place::new();
    let module = place.module("module");
    fs::write(module.join("sub/.wh.main.tf"), "").unwrap();
    let (class, reason, message) = place.build(&module, "one", &[]).failure();
    assert_eq!(
        (class, reason.as_str()),
        (FailureClass::User, "FileUnsupported")
    );
    assert!(message.contains("sub/.wh.main.tf"), "{message}");
}

#[test]
fn full_disk_is_transient_and_leaves_no_image() {
    let place = Place::new();
    let module = place.module("module");
    let mut random = fs::File::open("/dev/urandom").unwrap().take(600 << 10);
    let mut data = fs::File::create(module.join("data")).unwrap();
    std::io::copy(&mut random, &mut data).unwrap();
    // The scratch space of 1 MiB has enough space for the module, but not for the module and its layer.
    let (class, reason, message) = place.build_within(1024, &module, "one").failure();
    assert_eq!(
        (class, reason.as_str()),
        (FailureClass::Transient, "PrepareFailed")
    );
    assert!(message.contains("No space left on device"), "{message}");
    let (status, ..) = place.send("GET", "/v2/team/web/manifests/one", "", b"");
    assert_eq!(status, 404);
    let digest = place.build_within(8192, &module, "one").digest();
    assert_eq!(place.build(&module, "two", &[]).digest(), digest);
}

#[test]
fn credential_helper_is_not_called_for_another_registry() {
    let mut place = Place::new();
    let elsewhere = Place::new();
    let module = place.module("module");
    place.base.clone_from(&elsewhere.base);
    let helper = place.path("helper");
    let login = r#"{"Username": "u", "Secret": "s"}"#;
    let script = format!(
        "#!/bin/sh\nread -r host\ncase $host in *{}*) echo '{login}' ;; *) exit 1 ;; esac\n",
        place.host
    );
    fs::write(&helper, script).unwrap();
    fs::set_permissions(&helper, fs::Permissions::from_mode(0o755)).unwrap();
    let insecure = format!("{},{}", place.host, elsewhere.host);
    let environment = [
        ("ALUSTAN_INSECURE_REGISTRIES", insecure.as_str()),
        ("ALUSTAN_CREDENTIAL_HELPER", helper.to_str().unwrap()),
    ];
    place.build(&module, "one", &environment).digest();
}

#[test]
fn unreachable_registry_of_the_base_is_transient() {
    let mut place = Place::new();
    let module = place.module("module");
    place.base = place.base.replace(&place.host, "127.0.0.1:1");
    let (class, reason, message) = place
        .build(
            &module,
            "one",
            &[(
                "ALUSTAN_INSECURE_REGISTRIES",
                &format!("{},127.0.0.1:1", place.host),
            )],
        )
        .failure();
    assert_eq!(
        (class, reason.as_str()),
        (FailureClass::Transient, "RegistryUnreachable")
    );
    assert!(message.contains("127.0.0.1:1/team/base"), "{message}");
}

/// Size of a large provider, in bytes.
const LARGE: u64 = 500 << 20;
/// Maximum resident memory of the container `build`, in KiB.
const PEAK: u64 = 64 << 10;

#[test]
#[ignore = "writes 2 GB; `make full` runs it"]
fn provider_of_500_mb_is_pushed_within_64_mib_of_memory() {
    let place = Place::new();
    let provider = place.path("mirror/registry.terraform.io/team/large/1.0.0/linux_amd64");
    fs::create_dir_all(&provider).unwrap();
    let provider = provider.join("terraform-provider-large_v1.0.0");
    let mut random = fs::File::open("/dev/urandom").unwrap().take(LARGE);
    std::io::copy(&mut random, &mut fs::File::create(&provider).unwrap()).unwrap();
    fs::set_permissions(provider, fs::Permissions::from_mode(0o755)).unwrap();
    let mirror = place.path("mirror");
    let config = format!(
        "provider_installation {{\n  filesystem_mirror {{\n    path = \"{}\"\n  }}\n}}\n",
        mirror.display()
    );
    fs::write(place.path("cli.tfrc"), config).unwrap();
    let module = place.module("module");
    let needs =
        "terraform {\n  required_providers {\n    large = { source = \"team/large\" }\n  }\n}\n";
    fs::write(module.join("large.tf"), needs).unwrap();
    let config = place.path("cli.tfrc");
    let built = place.build(
        &module,
        "large",
        &[("TF_CLI_CONFIG_FILE", config.to_str().unwrap())],
    );
    built.digest();
    let size = place.manifest("large")["layers"][1]["size"]
        .as_u64()
        .unwrap();
    assert!(size > LARGE, "{size}");
    assert!(built.peak < PEAK, "{} KiB", built.peak);
}
