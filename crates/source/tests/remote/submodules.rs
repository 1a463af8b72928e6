//! Contexts with git submodules (`ContextSpec::submodules`).

use alustan_source::{Credentials, RepositoryUrl};

use crate::support::{HttpServer, Origin, Rules, TestCache, assert_failure, files, names};

/// Base64 of `me:hunter2`, which the server requires in the header `Authorization`.
const ME: &str = "bWU6aHVudGVyMg==";

/// Creates three repositories: `r.git` with the submodule `modules` at `url` (a commit of `s.git`), `s.git` with `x/main.tf` and the submodule
/// `deep` (`../d.git`), and `d.git`.
fn origin(url: &str) -> Origin {
    let origin = Origin::with(&[
        (
            "m/main.tf",
            "module \"x\" {\n  source = \"../modules/x\"\n}\n",
        ),
        ("plain/main.tf", ""),
    ]);
    let add = |name: &str, text: &str, url: &str, path: &str, of: &str| {
        let work = origin.folder.path().join(name);
        std::fs::create_dir_all(work.join("x")).unwrap();
        std::fs::write(work.join("x/main.tf"), text).unwrap();
        if name != "d" {
            let text = format!("[submodule \"any name\"]\n\tpath = {path}\n\turl = {url}\n");
            std::fs::write(work.join(".gitmodules"), text).unwrap();
        }
        if !work.join(".git").exists() {
            origin.git(&["init", "--quiet", "--initial-branch=main", name]);
        }
        origin.git(&["-C", name, "add", "--all"]);
        if !of.is_empty() {
            let entry = format!("160000,{of},{path}");
            origin.git(&["-C", name, "update-index", "--add", "--cacheinfo", &entry]);
        }
        origin.git(&["-C", name, "commit", "--quiet", "--message=c"]);
        origin.git(&["-C", name, "rev-parse", "HEAD"])
    };
    let deep = add("d", "# deep\n", "", "", "");
    let modules = add(
        "s",
        "module \"d\" {\n  source = \"../deep/x\"\n}\n",
        "../d.git",
        "deep",
        &deep,
    );
    for name in ["d", "s"] {
        origin.git(&["clone", "--quiet", "--bare", name, &format!("{name}.git")]);
    }
    std::fs::remove_dir_all(origin.work().join("x")).ok();
    add("work", "# root\n", url, "modules", &modules);
    origin.git(&["-C", "work", "push", "--quiet", "origin", "HEAD"]);
    origin
}

fn rules(wants: Option<&'static str>) -> Rules {
    Rules {
        wants,
        ..Rules::default()
    }
}

#[tokio::test]
async fn local_modules_in_nested_submodules_are_included() {
    let origin = origin("../s.git");
    let server = HttpServer::plain(origin.folder.path(), rules(Some(ME))).await;
    let credentials = server.credentials(Some("hunter2"));
    let cache = TestCache::new();
    let context = cache
        .with_submodules(&server.url(), "m", &credentials)
        .await
        .unwrap();
    assert_eq!(
        names(&context),
        ["m/main.tf", "modules/deep/x/main.tf", "modules/x/main.tf"]
    );
    assert!(
        files(&context).contains(&("modules/deep/x/main.tf".to_owned(), "# deep\n".to_owned()))
    );
    assert!(context.submodules.is_empty());
    let again = cache
        .with_submodules(&server.url(), "m", &credentials)
        .await
        .unwrap();
    assert_eq!(context.digest, again.digest);
    // The root module may be in a submodule.
    let inside = cache
        .with_submodules(&server.url(), "modules/x", &credentials)
        .await
        .unwrap();
    assert_eq!(
        names(&inside),
        ["modules/deep/x/main.tf", "modules/x/main.tf"]
    );
}

#[tokio::test]
async fn submodules_of_disallowed_repositories_are_refused() {
    let origin = origin("../s.git");
    let server = HttpServer::plain(origin.folder.path(), rules(None)).await;
    let (cache, none) = (TestCache::new(), Credentials::default());
    let allows = |url: &RepositoryUrl| url.remote().ends_with("/s.git");
    let url = server.url();
    let refused = cache
        .with_allowed_submodules(&url, "m", &none, &allows)
        .await
        .unwrap_err();
    assert_eq!(refused.reason().as_str(), "SubmoduleUnusable");
    let message = refused.to_string();
    assert!(
        message.contains("modules/deep")
            && message.contains("is not in the allow list of repositories"),
        "{message}"
    );
    assert!(!refused.is_transient());
    let plain = cache.with_allowed_submodules(&url, "plain", &none, &|_| false);
    assert_eq!(names(&plain.await.unwrap()), ["plain/main.tf"]);
}

#[tokio::test]
async fn unused_submodules_are_not_fetched() {
    let origin = origin("https://no-such-host.invalid/s.git");
    let server = HttpServer::plain(origin.folder.path(), rules(None)).await;
    let (cache, none) = (TestCache::new(), Credentials::default());
    let context = cache
        .with_submodules(&server.url(), "plain", &none)
        .await
        .unwrap();
    assert_eq!(names(&context), ["plain/main.tf"]);
    let error = cache
        .with_submodules(&server.url(), "m", &none)
        .await
        .unwrap_err();
    assert_eq!(error.reason().as_str(), "RepositoryUnreachable", "{error}");
    let error = cache.context(&server.url(), "m", &none).await.unwrap_err();
    assert_eq!(error.reason().as_str(), "ModuleNotFound");
    assert!(
        error.to_string().contains("gitRepo.submodules: true"),
        "{error}"
    );
}

#[tokio::test]
async fn password_is_not_sent_to_another_submodule_host() {
    let stranger = Origin::with(&[("x/main.tf", "")]);
    let other = HttpServer::plain(stranger.folder.path(), rules(Some(ME))).await;
    let origin = origin(&other.url());
    let server = HttpServer::plain(origin.folder.path(), rules(Some(ME))).await;
    let credentials = server.credentials(Some("hunter2"));
    let error = TestCache::new()
        .with_submodules(&server.url(), "m", &credentials)
        .await
        .unwrap_err();
    assert_eq!(
        error.reason().as_str(),
        "GitAuthenticationFailed",
        "{error}"
    );
    assert!(other.seen.lock().unwrap().is_empty());
}

#[tokio::test]
async fn invalid_submodule_is_reported_with_its_cause() {
    let none = Credentials::default();
    for (url, word) in [
        ("file:///etc", "scheme `file`"),
        ("ext::sh", "`::`"),
        ("../../../../s.git", "leaves the root of the host"),
        ("https://host/s//folder", "contains a folder"),
    ] {
        let origin = origin(url);
        let server = HttpServer::plain(origin.folder.path(), rules(None)).await;
        let error = TestCache::new()
            .with_submodules(&server.url(), "m", &none)
            .await
            .unwrap_err();
        assert_eq!(
            (error.reason().as_str(), error.is_transient()),
            ("SubmoduleUnusable", false),
            "{error}"
        );
        let text = error.to_string();
        assert!(
            text.contains("submodule `modules`") && text.contains(word),
            "{text}"
        );
    }
    let origin = Origin::with(&[("main.tf", "")]);
    let entry = format!("160000,{},vendor", "a".repeat(40));
    origin.git(&["-C", "work", "update-index", "--add", "--cacheinfo", &entry]);
    origin.git(&["-C", "work", "commit", "--quiet", "--message=s"]);
    origin.git(&["-C", "work", "push", "--quiet", "origin", "HEAD"]);
    let server = HttpServer::plain(origin.folder.path(), rules(None)).await;
    let error = TestCache::new()
        .with_submodules(&server.url(), "", &none)
        .await
        .unwrap_err();
    assert!(
        error.to_string().contains("`.gitmodules` has no URL"),
        "{error}"
    );
}

#[tokio::test]
async fn more_than_100_submodules_are_refused() {
    let origin = Origin::empty();
    let first = origin.commit(&[("main.tf", "")]);
    let push = |to: &str| origin.git(&["-C", "work", "push", "--quiet", "origin", to]);
    push("HEAD:refs/heads/first");
    // The 101 submodules all refer to the repository itself.
    let section = |n: u32| format!("[submodule \"{n}\"]\n\tpath = s{n}\n\turl = ../r.git\n");
    let sections: String = (0..=100).map(section).collect();
    std::fs::write(origin.work().join(".gitmodules"), sections).unwrap();
    origin.git(&["-C", "work", "add", ".gitmodules"]);
    let entries: Vec<String> = (0..=100).map(|n| format!("160000,{first},s{n}")).collect();
    let mut update = vec!["-C", "work", "update-index", "--add"];
    for entry in &entries {
        update.extend(["--cacheinfo", entry.as_str()]);
    }
    origin.git(&update);
    origin.git(&["-C", "work", "commit", "--quiet", "--message=s"]);
    push("HEAD");
    let server = HttpServer::plain(origin.folder.path(), rules(None)).await;
    let error = TestCache::new()
        .with_submodules(&server.url(), "", &Credentials::default())
        .await
        .unwrap_err();
    assert_failure(
        &error,
        "SubmoduleUnusable",
        false,
        &["more than 100 submodules"],
    );
}
