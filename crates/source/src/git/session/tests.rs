use super::*;
use crate::secret::{SecretBytes, SecretString};

#[test]
fn odd_passwords_survive_the_credential_file() {
    let url = RepositoryUrl::parse("https://host:8443/o/r").unwrap();
    let https = HttpsCredentials {
        username: SecretString::new("me@corp"),
        password: SecretString::new("a/b:c%\n€"),
    };
    assert_eq!(
        credential_line(&url, &https),
        "https://me%40corp:a%2Fb%3Ac%25%0A%E2%82%AC@host:8443\n"
    );
}

#[test]
fn the_environment_is_made_from_nothing_and_holds_no_secret() {
    let root = tempfile::tempdir().unwrap();
    let url = RepositoryUrl::parse("https://host/r").unwrap();
    let credentials = Credentials {
        https: Some(HttpsCredentials {
            username: SecretString::new("me"),
            password: SecretString::new("hunter2"),
        }),
        ..Credentials::default()
    };
    let session = Session::open(root.path(), &url, &credentials).ok().unwrap();
    let command = format!(
        "{:?}",
        session.command(Path::new("/r"), &["ls-remote", "--", url.remote()])
    );
    assert!(
        command.contains("GIT_CONFIG_GLOBAL") && command.contains("GIT_ALLOW_PROTOCOL=\"https\"")
    );
    assert!(!command.contains("hunter2"), "{command}");
    assert_eq!(session.redact("x hunter2 y"), "x *** y");
}

#[test]
fn the_key_is_a_private_file_that_goes_with_the_session() {
    let root = tempfile::tempdir().unwrap();
    let url = RepositoryUrl::parse("git@host:r").unwrap();
    let key = "-----BEGIN PRIVATE KEY-----\nAA==\n-----END PRIVATE KEY-----";
    let credentials = Credentials {
        ssh_key: Some(SecretBytes::new(key)),
        ..Credentials::default()
    };
    let session = Session::open(root.path(), &url, &credentials).ok().unwrap();
    let path = session.folder.path().join("key");
    let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!((mode(&path), mode(session.folder.path())), (0o600, 0o700));
    drop(session);
    assert!(!path.exists());
    assert_eq!(std::fs::read_dir(root.path()).unwrap().count(), 0);
}

#[test]
fn ssh_without_a_key_is_refused_before_anything_is_called() {
    let root = tempfile::tempdir().unwrap();
    let url = RepositoryUrl::parse("git@host:r").unwrap();
    let error = Session::open(root.path(), &url, &Credentials::default())
        .err()
        .unwrap();
    assert_eq!(error.reason(), "SshKeyMissing");
}
