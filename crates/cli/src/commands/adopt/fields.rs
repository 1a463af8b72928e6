//! Tables of the fields of other operators, and the report of the fields that an object sets.

use std::collections::BTreeSet;

use serde_json::Value;

/// Handling of a field of another operator.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Handling {
    /// The `Terraform` resource has an equivalent, and `adopt` sets it.
    Has,
    /// The behaviour differs.
    Differs,
    /// There is no equivalent.
    Lacks,
}

impl Handling {
    /// Returns the word in the report and in the documentation.
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Has => "has",
            Self::Differs => "differs",
            Self::Lacks => "lacks",
        }
    }
}

/// Field of another operator. `docs/migration-*.md` contains the tables; a test compares them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Row {
    /// Path below `spec`. `[]` is an item of a list. The row applies to all fields below the path that have no row.
    pub(crate) path: &'static str,
    pub(crate) handling: Handling,
    /// Equivalent, or what to do without one.
    pub(crate) note: &'static str,
    /// Default of the CRD, as JSON. The report omits a field with this value.
    default: &'static str,
}

/// Builds the row of a field with an equivalent.
pub(crate) const fn has(path: &'static str, note: &'static str) -> Row {
    row(path, Handling::Has, note)
}

/// Builds the row of a field with another behaviour.
pub(crate) const fn differs(path: &'static str, note: &'static str) -> Row {
    row(path, Handling::Differs, note)
}

/// Builds the row of a field without an equivalent.
pub(crate) const fn lacks(path: &'static str, note: &'static str) -> Row {
    row(path, Handling::Lacks, note)
}

const fn row(path: &'static str, handling: Handling, note: &'static str) -> Row {
    Row {
        path,
        handling,
        note,
        default: "",
    }
}

impl Row {
    /// Sets the default of the CRD.
    pub(crate) const fn default_is(mut self, json: &'static str) -> Self {
        self.default = json;
        self
    }

    fn is_default(&self, value: &Value) -> bool {
        serde_json::from_str(self.default).is_ok_and(|default: Value| default == *value)
    }

    fn covers(&self, path: &str) -> bool {
        path.strip_prefix(self.path)
            .is_some_and(|rest| rest.is_empty() || rest.starts_with(['.', '[']))
    }
}

/// Message about a field of an object.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Note {
    pub(crate) handling: Handling,
    /// Path of the field.
    pub(crate) path: String,
    pub(crate) text: String,
}

impl Note {
    /// Builds a note about a value that differs.
    pub(crate) fn differs(path: impl Into<String>, text: impl Into<String>) -> Self {
        Self {
            handling: Handling::Differs,
            path: path.into(),
            text: text.into(),
        }
    }

    /// Builds a note about a value that is not copied.
    pub(crate) fn lacks(path: impl Into<String>, text: impl Into<String>) -> Self {
        Self {
            handling: Handling::Lacks,
            path: path.into(),
            text: text.into(),
        }
    }
}

/// Returns a note for each field that `spec` sets and that differs, is lacking, or is not in `rows`. `prefix` is prepended to each path.
pub(crate) fn notes(rows: &[Row], prefix: &str, spec: &Value) -> BTreeSet<Note> {
    let mut leaves = Vec::new();
    collect("", spec, &mut leaves);
    let note = |(path, value): (String, &Value)| {
        let covering = rows
            .iter()
            .filter(|row| row.covers(&path))
            .max_by_key(|row| row.path.len());
        let Some(row) = covering else {
            let text = "this version of kubectl-alustan does not know the field";
            return Some(Note::lacks(format!("{prefix}{path}"), text));
        };
        let is_reported = row.handling != Handling::Has && !row.is_default(value);
        is_reported.then(|| Note {
            handling: row.handling,
            path: format!("{prefix}{}", row.path),
            text: row.note.to_owned(),
        })
    };
    leaves.into_iter().filter_map(note).collect()
}

/// Appends the paths of the scalars below `value`. Empty strings, lists and objects are not set.
fn collect<'a>(path: &str, value: &'a Value, leaves: &mut Vec<(String, &'a Value)>) {
    match value {
        Value::Object(fields) => {
            for (name, value) in fields {
                let below = match path {
                    "" => name.clone(),
                    path => format!("{path}.{name}"),
                };
                collect(&below, value, leaves);
            }
        }
        Value::Array(items) => {
            for item in items {
                collect(&format!("{path}[]"), item, leaves);
            }
        }
        Value::Null => {}
        Value::String(text) if text.is_empty() => {}
        Value::String(_) | Value::Bool(_) | Value::Number(_) => {
            leaves.push((path.to_owned(), value));
        }
    }
}

/// Functions for tests of tables.
#[cfg(test)]
pub(crate) mod table {
    use super::Row;

    /// Formats `rows` as a Markdown table.
    pub(crate) fn markdown(rows: &[Row]) -> String {
        let line = |row: &Row| {
            let note = row.note.replace('|', "\\|");
            format!("| `{}` | {} | {note} |\n", row.path, row.handling.as_str())
        };
        let lines: String = rows.iter().map(line).collect();
        format!("| field | here | equivalent, or what to do |\n|---|---|---|\n{lines}")
    }

    /// Asserts that the page `name` of the documentation contains the table of `rows`.
    pub(crate) fn assert_documented(name: &str, rows: &[Row]) {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/");
        let page = std::fs::read_to_string(format!("{folder}{name}")).unwrap();
        let table = markdown(rows);
        assert!(page.contains(&table), "docs/{name} must contain:\n{table}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    const ROWS: &[Row] = &[
        has("path", "`path`"),
        lacks("pod", "none").default_is("false"),
        differs("pod.image", "another image"),
        lacks("force", "none").default_is("false"),
    ];

    #[test]
    fn every_set_field_without_an_equivalent_is_reported_once() {
        let spec = json!({
            "path": "a", "force": false, "newer": {"list": [{"x": 1}, {"x": 2}]}, "empty": {},
            "pod": {"image": "i", "env": ["a", "b"], "name": ""},
        });
        let notes: Vec<String> = notes(ROWS, "spec.", &spec)
            .into_iter()
            .map(|note| format!("{} {}", note.handling.as_str(), note.path))
            .collect();
        let wanted = [
            "differs spec.pod.image",
            "lacks spec.newer.list[].x",
            "lacks spec.pod",
        ];
        assert_eq!(notes, wanted);
    }

    #[test]
    fn default_is_not_reported() {
        assert!(notes(ROWS, "", &json!({"force": false})).is_empty());
        assert_eq!(notes(ROWS, "", &json!({"force": true})).len(), 1);
    }
}
