//! Property test for forged reports: for any content of the report Secret, the operator writes only objects of the same resource, does not
//! replace the active run, and bounds the size of run record and status.

use std::collections::{BTreeMap, BTreeSet};

use alustan_api::MAX_RUN_BYTES;
use alustan_api::change_set::{ChangeSet, ResourceChange};
use alustan_api::report::{
    Failure, FailureClass, PlanAsks, RunReport, RunResult, StepTimes, Undeclared, UnsavedPlace,
};
use alustan_api::run::{
    Claim, Lineage, MAX_SLOTS, Output, OwnBackend, RunKind, RunPhase, RunProgress, RunRecord,
    RunSpec, StateLock,
};
use alustan_api::{Engine, EngineName, Reason, labels, names};
use alustan_core::model::facts::open_run;
use alustan_core::model::progress::MAX_INVENTORY;
use alustan_core::observed::Seen;
use alustan_core::step::{Decision, Keep, Object, Step};
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::jiff::{SignedDuration, Timestamp};
use kube_core::ResourceExt;
use proptest::prelude::*;
use serde_json::json;

use crate::fixtures::{Edit as _, at};
use crate::world::{ReconcileFaults, Stage, World};

/// Maximum size of the status, the run record and the history after a forged report, each in bytes of JSON.
const MAX_BYTES: usize = 256 << 10;

fn text() -> BoxedStrategy<String> {
    prop_oneof![
        "[a-z/]{0,12}",
        Just("neighbour".to_owned()),
        Just("web-run".to_owned()),
        Just("ApplyFailed".to_owned()),
        Just("9.9.9-'; reboot; '".to_owned()),
        Just("\u{1F600}".repeat(50_000)),
    ]
    .boxed()
}

fn number() -> impl Strategy<Value = i64> {
    prop_oneof![Just(0), Just(1), Just(2), Just(-1), any::<i64>()]
}

/// Generates a run number: in half of the cases the number of the current run ([`OF_RECORD`]), otherwise any number.
fn run_number() -> impl Strategy<Value = i64> {
    prop_oneof![Just(OF_RECORD), number()]
}

fn time() -> BoxedStrategy<Timestamp> {
    prop_oneof![
        Just(Timestamp::MIN),
        Just(Timestamp::MAX),
        (0..100_000_i64).prop_map(at),
    ]
    .boxed()
}

fn phase() -> impl Strategy<Value = RunPhase> {
    prop::sample::select(vec![
        RunPhase::Starting,
        RunPhase::Planning,
        RunPhase::Applying,
        RunPhase::Reported,
        RunPhase::Recorded,
    ])
}

fn lock() -> BoxedStrategy<StateLock> {
    (text(), text(), text(), time())
        .prop_map(|(id, operation, who, at)| StateLock {
            id,
            operation,
            who,
            at,
        })
        .boxed()
}

fn lineage() -> BoxedStrategy<Lineage> {
    prop_oneof![
        Just(Lineage::Unknown),
        Just(Lineage::Lost),
        Just(Lineage::New),
        text().prop_map(Lineage::Of),
    ]
    .boxed()
}

fn progress() -> BoxedStrategy<RunProgress> {
    let pod = prop_oneof![Just("web-apply-1-abcde".to_owned()), text()];
    let claim = (text(), pod, time()).prop_map(|(pod_uid, pod, at)| Claim { pod_uid, pod, at });
    let own_backend = (text(), text()).prop_map(|(kind, value)| OwnBackend {
        kind,
        config: [("a".to_owned(), json!(value))].into(),
    });
    let state = (
        lineage(),
        prop::option::of(text()),
        prop::option::of(own_backend),
    );
    let run = (
        run_number(),
        any::<bool>(),
        phase(),
        prop::option::of(claim),
    );
    let flags = (any::<bool>(), any::<bool>(), any::<bool>());
    let slots = prop_oneof![Just(0), Just(5), Just(u32::MAX), any::<u32>()];
    (run, flags, prop::option::of(lock()), slots, state)
        .prop_map(
            |((number, of_run, phase, claimed_by), (cancel, closed, began), lock, slots, state)| {
                let (lineage, state_address, own_backend) = state;
                RunProgress {
                    number,
                    trace_id: if of_run { OF_RUN } else { "another" }.to_owned(),
                    phase,
                    claimed_by,
                    cancel,
                    closed,
                    began,
                    lock,
                    slots_wanted: slots,
                    lineage,
                    state_address,
                    own_backend,
                }
            },
        )
        .boxed()
}

/// Placeholder in generated progress. [`forge`] replaces it with the trace id of the current run.
const OF_RUN: &str = "of the run";
/// Placeholder in generated progress and reports. [`forge`] replaces it with the number of the current run.
const OF_RECORD: i64 = -7_777;

fn changes() -> BoxedStrategy<ChangeSet> {
    let action = prop_oneof![Just("create".to_owned()), text()];
    let resource = (text(), action).prop_map(|(address, action)| ResourceChange {
        address,
        action,
        ..ResourceChange::default()
    });
    let resources = prop::collection::vec(resource, 0..40);
    (number(), number(), number(), resources, text())
        .prop_map(|(add, change, destroy, resources, digest)| ChangeSet {
            add,
            change,
            destroy,
            resources,
            shape: digest.clone(),
            digest,
            ..ChangeSet::default()
        })
        .boxed()
}

fn report() -> BoxedStrategy<RunReport> {
    let kind = prop::sample::select(vec![
        RunKind::Plan,
        RunKind::Apply,
        RunKind::Drift,
        RunKind::Destroy,
    ]);
    let result = prop::sample::select(vec![
        RunResult::NoChanges,
        RunResult::Changes,
        RunResult::Done,
        RunResult::Failed,
        RunResult::Cancelled,
    ]);
    let class = prop::sample::select(vec![
        FailureClass::Transient,
        FailureClass::Module,
        FailureClass::User,
    ]);
    let failure = (class, text(), text()).prop_map(|(class, reason, message)| Failure {
        class,
        reason,
        message,
    });
    let id = prop_oneof![Just("0f3c9a51b2e4d870".to_owned()), text()];
    let asks = (id, prop::collection::vec(text(), 0..40))
        .prop_map(|(id, because)| PlanAsks { id, because });
    let texts = (prop::option::of(text()), prop::option::of(text()), text());
    let times = (time(), time(), any::<u64>());
    let unsaved = prop::sample::select(vec![
        UnsavedPlace::Report,
        UnsavedPlace::CacheVolume,
        UnsavedPlace::Unknown,
    ]);
    let head = (run_number(), kind, result);
    let more = (
        prop::option::of(changes()),
        prop::option::of(asks),
        prop::option::of(lock()),
        prop::option::of(failure),
        prop::option::of(unsaved),
        prop::bool::ANY,
    );
    (head, more, texts, times)
        .prop_map(|(head, more, texts, (started_at, finished_at, took))| {
            let (number, kind, result) = head;
            let (changes, asks, lock, failure, unsaved, recovered) = more;
            let (lineage, state_address, text) = texts;
            RunReport {
                number,
                kind,
                result,
                trigger: text.clone(),
                job: text.clone(),
                changes,
                asks,
                lineage,
                lock,
                failure,
                unsaved,
                recovered,
                state_address,
                moved_from: Some(text.clone()),
                engine: Some(Engine {
                    name: EngineName::Terraform,
                    version: text.clone(),
                }),
                inventory: Some(number),
                undeclared: vec![
                    Undeclared {
                        name: text.clone(),
                        similar: Some(text.clone())
                    };
                    40
                ],
                registry_hosts: Some(vec![text; 40]),
                took: StepTimes {
                    init: Some(took),
                    plan: Some(took),
                    apply: None,
                },
                started_at,
                finished_at,
            }
        })
        .boxed()
}

/// Arbitrary content of a report Secret.
#[derive(Clone, Debug)]
struct Forged {
    progress: Option<RunProgress>,
    report: Option<RunReport>,
    /// Outputs by name, each with value and sensitive flag.
    outputs: Option<BTreeMap<String, (String, bool)>>,
}

fn forged() -> BoxedStrategy<Forged> {
    let parts = (
        prop::option::of(progress()),
        prop::option::of(report()),
        prop::option::of(prop::collection::btree_map(
            text(),
            (text(), any::<bool>()),
            0..3,
        )),
    );
    parts
        .prop_map(|(progress, report, outputs)| Forged {
            progress,
            report,
            outputs,
        })
        .boxed()
}

/// Returns simulated clusters, each with its run in a different phase. One has a plan that requires approval, another a destroy.
fn worlds() -> Vec<World> {
    let at_stage = |manual: bool, stage: Stage| {
        let mut world = World::new();
        if manual {
            world.edit(|tf| tf.with("/approval/mode", "Manual"));
        }
        World::until_in(world, |world| {
            world.pods.iter().any(|pod| pod.stage == stage)
        })
    };
    let mut worlds = vec![
        World::until(|world| !world.jobs.is_empty()),
        at_stage(false, Stage::Planning),
        at_stage(false, Stage::Applying),
        at_stage(false, Stage::Reported),
        at_stage(true, Stage::Planning),
        World::applied(),
    ];
    let mut deleted = World::applied();
    deleted.delete();
    worlds.push(World::until_in(deleted, |world| {
        world.pods.iter().any(|pod| pod.stage == Stage::Planning)
    }));
    worlds
}

fn forge(world: &mut World, forged: &Forged) -> Seen {
    world.progress.clone_from(&forged.progress);
    let number = world.own_record.number;
    let run = world.own_record.run.as_ref();
    let trace = run.map(|run| run.trace_id.clone()).unwrap_or_default();
    if let Some(progress) = world
        .progress
        .as_mut()
        .filter(|progress| progress.trace_id == OF_RUN)
    {
        progress.trace_id = trace;
    }
    if let Some(progress) = world
        .progress
        .as_mut()
        .filter(|progress| progress.number == OF_RECORD)
    {
        progress.number = number;
    }
    if let Some(record) = &mut world.record {
        record.report.clone_from(&forged.report);
        if let Some(report) = record
            .report
            .as_mut()
            .filter(|report| report.number == OF_RECORD)
        {
            report.number = number;
        }
        let output = |(value, sensitive): (String, bool)| Output {
            value: json!(value),
            sensitive,
        };
        let outputs = forged.outputs.clone();
        record.outputs = outputs.map(|outputs| {
            outputs
                .into_iter()
                .map(|(name, value)| (name, output(value)))
                .collect()
        });
    }
    world.observe(0)
}

/// Maximum size of an id, a name or a digest in a validated report, in bytes.
const WORD: usize = 256;
/// Maximum size of a state address in a validated report, in bytes.
const ADDRESS: usize = 2_048;

/// Checks `merged`: the run record into which the operator has merged the forged progress.
fn check_progress(world: &World, merged: &RunRecord) {
    let own_record = &world.own_record;
    let Some(run) = open_run(own_record) else {
        assert_eq!(merged, own_record, "no run goes on");
        return;
    };
    assert!(merged.phase <= RunPhase::Reported);
    assert!(own_record.cancel || !merged.cancel, "cancelled by a report");
    assert!(merged.slots_wanted <= MAX_SLOTS);
    let reported = world.progress.as_ref();
    let is_of_run = |progress: &RunProgress| {
        progress.number == own_record.number && progress.trace_id == run.trace_id
    };
    let is_known = world.has_job_of_run() || own_record.claimed_by.is_some();
    if is_known && !reported.is_some_and(is_of_run) {
        let applying = (RunPhase::Applying, own_record.number);
        assert_eq!((merged.phase, merged.begun), applying);
    }
    let mut claims = own_record.claimed_by.iter();
    let has_claim = claims.any(|claim| !claim.pod_uid.is_empty());
    if has_claim && own_record.begun == own_record.number && merged.phase < RunPhase::Reported {
        assert_eq!(merged.begun, own_record.number, "it had begun");
    }
    check_texts(merged, run);
}

fn check_texts(merged: &RunRecord, run: &RunSpec) {
    if let Some(claim) = &merged.claimed_by {
        assert!(claim.pod_uid.len() <= WORD);
        assert!(claim.pod.starts_with(&run.job) || claim.pod == "an unknown pod");
        assert!(claim.at >= run.started_at);
    }
    if let Lineage::Of(lineage) = &merged.lineage {
        assert!(lineage.len() <= WORD);
    }
    let address = merged.state_address.as_ref();
    assert!(address.is_none_or(|address| address.len() <= ADDRESS));
    merged.lock.iter().for_each(check_lock);
    let backend = serde_json::to_vec(&merged.own_backend).unwrap();
    assert!(
        backend.len() <= 64 << 10,
        "a backend of {} bytes",
        backend.len()
    );
}

fn check_lock(lock: &StateLock) {
    let texts = [&lock.id, &lock.operation, &lock.who];
    assert!(texts.iter().all(|text| text.len() <= WORD), "{lock:?}");
}

/// Validates the forged report `forged` as the operator does, and checks the result.
fn check_report(forged: &RunReport, run: &RunSpec, now: Timestamp) {
    let report = alustan_core::model::progress::report(forged.clone(), run, now);
    assert_eq!(
        (report.kind, &report.job, &report.trigger),
        (run.kind, &run.job, &run.trigger.to_string())
    );
    report.changes.iter().for_each(check_changes);
    report.asks.iter().for_each(check_asks);
    report.lock.iter().for_each(check_lock);
    if let Some(failure) = &report.failure {
        let reason = &failure.reason;
        assert!(Reason::from_stored(reason).is_some(), "{reason}");
        assert!(failure.message.len() <= 8_000);
    }
    let places = report.state_address.iter().chain(&report.moved_from);
    assert!(places.map(String::len).all(|size| size <= ADDRESS));
    let mut lineages = report.lineage.iter();
    assert!(lineages.all(|lineage| lineage.len() <= WORD));
    assert!(
        report
            .engine
            .iter()
            .all(|engine| engine.version.len() <= WORD)
    );
    assert!(
        report
            .inventory
            .is_none_or(|count| (0..=MAX_INVENTORY).contains(&count))
    );
    assert!(report.undeclared.len() <= 20);
    let hosts = report.registry_hosts.as_deref().unwrap_or_default();
    assert!(hosts.len() <= 32 && hosts.iter().all(|host| host.len() <= 256));
    assert!(
        report
            .undeclared
            .iter()
            .all(|variable| variable.name.len() <= 128)
    );
    assert!(report.started_at >= run.started_at);
    assert!(report.finished_at >= report.started_at && report.finished_at <= now);
}

fn check_changes(changes: &ChangeSet) {
    assert!(changes.resources.len() <= 20);
    for ResourceChange {
        address, action, ..
    } in &changes.resources
    {
        assert!(address.len() <= 512 && action.len() <= "replace".len());
    }
    let counts = [changes.add, changes.change, changes.destroy];
    assert!(counts.iter().all(|count| *count >= 0), "{counts:?}");
    assert!(changes.digest.len() <= WORD && changes.shape.len() <= WORD);
}

fn check_asks(asks: &PlanAsks) {
    let mut digits = asks.id.bytes();
    assert!(asks.id.len() <= 64 && digits.all(|digit| digit.is_ascii_hexdigit()));
    assert!(asks.because.len() <= 24);
    assert!(asks.because.iter().all(|reason| reason.len() <= 512));
}

fn check(world: &World, seen: &Seen, decision: &Decision) {
    if let Some(record) = &seen.record {
        check_progress(world, &record.record);
        let run = open_run(&world.own_record);
        if let Some((report, run)) = record.report.as_ref().zip(run) {
            check_report(report, run, world.now);
        }
    }
    let start = decision.start.iter().flat_map(|start| &start.steps);
    let steps: Vec<&Step> = decision.steps.iter().chain(start).collect();
    assert!(
        steps.len() <= MAX_SLOTS as usize + 50,
        "{} steps",
        steps.len()
    );
    for step in steps {
        check_step(world, seen, step);
    }
    let status = serde_json::to_vec(&decision.status).unwrap();
    assert!(
        status.len() <= MAX_BYTES,
        "a status of {} bytes",
        status.len()
    );
}

fn check_step(world: &World, seen: &Seen, step: &Step) {
    let tf = world.tf();
    let own_record = &world.own_record;
    match step {
        Step::SwapRecord(swap) | Step::CheckRecord(swap) => {
            assert!(swap.record.number - own_record.number <= 1);
            if swap.record.number == own_record.number {
                assert_eq!(swap.record.run, own_record.run, "another run");
            }
            assert!(swap.record.attempted >= own_record.attempted_before);
            assert!(swap.record.begun >= own_record.begun_before);
            assert!(swap.record.state_made >= own_record.state_made);
            assert!(swap.record.slots_wanted <= MAX_SLOTS);
            let json = serde_json::to_vec(&swap.record).unwrap();
            assert!(json.len() <= MAX_BYTES, "a record of {} bytes", json.len());
            if let Some(history) = &swap.history {
                let previous = &seen.record.as_ref().unwrap().history;
                assert_eq!(history.base, previous.base);
                let json = serde_json::to_vec(history).unwrap();
                assert!(json.len() <= MAX_BYTES, "a memory of {} bytes", json.len());
            }
            if let Keep::Set(inputs) = &swap.inputs {
                assert_eq!(inputs.service_account, None);
                assert!(inputs.approval.approved.is_none());
            }
        }
        Step::Ensure(object) => check_object(world, object),
        Step::CreateJob(job) => check_job(world, job),
        Step::DeleteJob { name, .. } => {
            let ours = world.jobs.contains_key(name) || world.builds.contains_key(name);
            assert!(ours, "deletes Job {name}");
        }
        Step::DeleteOutputs(object) => assert!(object.name().starts_with(&tf.name_any())),
        Step::RecordRun(run) => {
            assert_eq!(run.namespace(), tf.namespace());
            let size = serde_json::to_vec(run).unwrap().len();
            assert!(size <= MAX_RUN_BYTES, "a TerraformRun of {size} bytes");
        }
        Step::DeleteRun(name) => assert!(name.starts_with(&tf.name_any())),
        Step::SwapReport(progress) => assert!(progress.slots_wanted <= MAX_SLOTS),
        Step::CleanUp { .. } | Step::RemoveFinalizer => {
            assert!(tf.metadata.deletion_timestamp.is_some(), "lets it go");
        }
        Step::AddFinalizer | Step::PushContext | Step::PruneImages => {}
        Step::CreateRecord(_)
        | Step::TakeOver(_)
        | Step::CreateBuildSecret(_)
        | Step::DeleteBuildSecret(_)
        | Step::DeleteClaim
        | Step::EmptyCache(_)
        | Step::ReleaseClaim(_) => panic!("no world here needs {:?}", step.kind()),
    }
}

/// Whether `name` is an object of resource `web`. Other resources, such as `web-2`, have objects with the same prefix.
fn is_own(name: &str) -> bool {
    const OWN: [&str; 9] = [
        "run", "report", "state", "plan", "pin", "outputs", "registry", "cache", "runner",
    ];
    let rest = name.strip_prefix("web-");
    rest.is_some_and(|rest| OWN.contains(&rest) || rest.starts_with("state-"))
}

fn check_object(world: &World, object: &Object) {
    let meta = match object {
        Object::Secret(secret) => &secret.metadata,
        Object::ConfigMap(map) => &map.metadata,
        Object::Claim(claim) => &claim.metadata,
        Object::Account(account) => &account.metadata,
        Object::Role(role) => &role.metadata,
        Object::Binding(binding) => &binding.metadata,
        Object::Budget(budget) => &budget.metadata,
        Object::Namespace(_) => return,
    };
    let tf = world.tf();
    assert_eq!(meta.namespace, tf.metadata.namespace);
    let labels = meta.labels.as_ref().unwrap();
    assert_eq!(labels[labels::NAME], tf.name_any());
    let name = meta.name.as_ref().unwrap();
    assert!(is_own(name), "{name}");
    if let Object::Role(role) = object {
        let rules = role.rules.iter().flatten();
        let names: BTreeSet<_> = rules
            .flat_map(|policy_rule| policy_rule.resource_names.iter().flatten())
            .collect();
        assert!(names.iter().all(|name| is_own(name)), "{names:?}");
    }
    if let Object::Binding(binding) = object {
        let subjects = binding.subjects.as_ref().unwrap();
        assert_eq!(subjects[0].name, names::runner("web"));
    }
}

fn check_job(world: &World, job: &Job) {
    let pod = job.spec.as_ref().unwrap().template.spec.as_ref().unwrap();
    if job.labels().contains_key(labels::IMAGE_TAG) {
        return;
    }
    let run = open_run(&world.own_record).filter(|run| run.job == job.name_any());
    let account = names::runner("web");
    assert_eq!(pod.service_account_name.as_ref(), Some(&account));
    let image = pod.containers[0].image.as_ref().unwrap();
    if let Some(run) = run {
        assert_eq!(*image, run.image);
    } else {
        let is_known = world.images.values().any(|digest| image.ends_with(digest));
        assert!(is_known, "{image}");
        let alive = world.pods.iter().filter(|pod| pod.stage.is_alive());
        assert_eq!(alive.count(), 0, "a run beside the pod of another");
    }
}

#[test]
fn forged_report_affects_only_its_resource() {
    let worlds = worlds();
    let cases = std::env::var("PROPTEST_CASES").map_or(800, |cases| cases.parse().unwrap());
    let config = ProptestConfig {
        cases,
        failure_persistence: None,
        ..ProptestConfig::default()
    };
    let hours = prop_oneof![Just(0_i64), Just(2), Just(9_000)];
    // Each element: the content of the report Secret, the hours until the operator reads it, and whether all pods have terminated before
    // the operator reads it.
    let passes = prop::collection::vec((forged(), hours, any::<bool>()), 1..5);
    proptest!(config, |(index in 0..worlds.len(), passes in passes)| {
        let mut world = worlds[index].clone();
        for (forged, later, ended) in passes {
            if ended {
                world.pods.iter_mut().for_each(|pod| pod.stage = Stage::Dead);
            }
            world.now += SignedDuration::from_hours(later);
            let seen = forge(&mut world, &forged);
            let (observation, decision) = world.decide(seen);
            check(&world, &observation.seen, &decision);
            // If a forged report says that a destroy run succeeded, the operator removes the finalizer. The operator cannot detect this
            // forgery.
            if decision.steps.iter().any(|step| matches!(step, Step::RemoveFinalizer)) {
                break;
            }
            world.execute(ReconcileFaults::default(), &observation, decision);
        }
    });
}
