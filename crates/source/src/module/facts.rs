//! Facts (module calls and backend) that the scanner of each syntax collects from a configuration file.

use std::collections::BTreeMap;

use super::terragrunt_paths::Paths;

/// Maximum number of distinct local module sources in one configuration file.
pub(super) const SOURCES: usize = 2_000;
/// Maximum length of a path, in bytes (`PATH_MAX` of Linux).
pub(crate) const PATH: usize = 4_096;
/// Maximum length of a module name in messages, in characters.
pub(super) const NAME: usize = 256;

/// Reason for which a module source that is an expression is not followed.
pub(super) const COMPUTED: &str = "the source of the module is not a literal";

/// Local modules and backend in a configuration file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Facts {
    /// First call of each local module, by the value of `source`.
    pub(crate) calls: BTreeMap<String, ModuleCall>,
    /// First call of a module whose source is a path of the file system (see [`is_host_path`]), with the value of `source`.
    pub(crate) host_path: Option<(String, ModuleCall)>,
    /// Type of the `backend` block, or `cloud`.
    pub(crate) backend: Option<String>,
    /// First part of the file whose module calls cannot be determined. If there is such a part, `calls` and `backend` may be incomplete.
    pub(crate) unclear: Option<Unclear>,
    /// Paths in a configuration file of Terragrunt.
    pub(crate) terragrunt: Paths,
}

/// First call of a module.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ModuleCall {
    /// Name of the `module` block.
    pub(crate) module: String,
    /// Line of the block, from 1; 0 if unknown.
    pub(crate) line: usize,
}

/// Reason for which the module calls in a file cannot be determined completely.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Unclear {
    /// Line, from 1.
    pub(crate) line: usize,
    pub(crate) why: &'static str,
}

impl Facts {
    /// Records a module call if its source is local, `./` or `../`, or if it is a path of the file system. The engine fetches modules with
    /// other sources. See
    /// <https://developer.hashicorp.com/terraform/language/modules/sources#local-paths>.
    pub(super) fn call(&mut self, module: &str, source: &str, line: usize) {
        if is_host_path(source) && self.host_path.is_none() {
            let call = named(module, line);
            let source = source.chars().take(NAME).collect();
            self.host_path = Some((source, call));
            return;
        }
        let local =
            [".", ".."].contains(&source) || source.starts_with("./") || source.starts_with("../");
        if !local || self.calls.contains_key(source) {
            return;
        }
        if source.len() > PATH {
            self.unclear(line, "the path of a module is too long");
        } else if self.calls.len() == SOURCES {
            self.unclear(line, "the file contains too many module calls");
        } else {
            self.calls.insert(source.to_owned(), named(module, line));
        }
    }

    /// Records the type of a backend. Keeps only the first backend.
    pub(super) fn backend(&mut self, kind: &str) {
        self.backend
            .get_or_insert_with(|| kind.chars().take(NAME).collect());
    }

    /// Records a part of the file whose module calls cannot be determined. Keeps only the first part.
    pub(super) fn unclear(&mut self, line: usize, why: &'static str) {
        self.unclear.get_or_insert(Unclear { line, why });
    }
}

fn named(module: &str, line: usize) -> ModuleCall {
    ModuleCall {
        module: module.chars().take(NAME).collect(),
        line,
    }
}

/// Whether a module source is a path of the file system outside of the repository: an absolute path or a `file` URL, also after forced getters
/// such as `file::` and `git::`. See <https://developer.hashicorp.com/terraform/language/modules/sources>. In a build, such a path leads to
/// files of the pod, for example to credentials, and no repository has it.
pub fn is_host_path(source: &str) -> bool {
    let mut rest = source.trim_start();
    while let Some((getter, source)) = rest.split_once("::") {
        if !getter.bytes().all(|byte| byte.is_ascii_alphanumeric()) {
            break;
        }
        if getter.eq_ignore_ascii_case("file") {
            return true;
        }
        rest = source;
    }
    let scheme = rest.split_once(':').map(|(scheme, _)| scheme);
    rest.starts_with('/') || scheme.is_some_and(|scheme| scheme.eq_ignore_ascii_case("file"))
}
