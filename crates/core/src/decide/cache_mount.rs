//! Cache volume of the pods of runs and builds, and the emptying of the directory of a resource in a shared claim.

use alustan_api::Reason;
use alustan_api::report::{Failure, FailureClass, RunResult};
use alustan_api::run::{CacheVolume, History, SharedCache};

use crate::decide::case::ReconcileCase;
use crate::decide::state_volume;
use crate::model::cache_location::{self, CacheMount};
use crate::objects::empty_cache;
use crate::observed::{CacheSeen, SharedClaimSeen};
use crate::step::Step;

/// Pod that mounts a cache volume.
#[derive(Clone, Copy)]
pub(super) struct PodRequest {
    /// Whether the pod waits for a volume that its claim does not have yet. A first apply and a destroy do not wait: the volume would be
    /// empty, and takes longer to provision than a build or run takes.
    pub(super) waits_for_volume: bool,
    /// Whether the pod uses a shared claim although earlier pods did not start with it, because a user requested the run.
    pub(super) tries_again: bool,
}

impl ReconcileCase<'_> {
    /// Returns the cache volume of a pod that needs no state on the volume.
    pub(super) fn cache_mount(&self, pod: PodRequest) -> CacheMount {
        match cache_location::location(self.tf, self.settings) {
            CacheMount::Own if self.has_own_volume(pod) => CacheMount::Own,
            CacheMount::Shared(claim) if self.can_share(pod) => CacheMount::Shared(claim),
            CacheMount::Scratch | CacheMount::Own | CacheMount::Shared(_) => CacheMount::Scratch,
        }
    }

    /// Whether pods can use the resource's own volume, or a volume that replaces it. A volume that has a state is not replaced: pods that
    /// need no state do without it while it is unreachable.
    fn has_own_volume(&self, pod: PodRequest) -> bool {
        let is_replaced =
            state_volume::usability(self.seen, &self.history) == CacheVolume::Unusable;
        let is_usable = self.history.cache == CacheVolume::Usable || is_replaced;
        let is_bound = self.seen.cache == CacheSeen::Bound;
        is_usable && (pod.waits_for_volume || is_bound)
    }

    /// Whether pods can use the shared claim. Without it, they use scratch space.
    fn can_share(&self, pod: PodRequest) -> bool {
        let claim = &self.seen.shared_claim;
        let waits = matches!(claim, SharedClaimSeen::Pending { .. }) && !pod.waits_for_volume;
        let Some(uid) = claim.usable_uid().filter(|_| !waits) else {
            return false;
        };
        let recorded = self.history.shared_cache.as_ref();
        let same_claim = recorded.filter(|shared| shared.uid == uid);
        match same_claim.map(|shared| shared.usability) {
            None | Some(CacheVolume::Usable) => true,
            Some(CacheVolume::Suspect) => false,
            Some(CacheVolume::Unusable) => pod.tries_again,
        }
    }

    /// Returns `history` with the shared claim that a pod with `mount` mounts, and the step that empties the directory of the resource in the
    /// previous claim, if the resource has another cache volume now. `number`: run number.
    pub(super) fn with_mount(
        &self,
        mut history: History,
        mount: &CacheMount,
        number: i64,
    ) -> (History, Option<Step>) {
        let location = cache_location::location(self.tf, self.settings);
        let previous = history
            .shared_cache
            .take_if(|shared| location.shared() != Some(&shared.claim));
        let step = previous.map(|shared| self.empty_cache(&shared, number));
        let Some(uid) = self.seen.shared_claim.usable_uid() else {
            return (history, step);
        };
        let recorded = history.shared_cache.as_ref();
        let is_recorded = recorded.is_some_and(|shared| shared.uid == uid);
        if let Some(claim) = mount.shared().filter(|_| !is_recorded) {
            history.shared_cache = Some(SharedCache {
                claim: claim.to_owned(),
                uid: uid.to_owned(),
                usability: CacheVolume::Usable,
            });
        }
        (history, step)
    }

    /// Returns the step that empties the directory of a deleted resource in its shared claim.
    pub(super) fn empty_shared_cache(&self) -> Option<Step> {
        let shared = self.history.shared_cache.as_ref()?;
        Some(self.empty_cache(shared, self.current.number))
    }

    fn empty_cache(&self, shared: &SharedCache, number: i64) -> Step {
        let recorded = self.history.architecture;
        let architecture = self.settings.architecture_of(self.tf, recorded);
        Step::EmptyCache(Box::new(empty_cache::job(
            self.tf,
            &shared.claim,
            number,
            architecture,
            self.settings,
        )))
    }

    /// Returns the step that deletes finished Jobs which refer to a shared claim that is being deleted.
    pub(super) fn release_claim(&self) -> Option<Step> {
        let is_held = matches!(
            self.seen.shared_claim,
            SharedClaimSeen::Terminating {
                has_finished_users: true
            }
        );
        let location = cache_location::location(self.tf, self.settings);
        let claim = location.shared().filter(|_| is_held)?;
        Some(Step::ReleaseClaim(claim.to_owned()))
    }
}

/// Records in `history` whether the cache volumes are usable after a run or build with this result. `mount`: the cache volume of the pod.
pub(super) fn record_usability(
    history: &mut History,
    mount: &CacheMount,
    failure: Option<&Failure>,
    result: RunResult,
) {
    let is_own = *mount == CacheMount::Own;
    history.cache = cache_after(history.cache, is_own, failure, result);
    if let Some(shared) = &mut history.shared_cache {
        let is_mounted = mount.shared() == Some(&shared.claim);
        shared.usability = cache_after(shared.usability, is_mounted, failure, result);
    }
}

/// Returns whether the cache volume is usable after a run or build with this result. `before`: usability before the run. `has_cache`:
/// whether the pod mounted the volume.
fn cache_after(
    before: CacheVolume,
    has_cache: bool,
    failure: Option<&Failure>,
    result: RunResult,
) -> CacheVolume {
    let class = failure.map(|failure| failure.class);
    let has_started = result != RunResult::Cancelled && class != Some(FailureClass::Transient);
    let reason = failure.and_then(|failure| Reason::from_stored(&failure.reason));
    match before {
        _ if has_cache && matches!(reason, Some(Reason::Unschedulable | Reason::PodNotStarted)) => {
            CacheVolume::Suspect
        }
        _ if has_cache && failure.is_some_and(is_directory_missing) => CacheVolume::Suspect,
        _ if has_cache && has_started => CacheVolume::Usable,
        CacheVolume::Suspect if has_started => CacheVolume::Unusable,
        before => before,
    }
}

/// Whether the kubelet failed to create the directory of the resource in a shared claim, for example on a read-only volume. The message is
/// that of the kubelet: `failed to create subPath directory for volumeMount "cache" of container "terraform"`.
fn is_directory_missing(failure: &Failure) -> bool {
    let message = &failure.message;
    failure.reason == Reason::CreateContainerConfigError
        && message.contains("subPath")
        && message.contains("\"cache\"")
}
