//! What every reconcile shares.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use alustan_api::{Terraform, TerraformStatus, names};
use alustan_core::orphans;
use alustan_core::seen::{SourceSeen, Waiting};
use alustan_core::settings::Settings;
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{ConfigMap, PersistentVolumeClaim, Pod, Secret};
use kube::api::PartialObjectMeta;
use kube::runtime::reflector::Store;
use kube::{Client, Resource};

use crate::allowed::Lists;
use crate::backoff::doubled;
use crate::config::Driver;
use crate::contexts::Contexts;
use crate::dispatch::Dispatcher;
use crate::evaluator::Evaluator;
use crate::fail_point::FailPoint;
use crate::http::Health;
use crate::leader::Leader;
use crate::looks::Looks;
use crate::lookups::Lookups;
use crate::metrics::Metrics;
use crate::mirror::Mirror;
use crate::notifier::Notifier;
use crate::objects::Objects;
use crate::pruning::Pruned;
use crate::references::References;
use crate::signing::Signer;
use crate::{Guarded, Ref};

/// Clients, mirrors of the cluster, answers of the world.
pub(crate) struct Context {
    pub(crate) client: Client,
    pub(crate) settings: Settings,
    pub(crate) driver: Driver,
    /// The name of this pod.
    pub(crate) instance: String,
    pub(crate) leader: Leader,
    pub(crate) signer: Arc<Signer>,
    pub(crate) dispatcher: Arc<Dispatcher>,
    pub(crate) mirrors: Arc<Mirrors>,
    /// All resources.
    pub(crate) resources: Store<Guarded>,
    pub(crate) registry: alustan_registry::Registry,
    /// What asks repositories for their references.
    pub(crate) references: Arc<References>,
    pub(crate) git: Arc<alustan_source::GitCache>,
    pub(crate) contexts: Arc<Contexts>,
    /// Limits repositories that are looked through for pruning.
    pub(crate) prunings: Arc<alustan_source::Turns>,
    pub(crate) answers: Answers,
    pub(crate) notifier: Arc<Notifier>,
    /// What resources may use.
    pub(crate) allowed: Arc<Lists>,
    /// Objects of any kind that resources name.
    pub(crate) objects: Objects,
    pub(crate) evaluator: Evaluator,
    pub(crate) looks: Looks,
    pub(crate) memory: Arc<Memory>,
    pub(crate) fail_point: FailPoint,
    pub(crate) health: Health,
    pub(crate) metrics: Arc<Metrics>,
}

impl Context {
    /// Returns the name of the resource with this uid for a message about `tf`, if the resource exists in a watched namespace.
    pub(crate) fn living_owner(&self, tf: &Terraform, uid: &str) -> Option<String> {
        let is_owner = |other: &Guarded| other.meta().uid.as_deref() == Some(uid);
        let owner = self.resources.find(is_owner)?;
        Some(orphans::owner_name(tf, owner.meta()))
    }
}

/// What the watches brought.
pub(crate) struct Mirrors {
    /// Run records, pins and outputs.
    pub(crate) secrets: Mirror<Secret>,
    /// Those of outputs, without what they hold.
    pub(crate) config_maps: Mirror<PartialObjectMeta<ConfigMap>>,
    /// Claims of cache volumes.
    pub(crate) claims: Mirror<PersistentVolumeClaim>,
    pub(crate) jobs: Mirror<Job>,
    pub(crate) pods: Mirror<Pod>,
    /// How many mirrors have listed everything once.
    pub(crate) listed: tokio::sync::watch::Receiver<usize>,
}

impl Mirrors {
    /// Everything that belongs to the resource `name` was deleted.
    pub(crate) fn forget(&self, namespace: &str, name: &str) {
        for secret in [names::record(name), names::pin(name), names::outputs(name)] {
            self.secrets.forget(namespace, &secret);
        }
        self.claims.forget(namespace, &names::cache(name));
    }
}

/// Answers by kind of question.
pub(crate) struct Answers {
    /// Uids of namespaces.
    pub(crate) namespaces: Arc<Lookups<String>>,
    /// Where a branch points.
    pub(crate) revisions: Arc<Lookups<alustan_source::Revision>>,
    /// What a module needs at a revision, which is the argument.
    pub(crate) modules: Arc<Lookups<SourceSeen, alustan_source::Revision>>,
    /// Digests of images; `None` where the registry has none.
    pub(crate) images: Arc<Lookups<Option<String>>>,
    /// Digests of pushed contexts.
    pub(crate) artifacts: Arc<Lookups<String>>,
    /// Last lines of failed builds.
    pub(crate) logs: Arc<Lookups<String>>,
    /// What was removed from repositories.
    pub(crate) pruned: Arc<Lookups<Pruned>>,
}

impl Answers {
    /// Whether the first answer to a question of `who` is still to come.
    pub(crate) fn is_asking(&self, who: &Ref) -> bool {
        self.namespaces.is_asking(who)
            || self.revisions.is_asking(who)
            || self.modules.is_asking(who)
            || self.images.is_asking(who)
            || self.artifacts.is_asking(who)
            || self.logs.is_asking(who)
    }

    /// Forgets the questions of `who` that are not in `used`.
    pub(crate) fn keep(&self, who: &Ref, used: &HashSet<String>) {
        self.namespaces.keep(who, used);
        self.revisions.keep(who, used);
        self.modules.keep(who, used);
        self.images.keep(who, used);
        self.artifacts.keep(who, used);
        self.logs.keep(who, used);
        self.pruned.keep(who, used);
    }
}

/// What one process remembers of a resource between two looks; losing it costs a few calls.
#[derive(Default)]
pub(crate) struct Memory {
    resources: Mutex<HashMap<Ref, Remembered>>,
    builds: Mutex<HashMap<String, HashSet<Ref>>>,
}

#[derive(Default)]
struct Remembered {
    /// Uid of the resource.
    uid: Option<String>,
    /// The status that was written last.
    status: Option<TerraformStatus>,
    source: Option<(String, SourceSeen)>,
    /// Tag of the image that was planned last.
    planned: Option<String>,
    failures: u32,
    /// Conflicts in a row.
    conflicts: u32,
    /// The last Job that was denied, and why.
    denied: Option<(String, Waiting)>,
    /// Whether the Secret with the outputs could not be created, since there is one of somebody else.
    outputs_taken: bool,
    told: HashMap<String, String>,
}

impl Memory {
    fn with<T>(&self, who: &Ref, f: impl FnOnce(&mut Remembered) -> T) -> T {
        let mut resources = self
            .resources
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        f(resources.entry(who.clone()).or_default())
    }

    /// Begins a reconcile of the resource `who` with this uid. Forgets an earlier resource of the same name.
    pub(crate) fn begin(&self, who: &Ref, uid: Option<String>) {
        self.with(who, |memory| {
            if memory.uid != uid {
                *memory = Remembered {
                    uid,
                    ..Remembered::default()
                };
            }
        });
    }

    /// The status of `who` that was written last.
    pub(crate) fn status(&self, who: &Ref) -> Option<TerraformStatus> {
        self.with(who, |memory| memory.status.clone())
    }

    /// Remembers the status of `who` that was written.
    pub(crate) fn set_status(&self, who: &Ref, status: TerraformStatus) {
        self.with(who, |memory| memory.status = Some(status));
    }

    /// The source that was known last for `question`; while a new commit is being fetched the
    /// old one goes on.
    pub(crate) fn source(&self, who: &Ref, question: &str) -> Option<SourceSeen> {
        self.with(who, |memory| {
            memory
                .source
                .as_ref()
                .filter(|(of, _)| of == question)
                .map(|(_, seen)| seen.clone())
        })
    }

    /// Digests of the contexts of all resources.
    pub(crate) fn artifacts(&self) -> Vec<String> {
        self.of_all(|memory| Some(memory.source.as_ref()?.1.artifact.clone()))
    }

    /// Remembers the tag of the image that is planned for `who`.
    pub(crate) fn set_planned(&self, who: &Ref, tag: &str) {
        self.with(who, |memory| memory.planned = Some(tag.to_owned()));
    }

    /// Tags of the images that are planned for all resources, built or not.
    pub(crate) fn planned(&self) -> Vec<String> {
        self.of_all(|memory| memory.planned.clone())
    }

    fn of_all<T>(&self, value: impl Fn(&Remembered) -> Option<T>) -> Vec<T> {
        let resources = self
            .resources
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        resources.values().filter_map(value).collect()
    }

    /// What is known of the source no longer counts: the last commit cannot be used.
    pub(crate) fn forget_source(&self, who: &Ref) {
        self.with(who, |memory| memory.source = None);
    }

    /// Remembers a source.
    pub(crate) fn set_source(&self, who: &Ref, question: &str, source: SourceSeen) {
        self.with(who, |memory| {
            memory.source = Some((question.to_owned(), source));
        });
    }

    /// The wait after one more failed pass: doubles from half a second to five minutes.
    pub(crate) fn failed(&self, who: &Ref) -> Duration {
        let failures = self.with(who, |memory| {
            memory.failures = memory.failures.saturating_add(1);
            memory.failures
        });
        doubled(Duration::from_millis(500), failures, Duration::from_mins(5))
    }

    /// The wait after one more pass that ended with a conflict: doubles from 50 milliseconds to ten seconds. An event of the watch comes before it.
    pub(crate) fn conflicted(&self, who: &Ref) -> Duration {
        let conflicts = self.with(who, |memory| {
            memory.conflicts = memory.conflicts.saturating_add(1);
            memory.conflicts
        });
        doubled(
            Duration::from_millis(50),
            conflicts,
            Duration::from_secs(10),
        )
    }

    /// `job` of `who` was denied.
    pub(crate) fn set_denied(&self, who: &Ref, job: String, why: Waiting) {
        self.with(who, |memory| memory.denied = Some((job, why)));
    }

    /// Why `job` of `who` was denied, if that was the last one.
    pub(crate) fn denied(&self, who: &Ref, job: &str) -> Option<Waiting> {
        self.with(who, |memory| {
            let (last, why) = memory.denied.as_ref()?;
            (last == job).then(|| why.clone())
        })
    }

    /// Remembers whether somebody else has a Secret with the name of the outputs of `who`.
    pub(crate) fn set_outputs_taken(&self, who: &Ref, taken: bool) {
        self.with(who, |memory| memory.outputs_taken = taken);
    }

    /// Whether somebody else had a Secret with the name of the outputs of `who`.
    pub(crate) fn outputs_taken(&self, who: &Ref) -> bool {
        self.with(who, |memory| memory.outputs_taken)
    }

    /// Whether the last thing told of `who` with `reason` was not about `what`.
    pub(crate) fn is_news(&self, who: &Ref, reason: &str, what: &str) -> bool {
        let told = (reason.to_owned(), what.to_owned());
        self.with(who, |memory| memory.told.insert(told.0, told.1))
            .is_none_or(|before| before != what)
    }

    /// A pass went well.
    pub(crate) fn succeeded(&self, who: &Ref) {
        self.with(who, |memory| (memory.failures, memory.conflicts) = (0, 0));
    }

    /// `who` waits for a build; several resources may wait for one.
    pub(crate) fn wait_for_build(&self, job: String, who: &Ref) {
        let mut builds = self.builds.lock().unwrap_or_else(PoisonError::into_inner);
        builds.entry(job).or_default().insert(who.clone());
    }

    /// Who waits for the build `job`.
    pub(crate) fn waiting_for_build(&self, job: &str) -> Vec<Ref> {
        let builds = self.builds.lock().unwrap_or_else(PoisonError::into_inner);
        builds.get(job).into_iter().flatten().cloned().collect()
    }

    /// `who` waits for no build any more.
    pub(crate) fn done_building(&self, who: &Ref) {
        let mut builds = self.builds.lock().unwrap_or_else(PoisonError::into_inner);
        builds.retain(|_, waiting| {
            waiting.remove(who);
            !waiting.is_empty()
        });
    }

    /// `who` is gone.
    pub(crate) fn forget(&self, who: &Ref) {
        self.resources
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .remove(who);
        self.done_building(who);
    }
}
