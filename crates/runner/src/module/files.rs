//! Configuration files of a module. Their names depend on the engine ([`EngineName::is_configuration`]).

use std::fs;
use std::io;
use std::path::Path;

use alustan_api::EngineName;
use hcl_edit::structure::Body;
use serde_json::Value;

/// Parsed content of a configuration file.
pub enum Content {
    /// HCL syntax.
    Hcl(Body),
    /// JSON syntax.
    Json(Value),
}

/// Configuration file of a module.
pub struct ModuleFile {
    /// File name without the folder.
    pub name: String,
    /// Parsed content.
    pub content: Content,
}

/// Reads the files in `directory` that one of `engines` reads as configuration. Skips files that cannot be read or parsed, because the engine
/// reports the errors of these files.
pub fn read_module_files(directory: &Path, engines: &[EngineName]) -> Vec<ModuleFile> {
    let Ok(entries) = fs::read_dir(directory) else {
        return Vec::new();
    };
    let paths = entries.filter_map(|entry| Some(entry.ok()?.path()));
    paths
        .filter_map(|path| read_module_file(&path, engines))
        .collect()
}

/// Whether the module in `directory` has a configuration file other than the files in `ours`, which the runner writes.
///
/// # Errors
/// Fails if the folder cannot be read.
pub fn has_configuration(directory: &Path, engine: EngineName, ours: &[&str]) -> io::Result<bool> {
    has_file(directory, |name| {
        !ours.contains(&name) && engine.is_configuration(name)
    })
}

/// Whether the folder has a configuration file of a wrapper, such as `terragrunt.hcl`.
///
/// # Errors
/// Fails if the folder cannot be read.
pub fn has_wrapper_configuration(directory: &Path) -> io::Result<bool> {
    has_file(directory, |name| {
        let extension = Path::new(name).extension();
        !name.starts_with('.') && extension.is_some_and(|extension| extension == "hcl")
    })
}

fn has_file(directory: &Path, is_wanted: impl Fn(&str) -> bool) -> io::Result<bool> {
    for entry in fs::read_dir(directory)? {
        let entry = entry?;
        let is_file = !entry.file_type()?.is_dir();
        if is_file && is_wanted(&entry.file_name().to_string_lossy()) {
            return Ok(true);
        }
    }
    Ok(false)
}

fn read_module_file(path: &Path, engines: &[EngineName]) -> Option<ModuleFile> {
    let name = path.file_name()?.to_str()?.to_owned();
    if !engines.iter().any(|engine| engine.is_configuration(&name)) {
        return None;
    }
    let text = fs::read_to_string(path).ok()?;
    let content = if path
        .extension()
        .is_some_and(|extension| extension == "json")
    {
        Content::Json(serde_json::from_str(&text).ok()?)
    } else {
        Content::Hcl(text.parse().ok()?)
    };
    Some(ModuleFile { name, content })
}

/// Returns the bodies of the blocks of type `kind` in a file in JSON syntax. In JSON syntax, blocks are one object or a list of objects.
pub fn json_blocks<'a>(file: &'a Value, kind: &str) -> Vec<&'a Value> {
    match file.get(kind) {
        Some(Value::Array(blocks)) => blocks.iter().collect(),
        Some(block) => vec![block],
        None => Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_configuration_files_of_the_engine_are_read() {
        let directory = tempfile::tempdir().unwrap();
        for name in [
            "a.tf", "b.c.tf", "d.tofu", "e.txt", "tf", "f.tf.bak", ".k.tf",
        ] {
            fs::write(directory.path().join(name), "").unwrap();
        }
        for name in ["g.tf.json", "h.tofu.json", "i.json", "j.tfvars.json"] {
            fs::write(directory.path().join(name), "{}").unwrap();
        }
        let names = |engine| {
            let mut names: Vec<_> = read_module_files(directory.path(), &[engine])
                .into_iter()
                .map(|file| file.name)
                .collect();
            names.sort();
            names
        };
        assert_eq!(
            names(EngineName::Terraform),
            ["a.tf", "b.c.tf", "g.tf.json"]
        );
        assert_eq!(
            names(EngineName::Opentofu),
            ["a.tf", "b.c.tf", "d.tofu", "g.tf.json", "h.tofu.json"]
        );
    }

    #[test]
    fn hidden_files_and_folders_are_no_configuration() {
        let directory = tempfile::tempdir().unwrap();
        fs::write(directory.path().join(".main.tf"), "").unwrap();
        fs::create_dir(directory.path().join("main.tf")).unwrap();
        let has_configuration =
            || has_configuration(directory.path(), EngineName::Opentofu, &[]).unwrap();
        assert!(!has_configuration());
        fs::write(directory.path().join("a.tf"), "").unwrap();
        assert!(has_configuration());
    }
}
