//! Lock of a managed state. The run report contains the lock of this run until the end of the run. Which engine process of this pod holds the lock
//! is recorded only in memory, so an engine that unlocks the state does not cause a write to the run report.

use parking_lot::{Mutex, MutexGuard};
use std::time::Duration;

use alustan_api::run::StateLock;
use tokio::time::Instant;

use crate::record::{RecordError, RecordHandle};

/// Maximum time between the reservation of a lock and the lock request of the next engine process. Within this time, the engine process gets the
/// lock without access to the run report. Longer than an engine process takes to start.
const RESERVED: Duration = Duration::from_secs(10);

/// State lock of one run.
pub(super) struct Locks {
    record: RecordHandle,
    memory: Mutex<Memory>,
    /// Serialises requests that acquire or release the lock.
    turn: tokio::sync::Mutex<()>,
}

#[derive(Default)]
struct Memory {
    /// Id of the lock of this run in the run report.
    recorded: Option<String>,
    /// Time at which the lock `recorded` was reserved for the next engine process.
    reserved_at: Option<Instant>,
    /// Lock that an engine of this pod holds.
    held: Option<StateLock>,
    /// Last lock of another holder that blocked a lock request.
    in_the_way: Option<StateLock>,
}

impl Locks {
    pub(super) fn new(record: RecordHandle) -> Self {
        Self {
            record,
            memory: Mutex::default(),
            turn: tokio::sync::Mutex::default(),
        }
    }

    fn memory(&self) -> MutexGuard<'_, Memory> {
        self.memory.lock()
    }

    /// Reserves the state lock for the next engine process of the run. The run report already contains the lock, with the id `id`.
    pub(super) fn reserve(&self, id: String) {
        let mut memory = self.memory();
        memory.recorded = Some(id);
        memory.reserved_at = Some(Instant::now());
    }

    /// Locks the state. Returns the lock that blocks the request, if any.
    pub(super) async fn lock(&self, lock: StateLock) -> Result<Option<StateLock>, RecordError> {
        let _turn = self.turn.lock().await;
        let before = {
            let mut memory = self.memory();
            if let Some(held) = memory.held.clone().filter(|held| held.id != lock.id) {
                memory.in_the_way = Some(held.clone());
                return Ok(Some(held));
            }
            let is_reserved = memory
                .reserved_at
                .take()
                .is_some_and(|at| at.elapsed() < RESERVED);
            if is_reserved || memory.held.is_some() {
                memory.held = Some(lock);
                return Ok(None);
            }
            memory.recorded.clone()
        };
        let other = self.record.lock(&lock, before.as_deref()).await?;
        let mut memory = self.memory();
        if other.is_some() {
            memory.in_the_way.clone_from(&other);
        } else {
            memory.recorded = Some(lock.id.clone());
            memory.held = Some(lock);
        }
        Ok(other)
    }

    /// Releases the lock `id`; without an id, any lock. Returns the lock that is still held, if any.
    pub(super) async fn unlock(&self, id: Option<&str>) -> Result<Option<StateLock>, RecordError> {
        let _turn = self.turn.lock().await;
        let held = self.memory().held.clone();
        match held {
            Some(held) if id.is_some_and(|id| id != held.id) => Ok(Some(held)),
            Some(_) => {
                self.memory().held = None;
                Ok(None)
            }
            None => self.record.unlock(id).await,
        }
    }

    /// Returns the id of the lock of this run in the run report, if any.
    pub(super) fn recorded(&self) -> Option<String> {
        self.memory().recorded.clone()
    }

    /// Returns the last lock of another holder that blocked a lock request.
    pub(super) fn in_the_way(&self) -> Option<StateLock> {
        self.memory().in_the_way.clone()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use alustan_api::run::{Claim, RunPhase, RunProgress, key};
    use k8s_openapi::jiff::Timestamp;

    use super::*;
    use crate::record::Identity;
    use alustan_state::fake::FakeSecrets;
    use alustan_state::secrets::to_json;

    fn lock(id: &str) -> StateLock {
        StateLock {
            id: id.into(),
            operation: "OperationTypeApply".into(),
            who: "alustan@web-apply-7".into(),
            at: Timestamp::UNIX_EPOCH,
        }
    }

    /// Returns Secrets with run 7 in phase Applying and the lock `recorded` in its report, and the locks of that run.
    fn run(recorded: Option<&str>) -> (Arc<FakeSecrets>, Locks) {
        let progress = RunProgress {
            number: 7,
            phase: RunPhase::Applying,
            claimed_by: Some(Claim {
                pod_uid: "uid".into(),
                pod: "web-apply-7".into(),
                at: Timestamp::UNIX_EPOCH,
            }),
            lock: recorded.map(lock),
            ..RunProgress::default()
        };
        let secrets = Arc::new(FakeSecrets::new());
        secrets.put("web-report", [(key::PROGRESS, to_json(&progress))]);
        let locks = Locks::new(RecordHandle::new(secrets.clone(), Identity::of_run_7()));
        (secrets, locks)
    }

    fn recorded(secrets: &FakeSecrets) -> Option<String> {
        let data = secrets.get("web-report")?.data;
        let progress = serde_json::from_slice::<RunProgress>(&data[key::PROGRESS]).ok()?;
        progress.lock.map(|lock| lock.id)
    }

    #[tokio::test]
    async fn reserved_lock_is_granted_once_without_a_write() {
        let (secrets, locks) = run(Some("uid"));
        locks.reserve("uid".into());
        assert_eq!(locks.lock(lock("first")).await.unwrap(), None);
        let held = locks.lock(lock("second")).await.unwrap();
        assert_eq!(held, Some(lock("first")));
        assert_eq!(locks.in_the_way(), held);
        assert_eq!(locks.unlock(Some("second")).await.unwrap(), held);
        assert_eq!(locks.unlock(Some("first")).await.unwrap(), None);
        assert_eq!(secrets.writes(), [] as [&str; 0]);

        assert_eq!(locks.lock(lock("second")).await.unwrap(), None);
        assert_eq!(recorded(&secrets).as_deref(), Some("second"));
        assert_eq!(locks.recorded().as_deref(), Some("second"));
    }

    /// An expired reservation is not used: the node may have been suspended, and the next run (8) may have started in the meantime.
    #[tokio::test(start_paused = true)]
    async fn reserved_lock_expires() {
        let (secrets, locks) = run(Some("uid"));
        locks.reserve("uid".into());
        tokio::time::advance(RESERVED).await;
        let next = RunProgress {
            number: 8,
            ..RunProgress::default()
        };
        secrets.put("web-report", [(key::PROGRESS, to_json(&next))]);
        let refused = locks.lock(lock("first")).await;
        assert!(matches!(refused, Err(RecordError::NotOurs(_))));
    }

    #[tokio::test]
    async fn lock_of_another_holder_blocks_the_engine() {
        let (secrets, locks) = run(Some("push"));
        assert_eq!(locks.lock(lock("first")).await.unwrap(), Some(lock("push")));
        assert_eq!(recorded(&secrets).as_deref(), Some("push"));
        assert_eq!(locks.recorded(), None);
    }

    #[tokio::test]
    async fn next_engine_replaces_the_released_lock_of_the_run() {
        let (secrets, locks) = run(None);
        for id in ["first", "second"] {
            assert_eq!(locks.lock(lock(id)).await.unwrap(), None);
            assert_eq!(recorded(&secrets).as_deref(), Some(id));
            assert_eq!(locks.unlock(None).await.unwrap(), None);
        }
        assert_eq!(secrets.writes().len(), 2);
    }

    #[tokio::test]
    async fn engine_of_a_run_that_lost_its_claim_gets_no_lock() {
        let (secrets, locks) = run(None);
        assert_eq!(locks.lock(lock("first")).await.unwrap(), None);
        locks.unlock(None).await.unwrap();
        let next = RunProgress {
            number: 8,
            ..RunProgress::default()
        };
        secrets.put("web-report", [(key::PROGRESS, to_json(&next))]);
        let refused = locks.lock(lock("second")).await;
        assert!(matches!(refused, Err(RecordError::NotOurs(_))));
    }
}
