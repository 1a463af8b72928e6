//! Signatures by the Standard Webhooks specification
//! (<https://github.com/standard-webhooks/standard-webhooks/blob/main/spec/standard-webhooks.md>):
//! `v1,` and the base64 of an HMAC-SHA256 over `id.timestamp.body`.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use k8s_openapi::jiff::{SignedDuration, Timestamp};
use ring::hmac;

/// The header with the id of a message: the same for every try to deliver it.
pub(crate) const ID: &str = "webhook-id";
/// The header with the moment of a try, in seconds since 1970.
pub(crate) const TIMESTAMP: &str = "webhook-timestamp";
/// The header with the signatures, separated by spaces.
pub(crate) const SIGNATURE: &str = "webhook-signature";

/// How far the clocks of sender and receiver may be apart.
pub(crate) const TOLERANCE: SignedDuration = SignedDuration::from_mins(5);

/// A secret that sender and receiver share. No `Debug`.
#[derive(Clone)]
pub(crate) struct Secret(Vec<u8>);

impl Secret {
    /// Reads a secret: `whsec_` and base64, or else the bytes themselves without white space around them.
    /// None where nothing is left.
    pub(crate) fn read(text: &[u8]) -> Option<Self> {
        let text = text.trim_ascii();
        let decoded = text
            .strip_prefix(b"whsec_")
            .and_then(|rest| STANDARD.decode(rest).ok());
        let bytes = decoded.unwrap_or_else(|| text.to_vec());
        (!bytes.is_empty()).then_some(Self(bytes))
    }

    /// The value of [`SIGNATURE`] for `body`, sent as `id` at `timestamp` (seconds since 1970).
    pub(crate) fn sign(&self, id: &str, timestamp: i64, body: &[u8]) -> String {
        let tag = hmac::sign(&self.key(), &signed(id, timestamp, body));
        format!("v1,{}", STANDARD.encode(tag))
    }

    /// Whether one of `signatures` is of `body`, sent as `id` at `timestamp`; in constant time.
    pub(crate) fn has_signed(
        &self,
        signatures: &str,
        id: &str,
        timestamp: i64,
        body: &[u8],
    ) -> bool {
        let signed = signed(id, timestamp, body);
        let mut tags = signatures
            .split(' ')
            .filter_map(|one| STANDARD.decode(one.strip_prefix("v1,")?).ok());
        tags.any(|tag| hmac::verify(&self.key(), &signed, &tag).is_ok())
    }

    /// Whether `tag` is the HMAC-SHA256 of `body`; in constant time.
    pub(crate) fn has_tagged(&self, tag: &[u8], body: &[u8]) -> bool {
        hmac::verify(&self.key(), body, tag).is_ok()
    }

    /// Whether `token` is the secret, in constant time.
    pub(crate) fn is(&self, token: &[u8]) -> bool {
        let own = hmac::sign(&self.key(), &self.0);
        hmac::verify(&self.key(), token, own.as_ref()).is_ok()
    }

    fn key(&self) -> hmac::Key {
        hmac::Key::new(hmac::HMAC_SHA256, &self.0)
    }
}

/// Whether something signed at `timestamp` (seconds since 1970) may count at `now`.
pub(crate) fn is_recent(timestamp: i64, now: Timestamp) -> bool {
    let signed = Timestamp::from_second(timestamp);
    signed.is_ok_and(|signed| now.duration_since(signed).abs() <= TOLERANCE)
}

fn signed(id: &str, timestamp: i64, body: &[u8]) -> Vec<u8> {
    [format!("{id}.{timestamp}.").as_bytes(), body].concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The example of the specification's own libraries.
    const SECRET: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";
    const ID: &str = "msg_p5jXN8AQM9LWM0D4loKWxJek";
    const AT: i64 = 1_614_265_330;
    const BODY: &[u8] = br#"{"test": 2432232314}"#;
    const SIGNED: &str = "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=";

    fn secret(text: &str) -> Secret {
        Secret::read(text.as_bytes()).unwrap()
    }

    #[test]
    fn signatures_are_those_of_the_specification() {
        assert_eq!(secret(SECRET).sign(ID, AT, BODY), SIGNED);
        let several = format!("v1a,x v1,AAAA {SIGNED}");
        assert!(secret(SECRET).has_signed(&several, ID, AT, BODY));
    }

    #[test]
    fn nothing_else_is_accepted() {
        let other = secret("whsec_AAAA");
        assert!(!other.has_signed(SIGNED, ID, AT, BODY));
        let ours = secret(SECRET);
        assert!(!ours.has_signed(SIGNED, "other", AT, BODY));
        assert!(!ours.has_signed(SIGNED, ID, AT + 1, BODY));
        assert!(!ours.has_signed(SIGNED, ID, AT, b"{}"));
        assert!(!ours.has_signed("", ID, AT, BODY));
    }

    #[test]
    fn secrets_are_read_without_the_line_end_of_their_file() {
        assert!(secret("token\n").is(b"token"));
        assert!(!secret("token").is(b"token2"));
        assert!(Secret::read(b" \n").is_none());
    }

    #[test]
    fn old_and_future_messages_do_not_count() {
        let now = Timestamp::from_second(AT).unwrap();
        assert!(is_recent(AT - 299, now) && is_recent(AT + 299, now));
        assert!(!is_recent(AT - 301, now) && !is_recent(AT + 301, now));
        assert!(!is_recent(i64::MAX, now));
    }
}
