//! Property test with generated sequences of events and faults: the invariants hold after each event, and the resource converges after the
//! faults have ended.

mod event;

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::io::Write as _;

use alustan_api::report::FailureClass;
use alustan_api::{Mode, PLAN_AT, RECONCILE_AT, State};
use alustan_core::model::facts::{asked, open_run};
use alustan_core::model::plan_request;
use k8s_openapi::jiff::SignedDuration;
use proptest::prelude::*;
use proptest::test_runner::{FileFailurePersistence, RngAlgorithm, TestRunner};

use crate::fixtures::{Edit as _, terraform};
use crate::world::{PodEvent, ReconcileFaults, Situation, Stage, World};
use event::{After, Event, after, apply_event, event};

fn reconcile_with(world: &mut World, faults: ReconcileFaults) {
    if world.tf.is_some() {
        world.memory.query_started = false;
        world.reconcile_with(faults);
    }
}

fn reconcile_after(world: &mut World, after: After) {
    match after {
        After::Nothing => {}
        After::Reconciles(times) => {
            (0..times).for_each(|_| reconcile_with(world, ReconcileFaults::default()));
        }
        After::Crashes(at) => reconcile_with(
            world,
            ReconcileFaults {
                crash: Some(at.into()),
                stale: None,
            },
        ),
        After::ReconcilesWithStaleRecord(age) => {
            reconcile_with(
                world,
                ReconcileFaults {
                    stale: Some(age.into()),
                    crash: None,
                },
            );
        }
    }
}

/// Ends all faults. Asserts that, within a bounded number of reconciles, the wanted configuration is applied or the deleted resource is
/// gone.
fn assert_converges(world: &mut World) {
    world.git_up = true;
    world.registry_up = true;
    world.regcred = true;
    world.cloud = world.cloud.or(Some(0));
    world.has_free_slot = true;
    world.quota_exhausted = false;
    world.drifts_after_apply = false;
    world.edit(|tf| tf.with("/suspend", false));
    world.set_deletion_protection(false);
    assert_plans(world);
    world.edit(|tf| tf.with("/mode", "Apply"));
    let mut end = world.run_until_converged();
    while !world.is_ready() && world.approve() {
        end = world.run_until_converged();
    }
    if end.stalled {
        assert!(
            world.ledger.may_be_stalled(),
            "stalled without need: {:?}",
            world.status()
        );
        world.edit(|tf| tf.annotated(RECONCILE_AT, "at last"));
        world.run_until_converged();
        while !world.is_ready() && world.approve() {
            world.run_until_converged();
        }
    }
    if world.is_deleted() {
        assert!(
            world.tf.is_none(),
            "deleted, but stays: {:?}",
            world.status()
        );
        return;
    }
    assert!(
        world.is_ready(),
        "neither ready nor stalled: {:?}",
        world.status()
    );
    assert_eq!(world.real.config.as_ref(), Some(&world.wanted_now()));
    let with_secret = world.builds.values().filter(|build| build.secret.is_some());
    assert_eq!(with_secret.count(), 0, "build Secrets are deleted");
    world.restore_images();
    assert_stays_converged(world);
}

/// Asserts that a resource with `spec.mode: PlanOnly` plans the wanted configuration and starts neither an apply nor a destroy. Its deletion
/// waits if it has applied changes.
fn assert_plans(world: &mut World) {
    if world.tf.is_none() || world.tf().spec.mode == Mode::Apply {
        return;
    }
    if world.run_until_converged().stalled && !world.is_deleted() {
        assert!(world.ledger.may_be_stalled(), "{:?}", world.status());
        world.edit(|tf| tf.annotated(RECONCILE_AT, "to plan"));
        world.run_until_converged();
    }
    if world.is_deleted() {
        return;
    }
    assert!(world.is_ready(), "not planned: {:?}", world.status());
    // An apply that started before the change of the mode, and runs that the story requested, come before the plans that are counted.
    end_runs(world);
    let (real, runs) = (world.real.clone(), world.run_number());
    // The first plan fails if the registry has lost the image. The operator then builds the image for the second plan.
    for request in ["to plan", "to plan again"] {
        world.edit(|tf| tf.annotated(PLAN_AT, request));
        end_runs(world);
    }
    assert_eq!(world.run_number(), runs + 2, "{:?}", world.status());
    assert!(world.is_ready(), "{:?}", world.status());
    assert_eq!(world.ledger.planned.as_ref(), Some(&world.wanted_now()));
    assert_eq!(world.real, real);
}

/// Advances the clock until no run is active or requested.
fn end_runs(world: &mut World) {
    for _ in 0..40 {
        let next = world.settle();
        let record = world.record.as_ref().unwrap();
        let (tf, history) = (world.tf(), &record.history);
        let is_requested =
            plan_request::requested_plan(tf, history).is_some() || asked(tf, history);
        if !is_requested && open_run(&record.record).is_none() {
            return;
        }
        world.now = next.unwrap().max(world.now);
    }
    panic!("a run does not end: {:?}", world.status());
}

/// Advances the clock by two hours without events. Asserts that only a few runs start, and that the numbers of reconciles and writes per
/// run are bounded.
fn assert_stays_converged(world: &mut World) {
    let end = world.now + SignedDuration::from_hours(2);
    // A drift check, or a correction that the drift check caused, may already be active.
    let record = &world.record.as_ref().unwrap().record;
    let open = usize::from(open_run(record).is_some());
    // If the pod of a run waits for a lost cache volume, the operator cancels the run and starts one more run.
    let waiting_runs = usize::from(open_run(record).is_some() && record.claimed_by.is_none());
    let (mut reconcile_count, mut writes, runs) = (0, 0, world.run_number());
    while world.now < end {
        world.memory.query_started = false;
        let reconciled = world.reconcile_with(ReconcileFaults::default());
        reconcile_count += 1;
        assert!(reconcile_count < 100, "a hot loop");
        writes += usize::from(reconciled.wrote);
        if !world.advance_pod(0, PodEvent::Progress) && !reconciled.wrote {
            world.now = reconciled.decision.requeue_at.unwrap_or(end).max(world.now);
        }
    }
    let runs = usize::try_from(world.run_number() - runs).unwrap() + open;
    // The 5 runs are: an overdue drift check, two drift checks that become due, a correction, and the drift check after the correction.
    assert!(runs <= 5 + waiting_runs, "{runs} runs in two hours");
    assert!(
        reconcile_count <= 3 + 8 * runs,
        "{reconcile_count} looks for {runs} runs"
    );
    assert!(
        writes <= 4 * runs,
        "{writes} looks that write for {runs} runs"
    );
}

fn run_story(world: &mut World, events: &[(Event, After)]) {
    for (event, after) in events {
        apply_event(world, event);
        reconcile_after(world, *after);
    }
    assert_converges(world);
}

/// Returns simulated clusters, each with a resource in a different phase. If all cases started with a new resource, generated events would
/// rarely reach the late phases.
fn initial_worlds() -> Vec<World> {
    let building = World::until(|world| !world.builds.is_empty());
    let starting = World::until(|world| !world.jobs.is_empty());
    let planning = World::until(|world| world.pods.iter().any(|pod| pod.stage.past_claim()));
    let mut failed = planning.clone();
    failed.advance_pod(0, PodEvent::Fail(FailureClass::Module));
    let applied = World::applied();
    let mut manual = World::new();
    manual.edit(|tf| tf.with("/approval/mode", "Manual"));
    let awaits_approval = |world: &World| world.status().state == State::AwaitingApproval;
    manual.settle();
    assert!(awaits_approval(&manual), "{:?}", manual.status());
    let applying = World::until(|world| world.pods.iter().any(|pod| pod.stage == Stage::Applying));
    vec![
        World::new(),
        building,
        starting,
        planning,
        failed,
        applied,
        manual,
        applying,
        not_converging(),
        elsewhere(),
    ]
}

/// Returns a simulated cluster with a private repository and an active build in the build namespace.
fn elsewhere() -> World {
    let private = terraform().with("/gitRepo/credentialsSecret/name", "login");
    let mut world = World::with(private);
    world.settings.build_namespace = Some("builds".to_owned());
    while world.builds.is_empty() {
        world.reconcile_with(ReconcileFaults::default());
    }
    world
}

/// Returns a simulated cluster in which corrections do not converge: the drift occurs again after each correction.
fn not_converging() -> World {
    let mut world = World::applied();
    world.drifts_after_apply = true;
    world.real.drifted = true;
    let reconciled = world.reconcile_with(ReconcileFaults::default());
    world.now = reconciled.decision.requeue_at.unwrap();
    world.settle();
    assert!(world.ledger.situations.remove(&Situation::NotConverging));
    world
}

/// Runs `PROPTEST_CASES` cases, by default 2000. proptest minimises a failing case and stores it in `proptest-regressions`.
#[test]
fn whatever_happens_rules_hold_and_world_converges() {
    let config = ProptestConfig {
        cases: std::env::var("PROPTEST_CASES").map_or(2_000, |cases| cases.parse().unwrap()),
        failure_persistence: Some(Box::new(FileFailurePersistence::Direct(
            "proptest-regressions/simulation.txt",
        ))),
        max_shrink_iters: 20_000,
        // In an unoptimised build, the default random number generator takes as long as the rest of the test. XorShift is faster.
        rng_algorithm: RngAlgorithm::XorShift,
        ..ProptestConfig::default()
    };
    let beginnings = initial_worlds();
    let stories = (
        0..beginnings.len(),
        any::<bool>(),
        prop::collection::vec((event(), after()), 1..40),
    );
    let counts: RefCell<BTreeMap<Situation, usize>> = RefCell::default();
    let cases = RefCell::new(0_usize);
    let result = TestRunner::new(config).run(&stories, |(beginning, record_first, events)| {
        let mut world = beginnings[beginning].clone();
        world.record_first = record_first;
        run_story(&mut world, &events);
        *cases.borrow_mut() += 1;
        for class in &world.ledger.situations {
            *counts.borrow_mut().entry(*class).or_default() += 1;
        }
        Ok(())
    });
    if let Err(error) = result {
        panic!("{error}");
    }
    let cases = cases.into_inner();
    let counts = counts.into_inner();
    let share =
        |class: Situation| 100 * counts.get(&class).copied().unwrap_or_default() / cases.max(1);
    let shares = Situation::ALL.map(|class| format!("{class:?} {}", share(class)));
    // Writes to standard error directly, because the test harness captures the output of a passing test.
    writeln!(
        std::io::stderr(),
        "{cases} stories; percent of them with: {}",
        shares.join(", ")
    )
    .unwrap();
    let rare: Vec<_> = Situation::ALL
        .into_iter()
        .filter(|class| share(*class) < 4)
        .collect();
    assert!(
        cases < 1_000 || rare.is_empty(),
        "too few stories have {rare:?}"
    );
}

/// The cache volume is lost before the pod of a drift check has started. The operator cancels the drift check and starts another one, which
/// finds drift. The operator corrects the drift.
#[test]
fn drift_check_with_lost_volume_is_repeated() {
    let mut world = World::applied();
    let then_reconcile_twice = |event| (event, After::Reconciles(2));
    let mut events = vec![then_reconcile_twice(Event::Clock(4_000))];
    events.extend([(); 4].map(|()| then_reconcile_twice(Event::Pod(0, PodEvent::Progress))));
    events.push(then_reconcile_twice(Event::Clock(4_000)));
    events.push((Event::CacheIsLost, After::Nothing));
    events.push((Event::DriftByHand, After::Reconciles(1)));
    run_story(&mut world, &events);
    assert!(world.is_ready() && !world.real.drifted);
}

/// A correction waits for approval, the controller restarts, and a commit arrives before the registry is queried. The resource must not
/// be Ready with the old commit.
#[test]
fn commit_during_restart_is_not_ready_before_apply() {
    let mut world = World::applied();
    let progress = |after| (Event::Pod(0, PodEvent::Progress), after);
    let events = [
        (Event::Mode("Manual"), After::Nothing),
        (Event::Clock(2_540), After::Crashes(9)),
        (Event::DriftByHand, After::Nothing),
        progress(After::Nothing),
        progress(After::Nothing),
        progress(After::Reconciles(2)),
        progress(After::Nothing),
        progress(After::Reconciles(1)),
        (Event::Commit(1), After::Nothing),
    ];
    run_story(&mut world, &events);
    assert_eq!(world.real.config.as_ref(), Some(&world.wanted_now()));
}
