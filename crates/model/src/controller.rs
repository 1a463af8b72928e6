//! Controllers: observe the objects, possibly from outdated watch caches, and decide with the functions of the operator.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use alustan_api::run::{Notices, Outputs};
use alustan_api::{State as ResourceState, Terraform, TerraformStatus};
use alustan_core::decide::decide;
use alustan_core::decide::prepare::prepare;
use alustan_core::model::facts::open_run;
use alustan_core::model::progress;
use alustan_core::observed::{
    CacheSeen, ForeignState, InputsSeen, JobSeen, NothingLeft, ObjectVersion, OutputsSeen, OwnJob,
    Ownership, RecordSeen, ReportedProgress, Seen, SharedClaimSeen, StackSeen,
};
use alustan_core::settings::Settings;
use alustan_core::step::Step;
use k8s_openapi::jiff::Timestamp;
use parking_lot::Mutex;

use crate::objects::{Objects, Workload};
use crate::resource::{self, KEY};
use crate::scenario::Defect;
use crate::shared::{Shared, digest};
use crate::state::{Reconcile, State};
use crate::write::Write;

/// Watch caches that are outdated in a reconcile.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Stale {
    /// Whether the resource is outdated.
    pub resource: bool,
    /// Whether run record, run report and pin are outdated.
    pub secrets: bool,
    /// Whether Jobs and pods are outdated.
    pub workload: bool,
}

impl Stale {
    /// All combinations with at least one outdated watch cache.
    pub(crate) fn combinations() -> impl Iterator<Item = Self> {
        (1..8_u8).map(|bits| Self {
            resource: bits & 1 != 0,
            secrets: bits & 2 != 0,
            workload: bits & 4 != 0,
        })
    }
}

/// A decision.
pub(crate) struct Decided {
    pub(crate) reconcile: Option<Reconcile>,
    pub(crate) status: TerraformStatus,
    pub(crate) requeue_at: Option<Timestamp>,
}

/// The decisions of the operator. Each is computed once per observation.
pub(crate) struct Decisions {
    settings: Settings,
    defect: Option<Defect>,
    known: Mutex<HashMap<u64, Arc<Decided>>>,
}

impl Decisions {
    pub(crate) fn new(defect: Option<Defect>) -> Self {
        Self {
            settings: resource::settings(),
            defect,
            known: Mutex::default(),
        }
    }

    /// Returns the number of different observations.
    pub(crate) fn len(&self) -> usize {
        self.known.lock().len()
    }

    /// Returns the decision of `controller` in `state`. `None` if it cannot read an outdated cache, or has nothing to decide.
    pub(crate) fn decide(
        &self,
        state: &State,
        controller: usize,
        caches: Stale,
    ) -> Option<Arc<Decided>> {
        let mut observed = observe(state, controller, caches)?;
        if self.defect == Some(Defect::IgnoresPods) {
            observed.workload.pods.clear();
        }
        observed.resource.tf.as_ref()?;
        let key = digest(&(&observed, state.seconds));
        if let Some(known) = self.known.lock().get(&key) {
            return Some(known.clone());
        }
        let decided = Arc::new(decide_with(&self.settings, &observed, state.now()));
        self.known.lock().insert(key, decided.clone());
        Some(decided)
    }
}

/// Returns the objects that `controller` observes. `None` if one of `caches` cannot be outdated.
fn observe(state: &State, controller: usize, caches: Stale) -> Option<Objects> {
    let mut observed = state.objects.clone();
    if caches.resource {
        observed.resource = earlier(state.earlier.resource.as_ref(), controller)?;
    }
    if caches.secrets {
        observed.secrets = earlier(state.earlier.secrets.as_ref(), controller)?;
    }
    if caches.workload {
        observed.workload = earlier(state.earlier.workload.as_ref(), controller)?;
    }
    let tf = observed.resource.tf.as_ref()?;
    if tf.metadata.deletion_timestamp.is_some() && observed.secrets.record.content.is_none() {
        // The operator reads the Secrets of a deleted resource from the API server if the cache has no run record.
        observed.secrets = state.objects.secrets.clone();
        // It also checks that a resource without run record and pin is not outdated.
        let secrets = &observed.secrets;
        let has_nothing = secrets.record.content.is_none() && secrets.pin.content.is_none();
        if has_nothing && observed.resource != state.objects.resource {
            return None;
        }
    }
    if needs_current_workload(&observed) {
        observed.workload = state.objects.workload.clone();
    }
    Some(observed)
}

/// Returns the objects before the last change, unless `controller` made the change.
fn earlier<T: Clone>(earlier: Option<&(T, Option<usize>)>, controller: usize) -> Option<T> {
    let (objects, writer) = earlier?;
    (*writer != Some(controller)).then(|| objects.clone())
}

/// Whether the operator reads the Job of the current run and its pods from the API server: a pod has claimed the run and not reported, and the
/// caches have neither the Job nor a pod.
fn needs_current_workload(observed: &Objects) -> bool {
    let Some(record) = record_seen(observed) else {
        return false;
    };
    let run = open_run(&record.record);
    run.is_some_and(|run| {
        record.record.claimed_by.is_some()
            && record.report.is_none()
            && !observed.workload.jobs.contains_key(&run.job)
    })
}

fn decide_with(settings: &Settings, observed: &Objects, now: Timestamp) -> Decided {
    let stored = observed.resource.tf.as_ref().expect("the resource exists");
    let mut tf = (**stored).clone();
    tf.status = Some((*observed.resource.status).clone());
    let seen = seen(&tf, observed);
    let prepared = prepare(&tf, &seen, settings, now);
    let image = resource::image(&prepared);
    let decision = decide(prepared, &image);
    let start = decision.start.as_ref();
    let steps = decision
        .steps
        .iter()
        .chain(start.iter().flat_map(|start| &start.steps));
    let status = start.map_or(&decision.status, |start| &start.status);
    let releases = decision
        .steps
        .iter()
        .any(|step| matches!(step, Step::RemoveFinalizer));
    let mut writes: Vec<Write> = steps
        .flat_map(|step| Write::of(step, &observed.resource))
        .collect();
    let remembered = Shared::new(remembered(status));
    if !releases && remembered != observed.resource.status {
        writes.push(Write::ApplyStatus(remembered));
    }
    writes.reverse();
    Decided {
        reconcile: (!writes.is_empty()).then_some(Reconcile {
            writes,
            record_version: observed.secrets.record.version,
            report_version: observed.secrets.report.version,
            pin_version: observed.secrets.pin.version,
        }),
        status: status.clone(),
        requeue_at: decision.requeue_at,
    }
}

/// Returns the fields of `status` that users act on and that later decisions read.
fn remembered(status: &TerraformStatus) -> TerraformStatus {
    let is_over = status.state == ResourceState::Success;
    let mut conditions = status.conditions.clone();
    for condition in &mut conditions {
        condition.message.clear();
        condition.last_transition_time.0 = Timestamp::UNIX_EPOCH;
    }
    conditions.retain(|condition| is_over || condition.type_ == "InSync");
    TerraformStatus {
        state: status.state,
        conditions,
        plan: status.plan.clone(),
        last_applied: status.last_applied.clone(),
        run: status.run,
        ..TerraformStatus::default()
    }
}

fn record_seen(observed: &Objects) -> Option<RecordSeen> {
    let stored = observed.secrets.record.content.as_ref()?;
    let report = observed.secrets.report.content.as_ref();
    let reported = report.map_or(ReportedProgress::Absent, |report| {
        ReportedProgress::Progress(Box::new((*report.progress).clone()))
    });
    let run = stored.record.run.as_ref();
    let has_job = run.is_some_and(|run| observed.workload.has(&run.job));
    Some(RecordSeen {
        version: observed.secrets.record.version.to_string(),
        report_version: report.map(|_| observed.secrets.report.version.to_string()),
        key: KEY.to_vec(),
        record: progress::merge_progress(&stored.record, &reported, has_job),
        inputs: stored.inputs.as_ref().map(|inputs| (**inputs).clone()),
        report: report.and_then(|report| report.report.as_ref().map(|report| (**report).clone())),
        outputs: report
            .filter(|report| report.has_outputs)
            .map(|_| Outputs::new()),
        details: None,
        unsaved: false,
        history: (*stored.history).clone(),
    })
}

fn seen(tf: &Terraform, observed: &Objects) -> Seen {
    let record = record_seen(observed);
    let workload = &observed.workload;
    let pin = observed
        .secrets
        .pin
        .content
        .as_ref()
        .map(|pin| (**pin).clone());
    let is_deleted = tf.metadata.deletion_timestamp.is_some();
    let run = record
        .as_ref()
        .and_then(|record| record.record.run.as_ref());
    Seen {
        left_behind: None,
        is_copy: false,
        nothing_left: (is_deleted && record.is_none() && pin.is_none()).then_some(NothingLeft {
            namespace_terminating: false,
            unreadable: false,
        }),
        leading_since: resource::start(),
        namespace_uid: "uid-of-team".to_owned(),
        invalid: None,
        allowed: Arc::default(),
        accounts: BTreeMap::new(),
        conflict: None,
        inputs: Ok(InputsSeen::default()),
        stack: StackSeen::default(),
        job: run.and_then(|run| job_seen(workload, &run.job)),
        refused: None,
        jobs: own_jobs(workload),
        build_secrets: Vec::new(),
        cache: CacheSeen::Absent,
        shared_claim: SharedClaimSeen::Absent,
        shared_claims: BTreeSet::new(),
        foreign_state: ForeignState::default(),
        notices: Notices::default(),
        notified: BTreeSet::new(),
        outputs: OutputsSeen {
            secret: Ownership::Ours,
            config_map: Ownership::Absent,
        },
        pin_version: pin.is_some().then(|| ObjectVersion {
            uid: "uid-of-pin".to_owned(),
            resource_version: observed.secrets.pin.version.to_string(),
        }),
        pin,
        record,
    }
}

fn job_seen(workload: &Workload, name: &str) -> Option<JobSeen> {
    let job = workload.jobs.get(name);
    let pods_alive = workload.has_live_pod(name);
    (job.is_some() || pods_alive).then(|| JobSeen {
        uid: job.map(|job| job.uid.clone()).unwrap_or_default(),
        finished: job.is_none() || workload.is_finished(name),
        has_pod: true,
        scheduled_at: None,
        pods_alive,
        waiting: None,
        ended: None,
    })
}

fn own_jobs(workload: &Workload) -> BTreeMap<i64, OwnJob> {
    let own = |name: &str, uid: &str, finished| OwnJob {
        name: name.to_owned(),
        uid: uid.to_owned(),
        finished,
        lingers: false,
        is_beyond_limit: false,
    };
    let of_pods = workload
        .pods
        .iter()
        .map(|pod| (pod.number, own(&pod.job, &pod.job_uid, false)));
    let of_jobs = workload.jobs.iter().map(|(name, job)| {
        let is_finished = workload.is_finished(name);
        (job.number, own(name, &job.uid, is_finished))
    });
    of_pods.chain(of_jobs).collect()
}
