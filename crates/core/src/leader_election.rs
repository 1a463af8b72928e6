//! Leader election with a Lease, without I/O: the controller reads and writes the Lease as directed by [`Elector::next`].
//!
//! Clocks of different machines are never compared. Each replica measures durations on its own monotonic clock: a standby replica from the
//! last change of the Lease that it observed, the leader from the time at which it *sent* its last successful renewal, which is earlier. So
//! the leader stops writing before another replica becomes the leader, as long as no clock is more than 5 % fast or slow. client-go
//! measures the same way (<https://pkg.go.dev/k8s.io/client-go/tools/leaderelection>), but checks its clock only after a failed renewal.

use std::time::Duration;

/// Time on the monotonic clock of a replica, since the start of its process.
pub type Moment = Duration;

/// Lease duration: standby replicas wait for this time after the last renewal.
pub const DURATION: Duration = Duration::from_secs(15);
/// Maximum lease duration that a standby replica respects. If the duration in the Lease, which may be forged, is longer, the replica waits
/// only for this maximum.
const MAX_DURATION: Duration = Duration::from_mins(1);
/// Time after its last renewal in which the leader may start a write.
pub const WRITE_START_PERIOD: Duration = Duration::from_secs(10);
/// Time after its last renewal at which the leader cancels writes in progress.
pub const WRITE_PERIOD: Duration = Duration::from_secs(13);
/// Renew interval of the leader.
pub const RENEW_INTERVAL: Duration = Duration::from_secs(3);
/// Poll interval of standby replicas.
pub const POLL_INTERVAL: Duration = Duration::from_secs(2);
/// Retry delay after a failed read or write of the Lease.
pub const RETRY_DELAY: Duration = Duration::from_secs(1);

/// Identity of a replica: a process in a pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    pod: Option<String>,
    process: String,
}

impl Identity {
    /// Builds the identity of a process. `pod`: name of its pod, if known. `process`: globally unique id. Pod names are unique, and
    /// processes of a pod run one after another, so an earlier process of the same pod has terminated.
    pub fn new(pod: Option<String>, process: impl Into<String>) -> Self {
        let process = process.into();
        Self { pod, process }
    }

    /// Returns the value of `holderIdentity`.
    pub fn holder(&self) -> String {
        let pod = self.pod.as_deref().unwrap_or("process");
        format!("{pod}_{}", self.process)
    }

    /// Whether `holder` is this process or an earlier process of the same pod, which has terminated.
    fn succeeds(&self, holder: &str) -> bool {
        holder == self.holder()
            || self
                .pod
                .as_deref()
                .is_some_and(|own_pod| own_pod == pod(holder))
    }
}

/// Returns the pod name in `holder`; the whole `holder` if it has another format.
pub fn pod(holder: &str) -> &str {
    holder.rsplit_once('_').map_or(holder, |(pod, _)| pod)
}

/// Content of a Lease.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// `resourceVersion`, for compare-and-swap.
    pub version: String,
    /// Holder; `None` after a release.
    pub holder: Option<String>,
    /// `renewTime`, on the clock of the holder; only compared for equality.
    pub renewed: String,
    /// Time after a renewal until the Lease expires.
    pub duration: Duration,
}

impl Record {
    fn is_unchanged_since(&self, previous: &Self) -> bool {
        (&self.holder, &self.renewed) == (&previous.holder, &previous.renewed)
    }
}

/// Next operation on the Lease.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Act {
    /// Read the Lease.
    Read,
    /// Create the Lease with this replica as its holder.
    Create,
    /// Replace the Lease at this resource version, with this replica as its new holder.
    Take(String),
    /// Replace the Lease at this resource version, with a later renew time.
    Renew(String),
    /// No operation: the election has ended for this process.
    End,
}

/// Role of a replica.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Leadership {
    /// The replica has not read the Lease yet.
    Unknown,
    /// Leader: may write.
    Leads,
    /// Leader whose last renewal is too old: another replica may have become the leader. The old leader writes nothing until its next
    /// successful renewal.
    Doubts,
    /// Standby.
    StandsBy {
        /// Holder of the Lease.
        leader: Option<String>,
    },
    /// The election has ended for this process, which lost or released the Lease. It does not lead again.
    Over {
        /// New holder of the Lease, if any.
        by: Option<String>,
    },
}

/// State of the leader election of one replica.
#[derive(Clone, Debug)]
pub struct Elector {
    identity: Identity,
    view: LeaseView,
    /// Time of the last read.
    looked: Moment,
    /// Time of the last read or write, if it failed.
    failed: Option<Moment>,
}

#[derive(Clone, Debug)]
enum LeaseView {
    Nothing,
    /// No Lease exists, and this replica has never observed one.
    Absent,
    /// A Lease of another holder: last observed content, and the time since which it has not changed.
    Others {
        record: Record,
        since: Moment,
        found: LeaseState,
    },
    /// This replica is the holder. The last successful renewal was sent at `sent`.
    Ours {
        sent: Moment,
        version: String,
        found: LeaseState,
    },
    Over {
        by: Option<String>,
    },
}

/// Whether the Lease exists and is unchanged, according to the last read or write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LeaseState {
    There,
    Gone,
    /// The Lease has another resource version. The replica reads the Lease before the next write.
    Changed,
}

impl Elector {
    /// Creates an elector that has not read the Lease.
    pub fn new(identity: Identity) -> Self {
        Self {
            identity,
            view: LeaseView::Nothing,
            looked: Moment::ZERO,
            failed: None,
        }
    }

    /// Returns the identity of this replica.
    pub fn identity(&self) -> &Identity {
        &self.identity
    }

    /// Returns the next operation and its time, `now` or later.
    pub fn next(&self, now: Moment) -> (Moment, Act) {
        let (due, act) = self.next_operation(now);
        let retry_at = self.failed.map(|failed| failed + RETRY_DELAY);
        (due.max(retry_at.unwrap_or_default()).max(now), act)
    }

    fn next_operation(&self, now: Moment) -> (Moment, Act) {
        match &self.view {
            LeaseView::Nothing
            | LeaseView::Others {
                found: LeaseState::Changed,
                ..
            }
            | LeaseView::Ours {
                found: LeaseState::Changed,
                ..
            } => (now, Act::Read),
            LeaseView::Absent
            | LeaseView::Ours {
                found: LeaseState::Gone,
                ..
            } => (now, Act::Create),
            LeaseView::Others {
                record,
                since,
                found: state,
            } => self.wait_for(record, *since, *state),
            LeaseView::Ours { sent, version, .. } => {
                (*sent + RENEW_INTERVAL, Act::Renew(version.clone()))
            }
            LeaseView::Over { .. } => (now, Act::End),
        }
    }

    /// Returns the next operation on a Lease of another holder, and its time: a read, or a takeover if the Lease has no holder or has not
    /// been renewed for the lease duration.
    fn wait_for(&self, record: &Record, since: Moment, state: LeaseState) -> (Moment, Act) {
        let holder = record.holder.as_deref();
        let is_free = holder.is_none_or(|holder| self.identity.succeeds(holder));
        let duration = record.duration.min(MAX_DURATION);
        let free_at = if is_free { since } else { since + duration };
        let poll_at = self.looked + POLL_INTERVAL;
        match state {
            _ if poll_at < free_at => (poll_at, Act::Read),
            LeaseState::Gone => (free_at, Act::Create),
            LeaseState::There | LeaseState::Changed => (free_at, Act::Take(record.version.clone())),
        }
    }

    /// Records the result of a read, received at `now`. `lease`: content of the Lease, or `None` if no Lease exists.
    pub fn looked(&mut self, lease: Option<Record>, now: Moment) {
        (self.looked, self.failed) = (now, None);
        let previous = std::mem::replace(&mut self.view, LeaseView::Nothing);
        self.view = match (previous, lease) {
            (LeaseView::Over { by }, _) => LeaseView::Over { by },
            (LeaseView::Nothing | LeaseView::Absent, None) => LeaseView::Absent,
            (LeaseView::Nothing | LeaseView::Absent, Some(record)) => LeaseView::Others {
                record,
                since: now,
                found: LeaseState::There,
            },
            (
                LeaseView::Others {
                    record: previous,
                    since,
                    ..
                },
                Some(record),
            ) => LeaseView::Others {
                since: if record.is_unchanged_since(&previous) {
                    since
                } else {
                    now
                },
                record,
                found: LeaseState::There,
            },
            // The lease duration starts again, because the last holder may not have noticed the deletion of the Lease.
            (
                LeaseView::Others {
                    record,
                    since,
                    found: lease,
                },
                None,
            ) => LeaseView::Others {
                since: if lease == LeaseState::Gone {
                    since
                } else {
                    now
                },
                record,
                found: LeaseState::Gone,
            },
            (LeaseView::Ours { sent, version, .. }, None) => LeaseView::Ours {
                sent,
                version,
                found: LeaseState::Gone,
            },
            // Only this process writes its own identity as holder, so this process still leads. The new version comes from a renewal whose
            // response was lost, or from a client that changed other fields.
            (LeaseView::Ours { sent, .. }, Some(record))
                if record.holder.as_ref() == Some(&self.identity.holder()) =>
            {
                LeaseView::Ours {
                    sent,
                    version: record.version,
                    found: LeaseState::There,
                }
            }
            (LeaseView::Ours { .. }, Some(record)) => LeaseView::Over { by: record.holder },
        };
    }

    /// Records a successful write, sent at `sent`: the Lease is at `version`, and this replica is its holder.
    pub fn wrote(&mut self, version: impl Into<String>, sent: Moment) {
        self.failed = None;
        if !matches!(self.view, LeaseView::Over { .. }) {
            self.view = LeaseView::Ours {
                sent,
                version: version.into(),
                found: LeaseState::There,
            };
        }
    }

    /// Records a conflict: the write was refused, because the Lease differs from the last read.
    pub fn refused(&mut self) {
        self.failed = None;
        match &mut self.view {
            LeaseView::Others { found: state, .. } | LeaseView::Ours { found: state, .. } => {
                *state = LeaseState::Changed;
            }
            LeaseView::Absent => self.view = LeaseView::Nothing,
            LeaseView::Nothing | LeaseView::Over { .. } => {}
        }
    }

    /// Records a read or write that failed or timed out at `now`. Whether a write had an effect is unknown.
    pub fn failed(&mut self, now: Moment) {
        self.failed = Some(now);
    }

    /// Ends the leadership of this process. Returns the resource version at which to release the Lease, if this replica is its holder.
    /// All writes must have ended before the release.
    pub fn resign(&mut self) -> Option<String> {
        let previous = std::mem::replace(&mut self.view, LeaseView::Over { by: None });
        match previous {
            LeaseView::Ours {
                version,
                found: LeaseState::There,
                ..
            } => Some(version),
            _ => None,
        }
    }

    /// Whether this replica may start a write at `now`.
    pub fn may_begin(&self, now: Moment) -> bool {
        matches!(&self.view, LeaseView::Ours { sent, .. } if now < *sent + WRITE_START_PERIOD)
    }

    /// Returns the deadline of writes in progress; `None` if this replica does not lead. Each renewal extends the deadline.
    pub fn must_end(&self) -> Option<Moment> {
        match &self.view {
            LeaseView::Ours { sent, .. } => Some(*sent + WRITE_PERIOD),
            _ => None,
        }
    }

    /// Returns the role of this replica at `now`.
    pub fn leadership(&self, now: Moment) -> Leadership {
        match &self.view {
            LeaseView::Nothing => Leadership::Unknown,
            LeaseView::Absent => Leadership::StandsBy { leader: None },
            LeaseView::Others { record, .. } => Leadership::StandsBy {
                leader: record.holder.clone(),
            },
            LeaseView::Ours { .. } if self.may_begin(now) => Leadership::Leads,
            LeaseView::Ours { .. } => Leadership::Doubts,
            LeaseView::Over { by } => Leadership::Over { by: by.clone() },
        }
    }
}

#[cfg(test)]
mod tests;
