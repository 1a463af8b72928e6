//! Signatures of entries of run records and pins: HMAC-SHA256 with the operator's signing key.

use alustan_api::run::key;
use hmac::{Hmac, KeyInit, Mac};
use serde_json::{Value, json};
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
fn signed_part(entry: &str, content: &[u8]) -> Vec<u8> {
    let decision_json =
        |record: Value| json!([record.get("number"), record.get("run")]).to_string();
    let record = (entry == key::RECORD).then(|| serde_json::from_slice(content).ok());
    match record.flatten() {
        Some(record) => decision_json(record).into_bytes(),
        None => content.to_vec(),
    }
}
