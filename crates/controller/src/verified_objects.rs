//! Objects of runs that need no read before the next run: this process applied or read them, and a watch has reported no change since. The loss
//! of this knowledge costs one read per object.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};

use alustan_api::labels;
use kube::{Resource, ResourceExt};
use parking_lot::Mutex;
use serde::Serialize;

use crate::write_through_cache::version;

/// Versions and digests of objects of runs, by kind. Contains no content: names, fields and labels are stored as hashes with a random key.
#[derive(Default)]
pub(crate) struct VerifiedObjects {
    hasher: RandomState,
    kinds: Mutex<HashMap<String, Kind>>,
}

#[derive(Default)]
struct Kind {
    /// Whether [`VerifiedObjects::changed`] and [`VerifiedObjects::deleted`] receive all changes of this kind.
    is_watched: bool,
    /// Objects by hash of namespace and name.
    objects: HashMap<u64, Entry>,
}

enum Entry {
    /// The operator reads or applies the object. `newest`: highest resource version that the watch has reported since. `applied`, `owner`: as in
    /// [`Verified`].
    InProgress {
        newest: u64,
        applied: u64,
        owner: u64,
    },
    Verified(Verified),
}

struct Verified {
    version: u64,
    /// Hash of the applied fields.
    applied: u64,
    /// Hash of the uid of the resource that the object belongs to.
    owner: u64,
    /// Hash of the labels, if the operator applies only metadata: a runner writes the data.
    labels: Option<u64>,
}

/// What this process knows about an object before it is applied.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Knowledge {
    /// The object has all fields to apply.
    Verified,
    /// The object belongs to the resource, was last applied with other fields, and still has this resource version.
    Version(u64),
    /// The object must be read.
    None,
}

impl VerifiedObjects {
    /// Returns what is known about `object`, which is to be applied. Unless it is verified, the changes until [`Self::complete`] are recorded.
    pub(crate) fn begin<K>(&self, object: &K) -> Knowledge
    where
        K: Resource<DynamicType = ()> + Serialize,
    {
        let (key, applied, owner) = (self.key(object), self.applied(object), self.owner(object));
        let mut kinds = self.kinds.lock();
        let Some(kind) = watched::<K>(&mut kinds) else {
            return Knowledge::None;
        };
        let known = match kind.objects.get(&key) {
            Some(Entry::Verified(known)) if known.applied == applied => {
                return Knowledge::Verified;
            }
            Some(Entry::Verified(known)) if known.owner == owner => {
                Knowledge::Version(known.version)
            }
            Some(_) | None => Knowledge::None,
        };
        let begun = Entry::InProgress {
            newest: 0,
            applied,
            owner,
        };
        kind.objects.insert(key, begun);
        known
    }

    /// Stores that `live` has all fields of `object` as of the last [`Self::begin`]. `only_metadata`: the operator applies no other fields. Stores
    /// nothing if the watch has reported a later change.
    pub(crate) fn complete<K>(&self, object: &K, live: &impl Resource, only_metadata: bool)
    where
        K: Resource<DynamicType = ()>,
    {
        let mut kinds = self.kinds.lock();
        let Some(kind) = watched::<K>(&mut kinds) else {
            return;
        };
        let key = self.key(object);
        let version = version(live);
        let Some(Entry::InProgress {
            newest,
            applied,
            owner,
        }) = kind.objects.remove(&key)
        else {
            return;
        };
        if version == 0 || newest > version {
            return;
        }
        let verified = Verified {
            version,
            applied,
            owner,
            labels: only_metadata.then(|| self.hasher.hash_one(live.labels())),
        };
        kind.objects.insert(key, Entry::Verified(verified));
    }

    /// Records an event of the watch: `object` was created or changed. An event of the verified version or an earlier one changes nothing.
    pub(crate) fn changed<K: Resource<DynamicType = ()>>(&self, object: &K) {
        let labels = self.hasher.hash_one(object.labels());
        self.record(object, |known| known.labels == Some(labels));
    }

    /// Records an event of the watch: `object` was deleted.
    pub(crate) fn deleted<K: Resource<DynamicType = ()>>(&self, object: &K) {
        self.record(object, |_| false);
    }

    fn record<K: Resource<DynamicType = ()>>(
        &self,
        object: &K,
        is_unaffected: impl Fn(&Verified) -> bool,
    ) {
        let mut kinds = self.kinds.lock();
        let Some(kind) = watched::<K>(&mut kinds) else {
            return;
        };
        let key = self.key(object);
        let reported = version(object);
        match kind.objects.get_mut(&key) {
            Some(Entry::InProgress { newest, .. }) => *newest = reported.max(*newest),
            Some(Entry::Verified(known)) if reported > known.version => {
                if is_unaffected(known) {
                    known.version = reported;
                } else {
                    kind.objects.remove(&key);
                }
            }
            Some(Entry::Verified(_)) | None => {}
        }
    }

    /// Records that all later changes of objects of kind `K` are reported.
    pub(crate) fn watch_began<K: Resource<DynamicType = ()>>(&self) {
        let mut kinds = self.kinds.lock();
        let kind = kinds.entry(K::kind(&()).into_owned()).or_default();
        kind.is_watched = true;
    }

    /// Records that changes of objects of kind `K` may be missed from now on, so that each object is read again.
    pub(crate) fn watch_ended<K: Resource<DynamicType = ()>>(&self) {
        self.kinds.lock().remove(&*K::kind(&()));
    }

    fn key<K: Resource>(&self, object: &K) -> u64 {
        self.hasher
            .hash_one((object.namespace(), object.name_any()))
    }

    fn owner<K: Resource>(&self, object: &K) -> u64 {
        self.hasher.hash_one(object.labels().get(labels::UID))
    }

    fn applied(&self, object: &impl Serialize) -> u64 {
        // Serialization cannot fail: the keys of all maps are strings.
        let fields = serde_json::to_vec(object).unwrap_or_default();
        self.hasher.hash_one(fields)
    }
}

fn watched<K: Resource<DynamicType = ()>>(kinds: &mut HashMap<String, Kind>) -> Option<&mut Kind> {
    let kind = kinds.get_mut(&*K::kind(&()));
    kind.filter(|kind| kind.is_watched)
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::Secret;
    use k8s_openapi::api::rbac::v1::Role;
    use serde::de::DeserializeOwned;
    use serde_json::{Value, json};

    use super::*;

    fn object<K: DeserializeOwned>(version: Option<&str>, uid: &str, fields: &Value) -> K {
        let labels = json!({labels::UID: uid});
        let metadata = json!({
            "name": "web-runner", "namespace": "team", "resourceVersion": version, "labels": labels,
        });
        let mut object = json!({"metadata": metadata});
        json_patch::merge(&mut object, fields);
        serde_json::from_value(object).unwrap()
    }

    fn role(version: Option<&str>, uid: &str, verb: &str) -> Role {
        object(version, uid, &json!({"rules": [{"verbs": [verb]}]}))
    }

    /// Returns a store in which the Role of resource `u` is verified at version 7.
    fn verified() -> VerifiedObjects {
        let verified = VerifiedObjects::default();
        verified.watch_began::<Role>();
        let wanted = role(None, "u", "get");
        assert_eq!(verified.begin(&wanted), Knowledge::None);
        verified.complete(&wanted, &role(Some("7"), "u", "get"), false);
        verified
    }

    #[test]
    fn object_is_verified_until_it_changes() {
        let wanted = role(None, "u", "get");
        let verified = verified();
        verified.changed(&role(Some("7"), "u", "get"));
        assert_eq!(verified.begin(&wanted), Knowledge::Verified);
        let more = role(None, "u", "patch");
        assert_eq!(verified.begin(&more), Knowledge::Version(7));
        for change in [VerifiedObjects::changed::<Role>, VerifiedObjects::deleted] {
            let verified = self::verified();
            change(&verified, &role(Some("8"), "u", "get"));
            assert_eq!(verified.begin(&wanted), Knowledge::None);
        }
    }

    #[test]
    fn object_of_an_earlier_resource_is_read() {
        assert_eq!(verified().begin(&role(None, "u2", "get")), Knowledge::None);
    }

    #[test]
    fn change_during_the_apply_is_not_missed() {
        let wanted = role(None, "u", "get");
        for (reported, expected) in [("8", Knowledge::Verified), ("9", Knowledge::None)] {
            let verified = verified();
            verified.changed(&role(Some("8"), "u", "get"));
            assert_eq!(verified.begin(&wanted), Knowledge::None);
            verified.changed(&role(Some(reported), "u", "get"));
            verified.complete(&wanted, &role(Some("8"), "u", "get"), false);
            assert_eq!(verified.begin(&wanted), expected, "{reported}");
        }
    }

    #[test]
    fn nothing_is_verified_without_a_watch() {
        let wanted = role(None, "u", "get");
        let verified = verified();
        verified.watch_ended::<Role>();
        assert_eq!(verified.begin(&wanted), Knowledge::None);
        verified.complete(&wanted, &role(Some("7"), "u", "get"), false);
        verified.watch_began::<Role>();
        assert_eq!(verified.begin(&wanted), Knowledge::None);
    }

    #[test]
    fn data_of_a_runner_leaves_a_state_slot_verified() {
        let slot = |version, uid: &str| object::<Secret>(version, uid, &json!({}));
        let wanted = slot(None, "u");
        let verified = VerifiedObjects::default();
        verified.watch_began::<Secret>();
        verified.begin(&wanted);
        verified.complete(&wanted, &slot(Some("7"), "u"), true);
        verified.changed(&slot(Some("8"), "u"));
        assert_eq!(verified.begin(&wanted), Knowledge::Verified);
        verified.changed(&slot(Some("9"), "another"));
        assert_eq!(verified.begin(&wanted), Knowledge::None);
    }
}
