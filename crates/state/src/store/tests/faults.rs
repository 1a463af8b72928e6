//! Lost responses and outages of the API server: the stored version stays complete, and the state can be saved after
//! the outage.

use super::*;
use crate::secrets::to_json;

/// Opens a store without retries, so that a write whose response is lost fails immediately.
async fn open_without_retries(secrets: &Arc<FakeSecrets>, slots: usize) -> StateStore {
    let mut store = open_with(secrets, slots, slots).await.unwrap();
    store.patience = Duration::ZERO;
    store
}

/// Returns the state that a new run reads.
async fn stored(secrets: &Arc<FakeSecrets>, slots: usize) -> Option<Vec<u8>> {
    let store = open_with(secrets, slots, slots).await.unwrap();
    store.get().await.map(|state| state.to_vec())
}

/// Opens a store with one version. Write number 0 stores this version and the pointer in one Secret. The next two versions use separate
/// slots.
async fn with_one_version(secrets: &Arc<FakeSecrets>) -> StateStore {
    let store = open_without_retries(secrets, 3).await;
    store.put(state(1, 10)).await.unwrap();
    store
}

#[rstest]
#[case::applied_without_response(Fault::AnswerLost)]
#[case::lost(Fault::Lost)]
#[case::applied_before_next_write(Fault::Late(1))]
#[case::applied_with_next_chunk(Fault::Late(2))]
#[case::applied_last(Fault::Late(9))]
#[tokio::test]
async fn save_after_lost_pointer_response_keeps_stored_version(#[case] fault: Fault) {
    let secrets = cluster(3);
    let store = with_one_version(&secrets).await;
    secrets.fail(2, fault);
    store.put(state(3, 10)).await.unwrap_err();
    // The next save sends the pointer write of the failed save again (write 3), writes a chunk (write 4) and fails at the write of the new
    // pointer (write 5).
    secrets.die_at(Some(5));
    store.put(state(4, 10)).await.unwrap_err();
    secrets.die_at(None);
    assert_eq!(stored(&secrets, 3).await, Some(state(3, 10)));
    store.put(state(4, 10)).await.unwrap();
    secrets.deliver_late_writes();
    assert_eq!(stored(&secrets, 3).await, Some(state(4, 10)));
    assert_eq!(pointer(&secrets).previous.unwrap().serial, Some(3));
}

#[rstest]
#[case::applied_without_response(Fault::AnswerLost)]
#[case::lost(Fault::Lost)]
#[case::applied_before_next_write(Fault::Late(1))]
#[case::applied_last(Fault::Late(9))]
#[tokio::test]
async fn slot_without_a_write_response_is_written_again(#[case] fault: Fault) {
    let secrets = cluster(3);
    let store = with_one_version(&secrets).await;
    secrets.fail(1, fault);
    store.put(state(3, 10)).await.unwrap_err();
    for serial in 4..8 {
        store.put(state(serial, 10)).await.unwrap();
        assert_eq!(stored(&secrets, 3).await, Some(state(serial, 10)));
    }
    secrets.deliver_late_writes();
    assert_eq!(stored(&secrets, 3).await, Some(state(7, 10)));
}

#[tokio::test]
async fn slot_named_by_another_run_is_not_overwritten() {
    let secrets = cluster(3);
    let store = with_one_version(&secrets).await;
    secrets.fail(1, Fault::AnswerLost);
    store.put(state(3, 10)).await.unwrap_err();
    // The first run keeps the state of the failed save as unsaved state. The next run saves the same state, in the slot that the failed
    // save used.
    open(&secrets).await.put(state(3, 10)).await.unwrap();
    let error = store.put(state(4, 10)).await.unwrap_err();
    assert!(matches!(error, StateError::Moved), "{error}");
    assert_eq!(stored(&secrets, 3).await, Some(state(3, 10)));
}

#[tokio::test]
async fn pointer_moved_by_another_run_is_not_overwritten() {
    let secrets = cluster(3);
    let store = with_one_version(&secrets).await;
    secrets.fail(2, Fault::Lost);
    store.put(state(3, 10)).await.unwrap_err();
    open(&secrets).await.put(state(9, 10)).await.unwrap();
    for _ in 0..2 {
        let error = store.put(state(4, 10)).await.unwrap_err();
        assert!(matches!(error, StateError::Moved), "{error}");
        let error = store.get_certain().await.unwrap_err();
        assert!(matches!(error, StateError::Moved), "{error}");
    }
    assert_eq!(stored(&secrets, 3).await, Some(state(9, 10)));
}

#[tokio::test]
async fn new_resource_version_with_the_old_pointer_is_accepted() {
    let secrets = cluster(3);
    let store = with_one_version(&secrets).await;
    let touch = || {
        let chunk = secrets.get("state").unwrap().data[DATA].clone();
        let data = [(POINTER, to_json(&pointer(&secrets))), (DATA, chunk)];
        secrets.put("state", data);
    };
    touch();
    store.put(state(3, 10)).await.unwrap();
    secrets.fail(4, Fault::Late(1));
    store.put(state(4, 10)).await.unwrap_err();
    touch();
    store.put(state(5, 10)).await.unwrap();
    assert_eq!(stored(&secrets, 3).await, Some(state(5, 10)));
    assert_eq!(pointer(&secrets).previous.unwrap().serial, Some(3));
}

#[rstest]
#[case::applied_without_response(Fault::AnswerLost)]
#[case::lost(Fault::Lost)]
#[tokio::test]
async fn uncertain_state_is_not_returned_to_the_engine(#[case] fault: Fault) {
    let secrets = cluster(3);
    let store = with_one_version(&secrets).await;
    secrets.fail(2, fault);
    secrets.become_unavailable_after(Some(2));
    store.put(state(3, 10)).await.unwrap_err();
    store.get_certain().await.unwrap_err();
    secrets.become_unavailable_after(None);
    let certain = store.get_certain().await.unwrap();
    assert_eq!(certain.as_deref(), Some(&state(3, 10)));
    assert_eq!(stored(&secrets, 3).await, Some(state(3, 10)));
}

/// Two runs open the same version. The response to the pointer write of the first run is lost, and the API server applies the write late.
/// The second run must not overwrite the slot that the late pointer names.
#[rstest]
#[case::applied_before_next_write(1)]
#[case::applied_two_writes_later(2)]
#[case::applied_last(9)]
#[tokio::test]
async fn a_slot_is_not_overwritten_between_its_chunk_and_the_pointer(#[case] later: usize) {
    let secrets = cluster(3);
    with_one_version(&secrets).await;
    let first = open_without_retries(&secrets, 3).await;
    let second = open_with(&secrets, 3, 3).await.unwrap();
    // Writes of the first run: write 1 claims the pointer, write 2 stores the chunk, write 3 moves the pointer to the chunk.
    secrets.fail(3, Fault::Late(later));
    first.put(state(3, 10)).await.unwrap_err();
    let error = second.put(state(7, 10)).await.unwrap_err();
    assert!(matches!(error, StateError::Moved), "{error}");
    secrets.deliver_late_writes();
    assert_eq!(stored(&secrets, 3).await, Some(state(3, 10)));
}

/// The late pointer write of an earlier run must not make the pointer name the chunk of the next run.
#[rstest]
#[case::applied_before_next_signature(1)]
#[case::applied_before_next_chunk(2)]
#[case::applied_before_next_pointer(3)]
#[case::applied_last(9)]
#[tokio::test]
async fn late_pointer_write_does_not_name_the_next_runs_chunk(#[case] later: usize) {
    let secrets = cluster(3);
    with_one_version(&secrets).await;
    let first = open_without_retries(&secrets, 3).await;
    secrets.fail(3, Fault::Late(later));
    first.put(state(3, 10)).await.unwrap_err();
    let next = open_with(&secrets, 3, 3).await.unwrap();
    let written = next.put(state(7, 10)).await;
    secrets.deliver_late_writes();
    let expected = if later == 1 { 3 } else { 7 };
    assert_eq!(written.is_ok(), later > 1, "{written:?}");
    assert_eq!(stored(&secrets, 3).await, Some(state(expected, 10)));
}

/// A run writes a chunk even if the slot already contains the chunk. The write sets the writer of the slot, which changes the resource
/// version. A late write of an earlier run then fails with a conflict.
#[tokio::test]
async fn late_chunk_write_does_not_replace_the_next_runs_chunk() {
    let secrets = cluster(3);
    let store = open(&secrets).await;
    for serial in 1..=4 {
        store.put(state(serial, 10)).await.unwrap();
    }
    let first = open_without_retries(&secrets, 3).await;
    let claim = secrets.writes().len();
    secrets.fail(claim + 1, Fault::Late(99));
    first.put(state(5, 10)).await.unwrap_err();
    // The next run writes the content of version 2, which slot-0 still contains.
    open(&secrets).await.put(state(2, 10)).await.unwrap();
    assert_eq!(pointer(&secrets).current.unwrap().slots, ["slot-0"]);
    secrets.deliver_late_writes();
    assert_eq!(stored(&secrets, 3).await, Some(state(2, 10)));
}

/// If the caller cancels a save, the result of the save is unknown, as after a lost response.
#[tokio::test]
async fn cancelled_save_leaves_no_uncertain_state() {
    for at in 1..3 {
        let secrets = cluster(3);
        let mut store = with_one_version(&secrets).await;
        store.patience = PATIENCE;
        secrets.fail(at, Fault::AnswerLost);
        secrets.become_unavailable_after(Some(at));
        let save = tokio::time::timeout(Duration::from_millis(50), store.put(state(3, 10)));
        assert!(save.await.is_err());
        secrets.become_unavailable_after(None);
        store.put(state(4, 10)).await.unwrap();
        assert_eq!(stored(&secrets, 3).await, Some(state(4, 10)));
    }
}

/// Change of the state: number of random digits in the new state, or `None` for a deletion.
type Change = Option<usize>;

async fn apply_change(store: &StateStore, wanted: Option<&Vec<u8>>) -> Result<(), StateError> {
    match wanted {
        Some(state) => store.put(state.clone()).await,
        None => store.delete().await,
    }
}

/// Applies all `changes` with injected `faults`, and retries failed changes. If `away` is true, the API server is unavailable from the
/// first fault until a change fails. Asserts after each attempt that a new run reads a complete version. Returns the number of writes.
async fn survive(slots: usize, changes: &[Change], faults: &[(usize, Fault)], away: bool) -> usize {
    let secrets = cluster(slots);
    for (at, fault) in faults {
        secrets.fail(*at, *fault);
    }
    secrets.become_unavailable_after(faults.first().filter(|_| away).map(|(at, _)| *at));
    let store = open_without_retries(&secrets, slots).await;
    let mut before = None;
    for (serial, size) in (1..).zip(changes) {
        let wanted = size.map(|size| state(serial, size));
        let mut tries = 0;
        while let Err(error) = apply_change(&store, wanted.as_ref()).await {
            tries += 1;
            assert!(tries <= faults.len(), "{faults:?}: {error}");
            secrets.become_unavailable_after(None);
            let current = stored(&secrets, slots).await;
            assert!(
                current == before || current == wanted,
                "{faults:?}: {error}"
            );
            // After a failed save, the engine may save another state.
            let other = state(serial + 100, size.unwrap_or(10));
            if store.put(other.clone()).await.is_ok() {
                assert_eq!(stored(&secrets, slots).await, Some(other.clone()));
                before = Some(other);
            }
        }
        assert_eq!(stored(&secrets, slots).await, wanted, "{faults:?}");
        before = wanted;
    }
    let writes = secrets.writes().len();
    secrets.deliver_late_writes();
    assert_eq!(stored(&secrets, slots).await, before, "{faults:?}");
    writes
}

/// The sizes produce versions of one to four chunks. Later versions reuse slots of versions that the pointer no longer names.
#[rstest]
#[case::three_slots(3, &[Some(10), Some(20), Some(30), None, Some(40)])]
#[case::two_slots(2, &[Some(10), Some(20), None, Some(30), Some(40)])]
#[case::chunks(9, &[Some(150), Some(10), Some(400), Some(300), None, Some(10)])]
#[tokio::test]
async fn the_stored_version_survives_every_fault_at_every_write(
    #[case] slots: usize,
    #[case] changes: &[Change],
    #[values(false, true)] away: bool,
    #[values(
        Fault::Lost,
        Fault::AnswerLost,
        Fault::Late(1),
        Fault::Late(2),
        Fault::Late(5)
    )]
    fault: Fault,
) {
    let writes = survive(slots, changes, &[], false).await;
    for at in 0..writes {
        survive(slots, changes, &[(at, fault)], away).await;
    }
}

#[rstest]
#[case::three_slots(3, &[Some(10), Some(20), Some(30)])]
#[case::chunks(6, &[Some(150), Some(10), Some(150)])]
#[tokio::test]
async fn the_stored_version_survives_two_faults(
    #[case] slots: usize,
    #[case] changes: &[Change],
    #[values(false, true)] away: bool,
    #[values(Fault::Lost, Fault::AnswerLost, Fault::Late(1), Fault::Late(3))] first: Fault,
    #[values(Fault::Lost, Fault::AnswerLost, Fault::Late(2))] second: Fault,
) {
    let writes = survive(slots, changes, &[], false).await;
    for at in 0..writes {
        for other in at + 1..writes + 3 {
            survive(slots, changes, &[(at, first), (other, second)], away).await;
        }
    }
}
