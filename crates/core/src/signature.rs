//! Signatures of entries of run records and pins: HMAC-SHA256 with the operator's signing key.

use std::borrow::Cow;
use std::collections::BTreeMap;

use alustan_api::run::key;
use hmac::{Hmac, KeyInit, Mac};
use serde_json::Value;
use serde_json::value::RawValue;
use sha2::Sha256;

use crate::objects::secrets;

/// Entries of the run record Secret and the pin Secret that the operator signs. Each signature is a separate entry, whose key is returned
/// by [`key::signature`].
pub const SIGNED: [&str; 4] = [key::RECORD, key::INPUTS, key::HISTORY, secrets::PIN];

/// Returns the signature of data entry `entry` with value `content`: 64 hexadecimal characters. `uid`: uid of the resource to which the
/// Secret belongs.
pub fn of(signing_key: &[u8], uid: &str, entry: &str, content: &[u8]) -> String {
    hex::encode(
        mac(signing_key, uid, entry, content)
            .finalize()
            .into_bytes(),
    )
}

/// Whether `signature` is valid for `content`. Constant-time comparison.
pub fn is_valid(
    signing_key: &[u8],
    uid: &str,
    entry: &str,
    content: &[u8],
    signature: &[u8],
) -> bool {
    let mac = mac(signing_key, uid, entry, content);
    hex::decode(signature).is_ok_and(|signature| mac.verify_slice(&signature).is_ok())
}

fn mac(signing_key: &[u8], uid: &str, entry: &str, content: &[u8]) -> Hmac<Sha256> {
    let mut mac = <Hmac<Sha256> as KeyInit>::new_from_slice(signing_key)
        .unwrap_or_else(|_| <Hmac<Sha256> as KeyInit>::new(&[0; 64].into()));
    for part in [uid, entry] {
        mac.update(part.as_bytes());
        mac.update(&[0]);
    }
    mac.update(&signed_part(entry, content));
    mac
}

/// Returns the part of `content` that is signed. Of entry [`key::RECORD`], only number and run are signed. `kubectl alustan` changes locks
/// and lineage in this entry with the permissions of its user, and does not have the signing key.
fn signed_part<'a>(entry: &str, content: &'a [u8]) -> Cow<'a, [u8]> {
    let signed = (entry == key::RECORD).then(|| number_and_run(content));
    match signed.flatten() {
        Some(signed) => Cow::Owned(signed),
        None => Cow::Borrowed(content),
    }
}

/// Returns number and run of the run record `content` as JSON with sorted keys. `None` if `content` is not a JSON object. Parses no other fields.
fn number_and_run(content: &[u8]) -> Option<Vec<u8>> {
    let record: BTreeMap<String, &RawValue> = serde_json::from_slice(content).ok()?;
    let field = |name: &str| match record.get(name) {
        Some(text) => serde_json::from_str(text.get()).ok(),
        None => Some(Value::Null),
    };
    serde_json::to_vec(&[field("number")?, field("run")?]).ok()
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::json;

    use super::*;

    #[rstest]
    #[case(json!({"number": 3, "run": {"kind": "apply", "image": "a"}, "lock": {"id": "l"}}))]
    #[case(json!({"run": {"b": [1, 2.5], "a": {"d": null, "c": "\u{e9}\n"}}, "number": 3}))]
    #[case(json!({"number": 3, "run": null}))]
    #[case(json!({"number": 3}))]
    #[case(json!({}))]
    fn signed_part_of_a_record_has_number_and_run_with_sorted_keys(#[case] record: Value) {
        let content = serde_json::to_vec_pretty(&record).unwrap();
        let expected = json!([record.get("number"), record.get("run")]).to_string();
        assert_eq!(*signed_part(key::RECORD, &content), *expected.as_bytes());
    }

    #[test]
    fn other_content_is_signed_as_a_whole() {
        for content in ["[3, {}]", "{\"number\": 3", "3"] {
            assert_eq!(
                *signed_part(key::RECORD, content.as_bytes()),
                *content.as_bytes()
            );
        }
        let inputs = r#"{"number": 3, "run": {}}"#;
        assert_eq!(
            *signed_part(key::INPUTS, inputs.as_bytes()),
            *inputs.as_bytes()
        );
    }
}
