//! What `git ls-remote --symref` answers. Pure.

use crate::{
    error::Error,
    reference::{CommitId, Reference, Revision},
};

const HEAD: &str = "HEAD";

/// What a remote told of its references.
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

    /// The commit that `reference`, one of those that were asked for, is at.
    ///
    /// # Errors
    /// [`Error::ReferenceNotFound`], and [`Error::RepositoryEmpty`] where there is none at all.
    pub fn find(&self, reference: &Reference) -> Result<Revision, Error> {
        find(&self.text, reference).ok_or_else(|| not_found(&self.text, reference, &self.remote))
    }
}

/// The names to ask for: the reference, first what an annotated tag points at; and `HEAD`, which tells an
/// empty repository from one that lacks the reference. None for a commit: the host has nothing to say about it.
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

/// The revision in the answer. Names match whole: git answers with everything that ends like what was asked.
fn find(listing: &str, reference: &Reference) -> Option<Revision> {
    if let Reference::Commit(commit) = reference {
        return Some(Revision::of_commit(commit));
    }
    let asked = names(reference);
    let mut own = asked
        .iter()
        .filter(|name| *reference == Reference::Default || name.as_str() != HEAD);
    let (name, commit) = own.find_map(|name| Some((name, id_of(listing, name)?)))?;
    let name = name.trim_end_matches("^{}");
    let behind = (name == HEAD).then(|| behind_head(listing)).flatten();
    let reference = behind.unwrap_or(name).to_owned();
    Some(Revision { commit, reference })
}

/// The default branch, or why the reference is not there.
fn not_found(listing: &str, reference: &Reference, remote: &str) -> Error {
    let remote = remote.to_owned();
    if id_of(listing, HEAD).is_none() {
        return Error::RepositoryEmpty { remote };
    }
    let default = behind_head(listing).and_then(|name| name.strip_prefix("refs/heads/"));
    Error::ReferenceNotFound {
        reference: reference.clone(),
        remote,
        default: default.map(str::to_owned),
    }
}

fn lines<'a>(listing: &'a str, name: &'a str) -> impl Iterator<Item = &'a str> {
    let lines = listing.lines().filter_map(|line| line.split_once('\t'));
    lines
        .filter(move |(_, found)| *found == name)
        .map(|(told, _)| told)
}

fn id_of(listing: &str, name: &str) -> Option<CommitId> {
    lines(listing, name).find_map(|told| CommitId::parse(told).ok())
}

/// The branch behind HEAD, where the host tells it.
fn behind_head(listing: &str) -> Option<&str> {
    lines(listing, HEAD)
        .find_map(|told| told.strip_prefix("ref: "))
        .filter(|name| is_plain(name))
}

/// It becomes part of a refspec, so the host may not choose freely.
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
    fn the_default_branch_is_named() {
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
    fn branches_match_whole() {
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
    fn tags_lead_to_the_commit_behind_them() {
        let tag = Reference::tag("v1").unwrap();
        let listing = format!("{A}\tHEAD\n{B}\trefs/tags/v1\n{A}\trefs/tags/v1^{{}}\n");
        let found = find(&listing, &tag).unwrap();
        assert_eq!(
            (found.commit.as_str(), found.reference.as_str()),
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
    fn a_commit_needs_no_answer() {
        let commit = Reference::commit(A).unwrap();
        assert!(names(&commit).is_empty());
        let found = find("", &commit).unwrap();
        assert!(found.is_fixed() && found.commit.as_str() == A);
    }

    #[test]
    fn what_is_not_there_is_told_apart_from_an_empty_repository() {
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
                (error.reason(), error.is_transient()),
                ("RepositoryEmpty", false)
            );
        }
    }

    proptest! {
        #[test]
        fn any_answer_is_read_or_refused(listing in "\\PC{0,80}") {
            let _ = find(&listing, &Reference::Default);
        }
    }
}
