//! Removal of the provider checksums from the dependency lock file, if the image contains the providers.
//!
//! With checksums, each command of the engine reads and verifies every provider, three times in an apply. The largest providers have a size
//! of half a gigabyte. The verification is not needed: `init` verified the providers when the image was built, and pods reference the image
//! by digest.

use std::fs;
use std::io;
use std::path::Path;

use hcl_edit::structure::Body;

use crate::engine::packages;
use crate::file_system::write_private;
use crate::paths::Paths;

/// Dependency lock file of the engine.
pub(crate) const FILE: &str = ".terraform.lock.hcl";
/// Folder in which the engine finds the provider packages of a module.
const INSTALLED: &str = ".terraform/providers";

/// Removes the checksums from the lock file of the module in `directory`, if all providers of the module are in the image. Keeps the
/// versions of the providers.
pub fn trust_image(directory: &Path, paths: &Paths) -> io::Result<()> {
    let file = directory.join(FILE);
    if !file.is_file() || !all_in_image(&directory.join(INSTALLED), paths)? {
        return Ok(());
    }
    let text = fs::read_to_string(&file)?;
    match without_checksums(&text) {
        Some(text) => write_private(&file, text.as_bytes(), 0o644),
        None => Ok(()),
    }
}

fn all_in_image(installed: &Path, paths: &Paths) -> io::Result<bool> {
    let roots: Vec<_> = [&paths.providers, &paths.base_providers]
        .into_iter()
        .filter_map(|root| fs::canonicalize(root).ok())
        .collect();
    let packages = packages(installed)?;
    let in_image = |package| {
        fs::canonicalize(installed.join(package))
            .is_ok_and(|real| roots.iter().any(|root| real.starts_with(root)))
    };
    Ok(packages.iter().all(in_image))
}

/// Returns `text`, the content of a lock file, without checksums. Returns `None` if `text` cannot be parsed.
fn without_checksums(text: &str) -> Option<String> {
    let mut body: Body = text.parse().ok()?;
    for provider in body.get_blocks_mut("provider") {
        provider.body.remove_attribute("hashes");
    }
    Some(body.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::paths::Vars;
    use std::os::unix::fs::symlink;
    use std::path::PathBuf;

    const LOCKED: &str = r#"# This file is maintained automatically by "terraform init".

provider "registry.terraform.io/hashicorp/null" {
  version     = "3.2.0"
  constraints = "~> 3.2"
  hashes = [
    "h1:one",
    "zh:two",
  ]
}
"#;

    /// Creates a module with a link to a provider package in the folder `home`. Returns the folder of the module and the paths of the
    /// runner.
    fn module(root: &Path, home: &str) -> (PathBuf, Paths) {
        let package = "registry.terraform.io/hashicorp/null/3.2.0/linux_amd64";
        let real = root.join(home).join(package);
        fs::create_dir_all(&real).unwrap();
        let directory = root.join("module");
        let link = directory.join(INSTALLED).join(package);
        fs::create_dir_all(link.parent().unwrap()).unwrap();
        symlink(real, link).unwrap();
        fs::write(directory.join(FILE), LOCKED).unwrap();
        let mut paths = Paths::from_vars(&Vars::new());
        paths.providers = root.join("providers");
        paths.base_providers = root.join("base");
        (directory, paths)
    }

    fn lock_file_of(home: &str) -> String {
        let root = tempfile::tempdir().unwrap();
        let (directory, paths) = module(root.path(), home);
        trust_image(&directory, &paths).unwrap();
        fs::read_to_string(directory.join(FILE)).unwrap()
    }

    #[test]
    fn providers_of_the_image_need_no_checksums() {
        for home in ["providers", "base"] {
            let wanted = r#"# This file is maintained automatically by "terraform init".

provider "registry.terraform.io/hashicorp/null" {
  version     = "3.2.0"
  constraints = "~> 3.2"
}
"#;
            assert_eq!(lock_file_of(home), wanted);
        }
    }

    #[test]
    fn provider_outside_the_image_keeps_its_checksums() {
        assert_eq!(lock_file_of("cache"), LOCKED);
    }

    #[test]
    fn module_without_lock_file_is_unchanged() {
        let root = tempfile::tempdir().unwrap();
        let paths = Paths::from_vars(&Vars::new());
        trust_image(root.path(), &paths).unwrap();
        assert!(!root.path().join(FILE).exists());
        assert_eq!(without_checksums("provider {"), None);
    }
}
