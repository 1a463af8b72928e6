//! From what goes on to what `kubectl get` and `kubectl describe` show.

use alustan_api::conditions::{self, Kind, Verdict};
use alustan_api::report::{ChangeSet, RunReport, RunResult};
use alustan_api::run::{History, RunRecord};
use alustan_api::{
    AppliedStatus, DriftStatus, ImageStatus, OutputsStatus, PlanStatus, RetryStatus, RunStatus,
    SourceStatus, State, Terraform, TerraformStatus,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::jiff::Timestamp;
use kube::ResourceExt;

use crate::image::ImagePlan;
use crate::objects::secrets;
use crate::seen::{Answer, SourceSeen};

/// What goes on with a resource, for people and for `kubectl wait`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Situation {
    /// In one word.
    pub state: State,
    /// `Ready`: yes, no, or on the way.
    pub ready: Option<bool>,
    /// A stable word.
    pub reason: String,
    /// What goes on, what comes next and when, what a person can do.
    pub message: String,
    /// Whether nothing more happens until a person changes something.
    pub stalled: bool,
    /// When a failure is tried again.
    pub retry_at: Option<Timestamp>,
    /// When to look again at the latest; not told.
    pub look_at: Option<Timestamp>,
}

impl Situation {
    /// Work is going on or due.
    pub fn busy(state: State, reason: &str, message: impl Into<String>) -> Self {
        Self {
            state,
            ready: None,
            reason: reason.to_owned(),
            message: message.into(),
            stalled: false,
            retry_at: None,
            look_at: None,
        }
    }

    /// Something stands against it and is tried again.
    pub fn blocked(state: State, reason: &str, message: impl Into<String>) -> Self {
        Self {
            ready: Some(false),
            ..Self::busy(state, reason, message)
        }
    }

    /// Nothing more happens until a person changes something.
    pub fn stalled(reason: &str, message: impl Into<String>) -> Self {
        Self {
            stalled: true,
            ..Self::blocked(State::Stalled, reason, message)
        }
    }

    /// Everything is as described.
    pub fn ready(state: State, reason: &str, message: impl Into<String>) -> Self {
        Self {
            ready: Some(true),
            ..Self::busy(state, reason, message)
        }
    }
}

/// The command that shows what `job` prints.
pub(crate) fn logs(tf: &Terraform, job: &str) -> String {
    format!(
        "kubectl logs -n {} job/{job}",
        tf.namespace().unwrap_or_default()
    )
}

/// The runner image, as far as it is known.
#[derive(Clone, Debug, Default)]
pub struct ImageView<'a> {
    /// What it is built from.
    pub plan: Option<&'a ImagePlan>,
    /// Its digest, once it is in the registry.
    pub digest: Option<String>,
    /// Why it cannot be had: reason and message.
    pub problem: Option<(String, String)>,
}

/// Everything that a status says.
#[derive(Clone, Debug)]
pub struct View<'a> {
    /// The resource.
    pub tf: &'a Terraform,
    /// The controller's memory.
    pub history: &'a History,
    /// The record of the current run.
    pub record: Option<&'a RunRecord>,
    /// The commit.
    pub source: &'a Answer<SourceSeen>,
    /// The runner image.
    pub image: ImageView<'a>,
}

impl View<'_> {
    /// The status for `situation` at `now`.
    pub fn status(&self, situation: &Situation, now: Timestamp) -> TerraformStatus {
        let previous = self
            .tf
            .status
            .as_ref()
            .map(|status| status.conditions.as_slice());
        let generation = self.tf.metadata.generation;
        let last_plan = self
            .history
            .reports
            .iter()
            .find_map(|report| report.changes.as_ref());
        TerraformStatus {
            observed_generation: generation,
            state: situation.state,
            message: situation.message.clone(),
            conditions: conditions::merge(
                previous.unwrap_or_default(),
                &self.verdicts(situation),
                generation,
                now,
            ),
            source: self.source.value().map(|source| SourceStatus {
                revision: source.revision.clone(),
                context: Some(source.context.clone()),
            }),
            image: self.image(),
            plan: last_plan.map(|changes| PlanStatus {
                summary: summary(changes),
                add: changes.add,
                change: changes.change,
                destroy: changes.destroy,
            }),
            last_applied: self.history.applied.as_ref().map(|applied| AppliedStatus {
                revision: applied.revision.clone(),
                config_hash: applied.config_hash.clone(),
                time: Time(applied.at),
            }),
            drift: self.drift(),
            retry: self.retry(situation),
            // The dispatcher knows it.
            queue: None,
            outputs: self.history.applied.as_ref().map(|_| OutputsStatus {
                secret_name: secrets::outputs_name(self.tf),
            }),
            state_address: self
                .history
                .reports
                .iter()
                .find_map(|report| report.state_address.clone()),
            run: self
                .history
                .reports
                .first()
                .map(|report| report.number)
                .max(self.active_run()),
            runs: self.history.reports.iter().map(run).collect(),
        }
    }

    /// The number of the run that goes on; looks for drift do not count until they find some.
    fn active_run(&self) -> Option<i64> {
        let record = self.record?;
        let run = record.run.as_ref()?;
        run.kind.changes().then_some(record.number)
    }

    fn verdicts(&self, situation: &Situation) -> Vec<Verdict> {
        let Situation {
            reason, message, ..
        } = situation;
        let busy = situation.ready.is_none()
            || (situation.ready == Some(false) && !situation.stalled)
            || matches!(situation.state, State::Applying | State::Destroying);
        vec![
            Verdict::new(Kind::Ready, situation.ready, reason, message),
            Verdict::new(
                Kind::Reconciling,
                busy,
                reason,
                if busy { message } else { "" },
            ),
            Verdict::new(
                Kind::Stalled,
                situation.stalled,
                reason,
                if situation.stalled { message } else { "" },
            ),
            self.source_ready(),
            self.image_ready(),
            self.in_sync(),
        ]
    }

    fn source_ready(&self) -> Verdict {
        let kind = Kind::SourceReady;
        match self.source {
            Answer::Pending => Verdict::new(kind, None, "Fetching", "asking the repository"),
            Answer::Known(source) => Verdict::new(
                kind,
                true,
                "Fetched",
                format!("revision {}", source.revision),
            ),
            Answer::Failed { failure, .. } => {
                Verdict::new(kind, false, &failure.reason, &failure.message)
            }
        }
    }

    /// The image of the plan; where there is none, that of the last run.
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
        match self.image().and_then(|image| image.digest) {
            Some(digest) => Verdict::new(kind, true, "Pushed", format!("{repository}@{digest}")),
            None => Verdict::new(kind, None, "Unknown", "not built yet"),
        }
    }

    fn in_sync(&self) -> Verdict {
        let kind = Kind::InSync;
        match (&self.history.applied, self.drifted()) {
            (None, _) => Verdict::new(kind, None, "NotApplied", "nothing is applied yet"),
            (Some(_), None) => {
                Verdict::new(kind, true, "InSync", "the real objects are as described")
            }
            (Some(_), Some(changes)) => Verdict::new(kind, false, "Drifted", differences(changes)),
        }
    }

    fn drifted(&self) -> Option<&ChangeSet> {
        let run = self.history.drift.as_ref()?.run;
        self.history
            .reports
            .iter()
            .find(|report| report.number == run)?
            .changes
            .as_ref()
    }

    fn drift(&self) -> Option<DriftStatus> {
        let found = self.history.drift.as_ref()?;
        let changes = self.drifted()?;
        Some(DriftStatus {
            since: Time(found.since),
            add: changes.add,
            change: changes.change,
            destroy: changes.destroy,
            resources: changes.resources.clone(),
        })
    }

    /// Failures of what was run or built last; those of something else are history. A failure
    /// that no retry helps counts as one.
    fn retry(&self, situation: &Situation) -> Option<RetryStatus> {
        let failures = &self.history.failures;
        let run = self.record.and_then(|record| record.run.as_ref());
        let present = run
            .map(|run| &run.config_hash)
            .into_iter()
            .chain(self.image.plan.map(|plan| &plan.tag))
            .any(|of| failures.of.starts_with(of) && failures.at.is_some())
            && situation.ready != Some(true);
        let count = match failures.count {
            _ if !present => 0,
            u32::MAX => 1,
            count => i32::try_from(count).unwrap_or(i32::MAX),
        };
        (present || situation.retry_at.is_some()).then(|| RetryStatus {
            failures: count,
            next_at: situation.retry_at.map(Time),
        })
    }
}

/// A change set in one word: `+2 ~1 -0`.
pub fn summary(changes: &ChangeSet) -> String {
    format!("+{} ~{} -{}", changes.add, changes.change, changes.destroy)
}

/// A change set in a line: `+0 ~1 -0: update local_file.a`.
pub fn differences(changes: &ChangeSet) -> String {
    let named: Vec<String> = changes
        .resources
        .iter()
        .take(3)
        .map(|resource| format!("{} {}", resource.action, resource.address))
        .collect();
    let more = if changes.resources.len() > 3 {
        ", …"
    } else {
        ""
    };
    format!("{}: {}{more}", summary(changes), named.join(", "))
}

fn run(report: &RunReport) -> RunStatus {
    RunStatus {
        number: report.number,
        kind: report.kind,
        trigger: report.trigger.clone(),
        result: match report.result {
            RunResult::NoChanges => "NoChanges",
            RunResult::Changes => "Changes",
            RunResult::Done => "Done",
            RunResult::Failed => "Failed",
            RunResult::Cancelled => "Cancelled",
        }
        .to_owned(),
        plan: report.changes.as_ref().map(summary),
        reason: report
            .failure
            .as_ref()
            .map(|failure| failure.reason.clone()),
        error: report
            .failure
            .as_ref()
            .map(|failure| failure.message.clone()),
        seconds: report
            .finished_at
            .duration_since(report.started_at)
            .as_secs(),
        job: report.job.clone(),
    }
}
