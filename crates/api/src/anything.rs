//! Any JSON value, as in `spec.variables`.

use schemars::JsonSchema;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::Value;

/// Any JSON value, stored as text to save memory: see [`crate::json_size`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Anything(Box<str>);

impl Anything {
    /// Parses the value.
    pub fn value(&self) -> Value {
        // The text is always valid JSON: it was formatted from a `Value`.
        serde_json::from_str(&self.0).unwrap_or_default()
    }
}

impl From<Value> for Anything {
    fn from(value: Value) -> Self {
        Self(value.to_string().into())
    }
}

impl Serialize for Anything {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.value().serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Anything {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Value::deserialize(deserializer).map(Self::from)
    }
}

impl JsonSchema for Anything {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "Anything".into()
    }

    fn inline_schema() -> bool {
        true
    }

    fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
        schemars::json_schema!({ "nullable": true, "x-kubernetes-preserve-unknown-fields": true })
    }
}
