//! Limits of a git cache.

use std::{collections::BTreeMap, ffi::OsString, time::Duration};

use crate::git;

/// Limits of a [`GitCache`](crate::GitCache). Default values are in brackets.
#[derive(Clone, Debug)]
pub struct CacheOptions {
    /// Timeout for one `ls-remote` [30 s].
    pub resolve_timeout: Duration,
    /// Timeout for one fetch [5 min].
    pub fetch_timeout: Duration,
    /// Timeout for one call of git without network access [1 min].
    pub local_timeout: Duration,
    /// Timeout for reading and packing the files of a context [5 min].
    pub pack_timeout: Duration,
    /// Maximum size of the files of a context before compression, in bytes [64 MiB].
    pub context_bytes: u64,
    /// Maximum number of files in a context [20 000].
    pub context_files: u64,
    /// Maximum number of folders in a context [30 000]. Files and folders together must not exceed
    /// [`UnpackLimits::entries`](crate::UnpackLimits::entries).
    pub context_folders: u64,
    /// Maximum number of bytes transferred by one fetch [2 GiB].
    pub repository_bytes: u64,
    /// Maximum size of all repositories, in bytes [3 GiB]. If the repositories exceed the maximum, the least recently used repositories are removed.
    pub cache_bytes: u64,
    /// Maximum number of concurrent git calls to remotes and queries over HTTP [8], at most half of them for one tenant. One fetch that needs more
    /// memory than other fetches may run in addition. At most half as many modules are read concurrently from the cache. One module with more than
    /// 4 MiB of configuration may be read in addition. Permits are shared fairly between tenants.
    pub at_once: usize,
    /// Environment variables of git: search path, proxies, trusted certificates [variables of this process].
    pub environment: BTreeMap<String, OsString>,
}

impl Default for CacheOptions {
    fn default() -> Self {
        Self {
            resolve_timeout: Duration::from_secs(30),
            fetch_timeout: Duration::from_mins(5),
            local_timeout: Duration::from_mins(1),
            pack_timeout: Duration::from_mins(5),
            context_bytes: 64 << 20,
            context_files: 20_000,
            context_folders: 30_000,
            repository_bytes: 2 << 30,
            cache_bytes: 3 << 30,
            at_once: 8,
            environment: git::environment(),
        }
    }
}

/// Maximum size of a list of references or files in the output of git, in bytes.
pub(super) const LISTING: u64 = 64 << 20;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::UnpackLimits;

    #[test]
    fn largest_context_that_is_packed_is_unpacked() {
        let (packed, unpacked) = (CacheOptions::default(), UnpackLimits::default());
        assert!(packed.context_files + packed.context_folders <= unpacked.entries);
        assert!(packed.context_bytes <= unpacked.bytes);
    }
}
