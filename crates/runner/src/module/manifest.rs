//! Modules that `init` installed, and the registries of a prepared module.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{self, ErrorKind, Read};
use std::path::Path;

use alustan_api::cli_config::CliConfig;
use alustan_api::report::MAX_REGISTRY_HOSTS;
use serde::Deserialize;

/// Folder with the data of the engine, relative to the folder of the root module.
const DATA: &str = ".terraform";
/// Maximum size of the manifest, in bytes. The manifest of a module with 10,000 module calls is smaller.
const MAX_BYTES: u64 = 8 << 20;

/// Manifest of the installed modules.
#[derive(Deserialize)]
struct Manifest {
    #[serde(default, rename = "Modules")]
    modules: Vec<InstalledModule>,
}

/// An installed module.
#[derive(Debug, Deserialize)]
pub struct InstalledModule {
    /// Names of the module calls from the root module, separated by dots. Empty for the root module.
    #[serde(default, rename = "Key")]
    pub key: String,
    /// Source, in the normalised form of the engine.
    #[serde(default, rename = "Source")]
    pub source: String,
}

/// Returns the installed modules of the root module in `directory`; none if `init` installed no module.
///
/// # Errors
/// If the manifest is unreadable, invalid or larger than 8 MiB.
pub fn installed_modules(directory: &Path) -> io::Result<Vec<InstalledModule>> {
    let file = match File::open(directory.join(DATA).join("modules/modules.json")) {
        Ok(file) => file,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(error),
    };
    let mut bytes = Vec::new();
    let size = file.take(MAX_BYTES + 1).read_to_end(&mut bytes)?;
    if size as u64 > MAX_BYTES {
        return Err(io::Error::new(
            ErrorKind::InvalidData,
            format!("it is larger than {MAX_BYTES} bytes"),
        ));
    }
    let manifest: Manifest = serde_json::from_slice(&bytes)?;
    Ok(manifest.modules)
}

/// Returns the hosts of the registries of which the prepared root module in `directory` uses modules or providers, and the hosts of network
/// mirrors in `config`. `None` if the hosts are not known, or if there are more than [`MAX_REGISTRY_HOSTS`].
pub fn registry_hosts(directory: &Path, config: Option<&CliConfig>) -> Option<Vec<String>> {
    let data = directory.join(DATA);
    if !data.is_dir() {
        return None;
    }
    let modules = installed_modules(directory).ok()?;
    let of_modules = modules
        .iter()
        .filter_map(|module| registry_host(&module.source))
        .map(str::to_owned);
    // Each provider is in a folder `host/namespace/type`.
    let providers = fs::read_dir(data.join("providers")).into_iter().flatten();
    let of_providers = providers.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    let methods = config.iter().flat_map(|config| &config.installation);
    let of_mirrors = methods
        .filter_map(|method| mirror_host(method.mirror.as_deref()?))
        .map(str::to_owned);
    let hosts: BTreeSet<String> = of_modules.chain(of_providers).chain(of_mirrors).collect();
    (hosts.len() <= MAX_REGISTRY_HOSTS).then(|| hosts.into_iter().collect())
}

/// Returns the host of a registry source `host/namespace/name/provider`; `None` for other sources.
fn registry_host(source: &str) -> Option<&str> {
    let address = source.split("//").next()?;
    let parts: Vec<&str> = address.split('/').collect();
    match parts.as_slice() {
        [host, _, _, _] if !source.contains("::") && host.contains(['.', ':']) => Some(host),
        _ => None,
    }
}

fn mirror_host(url: &str) -> Option<&str> {
    let host = url.strip_prefix("https://")?.split('/').next()?;
    Some(host.strip_suffix(":443").unwrap_or(host))
}

#[cfg(test)]
mod tests {
    use alustan_api::cli_config::InstallationMethod;

    use super::*;

    fn with_manifest(text: &str) -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        let modules = folder.path().join(DATA).join("modules");
        fs::create_dir_all(&modules).unwrap();
        fs::write(modules.join("modules.json"), text).unwrap();
        folder
    }

    fn manifest(sources: &[&str]) -> String {
        let modules = sources
            .iter()
            .map(|source| serde_json::json!({"Key": "m", "Source": source, "Dir": "x"}));
        serde_json::json!({"Modules": modules.collect::<Vec<_>>()}).to_string()
    }

    #[test]
    fn manifest_over_the_size_limit_is_not_read() {
        let padded = |size: usize| {
            let text = manifest(&["./b"]);
            with_manifest(&format!("{text}{}", " ".repeat(size - text.len())))
        };
        let limit = usize::try_from(MAX_BYTES).unwrap();
        assert_eq!(installed_modules(padded(limit).path()).unwrap().len(), 1);
        assert!(installed_modules(padded(limit + 1).path()).is_err());
        assert!(installed_modules(with_manifest("[").path()).is_err());
        let empty = tempfile::tempdir().unwrap();
        assert_eq!(installed_modules(empty.path()).unwrap().len(), 0);
    }

    #[test]
    fn hosts_of_modules_providers_and_mirrors_are_found() {
        let folder = with_manifest(&manifest(&[
            "",
            "./local",
            "a.test:8443/team/network/aws//modules/x",
            "registry.terraform.io/team/network/aws",
            "git::https://git.test/a/b/c",
            "https://files.test/a/b.zip",
        ]));
        fs::create_dir_all(
            folder
                .path()
                .join(".terraform/providers/p.test/team/x/1.0.0"),
        )
        .unwrap();
        let method = |mirror: Option<&str>| InstallationMethod {
            mirror: mirror.map(str::to_owned),
            ..InstallationMethod::default()
        };
        let config = CliConfig {
            installation: vec![
                method(Some("https://mirror.test:443/providers/")),
                method(None),
            ],
            ..CliConfig::default()
        };
        assert_eq!(
            registry_hosts(folder.path(), Some(&config)).unwrap(),
            [
                "a.test:8443",
                "mirror.test",
                "p.test",
                "registry.terraform.io"
            ]
        );
        let unprepared = tempfile::tempdir().unwrap();
        assert_eq!(registry_hosts(unprepared.path(), None), None);
    }

    #[test]
    fn too_many_registry_hosts_are_not_reported() {
        let hosts = |count: usize| {
            let sources: Vec<String> = (0..count)
                .map(|number| format!("h{number}.test/a/b/c"))
                .collect();
            let sources: Vec<&str> = sources.iter().map(String::as_str).collect();
            registry_hosts(with_manifest(&manifest(&sources)).path(), None)
        };
        let limit = MAX_REGISTRY_HOSTS;
        assert_eq!(hosts(limit).map(|hosts| hosts.len()), Some(limit));
        assert_eq!(hosts(limit + 1), None);
    }
}
