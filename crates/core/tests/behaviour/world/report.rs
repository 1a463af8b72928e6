//! Simulates run reports.

use alustan_api::change_set::{ChangeSet, ResourceChange};
use alustan_api::report::{Failure, FailureClass, PlanAsks, RunReport, RunResult};
use alustan_api::run::{Output, Outputs, RunKind, RunPhase};

use super::{Pod, Stage, World};

impl World {
    /// Writes the report of the run of `pod`, and ends the run.
    pub(super) fn report(
        &mut self,
        pod: &Pod,
        result: RunResult,
        failure: Option<Failure>,
    ) -> Stage {
        let Some(kind) = self.kind_of(pod) else {
            return Stage::Dead;
        };
        self.ledger
            .reported(pod.number, kind, result, failure.as_ref());
        let reconciles = kind == RunKind::Drift || result != RunResult::Changes;
        let asks = (!reconciles).then(|| PlanAsks {
            id: self.plan_id(pod.number),
            because: Vec::new(),
        });
        if let Some(asks) = &asks {
            self.ledger.awaits_approval(&asks.id, pod.number);
        }
        // A run saves the unsaved state of an earlier run before it plans. The simulation assumes that a transient failure occurs before
        // the state is saved.
        let world = |failure: &Failure| failure.class == FailureClass::Transient;
        let recovered = !failure.as_ref().is_some_and(world);
        let report = RunReport {
            changes: (kind != RunKind::Destroy || result == RunResult::Changes)
                .then(|| self.changes(pod.number)),
            asks,
            failure,
            recovered,
            ..RunReport::new(pod.number, kind, result, self.now, self.now)
        };
        let outputs = self.outputs_of(pod.number);
        let hands_on =
            kind != RunKind::Drift && matches!(result, RunResult::Done | RunResult::NoChanges);
        self.swap(|progress| {
            progress.phase = RunPhase::Reported;
            progress.lock = None;
            true
        });
        let record = self.record.as_mut().unwrap();
        record.unsaved &= !report.recovered;
        record.report = Some(report);
        record.outputs = hands_on.then_some(outputs);
        Stage::Reported
    }

    fn changes(&self, number: i64) -> ChangeSet {
        let address = "null_resource.a".to_owned();
        ChangeSet {
            change: 1,
            resources: vec![ResourceChange {
                address,
                action: "update".to_owned(),
                ..ResourceChange::default()
            }],
            digest: format!("{:?} {:?}", self.real, self.ledger.decided(number)),
            shape: "null_resource.a".to_owned(),
            ..ChangeSet::default()
        }
    }

    fn outputs_of(&self, number: i64) -> Outputs {
        let value = self
            .ledger
            .decided(number)
            .map(|config| config.size.clone());
        let output = Output {
            value: value.unwrap_or_default(),
            sensitive: false,
        };
        let mut outputs = self.more_outputs.clone();
        outputs.insert("size".to_owned(), output);
        outputs
    }
}
