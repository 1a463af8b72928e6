//! What a run says of itself, as far as it is believed (rule 12): module code runs with the runner's token, so a
//! report may hold anything.

use alustan_api::reasons;
use alustan_api::report::{ChangeSet, Failure, MAX_CHANGES, MAX_TEXT, RunReport, StepTimes};
use alustan_api::run::{
    Claim, Lineage, MAX_SLOTS, OwnBackend, RunKind, RunPhase, RunProgress, RunRecord, RunSpec,
    StateLock,
};
use k8s_openapi::jiff::Timestamp;

use crate::absorb::open_run;

/// The protocol since which runs report in a Secret of their own.
const OWN_REPORT: u32 = 5;
/// Longest name or digest, in bytes.
const MAX_WORD: usize = 256;
/// Longest address of a state, in bytes.
const MAX_ADDRESS: usize = 2_048;
/// Longest address of a resource in a module, in bytes.
const MAX_RESOURCE: usize = 512;
/// Largest number of reasons why a plan asks. All of them stand in one condition, which takes 32 KiB.
const MAX_BECAUSE: usize = 24;
/// Longest of these reasons, in bytes.
const MAX_WHY: usize = 512;
/// Largest configuration of a backend, in bytes of JSON.
const MAX_BACKEND: usize = 64 << 10;
/// The longest that a step can have taken, in milliseconds: 400 days.
const MAX_STEP: u64 = 400 * 24 * 3_600_000;
/// Longest message of a failure, in bytes.
const MAX_MESSAGE: usize = 4 * MAX_TEXT;
/// The reason of a failure whose reason we do not know.
const UNKNOWN: &str = "Failed";
/// Actions of a plan.
const ACTIONS: [&str; 6] = ["create", "update", "replace", "delete", "forget", "import"];

/// What the report of a resource says about its run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Told {
    /// There is no report.
    #[default]
    Absent,
    /// The report has no progress, or one that cannot be read.
    Unreadable,
    /// As it was written, by anybody who may write it.
    Progress(Box<RunProgress>),
}

/// Whether the runner of `run` reports in a Secret of its own. Runners of earlier operators wrote into the record.
pub fn has_own_report(run: &RunSpec) -> bool {
    run.protocol >= OWN_REPORT
}

/// The controller's own record with what its open run says. `has_job`: whether the Job of the run exists, which is created
/// after the progress was reset.
///
/// A run with a Job whose progress is missing, unreadable or of another run may be applying.
pub fn believed(own: &RunRecord, told: &Told, has_job: bool) -> RunRecord {
    let Some(run) = open_run(own).filter(|run| has_own_report(run)) else {
        return own.clone();
    };
    let before = RunRecord {
        begun: own.begun_before,
        attempted: own.attempted_before,
        ..own.clone()
    };
    match told {
        Told::Progress(told) if is_about(told, own.number, run) => told_of(before, run, told),
        Told::Progress(told) if told.number <= own.number && !has_job => not_begun(before),
        Told::Absent if !has_job => not_begun(before),
        Told::Absent | Told::Unreadable | Told::Progress(_) => may_apply(before, run),
    }
}

fn is_about(told: &RunProgress, number: i64, run: &RunSpec) -> bool {
    told.number == number && told.trace_id == run.trace_id
}

/// The progress is not reset yet.
fn not_begun(own: RunRecord) -> RunRecord {
    RunRecord {
        phase: RunPhase::Starting,
        claimed_by: None,
        cancel: false,
        lock: None,
        ..own
    }
}

/// Nobody knows what the run does.
fn may_apply(own: RunRecord, run: &RunSpec) -> RunRecord {
    let claimed_by = Some(unknown_pod(run));
    begun(
        RunRecord {
            phase: RunPhase::Applying,
            claimed_by,
            cancel: false,
            ..own
        },
        run,
    )
}

fn told_of(own: RunRecord, run: &RunSpec, told: &RunProgress) -> RunRecord {
    let phase = told.phase.min(RunPhase::Reported);
    let began = told.began || phase == RunPhase::Applying;
    let claimed = told.claimed_by.as_ref().map(|it| claim(it, run));
    let claimed = claimed.or_else(|| (phase > RunPhase::Starting).then(|| unknown_pod(run)));
    let is_known = told.own_backend.as_ref().is_none_or(is_bounded);
    let lineage = match &told.lineage {
        Lineage::Of(lineage) => Lineage::Of(cut(lineage, MAX_WORD)),
        other => other.clone(),
    };
    let record = RunRecord {
        phase,
        claimed_by: claimed,
        cancel: own.cancel && told.cancel,
        lock: told.lock.as_ref().map(lock),
        slots_wanted: own.slots_wanted.max(told.slots_wanted.min(MAX_SLOTS)),
        lineage,
        state_address: told.state_address.as_deref().map(address),
        own_backend: if is_known {
            told.own_backend.clone()
        } else {
            own.own_backend.clone()
        },
        ..own
    };
    if began { begun(record, run) } else { record }
}

/// `record` once `run` came to [`RunPhase::Applying`].
fn begun(record: RunRecord, run: &RunSpec) -> RunRecord {
    let number = record.number;
    RunRecord {
        begun: number,
        attempted: if run.kind == RunKind::Apply {
            number
        } else {
            record.attempted
        },
        ..record
    }
}

fn unknown_pod(run: &RunSpec) -> Claim {
    Claim {
        pod_uid: String::new(),
        pod: "an unknown pod".to_owned(),
        at: run.started_at,
    }
}

fn claim(told: &Claim, run: &RunSpec) -> Claim {
    Claim {
        pod_uid: cut(&told.pod_uid, MAX_WORD),
        pod: cut(&told.pod, MAX_WORD),
        at: told.at.max(run.started_at),
    }
}

fn lock(told: &StateLock) -> StateLock {
    StateLock {
        id: cut(&told.id, MAX_WORD),
        operation: cut(&told.operation, MAX_WORD),
        who: cut(&told.who, MAX_WORD),
        at: told.at,
    }
}

fn is_bounded(backend: &OwnBackend) -> bool {
    let size = serde_json::to_vec(backend).map_or(usize::MAX, |json| json.len());
    size <= MAX_BACKEND
}

/// The progress that `record` stands for: at the start of a run, and when it is cancelled or closed.
pub fn of(record: &RunRecord) -> RunProgress {
    let run = record.run.as_ref();
    RunProgress {
        number: record.number,
        trace_id: run.map(|run| run.trace_id.clone()).unwrap_or_default(),
        phase: record.phase.min(RunPhase::Reported),
        claimed_by: record.claimed_by.clone(),
        cancel: record.cancel,
        closed: record.phase == RunPhase::Recorded,
        began: record.number > 0 && record.begun == record.number,
        lock: record.lock.clone(),
        slots_wanted: record.slots_wanted,
        lineage: record.lineage.clone(),
        state_address: record.state_address.clone(),
        own_backend: record.own_backend.clone(),
    }
}

/// The report of `run` with every text cut, every word one that we know, and its times within the run's life until `now`.
pub fn report(told: RunReport, run: &RunSpec, now: Timestamp) -> RunReport {
    let end = now.max(run.started_at);
    let started_at = told.started_at.clamp(run.started_at, end);
    RunReport {
        kind: run.kind,
        trigger: run.trigger.to_string(),
        job: run.job.clone(),
        changes: told.changes.map(changes),
        asks: told.asks.map(|mut asks| {
            asks.id = cut(&asks.id, MAX_WORD);
            asks.because.truncate(MAX_BECAUSE);
            for why in &mut asks.because {
                *why = cut(why, MAX_WHY);
            }
            asks
        }),
        lineage: told.lineage.map(|it| cut(&it, MAX_WORD)),
        lock: told.lock.as_ref().map(lock),
        failure: told.failure.map(failure),
        state_address: told.state_address.as_deref().map(address),
        moved_from: told.moved_from.as_deref().map(address),
        engine: told.engine.map(|mut engine| {
            engine.version = cut(&engine.version, MAX_WORD);
            engine
        }),
        took: StepTimes {
            init: told.took.init.map(|it| it.min(MAX_STEP)),
            plan: told.took.plan.map(|it| it.min(MAX_STEP)),
            apply: told.took.apply.map(|it| it.min(MAX_STEP)),
        },
        started_at,
        finished_at: told.finished_at.clamp(started_at, end),
        ..told
    }
}

fn changes(mut told: ChangeSet) -> ChangeSet {
    told.resources.truncate(MAX_CHANGES);
    told.resources
        .retain(|it| ACTIONS.contains(&it.action.as_str()));
    for resource in &mut told.resources {
        resource.address = cut(&resource.address, MAX_RESOURCE);
    }
    ChangeSet {
        add: told.add.max(0),
        change: told.change.max(0),
        destroy: told.destroy.max(0),
        digest: cut(&told.digest, MAX_WORD),
        shape: cut(&told.shape, MAX_WORD),
        ..told
    }
}

/// A failure with a reason that we know and a bounded message, which may name what the module has.
pub(crate) fn failure(told: Failure) -> Failure {
    let known = reasons::ALL.contains(&told.reason.as_str());
    Failure {
        reason: if known {
            told.reason
        } else {
            UNKNOWN.to_owned()
        },
        message: cut(&told.message, MAX_MESSAGE),
        class: told.class,
    }
}

fn address(told: &str) -> String {
    cut(told, MAX_ADDRESS)
}

/// At most `most` bytes of `text`.
fn cut(text: &str, most: usize) -> String {
    text.get(..text.floor_char_boundary(most))
        .unwrap_or_default()
        .to_owned()
}
