//! Fetches a commit into the cache.

use std::time::Duration;

use super::{
    collect::RepositoryCall,
    commits::Commits,
    options::LISTING,
    store::{Repository, Store, is_own_fault},
};
use crate::{
    error::{Error, GitFailure},
    git::Bounds,
    reference::Revision,
};

/// Git reference to the last fetched commit, in each repository of the cache. With this reference, the next fetch transfers only the difference.
pub(super) const KEPT: &str = "refs/alustan/last";

/// Infinite depth in git: <https://git-scm.com/docs/shallow>.
const WHOLE: &str = "--depth=2147483647";

/// Fetch of one commit into a repository of the cache.
pub(super) struct Fetch<'a> {
    pub(super) call: RepositoryCall<'a>,
    pub(super) repository: &'a Repository,
    pub(super) store: &'a Store,
    pub(super) commits: &'a Commits,
    pub(super) revision: &'a Revision,
    /// Reference to create in the repository of the cache for the fetched commit.
    pub(super) kept: &'a str,
}

impl Fetch<'_> {
    /// Fetches the commit if necessary. If the repository of the cache is damaged, removes the repository and fetches the commit once more.
    pub(super) async fn run(&self) -> Result<(), Error> {
        match self.bring().await {
            Err(error) if is_own_fault(&error) => {
                tracing::warn!(
                    %error,
                    remote = self.call.url.remote(),
                    "the git cache is damaged; fetching the repository again"
                );
                self.clear().await?;
                self.bring().await
            }
            other => other,
        }
    }

    async fn bring(&self) -> Result<(), Error> {
        self.prepare().await?;
        if self.has_commit().await {
            Ok(())
        } else {
            self.fetch().await
        }
    }

    async fn clear(&self) -> Result<(), Error> {
        self.commits.forget(self.repository.path());
        self.repository.clear().await
    }

    async fn prepare(&self) -> Result<(), Error> {
        let full = self.repository.size() > self.call.options.repository_bytes;
        if self.repository.exists() && (full || self.repository.is_worn()) {
            self.clear().await?;
        }
        if !self.repository.exists() {
            self.clear().await?;
            let sha256 = self.revision.commit.as_str().len() == 64;
            let format = if sha256 {
                "--object-format=sha256"
            } else {
                "--object-format=sha1"
            };
            self.call
                .local(
                    "create the cache of",
                    &["init", "--quiet", "--bare", format],
                    Vec::new(),
                    LISTING,
                )
                .await?;
        }
        self.repository.tidy()
    }

    async fn has_commit(&self) -> bool {
        let name = format!("{}^{{commit}}", self.revision.commit);
        self.call
            .local(
                "find a commit of",
                &["cat-file", "-e", &name],
                Vec::new(),
                LISTING,
            )
            .await
            .is_ok()
    }

    /// Fetches by commit id. If the host does not serve commits by id, fetches the reference, which must still point to the commit. For a
    /// commit without a reference, fetches all branches and tags instead.
    async fn fetch(&self) -> Result<(), Error> {
        let revision = self.revision;
        match self.fetch_what(revision.commit.as_str()).await {
            Err(Error::Git {
                failure: GitFailure::CommitRefused | GitFailure::ReferenceMissing,
                ..
            }) => {
                tracing::debug!(
                    remote = self.call.url.remote(),
                    "the host does not serve commits by id; fetching by reference"
                );
                if revision.is_fixed() {
                    self.fetch_everything().await?;
                } else {
                    self.fetch_what(&revision.reference).await?;
                }
            }
            // Git has verified that it received the commit.
            other => return other,
        }
        if self.has_commit().await {
            Ok(())
        } else {
            Err(self.commit_gone())
        }
    }

    fn commit_gone(&self) -> Error {
        if self.revision.is_fixed() {
            return Error::CommitNotFound {
                commit: self.revision.commit.to_string(),
                remote: self.call.url.remote().to_owned(),
            };
        }
        Error::CommitGone {
            commit: self.revision.commit.to_string(),
            reference: self.revision.reference.clone(),
            remote: self.call.url.remote().to_owned(),
        }
    }

    /// Fetches `revision`, a commit id or a reference, without its history.
    async fn fetch_what(&self, revision: &str) -> Result<(), Error> {
        let spec = format!("+{revision}:{}", self.kept);
        self.fetch_specs(&["--depth=1"], &[&spec]).await
    }

    /// Fetches all branches and tags with their history.
    async fn fetch_everything(&self) -> Result<(), Error> {
        let specs = ["heads", "tags"].map(|kind| format!("+refs/{kind}/*:refs/alustan/{kind}/*"));
        let specs: Vec<&str> = specs.iter().map(String::as_str).collect();
        match self.fetch_specs(&[WHOLE, "--prune"], &specs).await {
            // If the remote has neither branches nor tags, git fails, in some versions without a message.
            Err(Error::Git {
                failure: GitFailure::ReferenceMissing,
                ..
            }) => Ok(()),
            Err(Error::Git {
                failure: GitFailure::Other,
                detail,
                ..
            }) if detail.is_empty() => Ok(()),
            other => other,
        }
    }

    async fn fetch_specs(&self, how: &[&str], specs: &[&str]) -> Result<(), Error> {
        let mut arguments = vec!["-c", "fetch.unpackLimit=1", "fetch", "--quiet"];
        arguments.extend(how);
        arguments.extend([
            "--no-tags",
            "--no-recurse-submodules",
            "--no-write-fetch-head",
            "--no-auto-maintenance",
            "--",
            self.call.url.remote(),
        ]);
        arguments.extend(specs);
        let bounds = Bounds {
            time: self.call.options.fetch_timeout,
            stdout: LISTING,
            memory: self.call.size.process(),
        };
        let session = self.call.session.get().await?;
        let fetch = session.git(
            self.repository.path(),
            "fetch from",
            &arguments,
            Vec::new(),
            bounds,
        );
        let most = self
            .repository
            .size()
            .saturating_add(self.call.options.repository_bytes);
        let ended = tokio::select! {
            fetched = fetch => fetched.map(drop),
            error = self.out_of_room(most) => Err(error),
        };
        // The fetch may have ended after the last check of `out_of_room`, so the limits are checked again.
        match ended.and_then(|()| self.check_room(most)) {
            Err(error @ (Error::RepositoryTooLarge { .. } | Error::CacheFull { .. })) => {
                self.clear().await?;
                Err(error)
            }
            other => other,
        }
    }

    /// Returns an error as soon as the repository or the cache exceeds its size limit. The caller then drops the fetch, which kills git.
    async fn out_of_room(&self, most: u64) -> Error {
        loop {
            if let Err(error) = self.check_room(most) {
                return error;
            }
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
    }

    /// Checks the size limits of this repository and of the cache. If the cache is too large, first removes the least recently used
    /// repositories.
    fn check_room(&self, most: u64) -> Result<(), Error> {
        if self.repository.size() > most.min(self.call.options.cache_bytes) {
            return Err(self.too_large());
        }
        let limit = self.call.options.cache_bytes;
        if self.store.make_room(limit)? {
            Ok(())
        } else {
            Err(Error::CacheFull { limit })
        }
    }

    fn too_large(&self) -> Error {
        let options = self.call.options;
        let limit = options.repository_bytes.min(options.cache_bytes);
        let remote = self.call.url.remote().to_owned();
        Error::RepositoryTooLarge { remote, limit }
    }
}
