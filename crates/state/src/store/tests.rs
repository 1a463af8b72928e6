mod faults;

use std::sync::atomic::{AtomicUsize, Ordering};

use super::layout::SLOTS;
use super::*;
use crate::fake::{FakeSecrets, Fault};
use crate::secrets::{Changes, StoreError};
use rstest::rstest;
use sha2::{Digest, Sha256};

struct FixedSlots(Vec<String>);

/// Slot source that returns as many slots as a call requests. Records the number of slots that each call requests.
#[derive(Default)]
struct RecordedSlots(parking_lot::Mutex<Vec<usize>>);

#[async_trait]
impl SlotSource for RecordedSlots {
    async fn request_slots(&self, wanted: usize) -> Vec<String> {
        self.0.lock().push(wanted);
        names(wanted)
    }

    fn discarding_previous(&self) {}
}

#[async_trait]
impl SlotSource for FixedSlots {
    async fn request_slots(&self, _wanted: usize) -> Vec<String> {
        self.0.clone()
    }

    fn discarding_previous(&self) {}
}

/// Secrets with the forged pointer `pointer`. Every slot has 1 MiB. Counts the reads.
struct Forged {
    pointer: Vec<u8>,
    reads: AtomicUsize,
}

#[async_trait]
impl Secrets for Forged {
    async fn read(&self, name: &str) -> Result<Snapshot, StoreError> {
        self.reads.fetch_add(1, Ordering::Relaxed);
        let (key, value) = match name {
            "state" => (POINTER, self.pointer.clone()),
            _ => (DATA, vec![0; 1 << 20]),
        };
        Ok(Snapshot {
            version: "1".to_owned(),
            data: [(key.to_owned(), value)].into(),
        })
    }

    async fn swap(
        &self,
        name: &str,
        _version: &str,
        _changes: Changes,
    ) -> Result<String, StoreError> {
        Err(StoreError::Conflict(name.to_owned()))
    }

    async fn replace(
        &self,
        name: &str,
        _key: &str,
        _before: &[u8],
        _after: &[u8],
    ) -> Result<Snapshot, StoreError> {
        Err(StoreError::Conflict(name.to_owned()))
    }
}

fn names(count: usize) -> Vec<String> {
    (0..count).map(|slot| format!("slot-{slot}")).collect()
}

fn cluster(slots: usize) -> Arc<FakeSecrets> {
    let secrets = FakeSecrets::new();
    secrets.put("state", []);
    for slot in names(slots) {
        secrets.put(&slot, []);
    }
    Arc::new(secrets)
}

async fn open_with(
    secrets: &Arc<FakeSecrets>,
    slots: usize,
    extra: usize,
) -> Result<StateStore, StateError> {
    let slot_source = Arc::new(FixedSlots(names(extra)));
    StateStore::open_with_chunk(
        secrets.clone(),
        "state".into(),
        names(slots),
        slot_source,
        writer(),
        128,
    )
    .await
}

/// Returns a unique identifier of a writer.
fn writer() -> String {
    static WRITERS: AtomicUsize = AtomicUsize::new(0);
    format!("writer-{}", WRITERS.fetch_add(1, Ordering::Relaxed))
}

async fn open(secrets: &Arc<FakeSecrets>) -> StateStore {
    open_with(secrets, 3, 3).await.unwrap()
}

/// Returns a state that does not compress: `size` hexadecimal digits of noise.
fn state(serial: u64, size: usize) -> Vec<u8> {
    let mut noise = String::new();
    let mut seed = [u8::try_from(serial % 250).unwrap(); 32];
    while noise.len() < size {
        seed = Sha256::digest(seed).into();
        noise.push_str(&hex::encode(seed));
    }
    noise.truncate(size);
    format!(r#"{{"serial":{serial},"lineage":"l","noise":"{noise}"}}"#).into_bytes()
}

fn pointer(secrets: &FakeSecrets) -> Pointer {
    let data = secrets.get("state").unwrap().data;
    data.get(POINTER)
        .map(|bytes| serde_json::from_slice(bytes).unwrap())
        .unwrap_or_default()
}

#[tokio::test]
async fn state_reads_back_and_previous_version_is_kept() {
    let secrets = cluster(3);
    let store = open(&secrets).await;
    assert_eq!(store.get().await, None);
    for serial in 1..=5 {
        store.put(state(serial, 10)).await.unwrap();
    }
    assert_eq!(*open(&secrets).await.get().await.unwrap(), state(5, 10));
    let pointer = pointer(&secrets);
    let current = pointer.current.unwrap();
    assert_eq!(
        (current.version, current.serial, current.lineage.as_deref()),
        (5, Some(5), Some("l"))
    );
    assert_eq!(pointer.previous.unwrap().version, 4);
}

#[tokio::test]
async fn an_unchanged_state_is_not_written_again() {
    let secrets = cluster(3);
    let store = open(&secrets).await;
    store.put(state(1, 10)).await.unwrap();
    store.put(state(1, 10)).await.unwrap();
    assert_eq!(secrets.writes(), ["state"]);
}

#[tokio::test]
async fn chunk_in_the_secret_of_the_pointer_is_written_with_it() {
    let secrets = cluster(2);
    let store = open(&secrets).await;
    for serial in 1..=4 {
        store.put(state(serial, 10)).await.unwrap();
    }
    let expected = ["state", "slot-0", "state", "slot-1", "state", "state"];
    assert_eq!(secrets.writes(), expected);
    assert_eq!(pointer(&secrets).current.unwrap().slots, ["state"]);
    assert_eq!(pointer(&secrets).previous.unwrap().slots, ["slot-1"]);
    assert_eq!(*open(&secrets).await.get().await.unwrap(), state(4, 10));
}

/// Without a state slot, the pointer Secret contains the state, and each version replaces the previous one. With a state slot, the previous
/// version is kept.
#[tokio::test]
async fn state_without_slots_is_replaced_in_the_secret_of_the_pointer() {
    let secrets = cluster(0);
    let store = open_with(&secrets, 0, 0).await.unwrap();
    for serial in 1..=3 {
        store.put(state(serial, 10)).await.unwrap();
    }
    assert_eq!(secrets.writes(), ["state"; 3]);
    let after = pointer(&secrets);
    assert_eq!(after.current.unwrap().version, 3);
    assert_eq!(after.previous, None);
    secrets.put("slot-0", []);
    let store = open_with(&secrets, 1, 1).await.unwrap();
    assert_eq!(*store.get().await.unwrap(), state(3, 10));
    store.put(state(4, 10)).await.unwrap();
    let after = pointer(&secrets);
    assert_eq!(after.current.unwrap().slots, ["slot-0"]);
    assert_eq!(after.previous.unwrap().serial, Some(3));
}

#[tokio::test]
async fn growing_state_without_slots_requests_slots() {
    let secrets = cluster(12);
    let store = open_with(&secrets, 0, 12).await.unwrap();
    for serial in 1..=3 {
        store.put(state(serial, 400)).await.unwrap();
    }
    let stored = open_with(&secrets, 12, 12).await.unwrap().get().await;
    assert_eq!(*stored.unwrap(), state(3, 400));
    assert_eq!(pointer(&secrets).previous.unwrap().serial, Some(2));
}

#[tokio::test]
async fn state_of_an_earlier_release_is_read_and_kept_as_previous() {
    let secrets = cluster(3);
    let old = state(1, 10);
    let version = version_of(&old, sha256_hex(&old), vec!["slot-2".to_owned()], None);
    let pointed = Pointer {
        current: Some(version),
        ..Pointer::default()
    };
    secrets.put("slot-2", [(DATA, compress(&old))]);
    secrets.put("state", [(POINTER, crate::secrets::to_json(&pointed))]);
    let store = open(&secrets).await;
    assert_eq!(*store.get().await.unwrap(), old);
    store.put(state(2, 10)).await.unwrap();
    assert_eq!(secrets.writes(), ["state"]);
    assert_eq!(pointer(&secrets).previous.unwrap().slots, ["slot-2"]);
    assert_eq!(*open(&secrets).await.get().await.unwrap(), state(2, 10));
}

#[tokio::test]
async fn slots_are_read_when_they_are_needed() {
    let secrets = cluster(2);
    let store = open(&secrets).await;
    store.put(state(1, 10)).await.unwrap();
    assert_eq!(secrets.reads(), ["state"]);
    store.put(state(2, 10)).await.unwrap();
    assert_eq!(secrets.reads(), ["state", "slot-0", "state"]);
}

#[tokio::test]
async fn growing_state_requests_more_slots() {
    let secrets = cluster(12);
    let store = open_with(&secrets, 3, 12).await.unwrap();
    for serial in 1..=3 {
        store.put(state(serial, 400)).await.unwrap();
    }
    assert_eq!(
        *open_with(&secrets, 12, 12)
            .await
            .unwrap()
            .get()
            .await
            .unwrap(),
        state(3, 400)
    );
    assert!(pointer(&secrets).current.unwrap().slots.len() > 2);
    assert_eq!(pointer(&secrets).previous.unwrap().serial, Some(2));
}

#[tokio::test]
async fn slots_named_by_the_pointer_are_requested_before_reads() {
    let secrets = cluster(12);
    let store = open_with(&secrets, 12, 12).await.unwrap();
    store.put(state(1, 400)).await.unwrap();
    let used = pointer(&secrets).current.unwrap().slots.len() - 1;
    let requested = Arc::new(RecordedSlots::default());
    let (place, chunk) = ("state".to_owned(), 128);
    let stored = StateStore::open_with_chunk(
        secrets.clone(),
        place,
        names(1),
        requested.clone(),
        writer(),
        chunk,
    )
    .await
    .unwrap()
    .get()
    .await;
    assert_eq!(*stored.unwrap(), state(1, 400));
    assert!(used > 1, "{used}");
    assert_eq!(*requested.0.lock(), [used]);
}

#[tokio::test]
async fn previous_version_is_dropped_before_its_slots_are_reused() {
    let secrets = cluster(1);
    let store = open_with(&secrets, 1, 1).await.unwrap();
    for serial in 1..=4 {
        store.put(state(serial, 10)).await.unwrap();
    }
    let expected = [
        "state", "slot-0", "state", "state", "state", "state", "slot-0", "state",
    ];
    assert_eq!(secrets.writes(), expected);
}

#[tokio::test]
async fn state_without_room_is_refused_and_the_old_one_kept() {
    let secrets = cluster(3);
    let store = open(&secrets).await;
    store.put(state(1, 10)).await.unwrap();
    let error = store.put(state(2, 900)).await.unwrap_err();
    assert!(matches!(error, StateError::NoRoom { .. }), "{error}");
    assert_eq!(*open(&secrets).await.get().await.unwrap(), state(1, 10));
}

#[tokio::test]
async fn state_larger_than_1_mib_is_stored_in_chunks() {
    let secrets = cluster(12);
    let slot_source = Arc::new(FixedSlots(names(12)));
    let open = || {
        StateStore::open(
            secrets.clone(),
            "state".into(),
            names(12),
            slot_source.clone(),
            writer(),
        )
    };
    let big = state(1, 3 * 1024 * 1024);
    open().await.unwrap().put(big.clone()).await.unwrap();
    assert!(pointer(&secrets).current.unwrap().slots.len() >= 2);
    assert!(*open().await.unwrap().get().await.unwrap() == big);
    for slot in names(12) {
        let data = secrets.get(&slot).unwrap().data;
        assert!(data.get(DATA).map_or(0, Vec::len) <= CHUNK);
    }
}

/// The sizes produce versions of one to four chunks. Later versions reuse slots of versions that the pointer no longer names.
#[rstest]
#[case::three_slots(3, &[10, 20, 30, 40])]
#[case::two_slots(2, &[10, 20, 30, 40])]
#[case::pointer_alone(0, &[10, 20, 30, 40])]
#[case::chunks(9, &[150, 10, 400, 300, 10])]
#[tokio::test]
async fn crash_between_writes_leaves_the_old_or_new_state(
    #[case] slots: usize,
    #[case] sizes: &[usize],
) {
    let versions: Vec<Vec<u8>> = sizes
        .iter()
        .enumerate()
        .map(|(at, size)| state(at as u64 + 1, *size))
        .collect();
    for crash_at in 0.. {
        let secrets = cluster(slots);
        secrets.die_at(Some(crash_at));
        let store = open_with(&secrets, slots, slots).await.unwrap();
        let mut written: usize = 0;
        for version in &versions {
            if store.put(version.clone()).await.is_err() {
                break;
            }
            written += 1;
        }
        secrets.die_at(None);
        let stored = open_with(&secrets, slots, slots).await.unwrap().get().await;
        let before = written.checked_sub(1).map(|last| &versions[last]);
        let next = versions.get(written);
        let stored = stored.as_deref();
        assert!(
            stored == before || stored == next,
            "crash at write {crash_at}"
        );
        if written == versions.len() {
            return;
        }
    }
}

#[rstest]
#[tokio::test(start_paused = true)]
async fn lost_write_or_response_is_retried(
    #[values(Fault::Lost, Fault::AnswerLost)] fault: Fault,
    #[values(0, 3)] slots: usize,
) {
    for at in 0..6 {
        let secrets = cluster(slots);
        secrets.fail(at, fault);
        let store = open_with(&secrets, slots, slots).await.unwrap();
        for serial in 1..=3 {
            store.put(state(serial, 10)).await.unwrap();
        }
        assert_eq!(*open(&secrets).await.get().await.unwrap(), state(3, 10));
    }
}

#[rstest]
#[case::with_the_pointer(0)]
#[case::in_a_slot(1)]
#[case::in_another_slot(2)]
#[tokio::test]
async fn a_second_writer_fails_and_destroys_nothing(#[case] versions: u64) {
    let secrets = cluster(3);
    for serial in 20..20 + versions {
        open(&secrets).await.put(state(serial, 10)).await.unwrap();
    }
    let (first, second) = (open(&secrets).await, open(&secrets).await);
    first.put(state(1, 10)).await.unwrap();
    first.put(state(2, 10)).await.unwrap();
    for serial in 7..12 {
        assert!(matches!(
            second.put(state(serial, 10)).await,
            Err(StateError::Moved)
        ));
    }
    assert_eq!(*open(&secrets).await.get().await.unwrap(), state(2, 10));
}

/// Two writers write one version each. After the write of the second writer, each write of the first writer fails.
#[tokio::test]
async fn replaced_writer_fails_each_time_and_destroys_nothing() {
    let secrets = cluster(3);
    let first = open(&secrets).await;
    first.put(state(1, 10)).await.unwrap();
    open(&secrets).await.put(state(2, 10)).await.unwrap();
    for serial in 7..12 {
        let error = first.put(state(serial, 10)).await.unwrap_err();
        assert!(matches!(error, StateError::Moved), "{error}");
        assert_eq!(*open(&secrets).await.get().await.unwrap(), state(2, 10));
    }
}

#[tokio::test]
async fn writer_that_has_begun_invalidates_earlier_writers() {
    let secrets = cluster(3);
    open(&secrets).await.put(state(1, 10)).await.unwrap();
    let first = open(&secrets).await;
    let second = open(&secrets).await;
    second.begin().await.unwrap();
    let error = first.put(state(7, 10)).await.unwrap_err();
    assert!(matches!(error, StateError::Moved), "{error}");
    let before = secrets.writes().len();
    second.put(state(2, 10)).await.unwrap();
    assert_eq!(secrets.writes()[before..], ["slot-0", "state"]);
    assert_eq!(*open(&secrets).await.get().await.unwrap(), state(2, 10));
}

#[tokio::test]
async fn damaged_state_error_names_the_intact_version() {
    let secrets = cluster(3);
    let store = open(&secrets).await;
    store.put(state(1, 10)).await.unwrap();
    store.put(state(2, 10)).await.unwrap();
    secrets.put("slot-0", [(DATA, b"damaged".to_vec())]);
    let error = open_with(&secrets, 3, 3).await.err().unwrap().to_string();
    assert!(
        error.contains("version 2 of the state (in slot-0) is damaged"),
        "{error}"
    );
    assert!(
        error.contains("the previous version 1 (serial 1) is intact"),
        "{error}"
    );
}

#[tokio::test]
async fn decompression_of_a_state_version_is_limited() {
    let secrets = cluster(1);
    let mut packed = GzEncoder::new(Vec::new(), Compression::fast());
    let zeros = vec![0; 1 << 20];
    for _ in 0..=MAX_STATE_BYTES >> 20 {
        packed.write_all(&zeros).unwrap();
    }
    let version = version_of(b"{}", sha256_hex(b"{}"), vec!["slot-0".to_owned()], None);
    let pointer = serde_json::to_vec(&Pointer {
        current: Some(version),
        ..Pointer::default()
    })
    .unwrap();
    secrets.put("state", [(POINTER, pointer)]);
    secrets.put("slot-0", [(DATA, packed.finish().unwrap())]);
    let error = open_with(&secrets, 1, 1).await.err().unwrap().to_string();
    assert!(
        error.contains("the state exceeds 268435456 bytes"),
        "{error}"
    );
}

#[tokio::test]
async fn pointer_to_more_slots_than_the_limit_is_refused() {
    let secrets = cluster(1);
    let version = version_of(b"{}", sha256_hex(b"{}"), names(SLOTS + 1), None);
    let pointer = serde_json::to_vec(&Pointer {
        previous: Some(version),
        ..Pointer::default()
    })
    .unwrap();
    secrets.put("state", [(POINTER, pointer)]);
    let error = open_with(&secrets, 1, 1).await.err().unwrap().to_string();
    assert!(
        error.contains("lists 1025 Secrets for version 1"),
        "{error}"
    );
    assert_eq!(secrets.reads(), ["state"]);
}

#[rstest]
#[case::current(true)]
#[case::previous(false)]
#[tokio::test]
async fn pointer_that_names_a_slot_twice_is_refused(#[case] is_current: bool) {
    let secrets = cluster(2);
    let slots = ["slot-0", "slot-1", "slot-0"].map(str::to_owned).to_vec();
    let version = Some(version_of(b"{}", sha256_hex(b"{}"), slots, None));
    let pointer = if is_current {
        Pointer {
            current: version,
            ..Pointer::default()
        }
    } else {
        Pointer {
            previous: version,
            ..Pointer::default()
        }
    };
    secrets.put("state", [(POINTER, crate::secrets::to_json(&pointer))]);
    let error = open_with(&secrets, 2, 2).await.err().unwrap().to_string();
    assert!(
        error.contains("lists Secret slot-0 twice for version 1"),
        "{error}"
    );
    assert_eq!(secrets.reads(), ["state"]);
}

#[tokio::test]
async fn slots_are_read_up_to_the_size_of_the_largest_state() {
    let version = version_of(b"{}", sha256_hex(b"{}"), names(SLOTS), None);
    let pointer = Pointer {
        current: Some(version),
        ..Pointer::default()
    };
    let secrets = Arc::new(Forged {
        pointer: crate::secrets::to_json(&pointer),
        reads: AtomicUsize::new(0),
    });
    let slot_source = Arc::new(FixedSlots(Vec::new()));
    let error = StateStore::open(
        secrets.clone(),
        "state".into(),
        names(1),
        slot_source,
        writer(),
    )
    .await
    .err()
    .unwrap()
    .to_string();
    assert!(
        error.contains("the slots of the version exceed 269484032 bytes"),
        "{error}"
    );
    // 321 reads: the pointer, and five batches of 64 slots with 1 MiB each. The fifth batch exceeds the limit of 257 MiB.
    assert_eq!(secrets.reads.load(Ordering::Relaxed), 321);
}

#[tokio::test]
async fn deleted_state_is_kept_as_the_previous_version() {
    let secrets = cluster(3);
    let store = open(&secrets).await;
    store.put(state(1, 10)).await.unwrap();
    store.delete().await.unwrap();
    assert_eq!(open(&secrets).await.get().await, None);
    assert_eq!(pointer(&secrets).previous.unwrap().serial, Some(1));
}

#[tokio::test]
async fn missing_pointer_is_a_loss_and_empty_pointer_is_not() {
    let secrets = Arc::new(FakeSecrets::new());
    for slot in names(3) {
        secrets.put(&slot, []);
    }
    let error = open_with(&secrets, 3, 3).await.err().unwrap();
    assert!(
        matches!(&error, StateError::NoPointer(name) if name == "state"),
        "{error}"
    );
    secrets.put("state", []);
    assert_eq!(open(&secrets).await.get().await, None);
    assert!(secrets.writes().is_empty());
}

#[rstest]
#[case::empty(&["slot-0", "slot-1"], true)]
#[case::missing(&["slot-0"], false)]
#[tokio::test]
async fn current_version_with_a_missing_chunk_is_lost(
    #[case] slots: &[&str],
    #[case] previous_intact: bool,
) {
    let all = cluster(3);
    let store = open(&all).await;
    for serial in 1..=3 {
        store.put(state(serial, 10)).await.unwrap();
    }
    // Simulates a restore of only some of the Secrets from a backup.
    let secrets = FakeSecrets::new();
    let data = |name: &str| all.get(name).unwrap().data;
    secrets.put("state", [(POINTER, data("state")[POINTER].clone())]);
    for slot in slots {
        let kept = *slot == "slot-0" && previous_intact;
        secrets.put(slot, kept.then(|| (DATA, data(slot)[DATA].clone())));
    }
    let error = open_with(&Arc::new(secrets), 3, 3).await.err().unwrap();
    let StateError::NoSlot {
        slot,
        version,
        advice,
    } = error
    else {
        panic!("{error}")
    };
    assert_eq!((slot.as_str(), version), ("slot-1", 3));
    assert_eq!(advice.contains("is intact"), previous_intact, "{advice}");
}

#[tokio::test]
async fn missing_slot_without_a_version_is_not_used() {
    let secrets = FakeSecrets::new();
    for name in ["state", "slot-0", "slot-2"] {
        secrets.put(name, []);
    }
    let secrets = Arc::new(secrets);
    let store = open(&secrets).await;
    for serial in 1..=3 {
        store.put(state(serial, 10)).await.unwrap();
    }
    assert_eq!(*open(&secrets).await.get().await.unwrap(), state(3, 10));
    assert!(!secrets.writes().contains(&"slot-1".to_owned()));
}
