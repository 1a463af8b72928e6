//! Simulates run pods with the protocol of the runner.

use alustan_api::report::{Failure, FailureClass, RunResult};
use alustan_api::run::{Claim, RunInputs, RunKind, RunPhase, RunProgress, StateLock};
use alustan_core::digest;
use alustan_core::model::facts::open_run;
use k8s_openapi::jiff::Timestamp;

use super::{Ledger, Situation, World};
use crate::fixtures::failure;
use alustan_core::observed::{CacheSeen, Waiting};

/// Phase of a runner pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Stage {
    Created,
    Planning,
    Applying,
    /// The report is written, and the pod is terminating.
    Reported,
    Dead,
}

impl Stage {
    pub(crate) fn is_alive(self) -> bool {
        self < Self::Dead
    }

    /// Whether the pod is alive and has claimed its run.
    pub(crate) fn past_claim(self) -> bool {
        self.is_alive() && self > Self::Created
    }

    /// Whether the pod has claimed its run and not reported yet.
    pub(crate) fn is_working(self) -> bool {
        self.past_claim() && self < Self::Reported
    }
}

#[derive(Clone, Debug)]
pub(crate) struct Pod {
    pub(crate) uid: String,
    pub(crate) job: String,
    pub(crate) job_uid: String,
    pub(crate) number: i64,
    pub(crate) image: String,
    /// Reference of the context that the pod unpacks, if its image is a base image.
    pub(crate) unpacks: Option<String>,
    /// Whether the pod mounts the resource's own cache volume. If so, the pod cannot start without the volume.
    pub(crate) volume: bool,
    /// Shared claim that the pod mounts.
    pub(crate) shared_claim: Option<String>,
    /// Whether the pod cannot start without Secret `cloud`.
    pub(crate) cloud: bool,
    pub(crate) stage: Stage,
}

/// Event of a pod.
#[derive(Clone, Copy, Debug)]
pub(crate) enum PodEvent {
    /// The pod advances to the next phase.
    Progress,
    /// The run fails, and the pod writes a report.
    Fail(FailureClass),
    /// The pod terminates without a report.
    Kill,
}

impl World {
    /// Applies `event` to the active pod with index `index_among_alive`, modulo the number of active pods. Returns false if nothing
    /// changed.
    pub(crate) fn advance_pod(&mut self, index_among_alive: usize, event: PodEvent) -> bool {
        self.spawn();
        let alive: Vec<usize> = (0..self.pods.len())
            .filter(|pod| self.pods[*pod].stage.is_alive())
            .collect();
        let Some(index) = alive.get(index_among_alive % alive.len().max(1)).copied() else {
            return false;
        };
        let previous = self.pods[index].stage;
        self.pods[index].stage = match event {
            PodEvent::Kill => self.kill(index),
            PodEvent::Progress => self.progress(index, None),
            PodEvent::Fail(class) => self.progress(index, Some(class)),
        };
        Ledger::pods(&self.pods);
        self.pods[index].stage != previous
    }

    /// Creates the pods of new Jobs, as the Job controller does.
    pub(crate) fn spawn(&mut self) {
        if self.quota_exhausted {
            return;
        }
        for name in self.jobs.keys().cloned().collect::<Vec<_>>() {
            let uid = format!("pod-{}", self.next_id());
            let Some(job) = self.jobs.get_mut(&name).filter(|job| !job.pod_created) else {
                continue;
            };
            job.pod_created = true;
            self.pods.push(Pod {
                uid,
                job: name,
                job_uid: job.uid.clone(),
                number: job.number,
                image: job.image.clone(),
                unpacks: job.unpacks.clone(),
                volume: job.volume,
                shared_claim: job.shared_claim.clone(),
                cloud: job.cloud,
                stage: Stage::Created,
            });
        }
    }

    fn kill(&mut self, index: usize) -> Stage {
        let pod = self.pods[index].clone();
        if pod.stage == Stage::Applying {
            self.real.partial = true;
            self.ledger.reached(Situation::OrphanLock);
        }
        let current = self.record.as_ref().map(|record| &record.record);
        let open = current
            .filter(|record| record.number == pod.number)
            .and_then(open_run);
        if open.is_some() && pod.stage < Stage::Reported {
            self.ledger.lost(pod.number);
        }
        Stage::Dead
    }

    fn progress(&mut self, index: usize, fail: Option<FailureClass>) -> Stage {
        let pod = self.pods[index].clone();
        match pod.stage {
            Stage::Created => self.claim(index),
            Stage::Planning => self.plan(&pod, fail),
            Stage::Applying => self.apply(&pod, fail),
            Stage::Reported | Stage::Dead => Stage::Dead,
        }
    }

    fn claim(&mut self, index: usize) -> Stage {
        let pod = &self.pods[index].clone();
        if self.obstacle(pod).is_some() {
            return Stage::Created;
        }
        let is_base = pod.image.starts_with(&self.settings.base_image);
        assert_eq!(is_base, pod.unpacks.is_some(), "a pod without the module");
        if pod
            .unpacks
            .as_ref()
            .is_some_and(|artifact| !self.artifacts.contains(artifact))
        {
            return self.kill(index);
        }
        let (now, volume, pod) = (self.now, pod.volume, pod.clone());
        let claimed = self.swap(|progress| {
            let is_free = progress.number == pod.number
                && progress.claimed_by.is_none()
                && !progress.cancel
                && !progress.closed
                && progress.phase == RunPhase::Starting;
            if is_free {
                progress.phase = RunPhase::Planning;
                progress.claimed_by = Some(Claim {
                    pod_uid: pod.uid.clone(),
                    pod: format!("{}-{}", pod.job, pod.uid.replace('-', "")),
                    at: now,
                });
            }
            is_free
        });
        if claimed {
            if volume {
                self.cache = CacheSeen::Bound;
            }
            Stage::Planning
        } else {
            Stage::Dead
        }
    }

    fn plan(&mut self, pod: &Pod, fail: Option<FailureClass>) -> Stage {
        let Some(kind) = self.kind_of(pod) else {
            return Stage::Dead;
        };
        if let Some(class) = fail {
            return self.report(pod, RunResult::Failed, Some(engine(class)));
        }
        let differs = if self.run_inputs().approval.destroy {
            !self.real.is_empty()
        } else {
            let decided = self.ledger.decided(pod.number);
            self.real.partial || self.real.drifted || self.real.config.as_ref() != decided
        };
        if !differs {
            return self.report(pod, RunResult::NoChanges, None);
        }
        if !kind.changes() || self.lacks_approval(pod) {
            return self.report(pod, RunResult::Changes, None);
        }
        let mut cancelled = false;
        let is_current = self.swap(|progress| {
            cancelled = progress.cancel;
            if !cancelled && is_ours(progress, pod) {
                progress.phase = RunPhase::Applying;
                progress.lock = Some(lock(pod));
                progress.began = true;
                return true;
            }
            false
        });
        if cancelled {
            return self.report(pod, RunResult::Cancelled, None);
        }
        if !is_current {
            return Stage::Dead;
        }
        let record = self.record.as_ref().unwrap();
        self.ledger.applying(record, self.pin.as_ref());
        Stage::Applying
    }

    /// Whether the plan of `pod` needs an approval and is not approved.
    fn lacks_approval(&self, pod: &Pod) -> bool {
        let approval = &self.run_inputs().approval;
        let empties = approval.emptying && self.plans_remove_all;
        let asks = approval.manual || !approval.rules.is_empty() || empties;
        let approved = approval.approved.as_ref().map(|plan| plan.id.as_str());
        asks && approved != Some(&self.plan_id(pod.number))
    }

    fn run_inputs(&self) -> &RunInputs {
        self.record.as_ref().unwrap().inputs.as_ref().unwrap()
    }

    /// Returns the plan id of run `number`, derived from the real objects, the wanted configuration and the last apply.
    pub(super) fn plan_id(&self, number: i64) -> String {
        let begun = self.record.as_ref().unwrap().record.begun;
        let (restored, discarded) = {
            let approval = &self.run_inputs().approval;
            (approval.restored, &approval.discarded)
        };
        let destroys = self.ledger.destroys(number);
        let wanted = self.ledger.decided(number).filter(|_| !destroys);
        digest::plain(&format!(
            "{:?} {wanted:?} {begun} {restored:?} {discarded:?}",
            self.real
        ))
    }

    fn apply(&mut self, pod: &Pod, fail: Option<FailureClass>) -> Stage {
        let Some(kind) = self.kind_of(pod) else {
            panic!(
                "run {} applies, but it is no longer the current one",
                pod.number
            )
        };
        if let Some(class) = fail {
            self.real.partial = true;
            return self.report(pod, RunResult::Failed, Some(engine(class)));
        }
        self.real.partial = false;
        self.real.drifted = self.drifts_after_apply && kind != RunKind::Destroy;
        self.real.config = match kind {
            RunKind::Destroy => None,
            RunKind::Apply | RunKind::Drift | RunKind::Plan => {
                self.ledger.decided(pod.number).cloned()
            }
        };
        self.report(pod, RunResult::Done, None)
    }

    /// Returns why `pod` does not start.
    pub(super) fn obstacle(&self, pod: &Pod) -> Option<Waiting> {
        let waiting = |reason: &str, message: &str| {
            Some(Waiting {
                reason: reason.to_owned(),
                message: message.to_owned(),
            })
        };
        let mut available = self.images.values().chain(&self.untagged);
        let is_base = pod.image.starts_with(&self.settings.base_image);
        if !is_base && !available.any(|digest| pod.image.ends_with(digest)) {
            return waiting("ImagePullBackOff", "Back-off pulling image");
        }
        match (self.cloud, self.cache) {
            (None, _) if pod.cloud => {
                waiting("CreateContainerConfigError", "secret \"cloud\" not found")
            }
            (_, CacheSeen::Absent | CacheSeen::Lost) if pod.volume => {
                waiting("Unschedulable", "the claim web-cache has no volume")
            }
            (_, _) if pod.shared_claim.is_some() && self.volume_unreachable => waiting(
                "CreateContainerConfigError",
                "failed to create subPath directory for volumeMount \"cache\" of container \"terraform\"",
            ),
            (_, _) if pod.volume && self.volume_unreachable => Some(unreachable_volume()),
            (_, _) => None,
        }
    }

    /// Returns the kind of the run of `pod`. `None` if the pod has no claim, the run has written its report, or the controller has closed
    /// the run.
    pub(super) fn kind_of(&self, pod: &Pod) -> Option<RunKind> {
        let record = &self.record.as_ref()?.record;
        let progress = self.progress.as_ref()?;
        let run = record.run.as_ref().filter(|_| is_ours(progress, pod))?;
        Some(run.kind)
    }

    /// Changes the progress in the run report. Conflicts need no simulation, because the real runner repeats a write after a conflict.
    pub(super) fn swap(&mut self, change: impl FnOnce(&mut RunProgress) -> bool) -> bool {
        let (Some(next), Some(mut progress)) = (self.record.clone(), self.progress.clone()) else {
            return false;
        };
        let changed = change(&mut progress);
        if changed {
            self.write_report(next, progress);
        }
        changed
    }
}

fn is_ours(progress: &RunProgress, pod: &Pod) -> bool {
    progress.number == pod.number
        && progress.phase < RunPhase::Reported
        && !progress.closed
        && progress
            .claimed_by
            .as_ref()
            .is_some_and(|claim| claim.pod_uid == pod.uid)
}

fn lock(pod: &Pod) -> StateLock {
    StateLock {
        id: pod.uid.clone(),
        operation: "OperationTypeApply".to_owned(),
        who: format!("alustan@{}", pod.uid),
        at: Timestamp::UNIX_EPOCH,
    }
}

fn engine(class: FailureClass) -> Failure {
    failure(
        class,
        "ApplyFailed",
        "terraform ended with exit code 1: Error: nope",
    )
}

/// Returns why a pod waits for a volume of another node.
pub(super) fn unreachable_volume() -> Waiting {
    Waiting {
        reason: "Unschedulable".to_owned(),
        message: "1 node(s) had volume node affinity conflict".to_owned(),
    }
}
