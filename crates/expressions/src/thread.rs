//! Threads with a large stack, for expressions that are nested as deep as they are long.

use crate::subject::Nothing;

/// Stack size of the evaluating thread, in bytes. Only used pages take memory.
pub(crate) const STACK: usize = 64 * 1024 * 1024;

/// Runs `work` in a separate thread. An expression may be nested as deep as it is long, and a panic must not affect the caller.
pub(crate) fn apart<T: Send>(
    stack: usize,
    work: impl FnOnce() -> Result<T, Nothing> + Send,
) -> Result<T, Nothing> {
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().stack_size(stack);
        let thread = thread.spawn_scoped(scope, work);
        let done = thread.map_err(|error| Nothing::Unknown(error.to_string()))?;
        let beyond = |_| {
            Err(Nothing::Invalid(
                "the expression exceeds the limits of the CEL interpreter".to_owned(),
            ))
        };
        done.join().unwrap_or_else(beyond)
    })
}
