//! References and commits of a repository.

mod parse;

use std::fmt;

/// Reference to a commit of a repository.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Reference {
    /// Default branch: `HEAD` of the repository.
    Default,
    /// Head of a branch.
    Branch(RefName),
    /// A tag. An annotated tag is resolved to its commit.
    Tag(RefName),
    /// A fixed commit.
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

/// Name of a branch or tag that is valid according to `git check-ref-format`. Never starts with `-`.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RefName(String);

impl RefName {
    /// Returns the name without `refs/heads/` or `refs/tags/`.
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
    /// Returns the hexadecimal digits.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for CommitId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// A commit, and the reference from which it was resolved.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Revision {
    /// Commit id.
    pub commit: CommitId,
    /// Full name of the reference, for example `refs/heads/main`; the commit id if the commit was requested by id. The cache fetches the
    /// reference if the host does not serve commits by id.
    pub reference: String,
}

impl Revision {
    /// Returns the revision of a commit that was requested by id. Sets [`Self::reference`] to the id.
    pub fn of_commit(commit: &CommitId) -> Self {
        Self {
            commit: commit.clone(),
            reference: commit.to_string(),
        }
    }

    /// Whether the commit was requested by id, without a reference.
    pub(crate) fn is_fixed(&self) -> bool {
        self.reference == self.commit.as_str()
    }

    /// Returns the short name of the branch, if the reference is a branch.
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
