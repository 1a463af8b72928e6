//! Counts the objects and queries that lookups visit, for tests of the complexity. Each test has its own thread and so its own count.

use std::cell::Cell;

thread_local! {
    static COUNT: Cell<usize> = const { Cell::new(0) };
}

/// Counts `visited` objects or queries.
pub(crate) fn count(visited: usize) {
    COUNT.set(COUNT.get() + visited);
}

/// Returns the number of objects and queries that lookups of this thread have visited so far.
pub(crate) fn so_far() -> usize {
    COUNT.get()
}
