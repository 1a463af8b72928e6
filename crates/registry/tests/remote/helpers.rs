//! Calls of credential helpers, tested with a fake helper.

use std::{fs, os::unix::fs::PermissionsExt};

use alustan_registry::{Access, Credential, Digest, Error, Options, context_tag};
use rstest::rstest;
use tempfile::TempDir;

use crate::support::{
    DockerRegistry, Fake, PASSWORD, Setting, USER, assert_failure, client, file, name,
    request_digest, tag,
};

/// A credential helper that records its input.
struct FakeHelper {
    folder: TempDir,
}

impl FakeHelper {
    /// Creates a helper that prints `answer` and exits with `code`.
    fn printing(answer: &str, code: u8) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().display();
        let text = format!(
            "#!/bin/sh\n[ \"$1\" = get ] || exit 9\nprintf '%s\\n' \"$(cat)\" >>'{path}/asked'\n\
             cat \"${{SSL_CERT_FILE:-/dev/null}}\" >'{path}/trusted'\ncat '{path}/answer'\nexit {code}\n"
        );
        fs::write(folder.path().join("answer"), answer).unwrap();
        let program = folder.path().join("fake-credential-helper");
        // The program is written by `cp`. If the test process wrote the program, a child process of another test thread could inherit the
        // open file descriptor, and executing the program would fail with `ETXTBSY`.
        fs::write(folder.path().join("new"), text).unwrap();
        std::process::Command::new("cp")
            .arg(folder.path().join("new"))
            .arg(&program)
            .status()
            .unwrap();
        fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
        Self { folder }
    }

    fn access(&self) -> Access {
        Access {
            insecure: true,
            helper: Some(
                self.folder
                    .path()
                    .join("fake-credential-helper")
                    .display()
                    .to_string(),
            ),
            ..Access::default()
        }
    }

    fn requests(&self) -> Vec<String> {
        fs::read_to_string(self.folder.path().join("asked"))
            .unwrap_or_default()
            .lines()
            .map(str::to_owned)
            .collect()
    }
}

fn answer(username: &str, secret: &str) -> String {
    format!(r#"{{"ServerURL":"x","Username":"{username}","Secret":"{secret}"}}"#)
}

fn private() -> DockerRegistry {
    DockerRegistry::start(Setting {
        htpasswd: true,
        ..Setting::default()
    })
}

#[tokio::test]
async fn credential_helper_authenticates_pulls_and_pushes() {
    let (server, helper) = (private(), FakeHelper::printing(&answer(USER, PASSWORD), 0));
    let (client, name, bytes) = (client(Options::default()), name(&server.host()), &b"x"[..]);
    let digest = Digest::of(bytes);
    client
        .push_context(&name, &digest, &file(bytes), &helper.access())
        .await
        .unwrap();
    let image = tag(&server.host(), &context_tag(&digest));
    for _ in 0..3 {
        assert!(
            client
                .digest_of(&image, &helper.access())
                .await
                .unwrap()
                .is_some()
        );
    }
    let once_each = vec![server.host(); 2];
    assert_eq!(
        helper.requests(),
        once_each,
        "to push and to pull, by the registry's host"
    );
}

#[tokio::test]
async fn credential_helper_trusts_the_ca_bundle_and_the_system() {
    let (server, helper) = (private(), FakeHelper::printing(&answer(USER, PASSWORD), 0));
    let trusted = || fs::read_to_string(helper.folder.path().join("trusted")).unwrap();
    let authority = rcgen::generate_simple_self_signed(["ca.test".to_owned()]).unwrap();
    let options = Options {
        ca_pem: vec![authority.cert.pem()],
        ..Options::default()
    };
    for (options, is_extended) in [(options, true), (Options::default(), false)] {
        let image = tag(&server.host(), "a");
        let digest = client(options).digest_of(&image, &helper.access()).await;
        assert_eq!(digest.unwrap(), None);
        assert_eq!(
            trusted().trim_end().ends_with(authority.cert.pem().trim()),
            is_extended
        );
        assert!(!is_extended || trusted().matches("BEGIN CERTIFICATE").count() > 1);
    }
}

#[tokio::test]
async fn refresh_token_of_credential_helper_is_exchanged() {
    let server = Fake::start(|host, seen| match seen.path.as_str() {
        "/token" => (200, None, r#"{"access_token":"good"}"#.to_owned()),
        _ if seen.authorization == "Bearer good" => (404, None, String::new()),
        _ => (
            401,
            Some(format!("Bearer realm=\"http://{host}/token\"")),
            String::new(),
        ),
    })
    .await;
    let helper = FakeHelper::printing(&answer("<token>", "refresh-me"), 0);
    assert_eq!(
        request_digest(&server.host, &helper.access())
            .await
            .unwrap(),
        None
    );
    let requests = server.seen("/token");
    assert!(
        requests[0].fields.contains("refresh_token=refresh-me"),
        "{requests:?}"
    );
}

#[tokio::test]
async fn user_secret_takes_precedence_over_credential_helper() {
    let (server, helper) = (private(), FakeHelper::printing("", 1));
    let access = Access {
        credential: Some(Credential::Basic {
            username: USER.to_owned(),
            password: PASSWORD.to_owned(),
        }),
        ..helper.access()
    };
    assert_eq!(request_digest(&server.host(), &access).await.unwrap(), None);
    assert!(helper.requests().is_empty());
}

#[rstest]
#[case::no_credentials("credentials not found in native keychain", 1, "credentials not found")]
#[case::no_json("hunter2", 0, "no `Username` and `Secret`")]
#[case::no_secret(
    r#"{"Username":"hunter2","Secret":""}"#,
    0,
    "no `Username` and `Secret`"
)]
#[case::no_output("", 0, "no `Username` and `Secret`")]
#[tokio::test]
async fn credential_helper_without_credentials_is_an_error(
    #[case] printed: &str,
    #[case] code: u8,
    #[case] word: &str,
) {
    let (server, helper) = (private(), FakeHelper::printing(printed, code));
    let error = request_digest(&server.host(), &helper.access())
        .await
        .unwrap_err();
    let words = [
        word,
        "fake-credential-helper",
        &server.host(),
        "ServiceAccount",
    ];
    assert_failure(&error, "CredentialHelperFailed", false, &words);
}

#[tokio::test]
async fn missing_credential_helper_is_an_error() {
    let access = Access {
        helper: Some("no-such-credential-helper".to_owned()),
        insecure: true,
        ..Access::default()
    };
    let error: Error = request_digest(&private().host(), &access)
        .await
        .unwrap_err();
    let words = ["no-such-credential-helper", "operator image"];
    assert_failure(&error, "CredentialHelperMissing", false, &words);
}
