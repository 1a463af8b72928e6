//! Revisions of modules: a git commit, or the digest of a source other than a git repository.

/// Prefix of a revision that is a digest.
pub const DIGEST_PREFIX: &str = "sha256:";

/// Whether `revision` is a digest, and not a git commit.
pub fn is_digest(revision: &str) -> bool {
    revision.starts_with(DIGEST_PREFIX)
}

/// Returns the revision of the digest with these hexadecimal `digits`.
pub fn of_digest(digits: &str) -> String {
    format!("{DIGEST_PREFIX}{digits}")
}

/// Returns the hexadecimal digits of `revision`.
pub fn digits(revision: &str) -> &str {
    revision.strip_prefix(DIGEST_PREFIX).unwrap_or(revision)
}

/// Returns the first 7 digits of `revision`, for messages.
pub fn short(revision: &str) -> &str {
    let digits = digits(revision);
    digits.get(..7).unwrap_or(digits)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_form_of_a_digest_has_no_prefix() {
        assert_eq!(short("1a2b3c4d5e6f"), "1a2b3c4");
        assert_eq!(short("sha256:1a2b3c4d5e6f"), "1a2b3c4");
        assert_eq!(short("1a"), "1a");
    }
}
