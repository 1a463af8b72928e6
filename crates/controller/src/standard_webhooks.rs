//! Signatures according to the Standard Webhooks specification
//! (<https://github.com/standard-webhooks/standard-webhooks/blob/main/spec/standard-webhooks.md>):
//! `v1,` and the base64 of an HMAC-SHA256 over `id.timestamp.body`.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use k8s_openapi::jiff::{SignedDuration, Timestamp};
use ring::hmac;

/// Header with the id of a message. All delivery attempts have the same id.
pub(crate) const ID: &str = "webhook-id";
/// Header with the Unix time of a delivery attempt, in seconds.
pub(crate) const TIMESTAMP: &str = "webhook-timestamp";
/// Header with the signatures, separated by spaces.
pub(crate) const SIGNATURE: &str = "webhook-signature";

/// Maximum clock skew between sender and receiver.
pub(crate) const MAX_CLOCK_SKEW: SignedDuration = SignedDuration::from_mins(5);

/// Maximum number of signatures in [`SIGNATURE`]. A sender that rotates its secret sends two.
const MAX_SIGNATURES: usize = 8;

/// Size of an HMAC-SHA256, in bytes.
const TAG_SIZE: usize = 32;

/// Secret shared by sender and receiver. It does not implement `Debug`, so that logs cannot contain it.
#[derive(Clone)]
pub(crate) struct SharedSecret {
    /// Full text of the secret, including the prefix `whsec_`.
    text: Vec<u8>,
    /// Signing key according to Standard Webhooks: the decoded base64 after `whsec_`, or `text` if the secret does not have this prefix.
    bytes: Vec<u8>,
}

impl SharedSecret {
    /// Parses a secret: base64 after the prefix `whsec_`, or, without this prefix, raw bytes. Ignores surrounding white space.
    ///
    /// # Errors
    /// Returns the cause as a verb phrase, such as `is empty`. The caller puts the name of the secret before the phrase.
    pub(crate) fn parse(text: &[u8]) -> Result<Self, &'static str> {
        let text = text.trim_ascii();
        let bytes = match text.strip_prefix(b"whsec_") {
            None => text.to_vec(),
            Some(rest) => STANDARD
                .decode(rest)
                .map_err(|_| "is not base64 after the prefix whsec_")?,
        };
        if bytes.is_empty() {
            return Err("is empty");
        }
        let text = text.to_vec();
        Ok(Self { text, bytes })
    }

    /// Returns the value of [`SIGNATURE`] for `body`, sent as `id` at `timestamp` (Unix time in seconds).
    pub(crate) fn sign(&self, id: &str, timestamp: i64, body: &[u8]) -> String {
        let tag = tag(&key(&self.bytes), id, timestamp, body);
        format!("v1,{}", STANDARD.encode(tag))
    }

    /// Returns whether one of `signatures` is valid for `body`, sent as `id` at `timestamp`. Returns false for more than [`MAX_SIGNATURES`]
    /// signatures. Computes one HMAC of `body`, regardless of the number of signatures, and compares in constant time.
    pub(crate) fn has_valid_signature(
        &self,
        signatures: &str,
        id: &str,
        timestamp: i64,
        body: &[u8],
    ) -> bool {
        if signatures.split(' ').nth(MAX_SIGNATURES).is_some() {
            return false;
        }
        let received: Vec<Vec<u8>> = signatures.split(' ').filter_map(parse_tag).collect();
        if received.is_empty() {
            return false;
        }
        let key = key(&self.bytes);
        let expected = tag(&key, id, timestamp, body);
        received
            .iter()
            .any(|received| is_equal(&key, received, expected.as_ref()))
    }

    /// Returns whether `tag` is the HMAC-SHA256 of `body`, keyed with the full text of the secret, including `whsec_`. Compares in constant
    /// time.
    pub(crate) fn has_valid_hmac(&self, tag: &[u8], body: &[u8]) -> bool {
        hmac::verify(&key(&self.text), body, tag).is_ok()
    }

    /// Returns whether `token` is the full text of the secret, including `whsec_`. Compares in constant time.
    pub(crate) fn matches_token(&self, token: &[u8]) -> bool {
        is_equal(&key(&self.text), token, &self.text)
    }
}

fn key(bytes: &[u8]) -> hmac::Key {
    hmac::Key::new(hmac::HMAC_SHA256, bytes)
}

/// Returns whether `timestamp` (Unix time in seconds) is within [`MAX_CLOCK_SKEW`] of `now`.
pub(crate) fn is_recent(timestamp: i64, now: Timestamp) -> bool {
    let signed = Timestamp::from_second(timestamp);
    signed.is_ok_and(|signed| now.duration_since(signed).abs() <= MAX_CLOCK_SKEW)
}

/// Returns the HMAC of `body`, sent as `id` at `timestamp`.
fn tag(key: &hmac::Key, id: &str, timestamp: i64, body: &[u8]) -> hmac::Tag {
    let mut context = hmac::Context::with_key(key);
    context.update(format!("{id}.{timestamp}.").as_bytes());
    context.update(body);
    context.sign()
}

/// Parses an entry of [`SIGNATURE`] and returns its HMAC. `None` if the entry is not `v1,` followed by the base64 of [`TAG_SIZE`] bytes.
fn parse_tag(entry: &str) -> Option<Vec<u8>> {
    let tag = STANDARD.decode(entry.strip_prefix("v1,")?).ok()?;
    (tag.len() == TAG_SIZE).then_some(tag)
}

/// Returns whether `received` equals `expected`. Compares the HMAC of `received` with the HMAC of `expected`, in constant time.
fn is_equal(key: &hmac::Key, received: &[u8], expected: &[u8]) -> bool {
    let expected = hmac::sign(key, expected);
    hmac::verify(key, received, expected.as_ref()).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Test vector of the Standard Webhooks libraries.
    const SECRET: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";
    const ID: &str = "msg_p5jXN8AQM9LWM0D4loKWxJek";
    const AT: i64 = 1_614_265_330;
    const BODY: &[u8] = br#"{"test": 2432232314}"#;
    const SIGNED: &str = "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=";

    fn secret(text: &str) -> SharedSecret {
        SharedSecret::parse(text.as_bytes()).unwrap()
    }

    #[test]
    fn signature_matches_the_example_of_the_specification() {
        assert_eq!(secret(SECRET).sign(ID, AT, BODY), SIGNED);
        let several = format!("v1a,x v1,AAAA {SIGNED}");
        assert!(secret(SECRET).has_valid_signature(&several, ID, AT, BODY));
    }

    #[test]
    fn signature_of_other_key_id_time_or_body_is_refused() {
        let other_secret = secret("whsec_AAAA");
        assert!(!other_secret.has_valid_signature(SIGNED, ID, AT, BODY));
        let own_secret = secret(SECRET);
        assert!(!own_secret.has_valid_signature(SIGNED, "other", AT, BODY));
        assert!(!own_secret.has_valid_signature(SIGNED, ID, AT + 1, BODY));
        assert!(!own_secret.has_valid_signature(SIGNED, ID, AT, b"{}"));
        assert!(!own_secret.has_valid_signature("", ID, AT, BODY));
    }

    #[test]
    fn message_with_more_than_8_signatures_is_refused() {
        let own_secret = secret(SECRET);
        let other_signature = format!("v1,{} ", STANDARD.encode([0_u8; TAG_SIZE]));
        let preceded_by = |others: usize| format!("{}{SIGNED}", other_signature.repeat(others));
        assert!(own_secret.has_valid_signature(&preceded_by(7), ID, AT, BODY));
        for others in [8, 100_000] {
            assert!(!own_secret.has_valid_signature(&preceded_by(others), ID, AT, BODY));
        }
    }

    #[test]
    fn signatures_of_other_than_32_bytes_do_not_count() {
        let own_secret = secret(SECRET);
        let tag = STANDARD.decode(&SIGNED[3..]).unwrap();
        let longer = [tag.as_slice(), &[0]].concat();
        for bytes in [longer.as_slice(), &tag[..31], &[]] {
            let signature = format!("v1,{}", STANDARD.encode(bytes));
            assert!(!own_secret.has_valid_signature(&signature, ID, AT, BODY));
            let beside = format!("{signature} {SIGNED}");
            assert!(own_secret.has_valid_signature(&beside, ID, AT, BODY));
        }
    }

    #[test]
    fn secrets_are_read_without_the_line_end_of_their_file() {
        assert!(secret("token\n").matches_token(b"token"));
        assert!(!secret("token").matches_token(b"token2"));
    }

    #[test]
    fn invalid_secret_is_refused_with_the_cause() {
        for (text, cause) in [
            (" \n", "empty"),
            ("whsec_", "empty"),
            ("whsec_not base64", "base64"),
            ("whsec_AAA", "base64"),
        ] {
            let refused = SharedSecret::parse(text.as_bytes()).err().unwrap();
            assert!(refused.contains(cause), "{text}: {refused}");
        }
    }

    #[test]
    fn git_server_signature_uses_the_secret_with_its_prefix() {
        let own_secret = secret(SECRET);
        let tag = hmac::sign(&key(SECRET.as_bytes()), BODY);
        assert!(
            own_secret.has_valid_hmac(tag.as_ref(), BODY)
                && own_secret.matches_token(SECRET.as_bytes())
        );
    }

    #[test]
    fn old_and_future_messages_do_not_count() {
        let now = Timestamp::from_second(AT).unwrap();
        assert!(is_recent(AT - 299, now) && is_recent(AT + 299, now));
        assert!(!is_recent(AT - 301, now) && !is_recent(AT + 301, now));
        assert!(!is_recent(i64::MAX, now));
    }
}
