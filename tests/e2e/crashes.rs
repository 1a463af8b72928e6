//! The operator dies right before and right after each of its steps, in each story of a
//! resource. Whoever comes next finishes the story, and nothing is made or destroyed twice.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};

use alustan_core::step::StepKind;
use alustan_tests::{Counter, Operators, Scene, scene_alone};
use futures::future::join_all;
use kube::api::DeleteParams;
use serde_json::json;

/// How many namespaces are gone through side by side.
const LANES: usize = 4;
/// The one resource of a namespace at a time.
const NAME: &str = "web";

/// What happens to a resource.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Story {
    /// It is made, of a module that others have, too.
    Create,
    /// It is made, of a module whose image is built first.
    Build,
    /// What it is given changes, its outputs go elsewhere.
    Change,
    /// The same after its volume was lost.
    Replace,
    /// It is deleted.
    Destroy,
    /// It is deleted while its first run plans.
    Cancel,
}

/// In which stories a step occurs; how the one that is meant begins, if there are several.
fn occurrences(kind: StepKind) -> &'static [(Story, &'static str)] {
    match kind {
        StepKind::AddFinalizer | StepKind::CreateRecord => &[(Story::Create, "")],
        StepKind::SwapRecord => &[
            (Story::Create, "Starting"),
            (Story::Create, "Recorded"),
            (Story::Change, "Recorded"),
            (Story::Destroy, "Starting"),
            (Story::Destroy, "Recorded"),
            (Story::Cancel, "Planning"),
        ],
        StepKind::Ensure => &[
            (Story::Create, "ServiceAccount web-runner"),
            (Story::Create, "Secret web-pin"),
            (Story::Create, "Secret web-outputs"),
            (Story::Change, "Secret elsewhere"),
            (Story::Replace, "PersistentVolumeClaim web-cache"),
            (Story::Destroy, "Role web-runner"),
        ],
        StepKind::PushContext => &[(Story::Build, "")],
        StepKind::CreateJob => &[
            (Story::Build, ""),
            (Story::Create, "web-apply-1"),
            (Story::Destroy, "web-destroy"),
        ],
        StepKind::DeleteJob => &[(Story::Cancel, "web-apply-1")],
        StepKind::DeleteOutputs => &[(Story::Change, "web-outputs")],
        StepKind::DeleteClaim => &[(Story::Replace, "")],
        StepKind::CleanUp | StepKind::RemoveFinalizer => &[(Story::Destroy, "")],
    }
}

/// A step that the operator does not survive, and where it comes to it.
#[derive(Clone, Debug)]
struct Death {
    story: Story,
    at: String,
}

/// All of them.
fn deaths() -> Vec<Death> {
    let mut all = Vec::new();
    for kind in StepKind::ALL {
        for (story, only) in occurrences(*kind) {
            for moment in ["Before", "After"] {
                let at = format!("{moment}:{kind:?}:{only}");
                all.push(Death { story: *story, at });
            }
        }
    }
    all
}

/// What one resource goes through, from its beginning to its end: at most one death in each part.
#[derive(Clone, Debug, Default)]
struct Life {
    begin: Option<Death>,
    change: Option<Death>,
    end: Option<Death>,
}

/// All deaths in as few lives as they fit into; those with an image to build come together.
fn lives() -> Vec<Life> {
    let of = |stories: &[Story]| -> Vec<Death> {
        let mut found = Vec::new();
        for story in stories {
            found.extend(deaths().into_iter().filter(|death| death.story == *story));
        }
        found
    };
    let begin = of(&[Story::Build, Story::Create]);
    let change = of(&[Story::Replace, Story::Change]);
    let end = of(&[Story::Destroy]);
    let longest = begin.len().max(change.len()).max(end.len());
    let whole = (0..longest).map(|number| Life {
        begin: begin.get(number).cloned(),
        change: change.get(number).cloned(),
        end: end.get(number).cloned(),
    });
    let cut_short = of(&[Story::Cancel]).into_iter().map(|end| Life {
        end: Some(end),
        ..Life::default()
    });
    whole.chain(cut_short).collect()
}

/// One namespace, with operators of its own.
struct Lane {
    scene: Arc<Scene>,
    operators: Operators,
    counter: Counter,
}

impl Lane {
    async fn open(scene: Arc<Scene>) -> Self {
        let operators = Operators::of(&scene).await;
        let counter = Counter::start().await;
        let lane = Self {
            scene,
            operators,
            counter,
        };
        lane.commit("shared", "").await;
        lane
    }

    async fn commit(&self, repository: &str, more: &str) {
        let object = self.counter.life("a");
        let module =
            format!("variable \"v\" {{}}\noutput \"v\" {{ value = var.v }}\n{object}{more}");
        self.scene.commit(repository, &[("main.tf", &module)]).await;
    }

    /// Goes through `life`, which is number `number` of all.
    async fn live(&self, number: usize, life: &Life) {
        let before = self.counter.lives();
        let made = match &life.end {
            Some(death) if death.story == Story::Cancel => {
                self.cancel(death).await;
                0
            }
            end => {
                self.whole(number, life, end.as_ref()).await;
                1
            }
        };
        let after = (before.0 + made, before.1 + made);
        assert_eq!(self.counter.lives(), after, "{life:?}");
        self.scene.nothing_left().await;
    }

    async fn whole(&self, number: usize, life: &Life, end: Option<&Death>) {
        let builds = |death: &Death| matches!(death.story, Story::Build | Story::Replace);
        let mut web = self.scene.resource_of(NAME, "shared");
        if life.begin.iter().chain(&life.change).any(builds) {
            let own = format!("own-{number}");
            let more = format!("output \"number\" {{ value = {number} }}\n");
            self.commit(&own, &more).await;
            web = self.scene.resource_of(NAME, &own);
        }
        web["spec"]["variables"] = json!({"v": "one"});
        self.dying(
            life.begin.as_ref(),
            async || {
                self.scene.apply(&web).await;
            },
            async || {
                self.scene.ready_after_run(NAME, 1).await;
            },
        )
        .await;
        if let Some(change) = &life.change {
            if change.story == Story::Replace {
                self.scene.lose_volume("web-cache").await;
            }
            web["spec"]["variables"] = json!({"v": "two"});
            web["spec"]["outputs"] = json!({"secretName": "elsewhere"});
            self.dying(
                Some(change),
                async || {
                    self.scene.apply(&web).await;
                },
                async || {
                    self.scene.ready_after_run(NAME, 2).await;
                    assert_eq!(self.scene.data("elsewhere").await["v"], "two");
                },
            )
            .await;
        }
        self.end(end).await;
    }

    /// Has an operator do what follows from `cause`, until `done`; it dies on the way, if it is to,
    /// and another one takes over.
    async fn dying(&self, death: Option<&Death>, cause: impl AsyncFn(), done: impl AsyncFn()) {
        let at = death.map(|death| death.at.as_str());
        let mut operator = self.operators.start(at);
        cause().await;
        if death.is_some() {
            operator.died().await;
            operator = self.operators.start(None);
        }
        done().await;
        operator.kill().await;
    }

    async fn end(&self, death: Option<&Death>) {
        let uid = Mutex::new(String::new());
        self.dying(
            death,
            async || {
                let foreground = DeleteParams::foreground();
                let deleted = self.scene.begin_to_delete(NAME, &foreground).await;
                *uid.lock().unwrap() = deleted;
            },
            async || {
                let uid = uid.lock().unwrap().clone();
                self.scene.deleted(NAME, &uid).await;
            },
        )
        .await;
    }

    /// A resource that is deleted while its plan waits for an answer that never comes.
    async fn cancel(&self, death: &Death) {
        let asked = format!("/planning/{}", death.at);
        self.counter.hold(&asked);
        let mut web = self.scene.resource_of(NAME, "shared");
        web["spec"]["variables"] = json!({"v": "one"});
        web["spec"]["scripts"]["plan"]["inline"] = json!(self.counter.command(&asked));
        self.dying(
            None,
            async || {
                self.scene.apply(&web).await;
            },
            async || {
                self.counter.reached(&asked).await;
            },
        )
        .await;
        self.end(Some(death)).await;
        self.counter.release(&asked);
    }
}

#[tokio::test]
async fn crash_before_and_after_each_step_and_nothing_is_done_twice() {
    scene_alone("crash", |scene| async move {
        scene.cluster.scale_operator(0).await;
        let lives: VecDeque<_> = lives().into_iter().enumerate().collect();
        let lives = Arc::new(Mutex::new(lives));
        let lanes = (0..LANES).map(|lane| {
            let lives = lives.clone();
            scene.beside(format!("lane{lane}"), async move |scene| {
                let lane = Lane::open(scene).await;
                loop {
                    let Some((number, life)) = lives.lock().unwrap().pop_front() else {
                        return;
                    };
                    lane.live(number, &life).await;
                }
            })
        });
        join_all(lanes).await;
    })
    .await;
}
