//! Events of the simulation and their frequencies.

use alustan_api::report::FailureClass;
use alustan_api::{ABANDON, PLAN_AT, RECONCILE_AT};
use proptest::prelude::*;

use crate::fixtures::Edit as _;
use crate::world::{PodEvent, World};
use alustan_core::observed::{CacheSeen, Ownership};

/// Event of the simulation, executed by [`apply_event`].
#[derive(Clone, Debug)]
pub(super) enum Event {
    Pod(u8, PodEvent),
    Builds(Option<FailureClass>),
    BuildsExpire,
    ImagesVanish,
    CacheIsLost,
    Commit(u32),
    CommitOutside,
    Size(u8),
    Drift(&'static str),
    Image(&'static str),
    Timeout(u16),
    DriftByHand,
    Cloud(Option<u32>),
    Regcred(bool),
    Git(bool),
    Registry(bool),
    Room(bool),
    Full(bool),
    DeleteJobs,
    FinalizerRemoved,
    OutputsRemoved,
    ConfigMapRemoved,
    Outputs(u8),
    Mode(&'static str),
    Rules(bool),
    Approve,
    ApproveAnother(u8),
    Discard,
    CancelRun(u8),
    Suspend(bool),
    Unsteady(bool),
    Delete,
    Abandon,
    Protect(bool),
    Orphan(bool),
    DestroyMode(&'static str),
    ReconcileAt(u8),
    PlanOnly(bool),
    PlanAt(u8),
    Restart,
    Clock(i64),
}

/// What happens after an event: no reconcile, a number of reconciles, a reconcile in which the controller crashes after a number of writes,
/// or a reconcile that observes an outdated run record.
#[derive(Clone, Copy, Debug)]
pub(super) enum After {
    Nothing,
    Reconciles(u8),
    Crashes(u8),
    ReconcilesWithStaleRecord(u8),
}

fn class() -> impl Strategy<Value = FailureClass> {
    prop_oneof![
        3 => Just(FailureClass::Module),
        2 => Just(FailureClass::Transient),
        2 => Just(FailureClass::User),
    ]
}

pub(super) fn event() -> impl Strategy<Value = Event> {
    let pod = |event: BoxedStrategy<PodEvent>| {
        (any::<u8>(), event).prop_map(|(index, event)| Event::Pod(index, event))
    };
    let drift = prop_oneof![Just("Correct"), Just("Report"), Just("Ignore")];
    let image = prop_oneof![
        Just("registry.test/team/web"),
        Just("registry.test/other/web")
    ];
    prop_oneof![
        30 => pod(Just(PodEvent::Progress).boxed()),
        12 => pod(class().prop_map(PodEvent::Fail).boxed()),
        14 => pod(Just(PodEvent::Kill).boxed()),
        8 => Just(Event::Builds(None)),
        5 => class().prop_map(|class| Event::Builds(Some(class))),
        1 => Just(Event::BuildsExpire),
        1 => Just(Event::ImagesVanish),
        1 => Just(Event::CacheIsLost),
        4 => (0..3_u32).prop_map(Event::Commit),
        1 => Just(Event::CommitOutside),
        4 => (0..3_u8).prop_map(Event::Size),
        2 => drift.prop_map(Event::Drift),
        1 => image.prop_map(Event::Image),
        1 => (1..60_u16).prop_map(Event::Timeout),
        3 => Just(Event::DriftByHand),
        2 => prop::option::weighted(0.6, 0..2_u32).prop_map(Event::Cloud),
        1 => any::<bool>().prop_map(Event::Regcred),
        1 => any::<bool>().prop_map(Event::Git),
        2 => any::<bool>().prop_map(Event::Registry),
        5 => any::<bool>().prop_map(Event::Room),
        5 => any::<bool>().prop_map(Event::Full),
        2 => Just(Event::DeleteJobs),
        1 => Just(Event::FinalizerRemoved),
        1 => Just(Event::OutputsRemoved),
        1 => Just(Event::ConfigMapRemoved),
        1 => (0..4_u8).prop_map(Event::Outputs),
        3 => prop_oneof![3 => Just("Manual"), 1 => Just("Auto")].prop_map(Event::Mode),
        1 => any::<bool>().prop_map(Event::Rules),
        6 => Just(Event::Approve),
        1 => (0..3_u8).prop_map(Event::ApproveAnother),
        4 => Just(Event::Discard),
        9 => prop_oneof![6 => Just(1), 1 => Just(0), 1 => Just(2)].prop_map(Event::CancelRun),
        3 => prop::bool::weighted(0.4).prop_map(Event::Suspend),
        2 => any::<bool>().prop_map(Event::Unsteady),
        4 => Just(Event::Delete),
        1 => Just(Event::Abandon),
        1 => any::<bool>().prop_map(Event::Protect),
        1 => any::<bool>().prop_map(Event::Orphan),
        1 => prop_oneof![Just("Auto"), Just("Manual")].prop_map(Event::DestroyMode),
        2 => (0..4_u8).prop_map(Event::ReconcileAt),
        3 => any::<bool>().prop_map(Event::PlanOnly),
        3 => (0..4_u8).prop_map(Event::PlanAt),
        1 => Just(Event::Restart),
        8 => prop_oneof![6 => 1..120_i64, 4 => 600..7_200_i64, 1 => -600..0_i64].prop_map(Event::Clock),
    ]
}

pub(super) fn after() -> impl Strategy<Value = After> {
    prop_oneof![
        4 => Just(After::Nothing),
        12 => (1..4_u8).prop_map(After::Reconciles),
        2 => (0..3_u8).prop_map(After::Crashes),
        2 => (8..14_u8).prop_map(After::Crashes),
        1 => (1..6_u8).prop_map(After::ReconcilesWithStaleRecord),
    ]
}

/// Returns one of four values of `spec.outputs`.
fn outputs(variant: u8) -> serde_json::Value {
    match variant {
        0 => serde_json::Value::Null,
        1 => serde_json::json!({ "secretName": "shared" }),
        2 => serde_json::json!({ "configMapName": "web-values" }),
        _ => serde_json::json!({ "configMapName": "web-values", "keys": { "how-much": "size" } }),
    }
}

/// Executes `event`.
pub(super) fn apply_event(world: &mut World, event: &Event) {
    match *event {
        Event::Pod(index, event) => drop(world.advance_pod(usize::from(index), event)),
        Event::Builds(fail) => drop(world.advance_builds(fail)),
        Event::BuildsExpire => world.expire_builds(),
        Event::ImagesVanish => world.lose_images(),
        Event::CacheIsLost if world.cache == CacheSeen::Bound => world.cache = CacheSeen::Lost,
        Event::Commit(context) => drop(world.commit(context)),
        Event::CommitOutside => drop(world.commit_outside()),
        Event::Size(size) => drop(world.edit(|tf| tf.with_variable("size", size))),
        Event::Drift(mode) => drop(world.edit(|tf| tf.with("/driftDetection/mode", mode))),
        Event::Image(name) => {
            world.edit(|tf| tf.with("/containerRegistry/imageName", name));
        }
        Event::Timeout(minutes) => {
            world.edit(|tf| tf.with("/timeouts/plan", format!("{minutes}m")));
        }
        Event::DriftByHand => world.real.drifted |= world.real.config.is_some(),
        Event::Cloud(value) => world.cloud = value,
        Event::Regcred(exists) => world.regcred = exists,
        Event::Git(up) => world.git_up = up,
        Event::Registry(up) => world.registry_up = up,
        Event::Room(room) => world.has_free_slot = room,
        Event::Full(full) => world.quota_exhausted = full,
        Event::DeleteJobs => {
            for name in world.jobs.keys().cloned().collect::<Vec<_>>() {
                world.delete_job(&name);
            }
        }
        Event::FinalizerRemoved if !world.is_deleted() => {
            world.edit(|mut tf| {
                tf.metadata.finalizers = None;
                tf
            });
        }
        Event::OutputsRemoved => world.outputs.secret = Ownership::Absent,
        Event::ConfigMapRemoved => world.outputs.config_map = Ownership::Absent,
        Event::Outputs(variant) => drop(world.edit(|tf| tf.with("/outputs", outputs(variant)))),
        Event::Mode(mode) => drop(world.edit(|tf| tf.with("/approval/mode", mode))),
        Event::Rules(is_set) => {
            let rule = serde_json::json!({ "when": "plan.add > 0", "then": "Ask" });
            let rules: Vec<_> = is_set.then_some(rule).into_iter().collect();
            world.edit(|tf| tf.with("/approval/rules", rules));
        }
        Event::Approve => drop(world.approve()),
        Event::ApproveAnother(id) => {
            world.edit(|tf| tf.with("/approval/plan", id.to_string()));
        }
        Event::Discard => drop(world.discard_plan()),
        Event::CancelRun(offset) => {
            // Also runs that have ended, and runs that have not started yet.
            let number = world.record.as_ref().map_or(1, |seen| seen.record.number);
            world.cancel_run(number + 1 - i64::from(offset));
        }
        Event::Suspend(suspend) => drop(world.edit(|tf| tf.with("/suspend", suspend))),
        Event::Unsteady(unsteady) => world.drifts_after_apply = unsteady,
        Event::Delete => drop(world.delete()),
        Event::Abandon if world.is_deleted() => {
            world.edit(|tf| tf.annotated(ABANDON, "true"));
        }
        Event::Protect(protect) => drop(world.set_deletion_protection(protect)),
        Event::DestroyMode(mode) => {
            world.edit(|tf| tf.with("/approval/destroy", mode));
        }
        Event::Orphan(orphan) => drop(world.set_orphan(orphan)),
        Event::CacheIsLost | Event::FinalizerRemoved | Event::Abandon => {}
        Event::ReconcileAt(value) => {
            world.edit(|tf| tf.annotated(RECONCILE_AT, &value.to_string()));
        }
        Event::PlanOnly(is_set) => {
            let mode = if is_set { "PlanOnly" } else { "Apply" };
            world.edit(|tf| tf.with("/mode", mode));
        }
        Event::PlanAt(value) => drop(world.edit(|tf| tf.annotated(PLAN_AT, &value.to_string()))),
        Event::Restart => drop(world.restart()),
        Event::Clock(seconds) => drop(world.advance_clock(seconds)),
    }
}
