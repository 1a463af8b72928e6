//! Real and fake registries for tests.

mod docker;
mod fake;
mod registry;

use std::io::Write as _;

use alustan_registry::{Access, Credential, Digest, Error, ImageName, ImageRef, Options, Registry};

pub(crate) use docker::{DockerRegistry, PASSWORD, Setting, USER, free_port};
pub(crate) use fake::{Fake, Seen};
pub(crate) use registry::{FakeRegistry, Fault, OCI_INDEX, OCI_LAYER};

/// Creates a client. Installs the crypto provider, as a program that uses the crate must.
pub(crate) fn client(options: Options) -> Registry {
    // Ignores the error: another test of this process may have installed a crypto provider.
    let _ = rustls::crypto::ring::default_provider().install_default();
    Registry::new(options).unwrap()
}

/// Returns the access to a registry over plain HTTP with `credential`, without a credential helper.
pub(crate) fn plain(credential: impl Into<Option<Credential>>) -> Access {
    Access {
        credential: credential.into(),
        insecure: true,
        helper: None,
    }
}

pub(crate) fn basic(username: &str, password: &str) -> Credential {
    Credential::Basic {
        username: username.to_owned(),
        password: password.to_owned(),
    }
}

pub(crate) fn name(host: &str) -> ImageName {
    ImageName::parse(&format!("{host}/team/x")).unwrap()
}

pub(crate) fn tag(host: &str, tag: &str) -> ImageRef {
    ImageRef::tagged(name(host), tag).unwrap()
}

/// Writes `content` to a temporary file.
pub(crate) fn file(content: &[u8]) -> tempfile::TempPath {
    let mut file = tempfile::NamedTempFile::new().unwrap();
    file.write_all(content).unwrap();
    file.into_temp_path()
}

pub(crate) async fn request_digest(host: &str, access: &Access) -> Result<Option<Digest>, Error> {
    client(Options::default())
        .digest_of(&tag(host, "nothing"), access)
        .await
}

pub(crate) fn assert_failure(error: &Error, reason: &str, transient: bool, words: &[&str]) {
    let text = error.to_string();
    assert_eq!(
        (error.reason().as_str(), error.is_transient()),
        (reason, transient),
        "{text}"
    );
    for word in words {
        assert!(text.contains(word), "`{word}` is not in: {text}");
    }
    assert!(
        !text.contains(PASSWORD) && !text.contains("refresh-me"),
        "{text}"
    );
}
