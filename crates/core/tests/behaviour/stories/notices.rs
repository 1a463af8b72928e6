//! What others are told: at least once each, not again, and nothing that is long past.

use alustan_api::NotificationEvent::{
    self, ApprovalNeeded, Destroyed, Drifted, Failed, Stalled, Succeeded,
};
use alustan_api::RECONCILE_AT;
use alustan_api::report::FailureClass;
use alustan_core::notices::{Notice, due};
use rstest::rstest;
use serde_json::json;

use crate::fixtures::{Edit as _, terraform};
use crate::world::{Act, World};

impl World {
    /// A world with a resource that tells everything.
    fn telling(events: &[NotificationEvent]) -> Self {
        let place = json!([{"url": "https://events.test/", "events": events}]);
        Self::with(terraform().with("/notifications", place))
    }

    fn due(&self) -> Vec<Notice> {
        let Some(tf) = &self.tf else {
            return Vec::new();
        };
        let mut told = self.arrived.clone();
        if let Some(record) = &self.record {
            told.extend(record.history.told.clone());
        }
        due(tf, &self.status(), &self.settings, &told, self.now)
    }

    /// Everything that is due arrives.
    fn hear(&mut self) -> Vec<NotificationEvent> {
        let due = self.due();
        let arrived = due.iter().map(|notice| (notice.event, notice.id.clone()));
        self.arrived.extend(arrived);
        due.iter().map(|notice| notice.event).collect()
    }

    /// What is heard while pods do as `act` says, until the world rests.
    fn heard(&mut self, act: Act) -> Vec<NotificationEvent> {
        let mut heard = Vec::new();
        for _ in 0..60 {
            let wrote = self.tf.is_some() && self.look_once().wrote;
            let asked = std::mem::take(&mut self.memory.asked);
            let news = self.hear();
            let built = self.advance_builds(None);
            if !(wrote || asked || built || self.act(0, act) || !news.is_empty()) {
                return heard;
            }
            heard.extend(news);
        }
        panic!("it does not come to rest: {:?}", self.status())
    }
}

#[test]
fn a_success_is_told_once() {
    let mut world = World::telling(&[]);
    assert_eq!(world.heard(Act::Progress), [Succeeded]);
    world.restart();
    assert_eq!(world.heard(Act::Progress), [], "the record remembers");
    world.edit(|tf| tf.with_variable("size", 2));
    assert_eq!(world.heard(Act::Progress), [Succeeded]);
}

#[test]
fn what_did_not_arrive_before_a_crash_is_told_by_the_next() {
    let mut world = World::telling(&[]);
    world.settle();
    let first = world.due();
    world.restart().settle();
    assert_eq!(world.due(), first, "the same message, by its id, too");
    assert_eq!(first.len(), 1);
}

#[test]
fn a_failure_is_told_once_however_often_it_is_tried() {
    let mut world = World::telling(&[]);
    let fails = Act::Fail(FailureClass::Module);
    let mut heard = world.heard(fails);
    for _ in 0..4 {
        world.pass(3_600);
        heard.extend(world.heard(fails));
    }
    assert_eq!(heard, [Failed, Stalled]);
    world.edit(|tf| tf.annotated(RECONCILE_AT, "now"));
    let again = world.heard(fails);
    assert!(again.len() <= 1, "{again:?}");
    world.edit(|tf| tf.with_variable("size", 2));
    assert_eq!(
        world.heard(fails).first(),
        Some(&Failed),
        "something else fails"
    );
}

#[test]
fn each_plan_that_waits_is_told() {
    let mut world = World::telling(&[ApprovalNeeded]);
    world.edit(|tf| tf.with("/approval/mode", "Manual"));
    assert_eq!(world.heard(Act::Progress), [ApprovalNeeded]);
    assert!(world.approve());
    assert_eq!(world.heard(Act::Progress), []);
    world.edit(|tf| tf.with_variable("size", 2));
    assert_eq!(world.heard(Act::Progress), [ApprovalNeeded]);
}

#[test]
fn drift_is_told_when_it_comes_up() {
    let mut world = World::telling(&[Drifted]);
    world.edit(|tf| tf.with("/driftDetection/mode", "Report"));
    assert_eq!(world.heard(Act::Progress), []);
    world.real.drifted = true;
    for expected in [vec![Drifted], vec![]] {
        world.next_look();
        assert_eq!(world.heard(Act::Progress), expected);
    }
}

#[test]
fn a_resource_stays_for_its_last_word() {
    let mut world = World::telling(&[Destroyed]);
    world.settle();
    world.delete().settle();
    assert!(world.tf.is_some() && world.real.is_empty());
    assert_eq!(world.heard(Act::Progress), [Destroyed]);
    assert!(world.tf.is_none());
}

#[test]
fn a_last_word_that_nobody_takes_holds_nothing_up_for_long() {
    let mut world = World::telling(&[Destroyed]);
    world.settle();
    let until = world.delete().settle().unwrap();
    assert!(until.duration_since(world.now).as_secs() <= 60);
    world.pass(60).settle();
    assert!(world.tf.is_none());
}

#[rstest]
#[case::of_the_resource(false)]
#[case::of_the_operator(true)]
fn what_is_long_past_is_not_told_to_who_asks_for_it_now(#[case] operator: bool) {
    let mut world = World::applied();
    world.pass(7_200);
    if operator {
        world.settings.notified = NotificationEvent::ALL.into();
    } else {
        world.edit(|tf| tf.with("/notifications", json!([{"url": "https://events.test/"}])));
    }
    assert_eq!(world.due(), []);
    world.edit(|tf| tf.with_variable("size", 2));
    assert_eq!(world.heard(Act::Progress), [Succeeded]);
}

#[test]
fn a_message_is_a_cloud_event() {
    let mut world = World::telling(&[]);
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
