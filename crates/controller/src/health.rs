//! Health of the operator. It is live while the controller loop iterates and no reconcile hangs. It is ready once its watches have listed
//! all objects and it has a role in the leader election.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use parking_lot::{Mutex, MutexGuard};
use tokio::time::Instant;
use tracing::warn;

use crate::leader::{Leader, Role};
use crate::resource::Ref;

/// Maximum time between two iterations of the controller loop; after it, the operator is not live. The loop iterates at least every ten
/// seconds.
pub(crate) const STUCK: Duration = Duration::from_mins(1);

/// Duration after which an active reconcile counts as hung.
pub(crate) const HUNG: Duration = Duration::from_mins(10);

/// Health of the operator, shared by its clones.
#[derive(Clone)]
pub(crate) struct Health(Arc<Inner>);

pub(crate) struct Inner {
    leader: Leader,
    warm: AtomicBool,
    loops: Mutex<Loop>,
}

pub(crate) struct Loop {
    turned: Instant,
    /// Start time and resource of active reconciles, by sequence number.
    looks: BTreeMap<u64, (Instant, Ref)>,
    next: u64,
}

/// Guard of an active reconcile. The reconcile ends when the guard is dropped.
pub(crate) struct Looking {
    health: Health,
    number: u64,
}

impl Drop for Looking {
    fn drop(&mut self) {
        self.health.lock().looks.remove(&self.number);
    }
}

impl Health {
    /// Creates the health of a live operator that is not ready. `leader` provides its role.
    pub(crate) fn new(leader: Leader) -> Self {
        Self(Arc::new(Inner {
            leader,
            warm: AtomicBool::default(),
            loops: Mutex::new(Loop {
                turned: Instant::now(),
                looks: BTreeMap::new(),
                next: 0,
            }),
        }))
    }

    fn lock(&self) -> MutexGuard<'_, Loop> {
        self.0.loops.lock()
    }

    /// Records that the watches have listed all objects.
    pub(crate) fn set_ready(&self) {
        self.0.warm.store(true, Ordering::Release);
    }

    /// Records an iteration of the controller loop.
    pub(crate) fn turn(&self) {
        self.lock().turned = Instant::now();
    }

    /// Records the start of a reconcile of `resource`.
    pub(crate) fn look(&self, resource: &Ref) -> Looking {
        let mut state = self.lock();
        let number = state.next;
        state.next += 1;
        state
            .looks
            .insert(number, (Instant::now(), resource.clone()));
        Looking {
            health: self.clone(),
            number,
        }
    }

    /// Returns the state of the loop if the operator is live.
    ///
    /// # Errors
    /// The cause if the operator is not live.
    pub(crate) fn live(&self) -> Result<String, String> {
        let state = self.lock();
        let turned = state.turned.elapsed();
        let age = turned.as_secs();
        if turned >= STUCK {
            return Err(format!("no iteration of the controller loop for {age} s"));
        }
        // Sequence numbers increase with time: the first entry is the oldest.
        let Some((began, resource)) = state.looks.values().next() else {
            return Ok(format!(
                "last iteration of the controller loop {age} s ago; no active reconcile"
            ));
        };
        let oldest = began.elapsed();
        let (many, seconds) = (state.looks.len(), oldest.as_secs());
        if oldest >= HUNG {
            // Callers of the probe may lack permission to list resources: only the log names the resource.
            warn!(resource = %resource, seconds, "reconcile does not finish");
            return Err(format!(
                "a reconcile has not finished for {seconds} s; see the log for the resource"
            ));
        }
        Ok(format!(
            "last iteration of the controller loop {age} s ago; active reconciles: {many}, the \
             oldest for {seconds} s"
        ))
    }

    /// Returns whether the watches have listed all objects.
    pub(crate) fn is_ready(&self) -> bool {
        self.0.warm.load(Ordering::Acquire)
    }

    pub(crate) fn ready(&self) -> Result<String, String> {
        if !self.is_ready() {
            return Err("the initial lists of the watches are not complete".to_owned());
        }
        match self.0.leader.role() {
            Role::Has(role) => Ok(format!(
                "the initial lists of the watches are complete; {role}"
            )),
            Role::None(why) => Err(why),
        }
    }
}
