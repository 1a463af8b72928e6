//! Cache volume that a resource selects, and the refusal of a selection that is not possible.

use std::collections::BTreeSet;

use alustan_api::labels::ALLOW_CACHE;
use alustan_api::report::{Failure, FailureClass};
use alustan_api::run::RunSpec;
use alustan_api::{BackendProvider, Reason, Terraform};
use kube_core::ResourceExt;

use crate::observed::SharedClaimSeen;
use crate::settings::{CacheDefault, Settings};

/// Volume that a pod mounts as its cache volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CacheMount {
    /// Scratch space, deleted with the pod.
    Scratch,
    /// The `PersistentVolumeClaim` that belongs to the resource alone.
    Own,
    /// The directory of the resource in the shared `PersistentVolumeClaim` of this name.
    Shared(String),
}

impl CacheMount {
    /// Returns the mount of `run`.
    pub fn of(run: &RunSpec) -> Self {
        match &run.cache_claim {
            _ if !run.cache => Self::Scratch,
            Some(claim) => Self::Shared(claim.clone()),
            None => Self::Own,
        }
    }

    /// Returns the name of the shared claim.
    pub fn shared(&self) -> Option<&str> {
        match self {
            Self::Shared(claim) => Some(claim),
            Self::Scratch | Self::Own => None,
        }
    }
}

/// Returns the cache volume that the spec of `tf` selects, else the default of the operator.
pub fn location(tf: &Terraform, settings: &Settings) -> CacheMount {
    let cache = &tf.spec.cache;
    match (cache.enabled, &cache.claim_name, &settings.cache) {
        (Some(false), _, _) | (None, None, CacheDefault::None) => CacheMount::Scratch,
        (_, Some(claim), _) | (None, None, CacheDefault::Claim(claim)) => {
            CacheMount::Shared(claim.clone())
        }
        (Some(true), None, _) | (None, None, CacheDefault::PerResource) => CacheMount::Own,
    }
}

/// Returns the names of the shared claims that `resources` of one namespace select.
pub fn shared_claims<'a>(
    resources: impl IntoIterator<Item = &'a Terraform>,
    settings: &Settings,
) -> BTreeSet<String> {
    let default = match &settings.cache {
        CacheDefault::Claim(claim) => Some(claim.clone()),
        CacheDefault::None | CacheDefault::PerResource => None,
    };
    let selected = resources
        .into_iter()
        .filter_map(|tf| tf.spec.cache.claim_name.clone());
    selected.chain(default).collect()
}

/// Returns the failure if `tf` cannot use the cache volume that it selects. `claim`: the shared claim. A missing claim that only the default
/// of the operator names is no failure: pods use scratch space.
pub(crate) fn refusal(
    tf: &Terraform,
    claim: &SharedClaimSeen,
    settings: &Settings,
) -> Option<Failure> {
    let cache = &tf.spec.cache;
    if cache.enabled == Some(false) && cache.claim_name.is_some() {
        let message = "spec.cache.claimName cannot be set with spec.cache.enabled false; remove one \
                       of the fields";
        return Some(Failure::user(Reason::CacheUnsupported, message));
    }
    let location = location(tf, settings);
    let backend = tf.spec.backend.as_ref();
    let provider = backend.and_then(|backend| backend.provider);
    if provider == Some(BackendProvider::Local) && location != CacheMount::Own {
        let message = "spec.backend.provider local stores the state on a cache volume that belongs to \
                       the resource alone; set spec.cache.enabled: true and remove \
                       spec.cache.claimName";
        return Some(Failure::user(Reason::CacheUnsupported, message));
    }
    let name = location.shared()?;
    match claim {
        SharedClaimSeen::Owned(owner) => {
            let default = "flag --cache of the operator";
            let claim_name = cache.claim_name.as_ref();
            let field = claim_name.map_or(default, |_| "spec.cache.claimName");
            Some(Failure::user(
                Reason::CacheClaimConflict,
                format!(
                    "{field}: PersistentVolumeClaim {name} is the cache volume of resource {owner}; \
                     use another claim"
                ),
            ))
        }
        // The claim in --cache is always allowed.
        SharedClaimSeen::NotAllowed => {
            let namespace = tf.namespace().unwrap_or_default();
            Some(Failure::new(
                FailureClass::Transient,
                Reason::CacheClaimNotAllowed,
                format!(
                    "spec.cache.claimName: PersistentVolumeClaim {name} does not allow its use as cache volume; \
                     its owner can allow it: kubectl annotate pvc {name} -n {namespace} \
                     {ALLOW_CACHE}=true"
                ),
            ))
        }
        SharedClaimSeen::Absent if cache.claim_name.is_some() => Some(Failure::new(
            FailureClass::Transient,
            Reason::CacheClaimNotFound,
            format!(
                "spec.cache.claimName: PersistentVolumeClaim {name} does not exist in namespace {}; create it, or \
                 remove the field",
                tf.namespace().unwrap_or_default()
            ),
        )),
        SharedClaimSeen::Absent
        | SharedClaimSeen::Terminating { .. }
        | SharedClaimSeen::Lost
        | SharedClaimSeen::Pending { .. }
        | SharedClaimSeen::Bound { .. } => None,
    }
}
