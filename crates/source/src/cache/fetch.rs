//! Bringing a commit into the cache.

use std::time::Duration;

use super::{LISTING, collect::Call};
use crate::{
    error::Error,
    git::{Bounds, GitFailure},
};

/// Reference in the cache that the last fetched commit is kept at: the next fetch brings only what differs.
const KEPT: &str = "refs/alustan/last";

impl Call<'_> {
    pub(super) async fn prepare(&self) -> Result<(), Error> {
        if self.repository.exists() && self.repository.is_worn() {
            self.repository.clear()?;
        }
        if !self.repository.exists() {
            self.repository.clear()?;
            let sha256 = self.revision.commit.as_str().len() == 64;
            let format = if sha256 {
                "--object-format=sha256"
            } else {
                "--object-format=sha1"
            };
            self.local(
                "make the cache of",
                &["init", "--quiet", "--bare", format],
                Vec::new(),
                LISTING,
            )
            .await?;
        }
        self.repository.tidy()
    }

    pub(super) async fn has_commit(&self) -> bool {
        let name = format!("{}^{{commit}}", self.revision.commit);
        self.local(
            "look for a commit of",
            &["cat-file", "-e", &name],
            Vec::new(),
            LISTING,
        )
        .await
        .is_ok()
    }

    /// By commit id; where the host refuses that, by name, and then the name must still be at the commit.
    pub(super) async fn fetch(&self) -> Result<(), Error> {
        match self.fetch_what(self.revision.commit.as_str()).await {
            Err(Error::Git {
                failure: GitFailure::CommitRefused,
                ..
            }) => {
                tracing::debug!(
                    remote = self.url.remote(),
                    "fetch by name, the host refuses commit ids"
                );
                self.fetch_what(&self.revision.reference).await?;
            }
            other => other?,
        }
        if self.has_commit().await {
            Ok(())
        } else {
            Err(self.commit_gone())
        }
    }

    fn commit_gone(&self) -> Error {
        Error::CommitGone {
            commit: self.revision.commit.to_string(),
            reference: self.revision.reference.clone(),
            remote: self.url.remote().to_owned(),
        }
    }

    async fn fetch_what(&self, what: &str) -> Result<(), Error> {
        let refspec = format!("+{what}:{KEPT}");
        let arguments = [
            "-c",
            "fetch.unpackLimit=1",
            "fetch",
            "--quiet",
            "--depth=1",
            "--no-tags",
            "--no-recurse-submodules",
            "--no-write-fetch-head",
            "--no-auto-maintenance",
            "--",
            self.url.remote(),
            &refspec,
        ];
        let bounds = Bounds {
            time: self.options.fetch_timeout,
            stdout: LISTING,
        };
        let fetch = self.session.git(
            self.repository.path(),
            "fetch from",
            &arguments,
            Vec::new(),
            bounds,
        );
        let most = self
            .repository
            .size()
            .saturating_add(self.options.repository_bytes);
        tokio::select! {
            fetched = fetch => fetched?,
            () = self.grown_beyond(most) => return Err(self.too_large()),
        };
        if self.repository.size() <= most {
            return Ok(());
        }
        // It was faster than the look at its size.
        self.repository.clear()?;
        Err(self.too_large())
    }

    /// Ends when the packs have more bytes than that; the fetch is killed by being dropped.
    async fn grown_beyond(&self, most: u64) {
        while self.repository.size() <= most {
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
    }

    fn too_large(&self) -> Error {
        let (remote, limit) = (self.url.remote().to_owned(), self.options.repository_bytes);
        Error::RepositoryTooLarge { remote, limit }
    }
}
