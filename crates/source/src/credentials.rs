//! Credentials of git repositories.

use sha2::{Digest, Sha256};

use crate::secret::{SecretBytes, SecretString};

/// Credentials for one repository. Like [`SecretBytes`], does not implement `Debug`, so that the credentials cannot be logged.
#[derive(Clone, Default)]
pub struct Credentials {
    /// Private ssh key without a passphrase, in any format that OpenSSH supports.
    pub ssh_key: Option<SecretBytes>,
    /// Host keys in the format of `known_hosts`. They replace the built-in host keys
    /// ([`BUILT_IN_KNOWN_HOSTS`](crate::BUILT_IN_KNOWN_HOSTS)).
    pub known_hosts: Option<String>,
    /// User name and password (or token) for HTTPS.
    pub https: Option<HttpsCredentials>,
    /// Secret identity of the owner of user name and password, if the password is renewed: for example the key of a GitHub App. Replaces
    /// user name and password in the fingerprint, so that a renewed password refers to the same cached repository.
    pub identity: Option<SecretBytes>,
    /// PEM certificates of CAs to trust in addition to the system certificates.
    pub ca_bundle: Option<String>,
}

/// User name and password for HTTPS. A token is sent as the password.
#[derive(Clone)]
pub struct HttpsCredentials {
    /// User name. Hosts that check only the token accept any user name.
    pub username: SecretString,
    /// Password or token.
    pub password: SecretString,
}

impl Credentials {
    /// Returns a salted digest of all fields that grant access, so that tenants share a cached repository only if they have the same
    /// credentials.
    pub fn fingerprint(&self, salt: &[u8]) -> [u8; 32] {
        let mut hash = Sha256::new();
        feed(&mut hash, Some(salt));
        feed(&mut hash, self.ssh_key.as_ref().map(SecretBytes::expose));
        let https = self.https.as_ref().filter(|_| self.identity.is_none());
        feed(
            &mut hash,
            https.map(|https| https.username.expose().as_bytes()),
        );
        feed(
            &mut hash,
            https.map(|https| https.password.expose().as_bytes()),
        );
        if let Some(identity) = &self.identity {
            feed(&mut hash, Some(identity.expose()));
        }
        hash.finalize().into()
    }
}

/// Hashes an optional field with its length, so that different field values never produce the same hash input.
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

    #[test]
    fn renewed_password_of_one_identity_shares_a_cache() {
        let with_identity = |identity: &str, password: &str| Credentials {
            identity: Some(SecretBytes::new(identity)),
            ..https("x-access-token", password)
        };
        let salt = b"salt";
        let first = with_identity("app", "one").fingerprint(salt);
        assert_eq!(first, with_identity("app", "two").fingerprint(salt));
        assert_ne!(first, with_identity("other", "one").fingerprint(salt));
        assert_ne!(first, https("x-access-token", "one").fingerprint(salt));
    }
}
