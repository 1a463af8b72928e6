//! Health of the operator: whether its loop turns, and whether its watches have listed everything.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use parking_lot::{Mutex, MutexGuard};
use tokio::time::Instant;
use tracing::warn;

use crate::leader::{Leader, Role};
use crate::resource::Ref;

/// A loop that did not turn for this long is stuck: it turns every ten seconds at least.
pub(crate) const STUCK: Duration = Duration::from_mins(1);

/// A look that goes on for this long hangs.
pub(crate) const HUNG: Duration = Duration::from_mins(10);

/// Whether the operator is well.
#[derive(Clone)]
pub(crate) struct Health(Arc<Inner>);

pub(crate) struct Inner {
    leader: Leader,
    warm: AtomicBool,
    loops: Mutex<Loop>,
}

pub(crate) struct Loop {
    turned: Instant,
    /// Active reconciles, by number.
    looks: BTreeMap<u64, (Instant, Ref)>,
    next: u64,
}

/// A look that goes on, until it is dropped.
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
    /// Alive, not yet ready; `leader` knows what part it takes.
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

    /// The watches have listed everything.
    pub(crate) fn set_ready(&self) {
        self.0.warm.store(true, Ordering::Release);
    }

    /// The loop turned.
    pub(crate) fn turn(&self) {
        self.lock().turned = Instant::now();
    }

    /// A look at `who` begins.
    pub(crate) fn look(&self, who: &Ref) -> Looking {
        let mut state = self.lock();
        let number = state.next;
        state.next += 1;
        state.looks.insert(number, (Instant::now(), who.clone()));
        Looking {
            health: self.clone(),
            number,
        }
    }

    /// Whether it is alive, and why or why not.
    pub(crate) fn live(&self) -> Result<String, String> {
        let state = self.lock();
        let turned = state.turned.elapsed();
        let age = turned.as_secs();
        if turned >= STUCK {
            return Err(format!("the loop has not turned for {age} s"));
        }
        // Numbers grow with time: the first is the oldest.
        let Some((began, who)) = state.looks.values().next() else {
            return Ok(format!("the loop turned {age} s ago; no look goes on"));
        };
        let oldest = began.elapsed();
        let (many, seconds) = (state.looks.len(), oldest.as_secs());
        if oldest >= HUNG {
            // Callers of the probe may lack permission to list resources.
            warn!(resource = %who, seconds, "reconcile hangs");
            return Err(format!("a reconcile hangs for {seconds} s: see the log"));
        }
        Ok(format!(
            "the loop turned {age} s ago; looks that go on: {many}, the oldest for {seconds} s"
        ))
    }

    /// Whether the watches have listed everything.
    pub(crate) fn is_ready(&self) -> bool {
        self.0.warm.load(Ordering::Acquire)
    }

    pub(crate) fn ready(&self) -> Result<String, String> {
        if !self.is_ready() {
            return Err("the watches have not yet listed everything once".to_owned());
        }
        match self.0.leader.role() {
            Role::Has(role) => Ok(format!("the watches have listed everything; {role}")),
            Role::None(why) => Err(why),
        }
    }
}
