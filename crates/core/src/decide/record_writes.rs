//! Writes of run record, history and run report that belong to no run.

use alustan_api::run::{PinnedImage, RunPhase, RunProgress};

use crate::decide::case::ReconcileCase;
use crate::observed::RecordSeen;
use crate::step::{Keep, Step, Swap};

impl ReconcileCase<'_> {
    /// Clears the report of a run that is already in the history: a replica may have stopped after it wrote the history and before it
    /// cleared the report.
    pub(super) fn clear_report(&mut self) {
        let RecordSeen {
            record,
            report,
            outputs,
            ..
        } = self.record;
        let is_recorded = record.phase == RunPhase::Recorded;
        if is_recorded && (report.is_some() || outputs.is_some()) {
            let closed = RunProgress::of(record);
            self.steps.push(Step::SwapReport(Box::new(closed)));
        }
    }

    /// Stores the notifications in the history, so that a new leader sends pending notifications and does not repeat delivered
    /// notifications.
    pub(super) fn store_notices(&mut self) {
        if self.history.notices != self.seen.notices {
            self.history.notices.clone_from(&self.seen.notices);
            self.steps.push(self.store_history());
        }
    }

    /// Stores the resolved base image in the history; the next write of the run record includes the history. A base image is resolved once:
    /// a moved tag causes no build (rule 1).
    pub(super) fn store_base_image(&mut self, base: PinnedImage) {
        if self.history.base.as_ref() != Some(&base) {
            self.history.base = Some(base);
        }
    }

    /// Returns the step that writes run record and history.
    pub(super) fn store_history(&self) -> Step {
        Step::SwapRecord(Box::new(Swap {
            record: self.current.clone(),
            history: Some(self.history.clone()),
            inputs: Keep::Same,
        }))
    }
}
