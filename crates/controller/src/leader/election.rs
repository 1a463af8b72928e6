//! Reads and writes the Lease.

use std::net::SocketAddr;
use std::time::Duration;

use alustan_api::labels;
use alustan_core::leader_election::{Act, DURATION, Leadership, Moment, Record, pod};
use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta};
use k8s_openapi::jiff::Timestamp;
use kube::api::{Api, PostParams};
use kube::{Client, Resource, ResourceExt};
use tokio::sync::watch;
use tokio::time::{sleep_until, timeout};
use tracing::{debug, info, warn};

use super::Leader;
use crate::error::cause;
use crate::watch::mapping::LISTS;

/// Annotation of the Lease with the address of its holder.
const ADDRESS: &str = "alustan.io/address";

/// Time limit of a read or write of the Lease. The writes of a leader are aborted 13 s after its last renewal
/// (`leader_election::WRITE_PERIOD`): within that time, the next renewal can time out and be retried.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(4);
/// Maximum wait for the initial lists before the Lease is read again.
const LIST_TIMEOUT: Duration = Duration::from_secs(1);

/// Participation of a replica in the leader election.
pub(crate) struct Election {
    leader: Leader,
    api: Api<Lease>,
    name: String,
    address: Option<SocketAddr>,
    /// Number of watches that have listed all objects once.
    listed: watch::Receiver<usize>,
    /// Lease as read or written last.
    lease: Option<Lease>,
    logged_leadership: Leadership,
}

impl Election {
    /// Creates the participation in the election by Lease `name` in the namespace of `client`. `client` must not retry calls, and must not have the
    /// client layer [`Fence`](super::Fence). `address` is the address at which other replicas reach this one. `listed` has the number of watches that
    /// have listed all objects: the replica starts to lead only after all watches have.
    pub(crate) fn new(
        leader: Leader,
        client: Client,
        name: &str,
        address: Option<SocketAddr>,
        listed: watch::Receiver<usize>,
    ) -> Self {
        Self {
            leader,
            api: Api::default_namespaced(client),
            name: name.to_owned(),
            address,
            listed,
            lease: None,
            logged_leadership: Leadership::Unknown,
        }
    }

    /// Takes part in the election until this replica has led and lost the Lease. Returns the new holder, if any.
    pub(crate) async fn run(&mut self) -> Option<String> {
        loop {
            let (due, act) = self.leader.state().elector.next(self.leader.now());
            if act == Act::End {
                let Leadership::Over { by } = self.leader.leadership() else {
                    return None;
                };
                return by;
            }
            sleep_until(self.leader.0.started_at + due).await;
            if act == Act::Read || self.is_left_to_others(&act).await {
                self.read_lease().await;
            } else {
                self.write(&act).await;
            }
            self.log_leadership();
        }
    }

    /// Returns whether this replica must not acquire the Lease yet. A replica whose watches have not listed all objects cannot reconcile. As
    /// leader, it would only prevent other replicas from leading. Waits up to [`LIST_TIMEOUT`] for the lists.
    async fn is_left_to_others(&mut self, act: &Act) -> bool {
        if !matches!(act, Act::Create | Act::Take(_)) {
            return false;
        }
        let listed = self.listed.wait_for(|lists| *lists >= LISTS);
        timeout(LIST_TIMEOUT, listed).await.is_err()
    }

    async fn read_lease(&mut self) {
        match timeout(REQUEST_TIMEOUT, self.api.get_opt(&self.name)).await {
            Ok(Ok(lease)) => self.record_read(lease),
            Ok(Err(error)) => self.record_failure("read", &cause(&error)),
            Err(_) => self.record_failure("read", "request timed out"),
        }
    }

    fn record_read(&mut self, lease: Option<Lease>) {
        let now = self.leader.now();
        let mut state = self.leader.state();
        state.elector.looked(lease.as_ref().map(record), now);
        state.address = lease.as_ref().and_then(address);
        state.last_failure = None;
        drop(state);
        self.lease = lease;
    }

    async fn write(&mut self, act: &Act) {
        let sent = self.leader.now();
        let lease = self.lease_to_write(act);
        let parameters = PostParams::default();
        let written = match act {
            Act::Create => timeout(REQUEST_TIMEOUT, self.api.create(&parameters, &lease)).await,
            _ => {
                timeout(
                    REQUEST_TIMEOUT,
                    self.api.replace(&self.name, &parameters, &lease),
                )
                .await
            }
        };
        match written {
            Ok(Ok(written)) => self.record_write(written, sent),
            Ok(Err(kube::Error::Api(status))) if matches!(status.code, 404 | 409) => {
                debug!(
                    lease = self.name,
                    reason = status.reason,
                    "the Lease changed since it was read"
                );
                self.leader.state().elector.refused();
            }
            Ok(Err(error)) => self.record_failure("write", &cause(&error)),
            Err(_) => self.record_failure("write", "request timed out"),
        }
    }

    fn record_write(&mut self, written: Lease, sent: Moment) {
        let now = self.leader.now();
        let mut state = self.leader.state();
        let could_write = state.elector.may_begin(now);
        let version = written.resource_version().unwrap_or_default();
        state.elector.wrote(version, sent);
        state.address = None;
        let can_write = state.elector.may_begin(now);
        drop(state);
        self.lease = Some(written);
        if can_write && !could_write {
            self.leader.0.leadership_began.notify_one();
        }
    }

    fn record_failure(&self, operation: &str, cause: &str) {
        let message = format!("failed to {operation} Lease {}: {cause}", self.name);
        let mut state = self.leader.state();
        if state.last_failure.as_ref() != Some(&message) {
            warn!("{message}; retrying every second");
        }
        state.last_failure = Some(message);
        state.elector.failed(self.leader.now());
    }

    /// Returns the Lease that `act` writes.
    fn lease_to_write(&self, act: &Act) -> Lease {
        let now = MicroTime(Timestamp::now());
        let last = self.lease.clone().unwrap_or_default();
        let spec = last.spec.unwrap_or_default();
        let renews = matches!(act, Act::Renew(_));
        let changes = spec.lease_transitions.unwrap_or_default();
        let first = spec.lease_transitions.is_none();
        Lease {
            metadata: self.metadata(act, last.metadata),
            spec: Some(LeaseSpec {
                holder_identity: Some(self.leader.state().elector.identity().holder()),
                lease_duration_seconds: i32::try_from(DURATION.as_secs()).ok(),
                acquire_time: if renews {
                    spec.acquire_time
                } else {
                    Some(now.clone())
                },
                renew_time: Some(now),
                lease_transitions: Some(changes.saturating_add(i32::from(!renews && !first))),
                ..LeaseSpec::default()
            }),
        }
    }

    /// Returns the metadata of the Lease. Keeps labels and annotations of other clients.
    fn metadata(&self, act: &Act, last: ObjectMeta) -> ObjectMeta {
        let version = match act {
            Act::Take(version) | Act::Renew(version) => Some(version.clone()),
            Act::Create | Act::Read | Act::End => None,
        };
        let mut annotations = last.annotations.unwrap_or_default();
        annotations.remove(ADDRESS);
        let address = self
            .address
            .map(|address| (ADDRESS.to_owned(), address.to_string()));
        annotations.extend(address);
        let managed = (labels::MANAGED_BY.to_owned(), labels::MANAGER.to_owned());
        let mut labels = last.labels.unwrap_or_default();
        labels.extend([managed]);
        ObjectMeta {
            name: Some(self.name.clone()),
            resource_version: version,
            labels: Some(labels),
            annotations: Some(annotations),
            ..ObjectMeta::default()
        }
    }

    /// Logs the role of this replica in the leader election if it has changed.
    fn log_leadership(&mut self) {
        let leadership = self.leader.leadership();
        if leadership == self.logged_leadership {
            return;
        }
        match &leadership {
            Leadership::Leads => info!(lease = self.name, "became the leader"),
            Leadership::Doubts => warn!(
                lease = self.name,
                "the Lease may have expired; writes are suspended until it is renewed"
            ),
            Leadership::StandsBy { leader } => {
                let leader = leader.as_deref().map(pod);
                info!(lease = self.name, leader, "on standby");
            }
            Leadership::Unknown | Leadership::Over { .. } => {}
        }
        self.logged_leadership = leadership;
    }

    /// If this replica holds the Lease, waits until all active writes have ended, and then releases the Lease. Another replica becomes the
    /// leader within two seconds.
    pub(crate) async fn resign(self) {
        let Some(version) = self.leader.state().elector.resign() else {
            return;
        };
        // Wait for active writes. The fence aborts them at their deadline.
        drop(self.leader.0.writes.write().await);
        let mut lease = self.lease_to_write(&Act::Renew(version));
        let own = self.leader.state().elector.identity().holder();
        for _ in 0..2 {
            lease.annotations_mut().remove(ADDRESS);
            if let Some(spec) = &mut lease.spec {
                spec.holder_identity = None;
                spec.lease_duration_seconds = Some(1);
            }
            let parameters = PostParams::default();
            let released = self.api.replace(&self.name, &parameters, &lease);
            match timeout(REQUEST_TIMEOUT, released).await {
                Ok(Ok(_)) => {
                    info!(lease = self.name, "released the Lease");
                    return;
                }
                Ok(Err(kube::Error::Api(status))) if status.code == 409 => {}
                Ok(Err(error)) => {
                    return warn!(error = cause(&error), "failed to release the Lease");
                }
                Err(_) => return warn!("failed to release the Lease: request timed out"),
            }
            // The Lease may have changed, because a renewal that timed out may have succeeded.
            match timeout(REQUEST_TIMEOUT, self.api.get(&self.name)).await {
                Ok(Ok(current)) if holder(&current) == Some(own.clone()) => lease = current,
                _ => return,
            }
            lease.managed_fields_mut().clear();
        }
    }
}

fn holder(lease: &Lease) -> Option<String> {
    lease.spec.as_ref()?.holder_identity.clone()
}

fn record(lease: &Lease) -> Record {
    let spec = lease.spec.clone().unwrap_or_default();
    let seconds = spec
        .lease_duration_seconds
        .and_then(|seconds| u64::try_from(seconds).ok());
    Record {
        version: lease.resource_version().unwrap_or_default(),
        holder: spec.holder_identity.filter(|holder| !holder.is_empty()),
        renewed: spec
            .renew_time
            .map(|at| at.0.to_string())
            .unwrap_or_default(),
        duration: seconds.map_or(DURATION, Duration::from_secs),
    }
}

fn address(lease: &Lease) -> Option<SocketAddr> {
    lease
        .meta()
        .annotations
        .as_ref()?
        .get(ADDRESS)?
        .parse()
        .ok()
}

#[cfg(test)]
mod tests;
