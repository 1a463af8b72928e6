//! Classifies failures of git by the output of git and ssh. Performs no I/O.

use crate::error::GitFailure;

/// Substrings of the output of a git process that reached its memory limit, in lower case.
const OUT_OF_MEMORY: [&str; 3] = [
    "out of memory, ",
    "flate: out of memory",
    "mmap failed: cannot allocate memory",
];

/// Substrings of the output per category, in lower case. The first match determines the category, so specific substrings come first.
const WORDS: &[(GitFailure, &[&str])] = &[
    (
        GitFailure::HostKeyMismatch,
        &[
            "remote host identification has changed",
            "revoked host key",
            "host key for",
        ],
    ),
    (
        GitFailure::HostKeyUnknown,
        &["host key is known for", "host key verification failed"],
    ),
    (
        GitFailure::SshKeyUnreadable,
        &[
            "invalid format",
            "error in libcrypto",
            "unprotected private key",
        ],
    ),
    (
        GitFailure::RateLimited,
        &["returned error: 429", "too many requests", "rate limit"],
    ),
    (
        GitFailure::CommitRefused,
        &[
            "not our ref",
            "unadvertised object",
            "does not allow request",
        ],
    ),
    (
        GitFailure::ReferenceMissing,
        &["couldn't find remote ref", "no matching remote head"],
    ),
    (
        GitFailure::AuthorityUnreadable,
        &["error setting certificate", "problem with the ssl ca cert"],
    ),
    (
        GitFailure::Tls,
        &[
            "ssl certificate problem",
            "certificate verification failed",
            "certificate subject name",
            "ssl: no alternative certificate",
            "does not match target host name",
            "gnutls_handshake",
            "ssl routines",
        ],
    ),
    (
        GitFailure::NotFound,
        &[
            "repository not found",
            "does not appear to be a git repository",
            "could not be found or you don't have permission",
            "returned error: 404",
            "returned error: 410",
            "' not found",
            "no such project",
        ],
    ),
    (
        GitFailure::Authentication,
        &[
            "permission denied (",
            "authentication failed",
            "could not read username",
            "could not read password",
            "returned error: 401",
            "returned error: 403",
            "access denied",
            "too many authentication failures",
        ],
    ),
    (
        GitFailure::Unreachable,
        &[
            "could not resolve",
            "connection refused",
            "connection timed out",
            "connection reset",
            "connection closed",
            "operation timed out",
            "operation too slow",
            "no route to host",
            "network is unreachable",
            "failed to connect",
            "couldn't connect",
            "kex_exchange_identification",
            "banner exchange",
            "returned error: 5",
            "empty reply from server",
            "proxy connect aborted",
            "early eof",
            "rpc failed",
            "hung up unexpectedly",
            "unexpected disconnect",
            "timeout, server",
            "broken pipe",
        ],
    ),
];

/// Classifies the stderr of git (with `LC_ALL=C`).
pub(super) fn classify(stderr: &str) -> GitFailure {
    let text = stderr.to_lowercase();
    // Lines with the prefix `remote: ` are output of the host, not of this git process.
    let mut own_lines = text.lines().filter(|line| !line.starts_with("remote: "));
    if own_lines.any(|line| OUT_OF_MEMORY.iter().any(|words| line.contains(words))) {
        return GitFailure::OutOfMemory;
    }
    let meant = |words: &&[&str]| words.iter().any(|word| text.contains(word));
    WORDS
        .iter()
        .find(|(_, words)| meant(words))
        .map_or(GitFailure::Other, |(failure, _)| *failure)
}

/// Returns the last meaningful lines of stderr, without the frames of `@` that ssh prints.
pub(super) fn last_lines(stderr: &str) -> String {
    const LINES: usize = 4;
    const BYTES: usize = 600;
    let lines: Vec<&str> = stderr
        .lines()
        .map(str::trim)
        .filter(|line| is_informative(line))
        .collect();
    let text = lines
        .get(lines.len().saturating_sub(LINES)..)
        .unwrap_or_default()
        .join("; ");
    let cut = text
        .char_indices()
        .map(|(at, _)| at)
        .find(|at| text.len() - at <= BYTES);
    text.get(cut.unwrap_or(0)..).unwrap_or_default().to_owned()
}

fn is_informative(line: &str) -> bool {
    const NOISE: [&str; 4] = [
        "Please make sure you have the correct access rights",
        "and the repository exists.",
        "fatal: Could not read from remote repository.",
        "warning: ",
    ];
    !line.is_empty() && !line.starts_with('@') && !NOISE.iter().any(|noise| line.starts_with(noise))
}

#[cfg(test)]
mod tests;
