//! The runner's own lines in the log: plain, on standard error, marked with its name.

use std::io::Write;

/// Writes one line; a log that nobody takes any more is no reason to stop.
pub fn line(text: &str) {
    let mut stderr = std::io::stderr().lock();
    for line in text.lines() {
        let _ = writeln!(stderr, "alustan: {line}");
    }
}

/// Says a line in the log.
#[macro_export]
macro_rules! say {
    ($($part:tt)*) => { $crate::say::line(&format!($($part)*)) };
}
