//! Outputs in the status (`spec.outputs.status`).

use alustan_api::run::{Output, Outputs, StatusOutputs};
use alustan_api::{OmittedOutput, OutputValue, Reason, Terraform, json_size};
use serde_json::Value;

/// Maximum number of outputs. `spec.outputs.status` has the same limit in the schema.
const MAX_OUTPUTS: usize = 64;
/// Maximum size of names and values together, in bytes of JSON.
const MAX_BYTES: usize = 16 << 10;
/// Maximum number of JSON values together. A resource with more than [`json_size::VALUES`] in spec and status cannot be read.
const MAX_VALUES: usize = 1_000;
/// Maximum number of nested lists and objects in a value. A JSON parser refuses a resource with more than 128 levels.
const MAX_DEPTH: usize = 32;
/// Maximum size of the name of an output, in bytes.
const MAX_NAME: usize = 253;

/// Selects the outputs that `spec.outputs.status` of `tf` names, in this order, within the limits of size. Never selects a sensitive output.
pub fn select(tf: &Terraform, outputs: &Outputs) -> StatusOutputs {
    let mut selected = StatusOutputs::default();
    let (mut bytes, mut values) = (0, 0);
    for name in names(tf) {
        let reason = match checked(outputs.get(name)) {
            Ok(value) => {
                let text = value.to_string();
                let size = name.len() + text.len();
                let count = json_size::values(text.as_bytes());
                if bytes + size <= MAX_BYTES && values + count <= MAX_VALUES {
                    bytes += size;
                    values += count;
                    let value = OutputValue::from(value.clone());
                    selected.values.insert(name.clone(), value);
                    continue;
                }
                Reason::OutputsTooLarge
            }
            Err(reason) => reason,
        };
        selected.omitted.push(OmittedOutput {
            name: name.clone(),
            reason: reason.into(),
        });
    }
    selected
}

/// Returns the outputs of `selected` that `spec.outputs.status` of `tf` names. A name that was removed from the field takes effect before
/// the next apply.
pub fn still_selected(tf: &Terraform, selected: &StatusOutputs) -> StatusOutputs {
    let is_selected = |wanted: &String| names(tf).any(|name| name == wanted);
    StatusOutputs {
        values: selected
            .values
            .iter()
            .filter(|(name, _)| is_selected(name))
            .map(|(name, value)| (name.clone(), value.clone()))
            .collect(),
        omitted: selected
            .omitted
            .iter()
            .filter(|output| is_selected(&output.name))
            .cloned()
            .collect(),
    }
}

fn names(tf: &Terraform) -> impl Iterator<Item = &String> {
    let names = tf.spec.outputs.iter().flat_map(|outputs| &outputs.status);
    names
        .filter(|name| name.len() <= MAX_NAME)
        .take(MAX_OUTPUTS)
}

/// Returns the value of `output`.
///
/// # Errors
///
/// Reason for which the value must not be in the status.
fn checked(output: Option<&Output>) -> Result<&Value, Reason> {
    match output {
        Some(output) if output.sensitive => Err(Reason::OutputSensitive),
        None => Err(Reason::OutputNotFound),
        Some(output) if output.value.is_null() => Err(Reason::OutputNotFound),
        Some(output) if !is_flat(&output.value, MAX_DEPTH) => Err(Reason::OutputsTooLarge),
        Some(output) => Ok(&output.value),
    }
}

/// Whether `value` has at most `depth` nested lists and objects.
fn is_flat(value: &Value, depth: usize) -> bool {
    match value {
        Value::Array(values) => depth > 0 && values.iter().all(|value| is_flat(value, depth - 1)),
        Value::Object(fields) => {
            depth > 0 && fields.values().all(|value| is_flat(value, depth - 1))
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => true,
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use rstest::rstest;
    use serde_json::json;

    use super::*;

    fn resource(status: &Value) -> Terraform {
        serde_json::from_value(json!({
            "metadata": {"name": "web"},
            "spec": {
                "gitRepo": {"url": "https://git.test/a"},
                "containerRegistry": {"imageName": "registry.test/a"},
                "outputs": {"status": status},
            },
        }))
        .unwrap()
    }

    fn outputs<const N: usize>(outputs: [(&str, Value); N]) -> Outputs {
        outputs
            .map(|(name, value)| {
                let sensitive = name.starts_with("secret");
                (name.to_owned(), Output { value, sensitive })
            })
            .into()
    }

    fn nested(depth: usize) -> Value {
        (0..depth).fold(json!(1), |value, _| json!([value]))
    }

    fn selected(status: &Value, of: &Outputs) -> (Value, BTreeMap<String, String>) {
        let selected = select(&resource(status), of);
        let omitted = selected.omitted.into_iter();
        (
            json!(selected.values),
            omitted.map(|output| (output.name, output.reason)).collect(),
        )
    }

    #[rstest]
    #[case::text(json!("ü\u{1F600}\u{0}"), None)]
    #[case::object(json!({"a": [1, 2.5, null, true]}), None)]
    #[case::null(Value::Null, Some("OutputNotFound"))]
    #[case::largest(json!("x".repeat(MAX_BYTES - 2 - "a".len())), None)]
    #[case::too_large(json!("x".repeat(MAX_BYTES - 1 - "a".len())), Some("OutputsTooLarge"))]
    #[case::most_values(json!(vec![0; MAX_VALUES - 1]), None)]
    #[case::too_many_values(json!(vec![0; MAX_VALUES]), Some("OutputsTooLarge"))]
    #[case::deepest(nested(MAX_DEPTH), None)]
    #[case::too_deep(nested(MAX_DEPTH + 1), Some("OutputsTooLarge"))]
    fn output_within_the_limits_is_selected(#[case] value: Value, #[case] reason: Option<&str>) {
        let (values, omitted) = selected(&json!(["a"]), &outputs([("a", value.clone())]));
        assert_eq!(omitted.get("a").map(String::as_str), reason);
        let wanted = if reason.is_some() {
            json!({})
        } else {
            json!({"a": value})
        };
        assert_eq!(values, wanted);
    }

    #[test]
    fn sensitive_and_missing_outputs_are_omitted_with_a_reason() {
        let of = outputs([
            ("secret", json!("hush")),
            ("secret_null", Value::Null),
            ("url", json!("u")),
            ("unused", json!(1)),
        ]);
        let (values, omitted) = selected(&json!(["secret", "secret_null", "url", "typo"]), &of);
        assert_eq!(values, json!({"url": "u"}));
        let wanted = [
            ("secret", "OutputSensitive"),
            ("secret_null", "OutputSensitive"),
            ("typo", "OutputNotFound"),
        ];
        let wanted = wanted.map(|(name, reason)| (name.to_owned(), reason.to_owned()));
        assert_eq!(omitted, wanted.into());
    }

    #[test]
    fn outputs_beyond_the_total_size_are_omitted_in_order() {
        let half = json!("x".repeat(MAX_BYTES / 2));
        let of = outputs([("a", half.clone()), ("b", half), ("c", json!(1))]);
        let (values, omitted) = selected(&json!(["b", "a", "c"]), &of);
        assert_eq!(values.as_object().unwrap().len(), 2);
        assert!(values["b"].is_string() && values["c"] == 1);
        assert_eq!(omitted["a"], "OutputsTooLarge");
    }

    #[test]
    fn names_beyond_the_limits_are_ignored() {
        let names: Vec<_> = (0..=MAX_OUTPUTS)
            .map(|number| format!("o{number}"))
            .collect();
        let of = names
            .iter()
            .map(|name| {
                let value = json!(1);
                (
                    name.clone(),
                    Output {
                        value,
                        sensitive: false,
                    },
                )
            })
            .collect();
        let selected = select(&resource(&json!(names)), &of);
        assert_eq!(selected.values.len(), MAX_OUTPUTS);
        let long = select(&resource(&json!(["x".repeat(MAX_NAME + 1)])), &of);
        assert!(long.is_empty());
    }

    #[test]
    fn removed_name_is_no_longer_selected() {
        let of = outputs([("a", json!(1)), ("b", json!(2)), ("secret", json!(3))]);
        let all = select(&resource(&json!(["a", "b", "secret"])), &of);
        let left = still_selected(&resource(&json!(["b"])), &all);
        assert_eq!(json!(left.values), json!({"b": 2}));
        assert!(left.omitted.is_empty());
        let none = still_selected(&resource(&json!([])), &all);
        assert!(none.is_empty());
    }
}
