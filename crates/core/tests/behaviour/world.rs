//! A cluster, a registry, a repository and a runner in memory, with one resource in it.
//!
//! The controller's part (`observe`, `enact`) is as thin as the real one. The runner's part
//! (`runner`) keeps to its protocol: claim, compare-and-swap, report. `ledger` remembers what
//! happened and panics where a rule is broken.

mod builder;
mod check;
mod enact;
mod ledger;
mod observe;
mod report;
mod rest;
mod runner;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use alustan_api::run::{Notices, Outputs, Pin, RunProgress, RunRecord};
use alustan_api::{NotificationEvent, Terraform, TerraformStatus};
use alustan_core::model::allow_list::Allowed;
use alustan_core::observed::{
    AccountSeen, BuildState, CacheSeen, ForeignState, LeftBehind, OutputsSeen, RecordSeen,
    StackSeen, Whose,
};
use alustan_core::settings::Settings;
use alustan_core::step::Decision;
use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use k8s_openapi::jiff::{SignedDuration, Timestamp};

pub(crate) use ledger::{Class, Ledger};
pub(crate) use observe::Memory;
pub(crate) use runner::{Act, Pod, Stage};

use crate::fixtures::{self, Edit};

/// What a user wants to have applied, as this world sees it; independent of the config hash.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Config {
    pub(crate) context: String,
    pub(crate) size: serde_json::Value,
    pub(crate) cloud: u32,
    pub(crate) image: String,
    /// Backend, scripts and account.
    pub(crate) how: serde_json::Value,
}

/// What the engine has made.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Real {
    /// The last apply that was done to its end.
    pub(crate) config: Option<Config>,
    /// An apply or a destroy was cut short since.
    pub(crate) partial: bool,
    /// Somebody changed something by hand.
    pub(crate) drifted: bool,
}

impl Real {
    pub(crate) fn is_empty(&self) -> bool {
        self.config.is_none() && !self.partial
    }
}

/// A runner Job.
#[derive(Clone, Debug)]
pub(crate) struct Job {
    pub(crate) uid: String,
    pub(crate) number: i64,
    pub(crate) image: String,
    /// The labels of its pod.
    pub(crate) labels: BTreeMap<String, String>,
    /// The context that its pod unpacks.
    pub(crate) unpacks: Option<String>,
    /// Whether its pod waits for the cache volume.
    pub(crate) volume: bool,
    /// Whether its pod waits for the Secret `cloud`.
    pub(crate) cloud: bool,
    pub(crate) spawned: bool,
}

/// A build Job.
#[derive(Clone, Debug)]
pub(crate) struct Build {
    pub(crate) uid: String,
    pub(crate) destination: (String, String),
    pub(crate) credentials: bool,
    /// Whether it cannot start before something is lent to it.
    pub(crate) borrows: bool,
    /// What is lent to it.
    pub(crate) lent: Option<Secret>,
    pub(crate) created_at: Timestamp,
    /// Whether nobody makes a pod for it.
    pub(crate) unborn: bool,
    pub(crate) state: BuildState,
}

/// How the controller looks.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Look {
    /// How many versions old the record is that it sees.
    pub(crate) stale: Option<usize>,
    /// After how many writes it dies.
    pub(crate) crash: Option<usize>,
}

/// What came of a look.
pub(crate) struct Looked {
    pub(crate) decision: Decision,
    /// Whether the wanted run, or the build for it, was started.
    pub(crate) started: bool,
    /// Whether something was written, the status included.
    pub(crate) wrote: bool,
}

/// Everything.
#[derive(Clone)]
#[expect(clippy::struct_excessive_bools, reason = "each is a switch of its own")]
pub(crate) struct World {
    pub(crate) now: Timestamp,
    pub(crate) settings: Settings,
    /// The resource, until it is let go.
    pub(crate) tf: Option<Terraform>,
    /// Other resources in the cluster.
    pub(crate) others: Vec<Terraform>,
    /// What it takes values from, waits for, or stands before.
    pub(crate) stack: StackSeen,
    /// The run record, with what the run says of itself.
    pub(crate) record: Option<RecordSeen>,
    /// The record as the controller wrote it.
    pub(crate) own: RunRecord,
    /// What the run says of itself, in the report.
    pub(crate) progress: Option<RunProgress>,
    /// Earlier versions of the record, newest last; `None` from before it was made.
    pub(crate) earlier: Vec<Option<RecordSeen>>,
    pub(crate) pin: Option<Pin>,
    /// The record of an earlier resource of the same name.
    pub(crate) left_behind: Option<LeftBehind>,
    /// Whether annotation `alustan.io/uid` names another resource that exists.
    pub(crate) is_copy: bool,
    pub(crate) jobs: BTreeMap<String, Job>,
    pub(crate) pods: Vec<Pod>,
    pub(crate) builds: BTreeMap<String, Build>,
    /// Digests by repository and tag.
    pub(crate) images: BTreeMap<(String, String), String>,
    /// Digests that the registry has, too.
    pub(crate) untagged: BTreeSet<String>,
    /// Contexts that the registry has.
    pub(crate) artifacts: BTreeSet<String>,
    /// Those that somebody removed from the registry.
    pub(crate) vanished: BTreeMap<(String, String), String>,
    /// Names of other objects that were made.
    pub(crate) objects: BTreeSet<String>,
    pub(crate) outputs: OutputsSeen,
    /// What a run finds besides the output `size`.
    pub(crate) more_outputs: Outputs,
    /// The Secret with the outputs, as it was written last.
    pub(crate) handed_on: Secret,
    /// The `ConfigMap` with them.
    pub(crate) told: ConfigMap,
    /// What others are told, as the controller knows it.
    pub(crate) notices: Notices,
    /// The events that the operator tells of every resource.
    pub(crate) notified: BTreeSet<NotificationEvent>,
    /// What resources may use.
    pub(crate) allowed: Arc<Allowed>,
    /// The `ServiceAccount`s that there are.
    pub(crate) accounts: BTreeMap<String, AccountSeen>,
    /// Why the API server takes no Job.
    pub(crate) refuses_jobs: Option<&'static str>,
    /// How pods end that are killed.
    pub(crate) ended: Option<String>,
    /// When pods got a node.
    pub(crate) scheduled_at: Option<Timestamp>,
    /// The claim of the cache volume.
    pub(crate) cache: CacheSeen,
    /// State that no run wrote.
    pub(crate) foreign_state: ForeignState,
    pub(crate) real: Real,
    /// What the tag of the base image points at.
    pub(crate) base_digest: u32,
    /// Context and revision at the head of the branch.
    pub(crate) head: (u32, u32),
    pub(crate) git_up: bool,
    pub(crate) registry_up: bool,
    pub(crate) registry_refuses: bool,
    /// The Secret `regcred`.
    pub(crate) regcred: bool,
    /// The docker configuration in it.
    pub(crate) docker_config: String,
    /// The same, where it cannot be a pull secret itself.
    pub(crate) pull_config: Option<String>,
    /// The type of the module's own backend.
    pub(crate) module_backend: Option<String>,
    /// The text in the ConfigMap of scripts, if it is there.
    pub(crate) script: Option<String>,
    /// The credentials of the backend.
    pub(crate) backend_secret: BTreeMap<String, String>,
    /// The value in the Secret `cloud`, if it is there.
    pub(crate) cloud: Option<u32>,
    /// Whether the cache volume is on a node that is gone.
    pub(crate) volume_unreachable: bool,
    /// Whether everything drifts as soon as it is applied.
    pub(crate) unsteady: bool,
    /// Whether plans remove every object.
    pub(crate) empties: bool,
    /// Whether the dispatcher has room.
    pub(crate) room: bool,
    /// Whether the quota of the namespace is used up: it admits no Job, no pod and no claim.
    pub(crate) full: bool,
    /// Whether clean-up removes the record before the pin.
    pub(crate) record_first: bool,
    pub(crate) memory: Memory,
    pub(crate) ledger: Ledger,
    counter: u64,
}

impl World {
    /// A world with `tf` in it, a moment after it was made.
    pub(crate) fn with(tf: Terraform) -> Self {
        Self {
            now: fixtures::at(0),
            settings: fixtures::settings(),
            tf: Some(tf),
            others: Vec::new(),
            stack: StackSeen::default(),
            record: None,
            own: RunRecord::default(),
            progress: None,
            earlier: Vec::new(),
            pin: None,
            left_behind: None,
            is_copy: false,
            jobs: BTreeMap::new(),
            pods: Vec::new(),
            builds: BTreeMap::new(),
            images: BTreeMap::new(),
            untagged: BTreeSet::new(),
            artifacts: BTreeSet::new(),
            vanished: BTreeMap::new(),
            objects: BTreeSet::new(),
            outputs: OutputsSeen {
                secret: Whose::Absent,
                config_map: Whose::Absent,
            },
            more_outputs: Outputs::new(),
            handed_on: Secret::default(),
            told: ConfigMap::default(),
            notices: Notices::default(),
            notified: BTreeSet::new(),
            allowed: Arc::default(),
            accounts: BTreeMap::new(),
            refuses_jobs: None,
            ended: None,
            scheduled_at: None,
            cache: CacheSeen::Absent,
            foreign_state: ForeignState::default(),
            real: Real::default(),
            base_digest: 1,
            head: (0, 0),
            git_up: true,
            registry_up: true,
            registry_refuses: false,
            regcred: true,
            docker_config: "{}".to_owned(),
            pull_config: None,
            module_backend: None,
            script: None,
            backend_secret: BTreeMap::new(),
            cloud: Some(0),
            volume_unreachable: false,
            unsteady: false,
            empties: false,
            room: true,
            full: false,
            record_first: false,
            memory: Memory::default(),
            ledger: Ledger::default(),
            counter: 0,
        }
    }

    /// A world with the resource of [`fixtures::terraform`].
    pub(crate) fn new() -> Self {
        Self::with(fixtures::terraform())
    }

    /// A world in which everything is applied.
    pub(crate) fn applied() -> Self {
        let mut world = Self::new();
        world.settle();
        assert!(world.is_ready(), "{:?}", world.status());
        world
    }

    /// What was removed from the registry is there again, by its digest where another has its tag.
    pub(crate) fn restore_images(&mut self) {
        for (place, digest) in std::mem::take(&mut self.vanished) {
            self.untagged.insert(digest.clone());
            self.images.entry(place).or_insert(digest);
        }
    }

    /// Somebody removes all images from the registry, but for base images.
    pub(crate) fn lose_images(&mut self) {
        let images = std::mem::take(&mut self.images);
        self.vanished.extend(images);
        self.untagged.clear();
    }

    /// A new number, for uids and versions.
    fn fresh(&mut self) -> u64 {
        self.counter += 1;
        self.counter
    }

    pub(crate) fn tf(&self) -> &Terraform {
        self.tf.as_ref().unwrap()
    }

    pub(crate) fn status(&self) -> TerraformStatus {
        let tf = self.tf.as_ref();
        tf.and_then(|tf| tf.status.clone()).unwrap_or_default()
    }

    pub(crate) fn is_deleted(&self) -> bool {
        self.tf
            .as_ref()
            .is_none_or(|tf| tf.metadata.deletion_timestamp.is_some())
    }

    pub(crate) fn is_ready(&self) -> bool {
        condition(&self.status(), "Ready") == "True"
    }

    pub(crate) fn is_stalled(&self) -> bool {
        condition(&self.status(), "Stalled") == "True"
    }

    /// The number of the last run.
    pub(crate) fn run_number(&self) -> i64 {
        self.record.as_ref().unwrap().record.number
    }

    /// Lets time pass.
    pub(crate) fn pass(&mut self, seconds: i64) -> &mut Self {
        self.now += SignedDuration::from_secs(seconds);
        self
    }

    /// A user edits the spec.
    pub(crate) fn edit(&mut self, change: impl FnOnce(Terraform) -> Terraform) -> &mut Self {
        if let Some(tf) = self.tf.take() {
            let before = tf.spec.clone();
            let mut tf = change(tf);
            if tf.spec != before {
                tf.metadata.generation = tf.metadata.generation.map(|generation| generation + 1);
            }
            self.tf = Some(tf);
        }
        self
    }

    /// A user approves the plan that waits, if one does.
    pub(crate) fn approve(&mut self) -> bool {
        let plan = self.status().plan.filter(|plan| plan.pending_approval);
        let Some(id) = plan.and_then(|plan| plan.id) else {
            return false;
        };
        self.ledger.approve(&id);
        self.edit(|tf| tf.with("/approval/plan", id));
        true
    }

    /// A user deletes the resource.
    pub(crate) fn delete(&mut self) -> &mut Self {
        if self.is_deleted() {
            return self;
        }
        let now = self.now;
        if self.pods.iter().any(|pod| pod.stage.past_claim()) {
            self.ledger.class(Class::DeletedWhileRunning);
        }
        self.edit(|tf| tf.deleted(now));
        self.release();
        self
    }

    /// A user sets `spec.deletionProtection`.
    pub(crate) fn protect(&mut self, protect: bool) -> &mut Self {
        self.edit(|tf| tf.with("/deletionProtection", protect))
    }

    /// A user sets `spec.deletionPolicy`.
    pub(crate) fn orphan(&mut self, orphan: bool) -> &mut Self {
        let policy = if orphan { "Orphan" } else { "Destroy" };
        self.edit(|tf| tf.with("/deletionPolicy", policy))
    }

    /// A commit to the module, after which its context is `context`.
    pub(crate) fn commit(&mut self, context: u32) -> &mut Self {
        self.head = (context, self.head.1 + 1);
        self
    }

    /// A commit that does not touch the module.
    pub(crate) fn commit_outside(&mut self) -> &mut Self {
        self.head.1 += 1;
        self
    }

    /// The controller starts anew and knows no answers.
    pub(crate) fn restart(&mut self) -> &mut Self {
        self.memory = Memory::default();
        self.notices = Notices::default();
        self
    }

    /// An object without finalizers that is deleted is gone.
    fn release(&mut self) {
        let gone = self.tf.as_ref().is_some_and(|tf| {
            tf.metadata.deletion_timestamp.is_some()
                && tf.metadata.finalizers.as_ref().is_none_or(Vec::is_empty)
        });
        if gone {
            self.tf = None;
        }
    }
}

/// The status of a condition.
pub(crate) fn condition<'a>(status: &'a TerraformStatus, kind: &str) -> &'a str {
    let found = status
        .conditions
        .iter()
        .find(|condition| condition.type_ == kind);
    found.map_or("", |condition| &condition.status)
}
