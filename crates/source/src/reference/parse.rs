//! Parses names of branches and tags, and commit ids. Performs no I/O.

use super::{CommitId, RefName, Reference};
use crate::error::Error;

impl Reference {
    /// Returns the branch `name`, or the default branch if `name` is `None`.
    ///
    /// # Errors
    /// [`Error::InvalidReference`] if git does not accept the name.
    pub fn branch(name: Option<&str>) -> Result<Self, Error> {
        name.map_or(Ok(Self::Default), |name| {
            RefName::parse(name).map(Self::Branch)
        })
    }

    /// Returns the tag `name`.
    ///
    /// # Errors
    /// [`Error::InvalidReference`] if git does not accept the name.
    pub fn tag(name: &str) -> Result<Self, Error> {
        RefName::parse(name).map(Self::Tag)
    }

    /// Returns the commit with the full id `id`.
    ///
    /// # Errors
    /// [`Error::InvalidReference`] if the id does not consist of 40 or 64 hexadecimal digits.
    pub fn commit(id: &str) -> Result<Self, Error> {
        CommitId::parse(id).map(Self::Commit)
    }
}

impl RefName {
    /// Validates a name.
    ///
    /// # Errors
    /// [`Error::InvalidReference`] if git does not accept the name.
    pub fn parse(name: &str) -> Result<Self, Error> {
        match fault(name) {
            None => Ok(Self(name.to_owned())),
            Some(why) => Err(Error::InvalidReference {
                name: name.escape_debug().to_string(),
                why,
            }),
        }
    }
}

/// Returns the violated rule, if any, of <https://git-scm.com/docs/git-check-ref-format> or of this project: at most 255 bytes, and no `-` at the
/// start.
fn fault(name: &str) -> Option<&'static str> {
    let part_ends = |end: &str| name.split('/').any(|part| part.ends_with(end));
    let rules = [
        (name.is_empty(), "the name is empty"),
        (name.len() > 255, "the name is longer than 255 bytes"),
        (name.starts_with('-'), "the name starts with `-`"),
        (
            name == "@" || name.contains("@{"),
            "the name is `@` or contains `@{`",
        ),
        (
            name.split('/').any(str::is_empty),
            "the name starts or ends with `/` or contains `//`",
        ),
        (
            name.split('/').any(|part| part.starts_with('.')),
            "a component of the name starts with `.`",
        ),
        (
            part_ends(".lock"),
            "a component of the name ends with `.lock`",
        ),
        (
            name.ends_with('.') || name.contains(".."),
            "the name ends with `.` or contains `..`",
        ),
        (
            name.contains(|c: char| c.is_control() || " ~^:?*[\\".contains(c)),
            "the name contains a character that git does not allow",
        ),
    ];
    rules
        .into_iter()
        .find_map(|(broken, why)| broken.then_some(why))
}

impl CommitId {
    /// Parses a full commit id.
    ///
    /// # Errors
    /// [`Error::InvalidReference`] if the id does not consist of 40 or 64 hexadecimal digits.
    pub fn parse(text: &str) -> Result<Self, Error> {
        let hex = text.bytes().all(|byte| byte.is_ascii_hexdigit());
        if hex && (text.len() == 40 || text.len() == 64) {
            return Ok(Self(text.to_ascii_lowercase()));
        }
        Err(Error::InvalidReference {
            name: text.escape_debug().to_string(),
            why: "a commit must have all 40 (or 64) hexadecimal digits, as printed by `git \
                  rev-parse`; hosts do not resolve abbreviated ids",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    #[rstest]
    #[case("main")]
    #[case("feature/x-1")]
    #[case("v1.2")]
    #[case("ünïcode")]
    #[case("a@b")]
    fn valid_reference_names_are_accepted(#[case] name: &str) {
        assert_eq!(RefName::parse(name).unwrap().as_str(), name);
    }

    #[rstest]
    #[case("")]
    #[case("-x")]
    #[case("--upload-pack=x")]
    #[case("a..b")]
    #[case("a b")]
    #[case("a~1")]
    #[case("a^")]
    #[case("a:b")]
    #[case("a?")]
    #[case("a*")]
    #[case("a[")]
    #[case("a\\b")]
    #[case("/a")]
    #[case("a/")]
    #[case("a//b")]
    #[case(".a")]
    #[case("a/.b")]
    #[case("a.lock")]
    #[case("a.lock/b")]
    #[case("a.")]
    #[case("@")]
    #[case("a@{1}")]
    #[case("a\nb")]
    fn invalid_reference_names_are_refused(#[case] name: &str) {
        assert_eq!(
            RefName::parse(name).unwrap_err().reason().as_str(),
            "InvalidReference"
        );
    }

    #[test]
    fn abbreviated_commit_ids_are_refused() {
        assert!(CommitId::parse(&"a1".repeat(20)).is_ok());
        assert!(CommitId::parse(&"A1".repeat(32)).is_ok());
        for text in [
            "",
            "abc123",
            &"g".repeat(40),
            "HEAD",
            &format!("-{}", "a".repeat(39)),
        ] {
            assert!(CommitId::parse(text).is_err());
        }
    }
}
