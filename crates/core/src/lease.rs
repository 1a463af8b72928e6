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
/// Maximum lease duration that a standby replica respects. A longer duration in the Lease, which may be forged, counts as this one.
const LONGEST: Duration = Duration::from_mins(1);
/// Time after its last renewal in which the leader may start a write.
pub const BEGINS: Duration = Duration::from_secs(10);
/// Time after its last renewal at which the leader cancels writes in progress.
pub const ENDS: Duration = Duration::from_secs(13);
/// Renew interval of the leader.
pub const RENEWS: Duration = Duration::from_secs(3);
/// Poll interval of standby replicas.
pub const LOOKS: Duration = Duration::from_secs(2);
/// Retry delay after a failed read or write of the Lease.
pub const AGAIN: Duration = Duration::from_secs(1);

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
        holder == self.holder() || self.pod.as_deref().is_some_and(|own_pod| own_pod == pod(holder))
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
    fn is_as_before(&self, previous: &Self) -> bool {
        (&self.holder, &self.renewed) == (&previous.holder, &previous.renewed)
    }
}

/// Next operation on the Lease.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Act {
    /// Read the Lease.
    Look,
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
pub enum Standing {
    /// The replica has not read the Lease yet.
    Unknown,
    /// Leader: may write.
    Leads,
    /// Leader whose last renewal is too old: another replica may have become the leader. It writes nothing until the next successful
    /// renewal.
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
    knows: Knows,
    /// Time of the last read.
    looked: Moment,
    /// Time of the last read or write, if it failed.
    failed: Option<Moment>,
}

#[derive(Clone, Debug)]
enum Knows {
    Nothing,
    /// No Lease exists, and this replica has never observed one.
    Absent,
    /// A Lease of another holder: last observed content, and the time since which it has not changed.
    Others {
        record: Record,
        since: Moment,
        found: Found,
    },
    /// This replica is the holder. The last successful renewal was sent at `sent`.
    Ours {
        sent: Moment,
        version: String,
        found: Found,
    },
    Over {
        by: Option<String>,
    },
}

/// Whether the Lease exists and is unchanged, according to the last read or write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Found {
    There,
    Gone,
    /// The Lease has another resource version. The replica reads it before the next write.
    Changed,
}

impl Elector {
    /// Creates an elector that has not read the Lease.
    pub fn new(identity: Identity) -> Self {
        Self {
            identity,
            knows: Knows::Nothing,
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
        let (due, act) = self.due(now);
        let retry_at = self.failed.map(|failed| failed + AGAIN);
        (due.max(retry_at.unwrap_or_default()).max(now), act)
    }

    fn due(&self, now: Moment) -> (Moment, Act) {
        match &self.knows {
            Knows::Nothing
            | Knows::Others {
                found: Found::Changed,
                ..
            }
            | Knows::Ours {
                found: Found::Changed,
                ..
            } => (now, Act::Look),
            Knows::Absent
            | Knows::Ours {
                found: Found::Gone, ..
            } => (now, Act::Create),
            Knows::Others {
                record,
                since,
                found,
            } => self.wait_for(record, *since, *found),
            Knows::Ours { sent, version, .. } => (*sent + RENEWS, Act::Renew(version.clone())),
            Knows::Over { .. } => (now, Act::End),
        }
    }

    /// Returns the operation on a Lease of another holder: polls the Lease, and takes it once it has no holder or was not renewed for the
    /// lease duration.
    fn wait_for(&self, record: &Record, since: Moment, found: Found) -> (Moment, Act) {
        let holder = record.holder.as_deref();
        let is_free = holder.is_none_or(|holder| self.identity.succeeds(holder));
        let duration = record.duration.min(LONGEST);
        let free_at = if is_free { since } else { since + duration };
        let poll_at = self.looked + LOOKS;
        match found {
            _ if poll_at < free_at => (poll_at, Act::Look),
            Found::Gone => (free_at, Act::Create),
            Found::There | Found::Changed => (free_at, Act::Take(record.version.clone())),
        }
    }

    /// Records a read: `lease`, or `None` if no Lease exists, received at `now`.
    pub fn looked(&mut self, lease: Option<Record>, now: Moment) {
        (self.looked, self.failed) = (now, None);
        let previous = std::mem::replace(&mut self.knows, Knows::Nothing);
        self.knows = match (previous, lease) {
            (Knows::Over { by }, _) => Knows::Over { by },
            (Knows::Nothing | Knows::Absent, None) => Knows::Absent,
            (Knows::Nothing | Knows::Absent, Some(record)) => Knows::Others {
                record,
                since: now,
                found: Found::There,
            },
            (
                Knows::Others {
                    record: previous,
                    since,
                    ..
                },
                Some(record),
            ) => Knows::Others {
                since: if record.is_as_before(&previous) {
                    since
                } else {
                    now
                },
                record,
                found: Found::There,
            },
            // The lease duration starts again, because the last holder may not have noticed the deletion of the Lease.
            (
                Knows::Others {
                    record,
                    since,
                    found: lease,
                },
                None,
            ) => Knows::Others {
                since: if lease == Found::Gone { since } else { now },
                record,
                found: Found::Gone,
            },
            (Knows::Ours { sent, version, .. }, None) => Knows::Ours {
                sent,
                version,
                found: Found::Gone,
            },
            // Only this process writes its own identity as holder, so it still leads. The new version comes from a renewal whose response
            // was lost, or from a client that changed other fields.
            (Knows::Ours { sent, .. }, Some(record))
                if record.holder.as_ref() == Some(&self.identity.holder()) =>
            {
                Knows::Ours {
                    sent,
                    version: record.version,
                    found: Found::There,
                }
            }
            (Knows::Ours { .. }, Some(record)) => Knows::Over { by: record.holder },
        };
    }

    /// Records a successful write, sent at `sent`: the Lease is at `version`, and this replica is its holder.
    pub fn wrote(&mut self, version: impl Into<String>, sent: Moment) {
        self.failed = None;
        if !matches!(self.knows, Knows::Over { .. }) {
            self.knows = Knows::Ours {
                sent,
                version: version.into(),
                found: Found::There,
            };
        }
    }

    /// Records a conflict: the write was refused, because the Lease differs from the last read.
    pub fn refused(&mut self) {
        self.failed = None;
        match &mut self.knows {
            Knows::Others { found, .. } | Knows::Ours { found, .. } => *found = Found::Changed,
            Knows::Absent => self.knows = Knows::Nothing,
            Knows::Nothing | Knows::Over { .. } => {}
        }
    }

    /// Records a read or write that failed or timed out at `now`. Whether a write had an effect is unknown.
    pub fn failed(&mut self, now: Moment) {
        self.failed = Some(now);
    }

    /// Ends the leadership of this process. Returns the resource version at which to release the Lease, if this replica is its holder.
    /// All writes must have ended before the release.
    pub fn resign(&mut self) -> Option<String> {
        let previous = std::mem::replace(&mut self.knows, Knows::Over { by: None });
        match previous {
            Knows::Ours {
                version,
                found: Found::There,
                ..
            } => Some(version),
            _ => None,
        }
    }

    /// Whether this replica may start a write at `now`.
    pub fn may_begin(&self, now: Moment) -> bool {
        matches!(&self.knows, Knows::Ours { sent, .. } if now < *sent + BEGINS)
    }

    /// Returns the deadline of writes in progress; `None` if this replica does not lead. A renewal extends it.
    pub fn must_end(&self) -> Option<Moment> {
        match &self.knows {
            Knows::Ours { sent, .. } => Some(*sent + ENDS),
            _ => None,
        }
    }

    /// Returns the role of this replica at `now`.
    pub fn standing(&self, now: Moment) -> Standing {
        match &self.knows {
            Knows::Nothing => Standing::Unknown,
            Knows::Absent => Standing::StandsBy { leader: None },
            Knows::Others { record, .. } => Standing::StandsBy {
                leader: record.holder.clone(),
            },
            Knows::Ours { .. } if self.may_begin(now) => Standing::Leads,
            Knows::Ours { .. } => Standing::Doubts,
            Knows::Over { by } => Standing::Over { by: by.clone() },
        }
    }
}

#[cfg(test)]
mod tests;
