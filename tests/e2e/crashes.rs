//! The operator crashes directly before and after each of its steps, in each phase of a resource. The next operator finishes the
//! phase, and nothing is created or destroyed twice.

use std::sync::{Arc, Mutex};

use alustan_core::step::StepKind;
use alustan_tests::{Counter, Operators, Scene, scene_with_own_operators};
use futures::future::join_all;
use kube::api::DeleteParams;
use serde_json::json;

use crate::approval;

/// Number of namespaces that are tested concurrently.
const NAMESPACES: usize = 4;
/// Number of resources per namespace, created, changed and destroyed one after the other.
const LIVES: usize = 2;
/// Name of the resource. A namespace has at most one resource at a time.
const NAME: &str = "web";

/// Phase of a resource.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Story {
    /// Creation of a resource: steps of the image build.
    Build,
    /// Creation of a resource: steps that occur with and without an image build.
    Create,
    /// Change of the inputs: steps that occur only after loss of the cache volume.
    Replace,
    /// Change of the inputs and of the name of the outputs Secret.
    Change,
    /// Creation with manual approval, until the plan is pending.
    Ask,
    /// Approval of the pending plan.
    Approve,
    /// Deletion.
    Destroy,
    /// Deletion during the plan of the first run.
    Cancel,
}

/// Returns the phases in which steps of `kind` occur. Each entry contains the phase, the position of the step in the phase, and a prefix of
/// the text that names the object or the run phase of the step. The prefix distinguishes steps of the same kind.
fn occurrences(kind: StepKind) -> &'static [(Story, u8, &'static str)] {
    match kind {
        StepKind::AddFinalizer => &[(Story::Create, 1, "")],
        StepKind::CreateRecord => &[(Story::Create, 2, "")],
        StepKind::PushContext => &[(Story::Build, 3, "")],
        StepKind::CreateJob => &[
            (Story::Build, 4, "alustan-build"),
            (Story::Create, 9, "web-apply-1"),
            (Story::Ask, 3, "web-plan-1"),
            (Story::Approve, 3, "web-apply-2"),
            (Story::Destroy, 4, "web-destroy"),
        ],
        StepKind::Ensure => &[
            (Story::Create, 5, "ServiceAccount web-runner"),
            (Story::Create, 8, "Secret web-pin"),
            (Story::Create, 10, "Secret web-outputs"),
            (Story::Replace, 2, "PersistentVolumeClaim web-cache"),
            (Story::Change, 3, "Secret elsewhere"),
            (Story::Destroy, 1, "Role web-runner"),
        ],
        StepKind::SwapRecord => &[
            (Story::Create, 6, "Starting"),
            (Story::Create, 11, "Recorded"),
            (Story::Change, 6, "Recorded"),
            (Story::Ask, 1, "Starting"),
            (Story::Ask, 4, "Recorded"),
            (Story::Approve, 1, "Starting"),
            (Story::Approve, 4, "Recorded"),
            (Story::Destroy, 2, "Starting"),
            (Story::Destroy, 5, "Recorded"),
            (Story::Cancel, 1, "Planning"),
        ],
        StepKind::CheckRecord => &[(Story::Change, 2, "")],
        StepKind::SwapReport => &[
            (Story::Create, 7, "Starting"),
            (Story::Create, 12, "Reported"),
            (Story::Change, 7, "Reported"),
            (Story::Ask, 2, "Starting"),
            (Story::Ask, 5, "Reported"),
            (Story::Approve, 2, "Starting"),
            (Story::Approve, 5, "Reported"),
            (Story::Destroy, 3, "Starting"),
            (Story::Destroy, 6, "Reported"),
            (Story::Cancel, 2, "Planning"),
        ],
        StepKind::DeleteClaim => &[(Story::Replace, 1, "")],
        StepKind::DeleteOutputs => &[(Story::Change, 4, "web-outputs")],
        StepKind::RecordRun => &[(Story::Change, 5, "web-")],
        StepKind::DeleteJob => &[(Story::Cancel, 3, "web-apply-1")],
        // `DeleteRun` occurs only with more runs than `spec.history.runs`; the next record repeats an interrupted one.
        // restore.rs covers `TakeOver`. cache.rs covers shared claims. build_namespace.rs covers build Secrets, which exist only for builds in
        // another namespace. An interrupted `PruneImages` leaves no state in the cluster that the next operator must complete.
        StepKind::TakeOver
        | StepKind::DeleteRun
        | StepKind::CreateBuildSecret
        | StepKind::DeleteBuildSecret
        | StepKind::EmptyCache
        | StepKind::ReleaseClaim
        | StepKind::PruneImages => &[],
        StepKind::CleanUp => &[(Story::Destroy, 7, "")],
        StepKind::RemoveFinalizer => &[(Story::Destroy, 8, "")],
    }
}

/// Crash of an operator: its position among the crashes of a phase, and the value of `ALUSTAN_DIE_AT` that causes it.
type Crash = (u8, String);

/// Returns every `step`th crash in `story`, starting with index `number`.
fn crashes(story: Story, number: usize, step: usize) -> Vec<Crash> {
    let mut all = Vec::new();
    for kind in StepKind::ALL {
        let steps = occurrences(*kind)
            .iter()
            .filter(|occurrence| occurrence.0 == story);
        for (_, rank, only) in steps {
            all.push((2 * rank, format!("Before:{kind:?}:{only}")));
            all.push((2 * rank + 1, format!("After:{kind:?}:{only}")));
        }
    }
    all.sort();
    all.into_iter().skip(number).step_by(step).collect()
}

/// Namespace with its own operators.
struct TestNamespace {
    number: usize,
    scene: Arc<Scene>,
    operators: Operators,
    counter: Counter,
}

impl TestNamespace {
    async fn open(scene: Arc<Scene>, number: usize) -> Self {
        let operators = Operators::of(&scene).await;
        let counter = Counter::start().await;
        scene.commit(NAME, &[("main.tf", &counter.module())]).await;
        Self {
            number,
            scene,
            operators,
            counter,
        }
    }

    /// Creates, changes and destroys a resource. The first resource needs an image build.
    async fn live(&self, life: usize) {
        let first = life == 0;
        let part = |own: Story, of_all: Story| {
            let mut planned = crashes(of_all, self.number + NAMESPACES * life, NAMESPACES * LIVES);
            if first {
                planned.extend(crashes(own, self.number, NAMESPACES));
                planned.sort();
            }
            planned
        };
        let mut web = self.scene.resource(NAME);
        web["spec"]["variables"] = json!({"v": "one"});
        self.run_with_crashes(
            &part(Story::Build, Story::Create),
            async || self.scene.apply(&web).await,
            async || drop(self.scene.ready_after_run(NAME, 1).await),
        )
        .await;
        let mut change = 2;
        if first {
            // The second apply creates the claim.
            self.run_with_crashes(
                &[],
                async || {
                    for annotation in [alustan_api::APPLY_AT, alustan_api::RECONCILE_AT] {
                        self.scene.annotate(NAME, annotation, "again").await;
                    }
                },
                async || drop(self.scene.ready_after_run(NAME, change).await),
            )
            .await;
            self.scene.lose_volume("web-cache").await;
            change += 1;
        }
        web["spec"]["variables"] = json!({"v": "two"});
        web["spec"]["outputs"] = json!({"secretName": "elsewhere"});
        self.run_with_crashes(
            &part(Story::Replace, Story::Change),
            async || self.scene.apply(&web).await,
            async || drop(self.scene.ready_after_run(NAME, change).await),
        )
        .await;
        assert_eq!(self.scene.data("elsewhere").await["v"], "two");
        self.end(&crashes(
            Story::Destroy,
            self.number + NAMESPACES * life,
            NAMESPACES * LIVES,
        ))
        .await;
        assert_eq!(
            self.counter.creations_and_destructions(),
            (life + 1, life + 1)
        );
    }

    /// Creates a resource with manual approval, approves its plan and destroys it.
    async fn approve_manually(&self) {
        let (made, destroyed) = self.counter.creations_and_destructions();
        let mut web = self.scene.resource(NAME);
        web["spec"]["variables"] = json!({"v": "one"});
        web["spec"]["approval"] = json!({"mode": "Manual"});
        self.run_with_crashes(
            &crashes(Story::Ask, self.number, NAMESPACES),
            async || self.scene.apply(&web).await,
            async || drop(approval::pending(&self.scene, NAME, None).await),
        )
        .await;
        assert_eq!(self.counter.creations_and_destructions(), (made, destroyed));
        let (plan, _) = approval::pending(&self.scene, NAME, None).await;
        self.run_with_crashes(
            &crashes(Story::Approve, self.number, NAMESPACES),
            async || approval::approve(&self.scene, NAME, &plan).await,
            async || drop(self.scene.ready_after_run(NAME, 2).await),
        )
        .await;
        self.end(&[]).await;
        assert_eq!(
            self.counter.creations_and_destructions(),
            (made + 1, destroyed + 1)
        );
    }

    /// Deletes a resource while its plan script blocks.
    async fn cancel(&self) {
        let before = self.counter.creations_and_destructions();
        self.counter.hold("/planning");
        let mut web = self.scene.resource(NAME);
        web["spec"]["variables"] = json!({"v": "one"});
        web["spec"]["scripts"]["plan"]["inline"] = json!(self.counter.command("/planning"));
        self.run_with_crashes(
            &[],
            async || self.scene.apply(&web).await,
            async || self.counter.reached("/planning").await,
        )
        .await;
        self.end(&crashes(Story::Cancel, self.number, NAMESPACES))
            .await;
        self.counter.release("/planning");
        assert_eq!(self.counter.creations_and_destructions(), before);
    }

    async fn end(&self, crashes: &[Crash]) {
        let uid = Mutex::new(String::new());
        self.run_with_crashes(
            crashes,
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
        self.scene.nothing_left().await;
    }

    /// Starts an operator, calls `cause`, and waits for `done`. The operator crashes at the first of `crashes`; each following operator
    /// crashes at the next one, and the last operator does not crash.
    async fn run_with_crashes(
        &self,
        crashes: &[Crash],
        cause: impl AsyncFn(),
        done: impl AsyncFn(),
    ) {
        let mut ends = crashes
            .iter()
            .map(|(_, at)| Some(at.as_str()))
            .chain([None]);
        let mut operator = self.operators.start(ends.next().flatten());
        cause().await;
        for end in ends {
            operator.died().await;
            operator = self.operators.start(end);
        }
        done().await;
        operator.kill().await;
    }
}

/// Tests that run with the installed operator scaled to zero: see `scene_with_own_operators`.
mod own_operators {
    use super::*;

    #[tokio::test]
    async fn crash_before_or_after_any_step_repeats_nothing() {
        scene_with_own_operators("crash", |scene| async move {
            let namespaces = (0..NAMESPACES).map(|number| {
                scene.beside(format!("lane{number}"), async move |scene| {
                    let namespace = TestNamespace::open(scene, number).await;
                    for life in 0..LIVES {
                        namespace.live(life).await;
                    }
                    namespace.approve_manually().await;
                    namespace.cancel().await;
                })
            });
            join_all(namespaces).await;
        })
        .await;
    }
}
