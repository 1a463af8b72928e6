//! Values before and after a change, without sensitive ones.

use std::collections::BTreeSet;

use alustan_api::change_set::{AttributeChange, MAX_VALUE_BYTES, ValueChange};
use serde::Deserialize;
use serde_json::Value;

use crate::module::variables::collect_texts;
use crate::secrets::redact::Redactor;

/// Text that replaces a sensitive part of a value.
const SENSITIVE: &str = "(sensitive value)";

/// Maximum number of changed attributes of a resource. Further attributes are counted.
const MAX_ATTRIBUTES: usize = 200;

/// Maximum length of the path of an attribute, in bytes.
const MAX_PATH_BYTES: usize = 256;

/// Change of a value in the output of `show -json PLAN`. The marks have the structure of the value, with `true` for marked parts.
#[derive(Default, Deserialize)]
#[serde(default)]
pub(super) struct PlannedValue {
    pub(super) before: Value,
    pub(super) after: Value,
    pub(super) after_unknown: Value,
    before_sensitive: Value,
    after_sensitive: Value,
}

impl PlannedValue {
    /// Returns the change of the whole value.
    pub(super) fn change(&self, redactor: &Redactor) -> ValueChange {
        self.node().change(redactor)
    }

    /// Returns the changed attributes, at most [`MAX_ATTRIBUTES`], and the number of the others. `replace_paths`: paths of attributes that
    /// force a replacement.
    pub(super) fn attributes(
        &self,
        replace_paths: &[Vec<Value>],
        redactor: &Redactor,
    ) -> (Vec<AttributeChange>, i64) {
        let mut walk = Walk {
            redactor,
            replace_paths,
            path: Vec::new(),
            found: Vec::new(),
            omitted: 0,
        };
        walk.visit(self.node());
        (walk.found, walk.omitted)
    }

    /// Adds the texts and numbers that are marked as sensitive to `values`.
    pub(super) fn add_sensitive(&self, values: &mut Vec<String>) {
        add_marked(&self.before, &self.before_sensitive, values);
        add_marked(&self.after, &self.after_sensitive, values);
    }

    fn node(&self) -> Node<'_> {
        Node {
            before: &self.before,
            after: &self.after,
            unknown: &self.after_unknown,
            before_sensitive: &self.before_sensitive,
            after_sensitive: &self.after_sensitive,
        }
    }
}

/// A part of a value with its marks.
#[derive(Clone, Copy)]
struct Node<'a> {
    before: &'a Value,
    after: &'a Value,
    unknown: &'a Value,
    before_sensitive: &'a Value,
    after_sensitive: &'a Value,
}

impl<'a> Node<'a> {
    fn child(self, step: &Value) -> Self {
        let part = |whole: &'a Value| match step {
            Value::String(key) => whole.get(key.as_str()),
            Value::Number(index) => index
                .as_u64()
                .and_then(|index| whole.get(usize::try_from(index).ok()?)),
            _ => None,
        };
        let part = |whole| part(whole).unwrap_or(&Value::Null);
        Self {
            before: part(self.before),
            after: part(self.after),
            unknown: part(self.unknown),
            before_sensitive: part(self.before_sensitive),
            after_sensitive: part(self.after_sensitive),
        }
    }

    /// Returns the steps to the parts of the value: keys of an object, or indexes of a list. Empty for a scalar, for a part that is marked as
    /// a whole, and if the type changes.
    fn steps(self) -> Vec<Value> {
        if self.is_sensitive() || is_marked(self.unknown) {
            return Vec::new();
        }
        let values = [self.before, self.after];
        let parts = [self.before, self.after, self.unknown];
        if values
            .iter()
            .all(|value| value.is_object() || value.is_null())
        {
            let objects = parts.into_iter().filter_map(Value::as_object);
            let keys: BTreeSet<&String> = objects.flat_map(serde_json::Map::keys).collect();
            if !keys.is_empty() {
                return keys
                    .into_iter()
                    .map(|key| Value::from(key.as_str()))
                    .collect();
            }
        }
        if values
            .iter()
            .all(|value| value.is_array() || value.is_null())
        {
            let lists = parts.into_iter().filter_map(Value::as_array);
            let length = lists.map(Vec::len).max().unwrap_or(0);
            return (0..length).map(Value::from).collect();
        }
        Vec::new()
    }

    fn is_sensitive(self) -> bool {
        is_marked(self.before_sensitive) || is_marked(self.after_sensitive)
    }

    fn is_changed(self) -> bool {
        self.before != self.after || has_mark(self.unknown)
    }

    fn change(self, redactor: &Redactor) -> ValueChange {
        let is_sensitive = self.is_sensitive();
        let is_unknown = is_marked(self.unknown);
        let text = |value: &Value, marks: &Value| {
            (!is_sensitive && !value.is_null()).then(|| {
                let shown = masked(without_marked(value, marks), redactor);
                redactor.beginning(&shown.to_string(), MAX_VALUE_BYTES)
            })
        };
        ValueChange {
            before: text(self.before, self.before_sensitive),
            after: text(self.after, self.after_sensitive).filter(|_| !is_unknown),
            sensitive: is_sensitive,
            unknown: is_unknown,
        }
    }
}

struct Walk<'a> {
    redactor: &'a Redactor,
    replace_paths: &'a [Vec<Value>],
    path: Vec<Value>,
    found: Vec<AttributeChange>,
    omitted: i64,
}

impl Walk<'_> {
    fn visit(&mut self, node: Node<'_>) {
        if !node.is_changed() {
            return;
        }
        let steps = node.steps();
        if steps.is_empty() {
            self.add(node);
        }
        for step in steps {
            let child = node.child(&step);
            self.path.push(step);
            self.visit(child);
            self.path.pop();
        }
    }

    fn add(&mut self, node: Node<'_>) {
        if self.found.len() >= MAX_ATTRIBUTES {
            self.omitted += 1;
            return;
        }
        self.found.push(AttributeChange {
            path: self
                .redactor
                .beginning(&path_text(&self.path), MAX_PATH_BYTES),
            values: node.change(self.redactor),
            forces_replacement: self
                .replace_paths
                .iter()
                .any(|forcing| forcing.starts_with(&self.path) || self.path.starts_with(forcing)),
        });
    }
}

/// Returns `path` in the syntax of the engine. Example: `tags["a b"].c[0]`.
fn path_text(path: &[Value]) -> String {
    let mut text = String::new();
    for step in path {
        match step {
            Value::String(key) if is_identifier(key) => {
                if !text.is_empty() {
                    text.push('.');
                }
                text.push_str(key);
            }
            step => text.extend(["[", &step.to_string(), "]"]),
        }
    }
    text
}

fn is_identifier(key: &str) -> bool {
    key.starts_with(|first: char| first.is_ascii_alphabetic() || first == '_')
        && key
            .chars()
            .all(|other| other.is_ascii_alphanumeric() || matches!(other, '_' | '-'))
}

/// Whether `mark` marks the whole value.
fn is_marked(mark: &Value) -> bool {
    *mark == Value::Bool(true)
}

/// Whether `mark` marks any part of the value.
pub(super) fn has_mark(mark: &Value) -> bool {
    match mark {
        Value::Bool(is_marked) => *is_marked,
        Value::Array(items) => items.iter().any(has_mark),
        Value::Object(fields) => fields.values().any(has_mark),
        Value::Null | Value::Number(_) | Value::String(_) => false,
    }
}

/// Returns `value` with [`SENSITIVE`] for each part that `marks` marks.
fn without_marked(value: &Value, marks: &Value) -> Value {
    match (value, marks) {
        (_, Value::Bool(true)) => Value::from(SENSITIVE),
        (Value::Object(fields), Value::Object(marks)) => fields
            .iter()
            .map(|(name, field)| {
                let mark = marks.get(name).unwrap_or(&Value::Null);
                (name.clone(), without_marked(field, mark))
            })
            .collect(),
        (Value::Array(items), Value::Array(marks)) => items
            .iter()
            .enumerate()
            .map(|(index, item)| without_marked(item, marks.get(index).unwrap_or(&Value::Null)))
            .collect(),
        (value, _) => value.clone(),
    }
}

/// Masks secret values in each text of `value`. In JSON, a text that itself is JSON has two levels of escapes, and its secret values are not
/// recognised.
fn masked(value: Value, redactor: &Redactor) -> Value {
    match value {
        Value::String(text) => redactor.text(&text).into(),
        Value::Array(items) => items
            .into_iter()
            .map(|item| masked(item, redactor))
            .collect(),
        Value::Object(fields) => fields
            .into_iter()
            .map(|(name, field)| (redactor.text(&name), masked(field, redactor)))
            .collect(),
        other => other,
    }
}

/// Adds the texts and numbers in the parts of `value` that `marks` marks.
fn add_marked(value: &Value, marks: &Value, values: &mut Vec<String>) {
    match (value, marks) {
        (value, Value::Bool(true)) => collect_texts(value, values),
        (Value::Object(fields), Value::Object(marks)) => {
            for (name, mark) in marks {
                add_marked(fields.get(name).unwrap_or(&Value::Null), mark, values);
            }
        }
        (Value::Array(items), Value::Array(marks)) => {
            for (item, mark) in items.iter().zip(marks) {
                add_marked(item, mark, values);
            }
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn attributes(change: Value) -> Vec<AttributeChange> {
        let replace = change.get("replace_paths").cloned().unwrap_or(json!([]));
        let replace: Vec<Vec<Value>> = serde_json::from_value(replace).unwrap();
        let value: PlannedValue = serde_json::from_value(change).unwrap();
        let redactor = Redactor::new(["hush-hush"]);
        let (found, omitted) = value.attributes(&replace, &redactor);
        assert_eq!(omitted, 0);
        found
    }

    /// Formats an attribute as `PATH: BEFORE -> AFTER`, with `!` if the attribute forces a replacement.
    fn line(attribute: &AttributeChange) -> String {
        let AttributeChange {
            path,
            values,
            forces_replacement,
        } = attribute;
        let text = |value: &Option<String>| value.clone().unwrap_or_else(|| "-".to_owned());
        let (before, mut after) = (text(&values.before), text(&values.after));
        if values.unknown {
            after = "(unknown)".to_owned();
        }
        let marks = [
            (values.sensitive, " (sensitive)"),
            (*forces_replacement, " !"),
        ];
        let marks: String = marks
            .into_iter()
            .filter_map(|(is_set, mark)| is_set.then_some(mark))
            .collect();
        format!("{path}: {before} -> {after}{marks}")
    }

    fn lines(change: Value) -> Vec<String> {
        attributes(change).iter().map(line).collect()
    }

    #[test]
    fn changed_attributes_are_listed_by_path() {
        let change = json!({
            "before": {"a": 1, "same": true, "tags": {"a b": "x", "Name": "y"}, "list": [1, 2]},
            "after": {"a": 2, "same": true, "tags": {"Name": "z"}, "list": [1, 3, 4]},
            "after_unknown": {"id": true, "nested": [{"x": true}]},
            "replace_paths": [["a"], ["tags", "Name"]],
        });
        assert_eq!(
            lines(change),
            [
                "a: 1 -> 2 !",
                "id: - -> (unknown)",
                "list[1]: 2 -> 3",
                "list[2]: - -> 4",
                "nested[0].x: - -> (unknown)",
                "tags.Name: \"y\" -> \"z\" !",
                "tags[\"a b\"]: \"x\" -> -",
            ]
        );
    }

    #[test]
    fn created_object_lists_its_values_and_deleted_object_its_former_values() {
        let value = json!({"a": "x", "none": null, "empty": {}});
        let created = json!({"before": null, "after": value});
        assert_eq!(lines(created), ["a: - -> \"x\"", "empty: - -> {}"]);
        let deleted = json!({"before": value, "after": null});
        assert_eq!(lines(deleted), ["a: \"x\" -> -", "empty: {} -> -"]);
    }

    #[test]
    fn sensitive_and_secret_values_are_removed() {
        let change = json!({
            "before": {"password": "marker-1", "user": "a", "users": [{"key": "marker-2", "n": 1}]},
            "after": {"password": "marker-3", "user": "hush-hush", "users": "none"},
            "before_sensitive": {"password": true, "users": [{"key": true}]},
            "after_sensitive": {"password": true},
        });
        assert_eq!(
            lines(change),
            [
                "password: - -> - (sensitive)",
                "user: \"a\" -> \"(redacted)\"",
                "users: [{\"key\":\"(sensitive value)\",\"n\":1}] -> \"none\"",
            ]
        );
    }

    #[test]
    fn value_with_a_mark_on_one_side_is_sensitive() {
        let change = json!({
            "before": {"a": "plain"}, "after": {"a": "marker"},
            "before_sensitive": {}, "after_sensitive": {"a": true},
        });
        assert_eq!(lines(change), ["a: - -> - (sensitive)"]);
    }

    #[test]
    fn sensitive_values_are_collected_for_the_redactor() {
        let change = json!({
            "before": {"a": {"b": "marker-1"}, "c": 12345}, "after": {"list": ["x", "marker-2"]},
            "before_sensitive": {"a": true, "c": true}, "after_sensitive": {"list": [false, true]},
        });
        let value: PlannedValue = serde_json::from_value(change).unwrap();
        let mut values = Vec::new();
        value.add_sensitive(&mut values);
        values.sort();
        assert_eq!(values, ["12345", "marker-1", "marker-2"]);
    }

    #[test]
    fn attributes_and_values_are_bounded() {
        let many: serde_json::Map<_, _> = (0..MAX_ATTRIBUTES + 7)
            .map(|number| (format!("a{number}"), json!("x".repeat(5_000))))
            .collect();
        let change = json!({"before": null, "after": many});
        let value: PlannedValue = serde_json::from_value(change).unwrap();
        let (found, omitted) = value.attributes(&[], &Redactor::default());
        assert_eq!((found.len(), omitted), (MAX_ATTRIBUTES, 7));
        let longest = found
            .iter()
            .filter_map(|change| change.values.after.as_ref());
        assert_eq!(longest.map(String::len).max(), Some(MAX_VALUE_BYTES));
    }

    #[test]
    fn deep_values_are_listed() {
        let deep = |leaf: i64| (0..60).fold(json!(leaf), |inner, _| json!({"a": [inner]}));
        let found = attributes(json!({"before": deep(1), "after": deep(2)}));
        assert_eq!(found.len(), 1);
        assert!(found[0].path.starts_with("a[0].a[0]"), "{}", found[0].path);
        assert!(found[0].path.len() <= MAX_PATH_BYTES);
    }
}
