//! State shared by all reconciles.

use std::sync::Arc;

use alustan_api::Terraform;
use alustan_core::job_retention::JobRetention;
use alustan_core::model::orphans;
use alustan_core::settings::Settings;
use kube::{Client, Resource};
use parking_lot::Mutex;

use crate::args::Driver;
use crate::clock::Clock;
use crate::evaluator::Evaluator;
use crate::fail_point::FailPoint;
use crate::github_app::AppTokens;
use crate::health::Health;
use crate::indexed_store::IndexedStore;
use crate::leader::Leader;
use crate::memory::Memory;
use crate::metrics::Metrics;
use crate::mirrors::Mirrors;
use crate::notify::Notifier;
use crate::queue::Dispatcher;
use crate::recent_reads::RecentInputs;
use crate::remote::answers::Answers;
use crate::remote::artifact::ArtifactLimits;
use crate::remote::context_store::ContextStore;
use crate::remote::git_refs::References;
use crate::remote::module_files::Fetchers;
use crate::resource::Guarded;
use crate::run_history_limits::RunHistoryLimits;
use crate::signing::Signer;
use crate::upstream_activity::UpstreamActivity;
use crate::verified_objects::VerifiedObjects;
use crate::watch::allow_lists::AllowLists;
use crate::watch::dynamic::DynamicWatches;
use crate::watch::keys::ResourceKey;

/// Clients, watch caches, caches of polled queries, and settings.
pub(crate) struct Context {
    pub(crate) client: Client,
    pub(crate) clock: Clock,
    pub(crate) settings: Settings,
    pub(crate) driver: Driver,
    /// Name of this pod.
    pub(crate) instance: String,
    pub(crate) leader: Leader,
    pub(crate) signer: Arc<Signer>,
    pub(crate) dispatcher: Arc<Dispatcher>,
    pub(crate) mirrors: Arc<Mirrors>,
    /// All resources in watched namespaces.
    pub(crate) resources: IndexedStore<Guarded>,
    pub(crate) registry: alustan_registry::Registry,
    /// Queries the references of git repositories.
    pub(crate) references: Arc<References>,
    pub(crate) git: Arc<alustan_source::GitCache>,
    pub(crate) app_tokens: Arc<AppTokens>,
    pub(crate) contexts: Arc<ContextStore>,
    /// Limits of the records of finished runs.
    pub(crate) run_history: RunHistoryLimits,
    /// Limits how many registry repositories are pruned at the same time.
    pub(crate) prunings: Arc<alustan_source::FairSemaphore>,
    /// Limits how many artifacts of modules are pulled and unpacked at the same time.
    pub(crate) artifacts: Arc<ArtifactLimits>,
    pub(crate) answers: Answers,
    pub(crate) notifier: Arc<Notifier>,
    /// Allow lists of `--allowed`, for example for repositories and registries.
    pub(crate) allowed: Arc<AllowLists>,
    /// Watches of the objects, of any kind, that resources refer to.
    pub(crate) objects: DynamicWatches,
    /// Secrets and `ConfigMap`s that specs refer to. Reconciles reuse an object for ten seconds after a read.
    pub(crate) inputs: RecentInputs,
    pub(crate) evaluator: Evaluator,
    pub(crate) upstream_activity: UpstreamActivity,
    pub(crate) memory: Arc<Memory>,
    /// Marks of the finished run Jobs beyond `--keep-jobs`.
    pub(crate) job_retention: Mutex<JobRetention>,
    /// Objects of runs that need no read before the next run.
    pub(crate) verified_objects: Arc<VerifiedObjects>,
    pub(crate) fail_point: FailPoint,
    pub(crate) health: Health,
    pub(crate) metrics: Arc<Metrics>,
}

impl Context {
    /// Returns the clients and caches for fetching the files of modules.
    pub(crate) fn fetchers(&self) -> Fetchers {
        Fetchers {
            references: self.references.clone(),
            git: self.git.clone(),
            registry: self.registry.clone(),
            contexts: self.contexts.clone(),
            artifacts: self.artifacts.clone(),
        }
    }

    /// Drops the objects that reconciles have read too long ago to be reused.
    pub(crate) fn expire_reads(&self) {
        self.inputs.expire();
        self.objects.expire();
    }

    /// Returns the name of the resource with this `uid`, for a message about `tf`. `None` if no watched namespace contains the resource.
    pub(crate) fn living_owner(&self, tf: &Terraform, uid: &str) -> Option<String> {
        let owners = self.resources.with(&ResourceKey::Uid(uid.to_owned()));
        let owner = owners.first()?;
        Some(orphans::owner_name(tf, owner.meta()))
    }
}
