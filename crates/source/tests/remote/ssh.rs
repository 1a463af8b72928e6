//! Repositories over ssh, served by a real sshd.

use alustan_source::{Credentials, Error, SecretBytes};

use crate::support::{self, Origin, SshServer, TestCache, names};

fn assert_failure(error: &Error, reason: &str, transient: bool, words: &[&str]) {
    let text = support::assert_failure(error, reason, transient, words);
    assert!(!text.contains("PRIVATE KEY"), "{text}");
}

/// Returns the error of resolving the default branch.
async fn refusal(url: &str, credentials: &Credentials) -> Error {
    TestCache::new()
        .resolve(url, None, credentials)
        .await
        .unwrap_err()
}

#[tokio::test]
async fn a_repository_is_read_with_key_and_known_host() {
    let (server, cache) = (SshServer::start(), TestCache::new());
    let origin = Origin::with(&[
        ("m/main.tf", "module \"x\" {\n  source = \"../x\"\n}\n"),
        ("x/main.tf", ""),
        ("y/main.tf", ""),
    ]);
    let url = server.url(&origin.folder.path().join("r.git"));
    let revision = cache
        .resolve(&url, None, &server.credentials())
        .await
        .unwrap();
    assert_eq!(revision.reference, "refs/heads/main");
    assert_eq!(
        revision.commit.as_str(),
        origin.git(&["-C", "work", "rev-parse", "HEAD"])
    );
    let context = cache
        .context_of(&url, "m", &revision, &server.credentials())
        .await
        .unwrap();
    assert_eq!(names(&context), ["m/main.tf", "x/main.tf"]);
    let entries = std::fs::read_dir(cache.root.path().join("calls"))
        .unwrap()
        .count();
    assert_eq!(entries, 0, "no key stays on disk");
}

#[tokio::test]
async fn keys_with_other_line_endings_are_accepted() {
    let server = SshServer::start();
    let origin = Origin::with(&[("main.tf", "")]);
    let url = server.url(&origin.folder.path().join("r.git"));
    let key = server.key();
    for key in [
        key.replace('\n', "\r\n"),
        key.trim_end().to_owned(),
        format!("\n  {key}\n\n"),
    ] {
        TestCache::new()
            .resolve(&url, None, &server.credentials_with(&key))
            .await
            .unwrap();
    }
    let hosts = server.known_hosts().trim_end().replace('\n', "\r\n");
    let credentials = Credentials {
        known_hosts: Some(hosts),
        ..server.credentials()
    };
    TestCache::new()
        .resolve(&url, None, &credentials)
        .await
        .unwrap();
}

#[tokio::test]
async fn every_key_type_works_and_its_passphrase_is_detected() {
    let server = SshServer::start();
    let origin = Origin::with(&[("main.tf", "")]);
    let url = server.url(&origin.folder.path().join("r.git"));
    let kinds: [(&str, &[&str]); 5] = [
        ("ed25519", &["-t", "ed25519"]),
        ("rsa", &["-t", "rsa", "-b", "2048"]),
        ("rsa-pem", &["-t", "rsa", "-b", "2048", "-m", "PEM"]),
        ("ecdsa", &["-t", "ecdsa", "-b", "256"]),
        ("ecdsa-pkcs8", &["-t", "ecdsa", "-b", "384", "-m", "PKCS8"]),
    ];
    for (name, arguments) in kinds {
        let key = server.new_guest(name, &[arguments, &["-N", ""]].concat());
        let revision = TestCache::new()
            .resolve(&url, None, &server.credentials_with(&key))
            .await;
        assert_eq!(revision.unwrap().reference, "refs/heads/main", "{name}");
        let locked = server.new_guest(
            &format!("{name}-locked"),
            &[arguments, &["-N", "hunter2"]].concat(),
        );
        assert_failure(
            &refusal(&url, &server.credentials_with(&locked)).await,
            "SshKeyEncrypted",
            false,
            &["passphrase", "ssh-keygen -t ed25519 -N ''"],
        );
    }
}

#[tokio::test]
async fn unusable_keys_have_distinct_reasons() {
    let server = SshServer::start();
    let origin = Origin::with(&[("main.tf", "")]);
    let url = server.url(&origin.folder.path().join("r.git"));
    let with = |key: &str| server.credentials_with(key);
    let other = server.new_key("other", "");
    assert_failure(
        &refusal(&url, &with(&other)).await,
        "GitAuthenticationFailed",
        false,
        &[
            "Permission denied",
            "deploy key",
            "read the references of ssh://",
        ],
    );
    let locked = server.new_key("locked", "hunter2");
    assert_failure(
        &refusal(&url, &with(&locked)).await,
        "SshKeyEncrypted",
        false,
        &["passphrase"],
    );
    let broken = "-----BEGIN OPENSSH PRIVATE KEY-----\nAAAA\n-----END OPENSSH PRIVATE KEY-----";
    assert_failure(
        &refusal(&url, &with(broken)).await,
        "SshKeyInvalid",
        false,
        &["OpenSSH private key"],
    );
    assert_failure(
        &refusal(&url, &Credentials::default()).await,
        "SshKeyMissing",
        false,
        &["gitRepo.sshKeySecret"],
    );
}

#[tokio::test]
async fn unknown_and_changed_host_keys_are_refused() {
    let server = SshServer::start();
    let origin = Origin::with(&[("main.tf", "")]);
    let url = server.url(&origin.folder.path().join("r.git"));
    let unknown = Credentials {
        known_hosts: None,
        ..server.credentials()
    };
    assert_failure(
        &refusal(&url, &unknown).await,
        "HostKeyUnknown",
        false,
        &["ssh-keyscan", "known_hosts"],
    );
    server.new_key("other", "");
    let mismatch = Credentials {
        known_hosts: Some(server.known_hosts_with("other")),
        ..server.credentials()
    };
    assert_failure(
        &refusal(&url, &mismatch).await,
        "HostKeyMismatch",
        false,
        &["differs from the key in `known_hosts`"],
    );
}

#[tokio::test]
async fn missing_repositories_and_branches_are_reported() {
    let server = SshServer::start();
    let origin = Origin::with(&[("main.tf", "")]);
    let url = server.url(&origin.folder.path().join("nothing.git"));
    assert_failure(
        &refusal(&url, &server.credentials()).await,
        "RepositoryNotFound",
        false,
        &["gitRepo.url"],
    );
    let url = server.url(&origin.folder.path().join("r.git"));
    let error = TestCache::new()
        .resolve(&url, Some("nope"), &server.credentials())
        .await
        .unwrap_err();
    assert_failure(
        &error,
        "BranchNotFound",
        false,
        &[
            "branch nope does not exist in ssh://",
            "its default branch is main",
        ],
    );
    let empty = Origin::empty();
    let url = server.url(&empty.folder.path().join("r.git"));
    assert_failure(
        &refusal(&url, &server.credentials()).await,
        "RepositoryEmpty",
        false,
        &["is empty", "push a commit"],
    );
}

#[tokio::test]
async fn unreachable_host_is_a_transient_failure() {
    let server = SshServer::start();
    let credentials = Credentials {
        ssh_key: Some(SecretBytes::new(server.key())),
        ..Credentials::default()
    };
    drop(server);
    let port = std::net::TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap()
        .port();
    assert_failure(
        &refusal(&format!("ssh://git@127.0.0.1:{port}/r"), &credentials).await,
        "RepositoryUnreachable",
        true,
        &["refused"],
    );
    assert_failure(
        &refusal("git@no-such-host.invalid:r", &credentials).await,
        "RepositoryUnreachable",
        true,
        &["no-such-host.invalid"],
    );
}
