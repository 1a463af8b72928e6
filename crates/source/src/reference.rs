//! What of a repository is wanted, and the commit it is. Pure.

use std::fmt;

use crate::error::Error;

/// What of a repository is wanted.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Reference {
    /// The repository's default branch, as its `HEAD` says.
    Default,
    /// The head of a branch.
    Branch(RefName),
    /// What a tag points at, through annotated tags too.
    Tag(RefName),
    /// One commit, for ever.
    Commit(CommitId),
}

impl Reference {
    /// A branch by name, `None` being the default one.
    ///
    /// # Errors
    /// [`Error::InvalidReference`] when git would not accept the name.
    pub fn branch(name: Option<&str>) -> Result<Self, Error> {
        name.map_or(Ok(Self::Default), |name| {
            RefName::parse(name).map(Self::Branch)
        })
    }

    /// A tag by name.
    ///
    /// # Errors
    /// [`Error::InvalidReference`] when git would not accept the name.
    pub fn tag(name: &str) -> Result<Self, Error> {
        RefName::parse(name).map(Self::Tag)
    }

    /// A commit by its full id.
    ///
    /// # Errors
    /// [`Error::InvalidReference`] when it is not 40 or 64 hexadecimal digits.
    pub fn commit(id: &str) -> Result<Self, Error> {
        CommitId::parse(id).map(Self::Commit)
    }
}

impl fmt::Display for Reference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Default => f.write_str("the default branch"),
            Self::Branch(name) => write!(f, "branch {name}"),
            Self::Tag(name) => write!(f, "tag {name}"),
            Self::Commit(id) => write!(f, "commit {id}"),
        }
    }
}

/// Name of a branch or tag by the rules of `git check-ref-format`, never starting with `-`.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RefName(String);

impl RefName {
    /// Checks the name.
    ///
    /// # Errors
    /// [`Error::InvalidReference`] when git would not accept the name.
    pub fn parse(name: &str) -> Result<Self, Error> {
        match fault(name) {
            None => Ok(Self(name.to_owned())),
            Some(why) => Err(Error::InvalidReference {
                name: name.escape_debug().to_string(),
                why,
            }),
        }
    }

    /// The name without `refs/heads/` or `refs/tags/`.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for RefName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The first rule of <https://git-scm.com/docs/git-check-ref-format> (or our own on `-`) that a name breaks.
fn fault(name: &str) -> Option<&'static str> {
    let part_ends = |end: &str| name.split('/').any(|part| part.ends_with(end));
    let rules = [
        (name.is_empty(), "it is empty"),
        (name.len() > 255, "it is longer than 255 bytes"),
        (name.starts_with('-'), "it starts with `-`"),
        (
            name == "@" || name.contains("@{"),
            "it is `@` or holds `@{`",
        ),
        (
            name.split('/').any(str::is_empty),
            "it starts or ends with `/` or holds `//`",
        ),
        (
            name.split('/').any(|part| part.starts_with('.')),
            "a part of it starts with `.`",
        ),
        (part_ends(".lock"), "a part of it ends with `.lock`"),
        (
            name.ends_with('.') || name.contains(".."),
            "it ends with `.` or holds `..`",
        ),
        (
            name.contains(|c: char| c.is_control() || " ~^:?*[\\".contains(c)),
            "it holds a character that git does not allow",
        ),
    ];
    rules
        .into_iter()
        .find_map(|(broken, why)| broken.then_some(why))
}

/// A commit id: 40 or 64 hexadecimal digits in lower case.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct CommitId(String);

impl CommitId {
    /// Reads a full commit id.
    ///
    /// # Errors
    /// [`Error::InvalidReference`] when it is not 40 or 64 hexadecimal digits.
    pub fn parse(text: &str) -> Result<Self, Error> {
        let hex = text.bytes().all(|byte| byte.is_ascii_hexdigit());
        if hex && (text.len() == 40 || text.len() == 64) {
            return Ok(Self(text.to_ascii_lowercase()));
        }
        Err(Error::InvalidReference {
            name: text.escape_debug().to_string(),
            why: "a commit is named by all 40 (or 64) hexadecimal digits, as `git rev-parse` prints them; hosts do not find it by a part of them",
        })
    }

    /// The digits.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for CommitId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// A commit, and the reference that led to it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Revision {
    /// The commit.
    pub commit: CommitId,
    /// Full name of the reference it was found at (`refs/heads/main`); fetched when the server refuses commit ids.
    /// The commit itself when that was asked for.
    pub reference: String,
}

impl Revision {
    /// A commit that nothing has to lead to.
    pub fn of_commit(commit: &CommitId) -> Self {
        Self {
            commit: commit.clone(),
            reference: commit.to_string(),
        }
    }

    /// Whether the commit itself was asked for, and no reference leads to it.
    pub(crate) fn is_fixed(&self) -> bool {
        self.reference == self.commit.as_str()
    }

    /// The branch's short name, when the reference is a branch.
    pub fn branch(&self) -> Option<&str> {
        self.reference.strip_prefix("refs/heads/")
    }
}

impl fmt::Display for Revision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{}@{}",
            self.branch().unwrap_or(&self.reference),
            self.commit
        )
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
    fn names_that_git_accepts(#[case] name: &str) {
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
    fn names_that_git_refuses(#[case] name: &str) {
        assert_eq!(
            RefName::parse(name).unwrap_err().reason(),
            "InvalidReference"
        );
    }

    #[test]
    fn commits_are_full_ids() {
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
