//! The objects of the resource in the API server.

use std::collections::BTreeMap;

use alustan_api::report::RunReport;
use alustan_api::run::{History, Pin, RunInputs, RunProgress, RunRecord};
use alustan_api::{Terraform, TerraformStatus};

use crate::shared::Shared;

/// The objects of the resource in the API server, in the groups that one watch delivers.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Objects {
    pub(crate) resource: Resource,
    pub(crate) secrets: Secrets,
    pub(crate) workload: Workload,
}

/// The resource; `None` once it is deleted.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Resource {
    pub(crate) tf: Option<Shared<Terraform>>,
    pub(crate) status: Shared<TerraformStatus>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Secrets {
    pub(crate) record: Versioned<StoredRecord>,
    pub(crate) report: Versioned<StoredReport>,
    pub(crate) pin: Versioned<Shared<Pin>>,
}

/// Jobs by name, and the pods that have not ended.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Workload {
    pub(crate) jobs: BTreeMap<String, Job>,
    pub(crate) pods: Vec<LivePod>,
}

/// Content of the run record.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct StoredRecord {
    pub(crate) record: Shared<RunRecord>,
    pub(crate) history: Shared<History>,
    pub(crate) inputs: Option<Shared<RunInputs>>,
}

/// Content of the run report.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct StoredReport {
    pub(crate) progress: Shared<RunProgress>,
    pub(crate) report: Option<Shared<RunReport>>,
    pub(crate) has_outputs: bool,
}

/// An object with its resource version. The version also changes when the object is deleted.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Versioned<T> {
    pub(crate) version: u32,
    pub(crate) content: Option<T>,
}

impl<T: PartialEq> Versioned<T> {
    pub(crate) const ABSENT: Self = Self {
        version: 0,
        content: None,
    };

    /// Stores `content`. As in the API server, a write that changes nothing keeps the version.
    pub(crate) fn set(&mut self, content: Option<T>) {
        if self.content != content {
            self.version += 1;
            self.content = content;
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Job {
    pub(crate) uid: String,
    /// Number of the run.
    pub(crate) number: i64,
    /// Digest of the inputs, in an annotation.
    pub(crate) inputs: String,
    /// `ALUSTAN_DECISION` of the pods.
    pub(crate) decision: String,
}

/// A pod as controllers observe it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct LivePod {
    pub(crate) job: String,
    pub(crate) job_uid: String,
    pub(crate) number: i64,
}

impl Workload {
    /// Whether Job `name` has finished. Each Job has a pod, because the Job controller creates it with the Job.
    pub(crate) fn is_finished(&self, name: &str) -> bool {
        !self.has_live_pod(name)
    }

    pub(crate) fn has_live_pod(&self, job: &str) -> bool {
        self.pods.iter().any(|pod| pod.job == job)
    }

    /// Whether the Job, or a pod of it that has not ended, exists.
    pub(crate) fn has(&self, job: &str) -> bool {
        self.jobs.contains_key(job) || self.has_live_pod(job)
    }
}
