//! Git cache over time: concurrent calls, killed processes, damaged repositories, and repositories with many pack files.

use std::{fs, path::PathBuf, time::Duration};

use alustan_source::{CacheOptions, ContextSpec, Credentials, GitCache, Reference, RepositoryUrl};

use crate::support::{HttpServer, Origin, Rules, TestCache, files};

async fn serve(origin: &Origin) -> HttpServer {
    HttpServer::plain(origin.folder.path(), Rules::default()).await
}

/// Returns the path of the only repository in the cache.
fn repository(cache: &TestCache) -> PathBuf {
    let mut entries = fs::read_dir(cache.root.path().join("repositories")).unwrap();
    let path = entries.next().unwrap().unwrap().path();
    assert!(entries.next().is_none(), "one repository is expected");
    path
}

/// Returns text that compresses badly.
fn noise(words: u32) -> String {
    (0..words)
        .map(|n| n.wrapping_mul(2_654_435_761).to_string())
        .collect()
}

fn packs(cache: &TestCache) -> usize {
    let entries = fs::read_dir(repository(cache).join("objects/pack")).unwrap();
    entries
        .filter(|entry| {
            entry
                .as_ref()
                .unwrap()
                .path()
                .extension()
                .is_some_and(|end| end == "pack")
        })
        .count()
}

#[tokio::test(flavor = "multi_thread")]
async fn concurrent_calls_share_one_repository() {
    let origin = Origin::with(&[("main.tf", "# x\n")]);
    let (server, cache) = (serve(&origin).await, TestCache::new());
    let none = Credentials::default();
    let revision = cache.resolve(&server.url(), None, &none).await.unwrap();
    let url = RepositoryUrl::parse(&server.url()).unwrap();
    let calls = (0..8).map(|_| {
        let (cache, url, revision) = (cache.cache.clone(), url.clone(), revision.clone());
        tokio::spawn(async move {
            let spec = ContextSpec::default();
            cache
                .fetch_context(&url, &revision, &spec, &Credentials::default(), &|_| true)
                .await
                .unwrap()
                .digest
        })
    });
    let mut digests = Vec::new();
    for call in calls.collect::<Vec<_>>() {
        digests.push(call.await.unwrap());
    }
    digests.dedup();
    assert_eq!(
        (digests.len(), packs(&cache)),
        (1, 1),
        "fetched once, packed alike"
    );
}

#[tokio::test]
async fn cached_commit_needs_no_network() {
    let origin = Origin::with(&[("main.tf", "# x\n")]);
    let server = serve(&origin).await;
    let cache = TestCache::new();
    let none = Credentials::default();
    let url = server.url();
    let revision = cache.resolve(&url, None, &none).await.unwrap();
    let first = cache.context_of(&url, "", &revision, &none).await.unwrap();
    drop(server);
    let again = cache.context_of(&url, "", &revision, &none).await.unwrap();
    assert_eq!(first.digest, again.digest);
}

#[tokio::test]
async fn second_commit_fetches_only_the_difference() {
    let noise = noise(200_000);
    let origin = Origin::with(&[("big", &noise), ("main.tf", "# 1\n")]);
    let server = serve(&origin).await;
    let cache = TestCache::new();
    let none = Credentials::default();
    cache.context(&server.url(), "", &none).await.unwrap();
    let size = |cache: &TestCache| -> u64 {
        let entries = fs::read_dir(repository(cache).join("objects/pack")).unwrap();
        entries
            .map(|entry| entry.unwrap().metadata().unwrap().len())
            .sum()
    };
    let before = size(&cache);
    origin.commit(&[("main.tf", "# 2\n")]);
    let context = cache.context(&server.url(), "", &none).await.unwrap();
    assert!(files(&context).contains(&("main.tf".to_owned(), "# 2\n".to_owned())));
    assert!(
        size(&cache) - before < 10_000,
        "{before} became {}",
        size(&cache)
    );
}

#[tokio::test]
async fn files_of_a_killed_git_do_not_block_fetches() {
    let origin = Origin::with(&[("main.tf", "# 1\n")]);
    let server = serve(&origin).await;
    let cache = TestCache::new();
    let none = Credentials::default();
    cache.context(&server.url(), "", &none).await.unwrap();
    let path = repository(&cache);
    for lock_file in [
        "shallow.lock",
        "packed-refs.lock",
        "refs/alustan/last.lock",
        "objects/pack/tmp_pack_x",
    ] {
        fs::write(path.join(lock_file), "").unwrap();
    }
    origin.commit(&[("main.tf", "# 2\n")]);
    cache.context(&server.url(), "", &none).await.unwrap();
    assert!(!path.join("objects/pack/tmp_pack_x").exists());
}

#[tokio::test]
async fn damaged_repository_is_recreated() {
    let origin = Origin::with(&[("main.tf", "# 1\n")]);
    let server = serve(&origin).await;
    let cache = TestCache::new();
    let none = Credentials::default();
    let first = cache.context(&server.url(), "", &none).await.unwrap();
    let path = repository(&cache);
    for damage in ["pack", "head", "config"] {
        match damage {
            "pack" => {
                for entry in fs::read_dir(path.join("objects/pack")).unwrap() {
                    let path = entry.unwrap().path();
                    let _ = fs::remove_file(&path);
                    fs::write(&path, "damaged").unwrap();
                }
            }
            "head" => fs::remove_file(path.join("HEAD")).unwrap(),
            _ => fs::write(path.join("config"), "[damaged").unwrap(),
        }
        let again = cache.context(&server.url(), "", &none).await.unwrap();
        assert_eq!(first.digest, again.digest, "{damage}");
    }
}

#[tokio::test]
async fn repository_with_many_packs_is_fetched_again() {
    let origin = Origin::with(&[("main.tf", "")]);
    let server = serve(&origin).await;
    let cache = TestCache::new();
    let none = Credentials::default();
    cache.context(&server.url(), "", &none).await.unwrap();
    for n in 0..60 {
        fs::write(
            repository(&cache).join(format!("objects/pack/pack-{n}.pack")),
            "",
        )
        .unwrap();
    }
    origin.commit(&[("main.tf", "# 2\n")]);
    cache.context(&server.url(), "", &none).await.unwrap();
    assert_eq!(packs(&cache), 1);
}

#[tokio::test]
async fn repository_above_the_size_limit_is_refused() {
    let noise = noise(100_000);
    let origin = Origin::with(&[("big", &noise)]);
    let server = serve(&origin).await;
    let root = tempfile::tempdir().unwrap();
    let options = CacheOptions {
        repository_bytes: 100_000,
        ..CacheOptions::default()
    };
    let cache = GitCache::with_options(root.path(), options).unwrap();
    let url = RepositoryUrl::parse(&server.url()).unwrap();
    let none = Credentials::default();
    let revision = cache
        .resolve(&url, &Reference::Default, &none)
        .await
        .unwrap();
    let error = cache
        .fetch_context(&url, &revision, &ContextSpec::default(), &none, &|_| true)
        .await
        .unwrap_err();
    assert_eq!(
        (error.reason().as_str(), error.is_transient()),
        ("RepositoryTooLarge", false),
        "{error}"
    );
}

#[tokio::test]
async fn tenants_do_not_read_each_others_repositories() {
    let origin = Origin::with(&[("main.tf", "# secret\n")]);
    let rules = Rules::requiring("bWU6aHVudGVyMg==");
    let server = HttpServer::plain(origin.folder.path(), rules).await;
    let cache = TestCache::new();
    let mine = server.credentials(Some("hunter2"));
    let revision = cache.resolve(&server.url(), None, &mine).await.unwrap();
    cache
        .context_of(&server.url(), "", &revision, &mine)
        .await
        .unwrap();
    let theirs = server.credentials(Some("guess"));
    let error = cache
        .context_of(&server.url(), "", &revision, &theirs)
        .await
        .unwrap_err();
    assert_eq!(
        error.reason().as_str(),
        "GitAuthenticationFailed",
        "the commit is in the cache, but not theirs"
    );
}

#[tokio::test]
async fn idle_repositories_are_swept() {
    let origin = Origin::with(&[("main.tf", "")]);
    let server = serve(&origin).await;
    let cache = TestCache::new();
    let none = Credentials::default();
    cache.context(&server.url(), "", &none).await.unwrap();
    assert_eq!(cache.cache.sweep(Duration::from_mins(1)).unwrap(), 0);
    assert_eq!(cache.cache.sweep(Duration::ZERO).unwrap(), 1);
    cache.context(&server.url(), "", &none).await.unwrap();
}
