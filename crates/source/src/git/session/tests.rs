use super::*;
use crate::secret::{SecretBytes, SecretString};

#[test]
fn special_characters_in_passwords_are_encoded() {
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
fn git_environment_is_isolated_and_has_no_secret() {
    let root = tempfile::tempdir().unwrap();
    let url = RepositoryUrl::parse("https://host/r").unwrap();
    let credentials = Credentials {
        https: Some(HttpsCredentials {
            username: SecretString::new("me"),
            password: SecretString::new("hunter2"),
        }),
        ..Credentials::default()
    };
    let session = Session::open(root.path(), &url, &credentials, &environment())
        .ok()
        .unwrap();
    let command = format!(
        "{:?}",
        session.command(
            Path::new("/r"),
            &["ls-remote", "--", url.remote()],
            64 << 20
        )
    );
    assert!(
        command.contains("GIT_CONFIG_GLOBAL") && command.contains("GIT_ALLOW_PROTOCOL=\"https\"")
    );
    assert!(!command.contains("hunter2"), "{command}");
    assert_eq!(session.redact("x hunter2 y"), "x *** y");
}

#[test]
fn proxy_variables_are_passed_to_git_in_lower_case() {
    let root = tempfile::tempdir().unwrap();
    let url = RepositoryUrl::parse("http://host/r").unwrap();
    let command = |environment: &[(&str, &str)]| {
        let environment = environment
            .iter()
            .map(|(name, value)| ((*name).to_owned(), OsString::from(value)))
            .collect();
        let session = Session::open(root.path(), &url, &Credentials::default(), &environment);
        format!(
            "{:?}",
            session
                .ok()
                .unwrap()
                .command(Path::new("/r"), &[], 64 << 20)
        )
    };
    let upper = command(&[("HTTP_PROXY", "http://up:1"), ("NO_PROXY", "host")]);
    assert!(
        upper.contains("http_proxy=\"http://up:1\"") && upper.contains("NO_PROXY=\"host\""),
        "{upper}"
    );
    let both = command(&[
        ("HTTP_PROXY", "http://up:1"),
        ("http_proxy", "http://low:1"),
    ]);
    assert!(both.contains("http_proxy=\"http://low:1\""), "{both}");
}

#[test]
fn private_ca_is_added_to_the_system_bundle() {
    let root = tempfile::tempdir().unwrap();
    let usual = root.path().join("usual");
    std::fs::write(&usual, "USUAL\n").unwrap();
    let of = |name: &str| BTreeMap::from([(name.to_owned(), usual.clone().into_os_string())]);
    for name in ["GIT_SSL_CAINFO", "SSL_CERT_FILE"] {
        assert_eq!(trusted_with(&of(name), " OWN\n"), "USUAL\nOWN\n");
    }
    assert!(trusted_with(&BTreeMap::new(), "OWN").ends_with("\nOWN\n"));
}

#[test]
fn unreadable_bundle_fails_unless_the_repository_has_one() {
    let root = tempfile::tempdir().unwrap();
    let usual = root.path().join("usual");
    let named = BTreeMap::from([("SSL_CERT_FILE".to_owned(), usual.clone().into_os_string())]);
    assert_eq!(trusted_certificates(&named, None), None);
    assert!(trusted_certificates(&named, Some("OWN")).is_some());
    std::fs::write(&usual, "USUAL\n").unwrap();
    let trusted = |bundle| trusted_certificates(&named, bundle).unwrap();
    assert_eq!(trusted(None).trim(), "USUAL");
    assert_eq!(trusted(Some("OWN")).trim(), "USUAL\nOWN");
    assert!(trusted_certificates(&BTreeMap::new(), None).is_some());
}

#[test]
fn ssh_key_file_is_private_and_removed_with_the_session() {
    let root = tempfile::tempdir().unwrap();
    let url = RepositoryUrl::parse("git@host:r").unwrap();
    let key = "-----BEGIN PRIVATE KEY-----\nAA==\n-----END PRIVATE KEY-----";
    let credentials = Credentials {
        ssh_key: Some(SecretBytes::new(key)),
        ..Credentials::default()
    };
    let session = Session::open(root.path(), &url, &credentials, &environment())
        .ok()
        .unwrap();
    let path = session.folder.path().join("key");
    let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!((mode(&path), mode(session.folder.path())), (0o600, 0o700));
    drop(session);
    assert!(!path.exists());
    assert_eq!(std::fs::read_dir(root.path()).unwrap().count(), 0);
}

#[test]
fn ssh_url_without_a_key_is_refused() {
    let root = tempfile::tempdir().unwrap();
    let url = RepositoryUrl::parse("git@host:r").unwrap();
    let error = Session::open(root.path(), &url, &Credentials::default(), &environment())
        .err()
        .unwrap();
    assert_eq!(error.reason().as_str(), "SshKeyMissing");
}
