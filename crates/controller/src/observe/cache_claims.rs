//! Shared `PersistentVolumeClaim`s, which resources select as cache volume (`spec.cache.claimName`, `--cache`).

use std::collections::BTreeSet;

use alustan_api::Terraform;
use alustan_api::labels::{self, Component};
use alustan_core::model::cache_location;
use alustan_core::observed::SharedClaimSeen;
use alustan_core::settings::CacheDefault;
use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use kube::ResourceExt;
use kube::api::Api;

use crate::call::call;
use crate::context::Context;
use crate::error::Error;
use crate::observe::jobs;
use crate::observe::observer::Observer;
use crate::resource::{Ref, readable};
use crate::watch::keys::ResourceKey;

/// Returns the shared claim that the resource of the `observer` selects: read from the API server, or, in the first
/// reconcile of the resource, reused if another reconcile read it in the last seconds. The operator does not watch these claims: they belong to users.
pub(super) async fn observe(observer: &Observer<'_>) -> Result<SharedClaimSeen, Error> {
    let Observer { ctx, tf, .. } = *observer;
    let location = cache_location::location(tf, &ctx.settings);
    let Some(name) = location.shared() else {
        return Ok(SharedClaimSeen::Absent);
    };
    let namespace = tf.namespace().unwrap_or_default();
    let request = || {
        let api: Api<PersistentVolumeClaim> = Api::namespaced(ctx.client.clone(), &namespace);
        let is_default = ctx.settings.cache == CacheDefault::Claim(name.to_owned());
        let name = name.to_owned();
        async move {
            let operation = format!("read PersistentVolumeClaim {name}");
            let claim = call(&operation, api.get_opt(&name)).await?;
            Ok(claim.as_ref().map(|claim| seen(claim, is_default)))
        }
    };
    let key = Ref::new(name).within(&namespace);
    let claim = observer.read(&ctx.inputs.shared_claims, &key, request);
    Ok(match claim.await?.unwrap_or_default() {
        SharedClaimSeen::Terminating { .. } => SharedClaimSeen::Terminating {
            has_finished_users: !jobs::finished_users(ctx, &namespace, name).is_empty(),
        },
        claim => claim,
    })
}

/// `is_default`: whether flag `--cache` names the claim. The result does not include the finished Jobs that refer to the claim.
fn seen(claim: &PersistentVolumeClaim, is_default: bool) -> SharedClaimSeen {
    if let Some(owner) = owner(claim) {
        return SharedClaimSeen::Owned(owner);
    }
    let is_allowed = claim
        .annotations()
        .get(labels::ALLOW_CACHE)
        .is_some_and(|value| value == "true");
    if !is_allowed && !is_default {
        return SharedClaimSeen::NotAllowed;
    }
    if claim.metadata.deletion_timestamp.is_some() {
        return SharedClaimSeen::Terminating {
            has_finished_users: false,
        };
    }
    let uid = claim.uid().unwrap_or_default();
    let status = claim.status.as_ref();
    match status.and_then(|status| status.phase.as_deref()) {
        Some("Bound") => SharedClaimSeen::Bound { uid },
        Some("Lost") => SharedClaimSeen::Lost,
        Some(_) | None => SharedClaimSeen::Pending { uid },
    }
}

/// Returns the name of the resource of which `claim` is the cache volume.
fn owner(claim: &PersistentVolumeClaim) -> Option<String> {
    let labels = claim.labels();
    let has = |key: &str, value: &str| labels.get(key).is_some_and(|label| label == value);
    let is_cache = has(labels::MANAGED_BY, labels::MANAGER)
        && has(labels::COMPONENT, Component::Cache.as_str());
    is_cache.then(|| labels.get(labels::NAME).cloned().unwrap_or_default())
}

/// Returns the names of the claims that resources in the namespace of `tf` share. Empty without pod options in `tf`: the names are only needed to
/// refuse volumes in pod options.
pub(super) fn names(ctx: &Context, tf: &Terraform) -> BTreeSet<String> {
    let runner = tf.spec.runner.as_ref();
    let builder = tf.spec.container_registry.builder.as_ref();
    let has_options = runner.is_some_and(|runner| runner.pod.is_some())
        || builder.is_some_and(|builder| builder.pod.is_some());
    if !has_options {
        return BTreeSet::new();
    }
    let key = ResourceKey::SharedClaim(tf.namespace().unwrap_or_default());
    let resources = ctx.resources.with(&key);
    cache_location::shared_claims(readable(&resources), &ctx.settings)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn claim_of_a_resource_is_not_shared() {
        let mut claim = json!({
            "metadata": {"name": "web-cache", "uid": "u", "labels": labels::of("web", "w", Component::Cache)},
            "status": {"phase": "Bound"},
        });
        let seen_as = |claim: &serde_json::Value| {
            seen(&serde_json::from_value(claim.clone()).unwrap(), false)
        };
        assert_eq!(seen_as(&claim), SharedClaimSeen::Owned("web".to_owned()));
        claim["metadata"]["labels"] = json!({"app.kubernetes.io/managed-by": "Helm"});
        assert_eq!(seen_as(&claim), SharedClaimSeen::NotAllowed);
        let default = seen(&serde_json::from_value(claim.clone()).unwrap(), true);
        let uid = "u".to_owned();
        assert_eq!(default, SharedClaimSeen::Bound { uid: uid.clone() });
        claim["metadata"]["annotations"] = json!({labels::ALLOW_CACHE: "true"});
        assert_eq!(seen_as(&claim), SharedClaimSeen::Bound { uid: uid.clone() });
        claim["status"]["phase"] = json!("Pending");
        assert_eq!(seen_as(&claim), SharedClaimSeen::Pending { uid });
        claim["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
        let terminating = SharedClaimSeen::Terminating {
            has_finished_users: false,
        };
        assert_eq!(seen_as(&claim), terminating);
    }
}
