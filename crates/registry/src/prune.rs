//! Which images of a repository may go. Pure.
//!
//! Only tags that the operator's own naming makes are looked at, and of those only images that say themselves
//! that they were built for this namespace. What a tag of somebody else points at as well stays.

use std::{collections::BTreeSet, time::Duration};

use alustan_api::labels::image::{CONTEXT, NAMESPACE};
use k8s_openapi::jiff::Timestamp;
use serde_json::Value;

use crate::reference::Digest;

/// Builders that make the same image of the same content give it no time, or the first one there is: then nobody
/// knows how old it is. 2000-01-01.
const FIRST: i64 = 946_684_800;
/// Maximum size of the uid of a namespace, in bytes. Kubernetes makes UUIDs.
const UID: usize = 64;

/// A tag and what it points at.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    /// The tag.
    pub tag: String,
    /// What it points at.
    pub digest: Digest,
    /// What the image says of itself, if it is a runner image.
    pub ours: Option<Ours>,
}

/// What a runner image says of itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ours {
    /// The uid of the namespace that it was built for.
    pub namespace: String,
    /// The context that it was built from, as an artifact.
    pub context: Option<Digest>,
    /// Creation time in the image config: of the build, or of the commit where builder kind Append built it.
    pub created: Timestamp,
}

/// Which images may go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Policy {
    /// How many of the newest stay.
    pub keep: usize,
    /// How old one must be.
    pub older_than: Duration,
}

/// What resources need.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Used {
    /// Images and contexts.
    pub digests: BTreeSet<Digest>,
    /// Images that are looked for by their tag.
    pub tags: BTreeSet<String>,
}

/// The manifests that may go: images of the namespace with the uid `namespace`, each before its context.
pub fn choose(
    found: &[Found],
    namespace: &str,
    used: &Used,
    policy: Policy,
    now: Timestamp,
) -> Vec<Digest> {
    let mut own: Vec<(&Found, &Ours)> = found
        .iter()
        .filter_map(|found| Some((found, found.ours.as_ref()?)))
        .filter(|(found, ours)| is_image_tag(&found.tag) && ours.namespace == namespace)
        .filter(|(_, ours)| ours.created.as_second() >= FIRST)
        .collect();
    own.sort_by_key(|(found, ours)| (std::cmp::Reverse(ours.created), &found.tag));
    let too_old = |created: Timestamp| {
        let age = Duration::try_from(now.duration_since(created));
        age.is_ok_and(|age| age >= policy.older_than)
    };
    let going: BTreeSet<&str> = own
        .iter()
        .skip(policy.keep)
        .filter(|(found, ours)| too_old(ours.created) && !used.tags.contains(&found.tag))
        .map(|(found, _)| found.tag.as_str())
        .collect();
    // A digest goes with all of its tags.
    let (going, staying): (Vec<&Found>, Vec<&Found>) = found
        .iter()
        .partition(|found| going.contains(found.tag.as_str()));
    let mut needed: BTreeSet<&Digest> = used.digests.iter().collect();
    needed.extend(staying.iter().map(|found| &found.digest));
    let (kept, going): (Vec<&Found>, Vec<&Found>) = going
        .into_iter()
        .partition(|found| needed.contains(&found.digest));
    let context = |found: &&Found| found.ours.as_ref()?.context.clone();
    let contexts_needed: BTreeSet<Digest> =
        staying.iter().chain(&kept).filter_map(context).collect();
    let mut seen = BTreeSet::new();
    let images = going.iter().map(|found| found.digest.clone());
    let contexts = going.iter().filter_map(context);
    let contexts = contexts.filter(|it| !contexts_needed.contains(it) && !needed.contains(it));
    images
        .chain(contexts)
        .filter(|digest| seen.insert(digest.clone()))
        .collect()
}

/// Whether a tag has the form of those of runner images.
pub fn is_image_tag(tag: &str) -> bool {
    is_hex(tag, 40)
}

/// Whether a tag has the form of those of contexts.
pub(crate) fn is_context_tag(tag: &str) -> bool {
    tag.strip_prefix("context-")
        .is_some_and(|digits| is_hex(digits, 16))
}

/// Whether a tag has the form of those of the builder's layers.
pub(crate) fn is_cache_tag(tag: &str) -> bool {
    is_hex(tag, 64)
}

fn is_hex(text: &str, length: usize) -> bool {
    let digit = |byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
    text.len() == length && text.bytes().all(digit)
}

/// What the configuration of an image says of it.
pub(crate) fn read_config(config: &[u8]) -> Option<Ours> {
    let config: Value = serde_json::from_slice(config).ok()?;
    let labels = config.pointer("/config/Labels")?;
    let context = labels.get(CONTEXT).and_then(Value::as_str);
    let context = context.and_then(|context| context.rsplit('@').next());
    let namespace = labels.get(NAMESPACE)?.as_str()?;
    Some(Ours {
        namespace: (namespace.len() <= UID).then(|| namespace.to_owned())?,
        context: context.and_then(|digest| Digest::parse(digest).ok()),
        created: config.get("created")?.as_str()?.parse().ok()?,
    })
}

#[cfg(test)]
mod tests;
