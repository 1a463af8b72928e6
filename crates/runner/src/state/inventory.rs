//! Managed objects in a state, and their list in the run report.

use std::fmt;
use std::io::Write;

use alustan_api::run::{Inventory, MAX_OBJECTS, ManagedObject, key};
use alustan_state::secrets::{Changes, MAX_SECRET_BYTES, Snapshot, to_json};
use flate2::Compression;
use flate2::write::GzEncoder;
use serde::Deserialize;
use serde::de::{Deserializer, IgnoredAny, SeqAccess, Visitor};
use serde_json::value::RawValue;

use crate::record::RESERVE;
use crate::secrets::redact::Redactor;

/// Maximum size of the texts of all objects together, in bytes.
const MAX_BYTES: usize = 256 << 10;
/// Maximum size of the list in the run report, in bytes of gzip.
const MAX_PACKED: usize = 64 << 10;
/// Maximum size of an address, in bytes. A longer address is truncated.
const MAX_ADDRESS: usize = 1_024;
/// Maximum size of a type, a provider or a deposed key, in bytes. A longer text is truncated.
const MAX_NAME: usize = 256;
/// Maximum size of an id, in bytes. A longer id is omitted.
const MAX_ID: usize = 256;
/// Maximum size of the list of sensitive attributes of an object, in bytes. With a longer list, the id counts as sensitive.
const MAX_PATHS: usize = 64 << 10;

/// Reads the managed objects in `state`; `run`: number of the run that reads it. Returns `None` if the state is empty, or has no list of
/// resources, for example because the engine encrypted it. Keeps at most [`MAX_OBJECTS`] objects; memory does not grow with the number of
/// objects in the state.
///
/// # Errors
///
/// `state` is not the JSON of a state.
pub fn read(state: &[u8], run: i64) -> Result<Option<Inventory>, serde_json::Error> {
    #[derive(Deserialize)]
    struct State {
        #[serde(default)]
        resources: Option<Resources>,
    }
    if state.trim_ascii().is_empty() {
        return Ok(None);
    }
    let state: State = serde_json::from_slice(state)?;
    Ok(state.resources.map(|Resources(collected)| Inventory {
        run,
        ..collected.inventory
    }))
}

/// Masks secret values in addresses. Removes ids that contain a secret value.
pub fn redacted(inventory: Inventory, redactor: &Redactor) -> Inventory {
    let redact = |object: ManagedObject| ManagedObject {
        address: redactor.text(&object.address),
        id: object.id.filter(|id| redactor.text(id) == *id),
        ..object
    };
    Inventory {
        objects: inventory.objects.into_iter().map(redact).collect(),
        ..inventory
    }
}

/// Adds the list to `changes`. Removes the list of an earlier run if the Secret of the run report has no space for the new one.
pub fn keep(snapshot: &Snapshot, changes: &mut Changes, inventory: &Inventory) {
    let entry = key::INVENTORY.to_owned();
    changes.insert(entry.clone(), packed(inventory.clone()));
    if snapshot.size_with(changes) + RESERVE > MAX_SECRET_BYTES {
        changes.insert(entry, None);
    }
}

/// Returns the JSON of `inventory` as gzip, without the last objects if the gzip exceeds [`MAX_PACKED`].
fn packed(mut inventory: Inventory) -> Option<Vec<u8>> {
    loop {
        let mut packed = GzEncoder::new(Vec::new(), Compression::best());
        packed.write_all(&to_json(&inventory)).ok()?;
        let packed = packed.finish().ok()?;
        if packed.len() <= MAX_PACKED || inventory.objects.is_empty() {
            return Some(packed);
        }
        let half = inventory.objects.len() / 2;
        inventory.objects.truncate(half);
        inventory.truncated = true;
    }
}

/// Objects collected so far.
#[derive(Default)]
struct Collected {
    inventory: Inventory,
    bytes: usize,
}

impl Collected {
    fn add(&mut self, object: ManagedObject) {
        let texts = [&object.address, &object.kind, &object.provider];
        let optional = [&object.id, &object.deposed].into_iter().flatten();
        let size: usize = texts.into_iter().chain(optional).map(String::len).sum();
        let has_room = self.inventory.objects.len() < MAX_OBJECTS && self.bytes + size <= MAX_BYTES;
        if has_room && !self.inventory.truncated {
            self.bytes += size;
            self.inventory.objects.push(object);
        } else {
            self.inventory.truncated = true;
        }
    }
}

/// Entry `resources` of a state.
struct Resources(Collected);

impl<'de> Deserialize<'de> for Resources {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct All;
        impl<'de> Visitor<'de> for All {
            type Value = Collected;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a list of resources")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut resources: A) -> Result<Collected, A::Error> {
                let mut collected = Collected::default();
                while let Some(resource) = resources.next_element::<Resource<'_>>()? {
                    resource.collect(&mut collected);
                }
                Ok(collected)
            }
        }
        deserializer.deserialize_seq(All).map(Self)
    }
}

/// A resource of a state, with an instance for each object.
#[derive(Deserialize)]
struct Resource<'a> {
    #[serde(default)]
    module: String,
    #[serde(default)]
    mode: String,
    #[serde(default, rename = "type")]
    kind: String,
    #[serde(default)]
    name: String,
    #[serde(default)]
    provider: String,
    #[serde(borrow, default)]
    instances: Instances<'a>,
}

impl Resource<'_> {
    fn collect(&self, collected: &mut Collected) {
        if self.mode != "managed" {
            return;
        }
        let count = i64::try_from(self.instances.count).unwrap_or(i64::MAX);
        let total = collected.inventory.count.saturating_add(count);
        collected.inventory.count = total;
        for instance in &self.instances.kept {
            collected.add(self.object(instance));
        }
        let kept = self.instances.kept.len();
        collected.inventory.truncated |= kept < self.instances.count;
    }

    fn object(&self, instance: &Instance<'_>) -> ManagedObject {
        let module = match self.module.as_str() {
            "" => String::new(),
            module => format!("{module}."),
        };
        let key = instance.index_key.map_or_else(String::new, index);
        let address = format!("{module}{}.{}{key}", self.kind, self.name);
        ManagedObject {
            address: truncated(&address, MAX_ADDRESS),
            kind: truncated(&self.kind, MAX_NAME),
            provider: truncated(provider(&self.provider), MAX_NAME),
            id: instance.id(),
            deposed: instance
                .deposed
                .as_deref()
                .map(|key| truncated(key, MAX_NAME)),
            tainted: instance.status.as_deref() == Some("tainted"),
        }
    }
}

/// The first [`MAX_OBJECTS`] instances of a resource, and the number of all.
#[derive(Default)]
struct Instances<'a> {
    kept: Vec<Instance<'a>>,
    count: usize,
}

impl<'de: 'a, 'a> Deserialize<'de> for Instances<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct All;
        impl<'de> Visitor<'de> for All {
            type Value = Instances<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a list of instances")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Self::Value, A::Error> {
                let mut instances = Instances::default();
                loop {
                    let next = if instances.kept.len() < MAX_OBJECTS {
                        list.next_element()?
                            .map(|instance| instances.kept.push(instance))
                    } else {
                        list.next_element::<IgnoredAny>()?.map(drop)
                    };
                    if next.is_none() {
                        return Ok(instances);
                    }
                    instances.count += 1;
                }
            }
        }
        deserializer.deserialize_seq(All)
    }
}

/// An object in a state.
#[derive(Deserialize)]
struct Instance<'a> {
    #[serde(borrow, default)]
    index_key: Option<&'a RawValue>,
    #[serde(default)]
    status: Option<String>,
    #[serde(default)]
    deposed: Option<String>,
    #[serde(borrow, default)]
    attributes: Option<Attributes<'a>>,
    #[serde(borrow, default)]
    sensitive_attributes: Option<&'a RawValue>,
}

/// Attributes of an object, without the other attributes.
#[derive(Deserialize)]
struct Attributes<'a> {
    #[serde(borrow, default)]
    id: Option<&'a RawValue>,
}

impl Instance<'_> {
    /// Returns attribute `id` if it is a short text or number, and not sensitive.
    fn id(&self) -> Option<String> {
        #[derive(Deserialize)]
        #[serde(untagged)]
        enum Id {
            Text(String),
            Number(i64),
        }
        let id = self.attributes.as_ref()?.id?.get();
        if id.len() > MAX_ID || self.is_id_sensitive() {
            return None;
        }
        match serde_json::from_str(id).ok()? {
            Id::Text(text) => Some(text),
            Id::Number(number) => Some(number.to_string()),
        }
    }

    /// Whether the path of a sensitive attribute is `id`, below `id`, or the whole object. Also true if the paths cannot be read.
    fn is_id_sensitive(&self) -> bool {
        #[derive(Deserialize)]
        struct Step {
            #[serde(default)]
            value: serde_json::Value,
        }
        let Some(paths) = self.sensitive_attributes.map(RawValue::get) else {
            return false;
        };
        if paths.len() > MAX_PATHS {
            return true;
        }
        let Ok(paths) = serde_json::from_str::<Option<Vec<Vec<Step>>>>(paths) else {
            return true;
        };
        let mut paths = paths.into_iter().flatten();
        paths.any(|path| path.first().is_none_or(|step| step.value == "id"))
    }
}

/// Returns the index of an instance in its address. The engine escapes `<`, `>` and `&` in the JSON of the state, but not in an address.
fn index(key: &RawValue) -> String {
    let key = key.get();
    let text = Some(key).filter(|key| key.len() <= MAX_ADDRESS);
    let text = text.and_then(|key| serde_json::from_str::<String>(key).ok());
    match text {
        Some(text) => format!("[{}]", serde_json::Value::from(text)),
        None => format!("[{key}]"),
    }
}

/// Returns the address of the provider in `configured`. Example: `registry.terraform.io/hashicorp/aws` of
/// `module.a.provider["registry.terraform.io/hashicorp/aws"].west`.
fn provider(configured: &str) -> &str {
    let address = configured
        .split_once("provider[\"")
        .and_then(|(_, rest)| rest.split_once('"'));
    address.map_or(configured, |(address, _)| address)
}

fn truncated(text: &str, limit: usize) -> String {
    let end = text.floor_char_boundary(limit);
    text.get(..end).unwrap_or_default().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;
    use serde_json::{Value, json};

    const AWS: &str = r#"module.a.provider["registry.terraform.io/hashicorp/aws"].west"#;

    fn listed(resources: &Value) -> Inventory {
        let state = json!({"version": 4, "lineage": "l", "serial": 3, "resources": resources});
        read(state.to_string().as_bytes(), 7).unwrap().unwrap()
    }

    fn one(instance: &Value) -> ManagedObject {
        let resource = json!({
            "mode": "managed", "type": "t", "name": "n", "provider": AWS, "instances": [instance],
        });
        listed(&json!([resource])).objects.remove(0)
    }

    #[test]
    fn managed_objects_are_listed_with_their_marks() {
        let inventory = listed(&json!([
            {"mode": "data", "type": "aws_ami", "name": "a", "instances": [{}, {}]},
            {"module": "module.dns[0]", "mode": "managed", "type": "aws_route53_record",
             "name": "a", "provider": AWS, "each": "map", "instances": [
                {"index_key": "www \"x\" ü", "schema_version": 0, "attributes": {"id": "Z1", "fqdn": "hush"}},
                {"index_key": 2, "status": "tainted", "attributes": {"id": 5}},
            ]},
            {"mode": "managed", "type": "b", "name": "c", "provider": "p", "instances": [
                {"attributes": {}}, {"deposed": "0a1b2c3d", "attributes": {"id": null}},
            ]},
        ]));
        let object = |address: &str, kind: &str, provider: &str| ManagedObject {
            address: address.to_owned(),
            kind: kind.to_owned(),
            provider: provider.to_owned(),
            ..ManagedObject::default()
        };
        let (record, aws) = ("aws_route53_record", "registry.terraform.io/hashicorp/aws");
        let wanted = Inventory {
            run: 7,
            count: 4,
            truncated: false,
            objects: vec![
                ManagedObject {
                    id: Some("Z1".to_owned()),
                    ..object(
                        r#"module.dns[0].aws_route53_record.a["www \"x\" ü"]"#,
                        record,
                        aws,
                    )
                },
                ManagedObject {
                    id: Some("5".to_owned()),
                    tainted: true,
                    ..object("module.dns[0].aws_route53_record.a[2]", record, aws)
                },
                object("b.c", "b", "p"),
                ManagedObject {
                    deposed: Some("0a1b2c3d".to_owned()),
                    ..object("b.c", "b", "p")
                },
            ],
        };
        assert_eq!(inventory, wanted);
        assert!(!format!("{inventory:?}").contains("hush"));
    }

    #[rstest]
    #[case::id(json!([[{"type": "get_attr", "value": "id"}]]), None)]
    #[case::below_id(json!([[{"type": "get_attr", "value": "id"}, {"type": "index"}]]), None)]
    #[case::whole_object(json!([[]]), None)]
    #[case::unreadable(json!("id"), None)]
    #[case::many(json!([[{"type": "get_attr", "value": "x".repeat(MAX_PATHS)}]]), None)]
    #[case::another(json!([[{"type": "get_attr", "value": "password"}]]), Some("i"))]
    #[case::none(json!([]), Some("i"))]
    #[case::null(Value::Null, Some("i"))]
    fn sensitive_id_is_omitted(#[case] paths: Value, #[case] id: Option<&str>) {
        let object = one(&json!({"attributes": {"id": "i"}, "sensitive_attributes": paths}));
        assert_eq!(object.id.as_deref(), id);
    }

    #[rstest]
    #[case::long(json!("x".repeat(MAX_ID)))]
    #[case::list(json!(["a"]))]
    #[case::object(json!({"a": 1}))]
    fn id_is_a_short_text(#[case] id: Value) {
        assert_eq!(one(&json!({"attributes": {"id": id}})).id, None);
    }

    #[test]
    fn number_and_size_of_listed_objects_are_limited() {
        let resource = |name: &str, count: usize| {
            json!({"mode": "managed", "type": "t", "name": name, "provider": "p",
                "instances": vec![json!({}); count]})
        };
        let inventory = listed(&json!([resource("n", MAX_OBJECTS)]));
        assert_eq!((inventory.count, inventory.truncated), (1_000, false));
        let many = listed(&json!([resource("n", MAX_OBJECTS + 5), resource("m", 3)]));
        assert_eq!((many.count, many.truncated), (1_008, true));
        assert_eq!(many.objects.len(), MAX_OBJECTS);

        let long = listed(&json!([resource(&"ü".repeat(MAX_ADDRESS), 600)]));
        assert_eq!((long.count, long.truncated), (600, true));
        let sizes = long.objects.iter().map(|object| object.address.len());
        assert!(sizes.clone().all(|size| size <= MAX_ADDRESS));
        assert!(sizes.sum::<usize>() <= MAX_BYTES);
    }

    #[test]
    fn markup_in_a_key_has_the_form_of_the_engine() {
        let state = br#"{"resources": [{"mode": "managed", "type": "t", "name": "n",
            "instances": [{"index_key": "\u003ca\u003e \u0026 \u00fc"}]}]}"#;
        let inventory = read(state, 1).unwrap().unwrap();
        assert_eq!(inventory.objects[0].address, "t.n[\"<a> & ü\"]");
    }

    #[test]
    fn known_secrets_are_not_in_the_inventory() {
        let object = ManagedObject {
            address: "t.n[\"hush-hush\"]".to_owned(),
            id: Some("id-of-hush-hush".to_owned()),
            ..ManagedObject::default()
        };
        let inventory = Inventory {
            objects: vec![object],
            ..Inventory::default()
        };
        let redacted = redacted(inventory, &Redactor::new(["hush-hush"]));
        assert_eq!(redacted.objects[0].id, None);
        assert_eq!(redacted.objects[0].address, "t.n[\"(redacted)\"]");
    }

    #[rstest]
    #[case::room(0, true)]
    #[case::unsaved_state(1_040, false)]
    fn list_is_written_only_if_the_secret_has_room(#[case] kib: usize, #[case] is_kept: bool) {
        let snapshot = Snapshot {
            data: [(key::LEFTOVER.to_owned(), vec![0; kib * 1024])].into(),
            ..Snapshot::default()
        };
        let random = |number: usize| ManagedObject {
            address: hex::encode(ring::digest::digest(
                &ring::digest::SHA256,
                &number.to_le_bytes(),
            ))
            .repeat(2),
            ..ManagedObject::default()
        };
        let inventory = Inventory {
            objects: (0..2 * MAX_OBJECTS).map(random).collect(),
            ..Inventory::default()
        };
        let mut changes = Changes::new();
        keep(&snapshot, &mut changes, &inventory);
        let packed = &changes[key::INVENTORY];
        assert_eq!(packed.is_some(), is_kept);
        assert!(packed.iter().all(|packed| packed.len() <= MAX_PACKED));
    }

    #[test]
    fn state_without_resources_has_no_inventory() {
        assert_eq!(read(b" \n", 1).unwrap(), None);
        let encrypted = br#"{"serial": 1, "lineage": "l", "encrypted_data": "YQ=="}"#;
        assert_eq!(read(encrypted, 1).unwrap(), None);
        assert!(read(b"no state", 1).is_err());
        assert_eq!(listed(&json!([])).count, 0);
    }
}
