//! Git submodules. Adds the files of fetched submodules to the tree of the superproject, and computes the closure (the files that the module needs)
//! again.
//!
//! Commits of submodules are fetched into the cached repository of the superproject, under the same limits. Objects do not conflict, because git
//! names them by their content. The folder of the repository depends on the credentials, so a tenant cannot read submodules that another tenant has
//! fetched with other credentials.

use std::collections::HashMap;
use std::sync::Arc;

use super::{
    collect::{RepositoryCall, WantedModule},
    commits::{Commit, Snapshot},
    options::LISTING,
    repositories::{GitCache, Question, RemoteRepository},
    store::Reading,
};
use crate::{
    closure::Selection,
    credentials::Credentials,
    error::Error,
    fair_semaphore::Permit,
    git::access,
    reference::{CommitId, Revision},
    tree::{Entry, Kind, Tree},
    url::RepositoryUrl,
};

/// Maximum number of submodules of a context. Prevents endless fetches of submodules that contain each other.
const MANY: usize = 100;

/// An entry of `.gitmodules`.
#[derive(Debug, Default, PartialEq, Eq)]
struct Named {
    path: String,
    url: String,
}

/// A fetched submodule, with its path in the tree of the superproject.
struct Graft {
    path: String,
    url: RepositoryUrl,
    commit: Commit,
}

/// Files of a commit and of its fetched submodules.
struct Grafted {
    tree: Arc<Tree>,
    /// Size of the list of all files, in bytes.
    bytes: u64,
}

impl Grafted {
    fn new(commit: &Snapshot) -> Self {
        Self {
            tree: commit.tree.clone(),
            bytes: commit.bytes as u64,
        }
    }

    /// Adds the files of a submodule at `path`. Fails if the list of all files would exceed [`LISTING`] bytes.
    fn with(mut self, path: &str, submodule: &Snapshot) -> Result<Self, String> {
        let prefixes = submodule.tree.count().saturating_mul(path.len());
        self.bytes += submodule.bytes.saturating_add(prefixes) as u64;
        if self.bytes > LISTING {
            return Err(format!(
                "the list of files including all submodules exceeds {LISTING} bytes"
            ));
        }
        Arc::make_mut(&mut self.tree).graft(path, Tree::clone(&submodule.tree));
        Ok(self)
    }
}

/// Files of a context, and the lock and the permit under which they are read.
pub(super) struct Selected {
    pub(super) selection: Selection,
    pub(super) snapshot: Arc<Snapshot>,
    pub(super) files: Reading,
    pub(super) permit: Option<Permit>,
}

impl GitCache {
    /// Returns the files of the module, including the files of submodules. Fetches missing submodules, and releases the lock and the permit
    /// during each fetch.
    pub(super) async fn select(
        &self,
        call: &RepositoryCall<'_>,
        question: &Question<'_>,
        module: &WantedModule<'_>,
        commit: &Commit,
        mut permit: Option<Permit>,
    ) -> Result<Selected, Error> {
        let mut grafts: Vec<Graft> = Vec::new();
        loop {
            let files = self.store.read(&commit.repository).await;
            let snapshot = self.snapshot(call, commit).await?;
            let mut grafted = Grafted::new(&snapshot);
            for graft in &grafts {
                let submodule = self.snapshot(call, &graft.commit).await?;
                let path = graft.path.clone();
                grafted = call
                    .unblocked(move || grafted.with(&path, &submodule))
                    .await?
                    .map_err(|why| call.unusable(&graft.path, why))?;
            }
            let tree = &grafted.tree;
            let selection = call.closure(tree, module, &self.facts).await?;
            let missing = selection.submodules.first().filter(|_| module.submodules);
            let Some(path) = missing else {
                return Ok(Selected {
                    selection,
                    snapshot,
                    files,
                    permit,
                });
            };
            if grafts.len() >= MANY {
                return Err(call.unusable(path, format!("more than {MANY} submodules")));
            }
            let (url, revision) = call.submodule(tree, path, &grafts, module).await?;
            drop((files, permit));
            let credentials = credentials_for(question.credentials, question.url, &url);
            let kept = format!("refs/alustan/of-{}", revision.commit);
            let remote = RemoteRepository {
                folder: &commit.repository,
                url: &url,
                credentials: &credentials,
                kept: &kept,
            };
            let fetched = self
                .commit(&remote, &mut revision.clone(), &|| revision.clone())
                .await?;
            grafts.push(Graft {
                path: path.clone(),
                url,
                commit: fetched,
            });
            permit = self.reading.acquire(call.size, &self.tenant).await;
        }
    }

    async fn snapshot(
        &self,
        call: &RepositoryCall<'_>,
        commit: &Commit,
    ) -> Result<Arc<Snapshot>, Error> {
        let read = call.snapshot(&commit.revision.commit);
        self.commits.files(commit, read).await
    }
}

impl RepositoryCall<'_> {
    /// Returns URL and commit of the submodule at `path` in `tree`.
    async fn submodule(
        &self,
        tree: &Tree,
        path: &str,
        grafts: &[Graft],
        module: &WantedModule<'_>,
    ) -> Result<(RepositoryUrl, Revision), Error> {
        let (inside, parent) = grafts
            .iter()
            .filter(|graft| path.starts_with(&format!("{}/", graft.path)))
            .max_by_key(|graft| graft.path.len())
            .map_or(("", self.url), |graft| (graft.path.as_str(), &graft.url));
        let url = self.address(tree, path, inside, parent).await?;
        if !(module.allows)(&url) {
            let why = format!("the repository {url} is not in the allow list of repositories");
            return Err(self.unusable(path, why));
        }
        let commit = match tree.get(path) {
            Some(Entry {
                kind: Kind::Submodule,
                object,
                ..
            }) => CommitId::parse(object)?,
            _ => return Err(self.nonsense()),
        };
        Ok((url, Revision::of_commit(&commit)))
    }

    /// Returns the URL of the submodule at `path`. Reads the URL from `.gitmodules` of the repository that contains the submodule. `inside` is the
    /// folder of that repository in `tree`, and `parent` is the URL of that repository.
    async fn address(
        &self,
        tree: &Tree,
        path: &str,
        inside: &str,
        parent: &RepositoryUrl,
    ) -> Result<RepositoryUrl, Error> {
        let file = crate::repopath::join(inside, ".gitmodules").unwrap_or_default();
        let own = path
            .strip_prefix(inside)
            .unwrap_or(path)
            .trim_start_matches('/')
            .to_owned();
        let unnamed = || self.unusable(path, format!("`{file}` has no URL for the submodule"));
        let entry = tree.get(&file).ok_or_else(unnamed)?;
        let blob = format!("--blob={}", entry.object);
        let arguments = ["config", &blob, "-z", "--list"];
        let listing = self
            .local("read .gitmodules of", &arguments, Vec::new(), LISTING)
            .await?;
        let find = move || {
            read_named(&String::from_utf8_lossy(&listing))
                .into_iter()
                .find(|named| named.path.trim_end_matches('/') == own)
        };
        let submodule = self.unblocked(find).await?;
        let text = submodule.ok_or_else(unnamed)?.url;
        let wrong = |error: Error| self.unusable(path, error.to_string());
        let absolute = resolve(parent.remote(), &text).ok_or_else(|| {
            self.unusable(
                path,
                format!(
                    "the relative URL `{}` leaves the root of the host",
                    text.escape_debug()
                ),
            )
        })?;
        let url = RepositoryUrl::parse(&absolute).map_err(wrong)?;
        if url.subdir().is_some() {
            return Err(self.unusable(
                path,
                format!("the URL {url} contains a folder; a submodule must be a repository"),
            ));
        }
        Ok(url)
    }

    fn unusable(&self, path: &str, why: String) -> Error {
        Error::Submodule {
            path: path.to_owned(),
            remote: self.url.remote().to_owned(),
            why,
        }
    }
}

/// Returns the credentials for the submodule at `url`. Omits user name and password if [`access::is_for`] does not permit them for `url`. Keeps the
/// ssh key, because ssh offers the key only to hosts with a key in `known_hosts`.
fn credentials_for(
    all: &Credentials,
    given_for: &RepositoryUrl,
    url: &RepositoryUrl,
) -> Credentials {
    let mut credentials = all.clone();
    if !access::is_for(given_for, url) {
        credentials.https = None;
    }
    credentials
}

/// Parses the output of `git config -z --list`: a sequence of `submodule.<name>.<key>\n<value>\0`.
fn read_named(listing: &str) -> Vec<Named> {
    let mut submodules: Vec<Named> = Vec::new();
    let mut positions = HashMap::new();
    for (key, value) in listing
        .split('\0')
        .filter_map(|entry| entry.split_once('\n'))
    {
        let Some((name, field)) = key
            .strip_prefix("submodule.")
            .and_then(|rest| rest.rsplit_once('.'))
        else {
            continue;
        };
        let position = *positions.entry(name).or_insert_with(|| {
            submodules.push(Named::default());
            submodules.len() - 1
        });
        if let Some(named) = submodules.get_mut(position) {
            match field {
                "path" => value.clone_into(&mut named.path),
                "url" => value.clone_into(&mut named.url),
                _ => {}
            }
        }
    }
    submodules.retain(|named| !named.path.is_empty() && !named.url.is_empty());
    submodules
}

/// Returns `address` as an absolute URL. A relative URL is resolved against the URL `parent` of the superproject, as in `git submodule`. `None` if
/// `address` leaves the root of the host.
fn resolve(parent: &str, address: &str) -> Option<String> {
    if !address.starts_with("./") && !address.starts_with("../") {
        return Some(address.to_owned());
    }
    let host = parent.find("://").map_or(0, |at| at + 3);
    let mut base = parent.trim_end_matches('/');
    let mut rest = address;
    loop {
        if let Some(next) = rest.strip_prefix("./") {
            rest = next;
        } else if let Some(next) = rest.strip_prefix("../") {
            let end = base.get(host..)?.rfind(['/', ':'])? + host;
            // In `user@host:path`, the host ends at the colon. The colon stays in the URL.
            let keep = if base.get(end..=end)? == ":" {
                end + 1
            } else {
                end
            };
            if keep == base.len() {
                return None;
            }
            base = base.get(..keep)?;
            rest = next;
        } else {
            break;
        }
    }
    let slash = if base.ends_with(':') { "" } else { "/" };
    Some(format!("{base}{slash}{rest}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commit_info::CommitInfo;
    use crate::tree::tests::tree;
    use crate::{HttpsCredentials, SecretString};
    use proptest::prelude::*;
    use rstest::rstest;

    #[rstest]
    #[case("https://h/o/r.git", "https://x/y", Some("https://x/y"))]
    #[case("https://h/o/r.git", "../s.git", Some("https://h/o/s.git"))]
    #[case("https://h/o/r", "../../p/s", Some("https://h/p/s"))]
    #[case("https://h/o/r", "./s", Some("https://h/o/r/s"))]
    #[case("git@h:o/r.git", "../s.git", Some("git@h:o/s.git"))]
    #[case("git@h:o/r.git", "../../p/s.git", Some("git@h:p/s.git"))]
    #[case("git@h:o/r.git", "../../../s.git", None)]
    #[case("https://h/r", "../../s", None)]
    fn relative_submodule_urls_are_resolved(
        #[case] parent: &str,
        #[case] address: &str,
        #[case] whole: Option<&str>,
    ) {
        assert_eq!(resolve(parent, address).as_deref(), whole);
    }

    #[test]
    fn gitmodules_file_is_parsed() {
        let listing = "submodule.a.b.path\nmodules/x\0submodule.a.b.url\n../x.git\0submodule.c.url\ny\0core.bare\n1\0";
        let named = Named {
            path: "modules/x".to_owned(),
            url: "../x.git".to_owned(),
        };
        assert_eq!(read_named(listing), [named]);
    }

    /// With 200,000 entries, a quadratic implementation would not finish in time.
    #[test]
    fn many_names_in_gitmodules_are_read_in_linear_time() {
        let entries = |n: u32| format!("submodule.{n}.path\np{n}\0submodule.{n}.url\nu\0");
        let listing: String = (0..200_000).map(entries).collect();
        assert_eq!(read_named(&listing).len(), 200_000);
    }

    #[test]
    fn list_of_files_with_those_of_submodules_has_a_bound() {
        let snapshot = |tree, bytes| Snapshot {
            tree: Arc::new(tree),
            commit: CommitInfo::default(),
            bytes,
        };
        let mebibytes = |number: usize| snapshot(Tree::default(), number << 20);
        let grafted = Grafted::new(&mebibytes(20))
            .with("a", &mebibytes(20))
            .unwrap()
            .with("b", &mebibytes(24))
            .unwrap();
        let refused = grafted.with("c", &snapshot(Tree::default(), 1));
        assert_eq!(
            refused.err().unwrap(),
            "the list of files including all submodules exceeds 67108864 bytes"
        );
        // The size of the list of files includes the path of the submodule, because this path is part of the path of each file of the submodule.
        let files = snapshot(tree(&["a", "b"]), 0);
        let grafted = Grafted::new(&mebibytes(0));
        let path = "p".repeat(32 << 20);
        let grafted = grafted.with(&path, &files).unwrap();
        assert_eq!(grafted.tree.count(), 2);
        assert!(grafted.with("p", &files).is_err());
    }

    #[rstest]
    #[case("https://h/o/r", "https://h/o/s", true)]
    #[case("https://h/o/r", "https://other/o/s", false)]
    #[case("https://h/o/r", "http://h/o/s", false)]
    #[case("https://h/o/r", "https://h:8443/o/s", false)]
    #[case("git@h:o/r", "https://h/o/s", true)]
    fn submodule_gets_password_only_on_the_same_host(
        #[case] of: &str,
        #[case] submodule: &str,
        #[case] given: bool,
    ) {
        let all = Credentials {
            https: Some(HttpsCredentials {
                username: SecretString::new("me"),
                password: SecretString::new("hunter2"),
            }),
            ..Credentials::default()
        };
        let url = |text| RepositoryUrl::parse(text).unwrap();
        let credentials = credentials_for(&all, &url(of), &url(submodule));
        assert_eq!(credentials.https.is_some(), given);
    }

    proptest! {
        #[test]
        fn any_gitmodules_and_any_address_are_read_or_refused(
            listing in "(submodule\\.[a-z.]{0,4}\\.(path|url)\n[a-z./]{0,6}\0?){0,4}",
            parent in "(https://|git@)[a-z]{1,3}[:/][a-z/:]{0,8}", address in "(\\.{1,2}/){0,4}[a-z/:.]{0,8}",
        ) {
            let _ = read_named(&listing);
            let _ = resolve(&parent, &address);
        }
    }
}
