//! Selects the files of a context from the folders that the module needs, and excludes files that a context must not contain. Performs no I/O.

use std::collections::{BTreeMap, BTreeSet};

use super::{Closure, ContextLimits, Selection, invalid_path};
use crate::{
    error::Error,
    module, repopath,
    tree::{Entry, Kind, Target, Unresolvable},
    unpack::MAX_PATH_BYTES,
};

/// Maximum number of characters of a path in the error message for a path that is too long.
const SHOWN: usize = 100;

impl Closure {
    /// Returns the selected files. Must be called after [`Closure::files_to_read`] has returned an empty list.
    pub(crate) fn finish(&self, limits: ContextLimits) -> Result<Selection, Error> {
        let mut entries = BTreeMap::new();
        let mut submodules = BTreeSet::new();
        if self.submodules {
            submodules.extend(self.entered.iter().cloned());
        }
        for (path, entry) in self.candidates().filter(|(path, _)| !is_left_out(path)) {
            match check_name(path) {
                Err(error) if self.is_needed(path) => return Err(error),
                Err(_) => continue,
                Ok(()) => {}
            }
            if entry.kind != Kind::Submodule {
                entries.insert(path.clone(), entry.clone());
            } else if self.is_needed(path) {
                submodules.insert(path.clone());
            }
        }
        check_limits(&entries, limits)?;
        // A link may point into a submodule that is not fetched yet. Links are therefore checked only when no submodule is missing.
        if !self.submodules || submodules.is_empty() {
            self.check_links(&mut entries)?;
        }
        Ok(Selection {
            entries,
            submodules: submodules.into_iter().collect(),
            backend: self.backend.clone(),
            whole: self.whole.clone(),
        })
    }

    /// Returns the entries of the tree from which the files are selected.
    fn candidates(&self) -> Box<dyn Iterator<Item = (&String, &Entry)> + '_> {
        if self.whole.is_some() {
            return Box::new(self.tree.below(""));
        }
        let outermost = self
            .folders
            .iter()
            .filter(|folder| folder.is_empty() || !self.is_inside(repopath::parent(folder)));
        let singles = self
            .singles
            .iter()
            .filter_map(|path| Some((path, self.tree.get(path)?)));
        Box::new(
            outermost
                .flat_map(|folder| self.tree.below(folder))
                .chain(singles),
        )
    }

    /// Whether the module requires `path`. If the closure is the whole repository, the module requires only the included folders, files and links;
    /// otherwise, it requires every selected path. An invalid file is an error if the module requires it, and is skipped otherwise.
    fn is_needed(&self, path: &str) -> bool {
        self.whole.is_none() || self.singles.contains(path) || self.is_inside(path)
    }

    /// Whether `path` is an included folder, or below an included folder.
    fn is_inside(&self, path: &str) -> bool {
        let mut path = path;
        loop {
            if self.folders.contains(path) {
                return true;
            }
            if path.is_empty() {
                return false;
            }
            path = repopath::parent(path);
        }
    }

    fn check_links(&self, entries: &mut BTreeMap<String, Entry>) -> Result<(), Error> {
        let mut astray = Vec::new();
        let links = entries.iter().filter(|(_, entry)| entry.kind == Kind::Link);
        for (link, _) in links {
            match self.check_link(link, entries) {
                Err(error) if self.is_needed(link) => return Err(error),
                Err(_) => astray.push(link.clone()),
                Ok(()) => {}
            }
        }
        for link in astray {
            entries.remove(&link);
        }
        Ok(())
    }

    /// Checks that the context contains the target of `link` and all links on the way to the target.
    fn check_link(&self, link: &str, entries: &BTreeMap<String, Entry>) -> Result<(), Error> {
        let refuse = |why| Error::SymlinkLeavesContext {
            link: link.to_owned(),
            target: self.tree.link(link).unwrap_or_default().to_owned(),
            why,
        };
        let followed = self.tree.follow(link, &self.steps).map_err(|astray| {
            refuse(match astray {
                Unresolvable::Missing => "is dangling",
                Unresolvable::Outside => "leads out of the repository",
                Unresolvable::Loop => "is part of a cycle of symbolic links",
                Unresolvable::TooLong => "resolves through too many folders and symbolic links",
            })
        })?;
        let inside = match &followed.target {
            Target::File(file) => entries.contains_key(file),
            Target::Folder(folder) => {
                !is_left_out(folder) && (self.whole.is_some() || self.is_inside(folder))
            }
            Target::Submodule(_) => {
                return Err(refuse(
                    "points into a git submodule; a symbolic link does not cause a submodule to be fetched",
                ));
            }
        };
        let passed = followed.links.iter().all(|link| entries.contains_key(link));
        if inside && passed {
            Ok(())
        } else {
            Err(refuse("points outside of the files of the module"))
        }
    }
}

fn check_limits(entries: &BTreeMap<String, Entry>, limits: ContextLimits) -> Result<(), Error> {
    let bytes = entries.values().map(|entry| entry.size).sum();
    let files = entries.len() as u64;
    for (size, unit, limit) in [
        (bytes, "bytes", limits.bytes),
        (files, "files", limits.files),
        (folders(entries), "folders", limits.folders),
    ] {
        if size > limit {
            return Err(Error::ContextTooLarge { size, unit, limit });
        }
    }
    Ok(())
}

/// Returns the number of folders that contain `entries`. The paths are sorted, so the entries of a folder are adjacent. Each `/` after the
/// common prefix with the previous path therefore belongs to a new folder.
fn folders(entries: &BTreeMap<String, Entry>) -> u64 {
    let mut before = "";
    let mut count = 0;
    for path in entries.keys() {
        let shared = path
            .bytes()
            .zip(before.bytes())
            .take_while(|(byte, other)| byte == other)
            .count();
        let separators = path.bytes().skip(shared).filter(|byte| *byte == b'/');
        count += separators.count() as u64;
        before = path;
    }
    count
}

/// Whether git or an engine creates files with this path: `.git`, `.terraform`, `*.tfstate*`. Such files are not part of a module.
fn is_left_out(path: &str) -> bool {
    let state = |part: &str| part.contains(".tfstate") && !module::is_configuration(part);
    path.split('/')
        .any(|part| part.eq_ignore_ascii_case(".git") || part == ".terraform" || state(part))
}

/// Refuses paths that could leave the folder into which the context is unpacked, or that cannot be unpacked. Trees come from the network
/// and are untrusted.
fn check_name(path: &str) -> Result<(), Error> {
    if path.len() > MAX_PATH_BYTES {
        let beginning: String = path.chars().take(SHOWN).collect();
        return Err(Error::PathTooLong {
            beginning: beginning.escape_debug().to_string(),
            size: path.len(),
            limit: MAX_PATH_BYTES,
        });
    }
    if path.split('/').any(|part| ["", ".", ".."].contains(&part)) {
        return Err(invalid_path(path, "is not a valid git path"));
    }
    if path.contains([char::REPLACEMENT_CHARACTER, '\0']) {
        return Err(invalid_path(path, "is not UTF-8"));
    }
    Ok(())
}
