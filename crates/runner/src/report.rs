//! Writes the run report to its Secret, and a copy of it for users to the termination message.

use std::path::Path;

use alustan_api::Reason;
use alustan_api::report::{Failure, RunReport, RunResult};
use alustan_api::run::{
    End, Inventory, Lineage, Outputs, OwnBackend, RunDetails, RunProgress, RunRecord, key,
};
use alustan_state::retry::Patience;
use alustan_state::secrets::{Changes, MAX_SECRET_BYTES, Snapshot, to_json};
use serde::Serialize;

use crate::failure::{cut, transient};
use crate::log_tail::{self, LogTail};
use crate::record::{RESERVE, RecordError, RecordHandle, Update, parse};
use crate::state::inventory;

/// Maximum size of a termination message, in bytes. The kubelet truncates longer messages.
const MAX_MESSAGE_BYTES: usize = 4096;

/// Data of the run that is written together with the run report.
#[derive(Clone, Copy, Default)]
pub struct ReportExtras<'a> {
    /// Outputs of the module.
    pub outputs: Option<&'a Outputs>,
    /// Managed objects in the state.
    pub inventory: Option<&'a Inventory>,
    /// Id of the state lock to release.
    pub unlock: Option<&'a str>,
    /// Run record at the time of the claim, if the runner had reported the start of changes and the engine then refused to start, because
    /// the state was locked or the plan was stale. The report of the start is undone, so that an approval remains valid: the plan id depends
    /// on the number of the last run that started to change objects.
    pub refused: Option<&'a RunRecord>,
    /// Whether the resource has no state. If true, the next run treats a state that exists at its start as the state of another owner.
    pub stateless: bool,
    /// Backend block of the module, if the state is in that backend.
    pub own_backend: Option<&'a OwnBackend>,
    /// Details of the run.
    pub details: Option<&'a RunDetails>,
    /// Tail of the output of the run.
    pub tail: Option<&'a LogTail>,
}

impl ReportExtras<'_> {
    fn note(&self, progress: &mut RunProgress, report: &RunReport) {
        if let Some(before) = self.refused {
            progress.began = false;
            progress.lineage = before.lineage.clone();
            progress.state_address.clone_from(&before.state_address);
            progress.own_backend.clone_from(&before.own_backend);
        }
        if self.stateless && progress.lineage == Lineage::New {
            progress.lineage = Lineage::Unknown;
        }
        if let Some(lineage) = &report.lineage {
            progress.lineage = Lineage::Of(lineage.clone());
            progress.state_address.clone_from(&report.state_address);
            progress.own_backend = self.own_backend.cloned();
        }
        let id = progress.lock.as_ref().map(|lock| lock.id.as_str());
        if id.is_some() && id == self.unlock {
            progress.lock = None;
        }
    }
}

/// Writes the run report. Returns the report that the Secret contains: if the run was cancelled before it changed objects, a failure is
/// reported as a cancellation. If the response to an earlier attempt was lost, the Secret may contain the report already, or the controller may
/// have recorded and removed it.
pub async fn record(
    record: &RecordHandle,
    report: &RunReport,
    extras: ReportExtras<'_>,
    patience: Patience,
) -> Result<RunReport, RecordError> {
    record
        .update(patience, |progress, snapshot| {
            let identity = record.identity();
            let report = match progress.end(report.number, &identity.pod_uid) {
                End::NotOurs => {
                    return Err(RecordError::NotOurs(format!(
                        "run {} of {} is no longer claimed by this pod; its report is not recorded",
                        report.number, identity.record
                    )));
                }
                End::Repeated => {
                    let report = parse(&identity.report(), snapshot, key::REPORT)?;
                    return Ok(Update::Keep(report));
                }
                // The controller has removed the report.
                End::Recorded => return Ok(Update::Keep(report.clone())),
                End::New { is_cancelled: true } => report.as_cancelled(),
                End::New {
                    is_cancelled: false,
                } => report.clone(),
            };
            extras.note(progress, &report);
            let mut changes = changes(&report, extras.outputs);
            make_room(snapshot, &mut changes);
            if let Some(details) = extras.details {
                add_details(snapshot, &mut changes, details);
            }
            if let Some(inventory) = extras.inventory {
                inventory::keep(snapshot, &mut changes, inventory);
            }
            let failed = report.result == RunResult::Failed;
            let log = extras.tail.filter(|_| failed).and_then(LogTail::packed);
            if let Some(log) = log {
                log_tail::keep(snapshot, &mut changes, report.number, log);
            }
            Ok(Update::Write(report, changes))
        })
        .await
}

fn changes(report: &RunReport, outputs: Option<&Outputs>) -> Changes {
    let mut changes = Changes::from([(key::REPORT.to_owned(), Some(to_json(report)))]);
    if let Some(outputs) = outputs {
        changes.insert(key::OUTPUTS.to_owned(), Some(to_json(outputs)));
    }
    changes
}

/// Removes the logs of earlier runs if the outputs need the space. If the space is still not sufficient, also removes an unsaved state that
/// an earlier run kept for inspection. The next run does not need this state, because the state in the backend is newer.
fn make_room(snapshot: &Snapshot, changes: &mut Changes) {
    if changes.contains_key(key::OUTPUTS) && snapshot.size_with(changes) > MAX_SECRET_BYTES {
        log_tail::remove_all(snapshot, changes);
    }
    if changes.contains_key(key::OUTPUTS) && snapshot.size_with(changes) > MAX_SECRET_BYTES {
        changes.insert(key::LEFTOVER.to_owned(), None);
    }
}

/// Adds `details` if the Secret has space for them. Without details, the `TerraformRun` has the content of the run report.
fn add_details(snapshot: &Snapshot, changes: &mut Changes, details: &RunDetails) {
    changes.insert(key::DETAILS.to_owned(), Some(to_json(details)));
    if snapshot.size_with(changes) + RESERVE > MAX_SECRET_BYTES {
        changes.insert(key::DETAILS.to_owned(), None);
    }
}

/// Writes a copy of the report to the termination message at `path`, for users. Ignores errors, because the operator does not read the
/// message.
pub fn write_message(path: &Path, report: &RunReport) {
    let mut report = report.clone();
    while size(&report) > MAX_MESSAGE_BYTES && shrink(&mut report) {}
    let _ = std::fs::write(path, to_json(&report));
}

/// Writes a failure to the termination message at `path`. Shortens the message of the failure until the JSON of `wrap(failure)` has at most
/// 4096 bytes.
pub fn write_failure<T: Serialize>(path: &Path, failure: &Failure, wrap: impl Fn(Failure) -> T) {
    let mut failure = failure.clone();
    while size(&wrap(failure.clone())) > MAX_MESSAGE_BYTES && halve(&mut failure.message) {}
    let _ = std::fs::write(path, to_json(&wrap(failure)));
}

fn size<T: Serialize>(value: &T) -> usize {
    to_json(value).len()
}

fn shrink(report: &mut RunReport) -> bool {
    if report.registry_hosts.take().is_some() {
        return true;
    }
    if let Some(changes) = &mut report.changes
        && !changes.resources.is_empty()
    {
        changes.resources.truncate(changes.resources.len() / 2);
        return true;
    }
    report
        .failure
        .as_mut()
        .is_some_and(|failure| halve(&mut failure.message))
}

fn halve(text: &mut String) -> bool {
    let length = text.chars().count();
    *text = cut(text, length / 2);
    length > 0
}

/// Returns the failure of a run that cannot write its report.
pub fn unrecorded(error: &RecordError) -> Failure {
    transient(
        Reason::ReportNotRecorded,
        format!("failed to record the run report: {error}"),
    )
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use super::*;
    use crate::record::Identity;
    use alustan_api::change_set::{ChangeSet, ResourceChange};
    use alustan_api::report::{FailureClass, MAX_TEXT};
    use alustan_api::run::{Claim, RunKind, RunPhase};
    use alustan_state::fake::FakeSecrets;
    use k8s_openapi::jiff::Timestamp;
    use rstest::rstest;

    #[rstest]
    #[case::outputs_without_room(Some(700), 600, true)]
    #[case::outputs_with_room(Some(300), 600, false)]
    #[case::no_outputs(None, 1100, false)]
    fn old_unsaved_state_is_dropped_only_for_outputs(
        #[case] outputs: Option<usize>,
        #[case] leftover: usize,
        #[case] gone: bool,
    ) {
        let kib = |size: usize| vec![0; size * 1024];
        let snapshot = Snapshot {
            data: [(key::LEFTOVER.to_owned(), kib(leftover))].into(),
            ..Snapshot::default()
        };
        let mut changes = Changes::new();
        changes.extend(outputs.map(|size| (key::OUTPUTS.to_owned(), Some(kib(size)))));
        make_room(&snapshot, &mut changes);
        assert_eq!(changes.get(key::LEFTOVER) == Some(&None), gone);
    }

    fn report_of_run_7(failure: Option<Failure>) -> RunReport {
        let result = match failure {
            Some(_) => RunResult::Failed,
            None => RunResult::Done,
        };
        let at = Timestamp::UNIX_EPOCH;
        RunReport {
            failure,
            ..RunReport::new(7, RunKind::Apply, result, at, at)
        }
    }

    /// The response to the first attempt was lost, and the controller has closed the run in `phase` before the second attempt.
    #[rstest]
    #[case::with_the_report(RunPhase::Reported, true)]
    #[case::without_a_report(RunPhase::Applying, false)]
    #[tokio::test]
    async fn report_that_is_already_recorded_is_a_success(
        #[case] phase: RunPhase,
        #[case] is_recorded: bool,
    ) {
        let identity = Identity::of_run_7();
        let progress = RunProgress {
            number: 7,
            phase,
            closed: true,
            claimed_by: Some(Claim {
                pod_uid: identity.pod_uid.clone(),
                pod: identity.pod.clone(),
                at: Timestamp::UNIX_EPOCH,
            }),
            ..RunProgress::default()
        };
        let secrets = Arc::new(FakeSecrets::new());
        secrets.put(&identity.report(), [(key::PROGRESS, to_json(&progress))]);
        let handle = RecordHandle::new(secrets.clone(), identity);
        let report = report_of_run_7(None);
        let patience = Patience::lasting(Duration::ZERO);
        let recorded = record(&handle, &report, ReportExtras::default(), patience).await;
        assert_eq!(recorded.ok(), is_recorded.then_some(report));
        assert!(secrets.writes().is_empty());
    }

    #[test]
    fn report_copy_fits_into_a_termination_message() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("log");
        let resource = ResourceChange {
            address: "module.x.".repeat(20),
            action: "create".to_owned(),
            ..ResourceChange::default()
        };
        let failure = Failure {
            class: FailureClass::Module,
            reason: "ApplyFailed".into(),
            message: "\u{1F600}".repeat(MAX_TEXT),
        };
        let report = RunReport {
            changes: Some(ChangeSet {
                resources: vec![resource; 20],
                ..ChangeSet::default()
            }),
            registry_hosts: Some(vec!["h".repeat(255); 32]),
            ..report_of_run_7(Some(failure))
        };
        write_message(&path, &report);
        let written = std::fs::read(&path).unwrap();
        assert!(written.len() <= MAX_MESSAGE_BYTES);
        let read: RunReport = serde_json::from_slice(&written).unwrap();
        assert_eq!(read.failure.unwrap().reason, "ApplyFailed");
    }
}
