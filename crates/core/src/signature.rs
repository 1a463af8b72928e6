//! Signatures of entries of run records and pins: HMAC-SHA256 with the operator's signing key.

use alustan_api::run::key;
use hmac::{Hmac, KeyInit, Mac};
use serde_json::{Value, json};
use sha2::Sha256;

use crate::objects::secrets;

/// Entries of run record and pin that the operator signs. Each signature is in its own entry, named by [`key::signature`].
pub const SIGNED: [&str; 4] = [key::RECORD, key::INPUTS, key::HISTORY, secrets::PIN];

/// Returns the signature of `content` of `entry` in a Secret of the resource with this `uid`: 64 hexadecimal characters.
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

/// Returns the part of `content` that is signed. In a run record, only number and run are signed, because `kubectl alustan` changes locks
/// and lineage with the permissions of its user and without the signing key.
fn signed_part(entry: &str, content: &[u8]) -> Vec<u8> {
    let decision_json =
        |record: Value| json!([record.get("number"), record.get("run")]).to_string();
    let record = (entry == key::RECORD).then(|| serde_json::from_slice(content).ok());
    match record.flatten() {
        Some(record) => decision_json(record).into_bytes(),
        None => content.to_vec(),
    }
}
