//! Files of a commit, as listed by `git ls-tree`. Resolves paths through symbolic links. Performs no I/O.

use std::cell::Cell;
use std::collections::{BTreeMap, VecDeque};
use std::sync::OnceLock;

use crate::{module, repopath};

/// Type of a tree entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// A file, with its executable bit.
    File { executable: bool },
    /// A symbolic link.
    Link,
    /// A submodule: a commit of another repository.
    Submodule,
}

/// An entry of a tree.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    pub(crate) kind: Kind,
    /// Object id of the content.
    pub(crate) object: String,
    /// Size of the content, in bytes.
    pub(crate) size: u64,
}

/// Entries of a commit by path. Paths that are not UTF-8 contain replacement characters.
#[derive(Clone, Debug, Default)]
pub(crate) struct Tree {
    entries: BTreeMap<String, Entry>,
    /// Link targets by path.
    links: BTreeMap<String, String>,
    /// Configuration files by folder, computed on first use.
    configuration: OnceLock<BTreeMap<String, Vec<String>>>,
}

/// Target of a path after all links are followed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Target {
    /// A file at this path.
    File(String),
    /// A folder at this path.
    Folder(String),
    /// The submodule at this path, or a path in it.
    Submodule(String),
}

/// Reasons for which a path has no target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unresolvable {
    /// The path does not exist.
    Missing,
    /// The path leaves the repository, or a symbolic link in the path has an absolute target.
    Outside,
    /// The path contains too many symbolic links, for example a cycle.
    Loop,
    /// The limit of [`Steps`] is reached.
    TooLong,
}

/// Limits the work of resolving paths in a tree. Resolving a folder or symbolic link takes a number of steps that is proportional to the length of
/// its path.
pub(crate) struct Steps(Cell<u64>);

impl Default for Steps {
    fn default() -> Self {
        Self(Cell::new(4_000_000))
    }
}

impl Steps {
    /// Number of bytes of a path per step.
    const BYTES: u64 = 64;

    /// Subtracts the steps of a path of `bytes` bytes from the remaining steps. Fails if too few steps remain.
    pub(crate) fn take(&self, bytes: usize) -> Result<(), Unresolvable> {
        let steps = 1 + bytes as u64 / Self::BYTES;
        let remaining = self
            .0
            .get()
            .checked_sub(steps)
            .ok_or(Unresolvable::TooLong)?;
        self.0.set(remaining);
        Ok(())
    }
}

/// Target of a resolved path, and the symbolic links that were followed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Followed {
    pub(crate) target: Target,
    pub(crate) links: Vec<String>,
}

impl Tree {
    /// Parses the output of `git ls-tree -r -l -z`; `None` if the format differs.
    pub(crate) fn read(listing: &[u8]) -> Option<Self> {
        let entries = listing
            .split(|byte| *byte == 0)
            .filter(|line| !line.is_empty())
            .map(read_line)
            .collect::<Option<BTreeMap<_, _>>>()?;
        Some(Self {
            entries,
            ..Self::default()
        })
    }

    /// Returns the tree of files with their executable bits and sizes, without object ids.
    pub(crate) fn of_files(files: impl Iterator<Item = (String, bool, u64)>) -> Self {
        let entries = files.map(|(path, executable, size)| {
            let entry = Entry {
                kind: Kind::File { executable },
                object: String::new(),
                size,
            };
            (path, entry)
        });
        Self {
            entries: entries.collect(),
            ..Self::default()
        }
    }

    /// Returns the entry at `path`. Does not resolve symbolic links.
    pub(crate) fn get(&self, path: &str) -> Option<&Entry> {
        self.entries.get(path)
    }

    /// Returns the number of entries.
    pub(crate) fn count(&self) -> usize {
        self.entries.len()
    }

    /// Returns path and entry of each symbolic link whose target has not been set.
    pub(crate) fn unread_links(&self) -> impl Iterator<Item = (&String, &Entry)> {
        self.entries
            .iter()
            .filter(|(path, entry)| entry.kind == Kind::Link && !self.links.contains_key(*path))
    }

    /// Sets the target of a link.
    pub(crate) fn set_link(&mut self, path: String, target: String) {
        self.links.insert(path, target);
    }

    /// Returns the unresolved target of the link at `path`.
    pub(crate) fn link(&self, path: &str) -> Option<&str> {
        self.links.get(path).map(String::as_str)
    }

    /// Returns the configuration files of `folder`, without the files of its subfolders.
    pub(crate) fn configuration(&self, folder: &str) -> &[String] {
        self.configuration_by_folder()
            .get(folder)
            .map_or(&[], Vec::as_slice)
    }

    /// Returns the folders that contain configuration files.
    pub(crate) fn configuration_folders(&self) -> impl Iterator<Item = &str> {
        self.configuration_by_folder().keys().map(String::as_str)
    }

    fn configuration_by_folder(&self) -> &BTreeMap<String, Vec<String>> {
        self.configuration.get_or_init(|| {
            let mut files_by_folder = BTreeMap::<String, Vec<String>>::new();
            for path in self
                .entries
                .keys()
                .filter(|path| module::is_configuration(path))
            {
                let folder = repopath::parent(path).to_owned();
                files_by_folder
                    .entry(folder)
                    .or_default()
                    .push(path.clone());
            }
            files_by_folder
        })
    }

    /// Replaces the submodule at `path` with the files of its commit.
    pub(crate) fn graft(&mut self, path: &str, submodule: Self) {
        self.configuration.take();
        self.entries.remove(path);
        let below = |inner: String| format!("{path}/{inner}");
        let entries = submodule.entries.into_iter();
        self.entries
            .extend(entries.map(|(inner, entry)| (below(inner), entry)));
        let links = submodule.links.into_iter();
        self.links
            .extend(links.map(|(inner, target)| (below(inner), target)));
    }

    /// Returns all entries below `folder`.
    pub(crate) fn below(&self, folder: &str) -> impl Iterator<Item = (&String, &Entry)> {
        let prefix = if folder.is_empty() {
            String::new()
        } else {
            format!("{folder}/")
        };
        let range = self.entries.range::<str, _>((
            std::ops::Bound::Included(prefix.as_str()),
            std::ops::Bound::Unbounded,
        ));
        range.take_while(move |(path, _)| path.starts_with(&prefix))
    }

    fn is_folder(&self, path: &str) -> bool {
        path.is_empty() || self.below(path).next().is_some()
    }

    /// Resolves `path` from the root of the repository. Follows every symbolic link, as the kernel does.
    pub(crate) fn follow(&self, path: &str, steps: &Steps) -> Result<Followed, Unresolvable> {
        const LINKS: usize = 40;
        steps.take(path.len())?;
        let mut links = Vec::new();
        let mut ahead: VecDeque<String> = path.split('/').map(str::to_owned).collect();
        let mut current = String::new();
        while let Some(part) = ahead.pop_front() {
            if part.is_empty() || part == "." {
                continue;
            }
            let next = repopath::join(&current, &part).ok_or(Unresolvable::Outside)?;
            steps.take(next.len())?;
            match self.get(&next).map(|entry| entry.kind) {
                Some(Kind::Link) => {
                    let target = self
                        .link(&next)
                        .filter(|target| !target.is_empty())
                        .ok_or(Unresolvable::Missing)?;
                    links.push(next.clone());
                    steps.take(target.len())?;
                    if target.starts_with('/') {
                        return Err(Unresolvable::Outside);
                    }
                    if links.len() > LINKS {
                        return Err(Unresolvable::Loop);
                    }
                    target
                        .rsplit('/')
                        .for_each(|part| ahead.push_front(part.to_owned()));
                }
                Some(Kind::Submodule) => {
                    return Ok(Followed {
                        target: Target::Submodule(next),
                        links,
                    });
                }
                Some(Kind::File { .. }) if ahead.iter().all(String::is_empty) => {
                    return Ok(Followed {
                        target: Target::File(next),
                        links,
                    });
                }
                None if self.is_folder(&next) => current = next,
                Some(Kind::File { .. }) | None => return Err(Unresolvable::Missing),
            }
        }
        Ok(Followed {
            target: Target::Folder(current),
            links,
        })
    }
}

/// Parses `<mode> <type> <object> <size>\t<path>`. The size is padded with spaces; for submodules, it is `-`.
fn read_line(line: &[u8]) -> Option<(String, Entry)> {
    let tab = line.iter().position(|byte| *byte == b'\t')?;
    let head = std::str::from_utf8(line.get(..tab)?).ok()?;
    let path = line.get(tab + 1..)?;
    let mut words = head.split_ascii_whitespace();
    let (mode, _, object, size) = (words.next()?, words.next()?, words.next()?, words.next()?);
    let kind = match mode {
        "100644" | "100664" => Kind::File { executable: false },
        "100755" => Kind::File { executable: true },
        "120000" => Kind::Link,
        "160000" => Kind::Submodule,
        _ => return None,
    };
    let size = if kind == Kind::Submodule {
        0
    } else {
        size.parse().ok()?
    };
    let path = String::from_utf8_lossy(path).into_owned();
    Some((
        path,
        Entry {
            kind,
            object: object.to_owned(),
            size,
        },
    ))
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// Builds a tree of files (the object id is derived from the path), `path -> target` links and `path @` submodules.
    pub(crate) fn tree(lines: &[&str]) -> Tree {
        let mut tree = Tree::default();
        for line in lines {
            let (path, kind) = if let Some((path, target)) = line.split_once(" -> ") {
                tree.set_link(path.to_owned(), target.to_owned());
                (path, Kind::Link)
            } else if let Some(path) = line.strip_suffix(" @") {
                (path, Kind::Submodule)
            } else {
                (*line, Kind::File { executable: false })
            };
            let entry = Entry {
                kind,
                object: format!("object of {path}"),
                size: 1,
            };
            tree.entries.insert(path.to_owned(), entry);
        }
        tree
    }

    #[test]
    fn ls_tree_listing_is_parsed() {
        let listing = b"100644 blob aa       5\tmain.tf\x00100755 blob bb 12\ta/run.sh\x00120000 blob cc 3\ta/l\x00160000 commit dd       -\tsub\x00";
        let tree = Tree::read(listing).unwrap();
        assert_eq!(tree.get("main.tf").unwrap().size, 5);
        assert_eq!(
            tree.get("a/run.sh").unwrap().kind,
            Kind::File { executable: true }
        );
        assert_eq!(tree.get("sub").unwrap().kind, Kind::Submodule);
        assert_eq!(tree.unread_links().count(), 1);
        assert!(Tree::read(b"nonsense").is_none());
        assert!(Tree::read(b"").unwrap().below("").next().is_none());
    }

    #[test]
    fn submodule_is_replaced_by_its_files() {
        let mut whole = tree(&["a/main.tf", "a/sub @", "z"]);
        whole.graft("a/sub", tree(&["x/main.tf", "l -> x"]));
        let target = |path| {
            whole
                .follow(path, &Steps::default())
                .map(|followed| followed.target)
        };
        assert_eq!(
            target("a/sub/l/main.tf"),
            Ok(Target::File("a/sub/x/main.tf".into()))
        );
        assert_eq!(whole.below("a").count(), 3);
        assert!(whole.get("a/sub").is_none());
    }

    #[test]
    fn below_compares_whole_path_components() {
        let tree = tree(&["a/x", "a/y/z", "ab/x", "a.b"]);
        let below = |folder| {
            tree.below(folder)
                .map(|(path, _)| path.as_str())
                .collect::<Vec<_>>()
        };
        assert_eq!(below("a"), ["a/x", "a/y/z"]);
        assert_eq!(below("").len(), 4);
    }

    #[test]
    fn paths_are_followed_through_links() {
        let tree = tree(&[
            "m/real/main.tf",
            "m/link -> real",
            "x/up -> ../m/link",
            "sub @",
            "f -> m/real/main.tf",
        ]);
        let target = |path| {
            tree.follow(path, &Steps::default())
                .map(|followed| followed.target)
        };
        assert_eq!(target("m/link"), Ok(Target::Folder("m/real".into())));
        assert_eq!(
            target("x/up/main.tf"),
            Ok(Target::File("m/real/main.tf".into()))
        );
        assert_eq!(target("f"), Ok(Target::File("m/real/main.tf".into())));
        assert_eq!(target("sub/x"), Ok(Target::Submodule("sub".into())));
        assert_eq!(target(""), Ok(Target::Folder(String::new())));
        assert_eq!(target("m/real/main.tf/x"), Err(Unresolvable::Missing));
        assert_eq!(target("nothing"), Err(Unresolvable::Missing));
        assert_eq!(
            tree.follow("x/up", &Steps::default()).unwrap().links,
            ["x/up", "m/link"]
        );
    }

    #[test]
    fn steps_along_a_path_are_limited() {
        let tree = tree(&["a/main.tf"]);
        let steps = Steps::default();
        // `follow` takes one step per 64 bytes of the path, and one step per 64 bytes of the only component of the path: two million steps. The
        // limit is four million steps, so the second call fails.
        let long = "x".repeat(64 << 20);
        assert_eq!(tree.follow(&long, &steps), Err(Unresolvable::Missing));
        assert_eq!(tree.follow(&long, &steps), Err(Unresolvable::TooLong));
        let follow = |steps| tree.follow("a/main.tf", &Steps(Cell::new(steps)));
        assert!(follow(3).is_ok());
        assert_eq!(follow(2), Err(Unresolvable::TooLong));
    }

    #[test]
    fn links_out_of_the_repository_and_loops_are_refused() {
        let tree = tree(&[
            "a/out -> ../../x",
            "abs -> /etc/passwd",
            "p -> q",
            "q -> p",
            "a/b/f",
            "a/b/l -> ../..",
            "deep -> a/b/l/../x",
        ]);
        let target = |path| {
            tree.follow(path, &Steps::default())
                .map(|followed| followed.target)
        };
        assert_eq!(target("a/out"), Err(Unresolvable::Outside));
        assert_eq!(target("abs"), Err(Unresolvable::Outside));
        assert_eq!(target("p"), Err(Unresolvable::Loop));
        assert_eq!(target("a/b/l"), Ok(Target::Folder(String::new())));
        assert_eq!(
            target("deep"),
            Err(Unresolvable::Outside),
            "`..` counts after the link, not before it"
        );
    }
}
