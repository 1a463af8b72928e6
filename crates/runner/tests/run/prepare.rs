use std::fs;
use std::io::{BufRead as _, BufReader, Write};
use std::net::TcpListener;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;
use std::process::{Command, Output, Stdio};

use alustan_api::Architecture;
use alustan_api::report::{Failure, FailureClass, PrepareReport, RunResult};
use alustan_api::run::RunKind;
use alustan_runner::build::{ContextRequest, unpack_context};
use alustan_runner::paths::{Paths, Vars};
use flate2::Compression;
use flate2::write::GzEncoder;
use rstest::rstest;

use crate::world::{World, text, until};

const PLAIN: &str = "resource \"terraform_data\" \"a\" { input = \"x\" }\noutput \"a\" { value = terraform_data.a.output }\n";

/// Returns a context with `files`, in the format of the controller.
pub(crate) fn context(files: &[(&str, &str)]) -> Vec<u8> {
    let mut archive = tar::Builder::new(GzEncoder::new(Vec::new(), Compression::fast()));
    for (name, content) in files {
        let mut header = tar::Header::new_gnu();
        header.set_size(content.len() as u64);
        header.set_mode(0o644);
        archive
            .append_data(&mut header, name, content.as_bytes())
            .unwrap();
    }
    archive.into_inner().unwrap().finish().unwrap()
}

pub(crate) fn pulled() -> ContextRequest {
    ContextRequest {
        context: String::new(),
        dockerfile: "FROM base\n".into(),
        before: None,
        inject: false,
    }
}

/// Arguments of `prepare`: path of the module, type of the backend, and wrapper.
pub(crate) struct Request {
    path: String,
    backend: String,
    wrapper: &'static str,
}

pub(crate) fn request(path: &str, backend: Option<&str>) -> Request {
    Request {
        path: path.into(),
        backend: backend.unwrap_or_default().into(),
        wrapper: "",
    }
}

/// Returns paths in the folder of `world`: scratch space `build`, cache volume `cache`, and providers of the base image `base`.
pub(crate) fn paths(world: &World, build: &str) -> Paths {
    let mut paths = Paths::from_vars(&Vars::new());
    paths.build = world.path(build);
    paths.work = world.path(&format!("{build}.work"));
    paths.cache = world.path("cache");
    paths.base_providers = world.path("base");
    paths.termination_log = world.path(&format!("{build}.log"));
    paths
}

fn prepare_in(paths: &Paths, request: &Request, files: &[(&str, &str)]) -> Result<(), Failure> {
    prepare_pulled(paths, &pulled(), request, files)
}

fn prepare_pulled(
    paths: &Paths,
    pulled: &ContextRequest,
    request: &Request,
    files: &[(&str, &str)],
) -> Result<(), Failure> {
    unpack_context(paths, &Vars::new(), pulled, &context(files))?;
    let mut command = prepare(paths, request);
    // Tests have no network. The optional CLI configuration `outside.tfrc` names a mirror with the providers that the base image lacks.
    let outside = paths.build.parent().unwrap().join("outside.tfrc");
    if outside.is_file() {
        command.env("TF_CLI_CONFIG_FILE", outside);
    }
    failure_of(&mut command, paths).map_or(Ok(()), Err)
}

/// Executes `prepare`. Returns the failure that `prepare` writes to its termination message, if any.
fn failure_of(prepare: &mut Command, paths: &Paths) -> Option<Failure> {
    failure_of_output(&prepare.output().unwrap(), paths)
}

/// Returns the failure that the ended `prepare` wrote to its termination message, if any.
pub(crate) fn failure_of_output(done: &Output, paths: &Paths) -> Option<Failure> {
    if done.status.success() {
        return None;
    }
    let report = fs::read(&paths.termination_log).unwrap();
    let report: PrepareReport = serde_json::from_slice(&report).unwrap();
    Some(report.failure)
}

/// Returns the command of the container `prepare`.
pub(crate) fn prepare(paths: &Paths, request: &Request) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_alustan-runner"));
    command
        .arg("prepare")
        .env_remove("TF_CLI_CONFIG_FILE")
        .env("HOME", &paths.build)
        .env("ALUSTAN_MODULE_PATH", &request.path)
        .env("ALUSTAN_BACKEND_KIND", &request.backend)
        .env("ALUSTAN_WRAPPER", request.wrapper)
        .env("ALUSTAN_BUILD_DIR", &paths.build)
        .env("ALUSTAN_WORK_DIR", &paths.work)
        .env("ALUSTAN_CACHE_DIR", &paths.cache)
        .env("ALUSTAN_BASE_PROVIDERS_DIR", &paths.base_providers)
        .env("ALUSTAN_TERMINATION_LOG", &paths.termination_log);
    command
}

#[test]
fn a_prepared_module_runs_without_init_and_at_any_path() {
    for (path, name) in [("", "main.tf"), ("stacks/web", "stacks/web/main.tf")] {
        let mut world = World::new("");
        let paths = paths(&world, "build");
        prepare_in(&paths, &request(path, Some("http")), &[(name, PLAIN)]).unwrap();
        world.inputs.path = path.into();
        world.use_module(&paths.build.join("src/module"));
        let ran = world.run(RunKind::Apply);
        ran.expect(RunResult::Done);
        assert!(!ran.stderr.contains(" init\n"), "{}", ran.logs());
        assert_eq!(text(&world.outputs().unwrap(), "a"), "x");
        world.run(RunKind::Drift).expect(RunResult::NoChanges);
        world.run(RunKind::Destroy).expect(RunResult::Done);
    }
}

#[test]
fn dockerfile_of_the_repository_precedes_generated_one() {
    let prepared = |from: &str| {
        let world = World::new("");
        let paths = paths(&world, "build");
        let mut pulled = pulled();
        pulled.dockerfile = "COPY module/ /alustan/module/\n".into();
        pulled.before = Some("docker/Dockerfile".into());
        let theirs = format!("ARG ALUSTAN_BASE\nFROM {from}\nRUN true");
        let files = [("web/main.tf", PLAIN), ("docker/Dockerfile", &theirs)];
        prepare_pulled(&paths, &pulled, &request("web", Some("http")), &files)?;
        Ok(fs::read_to_string(paths.build.join("Dockerfile")).unwrap())
    };
    assert_eq!(
        prepared("${ALUSTAN_BASE}"),
        Ok(
            "ARG ALUSTAN_BASE\nFROM ${ALUSTAN_BASE}\nRUN true\nCOPY module/ /alustan/module/\n"
                .into()
        )
    );
    let refused: Failure = prepared("alpine:3").unwrap_err();
    assert_eq!(
        (refused.class, refused.reason.as_str()),
        (FailureClass::User, "DockerfileRefused")
    );
}

#[test]
fn a_module_prepared_for_one_backend_runs_with_another() {
    let mut world = World::with_local_backend("");
    let paths = paths(&world, "build");
    prepare_in(&paths, &request("", Some("http")), &[("main.tf", PLAIN)]).unwrap();
    world.use_module(&paths.build.join("src/module"));
    let ran = world.run(RunKind::Apply);
    ran.expect(RunResult::Done);
    assert!(ran.stderr.contains(" init\n") && world.path("local.tfstate").is_file());
}

#[test]
fn backend_block_of_the_module_is_ignored_by_prepare() {
    let world = World::new("");
    let own = "terraform {\n  backend \"s3\" {\n    bucket = \"b\"\n  }\n}\n";
    for kind in [None, Some("http")] {
        let paths = paths(&world, kind.unwrap_or("none"));
        prepare_in(&paths, &request("", kind), &[("main.tf", own)]).unwrap();
        let module = paths.build.join("src/module");
        assert!(!module.join(".terraform/terraform.tfstate").exists());
        assert!(!module.join("zzz-alustan-backend.tf.json").exists());
        assert_eq!(
            fs::read_to_string(paths.build.join("Dockerfile")).unwrap(),
            "FROM base\n"
        );
    }
}

fn fake_provider(mirror: &Path, name: &str, content: &str) {
    let folder = mirror.join(format!(
        "registry.terraform.io/team/{name}/1.0.0/linux_amd64"
    ));
    fs::create_dir_all(&folder).unwrap();
    let program = folder.join(format!("terraform-provider-{name}_v1.0.0"));
    fs::write(&program, content).unwrap();
    fs::set_permissions(program, fs::Permissions::from_mode(0o755)).unwrap();
}

/// Lets `init` find providers in the base image and in the folder `elsewhere`, which represents their registry.
fn use_mirrors(world: &World) {
    let mirror = |name: &str| {
        format!(
            "filesystem_mirror {{\n path = \"{}\"\n}}\n",
            world.path(name).display()
        )
    };
    let text = format!(
        "provider_installation {{\n{}{}}}\n",
        mirror("base"),
        mirror("elsewhere")
    );
    fs::write(world.path("outside.tfrc"), text).unwrap();
}

const PROVIDERS: &str = r#"
terraform {
  required_providers {
    inside  = { source = "registry.terraform.io/team/inside" }
    outside = { source = "registry.terraform.io/team/outside" }
  }
}
module "child" { source = "./child" }
"#;

#[test]
fn providers_are_copied_only_when_the_base_image_lacks_them() {
    let world = World::new("");
    fake_provider(&world.path("base"), "inside", "inside");
    fake_provider(&world.path("elsewhere"), "outside", "outside");
    use_mirrors(&world);
    let files = [("main.tf", PROVIDERS), ("child/main.tf", PLAIN)];
    let trees = ["first", "second"].map(|build| {
        let paths = paths(&world, build);
        prepare_in(&paths, &request("", Some("http")), &files).unwrap();
        let module = paths.build.join("src/module");
        let link = |name: &str| {
            let path =
                format!(".terraform/providers/registry.terraform.io/team/{name}/1.0.0/linux_amd64");
            fs::read_link(module.join(path)).unwrap()
        };
        let at = |root: &Path, name: &str| {
            root.join(format!(
                "registry.terraform.io/team/{name}/1.0.0/linux_amd64"
            ))
        };
        assert_eq!(link("inside"), at(&world.path("base"), "inside"));
        assert_eq!(
            link("outside"),
            at(Path::new("/alustan/providers"), "outside")
        );
        let copied = at(&paths.build.join("src/providers"), "outside")
            .join("terraform-provider-outside_v1.0.0");
        assert_eq!(fs::read_to_string(copied).unwrap(), "outside");
        assert!(!at(&paths.build.join("src/providers"), "inside").exists());
        assert!(module.join(".terraform.lock.hcl").is_file());
        let mut tree = Vec::new();
        describe(&paths.build.join("src"), "", &mut tree);
        tree
    });
    assert_eq!(trees[0], trees[1], "two builds of one content differ");
}

#[test]
fn module_of_a_terragrunt_unit_is_initialised() {
    let world = World::new("");
    world.program("terragrunt", "#!/bin/sh\nexit 1\n");
    fake_provider(&world.path("base"), "inside", "inside");
    fake_provider(&world.path("elsewhere"), "outside", "outside");
    use_mirrors(&world);
    let unit = "terraform {\n  source = \"../modules//app\"\n}\n";
    let module = "terraform {\n  required_providers {\n    outside = { source = \"registry.terraform.io/team/outside\" }\n  }\n}\n";
    let files = [
        ("live/terragrunt.hcl", unit),
        ("modules/app/main.tf", module),
    ];
    let request = Request {
        wrapper: "terragrunt",
        ..request("live", None)
    };
    let paths = paths(&world, "build");
    unpack_context(&paths, &Vars::new(), &pulled(), &context(&files)).unwrap();
    let prepare_with = |search: &str| {
        let mut command = prepare(&paths, &request);
        command
            .env("PATH", search)
            .env("TF_CLI_CONFIG_FILE", world.path("outside.tfrc"));
        failure_of(&mut command, &paths)
    };
    world.wrap_engine("");
    let bin = world.path("bin").display().to_string();
    fs::rename(world.path("bin/terragrunt"), world.path("terragrunt")).unwrap();
    let missing = prepare_with(&bin).unwrap();
    assert_eq!(missing.reason, "EngineNotFound", "{}", missing.message);
    fs::rename(world.path("terragrunt"), world.path("bin/terragrunt")).unwrap();
    assert_eq!(prepare_with(&bin), None);
    let provider =
        "registry.terraform.io/team/outside/1.0.0/linux_amd64/terraform-provider-outside_v1.0.0";
    assert!(paths.build.join("src/providers").join(provider).is_file());
    let module = paths.build.join("src/module");
    assert!(!module.join("modules/app/.terraform").exists());
    assert!(module.join("modules/app/.terraform.lock.hcl").is_file());
    assert!(module.join("live/.terraform/engine.json").is_file());
}

/// Adds path, mode, modification time and content of `path` to `tree`. If `path` is a folder, also adds all files and folders below it.
fn describe(path: &Path, name: &str, tree: &mut Vec<String>) {
    let metadata = fs::symlink_metadata(path).unwrap();
    let content = if metadata.is_symlink() {
        fs::read_link(path).unwrap().display().to_string()
    } else if metadata.is_file() {
        fs::read_to_string(path).unwrap()
    } else {
        String::new()
    };
    tree.push(format!(
        "{name} {:o} {} {content}",
        metadata.mode(),
        metadata.mtime()
    ));
    if metadata.is_dir() {
        let mut names: Vec<_> = fs::read_dir(path)
            .unwrap()
            .map(|entry| entry.unwrap().file_name())
            .collect();
        names.sort();
        for entry in names {
            describe(
                &path.join(&entry),
                &format!("{name}/{}", entry.display()),
                tree,
            );
        }
    }
}

#[test]
fn invalid_module_is_reported_with_its_reason() {
    let world = World::new("");
    fs::write(
        world.path("outside.tfrc"),
        format!(
            "provider_installation {{\n  filesystem_mirror {{\n    path = \"{}\"\n  }}\n}}\n",
            world.path("cache").display()
        ),
    )
    .unwrap();
    let fails = |name: &str, path: &str, text: &str| {
        prepare_in(
            &paths(&world, name),
            &request(path, None),
            &[("main.tf", text)],
        )
        .unwrap_err()
    };
    let syntax = fails("a", "", "resource \"x\" {");
    assert_eq!(
        (syntax.class, syntax.reason.as_str()),
        (FailureClass::User, "ModuleInvalid"),
        "{}",
        syntax.message
    );
    let provider = fails(
        "b",
        "",
        "terraform {\n  required_providers {\n    x = { source = \"team/none\" }\n  }\n}\n",
    );
    assert_eq!(
        (provider.class, provider.reason.as_str()),
        (FailureClass::User, "ProvidersUnavailable"),
        "{}",
        provider.message
    );
    let path = fails("c", "no/such", PLAIN);
    assert_eq!(
        (path.class, path.reason.as_str()),
        (FailureClass::User, "PathNotFound")
    );
    let leaving = fails("d", "../..", PLAIN);
    assert_eq!(leaving.reason, "PathNotFound");
}

#[test]
fn files_for_the_builder_are_written_before_init() {
    let world = World::new("");
    let paths = paths(&world, "build");
    let vars = Vars::from([("ALUSTAN_CA_BUNDLE".to_owned(), "PEM".to_owned())]);
    unpack_context(&paths, &vars, &pulled(), &context(&[("main.tf", PLAIN)])).unwrap();
    let read = |name: &str| fs::read_to_string(paths.build.join(name)).unwrap();
    assert_eq!(read("Dockerfile"), "FROM base\n");
    assert_eq!(read("ca.crt"), "PEM");
    assert_eq!(read("src/module/main.tf"), PLAIN);
    assert!(paths.build.join("src/providers").is_dir());
}

#[test]
fn pull_failure_is_in_the_termination_message() {
    let world = World::new("");
    let log = world.path("log");
    let done = Command::new(env!("CARGO_BIN_EXE_alustan-runner"))
        .arg("pull")
        .env("ALUSTAN_CONTEXT", "127.0.0.1:1/team/web@sha256:0000000000000000000000000000000000000000000000000000000000000000")
        .env("ALUSTAN_DOCKERFILE", "FROM base")
        .env("ALUSTAN_INSECURE_REGISTRIES", "127.0.0.1:1")
        .env("ALUSTAN_TERMINATION_LOG", &log)
        .env("ALUSTAN_BUILD_DIR", world.path("build"))
        .output()
        .unwrap();
    assert_eq!(done.status.code(), Some(1));
    let report: PrepareReport = serde_json::from_slice(&fs::read(log).unwrap()).unwrap();
    assert_eq!(
        report.failure.reason, "RegistryUnreachable",
        "{}",
        report.failure.message
    );
    assert_eq!(report.failure.class, FailureClass::Transient);
}

#[test]
fn prepare_does_not_print_the_proxy_password() {
    let world = World::new("");
    let complains = "#!/bin/sh\necho \"Error: proxy $HTTPS_PROXY refused\" >&2\nexit 1\n";
    world.program("terraform", complains);
    let search = std::env::var("PATH").unwrap();
    let paths = paths(&world, "build");
    unpack_context(
        &paths,
        &Vars::new(),
        &pulled(),
        &context(&[("main.tf", PLAIN)]),
    )
    .unwrap();
    let done = prepare(&paths, &request("", None))
        .env("PATH", format!("{}:{search}", world.path("bin").display()))
        .env("HTTPS_PROXY", "http://me:hidden@proxy:1")
        .output()
        .unwrap();
    assert_eq!(done.status.code(), Some(1));
    let outputs = [
        done.stdout,
        done.stderr,
        fs::read(paths.termination_log).unwrap(),
    ];
    for output in outputs.map(|output| String::from_utf8(output).unwrap()) {
        assert!(!output.contains("hidden"), "{output}");
    }
}

/// Engine whose `init` starts a background process that ignores signals. `init` writes the pid of the process to a file of the module.
const LEAVES_A_PROCESS: &str = "#!/bin/sh
[ \"$1\" = init ] || exit 0
(trap '' TERM INT HUP; while :; do sleep 1; done) >/dev/null 2>&1 &
echo $! >pid
";

#[test]
fn process_that_init_leaves_behind_is_killed() {
    let world = World::new("");
    world.program("terraform", LEAVES_A_PROCESS);
    let search = std::env::var("PATH").unwrap();
    let paths = paths(&world, "build");
    let files = [("main.tf", PLAIN)];
    unpack_context(&paths, &Vars::new(), &pulled(), &context(&files)).unwrap();
    let mut prepare = prepare(&paths, &request("", None));
    prepare.env("PATH", format!("{}:{search}", world.path("bin").display()));
    assert_eq!(failure_of(&mut prepare, &paths), None);
    let pid = fs::read_to_string(paths.build.join("src/module/pid")).unwrap();
    assert!(!Path::new("/proc").join(pid.trim()).exists(), "{pid}");
}

/// Returns the first line of the request that `pull` sends through a proxy in the variable `name`.
fn request_through_proxy(name: &str, registry: &str) -> String {
    let world = World::new("");
    let proxy = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = format!("http://{}", proxy.local_addr().unwrap());
    let mut pull = Command::new(env!("CARGO_BIN_EXE_alustan-runner"))
        .arg("pull")
        .env_clear()
        .env(
            "ALUSTAN_CONTEXT",
            format!("{registry}/a@sha256:{}", "0".repeat(64)),
        )
        .env("ALUSTAN_DOCKERFILE", "FROM base")
        .env("ALUSTAN_INSECURE_REGISTRIES", "plain.test")
        .env("ALUSTAN_TERMINATION_LOG", world.path("log"))
        .env("ALUSTAN_BUILD_DIR", world.path("build"))
        .env(name, address)
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    proxy.set_nonblocking(true).unwrap();
    let mut accepted = None;
    until("a request", || {
        accepted = proxy.accept().ok();
        accepted.is_some()
    });
    let (mut connection, _) = accepted.unwrap();
    connection.set_nonblocking(false).unwrap();
    let mut line = String::new();
    BufReader::new(&mut connection)
        .read_line(&mut line)
        .unwrap();
    pull.kill().unwrap();
    pull.wait().unwrap();
    line
}

#[rstest]
#[case::https("HTTPS_PROXY", "registry.test", "CONNECT registry.test:443 HTTP/1.1")]
#[case::http("HTTP_PROXY", "plain.test", "GET http://plain.test/v2/ HTTP/1.1")]
#[case::all_with_tls("ALL_PROXY", "registry.test", "CONNECT registry.test:443 HTTP/1.1")]
#[case::all("all_proxy", "plain.test", "GET http://plain.test/v2/ HTTP/1.1")]
fn requests_to_the_registry_use_the_proxy(
    #[case] variable: &str,
    #[case] registry: &str,
    #[case] request: &str,
) {
    assert_eq!(
        request_through_proxy(variable, registry).trim_end(),
        request
    );
}

#[test]
fn unreachable_proxy_is_reported_without_its_password() {
    let world = World::new("");
    let log = world.path("log");
    let digest = "0".repeat(64);
    let done = Command::new(env!("CARGO_BIN_EXE_alustan-runner"))
        .arg("pull")
        .env(
            "ALUSTAN_CONTEXT",
            format!("registry.test/team/web@sha256:{digest}"),
        )
        .env("ALUSTAN_DOCKERFILE", "FROM base")
        .env("ALUSTAN_TERMINATION_LOG", &log)
        .env("ALUSTAN_BUILD_DIR", world.path("build"))
        .env("HTTPS_PROXY", "http://me:hidden@127.0.0.1:1")
        .output()
        .unwrap();
    assert_eq!(done.status.code(), Some(1));
    let output = [done.stdout, done.stderr, fs::read(log).unwrap()].concat();
    let output = String::from_utf8(output).unwrap();
    assert!(
        output.contains("RegistryUnreachable") && !output.contains("hidden"),
        "{output}"
    );
}

/// Module that needs provider `x`, which neither the base image nor a registry has.
const WITH_PROVIDER: &str = r#"
terraform {
  required_providers {
    x = { source = "registry.terraform.io/team/x", version = "1.0.0" }
  }
}
"#;

/// Writes provider `x` to a mirror that has packages as zip files, as a registry has, and the CLI configuration with the mirror.
fn mirror(world: &World, program: &str) {
    let platform = Architecture::own();
    let folder = world.path("mirror/registry.terraform.io/team/x");
    fs::create_dir_all(&folder).unwrap();
    let name = format!("terraform-provider-x_1.0.0_linux_{platform}.zip");
    let mut archive = zip::ZipWriter::new(fs::File::create(folder.join(name)).unwrap());
    let options = zip::write::SimpleFileOptions::default()
        .compression_method(zip::CompressionMethod::Stored)
        .unix_permissions(0o755);
    archive
        .start_file("terraform-provider-x_v1.0.0", options)
        .unwrap();
    archive.write_all(program.as_bytes()).unwrap();
    archive.finish().unwrap();
    let mirror = world.path("mirror");
    let config = format!(
        "provider_installation {{\n  filesystem_mirror {{\n    path = \"{}\"\n  }}\n}}\n",
        mirror.display()
    );
    fs::write(world.path("outside.tfrc"), config).unwrap();
}

/// Prepares `files`. Returns the log.
fn prepare_with_mirror(world: &World, paths: &Paths, files: &[(&str, &str)]) -> String {
    unpack_context(paths, &Vars::new(), &pulled(), &context(files)).unwrap();
    let mut command = prepare(paths, &request("", None));
    command.env("TF_CLI_CONFIG_FILE", world.path("outside.tfrc"));
    let done = command.output().unwrap();
    let log = String::from_utf8_lossy(&done.stderr).into_owned();
    assert!(done.status.success(), "{log}");
    log
}

#[test]
fn provider_replaced_by_another_pod_is_detected_and_not_used() {
    let world = World::new("");
    mirror(&world, "the provider");
    let package = format!(
        "registry.terraform.io/team/x/1.0.0/linux_{}/terraform-provider-x_v1.0.0",
        Architecture::own()
    );
    let stored = world.path("cache/plugins").join(&package);
    let in_image = |paths: &Paths| {
        let program = paths.build.join("src/providers").join(&package);
        fs::read_to_string(program).unwrap()
    };

    // Without a dependency lock file in the repository, no checksum is known: nothing is cached.
    let first = paths(&world, "one");
    prepare_with_mirror(&world, &first, &[("main.tf", WITH_PROVIDER)]);
    assert!(!stored.exists());
    let lock_file = first.build.join("src/module/.terraform.lock.hcl");
    let lock_file = fs::read_to_string(lock_file).unwrap();
    let files = [
        ("main.tf", WITH_PROVIDER),
        (".terraform.lock.hcl", lock_file.as_str()),
    ];

    prepare_with_mirror(&world, &paths(&world, "two"), &files);
    assert_eq!(fs::read_to_string(&stored).unwrap(), "the provider");
    let log = prepare_with_mirror(&world, &paths(&world, "three"), &files);
    assert!(!log.contains("does not match"), "{log}");

    fs::write(&stored, "a replacement").unwrap();
    let replaced = paths(&world, "four");
    let log = prepare_with_mirror(&world, &replaced, &files);
    assert!(log.contains("does not match .terraform.lock.hcl"), "{log}");
    assert_eq!(in_image(&replaced), "the provider");
    assert_eq!(fs::read_to_string(&stored).unwrap(), "the provider");

    // A volume that cannot be written is no failure.
    fs::remove_dir_all(world.path("cache")).unwrap();
    fs::write(world.path("cache"), "").unwrap();
    let full = paths(&world, "five");
    prepare_with_mirror(&world, &full, &files);
    assert_eq!(in_image(&full), "the provider");
}

#[test]
fn empty_cache_removes_the_content_of_the_directory() {
    let world = World::new("");
    fs::create_dir_all(world.path("cache/plugins/registry")).unwrap();
    fs::write(world.path("cache/plans"), "x").unwrap();
    let done = Command::new(env!("CARGO_BIN_EXE_alustan-runner"))
        .arg("empty-cache")
        .env("ALUSTAN_CACHE_DIR", world.path("cache"))
        .output()
        .unwrap();
    assert!(done.status.success(), "{done:?}");
    assert_eq!(fs::read_dir(world.path("cache")).unwrap().count(), 0);
}
