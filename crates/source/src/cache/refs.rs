//! What `git ls-remote --symref` answers. Pure.

use crate::reference::{CommitId, Reference, Revision};

/// The name to ask for.
pub(super) fn full_name(reference: &Reference) -> String {
    match reference {
        Reference::Default => "HEAD".to_owned(),
        Reference::Branch(name) => format!("refs/heads/{name}"),
    }
}

/// The revision in the answer. Names match whole: git answers with everything that ends like what was asked.
pub(super) fn find(listing: &str, reference: &Reference) -> Option<Revision> {
    let name = full_name(reference);
    let lines = || {
        listing
            .lines()
            .filter_map(|line| line.split_once('\t'))
            .filter(|(_, found)| *found == name)
    };
    let commit = lines().find_map(|(id, _)| CommitId::parse(id).ok())?;
    // The branch behind HEAD, where the host tells it.
    let behind = lines()
        .find_map(|(id, _)| id.strip_prefix("ref: "))
        .filter(|name| is_plain(name));
    let reference = behind.map_or(name.as_str(), |name| name).to_owned();
    Some(Revision { commit, reference })
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

    proptest! {
        #[test]
        fn any_answer_is_read_or_refused(listing in "\\PC{0,80}") {
            let _ = find(&listing, &Reference::Default);
        }
    }
}
