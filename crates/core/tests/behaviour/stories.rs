//! Scenarios, one module per rule or feature.

mod abandon;
mod allow_lists;
mod approval;
mod architecture;
mod build_namespace;
mod build_once;
mod cache;
mod cancellation;
mod changes_during_run;
mod clock;
mod config_hash;
mod conflict;
mod deletion;
mod deletion_hold;
mod dependency_graph;
mod destroy_approval;
mod discard;
mod drift;
mod engine;
mod events;
mod failures;
mod github_app;
mod health;
mod idle;
mod image_gone;
mod inputs;
mod local_backend;
mod manual_changes;
mod metacontroller;
mod missing_record_and_pin;
mod not_converging;
mod notifications;
mod objects;
mod pin;
mod pin_fallback;
mod plan_only;
mod pod_options;
mod pod_security;
mod pod_startup;
mod published_outputs;
mod quota;
mod registries;
mod restore;
mod runs;
mod sources;
mod stack;
mod state;
mod state_migration;
mod status;
mod suspend;
mod terraform_registries;
mod unknown_history;
mod unreadable;
mod upstream;

use alustan_api::State;
use alustan_api::run::{RunKind, RunProgress};
use alustan_core::step::{Object, OutputsObject, Step};
use k8s_openapi::api::batch::v1::Job;
use kube_core::ResourceExt;

use crate::world::{PodEvent, ReconcileFaults, Reconciled, Stage, World};

/// Formats steps, for example `CreateJob web-apply-1`.
fn step_names(steps: &[Step]) -> Vec<String> {
    steps.iter().map(step_name).collect()
}

/// Formats the executed steps: the steps of the decision, and the steps of the run if the reconcile started one.
fn executed_steps(reconciled: &Reconciled) -> Vec<String> {
    let start = reconciled
        .decision
        .start
        .as_ref()
        .filter(|_| reconciled.started);
    let started = start.map_or(&[][..], |start| &start.steps);
    step_names(&[&reconciled.decision.steps, started].concat())
}

fn step_name(step: &Step) -> String {
    match step {
        Step::AddFinalizer => "AddFinalizer".to_owned(),
        Step::CreateRecord(_) => "CreateRecord".to_owned(),
        Step::TakeOver(_) => "TakeOver".to_owned(),
        Step::SwapRecord(swap) => format!("SwapRecord {:?}", swap.record.phase),
        Step::CheckRecord(_) => "CheckRecord".to_owned(),
        Step::SwapReport(progress) => format!("SwapReport {}", report_change(progress)),
        Step::Ensure(object) => format!("Ensure {}", object_name(object)),
        Step::PushContext => "PushContext".to_owned(),
        Step::PruneImages => "PruneImages".to_owned(),
        Step::CreateJob(job) => format!("CreateJob {}", job.name_any()),
        Step::DeleteJob { name, .. } => format!("DeleteJob {name}"),
        Step::CreateBuildSecret(secret) => format!("CreateBuildSecret {}", secret.name_any()),
        Step::DeleteBuildSecret(secret) => format!("DeleteBuildSecret {}", secret.name),
        Step::DeleteOutputs(OutputsObject::Secret(name)) => format!("Delete Secret {name}"),
        Step::DeleteOutputs(OutputsObject::ConfigMap(name)) => format!("Delete ConfigMap {name}"),
        Step::RecordRun(run) => format!("RecordRun {}", run.name_any()),
        Step::DeleteRun(name) => format!("DeleteRun {name}"),
        Step::DeleteClaim => "DeleteClaim".to_owned(),
        Step::EmptyCache(job) => format!("EmptyCache {}", claims(job).join(", ")),
        Step::ReleaseClaim(claim) => format!("ReleaseClaim {claim}"),
        Step::CleanUp { kept } if kept.is_empty() => "CleanUp".to_owned(),
        Step::CleanUp { kept } => {
            let kept: Vec<_> = kept.iter().map(|component| component.as_str()).collect();
            format!("CleanUp but {}", kept.join(", "))
        }
        Step::RemoveFinalizer => "RemoveFinalizer".to_owned(),
    }
}

/// Returns the names of the claims that the pod of `job` mounts.
fn claims(job: &Job) -> Vec<String> {
    let pod = job.spec.as_ref().unwrap().template.spec.as_ref().unwrap();
    let volumes = pod.volumes.iter().flatten();
    volumes
        .filter_map(|volume| volume.persistent_volume_claim.as_ref())
        .map(|claim| claim.claim_name.clone())
        .collect()
}

/// Returns how `progress` changes the run report: it closes or cancels the current run, or resets the report for a new run.
fn report_change(progress: &RunProgress) -> &'static str {
    match (progress.closed, progress.cancel) {
        (true, _) => "close",
        (false, true) => "cancel",
        (false, false) => "reset",
    }
}

fn object_name(object: &Object) -> String {
    match object {
        Object::Secret(secret) => format!("Secret {}", secret.name_any()),
        Object::ConfigMap(map) => format!("ConfigMap {}", map.name_any()),
        Object::Claim(claim) => format!("Claim {}", claim.name_any()),
        Object::Account(account) => format!("Account {}", account.name_any()),
        Object::Role(role) => format!("Role {}", role.name_any()),
        Object::Binding(binding) => format!("Binding {}", binding.name_any()),
        Object::Budget(budget) => format!("Budget {}", budget.name_any()),
        Object::Namespace(namespace) => format!("Namespace {}", namespace.name_any()),
    }
}

/// Whether a reconcile wrote nothing and started nothing.
fn changed_nothing(reconciled: &Reconciled) -> bool {
    reconciled.decision.steps.is_empty() && reconciled.decision.start.is_none() && !reconciled.wrote
}

impl World {
    fn reconcile(&mut self) -> Reconciled {
        self.reconcile_with(ReconcileFaults::default())
    }

    /// Reconciles, and advances builds and pods, until the newest pod is at `stage`.
    fn run_to(&mut self, stage: Stage) -> &mut Self {
        for _ in 0..50 {
            self.reconcile();
            self.spawn();
            if self.pods.last().is_some_and(|pod| pod.stage == stage) {
                return self;
            }
            if !self.advance_builds(None) {
                self.advance_pod(0, PodEvent::Progress);
            }
            if self.pods.last().is_some_and(|pod| pod.stage == stage) {
                return self;
            }
        }
        panic!("no pod comes to {stage:?}: {:?}", self.status())
    }

    /// Asserts that the deleted resource waits for approval and its real objects exist until then. Approves, and asserts that the operator
    /// destroys the real objects.
    fn is_destroyed_once_approved(&mut self) {
        assert!(!self.real.is_empty(), "destroyed, and nobody was asked");
        assert_eq!(self.status().state, State::AwaitingApproval);
        self.approve();
        self.settle();
        assert!(self.tf.is_none() && self.real.is_empty());
    }

    /// Returns kind and trigger of the last run.
    fn last_run(&self) -> (RunKind, String) {
        let record = self.record.as_ref().unwrap();
        let run = record.record.run.as_ref().unwrap();
        (run.kind, run.trigger.to_string())
    }

    /// Returns the reason of `Ready`.
    fn reason(&self) -> String {
        let status = self.status();
        let ready = status
            .conditions
            .iter()
            .find(|condition| condition.type_ == "Ready");
        ready
            .map(|condition| condition.reason.clone())
            .unwrap_or_default()
    }

    /// Reconciles, advances the clock to the requeue time, and reconciles again.
    fn reconcile_after_requeue(&mut self) -> Reconciled {
        let reconciled = self.reconcile();
        let next = reconciled
            .decision
            .requeue_at
            .expect("it does not look again by itself");
        self.now = next;
        self.reconcile()
    }
}
