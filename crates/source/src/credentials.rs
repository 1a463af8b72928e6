//! What a repository asks for before it answers. Pure.

use sha2::{Digest, Sha256};

use crate::secret::{SecretBytes, SecretString};

/// Credentials for one repository. No `Debug`: see [`SecretBytes`].
#[derive(Clone, Default)]
pub struct Credentials {
    /// Private key for ssh, in any form OpenSSH reads, without passphrase.
    pub ssh_key: Option<SecretBytes>,
    /// Lines in the format of `known_hosts`. They replace the built-in ones
    /// ([`BUILT_IN_KNOWN_HOSTS`](crate::BUILT_IN_KNOWN_HOSTS)).
    pub known_hosts: Option<String>,
    /// User and password (or token) for https.
    pub https: Option<HttpsCredentials>,
    /// PEM certificates to trust besides the usual ones.
    pub ca_bundle: Option<String>,
}

/// User and password for https; hosts that want a token take it as the password.
#[derive(Clone)]
pub struct HttpsCredentials {
    /// User name. Hosts that look only at the token accept any.
    pub username: SecretString,
    /// Password or token.
    pub password: SecretString,
}

impl Credentials {
    /// Salted digest over what grants access, so that two tenants share a cache only when they hold the same key.
    pub fn fingerprint(&self, salt: &[u8]) -> [u8; 32] {
        let mut hash = Sha256::new();
        feed(&mut hash, Some(salt));
        feed(&mut hash, self.ssh_key.as_ref().map(SecretBytes::expose));
        let https = self.https.as_ref();
        feed(
            &mut hash,
            https.map(|https| https.username.expose().as_bytes()),
        );
        feed(
            &mut hash,
            https.map(|https| https.password.expose().as_bytes()),
        );
        hash.finalize().into()
    }
}

/// Feeds one optional field with its length, so that no two lists of fields hash alike by shifting bytes.
fn feed(hash: &mut Sha256, field: Option<&[u8]>) {
    let length = field.map_or(u64::MAX, |bytes| bytes.len() as u64);
    hash.update(length.to_be_bytes());
    hash.update(field.unwrap_or_default());
}

#[cfg(test)]
mod tests {
    use super::*;

    fn https(username: &str, password: &str) -> Credentials {
        Credentials {
            https: Some(HttpsCredentials {
                username: SecretString::new(username),
                password: SecretString::new(password),
            }),
            ..Credentials::default()
        }
    }

    #[test]
    fn other_credentials_never_share_a_cache() {
        let salt = b"salt";
        let anonymous = Credentials::default().fingerprint(salt);
        assert_ne!(anonymous, https("a", "b").fingerprint(salt));
        assert_ne!(
            https("a", "bc").fingerprint(salt),
            https("ab", "c").fingerprint(salt)
        );
        assert_eq!(
            https("a", "b").fingerprint(salt),
            https("a", "b").fingerprint(salt)
        );
        assert_ne!(
            https("a", "b").fingerprint(salt),
            https("a", "b").fingerprint(b"other")
        );
    }
}
