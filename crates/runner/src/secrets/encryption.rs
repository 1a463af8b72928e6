//! Encryption of plans and unsaved states, with a key derived from the key of the resource.

use ring::aead::{AES_256_GCM, Aad, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use ring::hkdf::{HKDF_SHA256, Salt};
use ring::rand::{SecureRandom, SystemRandom};

const MAGIC: &[u8] = b"ALUSTAN1";

/// Encrypts and decrypts data of one purpose, for example plans.
pub struct Cipher {
    key: LessSafeKey,
}

impl Cipher {
    /// Derives the key of `purpose` from the `key` of the resource. Each purpose has a different key.
    pub fn new(key: &[u8], purpose: &str) -> Option<Self> {
        let derived = Salt::new(HKDF_SHA256, b"alustan").extract(key);
        let info = [purpose.as_bytes()];
        let key = UnboundKey::from(derived.expand(&info, &AES_256_GCM).ok()?);
        Some(Self {
            key: LessSafeKey::new(key),
        })
    }

    /// Encrypts `content` with AES-256-GCM.
    pub fn encrypt(&self, mut content: Vec<u8>) -> Option<Vec<u8>> {
        let mut nonce = [0; NONCE_LEN];
        SystemRandom::new().fill(&mut nonce).ok()?;
        let mut encrypted = [MAGIC, &nonce].concat();
        self.key
            .seal_in_place_append_tag(
                Nonce::assume_unique_for_key(nonce),
                Aad::from(MAGIC),
                &mut content,
            )
            .ok()?;
        encrypted.append(&mut content);
        Some(encrypted)
    }

    /// Decrypts the output of [`Self::encrypt`]; `None` for other input or another key.
    pub fn decrypt(&self, encrypted: &[u8]) -> Option<Vec<u8>> {
        let rest = encrypted.strip_prefix(MAGIC)?;
        let (nonce, content) = rest.split_at_checked(NONCE_LEN)?;
        let nonce = Nonce::try_assume_unique_for_key(nonce).ok()?;
        let mut content = content.to_vec();
        let length = self
            .key
            .open_in_place(nonce, Aad::from(MAGIC), &mut content)
            .ok()?
            .len();
        content.truncate(length);
        Some(content)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_same_key_and_purpose_open_a_seal() {
        let cipher = Cipher::new(b"key", "plan").unwrap();
        let encrypted = cipher.encrypt(b"content".to_vec()).unwrap();
        assert!(!encrypted.windows(7).any(|part| part == b"content"));
        assert_eq!(cipher.decrypt(&encrypted).unwrap(), b"content");
        assert_ne!(cipher.encrypt(b"content".to_vec()).unwrap(), encrypted);
        assert_eq!(
            Cipher::new(b"other", "plan").unwrap().decrypt(&encrypted),
            None
        );
        assert_eq!(
            Cipher::new(b"key", "state").unwrap().decrypt(&encrypted),
            None
        );
        let mut damaged = encrypted.clone();
        damaged[20] ^= 1;
        assert_eq!(cipher.decrypt(&damaged), None);
        assert_eq!(cipher.decrypt(b"ALUSTAN1"), None);
    }
}
