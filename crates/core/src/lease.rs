//! Who of several replicas leads: what is known of the Lease, and what follows from it. Pure; the
//! controller reads and writes the Lease as it is told here.
//!
//! Clocks of two machines are never compared. A replica counts on its own clock, which never goes
//! back: the others since they last saw the Lease change, the leader since it *sent* the last renewal
//! that arrived, which is earlier. So the leader is through before anybody else begins, as long as
//! no clock runs a twentieth faster or slower than it should. Client-go counts the same way
//! (<https://pkg.go.dev/k8s.io/client-go/tools/leaderelection>), but looks at its clock only when
//! a renewal fails.

use std::time::Duration;

/// A moment on a replica's own clock: the time since it began.
pub type Moment = Duration;

/// How long a Lease counts for the others after its last renewal.
pub const DURATION: Duration = Duration::from_secs(15);
/// Maximum time without a renewal before a Lease is taken, regardless of its duration.
const LONGEST: Duration = Duration::from_mins(1);
/// How long after its last renewal a leader may begin a write.
pub const BEGINS: Duration = Duration::from_secs(10);
/// How long after it a write that goes on is given up.
pub const ENDS: Duration = Duration::from_secs(13);
/// How often a leader renews.
pub const RENEWS: Duration = Duration::from_secs(3);
/// How often the others look.
pub const LOOKS: Duration = Duration::from_secs(2);
/// How soon what failed is tried again.
pub const AGAIN: Duration = Duration::from_secs(1);

/// Who a replica is: a process of a pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    pod: Option<String>,
    process: String,
}

impl Identity {
    /// The process `process`, a word that no other process has, of the pod `pod`, where there is
    /// one: its processes come one after the other, and no other pod has its name.
    pub fn new(pod: Option<String>, process: impl Into<String>) -> Self {
        let process = process.into();
        Self { pod, process }
    }

    /// As the Lease names its holder.
    pub fn holder(&self) -> String {
        let pod = self.pod.as_deref().unwrap_or("process");
        format!("{pod}_{}", self.process)
    }

    /// Whether `holder` is this process, or one of the same pod, which has ended since.
    fn succeeds(&self, holder: &str) -> bool {
        holder == self.holder() || self.pod.as_deref().is_some_and(|own| own == pod(holder))
    }
}

/// The pod of a Lease's holder; all of it where somebody else writes it in another way.
pub fn pod(holder: &str) -> &str {
    holder.rsplit_once('_').map_or(holder, |(pod, _)| pod)
}

/// What a Lease says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// Its `resourceVersion`, for compare-and-swap.
    pub version: String,
    /// Who leads; `None` where it was released.
    pub holder: Option<String>,
    /// When it was renewed, by another clock: whether it changes is all that counts.
    pub renewed: String,
    /// How long it counts after that.
    pub duration: Duration,
}

impl Record {
    fn is_as_before(&self, before: &Self) -> bool {
        (&self.holder, &self.renewed) == (&before.holder, &before.renewed)
    }
}

/// What to do about the Lease.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Act {
    /// Read it.
    Look,
    /// Create it, with this replica as its holder.
    Create,
    /// Replace it, if it still has this version, with this replica as its new holder.
    Take(String),
    /// Replace it, if it still has this version, with a later time.
    Renew(String),
    /// Nothing any more.
    End,
}

/// Where a replica stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Standing {
    /// It has not been able to read the Lease yet.
    Unknown,
    /// It leads: it alone may write.
    Leads,
    /// It leads, as far as it knows, but others may know better: it writes nothing until it has
    /// renewed its Lease.
    Doubts,
    /// It stands by.
    StandsBy {
        /// Whom the Lease names.
        leader: Option<String>,
    },
    /// It led, and never will again.
    Over {
        /// Who has taken the Lease, where somebody has.
        by: Option<String>,
    },
}

/// What a replica knows of the Lease.
#[derive(Clone, Debug)]
pub struct Elector {
    identity: Identity,
    knows: Knows,
    /// When it was read last.
    looked: Moment,
    /// When the last call failed, if it did.
    failed: Option<Moment>,
}

#[derive(Clone, Debug)]
enum Knows {
    Nothing,
    /// There is no Lease, and there was none.
    Absent,
    /// What it says, or said before it was deleted, and since when.
    Others {
        record: Record,
        since: Moment,
        found: Found,
    },
    /// It names this replica. The last renewal that arrived was sent at `sent`.
    Ours {
        sent: Moment,
        version: String,
        found: Found,
    },
    Over {
        by: Option<String>,
    },
}

/// How the last look or write found the Lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Found {
    There,
    Gone,
    /// In another version: it must be read before it is written.
    Changed,
}

impl Elector {
    /// A replica that knows nothing yet.
    pub fn new(identity: Identity) -> Self {
        Self {
            identity,
            knows: Knows::Nothing,
            looked: Moment::ZERO,
            failed: None,
        }
    }

    /// Who it is.
    pub fn identity(&self) -> &Identity {
        &self.identity
    }

    /// What to do next, and when: at `now`, or later.
    pub fn next(&self, now: Moment) -> (Moment, Act) {
        let (due, act) = self.due(now);
        let again = self.failed.map(|failed| failed + AGAIN);
        (due.max(again.unwrap_or_default()).max(now), act)
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

    /// Takes what nobody holds, or nobody has renewed for as long as it says; until then, looks.
    fn wait_for(&self, record: &Record, since: Moment, found: Found) -> (Moment, Act) {
        let holder = record.holder.as_deref();
        let free = holder.is_none_or(|holder| self.identity.succeeds(holder));
        let lasts = record.duration.min(LONGEST);
        let free_at = if free { since } else { since + lasts };
        let look_at = self.looked + LOOKS;
        match found {
            _ if look_at < free_at => (look_at, Act::Look),
            Found::Gone => (free_at, Act::Create),
            Found::There | Found::Changed => (free_at, Act::Take(record.version.clone())),
        }
    }

    /// The Lease was read: `found`, or that there is none, arrived at `now`.
    pub fn looked(&mut self, found: Option<Record>, now: Moment) {
        (self.looked, self.failed) = (now, None);
        let before = std::mem::replace(&mut self.knows, Knows::Nothing);
        self.knows = match (before, found) {
            (Knows::Over { by }, _) => Knows::Over { by },
            (Knows::Nothing | Knows::Absent, None) => Knows::Absent,
            (Knows::Nothing | Knows::Absent, Some(record)) => Knows::Others {
                record,
                since: now,
                found: Found::There,
            },
            (
                Knows::Others {
                    record: before,
                    since,
                    ..
                },
                Some(record),
            ) => Knows::Others {
                since: if record.is_as_before(&before) {
                    since
                } else {
                    now
                },
                record,
                found: Found::There,
            },
            // Whoever held it may not know yet that it is gone.
            (
                Knows::Others {
                    record,
                    since,
                    found,
                },
                None,
            ) => Knows::Others {
                since: if found == Found::Gone { since } else { now },
                record,
                found: Found::Gone,
            },
            (Knows::Ours { sent, version, .. }, None) => Knows::Ours {
                sent,
                version,
                found: Found::Gone,
            },
            // A renewal whose answer was lost did arrive: nobody else writes this name.
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

    /// A write that was sent at `sent` arrived: the Lease has this `version` now, and names us.
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

    /// A write did not find the Lease as it was seen.
    pub fn refused(&mut self) {
        self.failed = None;
        match &mut self.knows {
            Knows::Others { found, .. } | Knows::Ours { found, .. } => *found = Found::Changed,
            Knows::Absent => self.knows = Knows::Nothing,
            Knows::Nothing | Knows::Over { .. } => {}
        }
    }

    /// A call failed, or nobody answered it: what it did is not known.
    pub fn failed(&mut self, now: Moment) {
        self.failed = Some(now);
    }

    /// Leads no more, by its own choice. The version to replace by one without a holder, if it led:
    /// not before all its writes have ended.
    pub fn resign(&mut self) -> Option<String> {
        let before = std::mem::replace(&mut self.knows, Knows::Over { by: None });
        match before {
            Knows::Ours {
                version,
                found: Found::There,
                ..
            } => Some(version),
            _ => None,
        }
    }

    /// Whether it may begin a write at `now`.
    pub fn may_begin(&self, now: Moment) -> bool {
        matches!(&self.knows, Knows::Ours { sent, .. } if now < *sent + BEGINS)
    }

    /// By when the writes that go on must have ended, if there may be any; a renewal gives them
    /// more time.
    pub fn must_end(&self) -> Option<Moment> {
        match &self.knows {
            Knows::Ours { sent, .. } => Some(*sent + ENDS),
            _ => None,
        }
    }

    /// Where it stands at `now`.
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
