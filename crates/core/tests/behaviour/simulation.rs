//! Property test with generated events: the invariants hold after each event in any order, and the world converges once the faults end.

mod event;

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::io::Write as _;

use alustan_api::report::FailureClass;
use alustan_api::{RECONCILE_AT, State};
use alustan_core::model::facts::open_run;
use k8s_openapi::jiff::SignedDuration;
use proptest::prelude::*;
use proptest::test_runner::{FileFailurePersistence, RngAlgorithm, TestRunner};

use crate::fixtures::{Edit as _, terraform};
use crate::world::{Act, Class, Look, Stage, World};
use event::{After, Event, after, event, happen};

fn look(world: &mut World, look: Look) {
    if world.tf.is_some() {
        world.memory.asked = false;
        world.look(look);
    }
}

fn react(world: &mut World, after: After) {
    match after {
        After::Nothing => {}
        After::Looks(times) => (0..times).for_each(|_| look(world, Look::default())),
        After::Dies(at) => look(
            world,
            Look {
                crash: Some(at.into()),
                stale: None,
            },
        ),
        After::LooksAtThePast(age) => {
            look(
                world,
                Look {
                    stale: Some(age.into()),
                    crash: None,
                },
            );
        }
    }
}

/// Ends all faults. The wanted configuration must then be applied, or the deleted resource be gone, within a bounded number of reconciles.
fn assert_converges(world: &mut World) {
    world.git_up = true;
    world.registry_up = true;
    world.regcred = true;
    world.cloud = world.cloud.or(Some(0));
    world.room = true;
    world.full = false;
    world.unsteady = false;
    world.edit(|tf| tf.with("/suspend", false));
    world.protect(false);
    let mut end = world.run_until_rest();
    while !world.is_ready() && world.approve() {
        end = world.run_until_rest();
    }
    if end.stalled {
        assert!(
            world.ledger.may_be_stalled(),
            "stalled without need: {:?}",
            world.status()
        );
        world.edit(|tf| tf.annotated(RECONCILE_AT, "at last"));
        world.run_until_rest();
        while !world.is_ready() && world.approve() {
            world.run_until_rest();
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
    let kept = world
        .builds
        .values()
        .filter(|build| build.build_secret.is_some());
    assert_eq!(kept.count(), 0, "what was lent is taken back");
    world.restore_images();
    assert_stays_converged(world);
}

/// Advances the clock by two hours without events. Only few runs may start, and the numbers of reconciles and writes per run are bounded.
fn assert_stays_converged(world: &mut World) {
    let end = world.now + SignedDuration::from_hours(2);
    // A drift check, or a correction that it caused, may already be active.
    let record = &world.record.as_ref().unwrap().record;
    let open = usize::from(open_run(record).is_some());
    // A run whose pod waits for a lost cache volume is cancelled and repeated: one run more.
    let waits = usize::from(open_run(record).is_some() && record.claimed_by.is_none());
    let (mut looks, mut writes, runs) = (0, 0, world.run_number());
    while world.now < end {
        world.memory.asked = false;
        let looked = world.look(Look::default());
        looks += 1;
        assert!(looks < 100, "a hot loop");
        writes += usize::from(looked.wrote);
        if !world.act(0, Act::Progress) && !looked.wrote {
            world.now = looked.decision.requeue_at.unwrap_or(end).max(world.now);
        }
    }
    let runs = usize::try_from(world.run_number() - runs).unwrap() + open;
    // One overdue drift check, two that become due, a correction, and the check after it.
    assert!(runs <= 5 + waits, "{runs} runs in two hours");
    assert!(looks <= 3 + 8 * runs, "{looks} looks for {runs} runs");
    assert!(
        writes <= 4 * runs,
        "{writes} looks that write for {runs} runs"
    );
}

fn story(world: &mut World, events: &[(Event, After)]) {
    for (event, after) in events {
        happen(world, event);
        react(world, *after);
    }
    assert_converges(world);
}

/// Returns initial worlds in different phases of a resource. From a new resource alone, generated events rarely reach the late phases.
fn beginnings() -> Vec<World> {
    let building = World::until(|world| !world.builds.is_empty());
    let starting = World::until(|world| !world.jobs.is_empty());
    let planning = World::until(|world| world.pods.iter().any(|pod| pod.stage.past_claim()));
    let mut failed = planning.clone();
    failed.act(0, Act::Fail(FailureClass::Module));
    let applied = World::applied();
    let mut manual = World::new();
    manual.edit(|tf| tf.with("/approval/mode", "Manual"));
    let waits = |world: &World| world.status().state == State::AwaitingApproval;
    manual.settle();
    assert!(waits(&manual), "{:?}", manual.status());
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
        endless(),
        elsewhere(),
    ]
}

/// Returns a world with a private repository and an active build in the build namespace.
fn elsewhere() -> World {
    let private = terraform().with("/gitRepo/credentialsSecret/name", "login");
    let mut world = World::with(private);
    world.settings.build_namespace = Some("builds".to_owned());
    while world.builds.is_empty() {
        world.look(Look::default());
    }
    world
}

/// A world in which corrections do not converge.
fn endless() -> World {
    let mut world = World::applied();
    world.unsteady = true;
    world.real.drifted = true;
    let looked = world.look(Look::default());
    world.now = looked.decision.requeue_at.unwrap();
    world.settle();
    assert!(world.ledger.classes.remove(&Class::NotConverging));
    world
}

/// Number of cases: `PROPTEST_CASES`, default 2000. A failing case is minimised and stored in `proptest-regressions`.
#[test]
fn whatever_happens_rules_hold_and_world_converges() {
    let config = ProptestConfig {
        cases: std::env::var("PROPTEST_CASES").map_or(2_000, |cases| cases.parse().unwrap()),
        failure_persistence: Some(Box::new(FileFailurePersistence::Direct(
            "proptest-regressions/simulation.txt",
        ))),
        max_shrink_iters: 20_000,
        // In an unoptimised build, the default generator takes as long as the rest of the test.
        rng_algorithm: RngAlgorithm::XorShift,
        ..ProptestConfig::default()
    };
    let beginnings = beginnings();
    let stories = (
        0..beginnings.len(),
        any::<bool>(),
        prop::collection::vec((event(), after()), 1..40),
    );
    let counts: RefCell<BTreeMap<Class, usize>> = RefCell::default();
    let cases = RefCell::new(0_usize);
    let result = TestRunner::new(config).run(&stories, |(beginning, record_first, events)| {
        let mut world = beginnings[beginning].clone();
        world.record_first = record_first;
        story(&mut world, &events);
        *cases.borrow_mut() += 1;
        for class in &world.ledger.classes {
            *counts.borrow_mut().entry(*class).or_default() += 1;
        }
        Ok(())
    });
    if let Err(error) = result {
        panic!("{error}");
    }
    let cases = cases.into_inner();
    let counts = counts.into_inner();
    let share = |class: Class| 100 * counts.get(&class).copied().unwrap_or_default() / cases.max(1);
    let shares = Class::ALL.map(|class| format!("{class:?} {}", share(class)));
    // Bypasses the test harness, which captures the output of a passing test.
    writeln!(
        std::io::stderr(),
        "{cases} stories; percent of them with: {}",
        shares.join(", ")
    )
    .unwrap();
    let rare: Vec<_> = Class::ALL
        .into_iter()
        .filter(|class| share(*class) < 4)
        .collect();
    assert!(
        cases < 1_000 || rare.is_empty(),
        "too few stories have {rare:?}"
    );
}

/// The volume is lost while a drift check that will find drift waits for its pod. The check is cancelled and repeated, and drift is
/// corrected.
#[test]
fn drift_check_with_lost_volume_is_repeated() {
    let mut world = World::applied();
    let look = |event| (event, After::Looks(2));
    let mut events = vec![look(Event::Clock(4_000))];
    events.extend([(); 4].map(|()| look(Event::Pod(0, Act::Progress))));
    events.push(look(Event::Clock(4_000)));
    events.push((Event::CacheIsLost, After::Nothing));
    events.push((Event::DriftByHand, After::Looks(1)));
    story(&mut world, &events);
    assert!(world.is_ready() && !world.real.drifted);
}

/// A correction waits for approval, the controller restarts, and a commit arrives before the registry is queried. The resource must not
/// be Ready with the old commit.
#[test]
fn commit_during_restart_is_not_ready_before_apply() {
    let mut world = World::applied();
    let progress = |after| (Event::Pod(0, Act::Progress), after);
    let events = [
        (Event::Mode("Manual"), After::Nothing),
        (Event::Clock(2_540), After::Dies(9)),
        (Event::DriftByHand, After::Nothing),
        progress(After::Nothing),
        progress(After::Nothing),
        progress(After::Looks(2)),
        progress(After::Nothing),
        progress(After::Looks(1)),
        (Event::Commit(1), After::Nothing),
    ];
    story(&mut world, &events);
    assert_eq!(world.real.config.as_ref(), Some(&world.wanted_now()));
}
