//! Log lines of the runner: plain text on standard error, with the prefix `alustan: `.

use std::io::Write;
use std::sync::LazyLock;

use crate::log_tail::LogTail;

static TAIL: LazyLock<LogTail> = LazyLock::new(LogTail::default);

/// Returns the tail of the log of this process: lines of the runner and the output of its commands.
pub fn tail() -> LogTail {
    TAIL.clone()
}

/// Writes a text to the log, line by line. Ignores errors: a log stream without a reader must not stop the runner.
pub fn line(text: &str) {
    let mut stderr = std::io::stderr().lock();
    for line in text.lines() {
        let line = format!("alustan: {line}\n");
        let _ = stderr.write_all(line.as_bytes());
        TAIL.push(line.as_bytes());
    }
}

/// Writes text to the log of the runner. Takes the arguments of [`format!`].
#[macro_export]
macro_rules! log {
    ($($part:tt)*) => { $crate::log::line(&format!($($part)*)) };
}
