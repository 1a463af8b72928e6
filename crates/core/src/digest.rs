//! Digests of inputs. Equal inputs have equal digests. A keyed digest does not reveal a secret input.

use hmac::{Hmac, KeyInit, Mac};
use serde::Serialize;
use sha2::{Digest as _, Sha256};

/// Returns the SHA-256 of `value` as JSON with sorted keys: 64 hexadecimal characters.
pub fn plain(value: &impl Serialize) -> String {
    hex::encode(Sha256::digest(canonical(value)))
}

/// Returns the HMAC-SHA256 of `value` with the `key` of the resource: 64 hexadecimal characters. Without the key, a value of low entropy
/// cannot be guessed from the digest.
pub fn keyed(key: &[u8], value: &impl Serialize) -> String {
    let mut mac = <Hmac<Sha256> as KeyInit>::new_from_slice(key)
        .unwrap_or_else(|_| <Hmac<Sha256> as KeyInit>::new(&[0; 64].into()));
    mac.update(&canonical(value));
    hex::encode(mac.finalize().into_bytes())
}

/// Returns `value` as canonical JSON: [`serde_json::Value`] sorts the keys of objects.
fn canonical(value: &impl Serialize) -> Vec<u8> {
    serde_json::to_value(value)
        .map(|value| value.to_string().into_bytes())
        .unwrap_or_default()
}

/// Returns a number in `0.0..1.0`, evenly distributed, derived from a hash of `text`.
pub fn fraction(text: &str) -> f64 {
    let bytes: [u8; 32] = Sha256::digest(text.as_bytes()).into();
    let [a, b, c, d, ..] = bytes;
    f64::from(u32::from_be_bytes([a, b, c, d])) / (f64::from(u32::MAX) + 1.0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn digest_depends_on_hmac_key_but_not_on_field_order() {
        let value = json!({"a": 1, "b": [1, 2]});
        let reordered: serde_json::Value = serde_json::from_str(r#"{"b":[1,2],"a":1}"#).unwrap();
        assert_eq!(plain(&value), plain(&reordered));
        assert_eq!(keyed(b"k", &value), keyed(b"k", &reordered));
        assert_ne!(keyed(b"k", &value), keyed(b"l", &value));
    }

    #[test]
    fn fractions_are_evenly_distributed() {
        let fractions: Vec<f64> = (0..100).map(|n| fraction(&n.to_string())).collect();
        assert!(fractions.iter().all(|f| (0.0..1.0).contains(f)));
        assert!(fractions.iter().filter(|f| **f < 0.5).count().abs_diff(50) < 20);
    }
}
