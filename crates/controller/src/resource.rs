//! `Terraform` resources as the watch delivers them, and references to them.

use std::borrow::Cow;
use std::sync::Arc;

use alustan_api::labels::{self, Component};
use alustan_api::{ObjectKey, Terraform, json_size};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::ResourceExt;
use kube::core::error_boundary::InvalidObject;
use kube::core::{PartialObjectMeta, Resource};
use kube::runtime::reflector::ObjectRef;
use serde::{Deserialize, Deserializer, de};
use serde_json::value::RawValue;

use crate::lenient::Lenient;

/// `Terraform` resource, or, if the resource cannot be parsed, its metadata and the error. So an unreadable resource does not stop the
/// watch of all resources. `DeserializeGuard` of kube does the same, but parses the whole object first, regardless of its size.
#[derive(Clone, Debug)]
pub(crate) struct Guarded(pub(crate) Result<Terraform, InvalidObject>);

/// Reference to a resource. The controller of kube stores only the names of resources
/// ([`ResourceName`](crate::watch::ResourceName)); [`IndexedStore`](crate::indexed_store::IndexedStore) stores the resources.
pub(crate) type Ref = ObjectRef<PartialObjectMeta<Terraform>>;

/// Returns the reference to `resource`.
pub(crate) fn ref_of(resource: &impl ResourceExt) -> Ref {
    Ref::new(&resource.name_any()).within(&resource.namespace().unwrap_or_default())
}

impl<'de> Deserialize<'de> for Guarded {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text: Box<RawValue> = Deserialize::deserialize(deserializer)?;
        let error = match parse(text.get()) {
            Ok(tf) => return Ok(Self(Ok(tf))),
            Err(error) => error,
        };
        let object: Lenient<ObjectMetadata> =
            serde_json::from_str(text.get()).map_err(de::Error::custom)?;
        let mut metadata = object.0.metadata;
        // No reconcile reads them, and the nesting in the watch cache would be one deeper.
        metadata.managed_fields = None;
        Ok(Self(Err(InvalidObject { error, metadata })))
    }
}

/// Object of which only the metadata is parsed.
#[derive(Deserialize)]
struct ObjectMetadata {
    metadata: ObjectMeta,
}

/// Parses a resource. Fails if it has more than [`json_size::VALUES`] JSON values. The limit excludes the values in
/// `metadata.managedFields`, which only repeat the names of the fields.
fn parse(text: &str) -> Result<Terraform, String> {
    let values = json_size::values(text.as_bytes());
    if values > json_size::VALUES {
        let managed = managed_values(text).unwrap_or_default();
        let values = values.saturating_sub(managed);
        if values > json_size::VALUES {
            return Err(format!(
                "the resource has {values} JSON values, more than the limit of {}: pass large \
                 values as a string or as files of the module",
                json_size::VALUES
            ));
        }
    }
    serde_json::from_str(text).map_err(|error| error.to_string())
}

/// Returns the number of JSON values in `metadata.managedFields`.
fn managed_values(text: &str) -> Option<usize> {
    #[derive(Deserialize)]
    struct Object<'a> {
        #[serde(borrow)]
        metadata: Metadata<'a>,
    }
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Metadata<'a> {
        #[serde(borrow)]
        managed_fields: Option<&'a RawValue>,
    }
    let object: Object<'_> = serde_json::from_str(text).ok()?;
    let managed = object.metadata.managed_fields?;
    Some(json_size::values(managed.get().as_bytes()))
}

impl Resource for Guarded {
    type DynamicType = ();
    type Scope = <Terraform as Resource>::Scope;

    fn kind(dynamic: &()) -> Cow<'_, str> {
        Terraform::kind(dynamic)
    }

    fn group(dynamic: &()) -> Cow<'_, str> {
        Terraform::group(dynamic)
    }

    fn version(dynamic: &()) -> Cow<'_, str> {
        Terraform::version(dynamic)
    }

    fn plural(dynamic: &()) -> Cow<'_, str> {
        Terraform::plural(dynamic)
    }

    fn meta(&self) -> &ObjectMeta {
        match &self.0 {
            Ok(tf) => tf.meta(),
            Err(invalid) => &invalid.metadata,
        }
    }

    fn meta_mut(&mut self) -> &mut ObjectMeta {
        match &mut self.0 {
            Ok(tf) => tf.meta_mut(),
            Err(invalid) => &mut invalid.metadata,
        }
    }
}

/// Returns the key of `resource`.
pub(crate) fn to_key(resource: &Ref) -> ObjectKey {
    ObjectKey::new(
        resource.namespace.clone().unwrap_or_default(),
        &resource.name,
    )
}

/// Returns the resources that could be parsed.
pub(crate) fn readable(resources: &[Arc<Guarded>]) -> impl Iterator<Item = &Terraform> {
    resources
        .iter()
        .filter_map(|resource| resource.0.as_ref().ok())
}

/// First byte of a readable resource in the watch cache. JSON follows.
const READABLE: u8 = b'+';
/// First byte of an unreadable resource in the watch cache. JSON of the error and the metadata follows.
const UNREADABLE: u8 = b'-';

impl Guarded {
    /// Serializes the resource. Reverses with [`Self::from_bytes`]. The JSON is not nested deeper than that of the API server, because `serde_json`
    /// limits the nesting.
    pub(crate) fn to_bytes(&self) -> Vec<u8> {
        let (first, json) = match &self.0 {
            Ok(tf) => (READABLE, serde_json::to_vec(tf)),
            Err(invalid) => {
                let parts = (&invalid.error, &invalid.metadata);
                (UNREADABLE, serde_json::to_vec(&parts))
            }
        };
        // Does not fail: all keys of maps are strings.
        std::iter::once(first)
            .chain(json.unwrap_or_default())
            .collect()
    }

    /// Returns the resource that [`Self::to_bytes`] serialized; `None` for other bytes.
    pub(crate) fn from_bytes(bytes: &[u8]) -> Option<Self> {
        match bytes.split_first()? {
            (&READABLE, json) => Some(Self(Ok(serde_json::from_slice(json).ok()?))),
            (&UNREADABLE, json) => {
                let (error, metadata) = serde_json::from_slice(json).ok()?;
                Some(Self(Err(InvalidObject { error, metadata })))
            }
            _ => None,
        }
    }
}

/// Whether `object` belongs to `tf`: `object` has the label with the uid of `tf`, and is in the same namespace. False for objects of other
/// owners, and of an earlier resource of the same name.
pub(crate) fn is_made_for(tf: &Terraform, object: &impl ResourceExt) -> bool {
    object.labels().get(labels::UID) == tf.metadata.uid.as_ref()
        && object.namespace() == tf.namespace()
}

/// Whether `component` is the label [`labels::COMPONENT`] of `object`.
pub(crate) fn has_component(object: &impl ResourceExt, component: Component) -> bool {
    let label = object.labels().get(labels::COMPONENT);
    label.is_some_and(|value| value == component.as_str())
}

#[cfg(test)]
mod tests {
    use kube::core::watch::WatchEvent;
    use serde_json::{Value, json};

    use super::*;

    fn resource(variables: &Value, managed_fields: &Value) -> Value {
        json!({
            "apiVersion": "alustan.io/v1alpha1", "kind": "Terraform",
            "metadata": {"name": "web", "namespace": "team", "managedFields": managed_fields},
            "spec": {
                "gitRepo": {"url": "https://git.test/a"}, "containerRegistry": {"imageName": "registry.test/a"},
                "variables": variables,
            },
        })
    }

    /// Returns the resource in a watch event, as the API server sends it.
    fn watched(object: &Value) -> Guarded {
        let event = format!(r#"{{"type":"ADDED","object":{object}}}"#);
        match serde_json::from_str(&event).unwrap() {
            WatchEvent::Added(guarded) => guarded,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_resource_with_too_many_values_is_unreadable() {
        let many = vec![json!({"": 0}); json_size::VALUES];
        let guarded = watched(&resource(&json!({"a": many}), &json!([])));
        assert_eq!(guarded.meta().name.as_deref(), Some("web"));
        let error = guarded.0.unwrap_err().error;
        assert!(error.starts_with("the resource has 20"), "{error}");
    }

    #[test]
    fn managed_fields_do_not_count_as_values() {
        let fields: Value = (0..json_size::VALUES)
            .map(|i| (format!("f:{i}"), json!({})))
            .collect();
        let managed = json!([{"manager": "kubectl", "operation": "Apply", "fieldsV1": fields}]);
        let guarded = watched(&resource(&json!({"a": [1.5, null]}), &managed));
        let tf = guarded.0.unwrap();
        assert_eq!(tf.spec.variables["a"].value(), json!([1.5, null]));
    }

    #[test]
    fn cached_bytes_of_a_resource_return_the_resource() {
        let nested = |depth: usize| {
            let value = (0..depth).fold(json!(1.5), |value, _| json!([value]));
            resource(&json!({"a": value}), &json!([]))
        };
        let is_readable = |object: &Value| watched(object).0.is_ok();
        let deepest = (0..200).map(nested).take_while(is_readable).last();
        let mut unreadable = resource(&json!({}), &json!([]));
        unreadable["spec"]["suspend"] = json!("yes");
        for object in [
            deepest.unwrap(),
            resource(&json!({}), &json!([])),
            unreadable,
        ] {
            let guarded = watched(&object);
            let cached = Guarded::from_bytes(&guarded.to_bytes()).unwrap();
            let text = |guarded: &Guarded| format!("{guarded:?}");
            assert_eq!(text(&cached), text(&guarded));
        }
        assert!(!is_readable(&nested(199)));
    }

    #[test]
    fn unreadable_resource_with_deep_managed_fields_is_cached() {
        for depth in 100..140 {
            let nested = (0..depth).fold(json!({}), |value, _| json!({"f:a": value}));
            let managed = json!([{"manager": "kubectl", "operation": "Apply", "fieldsV1": nested}]);
            let mut resource = resource(&json!({}), &managed);
            resource["spec"]["suspend"] = json!("yes");
            let guarded = watched(&resource);
            assert!(guarded.0.is_err());
            assert!(
                Guarded::from_bytes(&guarded.to_bytes()).is_some(),
                "{depth}"
            );
        }
    }

    #[test]
    fn deeply_nested_resource_is_unreadable_and_keeps_its_metadata() {
        let nested = (0..1_000).fold(json!({}), |value, _| json!({"f:a": value}));
        let managed = json!([{"manager": "kubectl", "operation": "Apply", "fieldsV1": nested}]);
        let guarded = watched(&resource(&json!({"a": nested}), &managed));
        assert_eq!(guarded.meta().name.as_deref(), Some("web"));
        assert_eq!(guarded.meta().namespace.as_deref(), Some("team"));
        assert!(guarded.0.unwrap_err().error.contains("recursion limit"));
    }

    #[test]
    fn invalid_resource_keeps_its_metadata() {
        let mut invalid = resource(&json!({}), &json!([]));
        invalid["spec"]["suspend"] = json!("yes");
        let guarded = watched(&invalid);
        assert_eq!(guarded.meta().name.as_deref(), Some("web"));
        assert!(guarded.0.unwrap_err().error.contains("invalid type"));
    }
}
