//! Times of the steps of applies, as a client sees them that watches the objects. The timestamps in the objects have a resolution of one
//! second, which is longer than most phases.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Debug;
use std::pin::pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use alustan_api::Terraform;
use alustan_api::labels;
use alustan_api::run::{RunProgress, key};
use futures::StreamExt;
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{Pod, Secret};
use kube::ResourceExt;
use kube::api::Api;
use kube::runtime::WatchStreamExt;
use kube::runtime::watcher::{self, Event, watcher};
use parking_lot::Mutex;
use serde::de::DeserializeOwned;
use tokio::sync::Barrier;
use tokio::task::JoinSet;

use crate::Scene;
use crate::scene::{is_ready, until};

/// Step of an apply.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Step {
    /// The resource exists.
    Created,
    /// The run Job exists.
    Job,
    /// The pod is bound to a node.
    Bound,
    /// The runner has claimed the run.
    Claimed,
    /// The runner has written the run report.
    Reported,
    /// The resource is Ready.
    Ready,
}

/// Phases of an apply, each from the end of the previous one.
const PHASES: [(&str, Step, Step); 5] = [
    ("created -> Job (operator, queue)", Step::Created, Step::Job),
    ("Job -> pod on a node (scheduling)", Step::Job, Step::Bound),
    (
        "pod on a node -> claim (pod start)",
        Step::Bound,
        Step::Claimed,
    ),
    ("claim -> report (engine)", Step::Claimed, Step::Reported),
    ("report -> Ready (operator)", Step::Reported, Step::Ready),
];

/// Measured applies.
pub struct Applies {
    /// Time until each resource is Ready.
    pub ready: Vec<Duration>,
    /// Phases by title, with the duration for each resource.
    pub phases: Vec<(&'static str, Vec<Duration>)>,
}

/// First time of each step, by resource.
type Times = BTreeMap<String, BTreeMap<Step, Instant>>;

/// Watches of the applies in a namespace.
pub(crate) struct ApplyPhases {
    times: Arc<Mutex<Times>>,
    /// The watches. They end when the set is dropped.
    _watches: JoinSet<()>,
}

impl ApplyPhases {
    /// Starts the watches. Returns when they have listed the existing objects.
    pub(crate) async fn watch(scene: &Scene) -> Self {
        let times = Arc::new(Mutex::default());
        // Four watches, and this function.
        let listed = Arc::new(Barrier::new(5));
        let mut watches = JoinSet::new();
        let follow = Follow {
            times: times.clone(),
            listed: listed.clone(),
        };
        watches.spawn(follow.clone().objects(scene.api(), steps_of_resource));
        watches.spawn(
            follow
                .clone()
                .objects(scene.api(), |_: &Job| vec![Step::Job]),
        );
        watches.spawn(follow.clone().objects(scene.api(), steps_of_pod));
        watches.spawn(follow.objects(scene.api(), steps_of_secret));
        listed.wait().await;
        Self {
            times,
            _watches: watches,
        }
    }

    /// Waits until the resources `names` are Ready, and returns the durations since `start`.
    pub(crate) async fn ready(&self, names: &BTreeSet<String>, start: Instant) -> Applies {
        let times = until("Ready", async || {
            let mut times = self.times.lock().clone();
            times.retain(|name, steps| names.contains(name) && steps.contains_key(&Step::Ready));
            (times.len() == names.len()).then_some(times)
        })
        .await;
        let ready = times.values().map(|steps| steps[&Step::Ready] - start);
        let phase = |(title, from, to)| {
            let duration = |steps: &BTreeMap<Step, Instant>| {
                Some(
                    steps
                        .get(&to)?
                        .saturating_duration_since(*steps.get(&from)?),
                )
            };
            (title, times.values().filter_map(duration).collect())
        };
        Applies {
            ready: ready.collect(),
            phases: PHASES.map(phase).into(),
        }
    }
}

fn steps_of_resource(tf: &Terraform) -> Vec<Step> {
    let ready = is_ready(tf).then_some(Step::Ready);
    [Step::Created].into_iter().chain(ready).collect()
}

fn steps_of_pod(pod: &Pod) -> Vec<Step> {
    let node = pod.spec.as_ref().and_then(|spec| spec.node_name.as_ref());
    node.map(|_| Step::Bound).into_iter().collect()
}

fn steps_of_secret(secret: &Secret) -> Vec<Step> {
    let data = secret.data.iter().flatten();
    let steps = data.filter_map(|(entry, value)| match entry.as_str() {
        key::PROGRESS => {
            let progress: RunProgress = serde_json::from_slice(&value.0).ok()?;
            progress.claimed_by.map(|_| Step::Claimed)
        }
        key::REPORT => Some(Step::Reported),
        _ => None,
    });
    steps.collect()
}

/// Recorder of the watches.
#[derive(Clone)]
struct Follow {
    times: Arc<Mutex<Times>>,
    listed: Arc<Barrier>,
}

impl Follow {
    /// Records when the objects of one kind reach a step. Their label names the resource.
    async fn objects<K>(self, api: Api<K>, steps: fn(&K) -> Vec<Step>)
    where
        K: kube::Resource + Clone + Debug + DeserializeOwned + Send + 'static,
    {
        let mut events = pin!(watcher(api, watcher::Config::default()).default_backoff());
        let mut is_listed = false;
        while let Some(event) = events.next().await {
            match event {
                Ok(Event::Apply(object) | Event::InitApply(object)) => {
                    self.record(&object, steps(&object));
                }
                Ok(Event::InitDone) if !is_listed => {
                    self.listed.wait().await;
                    is_listed = true;
                }
                Ok(Event::Init | Event::InitDone | Event::Delete(_)) | Err(_) => {}
            }
        }
    }

    fn record(&self, object: &impl ResourceExt, steps: Vec<Step>) {
        let now = Instant::now();
        let label = object.labels().get(labels::NAME).cloned();
        let mut times = self.times.lock();
        let reached = times
            .entry(label.unwrap_or_else(|| object.name_any()))
            .or_default();
        for step in steps {
            reached.entry(step).or_insert(now);
        }
    }
}
