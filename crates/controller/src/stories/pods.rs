//! Simulates the Job controller and the pods of runs and builds with the protocol of the runner.

use std::collections::{BTreeMap, BTreeSet};

use alustan_api::Reason;
use alustan_api::change_set::{ChangeSet, ResourceChange};
use alustan_api::labels::{IMAGE_TAG, JOB_NAME};
use alustan_api::report::{Failure, FailureClass, PlanAsks, RunReport, RunResult};
use alustan_api::run::{
    Claim, Outputs, Pin, RunInputs, RunKind, RunPhase, RunProgress, RunRecord, StateLock, key,
};
use alustan_core::digest;
use alustan_core::objects::secrets;
use k8s_openapi::ByteString;
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::Secret;
use kube::ResourceExt;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::operator::Remote;
use crate::memory_cluster::MemoryCluster;
use crate::watch::cached::CachedJob;
use crate::watch::trim::CONTROLLER_UID;

/// Configuration of a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct RunConfig {
    pub(super) context: Option<String>,
    pub(super) size: Value,
}

/// Real objects of the module.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Real {
    /// Configuration of the last complete apply.
    pub(super) config: Option<RunConfig>,
    /// Whether an apply or a destroy failed or was killed after the last complete apply.
    pub(super) is_partial: bool,
    /// Whether a user changed the objects.
    pub(super) has_drifted: bool,
}

impl Real {
    pub(super) fn is_empty(&self) -> bool {
        self.config.is_none() && !self.is_partial
    }
}

/// Phase of a run pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Stage {
    Created,
    Planning,
    Applying,
    Ended,
}

#[derive(Debug)]
struct RunPod {
    job: String,
    job_uid: String,
    uid: String,
    number: i64,
    stage: Stage,
}

/// Event of a run pod.
#[derive(Clone, Copy, Debug)]
pub(super) enum PodEvent {
    /// The pod advances to its next phase.
    Progress,
    /// The run fails, and the pod writes a report.
    Fail(FailureClass),
    /// The pod terminates without a report.
    Kill,
}

/// Pods of the cluster, and what their runs did.
#[derive(Default)]
pub(super) struct Pods {
    runs: Vec<RunPod>,
    /// Names of the run Jobs whose pods claimed their runs.
    claimed: BTreeSet<String>,
    /// Names of the run Jobs whose pods wrote a report, in order.
    pub(super) reported: Vec<String>,
    pub(super) real: Real,
    /// Ids of the plans that the user approved.
    pub(super) approved: BTreeSet<String>,
    /// Ids of the approved plans that were applied.
    applied_plans: BTreeSet<String>,
}

impl Pods {
    /// Creates the pods of new Jobs, and terminates the pods of deleted Jobs. Asserts that no Job of a claimed run is created again.
    pub(super) fn sync(&mut self, cluster: &MemoryCluster) {
        delete_expired_jobs(cluster);
        let jobs = cluster.all::<Job>("jobs");
        let uids: BTreeSet<String> = jobs.iter().filter_map(ResourceExt::uid).collect();
        for pod in &mut self.runs {
            if pod.stage < Stage::Ended && !uids.contains(&pod.job_uid) {
                self.real.is_partial |= pod.stage == Stage::Applying;
                pod.stage = Stage::Ended;
            }
        }
        for job in jobs.iter().filter(|job| !is_finished(job)) {
            let (name, uid) = (job.name_any(), job.uid().unwrap());
            if cluster.get::<Value>("pods", &format!("{name}-0")).is_some() {
                continue;
            }
            cluster.put("pods", pod_of(job));
            if job.labels().contains_key(IMAGE_TAG) {
                continue;
            }
            assert!(!self.claimed.contains(&name), "Job {name} is created again");
            let number = name.rsplit('-').next().unwrap().parse().unwrap();
            self.runs.push(RunPod {
                uid: format!("pod-of-{uid}"),
                job: name,
                job_uid: uid,
                number,
                stage: Stage::Created,
            });
        }
    }

    /// Completes all active builds, or fails them. Returns whether a build was active.
    pub(super) fn end_builds(
        &mut self,
        cluster: &MemoryCluster,
        remote: &mut Remote,
        succeed: bool,
    ) -> bool {
        self.sync(cluster);
        let jobs = cluster.all::<Job>("jobs");
        let active = jobs.iter().filter(|job| !is_finished(job));
        let mut has_ended = false;
        for job in active {
            let Some(tag) = job.labels().get(IMAGE_TAG) else {
                continue;
            };
            if succeed {
                remote.images.insert(tag.clone());
            }
            end(cluster, &job.name_any(), succeed);
            has_ended = true;
        }
        has_ended
    }

    /// Applies `event` to the active run pod with index `index`, modulo the number of active pods. Returns whether a pod was active.
    pub(super) fn advance(
        &mut self,
        cluster: &MemoryCluster,
        index: usize,
        event: PodEvent,
    ) -> bool {
        self.sync(cluster);
        let active: Vec<usize> = (0..self.runs.len())
            .filter(|pod| self.runs[*pod].stage < Stage::Ended)
            .collect();
        let Some(index) = active.get(index % active.len().max(1)).copied() else {
            return false;
        };
        let run = Run {
            cluster,
            pod: &self.runs[index],
        };
        let (stage, result) = match (run.pod.stage, event) {
            (_, PodEvent::Kill) | (Stage::Ended, _) => (Stage::Ended, None),
            (Stage::Created, _) => (run.claim(), None),
            (_, PodEvent::Fail(class)) => (Stage::Ended, Some(RunEnd::Failed(class))),
            (Stage::Planning, PodEvent::Progress) => run.plan(&self.real),
            (Stage::Applying, PodEvent::Progress) => {
                self.real = Real {
                    config: run.wanted(),
                    ..Real::default()
                };
                (Stage::Ended, Some(RunEnd::Result(RunResult::Done)))
            }
        };
        if stage == Stage::Planning {
            self.claimed.insert(run.pod.job.clone());
        }
        if stage == Stage::Applying {
            run.assert_may_apply(&self.approved, &mut self.applied_plans);
        }
        let has_failed = !matches!(result, Some(RunEnd::Result(_)));
        if stage == Stage::Ended && run.pod.stage == Stage::Applying && has_failed {
            self.real.is_partial = true;
        }
        if let Some(result) = &result {
            run.report(&self.real, result);
            self.reported.push(run.pod.job.clone());
        }
        if stage == Stage::Ended {
            end(cluster, &run.pod.job, result.is_some() && !has_failed);
        }
        self.runs[index].stage = stage;
        let is_working = |pod: &&RunPod| matches!(pod.stage, Stage::Planning | Stage::Applying);
        let working: Vec<_> = self.runs.iter().filter(is_working).collect();
        assert!(working.len() < 2, "two runs at the same time: {working:?}");
        true
    }
}

/// End of a run whose pod writes a report.
enum RunEnd {
    Result(RunResult),
    Failed(FailureClass),
}

/// A run pod and the Secrets that it reads and writes.
struct Run<'a> {
    cluster: &'a MemoryCluster,
    pod: &'a RunPod,
}

impl Run<'_> {
    fn entry<T: DeserializeOwned>(&self, secret: &str, key: &str) -> Option<T> {
        let secret: Secret = self.cluster.get("secrets", secret)?;
        let bytes = secret.data?.remove(key)?;
        Some(serde_json::from_slice(&bytes.0).unwrap())
    }

    /// Returns run record and inputs of this run. `None` if the controller has started another run or recorded this one.
    fn current(&self) -> Option<(RunRecord, RunInputs)> {
        let record: RunRecord = self.entry("web-run", key::RECORD)?;
        let inputs = self.entry("web-run", key::INPUTS)?;
        (record.number == self.pod.number).then_some((record, inputs))
    }

    /// Changes the progress in the run report if `change` returns true.
    fn swap(&self, change: impl FnOnce(&mut RunProgress) -> bool) -> bool {
        let progress: Option<RunProgress> = self.entry("web-report", key::PROGRESS);
        let Some(mut progress) = progress.filter(|progress| progress.number == self.pod.number)
        else {
            return false;
        };
        let is_changed = change(&mut progress);
        if is_changed {
            self.write(&[(key::PROGRESS, bytes(&progress))]);
        }
        is_changed
    }

    fn write(&self, entries: &[(&str, ByteString)]) {
        let data: BTreeMap<_, _> = entries.iter().cloned().collect();
        self.cluster
            .merge("secrets", "web-report", &json!({ "data": data }));
    }

    fn is_mine(&self, progress: &RunProgress) -> bool {
        let claim = progress.claimed_by.as_ref();
        progress.phase < RunPhase::Reported
            && !progress.closed
            && claim.is_some_and(|claim| claim.pod_uid == self.pod.uid)
    }

    fn claim(&self) -> Stage {
        let claim = Claim {
            pod_uid: self.pod.uid.clone(),
            pod: format!("{}-0", self.pod.job),
            at: self.cluster.now(),
        };
        let is_claimed = self.swap(|progress| {
            let is_free = progress.claimed_by.is_none()
                && !progress.cancel
                && !progress.closed
                && progress.phase == RunPhase::Starting;
            if is_free {
                progress.phase = RunPhase::Planning;
                progress.claimed_by = Some(claim);
            }
            is_free
        });
        if is_claimed {
            Stage::Planning
        } else {
            Stage::Ended
        }
    }

    /// Returns the configuration to apply. `None` if the run destroys.
    fn wanted(&self) -> Option<RunConfig> {
        let (record, mut inputs) = self.current()?;
        let run = record.run?;
        (!inputs.approval.destroy && run.kind != RunKind::Destroy).then(|| RunConfig {
            context: run.context,
            size: inputs.variables.remove("size").unwrap_or_default(),
        })
    }

    /// Returns the id of the plan, derived from the real objects and the wanted configuration.
    fn plan_id(&self, real: &Real) -> String {
        digest::plain(&format!("{real:?} {:?}", self.wanted()))
    }

    fn plan(&self, real: &Real) -> (Stage, Option<RunEnd>) {
        let end = |result| (Stage::Ended, Some(RunEnd::Result(result)));
        let Some((record, inputs)) = self.current() else {
            return (Stage::Ended, None);
        };
        let wanted = self.wanted();
        let differs = match &wanted {
            None => !real.is_empty(),
            Some(_) => real.is_partial || real.has_drifted || real.config != wanted,
        };
        if !differs {
            return end(RunResult::NoChanges);
        }
        let approved = inputs.approval.approved.map(|plan| plan.id);
        let lacks_approval =
            inputs.approval.manual && approved.as_ref() != Some(&self.plan_id(real));
        if !record.run.unwrap().kind.changes() || lacks_approval {
            return end(RunResult::Changes);
        }
        let mut is_cancelled = false;
        let starts = self.swap(|progress| {
            is_cancelled = progress.cancel;
            let starts = !is_cancelled && self.is_mine(progress);
            if starts {
                progress.phase = RunPhase::Applying;
                progress.began = true;
                progress.lock = Some(StateLock {
                    id: self.pod.uid.clone(),
                    operation: "OperationTypeApply".to_owned(),
                    who: format!("alustan@{}", self.pod.uid),
                    at: self.cluster.now(),
                });
            }
            starts
        });
        if is_cancelled {
            return end(RunResult::Cancelled);
        }
        (
            if starts {
                Stage::Applying
            } else {
                Stage::Ended
            },
            None,
        )
    }

    /// Asserts that the plan of this run is approved if it needs an approval, that no approval is used twice, and that an apply has its pin.
    fn assert_may_apply(&self, approved: &BTreeSet<String>, applied: &mut BTreeSet<String>) {
        let (record, inputs) = self.current().unwrap();
        let run = record.run.unwrap();
        match inputs.approval.approved {
            Some(plan) => {
                assert!(approved.contains(&plan.id), "nobody approved {plan:?}");
                assert!(applied.insert(plan.id.clone()), "{plan:?} is used twice");
            }
            None => assert!(!inputs.approval.manual, "{} is not approved", run.job),
        }
        if run.kind == RunKind::Apply {
            let pin: Pin = self.entry("web-pin", secrets::PIN).unwrap();
            assert_eq!((pin.image, pin.context), (run.image, run.context));
            assert_eq!(pin.inputs.variables, inputs.variables);
        }
    }

    /// Writes the report of the run, if the controller has not closed the run.
    fn report(&self, real: &Real, end: &RunEnd) {
        let Some((record, _)) = self.current() else {
            return;
        };
        let kind = record.run.unwrap().kind;
        let (result, failure) = match end {
            RunEnd::Result(result) => (*result, None),
            RunEnd::Failed(class) => {
                let failure = Failure::new(*class, Reason::ApplyFailed, "Error: invalid argument");
                (RunResult::Failed, Some(failure))
            }
        };
        let asks = (kind != RunKind::Drift && result == RunResult::Changes).then(|| PlanAsks {
            id: self.plan_id(real),
            because: Vec::new(),
        });
        let changes = ChangeSet {
            change: 1,
            resources: vec![ResourceChange {
                address: "null_resource.a".to_owned(),
                action: "update".to_owned(),
                ..ResourceChange::default()
            }],
            digest: format!("{real:?}"),
            shape: "null_resource.a".to_owned(),
            ..ChangeSet::default()
        };
        let now = self.cluster.now();
        let report = RunReport {
            changes: Some(changes),
            asks,
            failure,
            recovered: true,
            ..RunReport::new(self.pod.number, kind, result, now, now)
        };
        let is_mine = self.swap(|progress| {
            let is_mine = self.is_mine(progress);
            if is_mine {
                progress.phase = RunPhase::Reported;
                progress.lock = None;
            }
            is_mine
        });
        if is_mine {
            let outputs = bytes(&Outputs::new());
            self.write(&[(key::REPORT, bytes(&report)), (key::OUTPUTS, outputs)]);
        }
    }
}

fn bytes(value: &impl Serialize) -> ByteString {
    ByteString(serde_json::to_vec(value).unwrap())
}

fn is_finished(job: &Job) -> bool {
    CachedJob::from(job.clone()).finished.is_some()
}

/// Returns the running pod of `job`.
fn pod_of(job: &Job) -> Value {
    let (name, uid) = (job.name_any(), job.uid().unwrap());
    let template = job.spec.as_ref().unwrap().template.metadata.clone();
    let mut labels = template.unwrap_or_default().labels.unwrap_or_default();
    labels.insert(JOB_NAME.to_owned(), name.clone());
    labels.insert(CONTROLLER_UID.to_owned(), uid.clone());
    let owner = json!({"apiVersion": "batch/v1", "kind": "Job", "name": name, "uid": uid});
    json!({
        "metadata": {
            "namespace": job.namespace(), "name": format!("{name}-0"), "labels": labels,
            "uid": format!("pod-of-{uid}"), "ownerReferences": [owner],
        },
        "status": {"phase": "Running"},
    })
}

/// Ends the pod of Job `name` and the Job.
fn end(cluster: &MemoryCluster, name: &str, succeeds: bool) {
    let (phase, condition) = if succeeds {
        ("Succeeded", "Complete")
    } else {
        ("Failed", "Failed")
    };
    let status = json!({"status": {"phase": phase}});
    cluster.merge("pods", &format!("{name}-0"), &status);
    let now = cluster.now();
    let conditions = [json!({"type": condition, "status": "True", "lastTransitionTime": now})];
    cluster.merge("jobs", name, &json!({"status": {"conditions": conditions}}));
}

/// Deletes finished Jobs after `ttlSecondsAfterFinished`, as the TTL controller does.
fn delete_expired_jobs(cluster: &MemoryCluster) {
    let now = cluster.now();
    for job in cluster.all::<Job>("jobs") {
        let lifetime = job
            .spec
            .as_ref()
            .and_then(|spec| spec.ttl_seconds_after_finished);
        let conditions = job.status.iter().flat_map(|status| &status.conditions);
        let ended_at = conditions
            .flatten()
            .find_map(|end| end.last_transition_time.as_ref());
        let Some((lifetime, ended_at)) = lifetime.zip(ended_at) else {
            continue;
        };
        if now.duration_since(ended_at.0).as_secs() >= lifetime.into() {
            cluster.delete("jobs", &job.name_any());
        }
    }
}
