//! Sizes of work. Small work runs concurrently and large work one at a time, to bound total memory.

use std::sync::Arc;

use super::options::LISTING;
use crate::{
    error::Error,
    git::GitFailure,
    turns::{Turn, Turns},
};

/// Maximum number of bytes that git prints when a small module is read: 4 MiB of content, and a line for each of 20,000 objects.
const SMALL_READ: u64 = 8 << 20;

/// Size of a fetch, or of a module that is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Size {
    Small,
    Large,
}

impl Size {
    /// Maximum size of the data of one git process, in bytes. A fetch of 17,000 files and one of 100 MB takes 12 MiB: git writes large
    /// files to disk while it reads them. Large files that are stored as differences take a multiple of their size.
    pub(super) fn process(self) -> u64 {
        match self {
            Self::Small => 48 << 20,
            Self::Large => 256 << 20,
        }
    }

    /// Maximum size of a list of files, in bytes.
    pub(super) fn listing(self) -> u64 {
        match self {
            Self::Small => 4 << 20,
            Self::Large => LISTING,
        }
    }

    /// Maximum size of the files of a context, in bytes before compression; `most` for large contexts.
    pub(super) fn content(self, most: u64) -> u64 {
        match self {
            Self::Small => most.min(4 << 20),
            Self::Large => most,
        }
    }
}

/// Whether reading as small work that failed with `error` may succeed as large work.
pub(super) fn is_too_large(error: &Error) -> bool {
    match error {
        // The limit of a fetch is larger.
        Error::RepositoryTooLarge { limit, .. } => *limit <= SMALL_READ,
        Error::Git { failure, .. } => *failure == GitFailure::OutOfMemory,
        _ => false,
    }
}

/// Concurrency limits of one kind of work.
pub(super) struct Limits {
    small: Arc<Turns>,
    large: Arc<Turns>,
}

impl Limits {
    /// Returns limits for `at_once` small works and one large one.
    pub(super) fn new(at_once: usize) -> Arc<Self> {
        Arc::new(Self {
            small: Turns::new(at_once),
            large: Turns::new(1),
        })
    }

    /// Waits for a permit of `tenant`. Never returns `None`.
    pub(super) async fn take(&self, size: Size, tenant: &Arc<str>) -> Option<Turn> {
        match size {
            Size::Small => self.small.take(tenant).await,
            Size::Large => self.large.take(tenant).await,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::time::timeout;

    use super::*;

    #[tokio::test]
    async fn only_one_large_task_runs_beside_small_ones() {
        let limits = Limits::new(2);
        let tenant = Arc::from("team");
        let take = |size| timeout(Duration::ZERO, limits.take(size, &tenant));
        let large = take(Size::Large).await.unwrap();
        assert!(take(Size::Large).await.is_err());
        assert!(take(Size::Small).await.is_ok());
        drop(large);
        assert!(take(Size::Large).await.is_ok());
    }
}
