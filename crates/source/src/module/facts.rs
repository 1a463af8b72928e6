//! Facts that the scanner of each syntax collects from a configuration file. Pure.

use std::collections::BTreeMap;

/// Distinct local sources of one file.
pub(super) const SOURCES: usize = 2_000;
/// Bytes of a path, as in Linux.
pub(crate) const PATH: usize = 4_096;
/// Bytes of a module's name in messages.
pub(super) const NAME: usize = 256;

/// Why a source that the engine computes is not followed.
pub(super) const COMPUTED: &str = "the module's source is not a literal";

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
    pub(super) fn call(&mut self, module: &str, source: &str, line: usize) {
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
    pub(super) fn backend(&mut self, kind: &str) {
        self.backend
            .get_or_insert_with(|| kind.chars().take(NAME).collect());
    }

    /// Records that something cannot be followed; the first one counts.
    pub(super) fn unclear(&mut self, line: usize, why: &'static str) {
        self.unclear.get_or_insert(Unclear { line, why });
    }
}
