//! Rule 7: drift is detected, then corrected or reported. Drift alone does not change `Ready`.

use alustan_api::report::FailureClass;
use alustan_api::run::{RunKind, RunPhase};
use alustan_api::{APPLY_AT, State};
use alustan_core::queue::Class;
use rstest::rstest;

use super::changed_nothing;
use crate::fixtures::{Edit as _, terraform};
use crate::world::{PodEvent, Stage, World, condition};

impl World {
    pub(super) fn with_mode(mode: &str) -> Self {
        let mut world = Self::applied();
        world.edit(|tf| tf.with("/driftDetection/mode", mode));
        world.settle();
        world
    }

    /// Advances the clock until the next drift check starts.
    pub(super) fn start_drift_check(&mut self) -> &mut Self {
        let reconciled = self.reconcile_after_requeue();
        assert!(reconciled.started, "{:?}", self.status());
        assert_eq!(self.last_run(), (RunKind::Drift, "interval".to_owned()));
        self
    }

    /// Reconciles until nothing changes. Asserts that `Ready` is True after each reconcile.
    fn settle_ready(&mut self) -> &mut Self {
        for _ in 0..30 {
            let reconciled = self.reconcile();
            assert!(self.is_ready(), "{:?}", self.status());
            if !self.advance_pod(0, PodEvent::Progress) && !reconciled.wrote {
                return self;
            }
        }
        panic!("it does not come to rest: {:?}", self.status())
    }
}

#[test]
fn drift_check_without_drift_leaves_status_unchanged() {
    let mut world = World::applied();
    let before = serde_json::to_string(&world.status()).unwrap();
    for _ in 0..3 {
        world.start_drift_check();
        assert_eq!(
            serde_json::to_string(&world.status()).unwrap(),
            before,
            "while it goes on"
        );
        world.settle_ready();
        assert_eq!(serde_json::to_string(&world.status()).unwrap(), before);
    }
    assert_eq!(world.run_number(), 4);
}

/// The first drift check after an apply is delayed by 0.5 to 1.5 intervals, because drift is unlikely right after an apply. The delay
/// differs between resources.
#[test]
fn first_drift_check_is_half_to_one_and_a_half_intervals_later() {
    let delays: Vec<_> = (0..20)
        .map(|uid| {
            let mut tf = terraform();
            tf.metadata.uid = Some(format!("uid-{uid}"));
            let mut world = World::with(tf);
            let due = world.settle().unwrap();
            due.duration_since(world.now).as_mins()
        })
        .collect();
    let (first, last) = (delays.iter().min().unwrap(), delays.iter().max().unwrap());
    assert!(
        (30..40).contains(first) && (80..=90).contains(last),
        "{delays:?}"
    );
}

#[test]
fn drift_checks_are_one_interval_apart() {
    let mut world = World::applied();
    world.start_drift_check().settle_ready();
    let first = world.now;
    world.start_drift_check();
    assert_eq!(world.now.duration_since(first).as_secs(), 3_600);
}

#[test]
fn drift_check_times_differ_between_resources() {
    let moments: Vec<_> = ["a", "b", "c", "d"]
        .map(|name| {
            let mut world = World::with(crate::fixtures::terraform().named(name));
            world.settle();
            world.reconcile().decision.requeue_at.unwrap()
        })
        .into();
    let distinct: std::collections::BTreeSet<_> = moments.iter().collect();
    assert_eq!(distinct.len(), 4);
}

#[test]
fn drift_is_corrected_while_ready_stays_true() {
    let mut world = World::applied();
    world.real.drifted = true;
    world.start_drift_check();
    let mut states = Vec::new();
    for _ in 0..12 {
        world.reconcile();
        assert!(world.is_ready(), "{:?}", world.status());
        states.push(world.status().state);
        world.advance_pod(0, PodEvent::Progress);
    }
    states.dedup();
    assert_eq!(
        states,
        [
            State::Success,
            State::Drifted,
            State::Planning,
            State::Applying,
            State::Success
        ]
    );
    let kinds: Vec<_> = world.ledger.kinds.iter().map(|(kind, _)| *kind).collect();
    let correction = [RunKind::Drift, RunKind::Apply, RunKind::Drift];
    assert_eq!(kinds[1..], correction, "and a look whether it lasts");
    assert!(!world.real.drifted);
    assert!(world.status().drift.is_none());
}

#[test]
fn queued_correction_leaves_ready_true() {
    let mut world = World::applied();
    world.real.drifted = true;
    world.start_drift_check();
    world.has_free_slot = false;
    world.settle_ready();
    assert_eq!(world.status().state, State::Drifted);
    assert_eq!(condition(&world.status(), "InSync"), "False");
}

#[test]
fn report_mode_reports_drift_without_correction() {
    let mut world = World::with_mode("Report");
    world.real.drifted = true;
    world.start_drift_check().settle_ready();
    let status = world.status();
    assert_eq!(
        (status.state, world.reason().as_str()),
        (State::Drifted, "Drifted")
    );
    assert!(
        status.message.contains("+0 ~1 -0: update null_resource.a"),
        "{}",
        status.message
    );
    let drift = status.drift.unwrap();
    let since = drift.since;
    assert!(world.real.drifted, "nothing is changed");
    world.start_drift_check().settle_ready();
    assert_eq!(world.status().drift.unwrap().since, since);
    world.real.drifted = false;
    world.start_drift_check().settle_ready();
    assert_eq!(world.status().state, State::Success);
}

#[test]
fn persistent_drift_is_one_entry_in_status_runs() {
    let mut world = World::with_mode("Report");
    world.real.drifted = true;
    for _ in 0..12 {
        world.start_drift_check().settle_ready();
    }
    let kinds: Vec<_> = world.status().runs.iter().map(|run| run.kind).collect();
    assert_eq!(kinds, [RunKind::Drift, RunKind::Apply]);
}

#[test]
fn ignore_mode_starts_no_drift_check() {
    let mut world = World::with_mode("Ignore");
    world.real.drifted = true;
    assert_eq!(world.reconcile().decision.requeue_at, None);
    world.advance_clock(100_000);
    assert!(changed_nothing(&world.reconcile()));
}

#[test]
fn failed_drift_check_is_not_retried_in_ignore_mode() {
    let mut world = World::applied();
    world.start_drift_check();
    world.run_to(Stage::Planning);
    world.advance_pod(0, PodEvent::Fail(FailureClass::Module));
    world.reconcile();
    assert_eq!(world.status().state, State::Failed);
    world.edit(|tf| tf.with("/driftDetection/mode", "Ignore"));
    world.advance_clock(100_000).settle();
    assert!(world.is_ready());
    assert_eq!(world.run_number(), 2);
}

#[test]
fn drift_found_by_retried_check_waits_for_next_interval() {
    let mut world = World::with_mode("Report");
    world.real.drifted = true;
    world.start_drift_check().run_to(Stage::Planning);
    world.advance_pod(0, PodEvent::Fail(FailureClass::Transient));
    world.settle();
    world.reconcile_after_requeue();
    world.settle();
    assert_eq!((world.run_number(), world.is_ready()), (3, true));
    world.advance_clock(60).settle();
    assert_eq!(world.run_number(), 3, "no hot loop");
}

#[test]
fn changed_spec_during_drift_check_is_not_ready() {
    let mut world = World::applied();
    world.start_drift_check().run_to(Stage::Planning);
    world.edit(|tf| tf.with_variable("size", 1));
    world.reconcile();
    assert!(!world.is_ready(), "{:?}", world.status());
    world.settle();
    assert!(world.is_ready());
    assert_eq!(world.real.config, Some(world.wanted_now()));
}

#[test]
fn failed_correction_is_not_ready() {
    let mut world = World::applied();
    world.real.drifted = true;
    world.start_drift_check().run_to(Stage::Applying);
    world.advance_pod(0, PodEvent::Fail(FailureClass::Module));
    world.reconcile();
    assert_eq!(
        (world.status().state, world.is_ready()),
        (State::Failed, false)
    );
    world.run_until_converged();
    assert!(world.is_ready() && !world.real.drifted);
}

#[test]
fn restart_during_drift_check_leaves_status_unchanged() {
    let mut world = World::applied();
    world.start_drift_check().run_to(Stage::Planning);
    let before = world.status();
    world.restart();
    world.reconcile();
    assert_eq!(world.status(), before);
    assert_eq!(
        world.record.as_ref().unwrap().record.phase,
        RunPhase::Planning
    );
}

#[test]
fn recurring_diff_is_corrected_twice_then_reported() {
    let mut world = World::applied();
    world.drifts_after_apply = true;
    world.real.drifted = true;
    world.start_drift_check().settle_ready();
    let runs = world.run_number();
    assert_eq!(world.reason(), "NotConverging");
    assert_eq!(world.status().state, State::Drifted);
    assert!(
        world
            .status()
            .message
            .contains("2 consecutive corrections were reverted")
    );
    assert!(world.status().message.contains("update null_resource.a"));
    let applied = world.status().last_applied.unwrap().time;
    let since = world.status().drift.unwrap().since;
    let condition = world.status().conditions;
    let in_sync = condition
        .iter()
        .find(|condition| condition.type_ == "InSync")
        .unwrap();
    assert_eq!(
        (in_sync.status.as_str(), in_sync.reason.as_str()),
        ("False", "NotConverging")
    );
    let kinds: Vec<_> = world.ledger.kinds.iter().map(|(kind, _)| *kind).collect();
    let (drift, apply) = (RunKind::Drift, RunKind::Apply);
    assert_eq!(kinds, [apply, drift, apply, drift, apply, drift]);

    // Drift checks continue, but no correction starts.
    for _ in 0..3 {
        world.start_drift_check().settle_ready();
    }
    assert_eq!(world.run_number(), runs + 3);
    assert_eq!(
        world.ledger.kinds[6..]
            .iter()
            .filter(|(kind, _)| *kind == apply)
            .count(),
        0
    );
    assert_eq!(world.status().last_applied.unwrap().time, applied);
    assert_eq!(world.status().drift.unwrap().since, since);
}

#[test]
fn corrections_resume_after_a_commit() {
    let mut world = World::applied();
    world.drifts_after_apply = true;
    world.real.drifted = true;
    world.start_drift_check().settle_ready();
    assert_eq!(world.reason(), "NotConverging");
    world.drifts_after_apply = false;
    world.commit(1).settle();
    assert_eq!(world.reason(), "Applied");
    world.real.drifted = true;
    world.start_drift_check().settle_ready();
    assert!(!world.real.drifted);
}

#[test]
fn later_drift_does_not_count_as_not_converging() {
    let mut world = World::applied();
    for _ in 0..4 {
        world.real.drifted = true;
        world.start_drift_check().settle_ready();
        assert!(!world.real.drifted);
        assert_eq!(world.reason(), "Applied");
    }
}

#[test]
fn failed_run_is_retried_as_a_run_of_the_same_kind() {
    let mut world = World::applied();
    world.real.drifted = true;
    world.start_drift_check();
    world.run_to(Stage::Reported);
    world.reconcile();
    world.advance_pod(0, PodEvent::Progress);
    world.run_to(Stage::Applying);
    world.advance_pod(0, PodEvent::Fail(FailureClass::Transient));
    world.run_until_converged();
    let kinds: Vec<_> = world.ledger.kinds.iter().map(|(kind, _)| *kind).collect();
    assert_eq!(
        kinds[1..4],
        [RunKind::Drift, RunKind::Apply, RunKind::Apply]
    );

    let mut world = World::applied();
    world.start_drift_check();
    world.advance_pod(0, PodEvent::Progress);
    world.advance_pod(0, PodEvent::Fail(FailureClass::Transient));
    world.run_until_converged();
    let kinds: Vec<_> = world.ledger.kinds.iter().map(|(kind, _)| *kind).collect();
    assert_eq!(kinds, [RunKind::Apply, RunKind::Drift, RunKind::Drift]);
}

#[rstest]
#[case::correct_mode("Correct", false, RunKind::Apply)]
#[case::report_mode("Report", false, RunKind::Drift)]
#[case::ignore_mode("Ignore", false, RunKind::Drift)]
#[case::report_mode_with_apply_at("Report", true, RunKind::Apply)]
fn requested_run_corrects_drift_by_mode_or_annotation(
    #[case] mode: &str,
    #[case] applies: bool,
    #[case] wanted: RunKind,
) {
    let mut world = World::with_mode(mode);
    if applies {
        let now = world.now.to_string();
        world.edit(|tf| tf.annotated(APPLY_AT, &now));
    }
    world.real.drifted = true;
    world.request_run().settle();
    assert_eq!(world.last_run(), (wanted, "requested".to_owned()));
}

#[test]
fn requested_run_applies_changed_spec_in_report_mode() {
    let mut world = World::with_mode("Report");
    world.edit(|tf| tf.with_variable("size", 1));
    world.fail_at(Stage::Planning, FailureClass::User);
    world.request_run().settle();
    assert_eq!(world.last_run().0, RunKind::Apply);
}

#[test]
fn requested_drift_check_is_queued_as_a_plan() {
    let mut world = World::with_mode("Report");
    world.has_free_slot = false;
    let due = world.reconcile_after_requeue().decision.start.unwrap();
    assert_eq!(due.class, Class::Drift);
    let requested = world.request_run().reconcile().decision.start.unwrap();
    assert_eq!(requested.class, Class::Plan);
}

/// After an outage, the checks of all resources are spread over the interval instead of due at once.
#[test]
fn check_missed_during_an_outage_is_made_at_the_next_regular_time() {
    let mut world = World::applied();
    world.start_drift_check().settle_ready();
    let checked = world.now;
    world.advance_clock(10 * 3_600 - 1).restart().settle();
    assert_eq!(world.run_number(), 2);
    world.start_drift_check().settle_ready();
    assert_eq!(world.now.duration_since(checked).as_hours(), 10);
    // A check that is overdue by less than an interval is not skipped.
    world.advance_clock(2 * 3_600 - 60).restart().settle();
    assert_eq!(world.run_number(), 4);
}

#[test]
fn status_says_that_the_last_two_checks_were_late() {
    let message = |world: &World| {
        let conditions = world.status().conditions;
        let in_sync = conditions
            .iter()
            .find(|condition| condition.type_ == "InSync");
        in_sync.unwrap().message.clone()
    };
    let mut world = World::applied();
    world.start_drift_check().settle_ready();
    let on_time = message(&world);
    let mut check = |delay| {
        world.has_free_slot = false;
        let queued = world.reconcile_after_requeue();
        let check = queued.decision.start.and_then(|start| start.check);
        assert_eq!(check.expect("a drift check").at, world.now);
        world.advance_clock(delay).has_free_slot = true;
        world.settle_ready();
        message(&world)
    };
    assert_eq!(check(2_000), on_time, "the first late check");
    let late = check(2_000);
    assert!(late.starts_with(&on_time), "{late}");
    assert!(
        late.contains(
            "the last 2 drift checks started more than 1.5 times spec.driftDetection.interval after"
        ),
        "{late}"
    );
    assert_eq!(check(7_000), late, "no further write");
    assert_eq!(check(0), on_time);
}

#[rstest]
#[case::edit(|world: &mut World| { world.edit(|tf| tf.with_variable("size", 1)); })]
#[case::commit(|world: &mut World| { world.commit(1); })]
fn queued_apply_replaces_the_queued_drift_check(#[case] change: fn(&mut World)) {
    let mut world = World::applied();
    world.has_free_slot = false;
    let queued = world.reconcile_after_requeue();
    assert_eq!(queued.decision.start.unwrap().class, Class::Drift);
    change(&mut world);
    world.settle();
    let start = world.reconcile().decision.start.expect("an apply");
    assert_eq!((start.class, start.check), (Class::Change, None));
    world.has_free_slot = true;
    world.settle();
    assert_eq!(
        world.ledger.kinds.last().map(|(kind, _)| *kind),
        Some(RunKind::Apply)
    );
    assert_eq!(world.run_number(), 2, "the apply compared the real objects");
    let jobs: Vec<_> = world.jobs.keys().collect();
    assert_eq!(jobs, ["web-apply-1", "web-apply-2"]);
}
