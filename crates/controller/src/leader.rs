//! Leader election between replicas. The holder of the Lease writes only as long as the Lease is valid according to its own clock.
//! [`alustan_core::leader_election`] makes the decisions; this module calls the API server and reads the clock. Every write of the operator
//! passes the [`Fence`].

mod election;
pub(crate) mod election_thread;
mod fence;

use std::net::SocketAddr;
use std::sync::Arc;

use alustan_core::leader_election::{Elector, Identity, Leadership, Moment, pod};
use parking_lot::{Mutex, MutexGuard};
use tokio::sync::{Notify, OwnedRwLockReadGuard, RwLock};
use tokio::time::Instant;

pub(crate) use election::Election;
pub(crate) use fence::Fence;

use crate::error::NotLeading;

/// Leadership of this replica. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Leader(Arc<LeaderInner>);

struct LeaderInner {
    started_at: Instant,
    state: Mutex<ElectionState>,
    /// Each active write holds a read lock. [`Election::resign`] takes the write lock to wait for active writes.
    writes: Arc<RwLock<()>>,
    /// Notified when this replica becomes allowed to write.
    leadership_began: Notify,
}

struct ElectionState {
    elector: Elector,
    /// Address of the holder of the Lease.
    address: Option<SocketAddr>,
    /// Last failure to read or write the Lease. Reset when the Lease is read.
    last_failure: Option<String>,
}

/// Role of this replica, for the readiness probe.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    /// The replica is not ready, with the cause: it has not read the Lease, or it lost leadership.
    None(String),
    /// The replica is ready, with its role: it leads, waits for renewal of its Lease, or is on standby.
    Has(String),
}

impl Leader {
    /// Creates the state of a replica that has not read the Lease.
    pub(crate) fn new(identity: Identity) -> Self {
        Self(Arc::new(LeaderInner {
            started_at: Instant::now(),
            state: Mutex::new(ElectionState {
                elector: Elector::new(identity),
                address: None,
                last_failure: None,
            }),
            writes: Arc::default(),
            leadership_began: Notify::new(),
        }))
    }

    fn state(&self) -> MutexGuard<'_, ElectionState> {
        self.0.state.lock()
    }

    fn now(&self) -> Moment {
        self.0.started_at.elapsed()
    }

    /// Returns whether this replica may start a write now.
    pub(crate) fn leads(&self) -> bool {
        self.leadership() == Leadership::Leads
    }

    /// Returns whether this replica holds the Lease, as far as it knows. The Lease may have expired: only [`Self::leads`] permits writes.
    pub(crate) fn holds_lease(&self) -> bool {
        matches!(self.leadership(), Leadership::Leads | Leadership::Doubts)
    }

    /// Returns the current role of this replica in the leader election.
    pub(crate) fn leadership(&self) -> Leadership {
        self.state().elector.leadership(self.now())
    }

    /// Returns the address of the leader, if it is another replica.
    pub(crate) fn address(&self) -> Option<SocketAddr> {
        self.state().address
    }

    /// Returns a permit to start a write now. The write is active until the permit is dropped.
    ///
    /// # Errors
    /// If another replica may lead.
    fn begin_write(&self) -> Result<OwnedRwLockReadGuard<()>, NotLeading> {
        let guard = self.0.writes.clone().try_read_owned();
        let guard = guard.map_err(|_| NotLeading)?;
        let is_allowed = self.state().elector.may_begin(self.now());
        is_allowed.then_some(guard).ok_or(NotLeading)
    }

    /// Returns the time at which active writes are aborted. A renewal of the Lease postpones this time.
    fn write_deadline(&self) -> Instant {
        let deadline = self.state().elector.must_end();
        self.0.started_at + deadline.unwrap_or_default()
    }

    /// Waits until this replica becomes allowed to write.
    pub(crate) async fn wait_for_leadership(&self) {
        self.0.leadership_began.notified().await;
    }

    /// Returns the role for the readiness probe.
    pub(crate) fn role(&self) -> Role {
        match self.leadership() {
            Leadership::Unknown => {
                let last_failure = self.state().last_failure.clone();
                Role::None(last_failure.unwrap_or_else(|| "reading the Lease".to_owned()))
            }
            Leadership::Over { .. } => Role::None("this replica lost its leadership".to_owned()),
            Leadership::Leads => Role::Has("this replica is the leader".to_owned()),
            Leadership::Doubts => Role::Has(
                "the Lease of this replica may have expired; writes are suspended until it is \
                 renewed"
                    .to_owned(),
            ),
            Leadership::StandsBy { leader } => Role::Has(match leader {
                Some(leader) => format!("on standby; the leader is {}", pod(&leader)),
                None => "on standby; no replica is the leader yet".to_owned(),
            }),
        }
    }
}

#[cfg(test)]
impl Leader {
    /// Creates a leader whose Lease was just renewed: it may start writes for ten seconds.
    pub(crate) fn leading() -> Self {
        let leader = Self::new(Identity::new(None, "test"));
        leader.renew();
        leader
    }

    /// Renews the Lease.
    fn renew(&self) {
        let now = self.now();
        self.state().elector.wrote("2", now);
    }

    /// Creates a replica on standby. The leader is in pod `other`, which is reachable at `address`.
    pub(crate) fn following(address: Option<SocketAddr>) -> Self {
        let leader = Self::new(Identity::new(None, "test"));
        let lease = alustan_core::leader_election::Record {
            version: "1".to_owned(),
            holder: Some("other_1".to_owned()),
            renewed: String::new(),
            duration: alustan_core::leader_election::DURATION,
        };
        let now = leader.now();
        leader.state().elector.looked(Some(lease), now);
        leader.state().address = address;
        leader
    }
}
