//! Computes the closure of a module: the files of a tree that the module needs. Performs no I/O: the caller reads the files that
//! `Closure::files_to_read` returns and passes their facts (module calls and backend) to `Closure::supply`, until `files_to_read` returns no files.
//!
//! Each folder of the closure is included completely, since a module may read any file in the folder (`file("${path.module}/templates/x")`), and with
//! the targets of its symbolic links. Files that git or an engine creates, for example `.terraform`, are excluded (see `select`).

mod config_file;
mod select;
mod terragrunt;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use alustan_api::WrapperName;

use crate::{
    error::Error,
    module::{
        self,
        facts::{Facts, ModuleCall, Unclear},
    },
    repopath,
    tree::{Entry, Kind, Steps, Target, Tree, Unresolvable},
};

use config_file::ConfigFile;

/// Maximum number of modules.
const MODULES: usize = 2_000;
/// Maximum number of configuration files that are read.
const FILES: usize = 2_000;

/// Part of the error message for a path that leads into a submodule.
const IN_SUBMODULE: &str = "is in a submodule: set `gitRepo.submodules: true` to fetch it";

/// A configuration file that must be read to determine the files that the module needs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct FileRequest {
    /// Path from the root of the repository.
    pub(crate) path: String,
    /// Object id of the content.
    pub(crate) object: String,
    /// Folder of the module. Module sources in the file are relative to this folder.
    pub(crate) module: String,
    /// Whether the engine may ignore module calls in the file: another file may replace the blocks, or only one of the engines reads the file.
    replaceable: bool,
    /// The configuration of Terragrunt in the file, if it is such a file.
    config: Option<ConfigFile>,
}

/// Closure of a module (the files that the module needs) during its computation.
///
/// The closure becomes the whole repository if the module has too many files or local modules, or if the module calls in a file cannot be determined,
/// for example because of invalid syntax. Invalid syntax therefore never causes an error.
pub(crate) struct Closure {
    tree: Arc<Tree>,
    root: String,
    /// Folder of each module, without symbolic links. Module sources are relative to the folder of their module, as for the engine.
    modules: BTreeSet<String>,
    /// Modules whose configuration files have not been requested.
    unread: Vec<String>,
    /// Configuration files of Terragrunt, and those of them that have not been requested.
    configs: BTreeSet<ConfigFile>,
    unread_configs: Vec<ConfigFile>,
    /// Folders of the modules that the configuration of Terragrunt in the root module names.
    sources: BTreeSet<String>,
    /// Number of configuration files requested so far. `bytes` is the total size of these files, in bytes.
    files: usize,
    bytes: u64,
    /// Folders that are included completely.
    folders: BTreeSet<String>,
    /// Links and files that are included individually.
    singles: BTreeSet<String>,
    /// Submodules into which a module source or an included path leads. Empty if submodules are not fetched.
    entered: BTreeSet<String>,
    submodules: bool,
    backend: Option<String>,
    /// Reason for which the whole repository is included, if it is.
    whole: Option<String>,
    steps: Steps,
}

/// Limits of the files of a context.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ContextLimits {
    /// Maximum number of files and links.
    pub(crate) files: u64,
    /// Maximum number of folders with files or links.
    pub(crate) folders: u64,
    /// Maximum total size of the files, in bytes.
    pub(crate) bytes: u64,
}

/// Files of a context, and facts about the root module.
#[derive(Debug)]
pub(crate) struct Selection {
    /// Files and links by path.
    pub(crate) entries: BTreeMap<String, Entry>,
    /// Submodules in the included folders whose files are not in the tree. If submodules are fetched, the caller must fetch these submodules: the
    /// other fields are incomplete until this list is empty. If submodules are not fetched, the context does not contain these submodules, like a
    /// clone without `--recurse-submodules`.
    pub(crate) submodules: Vec<String>,
    /// Type of the `backend` block of the root module, or `cloud`.
    pub(crate) backend: Option<String>,
    /// Reason for which the whole repository is included, if it is.
    pub(crate) whole: Option<String>,
}

impl Closure {
    /// Maximum total size of the configuration files that are read, in bytes.
    pub(crate) const BYTES: u64 = 8 << 20;

    /// Returns an empty closure. `submodules`: whether submodules are fetched.
    pub(crate) fn new(tree: Arc<Tree>, submodules: bool) -> Self {
        Self {
            tree,
            root: String::new(),
            modules: BTreeSet::new(),
            unread: Vec::new(),
            configs: BTreeSet::new(),
            unread_configs: Vec::new(),
            sources: BTreeSet::new(),
            files: 0,
            bytes: 0,
            folders: BTreeSet::new(),
            singles: BTreeSet::new(),
            entered: BTreeSet::new(),
            submodules,
            backend: None,
            whole: None,
            steps: Steps::default(),
        }
    }

    /// Adds the root module at `root` and the additional paths in `include`. With `wrapper`, follows the configuration of the wrapper.
    pub(crate) fn start(
        &mut self,
        root: &str,
        include: &[String],
        wrapper: Option<WrapperName>,
    ) -> Result<(), Error> {
        match self.enter(root)? {
            Target::Folder(folder) => {
                self.root.clone_from(&folder);
                self.add_module(folder);
                match wrapper {
                    Some(WrapperName::Terragrunt) => self.add_root_unit(),
                    None => {}
                }
            }
            Target::File(_) => return Err(invalid_path(root, "is a file")),
            Target::Submodule(submodule) => {
                self.enter_submodule(submodule, || invalid_path(root, IN_SUBMODULE))?;
            }
        }
        include.iter().try_for_each(|path| self.add_include(path))
    }

    /// Records a required submodule; fails with `refusal` if submodules are not fetched.
    fn enter_submodule(
        &mut self,
        path: String,
        refusal: impl FnOnce() -> Error,
    ) -> Result<(), Error> {
        if !self.submodules {
            return Err(refusal());
        }
        self.entered.insert(path);
        Ok(())
    }

    /// Returns the files to read next; none if the closure is complete.
    pub(crate) fn files_to_read(&mut self) -> Vec<FileRequest> {
        let mut requests = Vec::new();
        for config in std::mem::take(&mut self.unread_configs) {
            let request = |object| FileRequest {
                path: config.path.clone(),
                object,
                module: config.unit.clone(),
                replaceable: false,
                config: Some(config.clone()),
            };
            if !self.request(&config.path, request, &mut requests) {
                return requests;
            }
        }
        for module in std::mem::take(&mut self.unread) {
            let mut paths = self.tree.configuration(&module).to_vec();
            let replaceable = paths
                .iter()
                .any(|path| module::is_override(path) || module::is_tofu(path));
            if module == self.root {
                paths.extend(self.tests());
            }
            for path in paths {
                let request = |object| FileRequest {
                    replaceable: replaceable || module::is_test(&path),
                    path: path.clone(),
                    object,
                    module: module.clone(),
                    config: None,
                };
                if !self.request(&path, request, &mut requests) {
                    return requests;
                }
            }
        }
        requests
    }

    /// Adds the request for the file `path` to `requests`, if the file exists. Extends the closure to the whole repository if a limit is
    /// exceeded. Returns whether more files may be requested.
    fn request(
        &mut self,
        path: &str,
        request: impl FnOnce(String) -> FileRequest,
        requests: &mut Vec<FileRequest>,
    ) -> bool {
        let Some((object, size)) = self.content(path) else {
            return true;
        };
        if self.files == FILES {
            self.take_whole(path, "too many configuration files");
            return false;
        }
        self.files += 1;
        if self.bytes + size > Self::BYTES {
            self.take_whole(path, "too much configuration");
        } else {
            self.bytes += size;
            requests.push(request(object));
        }
        true
    }

    /// Adds the facts (module calls and backend) of a requested file.
    pub(crate) fn supply(&mut self, file: &FileRequest, facts: &Facts) -> Result<(), Error> {
        let replaces = self.backend.is_none() || module::is_override(&file.path);
        let is_root = match &file.config {
            Some(config) => config.is_root,
            None => file.module == self.root || self.sources.contains(&file.module),
        };
        if is_root && facts.backend.is_some() && replaces {
            self.backend.clone_from(&facts.backend);
        }
        if let Some(Unclear { line, why }) = &facts.unclear {
            self.take_whole(&format!("{}:{line}", file.path), why);
        }
        if let Some((source, call)) = facts.host_path.as_ref().filter(|_| !file.replaceable) {
            return Err(Error::ModuleSourceNotAllowed {
                file: file.path.clone(),
                line: call.line,
                module: call.module.clone(),
                source_path: source.clone(),
            });
        }
        if let Some(config) = &file.config {
            self.supply_config(file, config, facts);
        }
        for (source, call) in &facts.calls {
            match self.follow_call(file, source, call) {
                // If the engine reads the call, it reports that the module does not exist.
                Err(_) if file.replaceable => {}
                result => result?,
            }
        }
        Ok(())
    }

    /// Returns the test files of the root module.
    fn tests(&self) -> Vec<String> {
        let folders = [Some(self.root.clone()), repopath::join(&self.root, "tests")];
        let files = self.tree.below(&self.root).map(|(path, _)| path);
        files
            .filter(|path| module::is_test(path))
            .filter(|path| {
                folders
                    .iter()
                    .any(|folder| folder.as_deref() == Some(repopath::parent(path)))
            })
            .cloned()
            .collect()
    }

    /// Returns the folders of the modules that the configuration of the wrapper in the root module names.
    pub(crate) fn into_sources(self) -> BTreeSet<String> {
        self.sources
    }

    /// Returns the folders of all modules, including the root module.
    pub(crate) fn module_folders(&self) -> impl Iterator<Item = &str> {
        self.modules.iter().map(String::as_str)
    }

    /// Extends the closure to the whole repository. Records `why` and `path` as the reason, if no earlier reason is recorded.
    fn take_whole(&mut self, path: &str, why: &str) {
        self.unread.clear();
        self.whole.get_or_insert_with(|| format!("{path}: {why}"));
    }

    /// Resolves `path`. Adds the symbolic links in `path` to the closure.
    fn enter(&mut self, path: &str) -> Result<Target, Error> {
        match self.tree.follow(path, &self.steps) {
            Ok(followed) => {
                self.singles.extend(followed.links);
                Ok(followed.target)
            }
            Err(Unresolvable::Missing) => Err(Error::PathNotFound {
                path: path.to_owned(),
            }),
            Err(Unresolvable::Outside) => Err(invalid_path(
                path,
                "leads out of the repository through a symbolic link",
            )),
            Err(Unresolvable::Loop) => {
                Err(invalid_path(path, "contains a cycle of symbolic links"))
            }
            Err(Unresolvable::TooLong) => Err(invalid_path(
                path,
                "contains too many folders and symbolic links",
            )),
        }
    }

    fn add_module(&mut self, folder: String) {
        if self.modules.contains(&folder) {
            return;
        }
        self.folders.insert(folder.clone());
        if self.modules.len() == MODULES {
            self.take_whole(&folder, "too many modules");
        } else if self.whole.is_none() {
            self.modules.insert(folder.clone());
            self.unread.push(folder);
        }
    }

    fn add_include(&mut self, path: &str) -> Result<(), Error> {
        match self.enter(path)? {
            Target::Folder(folder) => drop(self.folders.insert(folder)),
            Target::File(file) => drop(self.singles.insert(file)),
            Target::Submodule(submodule) => {
                self.enter_submodule(submodule, || invalid_path(path, IN_SUBMODULE))?;
            }
        }
        Ok(())
    }

    /// Adds a file of `spec.varFiles`, and the symbolic links in its path. `file`: path relative to the folder of the root module, after
    /// symbolic links in the path of this folder are resolved. Does nothing while the root module is in a submodule that is not fetched yet.
    pub(crate) fn add_var_file(&mut self, file: &str) -> Result<(), Error> {
        if self.modules.is_empty() {
            return Ok(());
        }
        let invalid = |why| invalid_var_file(file, why);
        let path = repopath::join(&self.root, file)
            .ok_or_else(|| invalid("leads out of the repository"))?;
        let not_found = |why| Error::VarFileNotFound {
            path: path.clone(),
            why,
        };
        let followed = self
            .tree
            .follow(&path, &self.steps)
            .map_err(|error| match error {
                Unresolvable::Missing => not_found(""),
                Unresolvable::Outside => {
                    invalid("leads out of the repository through a symbolic link")
                }
                Unresolvable::Loop => invalid("contains a cycle of symbolic links"),
                Unresolvable::TooLong => invalid("contains too many folders and symbolic links"),
            })?;
        match followed.target {
            Target::File(file) => {
                self.singles.extend(followed.links);
                self.singles.insert(file);
                Ok(())
            }
            Target::Folder(_) => Err(not_found(" (it is a folder)")),
            Target::Submodule(submodule) => {
                let refusal = not_found(
                    " (it is in a submodule: set `gitRepo.submodules: true` to fetch it)",
                );
                self.enter_submodule(submodule, || refusal)
            }
        }
    }

    /// Returns object id and size of a file, or of the target file of a link.
    fn content(&self, path: &str) -> Option<(String, u64)> {
        let entry = self.tree.get(path)?;
        let real = match entry.kind {
            Kind::File { .. } => entry,
            Kind::Link => match self.tree.follow(path, &self.steps).ok()?.target {
                Target::File(real) => self.tree.get(&real)?,
                Target::Folder(_) | Target::Submodule(_) => return None,
            },
            Kind::Submodule => return None,
        };
        Some((real.object.clone(), real.size))
    }

    fn follow_call(
        &mut self,
        file: &FileRequest,
        source: &str,
        call: &ModuleCall,
    ) -> Result<(), Error> {
        let not_found = |why| not_found(file, source, call, why);
        let leaves = || leaves(file, source, call);
        let path = repopath::join(&file.module, source).ok_or_else(leaves)?;
        let followed = match self.tree.follow(&path, &self.steps) {
            Ok(followed) => followed,
            Err(Unresolvable::Outside) => return Err(leaves()),
            Err(Unresolvable::Missing) => return Err(not_found("")),
            Err(Unresolvable::Loop) => return Err(not_found(" (its symbolic links form a cycle)")),
            Err(Unresolvable::TooLong) => {
                self.take_whole(&file.path, "too many folders and symbolic links in a path");
                return Ok(());
            }
        };
        match followed.target {
            Target::Folder(folder) => {
                self.singles.extend(followed.links);
                self.add_module(folder);
                Ok(())
            }
            Target::File(_) => Err(not_found(" (it is a file)")),
            Target::Submodule(submodule) => self.enter_submodule(submodule, || {
                not_found(" (it is in a submodule: set `gitRepo.submodules: true` to fetch it)")
            }),
        }
    }
}

fn invalid_path(path: &str, why: &str) -> Error {
    Error::InvalidPath {
        path: path.escape_debug().to_string(),
        why: why.to_owned(),
    }
}

/// Returns the error for the entry `path` of `spec.varFiles`.
pub(crate) fn invalid_var_file(path: &str, why: &'static str) -> Error {
    Error::InvalidVarFile {
        path: path.escape_debug().to_string(),
        why,
    }
}

fn leaves(file: &FileRequest, source: &str, call: &ModuleCall) -> Error {
    Error::PathLeavesRepository {
        file: file.path.clone(),
        line: call.line,
        module: call.module.clone(),
        source_path: source.to_owned(),
    }
}

fn not_found(file: &FileRequest, source: &str, call: &ModuleCall, why: &'static str) -> Error {
    Error::ModuleNotFound {
        file: file.path.clone(),
        line: call.line,
        module: call.module.clone(),
        source_path: source.to_owned(),
        why,
    }
}

#[cfg(test)]
mod tests;
