//! Selects the files of a context from the folders that the module needs, and excludes files that a context must not contain. Performs no I/O.

use std::collections::{BTreeMap, BTreeSet};

use super::{Closure, ContextLimits, Selection, invalid_path};
use crate::{
    error::Error,
    module, repopath,
    tree::{Entry, Followed, Kind, Target, Unresolvable},
    unpack::MAX_PATH_BYTES,
};

/// Maximum number of characters of a path in the error message for a path that is too long.
const SHOWN: usize = 100;

impl Closure {
    /// Returns the selected files. Must be called after [`Closure::files_to_read`] has returned an empty list.
    pub(crate) fn finish(&self, limits: ContextLimits) -> Result<Selection, Error> {
        let mut files = Files::default();
        if self.submodules {
            files.submodules.extend(self.entered.iter().cloned());
        }
        for (path, entry) in self.candidates() {
            self.select(path, entry, &mut files)?;
        }
        check_limits(&files.entries, limits)?;
        // A link may point into a submodule that is not fetched yet. Links are therefore followed only when no submodule is missing.
        if !self.submodules || files.submodules.is_empty() {
            self.follow_links(&mut files)?;
            check_limits(&files.entries, limits)?;
        }
        Ok(Selection {
            entries: files.entries,
            submodules: files.submodules.into_iter().collect(),
            backend: self.backend.clone(),
            whole: self.whole.clone(),
        })
    }

    /// Adds an entry of the tree to `files`, unless a context must not contain the entry.
    fn select(&self, path: &str, entry: &Entry, files: &mut Files) -> Result<(), Error> {
        if is_left_out(path) || files.entries.contains_key(path) {
            return Ok(());
        }
        match check_name(path) {
            Err(error) if self.is_needed(path) => return Err(error),
            Err(_) => return Ok(()),
            Ok(()) => {}
        }
        if entry.kind == Kind::Submodule {
            if self.is_needed(path) {
                files.submodules.insert(path.to_owned());
            }
            return Ok(());
        }
        if entry.kind == Kind::Link {
            files.links.push(path.to_owned());
        }
        files.entries.insert(path.to_owned(), entry.clone());
        Ok(())
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
        is_within_any(path, &self.folders)
    }

    /// Adds the target of each link to `files`, with the links on the way to the target. Removes a link without a target: the engine does not find
    /// the file either.
    fn follow_links(&self, files: &mut Files) -> Result<(), Error> {
        while let Some(link) = files.links.pop() {
            let followed = match self.link_target(&link) {
                Ok(followed) => followed,
                Err(broken) if self.is_needed(&link) && self.is_refused(&link, broken) => {
                    return Err(self.refusal(&link, broken));
                }
                Err(_) => {
                    files.entries.remove(&link);
                    continue;
                }
            };
            let Followed { target, links } = followed;
            for path in links {
                self.select_path(&path, files)?;
            }
            match target {
                Target::Folder(folder) => self.select_folder(&link, folder, files)?,
                Target::File(path) | Target::Submodule(path) => self.select_path(&path, files)?,
            }
        }
        Ok(())
    }

    fn select_path(&self, path: &str, files: &mut Files) -> Result<(), Error> {
        self.tree
            .get(path)
            .map_or(Ok(()), |entry| self.select(path, entry, files))
    }

    /// Adds the files in `folder`, which is the target of `link`.
    fn select_folder(&self, link: &str, folder: String, files: &mut Files) -> Result<(), Error> {
        if self.whole.is_some() || self.is_inside(&folder) || is_within_any(&folder, &files.folders)
        {
            return Ok(());
        }
        for (path, entry) in self.tree.below(&folder) {
            let steps = self.steps.take(path.len());
            steps.map_err(|_| self.refusal(link, Broken::TooLong))?;
            self.select(path, entry, files)?;
        }
        files.folders.insert(folder);
        Ok(())
    }

    /// Resolves a link. Fails if the context cannot contain the target, or a link on the way to the target.
    fn link_target(&self, link: &str) -> Result<Followed, Broken> {
        let followed = self.tree.follow(link, &self.steps)?;
        match &followed.target {
            Target::Submodule(_) => return Err(Broken::Submodule),
            Target::File(path) | Target::Folder(path) if is_left_out(path) => {
                return Err(Broken::LeftOut);
            }
            Target::File(_) | Target::Folder(_) => {}
        }
        if followed.links.iter().any(|link| is_left_out(link)) {
            return Err(Broken::LeftOut);
        }
        Ok(followed)
    }

    /// Whether the module is refused because of a link without a target: if the link leads out of the repository, or if the engine reads the file.
    fn is_refused(&self, link: &str, broken: Broken) -> bool {
        let folder = repopath::parent(link);
        match broken {
            Broken::Outside | Broken::TooLong => true,
            Broken::Submodule if folder == self.root && is_variables(link) => true,
            Broken::Submodule | Broken::Missing | Broken::Loop | Broken::LeftOut => {
                module::is_configuration(link) && self.modules.contains(folder)
            }
        }
    }

    fn refusal(&self, link: &str, broken: Broken) -> Error {
        Error::SymlinkLeavesContext {
            link: link.to_owned(),
            target: self.tree.link(link).unwrap_or_default().to_owned(),
            why: match broken {
                Broken::Missing => "is dangling",
                Broken::Outside => "leads out of the repository",
                Broken::Loop => "is part of a cycle of symbolic links",
                Broken::TooLong => "resolves through too many folders and symbolic links",
                Broken::Submodule => {
                    "points into a git submodule; a symbolic link does not cause a submodule to be fetched"
                }
                Broken::LeftOut => "points to a file that git or an engine creates",
            },
        }
    }
}

/// Selected files.
#[derive(Default)]
struct Files {
    entries: BTreeMap<String, Entry>,
    /// Links in `entries` that have not been followed.
    links: Vec<String>,
    submodules: BTreeSet<String>,
    /// Targets of links: folders that are included completely.
    folders: BTreeSet<String>,
}

/// Reasons for which a symbolic link has no target in the context.
#[derive(Clone, Copy)]
enum Broken {
    Missing,
    Outside,
    Loop,
    TooLong,
    Submodule,
    LeftOut,
}

impl From<Unresolvable> for Broken {
    fn from(reason: Unresolvable) -> Self {
        match reason {
            Unresolvable::Missing => Self::Missing,
            Unresolvable::Outside => Self::Outside,
            Unresolvable::Loop => Self::Loop,
            Unresolvable::TooLong => Self::TooLong,
        }
    }
}

/// Whether `path` is one of `folders`, or below one of them.
fn is_within_any(path: &str, folders: &BTreeSet<String>) -> bool {
    let mut path = path;
    loop {
        if folders.contains(path) {
            return true;
        }
        if path.is_empty() {
            return false;
        }
        path = repopath::parent(path);
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

/// Whether the engine may read variables from the file.
fn is_variables(path: &str) -> bool {
    [".tfvars", ".tfvars.json"]
        .iter()
        .any(|end| path.ends_with(end))
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
