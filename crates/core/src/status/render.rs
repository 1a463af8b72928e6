//! Renders status and conditions.

use alustan_api::change_set::ResourceChange;
use alustan_api::conditions::{self, Convergence, Kind, Verdict};
use alustan_api::report::RunReport;
use alustan_api::run::{History, RunPhase, RunRecord};
use alustan_api::{
    ActiveRun, AppliedStatus, DriftStatus, Engine, ImageStatus, LockStatus, OutputsStatus,
    PlanStatus, Reason, RetryStatus, RunStatus, SourceStatus, State, Terraform, TerraformStatus,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::jiff::{Timestamp, Unit};

use crate::drift_schedule;
use crate::model::image::ImagePlan;
use crate::model::summary::{Summary, change_counts, differences, drifted};
use crate::model::{facts, progress, status_outputs};
use crate::observed::{Answer, SourceSeen, StackSeen};
use crate::status::dependencies;

/// Maximum size of a message, in bytes. Kubernetes has the same limit for the message of a condition:
/// <https://github.com/kubernetes/apimachinery/blob/v0.34.0/pkg/apis/meta/v1/types.go#L1648>.
const MAX_MESSAGE: usize = 32 << 10;

/// Returns `status` with messages truncated to `MAX_MESSAGE`. Messages can be long, because they contain texts from other objects,
/// registries, git servers and builders.
pub fn bounded(mut status: TerraformStatus) -> TerraformStatus {
    status.message = progress::truncate(&status.message, MAX_MESSAGE);
    for condition in &mut status.conditions {
        condition.message = progress::truncate(&condition.message, MAX_MESSAGE);
    }
    status
}

/// Returns `status` with a failure of the reconcile: the operator could not read or write an object in the cluster. The reconcile is
/// retried.
pub fn with_failure(
    tf: &Terraform,
    status: TerraformStatus,
    reason: Reason,
    message: &str,
    now: Timestamp,
) -> TerraformStatus {
    let verdicts = Convergence::Retrying.verdicts(reason, message);
    let previous = tf
        .status
        .as_ref()
        .map(|status| status.conditions.as_slice());
    let generation = tf.metadata.generation;
    TerraformStatus {
        observed_generation: generation,
        state: match status.state {
            State::Destroying => State::Destroying,
            _ if tf.metadata.deletion_timestamp.is_some() => State::Destroying,
            _ => State::Failed,
        },
        message: message.to_owned(),
        conditions: conditions::update(
            status.conditions,
            previous.unwrap_or_default(),
            &verdicts,
            generation,
            now,
        ),
        ..status
    }
}

/// What the operator knows about the runner image.
#[derive(Clone, Debug, Default)]
pub struct ImageView<'a> {
    /// Tag of the image, and the inputs from which it is built.
    pub plan: Option<&'a ImagePlan>,
    /// Digest of the image in the registry.
    pub digest: Option<String>,
    /// Reason and message, if the lookup of the image in the registry or the build failed.
    pub problem: Option<(String, String)>,
}

/// Values from which a status is rendered.
#[derive(Clone)]
pub struct View<'a> {
    /// The resource.
    pub tf: &'a Terraform,
    /// History of earlier runs.
    pub history: &'a History,
    /// The run record.
    pub record: Option<&'a RunRecord>,
    /// Commit and context.
    pub source: &'a Answer<SourceSeen>,
    /// Value sources (`spec.variablesFrom`), dependencies, dependents and tests (`waitFor`, `destroyWaitFor`, `healthChecks`).
    pub stack: &'a StackSeen,
    /// The runner image.
    pub image: ImageView<'a>,
}

impl View<'_> {
    /// Returns the status that `summary` and the view give at time `now`.
    pub fn status(&self, summary: &Summary, now: Timestamp) -> TerraformStatus {
        let previous = self
            .tf
            .status
            .as_ref()
            .map(|status| status.conditions.as_slice());
        let generation = self.tf.metadata.generation;
        TerraformStatus {
            observed_generation: generation,
            state: summary.state,
            message: summary.message.clone(),
            conditions: conditions::merge(
                previous.unwrap_or_default(),
                &self.verdicts(summary),
                generation,
                now,
            ),
            source: self.commit(),
            image: self.image(),
            engine: self.engine(),
            plan: self.plan(summary),
            last_applied: self.last_applied(),
            drift: self.drift(),
            lock: self.lock(summary),
            retry: self.retry(summary),
            // The dispatcher, which starts the queued runs, sets this field later.
            queue: None,
            blocked_by: dependencies::blocked_by(self.stack),
            inventory: self.history.inventory,
            outputs: self.outputs(),
            state_address: self
                .history
                .reports
                .iter()
                .find_map(|report| report.state_address.clone()),
            run: self.run_number(),
            active_run: self.active_run(summary),
            runs: self.history.reports.iter().map(run).collect(),
        }
    }

    /// Returns the objects with the outputs of the last apply, and the values of the outputs that `spec.outputs.status` still selects.
    fn outputs(&self) -> Option<OutputsStatus> {
        let applied = self.history.applied.as_ref()?;
        let published = applied.published.clone()?;
        let selected = status_outputs::still_selected(self.tf, &applied.status_outputs);
        Some(OutputsStatus {
            secret_name: published.secret,
            config_map_name: published.config_map,
            values: selected.values,
            omitted: selected.omitted,
        })
    }

    /// Returns the last known commit. For a suspended resource, it is the commit in the previous status, because the operator does not
    /// query the repository.
    fn commit(&self) -> Option<SourceStatus> {
        let observed = self.source.value().map(|source| SourceStatus {
            revision: source.revision.clone(),
            context: Some(source.context.clone()),
        });
        let previous = self.tf.status.as_ref().filter(|_| self.tf.spec.suspend);
        observed.or_else(|| previous?.source.clone())
    }

    /// Returns the last plan, and whether it waits for approval. With `spec.mode: PlanOnly`, returns no plan without changes.
    fn plan(&self, summary: &Summary) -> Option<PlanStatus> {
        let pending = self.history.pending.as_ref();
        if let Some(planned) = self.history.last_plan(self.tf.spec.mode)
            && !planned.has_changes
        {
            return None;
        }
        let awaiting = pending.filter(|_| summary.reason == Reason::AwaitingApproval);
        let mut reports = self.history.reports.iter();
        let report = reports.find(|report| match awaiting {
            Some(plan) => report.number == plan.run,
            None => report.changes.is_some(),
        })?;
        let changes = report.changes.as_ref()?;
        let requested_id = report.asks.as_ref().map(|asks| asks.id.clone());
        let approved = self.history.approved.as_ref();
        let approved = approved.filter(|approval| approval.run == report.number);
        Some(PlanStatus {
            summary: change_counts(changes),
            id: requested_id.or_else(|| Some(approved?.plan.clone())),
            pending_approval: awaiting.is_some(),
            approved_by: approved.and_then(|approval| approval.user.clone()),
            approval_field_manager: approved.and_then(|approval| approval.manager.clone()),
            approved_at: approved.and_then(|approval| approval.at).map(stored),
            add: changes.add,
            change: changes.change,
            destroy: changes.destroy,
        })
    }

    /// Returns the state lock that the last run could not acquire.
    fn lock(&self, summary: &Summary) -> Option<LockStatus> {
        let last_report = self.history.last_report();
        let lock = last_report?.lock.as_ref().filter(|_| !summary.is_ready())?;
        Some(LockStatus {
            id: lock.id.clone(),
            who: lock.who.clone(),
            operation: lock.operation.clone(),
            since: stored(lock.at),
        })
    }

    /// Returns the last apply. If the history is lost, returns the last apply from the previous status.
    fn last_applied(&self) -> Option<AppliedStatus> {
        let History {
            applied, reports, ..
        } = self.history;
        if applied.is_none() && reports.is_empty() {
            return self.tf.status.as_ref()?.last_applied.clone();
        }
        applied.as_ref().map(|applied| AppliedStatus {
            revision: applied.revision.clone(),
            config_hash: applied.config_hash.clone(),
            time: stored(applied.at),
        })
    }

    /// Returns the highest of three run numbers: of the last run in the history; of the current run, if it is an apply or a destroy; of the
    /// run in the previous status, if the run record is missing. An active drift check or plan is left out: a drift check without drift
    /// never enters the history, so the number would decrease after it.
    fn run_number(&self) -> Option<i64> {
        let reported = self.history.reports.first().map(|report| report.number);
        let record = self.record.filter(|record| record.number > 0);
        let current = record.filter(|record| {
            let run = record.run.as_ref();
            run.is_none_or(|run| run.kind.changes())
        });
        let previous = match (self.record, self.tf.status.as_ref()) {
            (None, Some(status)) => status.run,
            _ => None,
        };
        reported
            .max(current.map(|record| record.number))
            .max(previous)
    }

    /// Returns the active run. A drift check of the applied configuration does not change the state, and does not appear in the status: it would cost
    /// two writes for each check.
    fn active_run(&self, summary: &Summary) -> Option<ActiveRun> {
        let is_shown = matches!(
            summary.state,
            State::Planning | State::Applying | State::Destroying
        );
        let record = self
            .record
            .filter(|record| is_shown && record.phase < RunPhase::Reported)?;
        let run = record.run.as_ref()?;
        Some(ActiveRun {
            number: record.number,
            kind: run.kind,
            job: run.job.clone(),
            started_at: stored(run.started_at),
        })
    }

    fn verdicts(&self, summary: &Summary) -> Vec<Verdict> {
        let convergence = match (summary.convergence, summary.state) {
            (Convergence::Converged, State::Applying | State::Destroying) => {
                Convergence::Correcting
            }
            (convergence, _) => convergence,
        };
        let mut verdicts = convergence
            .verdicts(&summary.reason, &summary.message)
            .to_vec();
        verdicts.extend([
            self.source_ready(),
            self.image_ready(),
            self.in_sync(summary),
            dependencies::dependencies_ready(self.stack),
        ]);
        verdicts
    }

    pub(crate) fn source_ready(&self) -> Verdict {
        let kind = Kind::SourceReady;
        match self.source {
            Answer::Pending if self.tf.spec.suspend => match self.commit() {
                Some(commit) => source_fetched(&commit.revision),
                None => Verdict::new(
                    kind,
                    None,
                    Reason::Suspended,
                    "the operator does not query the repository of a suspended resource",
                ),
            },
            Answer::Pending => {
                Verdict::new(kind, None, Reason::Fetching, "querying the repository")
            }
            Answer::Known(source) => source_fetched(&source.revision),
            Answer::Failed { failure, .. } => {
                Verdict::new(kind, false, &failure.reason, &failure.message)
            }
        }
    }

    /// Returns the engine of the base image, if operator flag `--engine` lists the base image; otherwise the engine of the last apply.
    fn engine(&self) -> Option<Engine> {
        let base = self.history.base.as_ref();
        let in_base_image = base.and_then(|base| base.engine.clone());
        in_base_image.or_else(|| self.history.engine.clone())
    }

    /// Returns the runner image that the operator has planned to use; if no image is planned, the image of the last run.
    fn image(&self) -> Option<ImageStatus> {
        if let Some(plan) = self.image.plan {
            return Some(ImageStatus {
                tag: plan.tag.clone(),
                digest: self.image.digest.clone(),
                base: plan.base.clone(),
            });
        }
        let run = self.record?.run.as_ref()?;
        let base = self.history.base.as_ref();
        Some(ImageStatus {
            tag: run.tag.clone(),
            digest: run
                .image
                .split_once('@')
                .filter(|_| !run.unpack)
                .map(|(_, digest)| digest.to_owned()),
            base: base.map(|base| base.resolved.clone()).unwrap_or_default(),
        })
    }

    fn image_ready(&self) -> Verdict {
        let kind = Kind::ImageReady;
        let repository = &self.tf.spec.container_registry.image_name;
        if let (None, Some((reason, message))) = (&self.image.digest, &self.image.problem) {
            return Verdict::new(kind, false, reason, message);
        }
        let run = self.record.and_then(|record| record.run.as_ref());
        if run.is_some_and(|run| run.unpack) {
            let message = "the runner image is missing; the run uses the base image";
            return Verdict::new(kind, false, Reason::ImageMissing, message);
        }
        match self.image().and_then(|image| image.digest) {
            Some(digest) => {
                Verdict::new(kind, true, Reason::Pushed, format!("{repository}@{digest}"))
            }
            None => Verdict::new(
                kind,
                None,
                Reason::Unknown,
                "the runner image is not built yet",
            ),
        }
    }

    fn in_sync(&self, summary: &Summary) -> Verdict {
        let kind = Kind::InSync;
        let matching = || {
            let late = drift_schedule::late_suffix(self.tf, self.history);
            format!("the real objects match the configuration{late}")
        };
        // If the history is lost, only the previous status can show that an apply did not complete.
        let half_applied = self.record.is_none() && facts::status_has_partial_apply(self.tf);
        match (&self.history.applied, drifted(self.history)) {
            _ if self.history.unfinished || half_applied => Verdict::new(
                kind,
                None,
                Reason::ApplyFailed,
                "an apply did not complete; its changes are unknown",
            ),
            (_, None) if let Some(planned) = self.history.last_plan(self.tf.spec.mode) => {
                let report = self.history.report(planned.run);
                let changes = report.and_then(|report| report.changes.as_ref());
                let reason = if planned.has_changes {
                    Reason::ChangesPlanned
                } else {
                    Reason::InSync
                };
                let message = match changes.filter(|_| planned.has_changes) {
                    Some(changes) => differences(changes),
                    None if planned.has_changes => "the plan has changes".to_owned(),
                    None => matching(),
                };
                Verdict::new(kind, !planned.has_changes, reason, message)
            }
            (None, _) => Verdict::new(
                kind,
                None,
                Reason::NotApplied,
                "the module is not applied yet",
            ),
            (Some(_), None) => Verdict::new(kind, true, Reason::InSync, matching()),
            (Some(_), Some(changes)) => {
                let reason = if summary.reason == Reason::NotConverging {
                    Reason::NotConverging
                } else {
                    Reason::Drifted
                };
                Verdict::new(kind, false, reason, differences(changes))
            }
        }
    }

    fn drift(&self) -> Option<DriftStatus> {
        let drift = self.history.drift.as_ref()?;
        let changes = drifted(self.history)?;
        Some(DriftStatus {
            since: stored(drift.since),
            add: changes.add,
            change: changes.change,
            destroy: changes.destroy,
            resources: changes
                .resources
                .iter()
                .map(ResourceChange::resource)
                .collect(),
        })
    }

    /// Returns the number of failures of the current run or build. Failures with earlier configurations are not counted. Returns 1 after a
    /// failure that is never retried. Returns `None` for a ready resource, also if the build for its next drift check has failed.
    fn retry(&self, summary: &Summary) -> Option<RetryStatus> {
        if summary.is_ready() {
            return None;
        }
        let run = self.record.and_then(|record| record.run.as_ref());
        let pending_image = self.image.plan.filter(|_| self.image.digest.is_none());
        let of_build = pending_image.map(|plan| (&self.history.build_failures, plan.tag.as_str()));
        let of_run = run.map(|run| (&self.history.failures, run.config_hash.as_str()));
        let failures = [of_build, of_run]
            .into_iter()
            .flatten()
            .find(|(failures, key)| failures.of.starts_with(key) && failures.at.is_some());
        let count = match failures.map(|(failures, _)| failures.count) {
            None => 0,
            Some(u32::MAX) => 1,
            Some(count) => i32::try_from(count).unwrap_or(i32::MAX),
        };
        (failures.is_some() || summary.retry_at.is_some()).then(|| RetryStatus {
            failures: count,
            next_at: summary.retry_at.map(stored),
        })
    }
}

fn source_fetched(revision: &str) -> Verdict {
    let message = format!("revision {revision}");
    Verdict::new(Kind::SourceReady, true, Reason::Fetched, message)
}

fn run(report: &RunReport) -> RunStatus {
    RunStatus {
        number: report.number,
        kind: report.kind,
        trigger: report.trigger.clone(),
        result: report.result.as_str().to_owned(),
        plan: report.changes.as_ref().map(change_counts),
        reason: report
            .failure
            .as_ref()
            .map(|failure| failure.reason.clone()),
        error: report
            .failure
            .as_ref()
            .map(|failure| failure.message.clone()),
        time: Some(stored(report.finished_at)),
        seconds: report
            .finished_at
            .duration_since(report.started_at)
            .round(Unit::Second)
            .map_or(0, |took| took.as_secs()),
        job: report.job.clone(),
    }
}

/// Returns a time as the API server stores it: in whole seconds. Otherwise the status would differ from the stored one, and each operator would
/// write it again after its start.
fn stored(at: Timestamp) -> Time {
    Time(Timestamp::from_second(at.as_second()).unwrap_or(at))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_of_a_run_equal_those_that_the_api_server_stores() {
        let time = "2026-11-26T11:13:56.123456789Z";
        let report = serde_json::json!({
            "number": 1, "kind": "apply", "result": "Done", "trigger": "", "job": "", "startedAt": time, "finishedAt": time,
        });
        let run = run(&serde_json::from_value(report).unwrap());
        let stored = serde_json::to_value(&run).unwrap();
        assert_eq!(run, serde_json::from_value(stored).unwrap());
    }

    #[test]
    fn messages_of_a_status_have_a_bound() {
        let long = format!("\u{1b}[31m{}", "ü".repeat(MAX_MESSAGE));
        let verdict = Verdict::new(Kind::Ready, false, Reason::ObjectNotReady, long.as_str());
        let status = bounded(TerraformStatus {
            message: long,
            conditions: conditions::merge(&[], &[verdict], None, Timestamp::UNIX_EPOCH),
            ..TerraformStatus::default()
        });
        for message in [&status.message, &status.conditions[0].message] {
            assert!(message.starts_with(" [31mü") && message.len() <= MAX_MESSAGE);
            assert!(message.len() > MAX_MESSAGE - 2);
        }
    }
}
