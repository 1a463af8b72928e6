//! Parses the output of `git ls-remote --symref`. Performs no I/O.

use crate::{
    error::Error,
    reference::{CommitId, Reference, Revision},
};

const HEAD: &str = "HEAD";

/// References of a remote repository, as listed by `git ls-remote`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listing {
    remote: String,
    text: String,
}

impl Listing {
    pub(super) fn new(remote: &str, text: String) -> Self {
        Self {
            remote: remote.to_owned(),
            text,
        }
    }

    /// Returns the commit of `reference`, which must be one of the references for which the listing was requested.
    ///
    /// # Errors
    /// [`Error::ReferenceNotFound`], or [`Error::RepositoryEmpty`] if the remote has no `HEAD`.
    pub fn find(&self, reference: &Reference) -> Result<Revision, Error> {
        find(&self.text, reference).ok_or_else(|| not_found(&self.text, reference, &self.remote))
    }
}

/// Returns the names to request from the remote: the full name of the reference, and `HEAD`. For a tag, the first name is the peeled form of the tag
/// (`^{}`). `HEAD` distinguishes an empty repository from a missing reference. Returns no names for a commit id, which needs no request.
pub(super) fn names(reference: &Reference) -> Vec<String> {
    match reference {
        Reference::Default => vec![HEAD.to_owned()],
        Reference::Branch(name) => vec![format!("refs/heads/{name}"), HEAD.to_owned()],
        Reference::Tag(name) => {
            let name = format!("refs/tags/{name}");
            vec![format!("{name}^{{}}"), name, HEAD.to_owned()]
        }
        Reference::Commit(_) => Vec::new(),
    }
}

/// Returns the revision of `reference` in the listing. Compares full names, because `git ls-remote` also lists references of which only the
/// end of the name matches.
fn find(listing: &str, reference: &Reference) -> Option<Revision> {
    if let Reference::Commit(commit) = reference {
        return Some(Revision::of_commit(commit));
    }
    let names = names(reference);
    let (name, commit) = names
        .iter()
        .filter(|name| *reference == Reference::Default || name.as_str() != HEAD)
        .find_map(|name| Some((name, id_of(listing, name)?)))?;
    let name = name.trim_end_matches("^{}");
    let reference = (name == HEAD)
        .then(|| behind_head(listing))
        .flatten()
        .unwrap_or(name)
        .to_owned();
    Some(Revision { commit, reference })
}

/// Returns the error for a missing reference, with the default branch if the remote reports it.
fn not_found(listing: &str, reference: &Reference, remote: &str) -> Error {
    let remote = remote.to_owned();
    if id_of(listing, HEAD).is_none() {
        return Error::RepositoryEmpty { remote };
    }
    let default = behind_head(listing).and_then(|name| name.strip_prefix("refs/heads/"));
    Error::ReferenceNotFound {
        reference: reference.to_string(),
        is_tag: matches!(reference, Reference::Tag(_)),
        remote,
        default: default.map(str::to_owned),
    }
}

fn lines<'a>(listing: &'a str, name: &'a str) -> impl Iterator<Item = &'a str> {
    listing
        .lines()
        .filter_map(|line| line.split_once('\t'))
        .filter(move |(_, ref_name)| *ref_name == name)
        .map(|(id, _)| id)
}

fn id_of(listing: &str, name: &str) -> Option<CommitId> {
    lines(listing, name).find_map(|id| CommitId::parse(id).ok())
}

/// Returns the full name of the branch that `HEAD` points to, if the host reports it.
fn behind_head(listing: &str) -> Option<&str> {
    lines(listing, HEAD)
        .find_map(|target| target.strip_prefix("ref: "))
        .filter(|name| is_plain(name))
}

/// Whether `name` is a valid name of a branch. Names from the host are validated, because they become part of a refspec.
fn is_plain(name: &str) -> bool {
    let branch = name.strip_prefix("refs/heads/");
    branch.is_some_and(|branch| crate::reference::RefName::parse(branch).is_ok())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const A: &str = "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa";
    const B: &str = "bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb";

    #[test]
    fn default_branch_is_resolved_by_name() {
        let listing = format!("ref: refs/heads/trunk\tHEAD\n{A}\tHEAD\n{B}\trefs/remotes/x/HEAD\n");
        let revision = find(&listing, &Reference::Default).unwrap();
        assert_eq!(
            (revision.commit.as_str(), revision.reference.as_str()),
            (A, "refs/heads/trunk")
        );
        assert_eq!(
            find(&format!("{A}\tHEAD\n"), &Reference::Default)
                .unwrap()
                .reference,
            "HEAD"
        );
        assert_eq!(
            find("ref: refs/heads/unborn\tHEAD\n", &Reference::Default),
            None
        );
    }

    #[test]
    fn branch_is_matched_by_its_full_name() {
        let branch = Reference::branch(Some("main")).unwrap();
        let listing = format!("{B}\trefs/remotes/x/refs/heads/main\n{A}\trefs/heads/main\n");
        assert_eq!(find(&listing, &branch).unwrap().commit.as_str(), A);
        assert_eq!(
            find(&format!("{B}\trefs/heads/feature/main\n"), &branch),
            None
        );
    }

    #[test]
    fn a_host_cannot_smuggle_a_refspec() {
        for odd in [
            "refs/heads/a:refs/heads/b",
            "--upload-pack=x",
            "refs/heads/*",
            "refs/heads/-x",
        ] {
            let listing = format!("ref: {odd}\tHEAD\n{A}\tHEAD\n");
            assert_eq!(
                find(&listing, &Reference::Default).unwrap().reference,
                "HEAD"
            );
        }
    }

    #[test]
    fn tags_resolve_to_the_peeled_commit() {
        let tag = Reference::tag("v1").unwrap();
        let listing = format!("{A}\tHEAD\n{B}\trefs/tags/v1\n{A}\trefs/tags/v1^{{}}\n");
        let revision = find(&listing, &tag).unwrap();
        assert_eq!(
            (revision.commit.as_str(), revision.reference.as_str()),
            (A, "refs/tags/v1")
        );
        let light = find(&format!("{B}\trefs/tags/v1\n"), &tag).unwrap();
        assert_eq!(light.commit.as_str(), B);
        assert_eq!(
            find(&format!("{A}\tHEAD\n{A}\trefs/heads/v1\n"), &tag),
            None
        );
    }

    #[test]
    fn commit_reference_needs_no_listing() {
        let commit = Reference::commit(A).unwrap();
        assert!(names(&commit).is_empty());
        let revision = find("", &commit).unwrap();
        assert!(revision.is_fixed() && revision.commit.as_str() == A);
    }

    #[test]
    fn missing_branch_differs_from_an_empty_repository() {
        let branch = Reference::branch(Some("nope")).unwrap();
        let why = |listing: &str, reference| not_found(listing, reference, "r").to_string();
        let listing = format!("ref: refs/heads/trunk\tHEAD\n{A}\tHEAD\n");
        assert!(
            why(&listing, &branch)
                .contains("branch nope does not exist in r; its default branch is trunk")
        );
        assert!(why(&format!("{A}\tHEAD\n"), &branch).contains("branch nope does not exist in r"));
        for reference in [&branch, &Reference::Default] {
            let error = not_found("", reference, "r");
            assert_eq!(
                (error.reason().as_str(), error.is_transient()),
                ("RepositoryEmpty", false)
            );
        }
    }

    proptest! {
        #[test]
        fn any_reference_listing_is_read_or_refused(listing in "\\PC{0,80}") {
            let _ = find(&listing, &Reference::Default);
        }
    }
}
