//! The engine in the image, and its CLI configuration, with which the engine uses the providers in the image instead of downloading them.

pub mod arguments;
pub mod cache;
pub mod command;
pub mod lock_file;
pub mod processes;
pub mod script;
pub mod signals;
pub mod wrapper;

use std::collections::BTreeSet;
use std::fmt::Write;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use alustan_api::EngineName;
use alustan_api::cli_config::{CliConfig, InstallationMethod, VARIABLE};
use alustan_state::secrets::to_json;

use crate::paths::{Paths, Vars};

/// The engine in the image.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EngineProgram {
    /// Path of the program `terraform`.
    pub program: PathBuf,
    /// Name of the engine. `terraform` may be a link to OpenTofu.
    pub kind: EngineName,
}

impl EngineProgram {
    /// Finds `terraform` on a search path in the format of `PATH`.
    pub fn find(search_path: &str) -> Option<Self> {
        let program = std::env::split_paths(search_path)
            .map(|folder| folder.join("terraform"))
            .find(|path| path.is_file())?;
        let real = fs::canonicalize(&program).ok()?;
        let kind = EngineName::of_program(&real.file_name()?.to_string_lossy());
        Some(Self { program, kind })
    }

    /// Returns the usual command name of the engine, for messages.
    pub fn name(&self) -> &'static str {
        self.kind.program()
    }
}

/// Option that disables colours: in logs and pipes, colours appear as control characters.
pub const NO_COLOR: &str = "-no-color";

/// File, in the module folder of the image, with name and version of the engine that prepared the module.
const ENGINE_FILE: &str = ".terraform/engine.json";

/// Reads name and version of the engine that prepared the module in `directory`.
pub fn read_prepared_engine(directory: &Path) -> Option<alustan_api::Engine> {
    let bytes = fs::read(directory.join(ENGINE_FILE)).ok()?;
    serde_json::from_slice(&bytes).ok()
}

/// Records name and version of the engine that prepared the module in `directory`.
pub fn write_prepared_engine(directory: &Path, engine: &alustan_api::Engine) -> io::Result<()> {
    let file = directory.join(ENGINE_FILE);
    fs::create_dir_all(file.parent().unwrap_or(directory))?;
    fs::write(file, to_json(engine))
}

/// Parses the version from the output of `version -json`.
pub fn version(output: &[u8]) -> Option<String> {
    let output: serde_json::Value = serde_json::from_slice(output).ok()?;
    Some(output.get("terraform_version")?.as_str()?.to_owned())
}

/// Filesystem mirror: a folder with unpacked providers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mirror {
    path: PathBuf,
    /// Providers in the mirror, as `host/namespace/type`.
    providers: BTreeSet<String>,
}

impl Mirror {
    /// Lists the providers in `path`.
    pub fn read(path: &Path) -> Self {
        let mut providers = BTreeSet::new();
        for (host, host_path) in folders(path) {
            for (namespace, namespace_path) in folders(&host_path) {
                for (kind, _) in folders(&namespace_path) {
                    providers.insert(format!("{host}/{namespace}/{kind}"));
                }
            }
        }
        Self {
            path: path.to_owned(),
            providers,
        }
    }
}

fn folders(path: &Path) -> Vec<(String, PathBuf)> {
    let Ok(entries) = fs::read_dir(path) else {
        return Vec::new();
    };
    let paths = entries
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(|path| path.is_dir());
    paths
        .filter_map(|path| Some((path.file_name()?.to_str()?.to_owned(), path.clone())))
        .collect()
}

/// Returns the paths of the provider packages below `root`, each `host/namespace/type/version/platform`.
pub fn packages(root: &Path) -> io::Result<Vec<PathBuf>> {
    let mut level = vec![PathBuf::new()];
    for _ in 0..5 {
        let mut next = Vec::new();
        for path in level {
            let folder = root.join(&path);
            if folder.is_dir() {
                for entry in fs::read_dir(folder)? {
                    next.push(path.join(entry?.file_name()));
                }
            }
        }
        level = next;
    }
    Ok(level)
}

/// Reads the operator-wide CLI configuration from the environment of the container.
pub fn read_cli_config(container: &Vars) -> Option<CliConfig> {
    let text = container.get(VARIABLE)?;
    let config = serde_json::from_str(text);
    config
        .inspect_err(|error| {
            crate::log!("failed to read the CLI configuration in {VARIABLE}: {error}");
        })
        .ok()
}

/// Returns the CLI configuration of the engine: providers in `mirrors` are installed from their mirror, and all other providers as in
/// `config`. Without installation methods in `config`, they are downloaded from their registry.
pub fn cli_config(mirrors: &[Mirror], config: Option<&CliConfig>) -> String {
    let mut text = String::from("disable_checkpoint = true\nprovider_installation {\n");
    let mut all = BTreeSet::new();
    for mirror in mirrors.iter().filter(|mirror| !mirror.providers.is_empty()) {
        let path = quoted(&mirror.path.to_string_lossy());
        let include = list(&mirror.providers);
        // Writing to a String cannot fail.
        let _ = writeln!(
            text,
            "  filesystem_mirror {{\n    path    = {path}\n    include = {include}\n  }}"
        );
        all.extend(mirror.providers.iter().cloned());
    }
    let direct = [InstallationMethod::default()];
    let methods = config
        .map(|config| config.installation.as_slice())
        .filter(|methods| !methods.is_empty());
    for method in methods.unwrap_or(&direct) {
        text.push_str(&block(method, &all));
    }
    text.push_str("}\n");
    for (host, services) in config.iter().flat_map(|config| &config.hosts) {
        let _ = writeln!(text, "host {} {{\n  services = {{", quoted(host));
        for (id, url) in services {
            let _ = writeln!(text, "    {} = {}", quoted(id), quoted(url));
        }
        text.push_str("  }\n}\n");
    }
    text
}

/// Returns the block of an installation method. `mirrored`: providers that the method does not install, because they are in a filesystem
/// mirror.
fn block(method: &InstallationMethod, mirrored: &BTreeSet<String>) -> String {
    let exclude: BTreeSet<_> = method.exclude.iter().chain(mirrored).cloned().collect();
    let include: BTreeSet<_> = method.include.iter().cloned().collect();
    let url = method.mirror.as_deref();
    let url = url.map(|url| format!("    url     = {}\n", quoted(url)));
    let lists = [("include", include), ("exclude", exclude)]
        .into_iter()
        .filter(|(_, patterns)| !patterns.is_empty())
        .map(|(name, patterns)| format!("    {name} = {}\n", list(&patterns)));
    let arguments: String = url.into_iter().chain(lists).collect();
    let name = method
        .mirror
        .as_ref()
        .map_or("direct", |_| "network_mirror");
    if arguments.is_empty() {
        format!("  {name} {{}}\n")
    } else {
        format!("  {name} {{\n{arguments}  }}\n")
    }
}

fn list(items: &BTreeSet<String>) -> String {
    let items: Vec<String> = items.iter().map(|item| quoted(item)).collect();
    format!("[{}]", items.join(", "))
}

fn quoted(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}

/// Environment variable that disables TLS between the engine and its providers. If the value is empty, the engine uses TLS.
const PLAIN_SOCKETS: &str = "TF_DISABLE_PLUGIN_TLS";

/// Returns the environment of every command: the environment of the container, and variables with which the engine shows no prompts and uses
/// the providers in the image.
pub fn environment(container: &Vars, paths: &Paths) -> Vars {
    let mut environment = container.clone();
    let mut set = |name: &str, value: &str| environment.insert(name.to_owned(), value.to_owned());
    set("TF_IN_AUTOMATION", "1");
    set("TF_INPUT", "0");
    set("CHECKPOINT_DISABLE", "1");
    // TLS between engine and providers is not needed: only processes of the same user can access the socket of a provider. Generating
    // certificates at each start of a provider took a third of the CPU time of a run.
    if !container.contains_key(PLAIN_SOCKETS) {
        set(PLAIN_SOCKETS, "1");
    }
    let own = container
        .get("TF_CLI_CONFIG_FILE")
        .filter(|path| Path::new(path).is_file());
    if own.is_none() {
        set("TF_CLI_CONFIG_FILE", &paths.cli_config().to_string_lossy());
    }
    environment
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    #[test]
    fn providers_of_a_mirror_are_not_downloaded() {
        let directory = tempfile::tempdir().unwrap();
        let base = directory.path().join("base");
        fs::create_dir_all(base.join("registry.terraform.io/hashicorp/null/3.2.0/linux_amd64"))
            .unwrap();
        fs::create_dir_all(base.join("registry.terraform.io/hashicorp/time/0.1.0/linux_amd64"))
            .unwrap();
        let mirrors = [
            Mirror::read(&directory.path().join("absent")),
            Mirror::read(&base),
        ];
        let wanted = format!(
            r#"disable_checkpoint = true
provider_installation {{
  filesystem_mirror {{
    path    = "{}"
    include = ["registry.terraform.io/hashicorp/null", "registry.terraform.io/hashicorp/time"]
  }}
  direct {{
    exclude = ["registry.terraform.io/hashicorp/null", "registry.terraform.io/hashicorp/time"]
  }}
}}
"#,
            base.display()
        );
        assert_eq!(cli_config(&mirrors, None), wanted);
    }

    #[test]
    fn operator_wide_methods_do_not_install_providers_of_a_mirror() {
        let directory = tempfile::tempdir().unwrap();
        let null = "registry.terraform.io/hashicorp/null";
        fs::create_dir_all(directory.path().join(null)).unwrap();
        let mirror = Mirror::read(directory.path());
        let method = |mirror: Option<&str>, exclude: &[&str]| InstallationMethod {
            mirror: mirror.map(str::to_owned),
            include: mirror
                .map(|_| "hashicorp/*".to_owned())
                .into_iter()
                .collect(),
            exclude: exclude
                .iter()
                .map(|pattern| (*pattern).to_owned())
                .collect(),
        };
        let url = "https://api.test/modules/";
        let services = BTreeMap::from([("modules.v1".to_owned(), url.to_owned())]);
        let config = CliConfig {
            installation: vec![
                method(Some("https://mirror.test/"), &[]),
                method(None, &["hashicorp/*"]),
            ],
            hosts: BTreeMap::from([("a.test:8443".to_owned(), services)]),
        };
        let container =
            Vars::from([(VARIABLE.to_owned(), serde_json::to_string(&config).unwrap())]);
        assert_eq!(read_cli_config(&container), Some(config.clone()));
        let wanted = format!(
            r#"  filesystem_mirror {{
    path    = "{}"
    include = ["{null}"]
  }}
  network_mirror {{
    url     = "https://mirror.test/"
    include = ["hashicorp/*"]
    exclude = ["{null}"]
  }}
  direct {{
    exclude = ["hashicorp/*", "{null}"]
  }}
}}
host "a.test:8443" {{
  services = {{
    "modules.v1" = "{url}"
  }}
}}
"#,
            directory.path().display()
        );
        let text = cli_config(&[mirror], Some(&config));
        assert!(text.ends_with(&wanted), "{text}");
        let empty = cli_config(&[], Some(&CliConfig::default()));
        assert_eq!(empty, cli_config(&[], None));
        let broken = Vars::from([(VARIABLE.to_owned(), "[".to_owned())]);
        assert_eq!(read_cli_config(&broken), None);
    }

    #[test]
    fn container_may_enable_tls_between_engine_and_providers() {
        let paths = Paths::from_vars(&Vars::new());
        let ours = environment(&Vars::new(), &paths);
        assert_eq!(ours[PLAIN_SOCKETS], "1");
        let own = Vars::from([(PLAIN_SOCKETS.to_owned(), String::new())]);
        assert_eq!(environment(&own, &paths)[PLAIN_SOCKETS], "");
    }

    #[test]
    fn cli_configuration_of_the_container_is_used_if_it_exists() {
        let directory = tempfile::tempdir().unwrap();
        let paths = Paths::from_vars(&Vars::new());
        let file = directory.path().join("own.tfrc").display().to_string();
        let container = Vars::from([("TF_CLI_CONFIG_FILE".to_owned(), file.clone())]);
        let used = || environment(&container, &paths)["TF_CLI_CONFIG_FILE"].clone();
        assert_eq!(used(), paths.cli_config().display().to_string());
        fs::write(&file, "").unwrap();
        assert_eq!(used(), file);
    }

    #[test]
    fn opentofu_is_detected_behind_a_terraform_symlink() {
        let directory = tempfile::tempdir().unwrap();
        fs::write(directory.path().join("tofu"), "").unwrap();
        std::os::unix::fs::symlink("tofu", directory.path().join("terraform")).unwrap();
        let engine =
            EngineProgram::find(&format!("/nowhere:{}", directory.path().display())).unwrap();
        assert_eq!(engine.kind, EngineName::Opentofu);
        assert_eq!(engine.program, directory.path().join("terraform"));
    }
}
