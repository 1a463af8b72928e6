//! Notifications are delivered at least once, are not repeated for the same fact, and are dropped when they are outdated.

use std::collections::BTreeSet;

use alustan_api::NotificationEvent::{
    self, ApprovalNeeded, Destroyed, Drifted, Failed, Stalled, Succeeded,
};
use alustan_api::report::FailureClass;
use alustan_api::run::{Notice, Notices};
use alustan_api::{RECONCILE_AT, Reason};
use alustan_core::model::summary::USER_REQUESTED;
use alustan_core::status::notifications::{expires_at, mark_delivered, note, restore_stored};
use k8s_openapi::jiff::SignedDuration;
use rstest::rstest;
use serde_json::{Value, json};

use crate::fixtures::{Edit as _, terraform};
use crate::world::{PodEvent, Stage, World};

impl World {
    /// Returns a simulated cluster with a resource whose notification sink subscribes to `events`.
    fn subscribed(events: &[NotificationEvent]) -> Self {
        let sinks = json!([{"url": "https://events.test/", "events": events}]);
        Self::with(terraform().with("/notifications", sinks))
    }

    fn due(&self) -> Vec<Notice> {
        self.notices.due.clone()
    }

    /// Delivers all due notifications. Returns the event of each notification.
    fn deliver(&mut self) -> Vec<NotificationEvent> {
        let due = self.due();
        for notice in &due {
            mark_delivered(&mut self.notices, notice.event, &notice.id);
        }
        due.iter().map(|notice| notice.event).collect()
    }

    /// Reconciles while the API server refuses each Job with `reason`.
    fn refused(&mut self, reason: Reason) -> &mut Self {
        self.refuses_jobs = Some(reason);
        for _ in 0..12 {
            self.reconcile();
        }
        self
    }

    /// Reconciles until nothing changes. Applies `event` to the active pods in each iteration. Returns the events of the delivered
    /// notifications.
    fn delivered(&mut self, event: PodEvent) -> Vec<NotificationEvent> {
        let mut heard = Vec::new();
        for _ in 0..60 {
            let wrote = self.tf.is_some() && self.reconcile().wrote;
            let query_started = std::mem::take(&mut self.memory.query_started);
            let delivered = self.deliver();
            let built = self.advance_builds(None);
            if !(wrote
                || query_started
                || built
                || self.advance_pod(0, event)
                || !delivered.is_empty())
            {
                return heard;
            }
            heard.extend(delivered);
        }
        panic!("it does not come to rest: {:?}", self.status())
    }
}

#[test]
fn success_is_notified_once() {
    let mut world = World::subscribed(&[]);
    assert_eq!(world.delivered(PodEvent::Progress), [Succeeded]);
    world.restart();
    assert_eq!(
        world.delivered(PodEvent::Progress),
        [],
        "the record remembers"
    );
    world.edit(|tf| tf.with_variable("size", 2));
    assert_eq!(world.delivered(PodEvent::Progress), [Succeeded]);
}

#[test]
fn undelivered_notification_is_sent_after_restart() {
    let mut world = World::subscribed(&[]);
    world.settle();
    let first = world.due();
    world.restart().settle();
    assert_eq!(world.due(), first, "the same message, by its id, too");
    assert_eq!(first.len(), 1);
}

/// An upgrade of the operator renames the reason of a failure. The operator must not notify about the same failure again.
#[test]
fn renamed_reason_causes_no_second_notification() {
    let mut world = World::subscribed(&[]);
    world.delivered(PodEvent::Fail(FailureClass::User));
    let mut tf = world.tf.clone().unwrap();
    let status = tf.status.take().unwrap();
    let [before, after] = ["StateNotOurs", Reason::StateOwnershipConflict.as_str()].map(|reason| {
        let mut status = status.clone();
        let ready = status
            .conditions
            .iter_mut()
            .find(|condition| condition.type_ == "Ready");
        ready.unwrap().reason = reason.to_owned();
        let mut notices = Notices::default();
        note(&mut notices, &tf, &status, &BTreeSet::new(), world.now);
        notices
            .due
            .into_iter()
            .map(|notice| notice.id)
            .collect::<Vec<_>>()
    });
    assert!(!before.is_empty());
    assert_eq!(after, before);
}

/// The API server truncates times in the status to seconds. A truncated time must not cause a second notification.
#[test]
fn truncated_times_in_status_cause_no_notification() {
    let mut world = World::subscribed(&[]);
    world.now += SignedDuration::from_millis(770);
    world.settle();
    assert_eq!(world.deliver(), [Succeeded]);
    world.settle();
    let read = serde_json::to_value(world.status()).unwrap();
    world.tf.as_mut().unwrap().status = serde_json::from_value(read).unwrap();
    world.restart().settle();
    assert_eq!(world.deliver(), []);
}

#[test]
fn failure_is_notified_once_across_retries() {
    let mut world = World::subscribed(&[]);
    let fails = PodEvent::Fail(FailureClass::Module);
    let mut heard = world.delivered(fails);
    for _ in 0..4 {
        world.advance_clock(3_600);
        heard.extend(world.delivered(fails));
    }
    assert_eq!(heard, [Failed, Stalled]);
    world.edit(|tf| tf.annotated(RECONCILE_AT, "now"));
    let later_events = world.delivered(fails);
    assert!(later_events.len() <= 1, "{later_events:?}");
    world.edit(|tf| tf.with_variable("size", 2));
    assert_eq!(
        world.delivered(fails).first(),
        Some(&Failed),
        "something else fails"
    );
}

#[test]
fn each_pending_plan_is_notified() {
    let mut world = World::subscribed(&[ApprovalNeeded]);
    world.edit(|tf| tf.with("/approval/mode", "Manual"));
    assert_eq!(world.delivered(PodEvent::Progress), [ApprovalNeeded]);
    assert!(world.approve());
    assert_eq!(world.delivered(PodEvent::Progress), []);
    world.edit(|tf| tf.with_variable("size", 2));
    assert_eq!(world.delivered(PodEvent::Progress), [ApprovalNeeded]);
}

#[test]
fn drift_is_notified_once() {
    let mut world = World::subscribed(&[Drifted]);
    world.edit(|tf| tf.with("/driftDetection/mode", "Report"));
    assert_eq!(world.delivered(PodEvent::Progress), []);
    world.real.drifted = true;
    for expected in [vec![Drifted], vec![]] {
        world.reconcile_after_requeue();
        assert_eq!(world.delivered(PodEvent::Progress), expected);
    }
}

#[test]
fn resource_is_released_after_its_last_notification() {
    let mut world = World::subscribed(&[Destroyed]);
    world.settle();
    world.delete().settle();
    assert!(world.tf.is_some() && world.real.is_empty());
    assert_eq!(world.delivered(PodEvent::Progress), [Destroyed]);
    assert!(world.tf.is_none());
}

#[test]
fn undelivered_last_notification_delays_release_by_a_minute() {
    let mut world = World::subscribed(&[Destroyed]);
    world.settle();
    let until = world.delete().settle().unwrap();
    assert!(until.duration_since(world.now).as_secs() <= 60);
    world.advance_clock(60).settle();
    assert!(world.tf.is_none());
}

#[rstest]
#[case::of_the_resource(false)]
#[case::of_the_operator(true)]
fn past_success_is_not_sent_to_a_new_sink(#[case] operator: bool) {
    let mut world = World::applied();
    world.advance_clock(7_200);
    if operator {
        world.operator_events = NotificationEvent::ALL.into();
    } else {
        world.edit(|tf| tf.with("/notifications", json!([{"url": "https://events.test/"}])));
    }
    world.settle();
    assert_eq!(world.due(), []);
    world.edit(|tf| tf.with_variable("size", 2));
    assert_eq!(world.delivered(PodEvent::Progress), [Succeeded]);
}

/// Makes the resource stall with reason `InvalidRule`.
fn with_invalid_rule(world: &mut World) {
    let rules = json!([{"when": "plan.", "then": "Ask"}]);
    world.edit(|tf| tf.with("/approval/rules", rules));
}

#[test]
fn past_failure_is_not_sent_to_a_new_sink() {
    let mut world = World::new();
    with_invalid_rule(&mut world);
    world.settle();
    world.advance_clock(7_200);
    world.operator_events = NotificationEvent::ALL.into();
    assert_eq!(world.delivered(PodEvent::Progress), []);
}

#[test]
fn denial_by_the_api_server_is_notified_once() {
    let mut world = World::subscribed(&[]);
    assert_eq!(world.refused(Reason::Forbidden).deliver(), [Failed]);
    assert_eq!(
        world.advance_clock(60).refused(Reason::Forbidden).deliver(),
        []
    );
    world.restart();
    assert_eq!(world.refused(Reason::Forbidden).deliver(), []);
}

#[test]
fn alternating_reasons_are_notified_once_each() {
    let mut world = World::subscribed(&[Failed]);
    let mut heard = Vec::new();
    for reason in [
        Reason::Forbidden,
        Reason::Rejected,
        Reason::Forbidden,
        Reason::NameTaken,
        Reason::Rejected,
    ] {
        heard.extend(world.refused(reason).deliver());
        world.refused(reason).restart();
    }
    assert_eq!(heard, [Failed; 3]);
}

#[test]
fn clock_skew_does_not_repeat_a_notification() {
    let mut world = World::subscribed(&[Succeeded]);
    world.advance_clock(120);
    assert_eq!(world.delivered(PodEvent::Progress), [Succeeded]);
    world.advance_clock(-120);
    for expected in [vec![Succeeded], vec![]] {
        world.edit(|tf| tf.with_variable("size", 2));
        assert_eq!(world.delivered(PodEvent::Progress), expected);
    }
}

#[test]
fn undelivered_notification_is_kept_after_later_changes() {
    let mut world = World::subscribed(&[Succeeded]);
    world.settle();
    let first = world.due();
    assert_eq!(first.len(), 1);
    world.edit(|tf| tf.with_variable("size", 2));
    world.refused(Reason::Forbidden).restart();
    assert_eq!(world.refused(Reason::Forbidden).due(), first);
    assert_eq!(world.deliver(), [Succeeded]);
    world.refused(Reason::Forbidden).restart();
    assert_eq!(world.refused(Reason::Forbidden).due(), []);
}

#[test]
fn last_eight_notifications_are_kept() {
    let reasons = &Reason::VARIANTS[..12];
    let mut world = World::subscribed(&[]);
    for reason in reasons {
        world.refused(*reason);
    }
    let reported_reasons: Vec<Value> = world
        .due()
        .iter()
        .map(|notice| notice.message["data"]["reason"].clone())
        .collect();
    let expected: Vec<&str> = reasons[4..].iter().map(|reason| reason.as_str()).collect();
    assert_eq!(reported_reasons, expected);
    world.deliver();
    world.refused(reasons[11]);
    let notices = &world.record.as_ref().unwrap().history.notices;
    assert_eq!((notices.due.len(), notices.finished[&Failed].len()), (0, 8));
}

#[test]
fn stale_record_does_not_repeat_notifications() {
    let mut world = World::subscribed(&[]);
    world.settle();
    let stored = world.record.as_ref().unwrap().history.notices.clone();
    assert_eq!(stored.due.len(), 1);
    let mut settled = stored.clone();
    mark_delivered(&mut settled, Succeeded, &stored.due[0].id);
    let mut reloaded = settled.clone();
    restore_stored(&mut reloaded, &stored);
    assert_eq!(reloaded, settled);
    let mut merged = stored.clone();
    restore_stored(&mut merged, &settled);
    assert_eq!(merged, settled, "another process delivered it");
    let mut new = Notices::default();
    restore_stored(&mut new, &stored);
    assert_eq!(new, stored);
}

#[rstest]
#[case::suspended("/suspend", Reason::Suspended, false)]
#[case::deleted_and_suspended("/suspend", Reason::Suspended, true)]
#[case::deleted_and_protected("/deletionProtection", Reason::DeletionProtected, true)]
fn suspended_or_protected_resource_is_not_notified(
    #[case] field: &str,
    #[case] reason: Reason,
    #[case] deleted: bool,
) {
    let mut world = World::subscribed(&[Failed, Stalled]);
    world.settle();
    world.edit(|tf| tf.with(field, true).with("/variables/size", 2));
    if deleted {
        world.delete();
    }
    assert_eq!(world.delivered(PodEvent::Progress), []);
    assert!(world.is_stalled() && USER_REQUESTED.contains(&reason));
    let conditions = world.status().conditions;
    let stalled = conditions
        .iter()
        .find(|condition| condition.type_ == "Stalled");
    assert_eq!(stalled.unwrap().reason, reason);
}

#[test]
fn run_without_changes_is_not_notified() {
    let mut world = World::subscribed(&[]);
    assert_eq!(world.delivered(PodEvent::Progress), [Succeeded]);
    world.commit(1).run_to(Stage::Planning);
    world.real.config = Some(world.wanted_now());
    assert_eq!(world.delivered(PodEvent::Progress), []);
    let status = world.status();
    assert_eq!(
        (status.run, &*status.runs[0].result),
        (Some(2), "NoChanges")
    );
}

#[test]
fn changed_reason_is_notified_with_its_time() {
    let mut world = World::subscribed(&[]);
    with_invalid_rule(&mut world);
    assert_eq!(world.delivered(PodEvent::Progress), [Stalled]);
    world.advance_clock(7_200);
    let tests = json!([{"apiVersion": "v1", "kind": "ConfigMap", "name": "a", "cel": "object."}]);
    world.edit(|tf| {
        tf.with("/approval/rules", json!([]))
            .with("/waitFor", tests)
    });
    world.settle();
    let [notice]: [Notice; 1] = world.due().try_into().unwrap();
    assert_eq!(notice.message["data"]["reason"], "InvalidExpression");
    assert_eq!(notice.message["time"], world.now.to_string());
    assert_eq!(
        expires_at(&notice),
        world.now + SignedDuration::from_hours(1)
    );
}

#[test]
fn notification_is_a_cloud_event() {
    let mut world = World::subscribed(&[]);
    world.settle();
    let [notice]: [Notice; 1] = world.due().try_into().unwrap();
    let message = &notice.message;
    assert_eq!(message["specversion"], "1.0");
    assert_eq!(message["type"], "io.alustan.terraform.succeeded");
    assert_eq!(message["subject"], "team/web");
    assert_eq!(
        message["source"],
        "/apis/alustan.io/v1alpha1/namespaces/team/terraforms/web"
    );
    assert_eq!(message["id"], notice.id);
    let data = &message["data"];
    assert_eq!(data["event"], "Succeeded");
    assert_eq!(
        (&data["state"], &data["ready"]),
        (&json!("Success"), &json!("True"))
    );
    assert_eq!(data["run"], 1);
    assert_eq!(
        data["plan"],
        json!({"id": null, "add": 0, "change": 1, "destroy": 0})
    );
}
