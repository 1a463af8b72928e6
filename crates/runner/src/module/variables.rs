//! Values of the variables of the module.

use std::collections::BTreeMap;

use hcl_edit::expr::{Expression, ObjectKey, UnaryOperator};
use serde_json::Value;

/// Values by variable name.
pub type Values = BTreeMap<String, Value>;

/// Removes the prefix `TF_VAR_` from names of variables. If a variable has a value with and without the prefix, keeps the value without the prefix.
pub fn normalise(values: &Values) -> Values {
    let (prefixed, plain): (Vec<_>, Vec<_>) = values
        .iter()
        .partition(|(name, _)| name.starts_with("TF_VAR_"));
    let stripped = prefixed
        .into_iter()
        .map(|(name, value)| (name.trim_start_matches("TF_VAR_").to_owned(), value.clone()));
    stripped
        .chain(
            plain
                .into_iter()
                .map(|(name, value)| (name.clone(), value.clone())),
        )
        .collect()
}

/// Returns the strings and numbers inside the values of the variables that `wanted` selects. If the engine parses a string as a list or an object,
/// includes the strings and numbers inside the list or object.
pub fn texts(values: &Values, wanted: impl Fn(&str) -> bool) -> Vec<String> {
    let mut texts = Vec::new();
    for (_, value) in values.iter().filter(|(name, _)| wanted(name)) {
        collect_texts(value, &mut texts);
    }
    texts
}

/// Parses a literal in HCL syntax, or JSON. Returns `None` for other text, for example for an expression with a function call.
pub(super) fn parsed(text: &str) -> Option<Value> {
    let literal = text.parse::<Expression>().ok();
    literal
        .as_ref()
        .and_then(literal_value)
        .or_else(|| serde_json::from_str(text).ok())
}

fn literal_value(expression: &Expression) -> Option<Value> {
    match expression {
        Expression::Null(_) => Some(Value::Null),
        Expression::Bool(value) => Some((*value.value()).into()),
        Expression::Number(number) => serde_json::from_str(&number.value().to_string()).ok(),
        Expression::String(text) => Some(text.value().clone().into()),
        Expression::Array(items) => items.iter().map(literal_value).collect(),
        Expression::Object(fields) => {
            let fields = fields.iter().map(|(key, field)| {
                let name = match key {
                    ObjectKey::Ident(name) => name.to_string(),
                    ObjectKey::Expression(Expression::String(name)) => name.value().clone(),
                    ObjectKey::Expression(_) => return None,
                };
                Some((name, literal_value(field.expr())?))
            });
            fields
                .collect::<Option<serde_json::Map<_, _>>>()
                .map(Value::Object)
        }
        Expression::Parenthesis(inner) => literal_value(inner.inner()),
        Expression::UnaryOp(operation) if *operation.operator.value() == UnaryOperator::Neg => {
            match literal_value(&operation.expr)? {
                Value::Number(number) => serde_json::from_str(&format!("-{number}")).ok(),
                _ => None,
            }
        }
        _ => None,
    }
}

/// Adds the texts and numbers in `value` to `texts`. A text that contains HCL or JSON is also added in parts.
pub(crate) fn collect_texts(value: &Value, texts: &mut Vec<String>) {
    match value {
        Value::String(text) => {
            texts.push(text.clone());
            if !text.trim_start().starts_with(['[', '{']) {
                return;
            }
            if let Ok(inner) = text.parse::<Expression>() {
                collect_parsed(&inner, texts);
            } else if let Ok(inner) = serde_json::from_str(text) {
                // JSON with an escape that HCL does not have, such as `\/`.
                collect_texts(&inner, texts);
            }
        }
        Value::Number(number) => texts.push(number.to_string()),
        Value::Array(items) => items.iter().for_each(|item| collect_texts(item, texts)),
        Value::Object(fields) => fields
            .values()
            .for_each(|field| collect_texts(field, texts)),
        Value::Null | Value::Bool(_) => {}
    }
}

/// Collects the strings and numbers inside a list or an object in HCL syntax, which includes JSON.
fn collect_parsed(expression: &Expression, texts: &mut Vec<String>) {
    match expression {
        Expression::String(text) => texts.push(text.value().clone()),
        Expression::Number(number) => texts.push(number.value().to_string()),
        Expression::Array(items) => items.iter().for_each(|item| collect_parsed(item, texts)),
        Expression::Object(fields) => fields
            .iter()
            .for_each(|(_, field)| collect_parsed(field.expr(), texts)),
        // The parser returns a template even for a string that contains only escapes such as `$${`.
        Expression::StringTemplate(text) => texts.push(text.to_string()),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;
    use serde_json::json;

    fn values(value: Value) -> Values {
        serde_json::from_value(value).unwrap()
    }

    #[test]
    fn tf_var_prefix_is_stripped_and_plain_name_wins() {
        let given = values(json!({"TF_VAR_a": 1, "TF_VAR_b": 2, "b": 3}));
        assert_eq!(normalise(&given), values(json!({"a": 1, "b": 3})));
    }

    #[test]
    fn strings_in_json_that_hcl_refuses_are_found() {
        let given = values(json!({"list": r#"["a\/b", "secret-value"]"#}));
        let texts = texts(&given, |_| true);
        assert!(texts.contains(&"secret-value".to_owned()), "{texts:?}");
    }

    #[rstest]
    #[case::json(r#"{"user": "app", "keys": ["hush-1", 4711]}"#)]
    #[case::hcl(r#"{ user = "app", keys = ["hush-1", 4711] }"#)]
    fn values_inside_a_secret_string_are_secret_too(#[case] text: &str) {
        let texts = texts(&values(json!({ "db": text })), |_| true);
        assert_eq!(texts, [text, "app", "hush-1", "4711"]);
    }

    #[test]
    fn secret_strings_are_found_at_any_depth() {
        let given = values(json!({"s": {"a": ["one", {"b": "two"}], "n": 12345}, "t": "three"}));
        assert_eq!(
            texts(&given, |name| name == "s"),
            ["one", "two", "12345"].map(String::from).to_vec()
        );
    }
}
