//! The protocol of the runner: the requests of a pod to the API server or the bucket, one at a time.

use alustan_api::change_set::{ChangeSet, ResourceChange};
use alustan_api::report::{Failure, PlanAsks, RunReport, RunResult};
use alustan_api::run::{Begin, ChangesStart, End, Pin, RunKind, RunProgress, check_number};
use alustan_api::{ApprovalMode, Reason};
use alustan_core::digest;
use k8s_openapi::jiff::Timestamp;

use crate::objects::StoredReport;
use crate::pod::{Outcome, Pod, Run, Stage};
use crate::resource::{KEY, size};
use crate::rules::Rule;
use crate::scenario::{Backend, Defect};
use crate::shared::Shared;
use crate::state::{Real, State};

/// Settings of the scenario that pods depend on.
#[derive(Clone, Copy)]
pub(crate) struct PodWorld {
    pub(crate) backend: Backend,
    pub(crate) defect: Option<Defect>,
}

impl State {
    /// Executes the next request of pod `index`. Returns the stage of the pod after a response.
    pub(crate) fn advance_pod(&mut self, index: usize, world: PodWorld) -> Stage {
        let pod = self.pods[index].clone();
        match &pod.stage {
            Stage::Created => self.read_record(&pod),
            Stage::Read(run) => self.claim(&pod, run, world),
            Stage::Planning(run) => self.plan_and_begin(index, run, world),
            Stage::Begun(run) => self.lock_state(index, run),
            Stage::Changing(run) => self.change(run, world),
            Stage::Ending(..) if world.defect == Some(Defect::LosesReport) => Stage::Reported,
            Stage::Ending(run, outcome) => self.report(&pod, run, outcome),
            Stage::Reported | Stage::Ended => Stage::Ended,
        }
    }

    /// Reads the run record, and checks number and HMAC of run and inputs.
    fn read_record(&self, pod: &Pod) -> Stage {
        let Some(record) = &self.objects.secrets.record.content else {
            return Stage::Ended;
        };
        let (Some(run), Some(inputs)) = (&record.record.run, &record.inputs) else {
            return Stage::Ended;
        };
        let decision = digest::keyed(KEY, &(run, &**inputs));
        if check_number(record.record.number, pod.number).is_err() || decision != pod.decision {
            return Stage::Ended;
        }
        Stage::Read(Shared::new(Run {
            record: (*record.record).clone(),
            spec: run.clone(),
            inputs: (**inputs).clone(),
        }))
    }

    fn claim(&mut self, pod: &Pod, run: &Shared<Run>, world: PodWorld) -> Stage {
        let claim = pod.claim(self.now());
        let claimed = self.update_report(|progress| match progress.claim(pod.number, claim) {
            Ok(is_new) => (is_new, true),
            Err(_) => (false, world.defect == Some(Defect::SkipsClaim)),
        });
        if claimed == Some(true) {
            Stage::Planning(run.clone())
        } else {
            Stage::Ended
        }
    }

    /// Plans, and begins the changes of a plan that needs no approval or is approved.
    fn plan_and_begin(&mut self, index: usize, run: &Shared<Run>, world: PodWorld) -> Stage {
        let pod = self.pods[index].clone();
        let approval = &run.inputs.approval;
        let ending = |outcome| Stage::Ending(run.clone(), Shared::new(outcome));
        if !differs(&self.real, run) {
            return ending(Outcome::of(RunResult::NoChanges));
        }
        let id = plan_id(&self.real, run);
        let is_approved = approval.approved.as_ref().is_some_and(|plan| plan.id == id);
        let needs_approval = approval.manual && world.defect != Some(Defect::SkipsApproval);
        if run.spec.kind == RunKind::Drift {
            return ending(Outcome::of(RunResult::Changes));
        }
        if needs_approval && !is_approved {
            return ending(Outcome {
                asks: Some(id),
                ..Outcome::of(RunResult::Changes)
            });
        }
        let lock = pod.lock();
        let start = ChangesStart {
            lock: (world.backend == Backend::Managed).then(|| lock.clone()),
            ..ChangesStart::default()
        };
        let skips_claim = world.defect == Some(Defect::SkipsClaim);
        let begun = self.update_report(|progress| {
            if !progress.is_executed_by(pod.number, &pod.name) && !skips_claim {
                return (false, None);
            }
            let begin = progress.begin(&start);
            (begin == Begin::New, Some((begin, progress.lock.clone())))
        });
        match begun.flatten() {
            None => Stage::Ended,
            Some((Begin::Cancelled, _)) => ending(Outcome::of(RunResult::Cancelled)),
            Some((Begin::New | Begin::Repeated, held)) => {
                self.check_begin(&pod, run, &id);
                match world.backend {
                    Backend::S3 => Stage::Begun(run.clone()),
                    Backend::Managed if held == Some(lock) || skips_claim => {
                        self.start_engine(index, run)
                    }
                    Backend::Managed => ending(locked()),
                }
            }
        }
    }

    /// Checks the rules for the start of the changes of `run`.
    fn check_begin(&mut self, pod: &Pod, run: &Run, id: &str) {
        if pod.has_begun {
            return;
        }
        let index = self.pods.iter().position(|other| other.name == pod.name);
        if let Some(index) = index {
            self.pods[index].has_begun = true;
        }
        let destroys = run.spec.destroys;
        let mode = self.tf().map(|tf| tf.spec.approval.mode);
        if mode == Some(ApprovalMode::Manual) && !destroys {
            let is_approved = self.approved.contains(id) && self.applied.insert(id.to_owned());
            self.check(Rule::UnapprovedApply, is_approved);
        }
        if !destroys {
            let pin = self.objects.secrets.pin.content.clone();
            let is_pinned = pin.is_some_and(|pin| is_pin_of(&pin, run));
            self.check(Rule::PinBeforeApply, is_pinned);
        }
        let mut others = self.pods.iter().filter(|other| other.name != pod.name);
        let is_only = !others.any(|other| other.number == pod.number && other.has_begun);
        self.check(Rule::OneMutator, is_only);
    }

    /// Acquires the lock of the state in the bucket. Releases the lock of a pod that has ended according to the run record.
    fn lock_state(&mut self, index: usize, run: &Shared<Run>) -> Stage {
        let Some(held) = self.lock.clone() else {
            self.lock = Some(Shared::new(self.pods[index].lock()));
            return self.start_engine(index, run);
        };
        if !run.record.has_ended_holder(&held) {
            return Stage::Ending(run.clone(), Shared::new(locked()));
        }
        let may_live = self.pods.iter().any(|pod| pod.may_hold(&held));
        self.check(Rule::LockOfLivePod, !may_live);
        self.lock = None;
        Stage::Begun(run.clone())
    }

    /// Starts the engine of pod `index`, which has the lock.
    fn start_engine(&mut self, index: usize, run: &Shared<Run>) -> Stage {
        let mut others = self.pods.iter().enumerate();
        let is_only = !others.any(|(other, pod)| other != index && pod.is_changing());
        self.check(Rule::OneMutator, is_only);
        Stage::Changing(run.clone())
    }

    fn change(&mut self, run: &Shared<Run>, world: PodWorld) -> Stage {
        self.real = Real {
            size: (!run.spec.destroys).then(|| size(&run.inputs.variables)),
            is_partial: false,
            serial: self.real.serial + 1,
        };
        self.unlock_state(world);
        Stage::Ending(run.clone(), Shared::new(Outcome::of(RunResult::Done)))
    }

    /// Releases the lock of the state in the bucket, at the end of the engine that holds it.
    fn unlock_state(&mut self, world: PodWorld) {
        if world.backend == Backend::S3 {
            self.lock = None;
        }
    }

    fn report(&mut self, pod: &Pod, run: &Run, outcome: &Outcome) -> Stage {
        let now = self.now();
        let Some(report) = &mut self.objects.secrets.report.content.clone() else {
            return Stage::Ended;
        };
        let mut progress = (*report.progress).clone();
        let is_cancelled = match progress.end(pod.number, &pod.name) {
            End::NotOurs => return Stage::Ended,
            End::Repeated | End::Recorded => return Stage::Reported,
            End::New { is_cancelled } => is_cancelled,
        };
        if outcome.is_refused {
            progress.began = false;
        }
        // A lock of another holder stays.
        let _ = progress.release_lock(Some(&pod.name));
        let written = report_of(pod, run, outcome, now);
        let written = if is_cancelled {
            written.as_cancelled()
        } else {
            written
        };
        let has_outputs = matches!(written.result, RunResult::Done | RunResult::NoChanges);
        self.objects.secrets.report.set(Some(StoredReport {
            progress: Shared::new(progress),
            report: Some(Shared::new(written)),
            has_outputs: has_outputs && run.spec.kind != RunKind::Drift,
        }));
        Stage::Reported
    }

    /// Changes the progress in the run report by compare-and-swap. `change` returns whether it changed the progress, and its result. Returns
    /// `None` if the run report does not exist. The runner repeats a swap after a conflict, so read and write are one transition here.
    fn update_report<T>(
        &mut self,
        change: impl FnOnce(&mut RunProgress) -> (bool, T),
    ) -> Option<T> {
        let report = self.objects.secrets.report.content.clone()?;
        let mut progress = (*report.progress).clone();
        let (is_changed, result) = change(&mut progress);
        if is_changed {
            self.objects.secrets.report.set(Some(StoredReport {
                progress: Shared::new(progress),
                ..report
            }));
        }
        Some(result)
    }

    /// Returns the stage of pod `index` after a failure of the module.
    pub(crate) fn fail_pod(&mut self, index: usize, world: PodWorld) -> Option<Stage> {
        let failure = Failure::module(Reason::ApplyFailed, "Error: nope");
        self.end_early(index, failure, world)
    }

    /// Returns the stage of pod `index`, whose Job is deleted, after it received SIGTERM.
    pub(crate) fn stop_pod(&mut self, index: usize, world: PodWorld) -> Option<Stage> {
        let failure = Failure::transient(Reason::Interrupted, "the pod was terminated");
        match &self.pods[index].stage {
            Stage::Created | Stage::Read(_) => Some(Stage::Ended),
            _ => self.end_early(index, failure, world),
        }
    }

    fn end_early(&mut self, index: usize, failure: Failure, world: PodWorld) -> Option<Stage> {
        let run = match &self.pods[index].stage {
            Stage::Planning(run) => run.clone(),
            Stage::Changing(run) => {
                let run = run.clone();
                self.interrupt();
                self.unlock_state(world);
                run
            }
            _ => return None,
        };
        Some(Stage::Ending(run, Shared::new(Outcome::failed(failure))))
    }

    /// Ends pod `index` without a report. A lock that it holds stays.
    pub(crate) fn kill_pod(&mut self, index: usize) {
        if self.pods[index].is_changing() {
            self.interrupt();
        }
        self.pods[index].stage = Stage::Ended;
    }

    fn interrupt(&mut self) {
        self.real.is_partial = true;
        self.real.serial += 1;
    }
}

/// Whether the plan of `run` has changes.
fn differs(real: &Real, run: &Run) -> bool {
    if run.spec.destroys {
        return real.size.is_some() || real.is_partial;
    }
    real.is_partial || real.size != Some(size(&run.inputs.variables))
}

/// Returns the plan id, from the inputs of the plan id of the runner.
fn plan_id(real: &Real, run: &Run) -> String {
    let approval = &run.inputs.approval;
    let begun = run.record.begun.max(run.record.attempted);
    digest::plain(&(
        (real.size, real.is_partial, real.serial, run.spec.destroys),
        (&run.spec.context, &run.inputs.variables),
        (begun, &approval.restored, &approval.discarded),
    ))
}

fn is_pin_of(pin: &Pin, run: &Run) -> bool {
    pin.number == run.record.number
        && pin.image == run.spec.image
        && pin.context == run.spec.context
        && pin.inputs.variables == run.inputs.variables
}

fn locked() -> Outcome {
    Outcome {
        is_refused: true,
        ..Outcome::failed(Failure::transient(
            Reason::StateLocked,
            "the state is locked",
        ))
    }
}

fn report_of(pod: &Pod, run: &Run, outcome: &Outcome, now: Timestamp) -> RunReport {
    let address = "null_resource.a".to_owned();
    let changes = ChangeSet {
        change: 1,
        resources: vec![ResourceChange {
            address: address.clone(),
            action: "update".to_owned(),
            ..ResourceChange::default()
        }],
        digest: size(&run.inputs.variables).to_string(),
        shape: address,
        ..ChangeSet::default()
    };
    RunReport {
        changes: Some(changes),
        asks: outcome.asks.clone().map(|id| PlanAsks {
            id,
            because: Vec::new(),
        }),
        failure: outcome.failure.clone(),
        recovered: true,
        ..RunReport::new(pod.number, run.spec.kind, outcome.result, now, now)
    }
}
