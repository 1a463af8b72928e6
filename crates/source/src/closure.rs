//! Which files of a tree a module needs. Pure: the contents come from outside, in rounds.
//!
//! Every folder in the closure goes in with all below it, since a module may read any of it
//! (`file("${path.module}/templates/x")`), except what an engine leaves behind (see `select`).

mod select;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::{
    error::Error,
    module::facts::{Call, Facts, Unclear},
    repopath,
    tree::{Astray, Entry, Found, Kind, Steps, Tree},
};

/// Modules of a closure. Links that lead in circles would otherwise make them without end.
const MODULES: usize = 2_000;
/// Configuration files that are read.
const FILES: usize = 2_000;

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
///
/// A closure that exceeds its bounds, or has a file that cannot be followed, becomes the whole repository: nothing is refused for its
/// syntax.
pub(crate) struct Closure {
    tree: Arc<Tree>,
    commit: String,
    root: String,
    /// Modules seen, by the path their sources are relative to; the value is the folder it really is.
    modules: BTreeMap<String, String>,
    /// Modules whose files were not asked for yet.
    unread: Vec<String>,
    /// Files and bytes of configuration read so far.
    files: usize,
    bytes: u64,
    /// Folders that go in with all below them.
    folders: BTreeSet<String>,
    /// Links and files outside of those folders that go in.
    singles: BTreeSet<String>,
    /// Submodules that something leads into, where they are to be fetched.
    entered: BTreeSet<String>,
    submodules: bool,
    backend: Option<String>,
    /// Why the whole repository goes in.
    whole: Option<String>,
    steps: Steps,
}

/// Bounds of a selection.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    /// Files and links.
    pub(crate) files: u64,
    /// Bytes of the files.
    pub(crate) bytes: u64,
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
    /// Why the whole repository goes in, if it does.
    pub(crate) whole: Option<String>,
}

impl Closure {
    /// Bytes of configuration that are read.
    pub(crate) const BYTES: u64 = 8 << 20;

    /// A closure with nothing in it. `submodules`: whether paths may lead into submodules.
    pub(crate) fn new(tree: Arc<Tree>, commit: &str, submodules: bool) -> Self {
        Self {
            tree,
            commit: commit.to_owned(),
            root: String::new(),
            modules: BTreeMap::new(),
            unread: Vec::new(),
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

    /// Starts at the module at `root`, with further paths that are wanted for reasons of their own.
    pub(crate) fn start(&mut self, root: &str, include: &[String]) -> Result<(), Error> {
        root.clone_into(&mut self.root);
        match self.enter(root)? {
            Found::Folder(folder) => self.add_module(root.to_owned(), folder),
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
        let mut wanted = Vec::new();
        for module in std::mem::take(&mut self.unread) {
            let folder = self.modules.get(&module);
            let paths = folder.map(|folder| self.tree.configuration(folder).to_vec());
            for path in paths.unwrap_or_default() {
                let Some((object, size)) = self.content(&path) else {
                    continue;
                };
                if self.files == FILES {
                    self.take_whole(&path, "more configuration files than are followed");
                    return wanted;
                }
                self.files += 1;
                if self.bytes + size > Self::BYTES {
                    self.take_whole(&path, "more configuration than is followed");
                    continue;
                }
                self.bytes += size;
                wanted.push(Wanted {
                    path,
                    object,
                    module: module.clone(),
                });
            }
        }
        wanted
    }

    /// Takes the facts of a wanted file.
    pub(crate) fn supply(&mut self, file: &Wanted, facts: &Facts) -> Result<(), Error> {
        if file.module == self.root && self.backend.is_none() {
            self.backend.clone_from(&facts.backend);
        }
        if let Some(Unclear { line, why }) = &facts.unclear {
            self.take_whole(&format!("{}:{line}", file.path), why);
        }
        facts
            .calls
            .iter()
            .try_for_each(|(source, call)| self.follow_call(file, source, call))
    }

    /// Makes the closure the whole repository; what was found so far stays. The first reason is kept.
    fn take_whole(&mut self, place: &str, why: &str) {
        self.unread.clear();
        self.whole.get_or_insert_with(|| format!("{place}: {why}"));
    }

    /// Where `path` leads; the links on the way go in.
    fn enter(&mut self, path: &str) -> Result<Found, Error> {
        match self.tree.follow(path, &self.steps) {
            Ok(followed) => {
                self.singles.extend(followed.links);
                Ok(followed.found)
            }
            Err(Astray::Missing) => Err(Error::PathNotFound {
                path: path.to_owned(),
                commit: self.commit.clone(),
            }),
            Err(Astray::Outside) => Err(invalid_path(
                path,
                "leads out of the repository through a link",
            )),
            Err(Astray::Loop) => Err(invalid_path(path, "leads in circles through links")),
            Err(Astray::TooLong) => Err(invalid_path(path, "passes too many folders and links")),
        }
    }

    fn add_module(&mut self, path: String, folder: String) {
        if self.modules.contains_key(&path) {
            return;
        }
        self.folders.insert(folder.clone());
        if self.modules.len() == MODULES {
            self.take_whole(&path, "more modules than are followed");
        } else if self.whole.is_none() {
            self.modules.insert(path.clone(), folder);
            self.unread.push(path);
        }
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

    /// Object id and size of a file, or of the file that a link leads to.
    fn content(&self, path: &str) -> Option<(String, u64)> {
        let entry = self.tree.get(path)?;
        let real = match entry.kind {
            Kind::File { .. } => entry,
            Kind::Link => match self.tree.follow(path, &self.steps).ok()?.found {
                Found::File(real) => self.tree.get(&real)?,
                Found::Folder(_) | Found::Submodule(_) => return None,
            },
            Kind::Submodule => return None,
        };
        Some((real.object.clone(), real.size))
    }

    fn follow_call(&mut self, file: &Wanted, source: &str, call: &Call) -> Result<(), Error> {
        let not_found = |why| not_found(file, source, call, why);
        let leaves = || leaves(file, source, call);
        let path = repopath::join(&file.module, source).ok_or_else(leaves)?;
        let followed = match self.tree.follow(&path, &self.steps) {
            Ok(followed) => followed,
            Err(Astray::Outside) => return Err(leaves()),
            Err(Astray::Missing) => return Err(not_found("")),
            Err(Astray::Loop) => return Err(not_found(" (its links lead in circles)")),
            Err(Astray::TooLong) => {
                self.take_whole(&file.path, "paths that pass too many folders and links");
                return Ok(());
            }
        };
        match followed.found {
            Found::Folder(folder) => {
                self.singles.extend(followed.links);
                self.add_module(path, folder);
                Ok(())
            }
            Found::File(_) => Err(not_found(" (it is a file)")),
            Found::Submodule(submodule) => self.enter_submodule(submodule, || {
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

fn leaves(file: &Wanted, source: &str, call: &Call) -> Error {
    Error::PathLeavesRepository {
        file: file.path.clone(),
        line: call.line,
        module: call.module.clone(),
        source_path: source.to_owned(),
    }
}

fn not_found(file: &Wanted, source: &str, call: &Call, why: &'static str) -> Error {
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
