//! State of the model: the objects in the API server, pods, real objects, controllers, and the budget of faults.

use std::collections::BTreeSet;

use alustan_api::Terraform;
use alustan_api::run::StateLock;
use k8s_openapi::jiff::{SignedDuration, Timestamp};

use crate::objects::{LivePod, Objects, Resource, Secrets, Workload};
use crate::pod::Pod;
use crate::resource;
use crate::rules::Rule;
use crate::scenario::Budget;
use crate::shared::Shared;
use crate::write::Write;

/// State of the model.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct State {
    /// Seconds since the start of the model.
    pub(crate) seconds: i64,
    /// The objects of the resource.
    pub(crate) objects: Objects,
    /// The objects before their last change, which outdated watch caches still have.
    pub(crate) earlier: Earlier,
    /// The controller that holds the Lease.
    pub(crate) leader: usize,
    /// Reconciles of the controllers that have writes left.
    pub(crate) reconciles: [Option<Reconcile>; 2],
    /// All pods, also those that have ended.
    pub(crate) pods: Vec<Pod>,
    pub(crate) real: Real,
    /// Lock of the state in the bucket.
    pub(crate) lock: Option<Shared<StateLock>>,
    /// Ids of the plans that the user has approved.
    pub(crate) approved: BTreeSet<String>,
    /// Ids of the approved plans that pods have begun to apply.
    pub(crate) applied: BTreeSet<String>,
    pub(crate) budget: Budget,
    /// First rule that a write broke.
    pub(crate) broken: Option<Rule>,
}

/// Earlier objects, each with the controller that replaced it. A controller never reads an object that is older than its own last write.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Earlier {
    pub(crate) resource: Option<(Resource, Option<usize>)>,
    pub(crate) secrets: Option<(Secrets, Option<usize>)>,
    pub(crate) workload: Option<(Workload, Option<usize>)>,
}

/// Rest of a reconcile.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Reconcile {
    /// Writes that are left, the next one last.
    pub(crate) writes: Vec<Write>,
    /// Version of the run record that the next swap replaces.
    pub(crate) record_version: u32,
    /// Version of the run report that the next swap replaces.
    pub(crate) report_version: u32,
    /// Version of the pin that the next write of the pin replaces.
    pub(crate) pin_version: u32,
}

/// Real objects of the module.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Real {
    /// Variable of the last complete apply; `None` if nothing exists.
    pub(crate) size: Option<i64>,
    /// Whether a run ended while it changed the objects.
    pub(crate) is_partial: bool,
    /// Number of changes of the state.
    pub(crate) serial: u8,
}

impl State {
    pub(crate) fn now(&self) -> Timestamp {
        resource::start() + SignedDuration::from_secs(self.seconds)
    }

    pub(crate) fn tf(&self) -> Option<&Terraform> {
        self.objects.resource.tf.as_deref()
    }

    /// Whether a user has deleted the resource.
    pub(crate) fn is_deleted(&self) -> bool {
        self.tf()
            .is_none_or(|tf| tf.metadata.deletion_timestamp.is_some())
    }

    /// Records that `rule` is broken, unless `holds`.
    pub(crate) fn check(&mut self, rule: Rule, holds: bool) {
        if !holds {
            self.broken.get_or_insert(rule);
        }
    }

    /// Returns the pods of `job` that have not ended.
    pub(crate) fn live_pods_of(&self, job: &str) -> usize {
        let pods = self.pods.iter();
        pods.filter(|pod| pod.is_alive() && pod.job == job).count()
    }

    /// Updates the pods that controllers observe.
    pub(crate) fn publish_pods(&mut self) {
        let alive = self.pods.iter().filter(|pod| pod.is_alive());
        self.objects.workload.pods = alive
            .map(|pod| LivePod {
                job: pod.job.clone(),
                job_uid: pod.job_uid.clone(),
                number: pod.number,
            })
            .collect();
    }
}
