//! Contexts of real commits.

use std::os::unix::fs::symlink;

use alustan_source::{
    CacheOptions, Context, ContextSpec, Credentials, GitCache, Reference, RepositoryUrl,
};

use crate::support::{HttpServer, Origin, Rules, TestCache, files, names};

const CALL: &str = "module \"x\" {\n  source = \"../x\"\n}\n";

async fn serve(origin: &Origin) -> HttpServer {
    HttpServer::plain(origin.folder.path(), Rules::default()).await
}

#[tokio::test]
async fn the_same_content_has_the_same_digest_at_every_commit() {
    let (cache, none) = (TestCache::new(), Credentials::default());
    let origin = Origin::with(&[("m/main.tf", CALL), ("x/main.tf", "# x\n"), ("README", "1")]);
    let server = serve(&origin).await;
    let first = cache.context(&server.url(), "m", &none).await.unwrap();
    origin.commit(&[("README", "2"), ("y/main.tf", "")]);
    let outside = cache.context(&server.url(), "m", &none).await.unwrap();
    assert_eq!(
        first.digest, outside.digest,
        "a commit outside of the closure changes nothing"
    );
    origin.commit(&[("x/main.tf", "# other\n")]);
    let inside = cache.context(&server.url(), "m", &none).await.unwrap();
    assert_ne!(first.digest, inside.digest);
    let other_cache = TestCache::new();
    let elsewhere = other_cache
        .context(&server.url(), "m", &none)
        .await
        .unwrap();
    assert_eq!(
        inside.digest, elsewhere.digest,
        "another cache packs the same bytes"
    );
    let bytes = |context: Context| std::fs::read(context.archive.unwrap()).unwrap();
    assert_eq!(bytes(elsewhere), bytes(inside));
}

#[tokio::test]
async fn contents_modes_and_links_are_preserved() {
    let (cache, none) = (TestCache::new(), Credentials::default());
    let origin = Origin::with(&[
        ("m/main.tf", "# ü\r\n"),
        ("m/run.sh", "#!/bin/sh\n"),
        ("m/t/a b.tpl", "x"),
        ("m/empty", ""),
    ]);
    let set = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(origin.work().join("m/run.sh"), set).unwrap();
    symlink("t/a b.tpl", origin.work().join("m/link")).unwrap();
    origin.commit(&[]);
    let server = serve(&origin).await;
    let context = cache.context(&server.url(), "m", &none).await.unwrap();
    let files = files(&context);
    let text = |name: &str| {
        files
            .iter()
            .find(|(path, _)| path == name)
            .map(|(_, text)| text.as_str())
    };
    assert_eq!(text("m/main.tf"), Some("# ü\r\n"));
    assert_eq!((text("m/link"), text("m/empty")), (Some("x"), Some("")));
    assert_eq!((context.files, context.uncompressed), (5, 6 + 10 + 1 + 9));
    assert_eq!(context.module_path, "m");
}

#[tokio::test]
async fn invalid_module_or_path_is_reported_with_its_reason() {
    let (cache, none) = (TestCache::new(), Credentials::default());
    let origin = Origin::with(&[
        ("up/main.tf", "module \"x\" {\n  source = \"../../x\"\n}\n"),
        ("nowhere/main.tf", CALL),
        ("link/main.tf", ""),
        ("file", ""),
    ]);
    symlink("/etc/passwd", origin.work().join("link/l")).unwrap();
    origin.commit(&[]);
    let server = serve(&origin).await;
    for (path, reason, words) in [
        ("up", "PathLeavesRepository", "up/main.tf:1: module \"x\""),
        (
            "nowhere",
            "ModuleNotFound",
            "nowhere/main.tf:1: module \"x\"",
        ),
        ("link", "SymlinkLeavesContext", "`link/l` -> `/etc/passwd`"),
        ("nothing", "PathNotFound", "path `nothing` does not exist"),
        ("file", "InvalidPath", "is a file"),
        ("../x", "InvalidPath", "contains `..`"),
        ("/etc", "InvalidPath", "is absolute"),
    ] {
        let error = cache.context(&server.url(), path, &none).await.unwrap_err();
        assert_eq!(
            (error.reason().as_str(), error.is_transient()),
            (reason, false),
            "{error}"
        );
        assert!(error.to_string().contains(words), "{error}");
    }
}

#[tokio::test]
async fn unparsable_module_uses_the_whole_repository() {
    let (cache, none) = (TestCache::new(), Credentials::default());
    let origin = Origin::with(&[
        ("m/main.tf", "resource \"a\" \"b\" {\n  x = [\n}\n"),
        ("m/backend.tf", "terraform {\n  backend \"s3\" {}\n}\n"),
        ("x/main.tf", ""),
        ("README", "1"),
    ]);
    symlink("/etc/passwd", origin.work().join("x/link")).unwrap();
    origin.commit(&[]);
    let server = serve(&origin).await;
    let context = cache.context(&server.url(), "m", &none).await.unwrap();
    assert_eq!(
        names(&context),
        ["README", "m/backend.tf", "m/main.tf", "x/main.tf"]
    );
    assert_eq!(context.module_backend.as_deref(), Some("s3"));
    origin.commit(&[("README", "2")]);
    let next = cache.context(&server.url(), "m", &none).await.unwrap();
    assert_ne!(context.digest, next.digest, "every commit counts");
}

/// A hostile module must not delay other modules. The cache reads the module, packs the whole repository, or refuses the module because of its
/// size.
#[tokio::test]
async fn hostile_modules_are_read_in_bounded_time() {
    let (cache, none) = (TestCache::new(), Credentials::default());
    let origin = Origin::with(&[("README", "1")]);
    let call = |n: usize| format!("module \"m{n}\" {{\n  source = \"./{n}\"\n}}\n");
    let calls: String = (0..100_000).map(call).collect();
    let key = |n: usize| format!("    k{n} = 1\n");
    let wide: String = (0..200_000).map(key).collect();
    let deep = "[".repeat(4 << 20);
    for (folder, text) in [
        ("calls", calls),
        ("wide", format!("locals {{\n  a = {{\n{wide}  }}\n}}\n")),
        ("deep", format!("locals {{\n  a = {deep}\n}}\n")),
    ] {
        origin.commit(&[(&format!("{folder}/main.tf"), &text)]);
    }
    for name in 0..3_000 {
        std::fs::create_dir_all(origin.work().join("names")).unwrap();
        std::fs::write(
            origin.work().join(format!("names/{name}.tf")),
            "locals {}\n",
        )
        .unwrap();
    }
    origin.commit(&[]);
    let server = serve(&origin).await;
    for folder in ["wide", "deep", "names"] {
        let context = cache.context(&server.url(), folder, &none).await.unwrap();
        assert_eq!(context.module_path, folder);
    }
    let error = cache
        .context(&server.url(), "calls", &none)
        .await
        .unwrap_err();
    assert_eq!(error.reason().as_str(), "ModuleNotFound");
}

#[tokio::test]
async fn submodules_are_excluded() {
    let (cache, none) = (TestCache::new(), Credentials::default());
    let origin = Origin::with(&[("main.tf", "")]);
    let id = "a".repeat(40);
    origin.git(&[
        "-C",
        "work",
        "update-index",
        "--add",
        "--cacheinfo",
        &format!("160000,{id},vendor"),
    ]);
    origin.git(&["-C", "work", "commit", "--quiet", "--message=s"]);
    origin.git(&["-C", "work", "push", "--quiet", "origin", "HEAD"]);
    let server = serve(&origin).await;
    let context = cache.context(&server.url(), "", &none).await.unwrap();
    assert_eq!(
        (names(&context), context.submodules),
        (vec!["main.tf".to_owned()], vec!["vendor".to_owned()])
    );
}

#[tokio::test]
async fn link_target_of_more_than_4096_bytes_is_refused() {
    let longest = format!("{}/main.tf", "./".repeat(2_044));
    let longer = format!("{}main.tf", "./".repeat(2_045));
    assert_eq!((longest.len(), longer.len()), (4_096, 4_097));
    for (target, reason) in [(longest, None), (longer, Some("SymlinkLeavesContext"))] {
        let origin = Origin::with(&[("main.tf", "")]);
        // The kernel does not create a symbolic link with a target of this length, so the test writes the git object directly.
        std::fs::write(origin.folder.path().join("target"), target).unwrap();
        let object = origin.git(&["-C", "work", "hash-object", "-w", "../target"]);
        let entry = format!("120000,{object},link.tf");
        origin.git(&["-C", "work", "update-index", "--add", "--cacheinfo", &entry]);
        origin.git(&["-C", "work", "commit", "--quiet", "--message=l"]);
        origin.git(&["-C", "work", "push", "--quiet", "origin", "HEAD"]);
        let server = serve(&origin).await;
        let result = TestCache::new()
            .context(&server.url(), "", &Credentials::default())
            .await;
        assert_eq!(result.err().map(|error| error.reason().as_str()), reason);
    }
}

#[tokio::test]
async fn context_size_and_file_limits_apply() {
    let origin = Origin::with(&[("main.tf", ""), ("big", &"x".repeat(10_000))]);
    let server = serve(&origin).await;
    let none = Credentials::default();
    for options in [
        CacheOptions {
            context_bytes: 9_999,
            ..CacheOptions::default()
        },
        CacheOptions {
            context_files: 1,
            ..CacheOptions::default()
        },
    ] {
        let root = tempfile::tempdir().unwrap();
        let cache = GitCache::with_options(root.path(), options).unwrap();
        let url = RepositoryUrl::parse(&server.url()).unwrap();
        let revision = cache
            .resolve(&url, &Reference::Default, &none)
            .await
            .unwrap();
        let error = cache
            .fetch_context(&url, &revision, &ContextSpec::default(), &none, &|_| true)
            .await
            .unwrap_err();
        assert_eq!(error.reason().as_str(), "ContextTooLarge", "{error}");
    }
}

#[tokio::test]
async fn branch_and_url_folder_are_used() {
    let (cache, none) = (TestCache::new(), Credentials::default());
    let origin = Origin::with(&[("a/b/main.tf", "# main\n")]);
    origin.git(&["-C", "work", "checkout", "--quiet", "-b", "feature/x"]);
    origin.commit(&[("a/b/main.tf", "# feature\n")]);
    let server = serve(&origin).await;
    let url = format!("{}//a", server.url());
    let revision = cache.resolve(&url, Some("feature/x"), &none).await.unwrap();
    assert_eq!(revision.branch(), Some("feature/x"));
    let context = cache.context_of(&url, "b", &revision, &none).await.unwrap();
    assert_eq!(
        files(&context),
        [("a/b/main.tf".to_owned(), "# feature\n".to_owned())]
    );
    assert_eq!(context.module_path, "a/b");
    let main = cache.context(&url, "b", &none).await.unwrap();
    assert_eq!(
        files(&main),
        [("a/b/main.tf".to_owned(), "# main\n".to_owned())]
    );
}
