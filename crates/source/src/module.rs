//! What a configuration file says about local modules and the backend. Pure.

mod hcl;
mod json;

use std::collections::BTreeMap;

use crate::repopath;

/// Distinct local sources of one file.
const SOURCES: usize = 2_000;
/// Bytes of a path, as in Linux.
pub(crate) const PATH: usize = 4_096;
/// Bytes of a module's name in messages.
const NAME: usize = 256;

/// Why a source that the engine computes is not followed.
const COMPUTED: &str = "the module's source is not a literal";

/// What a configuration file refers to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Facts {
    /// Local modules by source, as written.
    pub(crate) calls: BTreeMap<String, Call>,
    /// Type of the `backend` block, or `cloud`.
    pub(crate) backend: Option<String>,
    /// The first part that cannot be followed: `calls` and `backend` may lack something.
    pub(crate) unclear: Option<Unclear>,
}

/// The first call of a local module.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Call {
    /// Name of the block.
    pub(crate) module: String,
    /// Line of the block from 1, 0 when unknown.
    pub(crate) line: usize,
}

/// Why the modules of a file cannot all be followed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Unclear {
    /// Line from 1.
    pub(crate) line: usize,
    pub(crate) why: &'static str,
}

impl Facts {
    /// Records the call of a module, if its source is local: it starts with `./` or `../`; all else is fetched by the engine.
    /// See <https://developer.hashicorp.com/terraform/language/modules/sources#local-paths>.
    fn call(&mut self, module: &str, source: &str, line: usize) {
        let local =
            [".", ".."].contains(&source) || source.starts_with("./") || source.starts_with("../");
        if !local || self.calls.contains_key(source) {
            return;
        }
        if source.len() > PATH {
            self.unclear(line, "the path of a module is too long");
        } else if self.calls.len() == SOURCES {
            self.unclear(line, "the file calls too many modules");
        } else {
            let module = module.chars().take(NAME).collect();
            self.calls.insert(source.to_owned(), Call { module, line });
        }
    }

    /// Records the type of a backend; the first one counts.
    fn backend(&mut self, kind: &str) {
        self.backend
            .get_or_insert_with(|| kind.chars().take(NAME).collect());
    }

    /// Records that something cannot be followed; the first one counts.
    fn unclear(&mut self, line: usize, why: &'static str) {
        self.unclear.get_or_insert(Unclear { line, why });
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

/// Reads one configuration file of any content, in linear time; its name says which syntax it has.
pub(crate) fn read(path: &str, bytes: &[u8]) -> Facts {
    let mut facts = Facts::default();
    let Ok(text) = std::str::from_utf8(bytes) else {
        facts.unclear(1, "the file is not UTF-8");
        return facts;
    };
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    if is_json(path) {
        json::read(text)
    } else {
        hcl::read(text)
    }
}

/// Whether a configuration file has the JSON syntax.
pub(crate) fn is_json(path: &str) -> bool {
    path.strip_suffix(".json").is_some()
}

#[cfg(test)]
mod tests;
