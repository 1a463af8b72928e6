//! What opens a registry. Pure.

use sha2::{Digest, Sha256};

/// Credentials for one registry. No `Debug`, `Display` or `Serialize`, so that no log line can hold them.
#[derive(Clone, PartialEq, Eq)]
pub enum Credential {
    /// User and password.
    Basic {
        /// User name.
        username: String,
        /// Password or access token.
        password: String,
    },
    /// A refresh token that is changed for an access token (`identitytoken`).
    Identity(String),
    /// An access token that is sent as it is (`registrytoken`).
    Bearer(String),
}

/// How a registry is to be reached in one call.
#[derive(Clone, Default)]
pub struct Access {
    /// Credentials, none for anonymous access.
    pub credential: Option<Credential>,
    /// Plain http instead of TLS.
    pub insecure: bool,
    /// The credential helper that knows the credentials, where there are none: a program, by its path, or
    /// by its name on the `PATH`.
    pub helper: Option<String>,
}

impl Access {
    /// Without credentials, over TLS.
    pub fn anonymous() -> Self {
        Self::default()
    }

    /// With credentials, over TLS.
    pub fn with(credential: Option<Credential>) -> Self {
        Self {
            credential,
            ..Self::default()
        }
    }
}

impl Credential {
    /// Digest that tells two credentials apart in memory.
    pub(crate) fn fingerprint(&self) -> [u8; 32] {
        let parts: [&str; 3] = match self {
            Self::Basic { username, password } => ["basic", username, password],
            Self::Identity(token) => ["identity", token, ""],
            Self::Bearer(token) => ["bearer", token, ""],
        };
        let mut hash = Sha256::new();
        for part in parts {
            hash.update((part.len() as u64).to_be_bytes());
            hash.update(part);
        }
        hash.finalize().into()
    }
}
