//! What of a repository is wanted, and the commit it is. Pure.

mod parse;

use std::fmt;

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

/// A commit id: 40 or 64 hexadecimal digits in lower case.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct CommitId(String);

impl CommitId {
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
