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
fn proxies_of_the_operator_reach_git_in_the_case_that_it_reads() {
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
fn a_private_authority_is_trusted_besides_the_usual_ones() {
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
fn the_key_is_a_private_file_that_goes_with_the_session() {
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
fn ssh_without_a_key_is_refused_before_anything_is_called() {
    let root = tempfile::tempdir().unwrap();
    let url = RepositoryUrl::parse("git@host:r").unwrap();
    let error = Session::open(root.path(), &url, &Credentials::default(), &environment())
        .err()
        .unwrap();
    assert_eq!(error.reason(), "SshKeyMissing");
}
