//! A cluster, a git server, a registry and an operator with one resource.

use std::collections::BTreeSet;
use std::time::Duration;

use alustan_api::labels::IMAGE_TAG;
use alustan_api::{Mode, Terraform};
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::jiff::{SignedDuration, Timestamp};
use kube::ResourceExt;
use serde_json::{Value, json};

use super::operator::{Operator, Remote};
use super::pods::{PodEvent, Pods, RunConfig};
use crate::attempt::reconcile_object;
use crate::memory_cluster::MemoryCluster;
use crate::resource::Guarded;

/// Maximum number of reconciles until a resource converges.
const MAX_RECONCILES: usize = 120;

pub(super) struct Simulation {
    pub(super) cluster: MemoryCluster,
    pub(super) operator: Operator,
    pub(super) remote: Remote,
    pub(super) pods: Pods,
}

impl Simulation {
    /// Returns a cluster with the new resource `web`.
    pub(super) async fn new() -> Self {
        let start: Timestamp = "2026-01-01T00:00:00Z".parse().unwrap();
        let cluster = MemoryCluster::new(start);
        cluster.put(
            "namespaces",
            json!({"metadata": {"name": "team", "uid": "namespace-uid"}}),
        );
        cluster.put(
            "terraforms",
            json!({
                "apiVersion": "alustan.io/v1alpha1", "kind": "Terraform",
                "metadata": {"name": "web", "namespace": "team", "uid": "uid-web", "generation": 1},
                "spec": {
                    "gitRepo": {"url": "https://git.test/team/infra"},
                    "containerRegistry": {"imageName": "registry.test/team/web"},
                    "variables": {"size": 1},
                },
            }),
        );
        Self {
            operator: Operator::start(&cluster).await,
            cluster,
            remote: Remote::default(),
            pods: Pods::default(),
        }
    }

    pub(super) fn resource(&self) -> Option<Terraform> {
        self.cluster.get("terraforms", "web")
    }

    /// Edits the spec of the resource as a user, with a merge patch.
    pub(super) fn edit(&self, spec: &Value) {
        if let Some(tf) = self.resource() {
            let generation = tf.metadata.generation.unwrap_or_default() + 1;
            let change = json!({"metadata": {"generation": generation}, "spec": spec});
            self.cluster.merge("terraforms", "web", &change);
        }
    }

    /// Approves the pending plan as a user. Returns whether a plan was pending.
    pub(super) fn approve(&mut self) -> bool {
        let status = self.resource().and_then(|tf| tf.status);
        let plan = status.and_then(|status| status.plan);
        let Some(id) = plan
            .filter(|plan| plan.pending_approval)
            .and_then(|plan| plan.id)
        else {
            return false;
        };
        self.pods.approved.insert(id.clone());
        self.edit(&json!({"approval": {"plan": id}}));
        true
    }

    /// Changes the git server or the registry. The operator queries both again.
    pub(super) fn change_remote(&mut self, change: impl FnOnce(&mut Remote)) {
        change(&mut self.remote);
        self.operator.forget_answers();
    }

    pub(super) async fn restart(&mut self) {
        self.operator = Operator::start(&self.cluster).await;
    }

    /// Delivers all watch events and reconciles. Returns the requeue delay, if the reconcile succeeded and has one.
    pub(super) async fn reconcile(&mut self) -> Option<Duration> {
        self.pods.sync(&self.cluster);
        self.operator.sync(&self.cluster);
        self.reconcile_with_stale_caches().await
    }

    /// Reconciles without new watch events. Restarts the operator after a crash.
    pub(super) async fn reconcile_with_stale_caches(&mut self) -> Option<Duration> {
        let tf = self.resource()?;
        let (mode, jobs) = (tf.spec.mode, self.run_jobs());
        self.operator.prepare_answers(&tf, &self.remote).await;
        let result = Box::pin(reconcile_object(&Guarded(Ok(tf)), &self.operator.ctx)).await;
        for job in self.run_jobs().difference(&jobs) {
            let is_change = !job.starts_with("web-drift-");
            assert!(
                mode == Mode::Apply || !is_change,
                "{job} is created with mode PlanOnly"
            );
        }
        if self.cluster.is_crashed() {
            self.cluster.inject(None);
            self.restart().await;
        }
        result.ok()?.requeue_after
    }

    /// Returns the names of the Jobs of runs.
    pub(super) fn run_jobs(&self) -> BTreeSet<String> {
        let jobs = self.cluster.all::<Job>("jobs");
        let runs = jobs
            .iter()
            .filter(|job| !job.labels().contains_key(IMAGE_TAG));
        runs.map(ResourceExt::name_any).collect()
    }

    /// Completes all active builds. Returns whether a build was active.
    pub(super) fn end_builds(&mut self, succeed: bool) -> bool {
        let has_ended = self
            .pods
            .end_builds(&self.cluster, &mut self.remote, succeed);
        if has_ended {
            self.operator.forget_answers();
        }
        has_ended
    }

    pub(super) fn advance_pod(&mut self, index: usize, event: PodEvent) -> bool {
        self.pods.advance(&self.cluster, index, event)
    }

    /// Reconciles and advances builds, pods and the clock until `is_done`.
    pub(super) async fn run_until(&mut self, is_done: impl Fn(&Self) -> bool, what: &str) {
        for _ in 0..MAX_RECONCILES {
            if is_done(self) {
                return;
            }
            let writes = self.cluster.version();
            let requeue_after = self.reconcile().await;
            let is_active = self.end_builds(true) | self.advance_pod(0, PodEvent::Progress);
            if !is_active && self.cluster.version() == writes {
                let wait = requeue_after.unwrap_or(Duration::from_mins(5));
                let wait = SignedDuration::try_from(wait).unwrap();
                self.cluster.advance_clock(wait);
            }
        }
        panic!("{what}: {:#?}", self.resource().map(|tf| tf.status));
    }

    /// Returns the configuration that the user wants.
    pub(super) fn wanted(&self) -> Option<RunConfig> {
        let mut tf = self.resource()?;
        Some(RunConfig {
            context: Some(self.remote.source().context),
            size: tf.spec.variables.remove("size")?.value(),
        })
    }

    /// Whether condition `kind` is True for the current generation. Without status: false.
    pub(super) fn has_condition(&self, kind: &str) -> bool {
        let Some(tf) = self.resource() else {
            return false;
        };
        tf.status.is_some_and(|status| {
            let mut conditions = status.conditions.iter();
            status.observed_generation == tf.metadata.generation
                && conditions.any(|condition| condition.type_ == kind && condition.status == "True")
        })
    }

    /// Asserts that the deleted resource leaves no object in the cluster, and no real object.
    pub(super) fn assert_nothing_left(&self) {
        assert!(self.pods.real.is_empty(), "{:?}", self.pods.real);
        let kinds = [
            "secrets",
            "configmaps",
            "persistentvolumeclaims",
            "serviceaccounts",
            "roles",
            "rolebindings",
            "poddisruptionbudgets",
        ];
        for plural in kinds {
            let left = self.cluster.all::<Value>(plural);
            let names = left.iter().map(|object| &object["metadata"]["name"]);
            let names: Vec<_> = names.collect();
            assert!(names.is_empty(), "{plural} {names:?}");
        }
    }
}
