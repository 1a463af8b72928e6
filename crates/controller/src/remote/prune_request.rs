//! Request to prune a registry repository. Its result is the cached answer of a query.

use std::time::Duration;

use alustan_api::report::Failure;
use alustan_api::{Prune, Terraform};
use alustan_core::digest as hash;
use alustan_core::model::image::ImagePlan;
use alustan_core::settings::Settings;
use alustan_registry::{Access, DockerConfig, ImageName, Policy};
use k8s_openapi::jiff::Timestamp;
use kube::ResourceExt;

use crate::remote::answers::Pruned;
use crate::remote::queries::{access, identity, image_name};

/// Interval of prunings of a registry repository, in seconds. A new image also causes a pruning.
const PRUNE_INTERVAL_SECONDS: i64 = 86_400;

/// Pruning of the registry repository of a resource.
#[derive(Clone)]
pub(crate) struct PruneRequest {
    /// Key of the query in [`Answers::pruned`](crate::remote::answers::Answers::pruned). The query has no interval. It is sent again when its key
    /// changes: the key contains the image tag and the day.
    pub(crate) key: String,
    pub(crate) name: ImageName,
    pub(crate) access: Access,
    /// Uid of the namespace of the resource. Only images of this namespace are removed.
    pub(crate) namespace_uid: String,
    pub(crate) policy: Policy,
}

/// Pruning of the registry repository of a resource, as a reconcile observes it.
pub(crate) enum PruningSeen {
    /// No pruning has started since the image or the day changed.
    Due(PruneRequest),
    /// Finished: key of the query, and result.
    Done(String, Pruned),
    /// Cannot start, because name or credentials of the repository are invalid.
    Impossible(Failure),
}

impl PruneRequest {
    /// Returns the pruning of the registry repository of `tf` at `now`, with the settings `prune`. `plan`: newest image of `tf`.
    ///
    /// # Errors
    /// If the name of the registry repository or its credentials are invalid.
    pub(crate) fn new(
        settings: &Settings,
        tf: &Terraform,
        prune: &Prune,
        plan: &ImagePlan,
        namespace_uid: &str,
        docker: Option<&DockerConfig>,
        now: Timestamp,
    ) -> Result<Self, Failure> {
        let name = image_name(tf)?;
        let access = access(settings, tf, &name, docker)?;
        let policy = Policy {
            keep: usize::try_from(prune.keep).unwrap_or(usize::MAX),
            older_than: prune.older_than.into(),
        };
        let key = format!(
            "prune {name} of {namespace_uid} by {policy:?} with tag {} on day {} with access {}",
            plan.tag,
            day(tf, now),
            identity(&access, docker)
        );
        Ok(Self {
            key,
            name,
            access,
            namespace_uid: namespace_uid.to_owned(),
            policy,
        })
    }
}

/// Returns the number of the current pruning interval of `tf`. An offset derived from the uid of the resource spreads the prunings of
/// different resources over the day.
fn day(tf: &Terraform, now: Timestamp) -> i64 {
    let day_length = Duration::from_secs(PRUNE_INTERVAL_SECONDS.unsigned_abs());
    let offset = day_length.mul_f64(hash::fraction(&tf.uid().unwrap_or_default()));
    let offset = i64::try_from(offset.as_secs()).unwrap_or_default();
    (now.as_second() + offset).div_euclid(PRUNE_INTERVAL_SECONDS)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn pruning_runs_once_a_day_at_an_offset_per_resource() {
        let tf: Terraform = serde_json::from_value(json!({
            "apiVersion": "alustan.io/v1alpha1", "kind": "Terraform", "metadata": {"name": "a", "uid": "u"},
            "spec": {"gitRepo": {"url": "https://h/r"}, "containerRegistry": {"imageName": "h/x"}},
        }))
        .unwrap();
        let at = |second| day(&tf, Timestamp::from_second(second).unwrap());
        assert_eq!(at(1_000_000 + PRUNE_INTERVAL_SECONDS), at(1_000_000) + 1);
        let days: std::collections::BTreeSet<i64> = (0..24).map(|hour| at(hour * 3600)).collect();
        assert_eq!(days.len(), 2);
    }
}
