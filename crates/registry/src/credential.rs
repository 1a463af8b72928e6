//! Registry credentials. Performs no I/O.

use sha2::{Digest, Sha256};

/// Credential for one registry. Has no `Debug`, `Display` or `Serialize`, so that it cannot be logged.
#[derive(Clone, PartialEq, Eq)]
pub enum Credential {
    /// User name and password.
    Basic {
        /// User name.
        username: String,
        /// Password or access token.
        password: String,
    },
    /// Refresh token that is exchanged for an access token: `identitytoken` in a Docker config.
    Identity(String),
    /// Access token that is sent unchanged: `registrytoken` in a Docker config.
    Bearer(String),
}

/// Connection settings for one call to a registry.
#[derive(Clone, Default)]
pub struct Access {
    /// Credential; `None` for anonymous access.
    pub credential: Option<Credential>,
    /// Whether to use plain HTTP instead of TLS.
    pub insecure: bool,
    /// Credential helper to run if `credential` is `None`: a path, or a name on the `PATH`.
    pub helper: Option<String>,
}

impl Access {
    /// Returns anonymous access over TLS.
    pub fn anonymous() -> Self {
        Self::default()
    }

    /// Returns access with `credential` over TLS.
    pub fn with(credential: Option<Credential>) -> Self {
        Self {
            credential,
            ..Self::default()
        }
    }
}

impl Credential {
    /// Returns a digest of the credential. The key of a session in the session cache contains this digest.
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
