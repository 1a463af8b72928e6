//! Whether values that a resource takes are about to change (rule 14). Where one change reaches it
//! on several ways, it is applied once, with all of it.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use alustan_api::{Terraform, TerraformStatus};

use crate::dependency_graph::{sources, standing_with, taken};
use crate::observed::{Answer, DependencySeen, Key, Seen, Standing};

/// What the last look at a resource came to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Look {
    /// The versions of the outputs that it took, by resource.
    pub versions: BTreeMap<Key, String>,
    /// What it is about.
    pub doing: Doing,
    /// Whether it is ready for those that depend on it. They may not have seen that yet.
    pub ready: bool,
}

/// What a resource is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Doing {
    /// Nothing, for now.
    Rests,
    /// Something runs, is due, or is not known yet.
    Works,
    /// It waits for resources that it depends on.
    Waits,
}

impl Look {
    /// A look at `tf` that saw `seen` and came to `status`.
    pub fn of(tf: &Terraform, seen: &Seen, status: &TerraformStatus) -> Self {
        let is = |kind: &str, value: &str| {
            let mut conditions = status.conditions.iter();
            conditions.any(|it| it.type_ == kind && it.status == value)
        };
        let doing = if tf.spec.suspend || tf.metadata.deletion_timestamp.is_some() {
            Doing::Rests
        } else if seen.source == Answer::Pending || is("Ready", "Unknown") {
            Doing::Works
        } else if is("Ready", "False") && !are_ready(&seen.stack.dependencies) {
            Doing::Waits
        } else {
            Doing::Rests
        };
        Self {
            versions: seen.stack.versions.clone(),
            doing,
            ready: standing_with(tf, Some(status)) == Standing::Ready,
        }
    }
}

fn are_ready(dependencies: &[DependencySeen]) -> bool {
    let mut all = dependencies.iter();
    all.all(|it| it.standing == Standing::Ready)
}

/// The versions of the outputs that `tf` takes, by resource. `version` tells that of the outputs of
/// one.
pub fn versions(
    tf: &Terraform,
    all: &BTreeMap<Key, &Terraform>,
    version: impl Fn(&Terraform) -> Option<String>,
) -> BTreeMap<Key, String> {
    let sources = sources(tf, all).into_iter();
    let versions = sources.filter_map(|key| {
        let version = version(all.get(&key)?)?;
        Some((key, version))
    });
    versions.collect()
}

/// The first resource that `tf` takes outputs from, directly or through others, that is at work or
/// has not looked at what changed: its own outputs may be others soon. What has failed, is suspended
/// or is deleted holds nobody up.
pub fn changing(
    tf: &Terraform,
    all: &BTreeMap<Key, &Terraform>,
    looks: &BTreeMap<Key, Look>,
    version: impl Fn(&Terraform) -> Option<String>,
) -> Option<Key> {
    let mut known = BTreeSet::from([Key::of(tf)]);
    let mut next = VecDeque::from_iter(sources(tf, all));
    while let Some(key) = next.pop_front() {
        let Some(it) = all.get(&key).filter(|_| known.insert(key.clone())) else {
            continue;
        };
        let Some(look) = looks.get(&key) else {
            return Some(key);
        };
        if look.doing == Doing::Works || look.versions != versions(it, all, &version) {
            return Some(key);
        }
        if look.doing == Doing::Waits {
            let depends_on: Vec<_> = taken(it, all).into_iter().map(|named| named.key).collect();
            let ready =
                |key| all.contains_key(key) && looks.get(key).is_none_or(|look: &Look| look.ready);
            // What it waited for is there, and it has not seen that yet.
            if depends_on.iter().all(ready) {
                return Some(key);
            }
            next.extend(depends_on);
        } else {
            next.extend(sources(it, all));
        }
    }
    None
}
