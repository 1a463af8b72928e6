//! Which of several replicas acts: the one that the Lease names, as long as its own clock allows.
//! What follows from what is known is decided in [`alustan_core::lease`]; here are the calls and the
//! clock. Every write of the operator passes the [`Fence`].

mod election;
mod fence;

use std::net::SocketAddr;
use std::sync::Arc;

use alustan_core::lease::{Elector, Identity, Moment, Standing, pod};
use parking_lot::{Mutex, MutexGuard};
use tokio::sync::{Notify, OwnedRwLockReadGuard, RwLock};
use tokio::time::Instant;

pub(crate) use election::Election;
pub(crate) use fence::{Fence, NotLeading};

/// Where this replica stands. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Leader(Arc<Inner>);

struct Inner {
    began: Instant,
    known: Mutex<Known>,
    /// Each write that goes on holds it.
    writes: Arc<RwLock<()>>,
    /// Told when this replica may write, and might not a moment ago.
    begins: Notify,
}

struct Known {
    elector: Elector,
    /// Where the holder of the Lease answers.
    address: Option<SocketAddr>,
    /// Why nothing is known of the Lease.
    trouble: Option<String>,
}

/// What the probe tells of this replica.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    /// It takes part in no election: why.
    None(String),
    /// It acts, or waits until it may.
    Has(String),
}

impl Leader {
    /// Nothing is known yet.
    pub(crate) fn new(identity: Identity) -> Self {
        Self(Arc::new(Inner {
            began: Instant::now(),
            known: Mutex::new(Known {
                elector: Elector::new(identity),
                address: None,
                trouble: None,
            }),
            writes: Arc::default(),
            begins: Notify::new(),
        }))
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        self.0.known.lock()
    }

    fn now(&self) -> Moment {
        self.0.began.elapsed()
    }

    /// Whether it may begin a write now.
    pub(crate) fn leads(&self) -> bool {
        self.standing() == Standing::Leads
    }

    /// Whether no other replica leads, as far as it knows.
    pub(crate) fn acts(&self) -> bool {
        matches!(self.standing(), Standing::Leads | Standing::Doubts)
    }

    /// Where it stands now.
    pub(crate) fn standing(&self) -> Standing {
        self.known().elector.standing(self.now())
    }

    /// Where another replica answers that leads.
    pub(crate) fn address(&self) -> Option<SocketAddr> {
        self.known().address
    }

    /// The right to begin a write now; it goes on until this is dropped.
    ///
    /// # Errors
    /// Another replica may lead.
    fn pass(&self) -> Result<OwnedRwLockReadGuard<()>, NotLeading> {
        let going = self.0.writes.clone().try_read_owned();
        let going = going.map_err(|_| NotLeading)?;
        let may = self.known().elector.may_begin(self.now());
        may.then_some(going).ok_or(NotLeading)
    }

    /// When what it writes must have ended, as things are.
    fn ends(&self) -> Instant {
        let ends = self.known().elector.must_end();
        self.0.began + ends.unwrap_or_default()
    }

    /// Waits until it may write, and might not before.
    pub(crate) async fn begins(&self) {
        self.0.begins.notified().await;
    }

    /// What it tells of itself.
    pub(crate) fn role(&self) -> Role {
        match self.standing() {
            Standing::Unknown => {
                let trouble = self.known().trouble.clone();
                Role::None(trouble.unwrap_or_else(|| "the Lease is being read".to_owned()))
            }
            Standing::Over { .. } => Role::None("it led, and another replica does now".to_owned()),
            Standing::Leads => Role::Has("this replica leads".to_owned()),
            Standing::Doubts => Role::Has(
                "this replica led; its Lease may have expired, and it writes nothing until it has \
                 renewed it"
                    .to_owned(),
            ),
            Standing::StandsBy { leader } => Role::Has(match leader {
                Some(leader) => format!("stands by while {} leads", pod(&leader)),
                None => "stands by; nobody leads yet".to_owned(),
            }),
        }
    }
}

#[cfg(test)]
impl Leader {
    /// One that leads, from now on for ten seconds.
    pub(crate) fn leading() -> Self {
        let leader = Self::new(Identity::new(None, "test"));
        leader.renew();
        leader
    }

    /// It has renewed its Lease.
    fn renew(&self) {
        let now = self.now();
        self.known().elector.wrote("2", now);
    }

    /// One that stands by while the pod `other` leads, which answers at `address`.
    pub(crate) fn following(address: Option<SocketAddr>) -> Self {
        let leader = Self::new(Identity::new(None, "test"));
        let lease = alustan_core::lease::Record {
            version: "1".to_owned(),
            holder: Some("other_1".to_owned()),
            renewed: String::new(),
            duration: alustan_core::lease::DURATION,
        };
        let now = leader.now();
        leader.known().elector.looked(Some(lease), now);
        leader.known().address = address;
        leader
    }
}
