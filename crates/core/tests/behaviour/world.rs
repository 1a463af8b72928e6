//! Simulation of a cluster, a registry, a repository and a runner in memory, with one resource.
//!
//! `observe` and `execute` simulate the controller. As in the controller, all decisions are made by `decide`. `runner` simulates the
//! protocol of the runner: claim, compare-and-swap, report. `ledger` records the runs and panics if a rule is violated.

mod builder;
mod check;
mod convergence;
mod execute;
mod ledger;
mod observe;
mod report;
mod runner;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use alustan_api::run::{Notices, Outputs, Pin, RunProgress, RunRecord};
use alustan_api::{
    CANCEL_RUN, DISCARD_PLAN, NotificationEvent, Reason, Terraform, TerraformStatus,
};
use alustan_core::observed::allow_list::Allowed;
use alustan_core::observed::{
    AccountSeen, BuildState, CacheSeen, ForeignState, LeftBehind, OutputsSeen, Ownership,
    RecordSeen, SharedClaimSeen, StackSeen, Waiting,
};
use alustan_core::settings::Settings;
use alustan_core::step::Decision;
use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use k8s_openapi::jiff::{SignedDuration, Timestamp};

pub(crate) use ledger::{Ledger, Situation};
pub(crate) use observe::{Memory, Observation};
pub(crate) use runner::{Pod, PodEvent, Stage};

use crate::fixtures::{self, Edit};

/// Configuration that a user wants to apply, reduced to the inputs that the simulation has. The simulation compares configurations without
/// the config hash, so that it can detect errors in the hash.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Config {
    pub(crate) context: String,
    pub(crate) size: serde_json::Value,
    pub(crate) cloud: u32,
    pub(crate) image: String,
    /// Backend, scripts, values of `spec.variablesFrom`, engine, base image, ServiceAccount, environment and volumes in pod options, variable
    /// files, workspace and `spec.engine.refresh`.
    pub(crate) other_inputs: serde_json::Value,
}

/// Real objects of the module.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Real {
    /// Configuration of the last complete apply.
    pub(crate) config: Option<Config>,
    /// Whether an apply or a destroy failed or was killed after the last complete apply, so that the objects may be incomplete.
    pub(crate) partial: bool,
    /// Whether the real objects differ from `config`, for example because a user changed them.
    pub(crate) drifted: bool,
}

impl Real {
    pub(crate) fn is_empty(&self) -> bool {
        self.config.is_none() && !self.partial
    }
}

#[derive(Clone, Debug)]
pub(crate) struct Job {
    pub(crate) uid: String,
    pub(crate) number: i64,
    pub(crate) image: String,
    /// Labels of the pod.
    pub(crate) labels: BTreeMap<String, String>,
    /// Reference of the context that the pod unpacks, if its image is a base image.
    pub(crate) unpacks: Option<String>,
    /// Whether the pod mounts the resource's own cache volume. If so, the pod cannot start without the volume.
    pub(crate) volume: bool,
    /// Shared claim that the pod mounts.
    pub(crate) shared_claim: Option<String>,
    /// Whether the pod cannot start without Secret `cloud`.
    pub(crate) cloud: bool,
    pub(crate) pod_created: bool,
}

#[derive(Clone, Debug)]
pub(crate) struct Build {
    pub(crate) uid: String,
    pub(crate) destination: (String, String),
    pub(crate) credentials: bool,
    /// Whether the build pod cannot start without a build Secret.
    pub(crate) needs_build_secret: bool,
    /// Build Secret that the controller created for this build.
    pub(crate) secret: Option<Secret>,
    pub(crate) created_at: Timestamp,
    /// Labels of the Job.
    pub(crate) labels: BTreeMap<String, String>,
    /// Why the build pod cannot start.
    pub(crate) obstacle: Option<Waiting>,
    /// Whether the Job controller cannot create the build pod.
    pub(crate) pod_denied: bool,
    pub(crate) state: BuildState,
}

/// Faults that occur during a reconcile.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct ReconcileFaults {
    /// Age of the observed run record, in versions; `None` to observe the current version.
    pub(crate) stale: Option<usize>,
    /// Number of writes after which the controller crashes; `None` for no crash.
    pub(crate) crash: Option<usize>,
}

/// Result of a reconcile.
pub(crate) struct Reconciled {
    pub(crate) decision: Decision,
    /// Whether the run or build in `decision.start` was started.
    pub(crate) started: bool,
    /// Whether anything was written, including status.
    pub(crate) wrote: bool,
}

/// Simulated cluster, registry and repository.
#[derive(Clone)]
#[expect(clippy::struct_excessive_bools, reason = "each is independent")]
pub(crate) struct World {
    pub(crate) now: Timestamp,
    pub(crate) settings: Settings,
    /// The resource; `None` once it is deleted.
    pub(crate) tf: Option<Terraform>,
    /// Other resources in the cluster.
    pub(crate) others: Vec<Terraform>,
    /// Value sources (`spec.variablesFrom`), dependencies, dependents and tests (`waitFor`, `destroyWaitFor`, `healthChecks`).
    pub(crate) stack: StackSeen,
    /// The run record as the controller observes it: merged with the validated progress of the run report.
    pub(crate) record: Option<RecordSeen>,
    /// The run record as written by the controller.
    pub(crate) own_record: RunRecord,
    /// Progress in the run report.
    pub(crate) progress: Option<RunProgress>,
    /// Earlier versions of [`Self::record`], newest last. `None` is the version before the run record was created.
    pub(crate) earlier_records: Vec<Option<RecordSeen>>,
    pub(crate) pin: Option<Pin>,
    /// Run record of an earlier resource of the same name.
    pub(crate) left_behind: Option<LeftBehind>,
    /// Whether annotation `alustan.io/uid` contains the uid of another resource, and that resource exists.
    pub(crate) is_copy: bool,
    pub(crate) jobs: BTreeMap<String, Job>,
    pub(crate) pods: Vec<Pod>,
    pub(crate) builds: BTreeMap<String, Build>,
    /// Digests of the images in the registry, by repository and tag.
    pub(crate) images: BTreeMap<(String, String), String>,
    /// Digests of images that can be pulled although no tag refers to them.
    pub(crate) untagged: BTreeSet<String>,
    /// Contexts in the registry.
    pub(crate) artifacts: BTreeSet<String>,
    /// Digests of images that were removed from the registry, by repository and tag.
    pub(crate) lost_images: BTreeMap<(String, String), String>,
    /// Names of the objects that the controller applied with [`Step::Ensure`](alustan_core::step::Step::Ensure).
    pub(crate) objects: BTreeSet<String>,
    pub(crate) outputs: OutputsSeen,
    /// Outputs of the module besides `size`.
    pub(crate) more_outputs: Outputs,
    /// Last version of the outputs Secret.
    pub(crate) outputs_secret: Secret,
    /// Last version of the outputs ConfigMap.
    pub(crate) outputs_config_map: ConfigMap,
    /// Notifications in the memory of the controller.
    pub(crate) notices: Notices,
    /// Events for which the operator sends notifications for every resource.
    pub(crate) operator_events: BTreeSet<NotificationEvent>,
    /// Whether no pruning of the registry repository has started today.
    pub(crate) pruning_is_due: bool,
    /// Allow lists in ConfigMap `alustan-allowed`.
    pub(crate) allow_lists: Arc<Allowed>,
    /// Existing `ServiceAccounts`.
    pub(crate) accounts: BTreeMap<String, AccountSeen>,
    /// Reason for which the API server refuses Jobs.
    pub(crate) refuses_jobs: Option<Reason>,
    /// Termination of the container of a killed pod, for example `OOMKilled, exit code 137`.
    pub(crate) termination: Option<String>,
    /// Time at which the pods of builds and runs were bound to nodes.
    pub(crate) scheduled_at: Option<Timestamp>,
    /// Phase of the `PersistentVolumeClaim` of the cache volume.
    pub(crate) cache: CacheSeen,
    /// The shared claim that the resource selects.
    pub(crate) shared_claim: SharedClaimSeen,
    /// Whether Secrets or the cache volume contain a Terraform state that no run wrote.
    pub(crate) foreign_state: ForeignState,
    pub(crate) real: Real,
    /// Number in the digest to which the tag of the base image resolves: `sha256:base-NUMBER`.
    pub(crate) base_digest: u32,
    /// Number of the context and number of the revision at the head of the branch.
    pub(crate) head: (u32, u32),
    pub(crate) git_up: bool,
    pub(crate) registry_up: bool,
    pub(crate) registry_refuses: bool,
    /// Secrets with the token of the GitHub App, by the name of the run Job that owns them.
    pub(crate) run_tokens: BTreeMap<String, Secret>,
    /// Whether the Secret `regcred` exists.
    pub(crate) regcred: bool,
    /// Docker configuration in Secret `regcred`.
    pub(crate) docker_config: String,
    /// Tokens of `spec.terraformRegistries`, by their key in a build Secret.
    pub(crate) registry_tokens: BTreeMap<String, Vec<u8>>,
    /// Docker configuration from which the operator derives a pull secret. Set if Secret `regcred` cannot be used as pull secret.
    pub(crate) pull_config: Option<String>,
    /// Type of the `backend` block of the module.
    pub(crate) module_backend: Option<String>,
    /// Text in the ConfigMap of scripts; `None` if the ConfigMap does not exist.
    pub(crate) script: Option<String>,
    /// Data of the Secret in `spec.backend.secretRef`.
    pub(crate) backend_secret: BTreeMap<String, String>,
    /// Value in the Secret `cloud`; `None` if the Secret does not exist.
    pub(crate) cloud: Option<u32>,
    /// Whether no node can mount the cache volume.
    pub(crate) volume_unreachable: bool,
    /// Whether the real objects drift after every apply.
    pub(crate) drifts_after_apply: bool,
    /// Whether each plan removes every managed object.
    pub(crate) plans_remove_all: bool,
    /// Whether the queue has a free slot.
    pub(crate) has_free_slot: bool,
    /// Whether the quota of the namespace is exhausted: no Job, pod or `PersistentVolumeClaim` is admitted.
    pub(crate) quota_exhausted: bool,
    /// Whether the finished Jobs of the resource are beyond the limit of all resources.
    pub(crate) jobs_beyond_limit: bool,
    /// Whether the clean-up of a deleted resource deletes the run record before the pin.
    pub(crate) record_first: bool,
    pub(crate) memory: Memory,
    pub(crate) ledger: Ledger,
    counter: u64,
}

impl World {
    /// Returns a simulated cluster with the new resource `tf`.
    pub(crate) fn with(tf: Terraform) -> Self {
        Self {
            now: fixtures::at(0),
            settings: fixtures::settings(),
            tf: Some(tf),
            others: Vec::new(),
            stack: StackSeen::default(),
            record: None,
            own_record: RunRecord::default(),
            progress: None,
            earlier_records: Vec::new(),
            pin: None,
            left_behind: None,
            is_copy: false,
            jobs: BTreeMap::new(),
            pods: Vec::new(),
            builds: BTreeMap::new(),
            images: BTreeMap::new(),
            untagged: BTreeSet::new(),
            run_tokens: BTreeMap::new(),
            artifacts: BTreeSet::new(),
            lost_images: BTreeMap::new(),
            objects: BTreeSet::new(),
            outputs: OutputsSeen {
                secret: Ownership::Absent,
                config_map: Ownership::Absent,
            },
            more_outputs: Outputs::new(),
            outputs_secret: Secret::default(),
            outputs_config_map: ConfigMap::default(),
            notices: Notices::default(),
            operator_events: BTreeSet::new(),
            pruning_is_due: false,
            allow_lists: Arc::default(),
            accounts: BTreeMap::new(),
            refuses_jobs: None,
            termination: None,
            scheduled_at: None,
            cache: CacheSeen::Absent,
            shared_claim: SharedClaimSeen::Absent,
            foreign_state: ForeignState::default(),
            real: Real::default(),
            base_digest: 1,
            head: (0, 0),
            git_up: true,
            registry_up: true,
            registry_refuses: false,
            regcred: true,
            docker_config: "{}".to_owned(),
            registry_tokens: BTreeMap::new(),
            pull_config: None,
            module_backend: None,
            script: None,
            backend_secret: BTreeMap::new(),
            cloud: Some(0),
            volume_unreachable: false,
            drifts_after_apply: false,
            plans_remove_all: false,
            has_free_slot: true,
            quota_exhausted: false,
            jobs_beyond_limit: false,
            record_first: false,
            memory: Memory::default(),
            ledger: Ledger::default(),
            counter: 0,
        }
    }

    /// Returns a simulated cluster with the resource of [`fixtures::terraform`].
    pub(crate) fn new() -> Self {
        Self::with(fixtures::terraform())
    }

    /// Returns a simulated cluster in which resource `web` is applied and ready.
    pub(crate) fn applied() -> Self {
        let mut world = Self::new();
        world.settle();
        assert!(world.is_ready(), "{:?}", world.status());
        world
    }

    /// Restores the images that [`Self::lose_images`] removed. If the tag of an image was pushed again, only the digest is restored.
    pub(crate) fn restore_images(&mut self) {
        for (tag, digest) in std::mem::take(&mut self.lost_images) {
            self.untagged.insert(digest.clone());
            self.images.entry(tag).or_insert(digest);
        }
    }

    /// Removes all images except base images from the registry.
    pub(crate) fn lose_images(&mut self) {
        let images = std::mem::take(&mut self.images);
        self.lost_images.extend(images);
        self.untagged.clear();
    }

    /// Returns a unique number, for uids and versions.
    fn next_id(&mut self) -> u64 {
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

    /// Returns the number of the last run.
    pub(crate) fn run_number(&self) -> i64 {
        self.record.as_ref().unwrap().record.number
    }

    /// Advances the clock.
    pub(crate) fn advance_clock(&mut self, seconds: i64) -> &mut Self {
        self.now += SignedDuration::from_secs(seconds);
        self
    }

    /// Edits the resource as a user.
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

    /// Approves the pending plan as a user. Returns false if no plan is pending.
    pub(crate) fn approve(&mut self) -> bool {
        let plan = self.status().plan.filter(|plan| plan.pending_approval);
        let Some(id) = plan.and_then(|plan| plan.id) else {
            return false;
        };
        self.ledger.approve(&id);
        self.edit(|tf| tf.with("/approval/plan", id));
        true
    }

    /// Cancels run `number` as a user.
    pub(crate) fn cancel_run(&mut self, number: i64) -> &mut Self {
        self.edit(|tf| tf.annotated(CANCEL_RUN, &number.to_string()))
    }

    /// Discards the pending plan as a user. Returns its id; `None` if no plan is pending.
    pub(crate) fn discard_plan(&mut self) -> Option<String> {
        let plan = self.status().plan.filter(|plan| plan.pending_approval)?;
        self.edit(|tf| tf.annotated(DISCARD_PLAN, plan.id.as_ref().unwrap()));
        plan.id
    }

    /// Deletes the resource as a user.
    pub(crate) fn delete(&mut self) -> &mut Self {
        if self.is_deleted() {
            return self;
        }
        let now = self.now;
        if self.pods.iter().any(|pod| pod.stage.past_claim()) {
            self.ledger.reached(Situation::DeletedWhileRunning);
        }
        self.edit(|tf| tf.deleted(now));
        self.release();
        self
    }

    /// Sets `spec.deletionProtection`.
    pub(crate) fn set_deletion_protection(&mut self, protect: bool) -> &mut Self {
        self.edit(|tf| tf.with("/deletionProtection", protect))
    }

    /// Sets `spec.deletionPolicy`.
    pub(crate) fn set_orphan(&mut self, orphan: bool) -> &mut Self {
        let policy = if orphan { "Orphan" } else { "Destroy" };
        self.edit(|tf| tf.with("/deletionPolicy", policy))
    }

    /// Pushes a commit that changes the context to `context`.
    pub(crate) fn commit(&mut self, context: u32) -> &mut Self {
        self.head = (context, self.head.1 + 1);
        self
    }

    /// Pushes a commit that changes no file of the module.
    pub(crate) fn commit_outside(&mut self) -> &mut Self {
        self.head.1 += 1;
        self
    }

    /// Restarts the controller, which loses its memory.
    pub(crate) fn restart(&mut self) -> &mut Self {
        self.memory = Memory::default();
        self.memory.leading_since = self.now;
        self.notices = Notices::default();
        self
    }

    /// Removes the resource if it is deleted and has no finalizers.
    fn release(&mut self) {
        let is_gone = self.tf.as_ref().is_some_and(|tf| {
            tf.metadata.deletion_timestamp.is_some()
                && tf.metadata.finalizers.as_ref().is_none_or(Vec::is_empty)
        });
        if is_gone {
            self.tf = None;
        }
    }
}

/// Returns the status of a condition.
pub(crate) fn condition<'a>(status: &'a TerraformStatus, kind: &str) -> &'a str {
    let condition = status
        .conditions
        .iter()
        .find(|condition| condition.type_ == kind);
    condition.map_or("", |condition| &condition.status)
}
