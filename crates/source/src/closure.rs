//! Which files of a tree a module needs. Pure: the contents come from outside, in rounds.
//!
//! Every folder in the closure goes in with all below it, since a module may read any of it
//! (`file("${path.module}/templates/x")`), except what an engine leaves behind (see `select`).

mod select;

use std::collections::{BTreeMap, BTreeSet};

use crate::{
    error::Error,
    module::{self, Call},
    repopath,
    tree::{Astray, Entry, Found, Kind, Tree},
};

/// More modules than anybody writes; links that lead in circles would otherwise make them without end.
const MODULES: usize = 2000;
/// Bytes of one configuration file.
const CONFIGURATION: u64 = 4 * 1024 * 1024;

/// What to do about a path that leads into a submodule.
const IN_SUBMODULE: &str = "is in a submodule: set `gitRepo.submodules: true` to fetch it";

/// A configuration file whose content is needed to go on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Wanted {
    /// Path from the repository's root.
    pub(crate) path: String,
    /// Id of the content.
    pub(crate) object: String,
    /// Folder of the module as its sources see it.
    module: String,
}

/// The closure while it grows.
pub(crate) struct Closure<'t> {
    tree: &'t Tree,
    commit: &'t str,
    root: String,
    /// Modules seen, by the path their sources are relative to; the value is the folder it really is.
    modules: BTreeMap<String, String>,
    /// Modules whose files were not asked for yet.
    unread: Vec<String>,
    /// Folders that go in with all below them.
    folders: BTreeSet<String>,
    /// Links and files outside of those folders that go in.
    singles: BTreeSet<String>,
    /// Submodules that something leads into, where they are to be fetched.
    entered: BTreeSet<String>,
    submodules: bool,
    backend: Option<String>,
}

/// What goes in, and what is known of the root module.
#[derive(Debug)]
pub(crate) struct Selection {
    /// Files and links by path.
    pub(crate) entries: BTreeMap<String, Entry>,
    /// Submodules below the folders. Where they are to be fetched: those that are missing still, and the rest says
    /// nothing before they are there. Else they stay out, as in a clone without `--recurse-submodules`.
    pub(crate) submodules: Vec<String>,
    /// Type of the root module's `backend` block, or `cloud`.
    pub(crate) backend: Option<String>,
}

impl<'t> Closure<'t> {
    /// A closure with nothing in it. `submodules`: whether paths may lead into submodules.
    pub(crate) fn new(tree: &'t Tree, commit: &'t str, submodules: bool) -> Self {
        Self {
            tree,
            commit,
            root: String::new(),
            modules: BTreeMap::new(),
            unread: Vec::new(),
            folders: BTreeSet::new(),
            singles: BTreeSet::new(),
            entered: BTreeSet::new(),
            submodules,
            backend: None,
        }
    }

    /// Starts at the module at `root`, with further paths that are wanted for reasons of their own.
    pub(crate) fn start(&mut self, root: &str, include: &[String]) -> Result<(), Error> {
        root.clone_into(&mut self.root);
        match self.enter(root)? {
            Found::Folder(folder) => self.add_module(root.to_owned(), folder)?,
            Found::File(_) => return Err(invalid_path(root, "is a file")),
            Found::Submodule(submodule) => {
                self.enter_submodule(submodule, || invalid_path(root, IN_SUBMODULE))?;
            }
        }
        include.iter().try_for_each(|path| self.add_include(path))
    }

    /// Notes that a submodule is needed, or tells that it is not fetched.
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

    /// The files to read next; none when the closure is complete.
    pub(crate) fn wanted(&mut self) -> Vec<Wanted> {
        let modules = std::mem::take(&mut self.unread);
        modules
            .iter()
            .flat_map(|module| self.configuration_of(module))
            .collect()
    }

    /// Takes the content of a wanted file.
    pub(crate) fn supply(&mut self, file: &Wanted, content: &[u8]) -> Result<(), Error> {
        let facts = module::read(&file.path, content).map_err(|fault| Error::ModuleSyntax {
            file: file.path.clone(),
            line: fault.line,
            column: fault.column,
            message: fault.message,
        })?;
        if file.module == self.root && self.backend.is_none() {
            self.backend = facts.backend;
        }
        facts
            .calls
            .iter()
            .try_for_each(|call| self.follow_call(file, call))
    }

    /// Where `path` leads; the links on the way go in.
    fn enter(&mut self, path: &str) -> Result<Found, Error> {
        match self.tree.follow(path) {
            Ok(followed) => {
                self.singles.extend(followed.links);
                Ok(followed.found)
            }
            Err(Astray::Missing) => Err(Error::PathNotFound {
                path: path.to_owned(),
                commit: self.commit.to_owned(),
            }),
            Err(Astray::Outside) => Err(invalid_path(
                path,
                "leads out of the repository through a link",
            )),
            Err(Astray::Loop) => Err(invalid_path(path, "leads in circles through links")),
        }
    }

    fn add_module(&mut self, path: String, folder: String) -> Result<(), Error> {
        if self.modules.contains_key(&path) {
            return Ok(());
        }
        if self.modules.len() >= MODULES {
            let size = MODULES as u64 + 1;
            return Err(Error::ContextTooLarge {
                size,
                unit: "modules",
                limit: MODULES as u64,
            });
        }
        self.folders.insert(folder.clone());
        self.modules.insert(path.clone(), folder);
        self.unread.push(path);
        Ok(())
    }

    fn add_include(&mut self, path: &str) -> Result<(), Error> {
        match self.enter(path)? {
            Found::Folder(folder) => drop(self.folders.insert(folder)),
            Found::File(file) => drop(self.singles.insert(file)),
            Found::Submodule(submodule) => {
                self.enter_submodule(submodule, || invalid_path(path, IN_SUBMODULE))?;
            }
        }
        Ok(())
    }

    fn configuration_of(&self, module: &str) -> Vec<Wanted> {
        let Some(folder) = self.modules.get(module) else {
            return Vec::new();
        };
        let files = self.tree.below(folder);
        let files = files
            .filter(|(path, _)| repopath::parent(path) == folder && module::is_configuration(path));
        files
            .filter_map(|(path, entry)| self.wanted_file(module, path, entry))
            .collect()
    }

    fn wanted_file(&self, module: &str, path: &str, entry: &Entry) -> Option<Wanted> {
        let object = match entry.kind {
            Kind::File { .. } => entry.object.clone(),
            Kind::Link => match self.tree.follow(path).ok()?.found {
                Found::File(real) => self.tree.get(&real)?.object.clone(),
                Found::Folder(_) | Found::Submodule(_) => return None,
            },
            Kind::Submodule => return None,
        };
        Some(Wanted {
            path: path.to_owned(),
            object,
            module: module.to_owned(),
        })
    }

    fn follow_call(&mut self, file: &Wanted, call: &Call) -> Result<(), Error> {
        let path = repopath::join(&file.module, &call.source).ok_or_else(|| leaves(file, call))?;
        let followed = self.tree.follow(&path).map_err(|astray| match astray {
            Astray::Outside => leaves(file, call),
            Astray::Missing => not_found(file, call, ""),
            Astray::Loop => not_found(file, call, " (its links lead in circles)"),
        })?;
        match followed.found {
            Found::Folder(folder) => {
                self.singles.extend(followed.links);
                self.add_module(path, folder)
            }
            Found::File(_) => Err(not_found(file, call, " (it is a file)")),
            Found::Submodule(submodule) => self.enter_submodule(submodule, || {
                not_found(
                    file,
                    call,
                    " (it is in a submodule: set `gitRepo.submodules: true` to fetch it)",
                )
            }),
        }
    }

    /// Bytes of the largest configuration file that is read.
    pub(crate) fn check_size(&self, wanted: &Wanted) -> Result<(), Error> {
        let size = self.tree.get(&wanted.path).map_or(0, |entry| entry.size);
        if size <= CONFIGURATION {
            return Ok(());
        }
        let message = format!("the file has {size} bytes, more than {CONFIGURATION}");
        Err(Error::ModuleSyntax {
            file: wanted.path.clone(),
            line: 1,
            column: 1,
            message,
        })
    }
}

fn invalid_path(path: &str, why: &str) -> Error {
    Error::InvalidPath {
        path: path.escape_debug().to_string(),
        why: why.to_owned(),
    }
}

fn leaves(file: &Wanted, call: &Call) -> Error {
    Error::PathLeavesRepository {
        file: file.path.clone(),
        line: call.line,
        module: call.module.clone(),
        source_path: call.source.clone(),
    }
}

fn not_found(file: &Wanted, call: &Call, why: &'static str) -> Error {
    Error::ModuleNotFound {
        file: file.path.clone(),
        line: call.line,
        module: call.module.clone(),
        source_path: call.source.clone(),
        why,
    }
}

#[cfg(test)]
mod tests;
