//! Server-side apply of the objects of a resource. An object that is new or in a watch cache is applied with one request. Any other object is
//! read first, and patched only if a field differs; the next runs send no request for it until it changes ([`VerifiedObjects`]). Objects of other
//! owners are never changed.
//!
//! [`VerifiedObjects`]: crate::verified_objects::VerifiedObjects

use std::fmt::Debug;

use alustan_api::labels::Component;
use alustan_api::{FIELD_MANAGER, labels};
use alustan_core::model::orphans;
use alustan_core::observed::ObjectVersion;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::{Api, PartialObjectMeta, PartialObjectMetaExt, Patch, PatchParams};
use kube::core::NamespaceResourceScope;
use kube::{Resource, ResourceExt};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::apply::step_executor::StepExecutor;
use crate::call::call;
use crate::error::Error;
use crate::indexed_store::Indexed;
use crate::resource::{has_component, is_made_for};
use crate::verified_objects::Knowledge;
use crate::write_through_cache::WriteThroughCache;

/// Resource version that no object has. An apply with it creates a missing object. If the object exists, the API server returns a conflict
/// (<https://kubernetes.io/docs/reference/using-api/api-concepts/#resource-versions>).
const NO_OBJECT: &str = "1";

/// Fields that an apply cannot change.
const IMMUTABLE_FIELDS: [&str; 3] = ["apiVersion", "kind", "type"];

/// Kind of an object that a resource owns.
pub(super) trait OwnedObject:
    Resource<DynamicType = (), Scope = NamespaceResourceScope>
    + Serialize
    + DeserializeOwned
    + Clone
    + Debug
{
}

impl<K> OwnedObject for K where
    K: Resource<DynamicType = (), Scope = NamespaceResourceScope>
        + Serialize
        + DeserializeOwned
        + Clone
        + Debug
{
}

/// Known state of an object before it is applied.
pub(super) enum KnownState {
    /// The object does not exist.
    Absent,
    /// The object exists, belongs to the resource and has this uid.
    Owned(String),
    /// The object exists, belongs to the resource and has this resource version.
    Version(u64),
    /// Unknown: the operator must read the object first.
    Unknown,
}

/// Live object after an apply.
pub(super) enum Applied<K> {
    /// The object, as the API server returned it for the apply.
    Written(Box<K>),
    /// Metadata of the object, which already had all fields.
    Unchanged(Box<PartialObjectMeta<K>>),
}

impl<K> Applied<K> {
    /// Returns the object if it was written.
    pub(super) fn written(self) -> Option<K> {
        match self {
            Self::Written(object) => Some(*object),
            Self::Unchanged(_) => None,
        }
    }
}

impl StepExecutor<'_> {
    /// Applies an object that only runs need and that is in no watch cache. Sends no request if the object is verified.
    ///
    /// # Errors
    /// The errors of [`Self::apply`].
    pub(super) async fn apply_run_object<K: OwnedObject>(&self, object: &K) -> Result<(), Error> {
        let verified = &self.ctx.verified_objects;
        let known = match verified.begin(object) {
            Knowledge::Verified => return Ok(()),
            Knowledge::Version(version) => KnownState::Version(version),
            Knowledge::None => self.known_state_of_run_object(object),
        };
        let only_metadata = has_only_metadata(&fields(object));
        match self.apply(object, known).await? {
            Applied::Written(live) => verified.complete(object, &*live, only_metadata),
            Applied::Unchanged(live) => verified.complete(object, &*live, only_metadata),
        }
        Ok(())
    }

    /// Returns the known state of the object `name` from the watch cache of managed objects.
    pub(super) fn known_state<K>(&self, mirror: &WriteThroughCache<K>, name: &str) -> KnownState
    where
        K: Indexed,
    {
        let Some(cached) = mirror.get(&self.namespace(), name) else {
            return KnownState::Absent;
        };
        let uid = cached.uid().filter(|_| is_made_for(self.tf, &*cached));
        uid.map_or(KnownState::Unknown, KnownState::Owned)
    }

    /// Returns the known state of an object that only runs need and that is not verified: absent before the first run, unknown later. State slots
    /// are absent before the second run.
    fn known_state_of_run_object(&self, object: &impl Resource) -> KnownState {
        let number = self.record.as_ref().map(|record| record.record.number);
        let is_state = has_component(object, Component::State);
        if number.is_some_and(|number| number <= i64::from(is_state)) {
            KnownState::Absent
        } else {
            KnownState::Unknown
        }
    }

    /// Applies `object`, unless the live object already has all fields of `object`.
    ///
    /// # Errors
    /// [`Error::NameTaken`] if the live object has another owner, or belongs to an earlier resource of the same name: the module would run with
    /// permissions and state of that owner. [`Error::OrphanedState`] if the live object is orphaned state and the resource does not adopt it.
    /// [`Error::StateInUse`] if the live object is the state of another resource that still exists.
    pub(super) async fn apply<K: OwnedObject>(
        &self,
        object: &K,
        known: KnownState,
    ) -> Result<Applied<K>, Error> {
        let is_unknown = matches!(known, KnownState::Unknown);
        let expected = match known {
            KnownState::Absent => Some(with_version(object, NO_OBJECT)),
            KnownState::Owned(uid) => Some(with_uid(object, uid)),
            KnownState::Version(version) => Some(with_version(object, &version.to_string())),
            KnownState::Unknown => None,
        };
        if let Some(expected) = expected
            && let Some(applied) = self.try_apply(&expected).await?
        {
            return Ok(Applied::Written(Box::new(applied)));
        }
        let wanted = fields(object);
        let expected = match self.read_live(object, &wanted).await? {
            None => with_version(object, NO_OBJECT),
            // Skip the apply if the known state is `Unknown` and no field differs. Any other known state was wrong, because the first apply failed.
            // Then the operator may not own the fields yet, so apply the object.
            Some((metadata, live)) if is_unknown && contains_fields(&live, &wanted) => {
                let unchanged = metadata.into_response_partial();
                return Ok(Applied::Unchanged(Box::new(unchanged)));
            }
            Some((metadata, _)) => with_uid(object, metadata.uid.unwrap_or_default()),
        };
        let applied = self.try_apply(&expected).await?.ok_or(Error::Conflict)?;
        Ok(Applied::Written(Box::new(applied)))
    }

    /// Applies `object` if the live object has this version; without a version, if no object exists. Returns `None` if the live object belongs
    /// to the resource and has another version, or if no object exists. The uid prevents the creation of an object, see [`NO_OBJECT`].
    ///
    /// # Errors
    /// The errors of [`Self::apply`].
    pub(super) async fn apply_at<K: OwnedObject>(
        &self,
        object: &K,
        version: Option<&ObjectVersion>,
    ) -> Result<Option<K>, Error> {
        let expected = match version {
            Some(version) => {
                let object = with_version(object, &version.resource_version);
                with_uid(&object, version.uid.clone())
            }
            None => with_version(object, NO_OBJECT),
        };
        let applied = self.try_apply(&expected).await?;
        if applied.is_none() {
            self.read_live(object, &fields(object)).await?;
        }
        Ok(applied)
    }

    /// Applies `object` with the precondition in its metadata (uid or resource version). Returns `None` if the live object does not meet
    /// the precondition.
    async fn try_apply<K: OwnedObject>(&self, object: &K) -> Result<Option<K>, Error> {
        let name = object.name_any();
        let operation = format!("apply {} {name}", K::kind(&()));
        let api = self.api::<K>();
        let parameters = PatchParams::apply(FIELD_MANAGER).force();
        match call(
            &operation,
            api.patch(&name, &parameters, &Patch::Apply(object)),
        )
        .await
        {
            Err(Error::Call { source, .. }) if is_unmet(&source) => Ok(None),
            result => result.map(Some),
        }
    }

    /// Reads the live object with the name of `object`. Returns its metadata, and the fields to compare with `wanted`.
    async fn read_live<K: OwnedObject>(
        &self,
        object: &K,
        wanted: &Value,
    ) -> Result<Option<(ObjectMeta, Value)>, Error> {
        let kind = K::kind(&());
        let name = object.name_any();
        let api: Api<K> = self.api();
        let operation = format!("read {kind} {name}");
        // An object that is applied without data, such as a state slot, is compared by metadata: the operator does not read the data of a
        // state.
        if has_only_metadata(wanted) {
            let live = call(&operation, api.get_metadata_opt(&name)).await?;
            self.adopt_and_read(&api, live).await
        } else {
            let live = call(&operation, api.get_opt(&name)).await?;
            self.adopt_and_read(&api, live).await
        }
    }

    /// Returns metadata and fields of `live`. Adopts `live` first if it is orphaned state.
    async fn adopt_and_read<K: OwnedObject>(
        &self,
        api: &Api<K>,
        live: Option<impl Resource<DynamicType = ()> + Serialize>,
    ) -> Result<Option<(ObjectMeta, Value)>, Error> {
        let Some(live) = live else {
            return Ok(None);
        };
        self.adopt(api, &live).await?;
        Ok(Some((live.meta().clone(), fields(&live))))
    }

    /// Returns whether `live` belongs to the resource; `false` for orphaned state that the resource adopts.
    ///
    /// # Errors
    /// The errors of [`Self::apply`] about the owner of the object.
    pub(super) fn is_ours<F>(&self, live: &F) -> Result<bool, Error>
    where
        F: Resource<DynamicType = ()>,
    {
        if is_made_for(self.tf, live) {
            return Ok(true);
        }
        let kind = F::kind(&()).into_owned();
        let name = live.name_any();
        let is_orphaned = orphans::is_orphaned(self.tf, live.labels());
        let uid = live.labels().get(labels::UID).filter(|_| is_orphaned);
        if let Some(owner) = uid.and_then(|uid| self.ctx.living_owner(self.tf, uid)) {
            return Err(Error::StateInUse { kind, name, owner });
        }
        match (is_orphaned, orphans::adopts(self.tf)) {
            (true, true) => Ok(false),
            (true, false) => Err(Error::OrphanedState {
                kind,
                name,
                adopt: orphans::how_to_adopt(self.tf),
            }),
            (false, _) => Err(Error::NameTaken { kind, name }),
        }
    }

    /// Adopts `live` if it is orphaned state.
    pub(super) async fn adopt<K: OwnedObject>(
        &self,
        api: &Api<K>,
        live: &impl Resource<DynamicType = ()>,
    ) -> Result<(), Error> {
        if self.is_ours(live)? {
            return Ok(());
        }
        self.rebind(api, live).await
    }

    /// Assigns `live` to the resource: sets the label with the uid of the resource, and removes label `alustan.io/orphaned`.
    pub(super) async fn rebind<K: OwnedObject>(
        &self,
        api: &Api<K>,
        live: &impl Resource<DynamicType = ()>,
    ) -> Result<(), Error> {
        let labels = json!({labels::UID: self.tf.uid(), labels::ORPHANED: null});
        let body = json!({"metadata": {"uid": live.uid(), "labels": labels}});
        let name = live.name_any();
        let operation = format!("adopt {} {name}", K::kind(&()));
        let parameters = PatchParams::default();
        let patch = Patch::Merge(&body);
        call(&operation, api.patch_metadata(&name, &parameters, &patch))
            .await
            .map(drop)
    }
}

/// Whether an apply failed because of its precondition. The API server reports a uid that differs from that of the live object as an invalid field.
fn is_unmet(error: &kube::Error) -> bool {
    let kube::Error::Api(status) = error else {
        return false;
    };
    let causes = status.details.iter().flat_map(|details| &details.causes);
    let mut fields = causes.map(|cause| cause.field.as_str());
    status.is_conflict() || status.is_invalid() && fields.any(|field| field == "metadata.uid")
}

/// Returns `object` with the precondition that the live object has resource version `version`.
fn with_version<K: Resource + Clone>(object: &K, version: &str) -> K {
    let mut object_with_version = object.clone();
    object_with_version.meta_mut().resource_version = Some(version.to_owned());
    object_with_version
}

/// Returns `object` with the precondition that the live object has this uid.
fn with_uid<K: Resource + Clone>(object: &K, uid: String) -> K {
    let mut object_with_uid = object.clone();
    object_with_uid.meta_mut().uid = Some(uid);
    object_with_uid
}

/// Returns the fields of `object` that an apply may change.
fn fields(object: &impl Serialize) -> Value {
    let mut fields = serde_json::to_value(object).unwrap_or_default();
    if let Some(fields) = fields.as_object_mut() {
        fields.retain(|name, _| !IMMUTABLE_FIELDS.contains(&name.as_str()));
    }
    fields
}

/// Whether the metadata is the only one of the `fields` to apply.
fn has_only_metadata(fields: &Value) -> bool {
    fields.as_object().is_some_and(|fields| fields.len() == 1)
}

/// Whether `live` has all fields of `wanted`. It may have more: other clients and the API server add fields.
fn contains_fields(live: &Value, wanted: &Value) -> bool {
    match (live, wanted) {
        (Value::Object(live), Value::Object(wanted)) => wanted.iter().all(|(name, wanted)| {
            live.get(name)
                .is_some_and(|live| contains_fields(live, wanted))
        }),
        (Value::Array(live), Value::Array(wanted)) => {
            live.len() == wanted.len()
                && live.iter().zip(wanted).all(|(a, b)| contains_fields(a, b))
        }
        (live, wanted) => live == wanted,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn fields_added_by_the_api_server_cause_no_apply() {
        let wanted = json!({"metadata": {"labels": {"a": "b"}}, "rules": [{"verbs": ["get"]}]});
        let mut live = wanted.clone();
        live["metadata"]["uid"] = json!("u");
        live["metadata"]["labels"]["of"] = json!("another");
        live["rules"][0]["apiGroups"] = json!([""]);
        assert!(contains_fields(&live, &wanted));
    }

    #[test]
    fn changed_object_is_applied_again() {
        let wanted = json!({"metadata": {"labels": {"a": "b"}}, "rules": [{"verbs": ["get"]}]});
        for (pointer, value) in [
            ("/metadata/labels", json!({})),
            ("/metadata/labels/a", json!("c")),
            ("/rules/0/verbs", json!(["get", "list"])),
            ("/rules/0/verbs", json!([])),
            ("/rules", json!([{"verbs": ["get"]}, {"verbs": ["*"]}])),
        ] {
            let mut live = wanted.clone();
            *live.pointer_mut(pointer).unwrap() = value;
            assert!(!contains_fields(&live, &wanted), "{pointer}: {live}");
        }
    }
}
