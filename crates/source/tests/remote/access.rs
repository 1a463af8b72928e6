//! Runs git as an engine does for private modules: without options, in the environment of [`GitAccess`].

use std::{collections::BTreeMap, path::Path, process::Output};

use alustan_source::{Credentials, GitAccess, RepositoryUrl, SecretBytes};
use tokio::process::Command;

use crate::support::{HttpServer, Origin, Rules, SshServer};

/// Base64 of `me:hunter2`, which the server requires in the header `Authorization`.
const ME: &str = "bWU6aHVudGVyMg==";

/// Clones `module` with the credentials of `repository`.
async fn clone(repository: &str, module: &str, credentials: &Credentials) -> Output {
    let folder = tempfile::tempdir().unwrap();
    let url = RepositoryUrl::parse(repository).unwrap();
    let access = GitAccess::open(folder.path(), &url, credentials, &BTreeMap::new()).unwrap();
    let target = folder.path().join("module");
    let mut git = Command::new("git");
    git.env_clear()
        .env("PATH", std::env::var_os("PATH").unwrap_or_default())
        .env("HOME", folder.path())
        .envs(access.environment())
        .args(["clone", "--quiet", "--", module])
        .arg(&target);
    let output = git.output().await.unwrap();
    assert_eq!(output.status.success(), target.join("main.tf").exists());
    if output.status.success() {
        let config = std::fs::read_to_string(target.join(".git/config")).unwrap();
        assert!(!config.contains("hunter2"), "{config}");
    }
    drop(access);
    let entries = std::fs::read_dir(folder.path()).unwrap();
    assert!(entries.count() <= 1, "no credentials stay");
    output
}

fn origin() -> Origin {
    Origin::with(&[("main.tf", "")])
}

fn words(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[tokio::test]
async fn module_on_the_same_host_is_cloned_with_the_password() {
    let origin = origin();
    let rules = || Rules::requiring(ME);
    let server = HttpServer::tls(origin.folder.path(), rules()).await;
    let credentials = server.credentials(Some("hunter2"));
    let cloned = clone(&server.url(), &server.url(), &credentials).await;
    assert!(cloned.status.success(), "{}", words(&cloned));
    // Another host gets no credentials, and git does not prompt.
    let other = HttpServer::plain(origin.folder.path(), rules()).await;
    let refused = clone(&server.url(), &other.url(), &credentials).await;
    assert!(!refused.status.success() && other.seen.lock().unwrap().is_empty());
    assert!(
        words(&refused).contains("terminal prompts disabled"),
        "{}",
        words(&refused)
    );
    let without = clone(&server.url(), &server.url(), &server.credentials(None)).await;
    assert!(!without.status.success());
}

#[tokio::test]
async fn module_is_cloned_with_the_key_from_a_known_host() {
    let (server, origin) = (SshServer::start(), origin());
    let url = server.url(&origin.folder.path().join("r.git"));
    for repository in [url.as_str(), "https://elsewhere.test/o/r"] {
        let cloned = clone(repository, &url, &server.credentials()).await;
        assert!(cloned.status.success(), "{}", words(&cloned));
    }
    let unknown = Credentials {
        known_hosts: None,
        ..server.credentials()
    };
    let refused = clone(&url, &url, &unknown).await;
    assert!(
        words(&refused).contains("Host key verification failed"),
        "{}",
        words(&refused)
    );
    let other = server.new_key("other", "");
    let refused = clone(&url, &url, &server.credentials_with(&other)).await;
    assert!(
        words(&refused).contains("Permission denied"),
        "{}",
        words(&refused)
    );
    let broken = Credentials {
        ssh_key: Some(SecretBytes::new("hunter2")),
        ..Credentials::default()
    };
    let folder = tempfile::tempdir().unwrap();
    let url = RepositoryUrl::parse(&url).unwrap();
    let error = GitAccess::open(folder.path(), &url, &broken, &BTreeMap::new());
    assert_eq!(error.err().unwrap().reason().as_str(), "SshKeyInvalid");
    assert!(is_empty(folder.path()));
}

fn is_empty(folder: &Path) -> bool {
    std::fs::read_dir(folder).unwrap().next().is_none()
}
