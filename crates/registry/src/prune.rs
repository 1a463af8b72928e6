//! Selects the images of a repository to delete. Performs no I/O.
//!
//! Selects only runner images of one Kubernetes namespace, and the contexts from which these images were built. A runner image has a tag of
//! 40 hex digits, and a label with the uid of the namespace for which the image was built. An image with several tags is kept if one of the
//! tags is kept.

use std::{collections::BTreeSet, fmt, time::Duration};

use alustan_api::labels::image::{CONTEXT, NAMESPACE};
use k8s_openapi::jiff::Timestamp;
use serde::{
    Deserialize, Deserializer,
    de::{IgnoredAny, MapAccess, Visitor},
};

use crate::reference::Digest;

/// Earliest plausible creation time: 2000-01-01, in seconds since 1970. Reproducible builds set no creation time, or 1970-01-01. The age of
/// such an image is unknown, so the image is kept.
const FIRST: i64 = 946_684_800;
/// Maximum length of a namespace uid, in bytes. Kubernetes generates UUIDs.
const UID: usize = 64;

/// A tag and its manifest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TaggedImage {
    /// Tag, without the repository.
    pub tag: String,
    /// Digest of the manifest.
    pub digest: Digest,
    /// Metadata of the image, if it is a runner image.
    pub runner_image: Option<RunnerImage>,
}

/// Metadata of a runner image.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RunnerImage {
    /// Uid of the namespace for which the image was built.
    pub namespace: String,
    /// Manifest digest of the context from which the image was built.
    pub context: Option<Digest>,
    /// Creation time in the image config: the time of the build, or, with builder kind `Append`, the time of the git commit.
    pub created: Timestamp,
}

/// Retention policy for images.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Policy {
    /// Number of newest runner images of the namespace to keep, regardless of their age.
    pub keep: usize,
    /// Minimum age of an image that may be deleted.
    pub older_than: Duration,
}

/// Images and contexts that resources use.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Used {
    /// Digests of the images and contexts that resources use.
    pub digests: BTreeSet<Digest>,
    /// Tags of images that resources refer to by tag.
    pub tags: BTreeSet<String>,
}

/// Returns the digests of the manifests to delete: first images of the namespace with uid `namespace`, then contexts of these images. A
/// context is kept if a resource uses the context, or if an image that was built from the context is kept.
pub fn choose(
    images: &[TaggedImage],
    namespace: &str,
    used: &Used,
    policy: Policy,
    now: Timestamp,
) -> Vec<Digest> {
    let mut own: Vec<(&TaggedImage, &RunnerImage)> = images
        .iter()
        .filter_map(|image| Some((image, image.runner_image.as_ref()?)))
        .filter(|(image, runner_image)| {
            is_image_tag(&image.tag) && runner_image.namespace == namespace
        })
        .filter(|(_, runner_image)| runner_image.created.as_second() >= FIRST)
        .collect();
    own.sort_by_key(|(image, runner_image)| (std::cmp::Reverse(runner_image.created), &image.tag));
    let too_old = |created: Timestamp| {
        let age = Duration::try_from(now.duration_since(created));
        age.is_ok_and(|age| age >= policy.older_than)
    };
    let going: BTreeSet<&str> = own
        .iter()
        .skip(policy.keep)
        .filter(|(image, runner_image)| {
            too_old(runner_image.created) && !used.tags.contains(&image.tag)
        })
        .map(|(image, _)| image.tag.as_str())
        .collect();
    // A registry deletes a manifest with all of its tags, so a manifest is kept if one of its tags is kept.
    let (going, staying): (Vec<&TaggedImage>, Vec<&TaggedImage>) = images
        .iter()
        .partition(|image| going.contains(image.tag.as_str()));
    let mut needed: BTreeSet<&Digest> = used.digests.iter().collect();
    needed.extend(staying.iter().map(|image| &image.digest));
    let (kept, going): (Vec<&TaggedImage>, Vec<&TaggedImage>) = going
        .into_iter()
        .partition(|image| needed.contains(&image.digest));
    let context = |image: &&TaggedImage| image.runner_image.as_ref()?.context.clone();
    let contexts_needed: BTreeSet<Digest> =
        staying.iter().chain(&kept).filter_map(context).collect();
    let mut seen = BTreeSet::new();
    let images = going.iter().map(|image| image.digest.clone());
    let contexts = going
        .iter()
        .filter_map(context)
        .filter(|context| !contexts_needed.contains(context) && !needed.contains(context));
    images
        .chain(contexts)
        .filter(|digest| seen.insert(digest.clone()))
        .collect()
}

/// Whether a tag has the form of a runner image tag: 40 lower-case hex digits.
pub fn is_image_tag(tag: &str) -> bool {
    is_hex(tag, 40)
}

/// Whether a tag has the form of a context tag: `context-` and 16 lower-case hex digits.
pub(crate) fn is_context_tag(tag: &str) -> bool {
    tag.strip_prefix("context-")
        .is_some_and(|digits| is_hex(digits, 16))
}

/// Whether a tag has the form of a layer tag in the cache repository of kaniko: 64 lower-case hex digits.
pub(crate) fn is_cache_tag(tag: &str) -> bool {
    is_hex(tag, 64)
}

fn is_hex(text: &str, length: usize) -> bool {
    let digit = |byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
    text.len() == length && text.bytes().all(digit)
}

/// Fields of an image config that pruning reads.
#[derive(Deserialize)]
struct RunnerImageConfig {
    created: String,
    config: RunnerContainerConfig,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct RunnerContainerConfig {
    labels: Labels,
}

/// Labels of a runner image.
#[derive(Default)]
struct Labels {
    namespace: Option<String>,
    context: Option<String>,
}

impl<'de> Deserialize<'de> for Labels {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(LabelsVisitor)
    }
}

struct LabelsVisitor;

impl<'de> Visitor<'de> for LabelsVisitor {
    type Value = Labels;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("labels")
    }

    fn visit_map<M: MapAccess<'de>>(self, mut map: M) -> Result<Labels, M::Error> {
        let mut labels = Labels::default();
        while let Some(key) = map.next_key::<String>()? {
            match key.as_str() {
                NAMESPACE => labels.namespace = map.next_value()?,
                CONTEXT => labels.context = map.next_value()?,
                _ => map.next_value::<IgnoredAny>().map(drop)?,
            }
        }
        Ok(labels)
    }
}

/// Reads the metadata of a runner image from its config; `None` if the config is not that of a runner image.
pub(crate) fn read_config(config: &[u8]) -> Option<RunnerImage> {
    let RunnerImageConfig { created, config } = serde_json::from_slice(config).ok()?;
    let Labels { namespace, context } = config.labels;
    let context = context
        .as_deref()
        .and_then(|context| context.rsplit('@').next());
    Some(RunnerImage {
        namespace: namespace.filter(|uid| uid.len() <= UID)?,
        context: context.and_then(|digest| Digest::parse(digest).ok()),
        created: created.parse().ok()?,
    })
}

#[cfg(test)]
mod tests;
