//! Limits of all `TerraformRun`s together.

use std::sync::atomic::{AtomicU64, Ordering};

use alustan_core::run_retention::RunRetention;

/// Share of the maximum size of all records after whose writing a sweep is due.
const SWEEP_DIVISOR: u64 = 16;

/// Limits of the records, and the number of bytes written since the last sweep.
pub(crate) struct RunHistoryLimits {
    retention: RunRetention,
    written: AtomicU64,
}

impl RunHistoryLimits {
    pub(crate) fn new(retention: RunRetention) -> Self {
        Self {
            retention,
            written: AtomicU64::new(0),
        }
    }

    /// Counts a written record of `bytes`.
    pub(crate) fn add(&self, bytes: u64) {
        self.written.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Returns the limits.
    pub(crate) fn retention(&self) -> RunRetention {
        self.retention
    }

    /// Starts to count again, at the start of a sweep.
    pub(crate) fn reset(&self) {
        self.written.store(0, Ordering::Relaxed);
    }

    /// Whether so much was written since the last sweep that another one is due.
    pub(crate) fn is_exceeded(&self) -> bool {
        self.written.load(Ordering::Relaxed) > self.retention.max_bytes / SWEEP_DIVISOR
    }
}
