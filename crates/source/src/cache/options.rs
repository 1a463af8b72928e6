//! Limits of a git cache.

use std::{collections::BTreeMap, ffi::OsString, time::Duration};

use crate::git;

/// Limits of a [`GitCache`](crate::GitCache).
#[derive(Clone, Debug)]
pub struct CacheOptions {
    /// Time for one `ls-remote` [30 s].
    pub resolve_timeout: Duration,
    /// Time for one fetch [5 min].
    pub fetch_timeout: Duration,
    /// Time for one call of git that needs no network [1 min].
    pub local_timeout: Duration,
    /// Bytes of a context's files before packing [64 MiB].
    pub context_bytes: u64,
    /// Files in a context [20 000].
    pub context_files: u64,
    /// Bytes that one fetch may bring [2 GiB].
    pub repository_bytes: u64,
    /// Bytes of all repositories together; those that were not used for longest go first [3 GiB].
    pub cache_bytes: u64,
    /// Repositories that are asked or fetched at once, and modules that are read at once; others queue, tenant by tenant [8].
    pub at_once: usize,
    /// What git may know of the machine: search path, proxies, trusted certificates [those of this process].
    pub environment: BTreeMap<String, OsString>,
}

impl Default for CacheOptions {
    fn default() -> Self {
        Self {
            resolve_timeout: Duration::from_secs(30),
            fetch_timeout: Duration::from_mins(5),
            local_timeout: Duration::from_mins(1),
            context_bytes: 64 << 20,
            context_files: 20_000,
            repository_bytes: 2 << 30,
            cache_bytes: 3 << 30,
            at_once: 8,
            environment: git::environment(),
        }
    }
}

/// Bytes that a list of references or of files may have.
pub(super) const LISTING: u64 = 64 << 20;
