//! Reads the local modules and the backend of a configuration file. Performs no I/O.

pub(crate) mod facts;
mod hcl;
mod json;
mod terragrunt;
pub(crate) mod terragrunt_paths;

use alustan_api::EngineName;

use self::facts::Facts;
use crate::repopath;

/// Whether an engine reads the file as configuration.
pub(crate) fn is_configuration(path: &str) -> bool {
    let name = repopath::name(path);
    EngineName::VARIANTS
        .iter()
        .any(|engine| engine.is_configuration(name))
}

/// Whether the file is an override file: its blocks replace blocks of the other files in the folder. See
/// <https://developer.hashicorp.com/terraform/language/files/override>.
pub(crate) fn is_override(path: &str) -> bool {
    let name = repopath::name(path);
    let stem = name.strip_suffix(".json").unwrap_or(name);
    let stem = stem.rsplit_once('.').map_or(stem, |(stem, _)| stem);
    is_configuration(path) && (stem == "override" || stem.ends_with("_override"))
}

/// Whether only OpenTofu reads the file. OpenTofu then ignores a file with the same name and the extension of Terraform.
pub(crate) fn is_tofu(path: &str) -> bool {
    let ours = [".tofu", ".tofu.json"]
        .iter()
        .any(|end| path.ends_with(end));
    ours && is_configuration(path)
}

/// Whether the file contains tests. `init` installs the modules of the tests of the root module.
pub(crate) fn is_test(path: &str) -> bool {
    let name = repopath::name(path);
    let ours = [
        ".tftest.hcl",
        ".tftest.json",
        ".tofutest.hcl",
        ".tofutest.json",
    ]
    .iter()
    .any(|end| name.ends_with(end));
    ours && !name.starts_with('.')
}

/// Reads the facts (module calls and backend) of a configuration file. Accepts any content, and takes linear time. The file name determines the
/// syntax.
pub(crate) fn read(path: &str, bytes: &[u8]) -> Facts {
    let mut facts = Facts::default();
    let Ok(text) = std::str::from_utf8(bytes) else {
        facts.unclear(1, "the file is not valid UTF-8");
        return facts;
    };
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    match Syntax::of(path) {
        Syntax::Json => json::read(text),
        Syntax::Native => hcl::read(text),
        Syntax::Terragrunt => terragrunt::read(text),
    }
}

/// Syntax and meaning of a configuration file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Syntax {
    /// Configuration of an engine, in its JSON syntax.
    Json,
    /// Configuration of an engine, in its native syntax.
    Native,
    /// Configuration of Terragrunt.
    Terragrunt,
}

impl Syntax {
    /// Returns the syntax of the configuration file `path`.
    pub(crate) fn of(path: &str) -> Self {
        match path.rsplit_once('.') {
            Some((_, "json")) => Self::Json,
            Some((_, "hcl")) if !is_test(path) => Self::Terragrunt,
            _ => Self::Native,
        }
    }
}

#[cfg(test)]
mod tests;
