//! What one configuration file says about modules and backends. Pure.

mod hcl;
mod json;

use crate::repopath;

/// What a configuration file refers to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Facts {
    /// Calls of local modules.
    pub(crate) calls: Vec<Call>,
    /// Type of the `backend` block, or `cloud`.
    pub(crate) backend: Option<String>,
}

/// A call of a local module.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Call {
    /// Name of the block.
    pub(crate) module: String,
    /// The source as written.
    pub(crate) source: String,
    /// Line of the block from 1, 0 when unknown.
    pub(crate) line: usize,
}

/// Where and why a file does not parse.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Fault {
    pub(crate) line: usize,
    pub(crate) column: usize,
    pub(crate) message: String,
}

impl Fault {
    fn at_start(message: &str) -> Self {
        Self {
            line: 1,
            column: 1,
            message: message.to_owned(),
        }
    }
}

/// Whether the engine reads the file as configuration: `*.tf`, `*.tofu` and their JSON forms, no editor's leftovers.
pub(crate) fn is_configuration(path: &str) -> bool {
    let name = repopath::name(path);
    let ours = [".tf", ".tf.json", ".tofu", ".tofu.json"]
        .iter()
        .any(|end| name.ends_with(end));
    ours && !name.starts_with('.')
}

/// Reads one configuration file; its name says which language it is in.
pub(crate) fn read(path: &str, bytes: &[u8]) -> Result<Facts, Fault> {
    let text = std::str::from_utf8(bytes).map_err(|_| Fault::at_start("the file is not UTF-8"))?;
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    if is_json(path) {
        json::read(text)
    } else {
        hcl::read(text)
    }
}

fn is_json(path: &str) -> bool {
    path.strip_suffix(".json").is_some()
}

/// A source is local when it starts with `./` or `../`; all else is fetched by the engine.
/// See <https://developer.hashicorp.com/terraform/language/modules/sources#local-paths>.
fn is_local(source: &str) -> bool {
    [".", ".."].contains(&source) || source.starts_with("./") || source.starts_with("../")
}

#[cfg(test)]
mod tests;
