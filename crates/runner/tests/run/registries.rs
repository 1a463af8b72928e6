//! `prepare` with private registries of modules and providers.

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use alustan_api::cli_config::{self, CliConfig, InstallationMethod};
use alustan_api::report::{Failure, FailureClass, RunResult};
use alustan_api::run::RunKind;
use alustan_runner::build::unpack_context;
use alustan_runner::paths::{Paths, Vars};
use alustan_tests::{Certificate, TerraformRegistry};
use rstest::rstest;
use tokio::runtime::Runtime;

use crate::prepare::{context, failure_of_output, paths, prepare, pulled, request};
use crate::world::{World, text};

const HOST: &str = "127.0.0.1";
const TOKEN: &str = "registry-token-0123456789";
const SHARED: &str = "output \"name\" { value = \"shared\" }\n";

/// A registry with a module `team/shared/null` and a provider `team/thing`, and the folder of the test.
struct Registered {
    world: World,
    registry: TerraformRegistry,
    /// Runs the registry.
    _runtime: Runtime,
}

impl Registered {
    fn new() -> Self {
        let world = World::new("");
        let runtime = Runtime::new().unwrap();
        let own = Certificate::self_signed(HOST);
        let registry = runtime.block_on(TerraformRegistry::start(HOST, TOKEN, &own));
        registry.publish_module("team/shared/null", SHARED);
        registry.publish_provider("team/thing", b"program of the provider");
        Self {
            world,
            registry,
            _runtime: runtime,
        }
    }

    /// Returns the configuration of a module that uses the module of the registry.
    fn calls_module(&self) -> String {
        format!(
            "module \"shared\" {{\n  source = \"{}/team/shared/null\"\n}}\noutput \"name\" {{ value = module.shared.name }}\n",
            self.registry.host
        )
    }

    /// Returns the configuration of a module that uses the provider of the registry.
    fn requires_provider(&self) -> String {
        format!(
            "terraform {{\n  required_providers {{\n    thing = {{ source = \"{}/team/thing\" }}\n  }}\n}}\n",
            self.registry.host
        )
    }

    fn paths(&self) -> Paths {
        paths(&self.world, "build")
    }

    /// Returns the command of `prepare` for a module with the file `main.tf`. `tokens`: tokens of hosts.
    fn command(&self, main: &str, tokens: &[(&str, &str)]) -> Command {
        let paths = self.paths();
        let files = [("main.tf", main)];
        let _ = fs::remove_dir_all(&paths.build);
        unpack_context(&paths, &Vars::new(), &pulled(), &context(&files)).unwrap();
        let folder = self.world.path("tokens");
        fs::create_dir_all(&folder).unwrap();
        for (index, (_, token)) in tokens.iter().enumerate() {
            fs::write(folder.join(index.to_string()), token).unwrap();
        }
        let hosts: Vec<_> = tokens.iter().map(|(host, _)| *host).collect();
        let mut command = prepare(&paths, &request("", Some("http")));
        command
            .env("ALUSTAN_CA_BUNDLE", &self.registry.authority)
            .env("ALUSTAN_REGISTRY_TOKENS", folder)
            .env("ALUSTAN_REGISTRY_HOSTS", hosts.join(","));
        command
    }

    /// Executes `prepare` with `token` for the registry. Returns its output, and the failure in its termination message.
    fn prepared(&self, main: &str, token: &str) -> (Output, Option<Failure>) {
        let host = self.registry.host.clone();
        let mut command = self.command(main, &[(&host, token)]);
        let output = command.output().unwrap();
        let failure = failure_of_output(&output, &self.paths());
        (output, failure)
    }
}

/// Asserts that no file below `folder` contains the token.
fn token_is_not_below(folder: &Path) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_symlink() {
            continue;
        }
        if path.is_dir() {
            token_is_not_below(&path);
        } else {
            let bytes = fs::read(&path).unwrap();
            let has_token = bytes
                .windows(TOKEN.len())
                .any(|part| part == TOKEN.as_bytes());
            assert!(!has_token, "{}", path.display());
        }
    }
}

#[test]
fn private_module_and_provider_are_installed_with_the_token() {
    let mut test = Registered::new();
    let main = format!("{}{}", test.calls_module(), test.requires_provider());
    let (output, failure) = test.prepared(&main, &format!("{TOKEN}\n"));
    assert_eq!(failure, None);
    let host = &test.registry.host;
    let module = test.paths().build.join("src/module");
    let installed = module.join(".terraform/modules/shared/main.tf");
    assert_eq!(fs::read_to_string(installed).unwrap(), SHARED);
    let program = format!("{host}/team/thing/1.0.0/linux_amd64/terraform-provider-thing_v1.0.0");
    let program = test.paths().build.join("src/providers").join(program);
    assert_eq!(fs::read(program).unwrap(), b"program of the provider");
    assert!(test.registry.accepted("/v1/modules/") > 0);
    assert!(test.registry.accepted("/v1/providers/") > 0);
    assert_eq!(test.registry.accepted("/files/"), 0);

    token_is_not_below(&test.paths().build);
    token_is_not_below(&test.paths().work);
    token_is_not_below(&test.paths().cache);
    let printed = [output.stdout, output.stderr].concat();
    assert!(!String::from_utf8_lossy(&printed).contains(TOKEN));

    // A run of a module without the provider, whose program is not a provider, executes the prepared module and reports the registry.
    let (_, failure) = test.prepared(&test.calls_module(), TOKEN);
    assert_eq!(failure, None);
    let module = test.paths().build.join("src/module");
    test.world.use_module(&module);
    let ran = test.world.run(RunKind::Apply);
    ran.expect(RunResult::Done);
    assert_eq!(text(&test.world.outputs().unwrap(), "name"), "shared");
    let hosts = ran.report.unwrap().registry_hosts;
    assert_eq!(hosts, Some(vec![test.registry.host.clone()]));
}

#[test]
fn refused_token_is_named_by_its_field() {
    let test = Registered::new();
    let host = &test.registry.host;
    for main in [test.calls_module(), test.requires_provider()] {
        let (output, failure) = test.prepared(&main, "wrong-token-0123456789");
        let failure = failure.unwrap();
        assert_eq!(
            (failure.class, failure.reason.as_str()),
            (FailureClass::Module, "TerraformRegistryUnauthorized"),
            "{}",
            failure.message
        );
        let start =
            format!("spec.terraformRegistries[0].secretRef: registry {host} refused the token; ");
        assert!(failure.message.starts_with(&start), "{}", failure.message);
        let printed = [output.stdout, output.stderr].concat();
        assert!(!String::from_utf8_lossy(&printed).contains("wrong-token"));
    }
}

#[test]
fn missing_token_is_reported_with_its_field() {
    let test = Registered::new();
    for main in [test.calls_module(), test.requires_provider()] {
        let mut command = test.command(&main, &[]);
        command.env_remove("ALUSTAN_REGISTRY_HOSTS");
        let failure = failure_of_output(&command.output().unwrap(), &test.paths()).unwrap();
        assert_eq!(failure.reason, "TerraformRegistryUnauthorized");
        let advice = "add its host and a Secret with the token to spec.terraformRegistries";
        assert!(failure.message.contains(advice), "{}", failure.message);
    }
}

/// A server returns the folder with the tokens as location of a module, and the engine copies the folder.
#[test]
fn token_that_a_server_copies_into_the_module_is_found() {
    let test = Registered::new();
    let folder = test.world.directory.path().display();
    let location = format!("file://{folder}//tokens");
    let source = test.registry.redirect("/stolen", &location);
    let main = format!(
        "{}module \"stolen\" {{ source = \"{source}\" }}\n",
        test.calls_module()
    );
    let (_, failure) = test.prepared(&main, TOKEN);
    let failure = failure.unwrap();
    assert_eq!(
        (failure.class, failure.reason.as_str()),
        (FailureClass::User, "CredentialsInImage"),
        "{}",
        failure.message
    );
    let host = &test.registry.host;
    let start = format!(
        ".terraform/modules/stolen/0 contains the token in spec.terraformRegistries[0] ({host}), "
    );
    assert!(failure.message.starts_with(&start), "{}", failure.message);
    assert!(!failure.message.contains(TOKEN));
}

#[rstest]
#[case::absolute("/proc/self/net")]
#[case::url("file:///proc/self/net")]
#[case::getter("file::/proc/self/net")]
fn module_of_a_registry_with_a_source_on_the_host_is_refused(#[case] source: &str) {
    let test = Registered::new();
    let folder = test.world.path("elsewhere");
    fs::create_dir(&folder).unwrap();
    fs::write(folder.join("main.tf"), "").unwrap();
    let source = source.replace("/proc/self/net", &folder.display().to_string());
    let nested = format!("module \"nested\" {{ source = \"{source}\" }}\n");
    test.registry
        .publish_module("team/shared/null", &format!("{SHARED}{nested}"));
    let (_, failure) = test.prepared(&test.calls_module(), TOKEN);
    let failure = failure.unwrap();
    assert_eq!(
        failure.reason, "ModuleSourceNotAllowed",
        "{}",
        failure.message
    );
    assert!(
        failure
            .message
            .starts_with("module \"shared.nested\": source "),
        "{}",
        failure.message
    );
}

#[test]
fn providers_come_from_the_network_mirror_of_the_operator() {
    let test = Registered::new();
    let config = CliConfig {
        installation: vec![InstallationMethod {
            mirror: Some(test.registry.mirror()),
            ..InstallationMethod::default()
        }],
        ..CliConfig::default()
    };
    let config = serde_json::to_string(&config).unwrap();
    let main = test.requires_provider();
    let main = main.replace(&test.registry.host, "registry.alustan.test");
    let prepared = |token| {
        let mut command = test.command(&main, &[(&test.registry.host, token)]);
        command.env(cli_config::VARIABLE, &config);
        failure_of_output(&command.output().unwrap(), &test.paths())
    };
    let refused = prepared("wrong-token-0123456789").unwrap();
    assert_eq!(
        refused.reason, "TerraformRegistryUnauthorized",
        "{}",
        refused.message
    );
    assert_eq!(prepared(TOKEN), None);
    assert!(test.registry.accepted("/mirror/") > 0);
    assert_eq!(test.registry.accepted("/v1/"), 0);
}

#[test]
fn host_block_of_the_operator_replaces_service_discovery() {
    let test = Registered::new();
    let host = "registry.alustan.test";
    let url = format!("https://{}/v1/modules/", test.registry.host);
    let services = [("modules.v1".to_owned(), url)].into();
    let config = CliConfig {
        hosts: [(host.to_owned(), services)].into(),
        ..CliConfig::default()
    };
    let main = test.calls_module().replace(&test.registry.host, host);
    let mut command = test.command(&main, &[(host, TOKEN)]);
    command.env(
        cli_config::VARIABLE,
        serde_json::to_string(&config).unwrap(),
    );
    assert_eq!(
        failure_of_output(&command.output().unwrap(), &test.paths()),
        None
    );
    assert!(test.registry.accepted("/v1/modules/") > 0);
}
