//! Value of an output in the status.

use serde::{Deserialize, Deserializer, Serialize};
use serde_json::{Number, Value};

use crate::anything::Anything;

/// Value of an output in the status. Numbers have the form in which the API server returns them, so that a written status equals the status
/// that is read back: an integer if the number is an integer of 64 bits with sign, otherwise a floating-point number.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(transparent)]
pub struct OutputValue(Anything);

impl OutputValue {
    /// Parses the value.
    pub fn value(&self) -> Value {
        self.0.value()
    }
}

impl From<Value> for OutputValue {
    fn from(value: Value) -> Self {
        Self(as_stored(value).into())
    }
}

impl<'de> Deserialize<'de> for OutputValue {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Value::deserialize(deserializer).map(Self::from)
    }
}

fn as_stored(value: Value) -> Value {
    match value {
        Value::Number(number) => Value::Number(stored_number(number)),
        Value::Array(values) => values.into_iter().map(as_stored).collect(),
        Value::Object(fields) => fields
            .into_iter()
            .map(|(name, value)| (name, as_stored(value)))
            .collect(),
        Value::Null | Value::Bool(_) | Value::String(_) => value,
    }
}

fn stored_number(number: Number) -> Number {
    if number.is_i64() {
        return number;
    }
    let Some(float) = number.as_f64() else {
        return number;
    };
    let integer = (float.fract() == 0.0)
        .then(|| format!("{float:.0}").parse::<i64>().ok())
        .flatten();
    integer
        .map(Number::from)
        .or_else(|| Number::from_f64(float))
        .unwrap_or(number)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_equal_after_a_round_trip_of_the_api_server() {
        for (reported, returned) in [
            ("1", "1"),
            ("1.0", "1"),
            ("-0.0", "0"),
            ("1.5", "1.5"),
            ("9.3e18", "9300000000000000000"),
            ("9300000000000000000", "9300000000000000000"),
            ("18446744073709551615", "18446744073709552000"),
            ("-9223372036854775808", "-9223372036854775808"),
            ("1e30", "1e+30"),
            (r#"{"a": [2.0, null]}"#, r#"{"a": [2, null]}"#),
        ] {
            let [reported, returned] =
                [reported, returned].map(|text| serde_json::from_str::<OutputValue>(text).unwrap());
            assert_eq!(reported, returned);
        }
    }
}
