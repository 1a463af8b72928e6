//! Size classes of fetches and reads. Small operations run concurrently and large operations run one at a time, which bounds total memory.

use std::sync::Arc;

use super::options::LISTING;
use crate::{
    closure::Closure,
    error::{Error, GitFailure},
    fair_semaphore::{FairSemaphore, Permit},
};

/// Maximum size of the output of a git call that reads a small module, in bytes: 4 MiB of content, and a line for each of 20,000 objects.
const SMALL_READ: u64 = 8 << 20;

/// Size class of a fetch, or of the read of a module. Only the configuration files and the list of files of a module are in memory: a module with
/// large files is [`Size::Small`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Size {
    Small,
    Large,
}

impl Size {
    /// Maximum size of the data segment of one git process, in bytes. A fetch of 17,000 files and one file of 100 MB takes 12 MiB, because
    /// git writes a large file to disk while it receives the file. A large file that is stored as a delta takes a multiple of its size.
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

    /// Maximum size of the configuration files that are read, in bytes.
    pub(super) fn configuration(self) -> u64 {
        match self {
            Self::Small => 4 << 20,
            Self::Large => Closure::BYTES,
        }
    }
}

/// Whether a read that failed with `error` as [`Size::Small`] may succeed as [`Size::Large`].
pub(super) fn is_too_large(error: &Error) -> bool {
    match error {
        // A `limit` above [`SMALL_READ`] is the limit of a fetch, which does not depend on the size class.
        Error::RepositoryTooLarge { limit, .. } => *limit <= SMALL_READ,
        Error::Git { failure, .. } => *failure == GitFailure::OutOfMemory,
        _ => false,
    }
}

/// Concurrency limits of fetches, or of reads.
pub(super) struct ConcurrencyLimits {
    small: Arc<FairSemaphore>,
    large: Arc<FairSemaphore>,
}

impl ConcurrencyLimits {
    /// Returns limits of calls to remotes: `at_once` permits for [`Size::Small`], at most half of them for one tenant, and one permit for
    /// [`Size::Large`].
    pub(super) fn of_remotes(at_once: usize) -> Arc<Self> {
        Self::new(FairSemaphore::half_per_tenant(at_once))
    }

    /// Returns limits of reads from the cache: `at_once` permits for [`Size::Small`] and one permit for [`Size::Large`].
    pub(super) fn of_reads(at_once: usize) -> Arc<Self> {
        Self::new(FairSemaphore::new(at_once))
    }

    fn new(small: Arc<FairSemaphore>) -> Arc<Self> {
        let large = FairSemaphore::new(1);
        Arc::new(Self { small, large })
    }

    /// Waits for a permit of `size` for `tenant`. Like [`FairSemaphore::acquire`], always returns `Some`.
    pub(super) async fn acquire(&self, size: Size, tenant: &Arc<str>) -> Option<Permit> {
        match size {
            Size::Small => self.small.acquire(tenant).await,
            Size::Large => self.large.acquire(tenant).await,
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
        let limits = ConcurrencyLimits::of_reads(2);
        let tenant = Arc::from("team");
        let take = |size| timeout(Duration::ZERO, limits.acquire(size, &tenant));
        let large = take(Size::Large).await.unwrap();
        assert!(take(Size::Large).await.is_err());
        assert!(take(Size::Small).await.is_ok());
        drop(large);
        assert!(take(Size::Large).await.is_ok());
    }
}
