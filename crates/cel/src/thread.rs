//! Runs the parser and the evaluation in threads with a large stack, because expressions may be deeply nested.

use crate::subject::Nothing;

/// Stack size of the thread, in bytes. Only the pages in use take memory.
pub(crate) const STACK: usize = 64 * 1024 * 1024;

/// Runs `work` in a separate thread with a stack of `stack` bytes. Expressions may be deeply nested, and a panic must not affect
/// the caller.
pub(crate) fn apart<T: Send>(
    stack: usize,
    work: impl FnOnce() -> Result<T, Nothing> + Send,
) -> Result<T, Nothing> {
    std::thread::scope(|scope| {
        let done = std::thread::Builder::new()
            .stack_size(stack)
            .spawn_scoped(scope, work)
            .map_err(|error| Nothing::Unknown(error.to_string()))?;
        let beyond = |_| {
            Err(Nothing::Invalid(
                "the expression exceeds the limits of the CEL interpreter".to_owned(),
            ))
        };
        done.join().unwrap_or_else(beyond)
    })
}
