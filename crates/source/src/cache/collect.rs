//! Reads the tree of a commit, and determines the files that the module needs (its closure).

use std::collections::{BTreeSet, HashMap};
use std::{io, ops::Range, path::Path, sync::Arc};

use alustan_api::WrapperName;

use super::{
    commits::Snapshot, facts::KnownFacts, lazy_session::LazySession, options::CacheOptions,
    size::Size,
};
use crate::{
    closure::{Closure, ContextLimits, FileRequest, Selection},
    commit_info::CommitInfo,
    context::Allows,
    error::{Error, GitFailure},
    git::{Bounds, session::cache_error},
    module::{self, facts::Facts},
    reference::CommitId,
    tree::{Entry, Tree},
    url::RepositoryUrl,
};

/// Maximum total size of the targets of all symbolic links of a tree, in bytes.
const LINKS: u64 = 16 << 20;

/// Maximum size of a commit object, in bytes.
const COMMIT: u64 = 1 << 20;

/// Contents of git objects.
#[derive(Default)]
struct Contents {
    /// Output of `git cat-file --batch`.
    output: Vec<u8>,
    /// Byte range of each content in `output`, by object id.
    ranges: HashMap<String, Range<usize>>,
}

impl Contents {
    /// Returns the content of the object with the id `object`; `None` if it was not requested.
    fn get(&self, object: &str) -> Option<&[u8]> {
        self.output.get(self.ranges.get(object)?.clone())
    }
}

/// Parameters of the git calls on one repository of the cache.
pub(super) struct RepositoryCall<'a> {
    pub(super) session: &'a LazySession<'a>,
    /// Folder of the bare repository in the cache.
    pub(super) repository: &'a Path,
    pub(super) options: &'a CacheOptions,
    pub(super) url: &'a RepositoryUrl,
    pub(super) size: Size,
}

/// Module whose files are selected from a commit.
pub(super) struct WantedModule<'a> {
    /// Folder of the root module in the repository; `""` for the root of the repository.
    pub(super) path: &'a str,
    /// Additional files and folders (`gitRepo.include`).
    pub(super) include: &'a [String],
    /// Files with values of variables (`spec.varFiles`), with paths from the folder of the module.
    pub(super) var_files: &'a [String],
    /// Whether to fetch submodules (`gitRepo.submodules`).
    pub(super) submodules: bool,
    /// Wrapper whose configuration determines further files (`engine.wrapper`).
    pub(super) wrapper: Option<WrapperName>,
    /// Returns whether submodules may be fetched from a repository.
    pub(super) allows: Allows<'a>,
}

impl RepositoryCall<'_> {
    /// Returns the tree and the header of `commit`.
    pub(super) async fn snapshot(&self, commit: &CommitId) -> Result<Snapshot, Error> {
        let arguments = ["ls-tree", "-r", "-l", "-z", "--full-tree", commit.as_str()];
        let listing = self
            .local(
                "list the files of",
                &arguments,
                Vec::new(),
                self.size.listing(),
            )
            .await?;
        let bytes = listing.len();
        let mut tree = self
            .unblocked(move || Tree::read(&listing))
            .await?
            .ok_or_else(|| self.nonsense())?;
        let links: Vec<(String, Entry)> = tree
            .unread_links()
            .map(|(path, entry)| (path.clone(), entry.clone()))
            .collect();
        let objects = links.iter().map(|(_, entry)| entry.object.as_str());
        let contents = self
            .contents(objects.chain([commit.as_str()]), LINKS + COMMIT)
            .await?;
        for (path, entry) in links {
            let target = contents
                .get(&entry.object)
                .filter(|target| target.len() <= module::facts::PATH)
                .map(|target| String::from_utf8_lossy(target).into_owned());
            tree.set_link(path, target.unwrap_or_default());
        }
        let commit = contents.get(commit.as_str());
        Ok(Snapshot {
            tree: Arc::new(tree),
            commit: commit.map(CommitInfo::read).unwrap_or_default(),
            bytes,
        })
    }

    /// Returns the files of `tree` that the module needs. `facts` caches the module calls and the backend of each configuration file.
    pub(super) async fn closure(
        &self,
        tree: &Arc<Tree>,
        module: &WantedModule<'_>,
        facts: &KnownFacts,
    ) -> Result<Selection, Error> {
        let (path, include) = (module.path.to_owned(), module.include.to_vec());
        let var_files = module.var_files.to_vec();
        let (tree, submodules) = (tree.clone(), module.submodules);
        let wrapper = module.wrapper;
        let limits = ContextLimits {
            files: self.options.context_files,
            folders: self.options.context_folders,
            bytes: self.options.context_bytes,
        };
        let started = move || {
            let mut closure = Closure::new(tree, submodules);
            closure.start(&path, &include, wrapper)?;
            var_files
                .iter()
                .try_for_each(|file| closure.add_var_file(file))?;
            let requests = closure.files_to_read();
            Ok::<_, Error>((closure, requests))
        };
        let (mut closure, mut requests) = self.unblocked(started).await??;
        while !requests.is_empty() {
            let known: Vec<(Option<Arc<Facts>>, FileRequest)> = requests
                .into_iter()
                .map(|file| (facts.get(&file.path, &file.object), file))
                .collect();
            let unread = known
                .iter()
                .filter(|(facts, _)| facts.is_none())
                .map(|(_, file)| file.object.as_str());
            let most = self.size.configuration();
            let contents = self.contents(unread, most).await?;
            let (facts, nonsense) = (facts.clone(), self.nonsense());
            let supply = move || {
                for (known, file) in &known {
                    let content = contents.get(&file.object);
                    let read =
                        || content.map(|content| facts.read(&file.path, &file.object, content));
                    let Some(facts) = known.clone().or_else(read) else {
                        return Err(nonsense);
                    };
                    closure.supply(file, &facts)?;
                }
                let requests = closure.files_to_read();
                Ok((closure, requests))
            };
            (closure, requests) = self.unblocked(supply).await??;
        }
        self.unblocked(move || closure.finish(limits)).await?
    }

    /// Runs CPU-bound work on a blocking thread.
    pub(super) async fn unblocked<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, Error> {
        tokio::task::spawn_blocking(work)
            .await
            .map_err(|error| cache_error("read", self.repository, io::Error::other(error)))
    }

    /// Returns the contents of objects, at most `limit` bytes in total. Each object is read once.
    async fn contents(
        &self,
        objects: impl Iterator<Item = &str>,
        limit: u64,
    ) -> Result<Contents, Error> {
        let objects: BTreeSet<&str> = objects.collect();
        if objects.is_empty() {
            return Ok(Contents::default());
        }
        // Git adds a header line and a newline to each content.
        let most = limit.saturating_add(objects.len() as u64 * 128);
        let mut input = objects
            .iter()
            .copied()
            .collect::<Vec<_>>()
            .join("\n")
            .into_bytes();
        input.push(b'\n');
        let output = self
            .local("read files of", &["cat-file", "--batch"], input, most)
            .await?;
        read_batch(output).ok_or_else(|| self.nonsense())
    }

    pub(super) async fn local(
        &self,
        action: &'static str,
        arguments: &[&str],
        input: Vec<u8>,
        stdout: u64,
    ) -> Result<Vec<u8>, Error> {
        let bounds = Bounds {
            time: self.options.local_timeout,
            stdout,
            memory: self.size.process(),
        };
        self.session
            .get()
            .await?
            .git(self.repository, action, arguments, input, bounds)
            .await
    }

    /// Returns the error for git output in an unexpected format, which means that the repository of the cache is damaged.
    pub(super) fn nonsense(&self) -> Error {
        Error::Git {
            action: "read the cache of",
            remote: self.url.remote().to_owned(),
            failure: GitFailure::Other,
            detail: "unexpected output".to_owned(),
        }
    }
}

/// Parses the output of `git cat-file --batch`: a sequence of `<object> <type> <size>\n<content>\n`. `None` if an object is missing. See
/// <https://git-scm.com/docs/git-cat-file#_batch_output>.
fn read_batch(output: Vec<u8>) -> Option<Contents> {
    let mut ranges = HashMap::new();
    let mut at = 0;
    while at < output.len() {
        let rest = output.get(at..)?;
        let end = rest.iter().position(|byte| *byte == b'\n')?;
        let head = std::str::from_utf8(rest.get(..end)?).ok()?;
        let mut words = head.split(' ');
        let object = words.next()?;
        let _ = words.next()?;
        let size = words.next()?.parse::<usize>().ok()?;
        let start = at + end + 1;
        let end = start.checked_add(size).filter(|end| *end < output.len())?;
        ranges.insert(object.to_owned(), start..end);
        at = end + 1;
    }
    Some(Contents { output, ranges })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cat_file_batches_are_parsed() {
        let contents = read_batch(b"aa blob 3\na\nb\nbb blob 0\n\n".to_vec()).unwrap();
        assert_eq!(contents.get("aa").unwrap(), b"a\nb");
        assert_eq!(contents.get("bb").unwrap(), b"");
        assert!(read_batch(b"aa missing\n".to_vec()).is_none());
        assert!(read_batch(b"aa blob 9\nx\n".to_vec()).is_none());
        assert!(read_batch(b"aa blob 1\nx".to_vec()).is_none());
    }
}
