//! Unsaved states (rules 2 and 8). The run report keeps an unsaved state. The cache volume keeps a copy, if the volume outlives the pod. The next
//! run pushes the state to its backend before it executes any other step.

use std::fs;
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

use alustan_api::run::key;
use alustan_state::retry::Patience;
use alustan_state::secrets::{self, Changes};
use alustan_state::store;
use flate2::Compression;
use flate2::read::GzDecoder;
use flate2::write::GzEncoder;

use crate::file_system::read_regular;
use crate::log_tail;
use crate::record::{RESERVE, RecordError, RecordHandle, Update};
use crate::secrets::encryption::Cipher;

/// File to which the engine writes the state if it fails to save the state to the backend.
pub const FILE: &str = "errored.tfstate";
/// Maximum size of the compressed and encrypted state in the run report, in bytes.
pub const MAX_BYTES: usize = 700 * 1024;

/// Error of writing an unsaved state to the run report.
#[derive(Debug, thiserror::Error)]
pub enum KeepError {
    /// The state could not be read or encrypted.
    #[error(transparent)]
    Unsealed(#[from] io::Error),
    /// The run report has no space for the state.
    #[error("the compressed state of {0} bytes does not fit into the Secret")]
    NoRoom(usize),
    /// The run report could not be written.
    #[error(transparent)]
    Record(#[from] RecordError),
}

impl KeepError {
    /// Whether a retry may succeed.
    pub fn is_passing(&self) -> bool {
        matches!(self, Self::Record(RecordError::Store(error)) if error.is_passing())
    }
}

/// Error of decrypting an unsaved state in the run report.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DecryptError {
    /// The content is damaged, or encrypted with another key.
    #[error("the content is damaged or encrypted with another key")]
    Damaged,
    /// The state exceeds [`store::MAX_STATE_BYTES`].
    #[error("the state exceeds {} bytes", store::MAX_STATE_BYTES)]
    TooLarge,
}

/// Compresses a state and encrypts it for the run report.
///
/// # Errors
/// The state exceeds [`store::MAX_STATE_BYTES`], or the key cannot be used.
pub fn encrypt(state: &[u8], key: &[u8]) -> io::Result<Vec<u8>> {
    if state.len() > store::MAX_STATE_BYTES {
        return Err(io::Error::other(format!(
            "the state exceeds {} bytes",
            store::MAX_STATE_BYTES
        )));
    }
    let mut encoder = GzEncoder::new(Vec::new(), Compression::default());
    encoder.write_all(state)?;
    let packed = encoder.finish()?;
    Cipher::new(key, "leftover")
        .and_then(|cipher| cipher.encrypt(packed))
        .ok_or_else(unsealed)
}

/// Decrypts and decompresses a state that [`encrypt`] encrypted with the same `key`. Limits the size of the result: a module can read the key
/// and write the report, so the content may have any size.
///
/// # Errors
/// [`DecryptError`] if the content is damaged, encrypted with another key, or too large.
pub fn decrypt(encrypted: &[u8], key: &[u8]) -> Result<Vec<u8>, DecryptError> {
    let cipher = Cipher::new(key, "leftover").ok_or(DecryptError::Damaged)?;
    let packed = cipher.decrypt(encrypted).ok_or(DecryptError::Damaged)?;
    let mut state = Vec::new();
    GzDecoder::new(packed.as_slice())
        .take(store::MAX_STATE_BYTES as u64 + 1)
        .read_to_end(&mut state)
        .map_err(|_| DecryptError::Damaged)?;
    if state.len() > store::MAX_STATE_BYTES {
        return Err(DecryptError::TooLarge);
    }
    Ok(state)
}

/// Writes the encrypted state `encrypted` to the run report, and replaces an earlier unsaved state. If the report has too little space, first removes
/// the logs from the report.
pub async fn put(
    record: &RecordHandle,
    encrypted: &[u8],
    patience: Patience,
) -> Result<(), KeepError> {
    if encrypted.len() > MAX_BYTES {
        return Err(KeepError::NoRoom(encrypted.len()));
    }
    let fits = record.update_ours(patience, |_, snapshot| {
        let stored = snapshot.data.get(key::LEFTOVER);
        if stored.is_some_and(|stored| stored == encrypted) {
            return Ok(Update::Keep(true));
        }
        let mut changes = Changes::from([(key::LEFTOVER.to_owned(), Some(encrypted.to_vec()))]);
        if snapshot.size_with(&changes) + RESERVE > secrets::MAX_SECRET_BYTES {
            log_tail::remove_all(snapshot, &mut changes);
        }
        if snapshot.size_with(&changes) + RESERVE > secrets::MAX_SECRET_BYTES {
            return Ok(Update::Keep(false));
        }
        Ok(Update::Write(true, changes))
    });
    if fits.await? {
        Ok(())
    } else {
        Err(KeepError::NoRoom(encrypted.len()))
    }
}

/// Removes the unsaved state from the run report.
pub async fn remove(record: &RecordHandle, patience: Patience) -> Result<(), RecordError> {
    record
        .update_ours(patience, |_, snapshot| {
            if !snapshot.data.contains_key(key::LEFTOVER) {
                return Ok(Update::Keep(()));
            }
            let changes = Changes::from([(key::LEFTOVER.to_owned(), None)]);
            Ok(Update::Write((), changes))
        })
        .await
}

/// Maximum size of an encrypted state on the cache volume, in bytes. Other pods can write to the volume.
const MAX_STATE: u64 = 4 << 30;

/// Returns the path of the unsaved state on the cache volume.
fn copy_path(cache: &Path) -> PathBuf {
    cache.join("errored.tfstate.sealed")
}

/// Encrypts `state` and keeps it on the cache volume.
pub fn keep(cache: &Path, state: Vec<u8>, key: &[u8]) -> io::Result<()> {
    keep_as(cache, &copy_path(cache), state, key)
}

/// Encrypts `state` and keeps it on the cache volume for inspection only: no run pushes it, because run `number` found a newer state in the
/// backend.
pub fn keep_old(cache: &Path, number: i64, state: Vec<u8>, key: &[u8]) -> io::Result<()> {
    let target = cache.join(format!("errored.tfstate.{number}.old"));
    keep_as(cache, &target, state, key)
}

fn keep_as(cache: &Path, target: &Path, state: Vec<u8>, key: &[u8]) -> io::Result<()> {
    let encrypted = Cipher::new(key, "errored state")
        .and_then(|cipher| cipher.encrypt(state))
        .ok_or_else(unsealed)?;
    let part = cache.join("errored.tfstate.part");
    let mut file = fs::File::create(&part)?;
    file.write_all(&encrypted)?;
    file.sync_all()?;
    fs::rename(part, target)
}

fn unsealed() -> io::Error {
    io::Error::other("failed to encrypt the state")
}

/// Returns the unsaved state of an earlier run on the cache volume; `None` if it does not exist or `key` does not decrypt it.
pub fn take(cache: &Path, key: &[u8]) -> Option<Vec<u8>> {
    let encrypted = read_regular(&copy_path(cache), MAX_STATE).ok()?;
    let decrypted = Cipher::new(key, "errored state").and_then(|cipher| cipher.decrypt(&encrypted));
    if decrypted.is_none() {
        crate::log!(
            "cannot decrypt {}, which is damaged or encrypted with another key; the file is kept",
            copy_path(cache).display()
        );
    }
    decrypted
}

/// Removes the unsaved state from the cache volume.
pub fn forget(cache: &Path) {
    let _ = fs::remove_file(copy_path(cache));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::Identity;
    use alustan_api::run::{Claim, RunPhase, RunProgress};
    use alustan_state::fake::{FakeSecrets, Fault};
    use alustan_state::secrets::to_json;
    use k8s_openapi::jiff::Timestamp;
    use rstest::rstest;
    use std::sync::Arc;
    use std::time::Duration;

    fn record(secrets: &Arc<FakeSecrets>, pod_uid: &str) -> RecordHandle {
        let identity = Identity {
            namespace: "team".into(),
            record: "web-run".into(),
            number: 7,
            decision: None,
            pod_uid: pod_uid.into(),
            pod: "pod".into(),
        };
        RecordHandle::new(secrets.clone(), identity)
    }

    /// Returns Secrets with the report of run 7 in phase Applying, claimed by pod `uid`. The report contains outputs of `outputs` bytes.
    fn cluster(outputs: usize) -> Arc<FakeSecrets> {
        let progress = RunProgress {
            number: 7,
            phase: RunPhase::Applying,
            claimed_by: Some(Claim {
                pod_uid: "uid".into(),
                pod: "pod".into(),
                at: Timestamp::UNIX_EPOCH,
            }),
            ..RunProgress::default()
        };
        let secrets = Arc::new(FakeSecrets::new());
        let data = [
            (key::PROGRESS, to_json(&progress)),
            (key::OUTPUTS, vec![0; outputs]),
        ];
        secrets.put("web-report", data);
        secrets
    }

    fn kept(secrets: &FakeSecrets) -> Option<Vec<u8>> {
        let data = secrets.get("web-report")?.data;
        decrypt(data.get(key::LEFTOVER)?, b"key").ok()
    }

    fn patience() -> Patience {
        Patience::lasting(Duration::from_secs(30))
    }

    #[rstest]
    #[case(None)]
    #[case(Some(Fault::Lost))]
    #[case(Some(Fault::AnswerLost))]
    #[tokio::test(start_paused = true)]
    async fn report_keeps_unsaved_state_until_it_is_removed(#[case] fault: Option<Fault>) {
        let secrets = cluster(0);
        if let Some(fault) = fault {
            secrets.fail(0, fault);
        }
        let record = record(&secrets, "uid");
        let encrypted = encrypt(b"state", b"key").unwrap();
        put(&record, &encrypted, patience()).await.unwrap();
        assert_eq!(kept(&secrets).unwrap(), b"state");
        let other = encrypt(b"another", b"key").unwrap();
        put(&record, &other, patience()).await.unwrap();
        assert_eq!(kept(&secrets).unwrap(), b"another");
        for _ in 0..2 {
            remove(&record, patience()).await.unwrap();
            assert_eq!(kept(&secrets), None);
        }
        assert!(
            secrets
                .get("web-report")
                .unwrap()
                .data
                .contains_key(key::OUTPUTS)
        );
    }

    #[rstest]
    #[case::too_large(MAX_BYTES + 1, 0)]
    #[case::too_little_room(MAX_BYTES, 300 * 1024)]
    #[tokio::test]
    async fn unsaved_state_without_room_is_not_written(
        #[case] size: usize,
        #[case] outputs: usize,
    ) {
        let secrets = cluster(outputs);
        let (record, encrypted) = (record(&secrets, "uid"), vec![0; size]);
        let error = put(&record, &encrypted, patience()).await.unwrap_err();
        assert!(matches!(error, KeepError::NoRoom(_)) && !error.is_passing());
        assert!(secrets.writes().is_empty());
    }

    #[tokio::test]
    async fn report_of_another_pod_is_not_changed() {
        let secrets = cluster(0);
        let record = record(&secrets, "other");
        let error = put(&record, b"encrypted", patience()).await.unwrap_err();
        assert!(!error.is_passing(), "{error}");
        assert!(remove(&record, patience()).await.is_err());
        assert!(secrets.writes().is_empty());
    }

    #[test]
    fn sealed_state_is_compressed_and_encrypted() {
        let state = b"state".repeat(100_000);
        let encrypted = encrypt(&state, b"key").unwrap();
        assert!(encrypted.len() < 10_000);
        assert_eq!(decrypt(&encrypted, b"other"), Err(DecryptError::Damaged));
        assert_eq!(decrypt(b"anything", b"key"), Err(DecryptError::Damaged));
        assert_eq!(decrypt(&encrypted, b"key").unwrap(), state);
    }

    #[test]
    fn decompression_of_unsaved_state_is_limited() {
        let mut packed = GzEncoder::new(Vec::new(), Compression::fast());
        let zeros = vec![0; 1 << 20];
        for _ in 0..=store::MAX_STATE_BYTES >> 20 {
            packed.write_all(&zeros).unwrap();
        }
        let module_cipher = Cipher::new(b"key", "leftover").unwrap();
        let encrypted = module_cipher.encrypt(packed.finish().unwrap()).unwrap();
        let error = decrypt(&encrypted, b"key").unwrap_err();
        assert_eq!(error.to_string(), "the state exceeds 268435456 bytes");
    }

    #[test]
    fn state_larger_than_the_limit_is_not_sealed() {
        let error = encrypt(&vec![0; store::MAX_STATE_BYTES + 1], b"key").unwrap_err();
        assert_eq!(error.to_string(), "the state exceeds 268435456 bytes");
    }

    #[test]
    fn next_run_reads_encrypted_unsaved_state_from_cache() {
        let directory = tempfile::tempdir().unwrap();
        let cache = directory.path();
        assert_eq!(take(cache, b"key"), None);
        keep(cache, b"state".to_vec(), b"key").unwrap();
        assert_eq!(take(cache, b"other"), None);
        assert_eq!(take(cache, b"key").unwrap(), b"state");
        keep_old(cache, 7, b"state".to_vec(), b"key").unwrap();
        assert!(cache.join("errored.tfstate.7.old").is_file());
        forget(cache);
        assert_eq!(take(cache, b"key"), None);
    }
}
