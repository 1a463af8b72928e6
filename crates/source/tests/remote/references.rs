//! Resolves branches, tags and commits, also after the remote changed them.

use std::collections::BTreeSet;
use std::io::Write as _;
use std::process::{Command, Stdio};

use alustan_source::{Credentials, Reference, RepositoryUrl};

use crate::support::{HttpServer, Origin, Rules, TestCache, assert_failure, files};

async fn serve(origin: &Origin, old: bool) -> HttpServer {
    let rules = Rules {
        old,
        ..Rules::default()
    };
    HttpServer::plain(origin.folder.path(), rules).await
}

fn main_tf(text: &str) -> Vec<(String, String)> {
    vec![("main.tf".to_owned(), text.to_owned())]
}

#[tokio::test]
async fn light_and_annotated_tags_resolve_to_their_commit() {
    let origin = Origin::with(&[("main.tf", "# 1\n")]);
    let first = origin.git(&["-C", "work", "rev-parse", "HEAD"]);
    origin.git(&["-C", "work", "tag", "light"]);
    origin.git(&["-C", "work", "tag", "--annotate", "--message=m", "v1.0"]);
    // `nested` is an annotated tag of the tag `v1.0`. The next push creates a branch with the name of the tag `light`.
    origin.git(&[
        "-C",
        "work",
        "tag",
        "--annotate",
        "--message=m",
        "nested",
        "v1.0",
    ]);
    origin.commit(&[("main.tf", "# 2\n")]);
    origin.git(&[
        "-C",
        "work",
        "push",
        "--quiet",
        "origin",
        "--tags",
        "HEAD:refs/heads/light",
    ]);
    let none = Credentials::default();
    for old in [false, true] {
        let server = serve(&origin, old).await;
        for name in ["light", "v1.0", "nested"] {
            let tag = Reference::tag(name).unwrap();
            let cache = TestCache::new();
            let (revision, context) = cache.context_at(&server.url(), &tag, &none).await.unwrap();
            assert_eq!(revision.commit.as_str(), first, "{name}");
            assert_eq!(revision.reference, format!("refs/tags/{name}"));
            assert_eq!(files(&context), main_tf("# 1\n"));
        }
    }
}

#[tokio::test]
async fn moved_tag_is_followed_and_missing_tag_is_reported() {
    let origin = Origin::with(&[("main.tf", "# 1\n")]);
    origin.git(&["-C", "work", "tag", "latest"]);
    origin.git(&["-C", "work", "push", "--quiet", "origin", "--tags"]);
    let server = serve(&origin, false).await;
    let cache = TestCache::new();
    let none = Credentials::default();
    let tag = Reference::tag("latest").unwrap();
    cache.context_at(&server.url(), &tag, &none).await.unwrap();
    let second = origin.commit(&[("main.tf", "# 2\n")]);
    origin.git(&["-C", "work", "tag", "--force", "latest"]);
    origin.git(&[
        "-C", "work", "push", "--quiet", "--force", "origin", "--tags",
    ]);
    let (revision, context) = cache.context_at(&server.url(), &tag, &none).await.unwrap();
    assert_eq!(revision.commit.as_str(), second);
    assert_eq!(files(&context), main_tf("# 2\n"));
    let gone = Reference::tag("v9").unwrap();
    let error = cache
        .context_at(&server.url(), &gone, &none)
        .await
        .unwrap_err();
    assert_failure(
        &error,
        "TagNotFound",
        false,
        &["tag v9 does not exist in http://"],
    );
}

#[tokio::test]
async fn past_commit_is_fetched_from_every_kind_of_host() {
    let origin = Origin::with(&[("main.tf", "# 1\n")]);
    let first = origin.git(&["-C", "work", "rev-parse", "HEAD"]);
    let second = origin.commit(&[("main.tf", "# 2\n")]);
    origin.commit(&[("main.tf", "# 3\n")]);
    let none = Credentials::default();
    for old in [false, true] {
        let (server, cache) = (serve(&origin, old).await, TestCache::new());
        for (id, text) in [(&first, "# 1\n"), (&second, "# 2\n")] {
            let commit = Reference::commit(&id.to_uppercase()).unwrap();
            let (revision, context) = cache
                .context_at(&server.url(), &commit, &none)
                .await
                .unwrap();
            assert_eq!(revision.commit.as_str(), id.as_str());
            assert_eq!(files(&context), main_tf(text), "old host: {old}");
        }
        // Earlier fetches by commit id do not affect a fetch of the default branch.
        let (_, context) = cache
            .context_at(&server.url(), &Reference::Default, &none)
            .await
            .unwrap();
        assert_eq!(files(&context), main_tf("# 3\n"));
    }
}

#[tokio::test]
async fn unreachable_commit_is_fetched_if_the_host_serves_it() {
    let origin = Origin::with(&[("main.tf", "# 1\n")]);
    let dropped = origin.commit(&[("main.tf", "# dropped\n")]);
    origin.git(&["-C", "work", "reset", "--quiet", "--hard", "HEAD^"]);
    origin.commit(&[("main.tf", "# instead\n")]);
    let none = Credentials::default();
    let commit = Reference::commit(&dropped).unwrap();
    let server = serve(&origin, false).await;
    let cache = TestCache::new();
    let (_, context) = cache
        .context_at(&server.url(), &commit, &none)
        .await
        .unwrap();
    assert_eq!(files(&context), main_tf("# dropped\n"));
    let old = serve(&origin, true).await;
    let error = TestCache::new()
        .context_at(&old.url(), &commit, &none)
        .await
        .unwrap_err();
    assert_failure(
        &error,
        "CommitNotFound",
        false,
        &[&dropped, "no branch or tag"],
    );
}

/// Asserts that a missing commit is reported, with the current version and with version 0 of the git protocol.
async fn misses_a_commit(origin: &Origin, word: &str) {
    let commit = Reference::commit(&"a".repeat(40)).unwrap();
    for old in [false, true] {
        let server = serve(origin, old).await;
        let error = TestCache::new()
            .context_at(&server.url(), &commit, &Credentials::default())
            .await
            .unwrap_err();
        assert_failure(&error, "CommitNotFound", false, &[word]);
    }
}

#[tokio::test]
async fn unknown_commit_is_reported() {
    let origin = Origin::with(&[("main.tf", "")]);
    misses_a_commit(&origin, "aaaaaaaa").await;
}

#[tokio::test]
async fn commit_in_a_repository_without_branches_is_reported() {
    let origin = Origin::with(&[("main.tf", "")]);
    origin.git(&["-C", "r.git", "update-ref", "-d", "refs/heads/main"]);
    misses_a_commit(&origin, "no branch or tag").await;
}

#[tokio::test]
async fn abbreviated_commit_id_is_refused_with_advice() {
    let error = Reference::commit("c0ffee1").unwrap_err();
    assert_failure(
        &error,
        "InvalidReference",
        false,
        &["`c0ffee1`", "all 40", "git rev-parse"],
    );
}

#[tokio::test]
async fn a_rewritten_branch_is_followed() {
    let origin = Origin::with(&[("main.tf", "# 1\n"), ("gone.tf", "")]);
    origin.commit(&[("main.tf", "# 2\n")]);
    let none = Credentials::default();
    for old in [false, true] {
        let (server, cache) = (serve(&origin, old).await, TestCache::new());
        cache.context(&server.url(), "", &none).await.unwrap();
        // Replaces the history of `main` with a history that has no commit in common with the earlier history.
        origin.git(&["-C", "work", "checkout", "--quiet", "--orphan", "other"]);
        origin.git(&["-C", "work", "rm", "--quiet", "-r", "-f", "."]);
        let text = format!("# rewritten {old}\n");
        let id = origin.commit(&[("main.tf", &text)]);
        origin.git(&[
            "-C",
            "work",
            "push",
            "--quiet",
            "--force",
            "origin",
            "HEAD:main",
        ]);
        origin.git(&["-C", "work", "checkout", "--quiet", "-B", "main"]);
        origin.git(&["-C", "work", "branch", "-D", "other"]);
        let revision = cache
            .resolve(&server.url(), Some("main"), &none)
            .await
            .unwrap();
        assert_eq!(revision.commit.as_str(), id);
        let context = cache
            .context_of(&server.url(), "", &revision, &none)
            .await
            .unwrap();
        assert_eq!(files(&context), main_tf(&text));
    }
}

#[tokio::test]
async fn deleted_branch_is_reported_with_the_default_branch() {
    let origin = Origin::with(&[("main.tf", "")]);
    origin.git(&[
        "-C",
        "work",
        "push",
        "--quiet",
        "origin",
        "HEAD:refs/heads/feature",
    ]);
    let server = serve(&origin, false).await;
    let cache = TestCache::new();
    let none = Credentials::default();
    let feature = Some("feature");
    let revision = cache.resolve(&server.url(), feature, &none).await.unwrap();
    origin.git(&["-C", "work", "push", "--quiet", "origin", ":feature"]);
    let error = cache
        .resolve(&server.url(), feature, &none)
        .await
        .unwrap_err();
    assert_failure(
        &error,
        "BranchNotFound",
        false,
        &[
            "branch feature does not exist",
            "its default branch is main",
        ],
    );
    // The commit to which the branch pointed can still be fetched by its id.
    cache
        .context_of(&server.url(), "", &revision, &none)
        .await
        .unwrap();
}

#[tokio::test]
async fn empty_repository_is_used_after_its_first_commit() {
    let origin = Origin::empty();
    let server = serve(&origin, false).await;
    let cache = TestCache::new();
    let none = Credentials::default();
    for branch in [None, Some("main")] {
        let error = cache
            .resolve(&server.url(), branch, &none)
            .await
            .unwrap_err();
        assert_failure(&error, "RepositoryEmpty", false, &["push a commit"]);
    }
    origin.commit(&[("main.tf", "# 1\n")]);
    let context = cache.context(&server.url(), "", &none).await.unwrap();
    assert_eq!(files(&context), main_tf("# 1\n"));
}

/// Returns the output of `git upload-pack` in version 2 of the protocol for a request with `body`.
fn upload_pack(origin: &Origin, options: &[&str], body: &[u8]) -> Vec<u8> {
    let mut command = Command::new("git");
    command
        .args(["upload-pack", "--stateless-rpc"])
        .args(options);
    let mut git = command
        .arg(origin.folder.path().join("r.git"))
        .env("GIT_PROTOCOL", "version=2")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    git.stdin.take().unwrap().write_all(body).unwrap();
    git.wait_with_output().unwrap().stdout
}

#[tokio::test]
async fn ls_refs_returns_the_listing_of_ls_remote() {
    let origin = Origin::with(&[("main.tf", "# 1\n")]);
    let push = ["-C", "work", "push", "--quiet", "origin", "--tags"];
    let branches = ["HEAD:refs/heads/main-2", "HEAD:refs/heads/ma"];
    origin.git(&["-C", "work", "tag", "light"]);
    origin.git(&["-C", "work", "tag", "--annotate", "--message=m", "v1"]);
    origin.git(&["-C", "work", "tag", "--annotate", "--message=m", "v1.1"]);
    let nested = ["tag", "--annotate", "--message=m", "nested", "v1"];
    origin.git(&[&["-C", "work"], &nested[..]].concat());
    origin.git(&[&push[..], &branches].concat());
    origin.git(&[
        "-C",
        "r.git",
        "symbolic-ref",
        "refs/heads/alias",
        "refs/heads/main",
    ]);
    origin.commit(&[("main.tf", "# 2\n")]);
    let branch = |name| Reference::branch(Some(name)).unwrap();
    let tag = |name| Reference::tag(name).unwrap();
    let queries = [
        vec![Reference::Default],
        vec![branch("main")],
        vec![branch("gone"), tag("gone")],
        vec![tag("v1")],
        vec![
            Reference::Default,
            branch("main"),
            branch("ma"),
            branch("alias"),
            tag("light"),
            tag("v1"),
            tag("nested"),
        ],
    ];
    let empty = Origin::empty();
    let all = queries.iter().map(|query| (&origin, query));
    for (origin, references) in all.chain([(&empty, &queries[0]), (&empty, &queries[1])]) {
        let (server, cache) = (serve(origin, false).await, TestCache::new());
        let url = RepositoryUrl::parse(&server.url()).unwrap();
        let references: BTreeSet<Reference> = references.iter().cloned().collect();
        let query = cache.cache.ls_refs(&url, &references).unwrap();
        let advertisement = upload_pack(origin, &["--http-backend-info-refs"], b"");
        let request = query.request(&advertisement).unwrap();
        let listing = query.listing(&upload_pack(origin, &[], &request)).unwrap();
        let none = Credentials::default();
        let of_git = cache.cache.references(&url, &references, &none).await;
        assert_eq!(listing, of_git.unwrap());
    }
}
