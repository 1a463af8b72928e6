//! The runner's own lines in the log: plain, on standard error, marked with its name.

use std::io::Write;
use std::sync::LazyLock;

use crate::tail::Tail;

static PRINTED: LazyLock<Tail> = LazyLock::new(Tail::default);

/// The end of this process's log: its own lines, and what it has others add.
pub fn printed() -> Tail {
    PRINTED.clone()
}

/// Writes one line; a log that nobody takes any more is no reason to stop.
pub fn line(text: &str) {
    let mut stderr = std::io::stderr().lock();
    for line in text.lines() {
        let line = format!("alustan: {line}\n");
        let _ = stderr.write_all(line.as_bytes());
        PRINTED.push(line.as_bytes());
    }
}

/// Says a line in the log.
#[macro_export]
macro_rules! say {
    ($($part:tt)*) => { $crate::say::line(&format!($($part)*)) };
}
