//! Objects of the API server with metadata that cannot be parsed.

use std::borrow::Cow;
use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::Resource;
use kube::runtime::watcher::Event;
use serde::de::{self, DeserializeOwned};
use serde::{Deserialize, Deserializer};
use serde_json::value::RawValue;

/// Object without `metadata.managedFields` if they cannot be parsed. Any client that may create an object can write them, for example
/// nested more than 127 deep, which `serde_json` refuses. One such object would stop the list and the watch of all objects.
#[derive(Clone, Debug)]
pub(crate) struct Lenient<K>(pub(crate) K);

impl<'de, K: DeserializeOwned> Deserialize<'de> for Lenient<K> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text: Box<RawValue> = Deserialize::deserialize(deserializer)?;
        let parsed = serde_json::from_str(text.get()).or_else(|_| {
            let text = without_managed_fields(text.get())?;
            serde_json::from_str(&text)
        });
        parsed.map(Self).map_err(de::Error::custom)
    }
}

/// Returns the object `text`, in JSON, without `metadata.managedFields`.
fn without_managed_fields(text: &str) -> serde_json::Result<String> {
    type Fields<'a> = BTreeMap<String, &'a RawValue>;
    let mut object: Fields<'_> = serde_json::from_str(text)?;
    let metadata = object.get("metadata").map(|metadata| {
        let mut metadata: Fields<'_> = serde_json::from_str(metadata.get())?;
        metadata.remove("managedFields");
        serde_json::value::to_raw_value(&metadata)
    });
    let metadata = metadata.transpose()?;
    if let Some(metadata) = &metadata {
        object.insert("metadata".to_owned(), metadata);
    }
    serde_json::to_string(&object)
}

impl<K: Resource> Resource for Lenient<K> {
    type DynamicType = K::DynamicType;
    type Scope = K::Scope;

    fn kind(dynamic: &K::DynamicType) -> Cow<'_, str> {
        K::kind(dynamic)
    }

    fn group(dynamic: &K::DynamicType) -> Cow<'_, str> {
        K::group(dynamic)
    }

    fn version(dynamic: &K::DynamicType) -> Cow<'_, str> {
        K::version(dynamic)
    }

    fn plural(dynamic: &K::DynamicType) -> Cow<'_, str> {
        K::plural(dynamic)
    }

    fn meta(&self) -> &ObjectMeta {
        self.0.meta()
    }

    fn meta_mut(&mut self) -> &mut ObjectMeta {
        self.0.meta_mut()
    }
}

/// Returns the event of the object itself.
pub(crate) fn event<K>(event: Event<Lenient<K>>) -> Event<K> {
    match event {
        Event::Init => Event::Init,
        Event::InitApply(object) => Event::InitApply(object.0),
        Event::InitDone => Event::InitDone,
        Event::Apply(object) => Event::Apply(object.0),
        Event::Delete(object) => Event::Delete(object.0),
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::Secret;
    use kube::ResourceExt;

    use super::*;

    /// Returns the JSON of a Secret with these `managedFields`.
    fn secret(managed_fields: &str) -> String {
        format!(
            r#"{{"metadata": {{"name": "web", "labels": {{"a": "b"}}, "managedFields": {managed_fields}}}, "data": {{"key": "dmFsdWU="}}}}"#
        )
    }

    #[test]
    fn unreadable_managed_fields_are_left_out() {
        let nested = format!(
            "{}{}",
            r#"{"f:a":"#.repeat(200),
            "{}".to_owned() + &"}".repeat(200)
        );
        let deep = secret(&format!(r#"[{{"fieldsV1": {nested}}}]"#));
        let late = secret(r#"[{"time": "9999-12-31T23:59:59Z"}]"#);
        for text in [deep, late] {
            assert!(serde_json::from_str::<Secret>(&text).is_err());
            let secret: Lenient<Secret> = serde_json::from_str(&text).unwrap();
            let secret = secret.0;
            assert_eq!(
                (secret.name_any().as_str(), secret.labels()["a"].as_str()),
                ("web", "b")
            );
            assert_eq!(secret.data.unwrap()["key"].0, b"value");
            assert_eq!(secret.metadata.managed_fields, None);
        }
        let readable: Lenient<Secret> =
            serde_json::from_str(&secret(r#"[{"manager": "kubectl"}]"#)).unwrap();
        assert!(readable.0.metadata.managed_fields.is_some());
    }
}
