//! Computes the closures of modules in a folder on disk. `cargo xtask corpus` compares them with the module calls that the engine finds, and the
//! runner finds the modules of a wrapper.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use alustan_api::WrapperName;

use crate::{
    closure::{Closure, ContextLimits},
    error::Error,
    module, repopath,
    tree::{Steps, Target, Tree},
};

/// Limits of a context that no repository exceeds.
const UNLIMITED: ContextLimits = ContextLimits {
    files: u64::MAX,
    folders: u64::MAX,
    bytes: u64::MAX,
};

/// Files of a repository in a folder on disk.
#[derive(Debug)]
pub struct Repository {
    folder: PathBuf,
    tree: Arc<Tree>,
}

/// Local modules of a root module.
#[derive(Debug)]
pub struct LocalModules {
    /// File and line of the first call of each module, by the folder of the module from the root of the repository.
    pub calls: BTreeMap<String, String>,
    /// Reason for which the closure is the whole repository, if it is. `calls` may then be incomplete.
    pub whole: Option<String>,
}

impl Repository {
    /// Lists the files in `folder`, without `.git` and `.terraform`.
    ///
    /// # Errors
    /// [`io::Error`] if a folder or a symbolic link cannot be read.
    pub fn read(folder: &Path) -> io::Result<Self> {
        let mut listing = Vec::new();
        let mut links = Vec::new();
        let mut unread = vec![String::new()];
        while let Some(parent) = unread.pop() {
            for entry in std::fs::read_dir(folder.join(&parent))? {
                let entry = entry?;
                let path = format!("{parent}{}", entry.file_name().to_string_lossy());
                let metadata = entry.metadata()?;
                if metadata.is_dir() {
                    if ![".git", ".terraform"].contains(&repopath::name(&path)) {
                        unread.push(format!("{path}/"));
                    }
                    continue;
                }
                let mode = if metadata.is_symlink() {
                    let target = std::fs::read_link(entry.path())?;
                    links.push((path.clone(), target.to_string_lossy().into_owned()));
                    "120000"
                } else if metadata.permissions().mode() & 0o100 == 0 {
                    "100644"
                } else {
                    "100755"
                };
                listing.push(format!("{mode} blob - {}\t{path}\0", metadata.len()));
            }
        }
        let mut tree = Tree::read(listing.concat().as_bytes()).unwrap_or_default();
        for (path, target) in links {
            tree.set_link(path, target);
        }
        Ok(Self {
            folder: folder.to_owned(),
            tree: Arc::new(tree),
        })
    }

    /// Returns the folders with configuration files. The engine accepts each of them as a root module.
    pub fn root_modules(&self) -> impl Iterator<Item = &str> {
        self.tree.configuration_folders()
    }

    /// Returns the local modules that the root module `root` calls, directly or through other local modules.
    ///
    /// # Errors
    /// [`Error`] if the closure refuses the module, or if a file cannot be read.
    pub fn local_modules(&self, root: &str) -> Result<LocalModules, Error> {
        let mut closure = Closure::new(self.tree.clone(), false);
        closure.start(root, &[], None)?;
        let mut locations = BTreeMap::new();
        loop {
            let requests = closure.files_to_read();
            if requests.is_empty() {
                break;
            }
            for file in requests {
                let text = std::fs::read(self.folder.join(&file.path)).unwrap_or_default();
                let facts = module::read(&file.path, &text);
                for (source, call) in &facts.calls {
                    if let Some(folder) = self.folder_of(&file.module, source) {
                        let location = || format!("{}:{}", file.path, call.line);
                        locations.entry(folder).or_insert_with(location);
                    }
                }
                closure.supply(&file, &facts)?;
            }
        }
        let called = closure.module_folders().filter(|folder| *folder != root);
        let calls = called.map(|folder| {
            let location = locations.get(folder).cloned();
            (folder.to_owned(), location.unwrap_or_default())
        });
        Ok(LocalModules {
            calls: calls.collect(),
            whole: closure.finish(UNLIMITED)?.whole,
        })
    }

    /// Returns the folders of the local modules that the configuration of `wrapper` in the folder `root` names.
    ///
    /// # Errors
    /// [`Error`] if the folder does not exist.
    pub fn local_modules_of_wrapper(
        &self,
        root: &str,
        wrapper: WrapperName,
    ) -> Result<BTreeSet<String>, Error> {
        let mut closure = Closure::new(self.tree.clone(), false);
        closure.start(root, &[], Some(wrapper))?;
        loop {
            let requests = closure.files_to_read();
            if requests.is_empty() {
                return Ok(closure.into_sources());
            }
            for file in requests {
                let text = std::fs::read(self.folder.join(&file.path)).unwrap_or_default();
                let facts = module::read(&file.path, &text);
                // The engine reports a module that does not exist.
                let _ = closure.supply(&file, &facts);
            }
        }
    }

    /// Returns the folder to which `source` leads from the folder `module`; `None` if there is no such folder.
    fn folder_of(&self, module: &str, source: &str) -> Option<String> {
        let path = repopath::join(module, source)?;
        match self.tree.follow(&path, &Steps::default()).ok()?.target {
            Target::Folder(folder) => Some(folder),
            Target::File(_) | Target::Submodule(_) => None,
        }
    }
}
