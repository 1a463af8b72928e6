//! Edits of one node of the schema: valid values and values at, below and above each bound, and values of wrong forms.

use alustan_api::{ABANDON, APPLY_AT, CANCEL_RUN, DISCARD_PLAN, KEPT, PLAN_AT, RECONCILE_AT};
use serde_json::{Map, Value, json};

use crate::mutate::schema::{Change, ENTRY, Node, sample};

/// Annotations of a resource that the operator reads.
pub(crate) const ANNOTATIONS: [&str; 7] = [
    RECONCILE_AT,
    APPLY_AT,
    PLAN_AT,
    CANCEL_RUN,
    DISCARD_PLAN,
    ABANDON,
    KEPT,
];

/// Length of a string for which the schema has no maximum.
const LONG: usize = 70 << 10;

/// An edit of a resource.
#[derive(Clone, Debug)]
pub(crate) struct Edit {
    pub(crate) target: Target,
    /// Kind of the edit, for messages.
    pub(crate) kind: &'static str,
    pub(crate) change: Change,
}

/// What an [`Edit`] changes.
#[derive(Clone, Debug)]
pub(crate) enum Target {
    Node(Node),
    /// Annotation of the resource.
    Annotation(&'static str),
}

impl Edit {
    /// Returns the path of the edited value.
    pub(crate) fn path(&self) -> String {
        match &self.target {
            Target::Node(node) => node.path.clone(),
            Target::Annotation(name) => format!("metadata.annotations{{{name}}}"),
        }
    }

    /// Returns `resource` with the edit.
    pub(crate) fn apply(&self, mut resource: Value) -> Value {
        match (&self.target, &self.change) {
            (Target::Node(node), change) => {
                crate::mutate::schema::change(&mut resource["spec"], node, change);
            }
            (Target::Annotation(name), Change::Set(value)) => {
                resource["metadata"]["annotations"][*name] = value.clone();
            }
            (Target::Annotation(name), Change::Remove | Change::Repeat) => {
                if let Some(all) = resource["metadata"]["annotations"].as_object_mut() {
                    all.remove(*name);
                }
            }
        }
        resource
    }
}

/// Returns the edits of `node`.
pub(crate) fn of_node(node: &Node) -> Vec<Edit> {
    let set = |kind, value| (kind, Change::Set(value));
    let mut changes = vec![("deleted", Change::Remove), set("null", Value::Null)];
    changes.push(set("valid", sample(node.schema, &node.path)));
    let schema = node.schema;
    match schema["type"].as_str() {
        Some("string") => changes.extend(strings(schema)),
        Some("integer") => changes.extend(integers(schema)),
        Some("boolean") => changes.extend([
            set("zero", json!(false)),
            set("other", json!(true)),
            set("wrong type", json!("yes")),
        ]),
        Some("array") => changes.extend(lists(node)),
        Some("object") if schema.get("additionalProperties").is_some() => {
            changes.extend(maps(node));
        }
        Some("object") => {
            changes.extend([set("zero", json!({})), set("wrong type", json!("text"))]);
        }
        _ if schema["x-kubernetes-int-or-string"] == true => changes.extend(quantities()),
        _ => changes.extend(anything()),
    }
    let edit = |(kind, change)| Edit {
        target: Target::Node(node.clone()),
        kind,
        change,
    };
    changes.into_iter().map(edit).collect()
}

/// Returns the edits of the annotation `name`.
pub(crate) fn of_annotation(name: &'static str) -> Vec<Edit> {
    let set = |kind, value: String| (kind, Change::Set(value.into()));
    let changes = [
        ("deleted", Change::Remove),
        set("zero", String::new()),
        set("valid", "1".to_owned()),
        set("malformed", "not-a-number, {{ . }}".to_owned()),
        set("long", "9".repeat(LONG)),
        set("control characters", CONTROL.to_owned()),
        set("unicode", UNICODE.to_owned()),
        ("wrong type", Change::Set(json!({"a": 1}))),
    ];
    let edit = |(kind, change)| Edit {
        target: Target::Annotation(name),
        kind,
        change,
    };
    changes.into_iter().map(edit).collect()
}

const UNICODE: &str = "zürich-\u{202e}\u{1f680}\u{fffd}";
const CONTROL: &str = "a\u{0}\n\t\u{1b}[31m";

fn strings(schema: &Value) -> Vec<(&'static str, Change)> {
    let set = |kind, value: String| (kind, Change::Set(value.into()));
    let mut changes = vec![
        set("zero", String::new()),
        ("wrong type", Change::Set(json!(1))),
        ("wrong structure", Change::Set(json!({"a": ["b"]}))),
    ];
    if let Some(values) = schema["enum"].as_array() {
        let others = values.iter().skip(1);
        changes.extend(others.map(|value| ("other", Change::Set(value.clone()))));
        changes.push(set("wrong", "Wrong".to_owned()));
        return changes;
    }
    let malformed = [
        "-",
        "../..",
        "Not a name!",
        "5 parsecs",
        "https://",
        "object.",
        "$(A) {{ . }}",
    ];
    changes.extend(malformed.map(|text| set("malformed", text.to_owned())));
    changes.extend([
        set("unicode", UNICODE.to_owned()),
        set("control characters", CONTROL.to_owned()),
    ]);
    let length = |name: &str| {
        schema[name]
            .as_u64()
            .map(|length| usize::try_from(length).unwrap())
    };
    match length("maxLength") {
        Some(max) => changes.extend([
            set("at the maximum", "a".repeat(max)),
            set("above the maximum", "a".repeat(max + 1)),
        ]),
        None => changes.push(set("long", "a".repeat(LONG))),
    }
    if let Some(min) = length("minLength") {
        changes.push(set("at the minimum", "a".repeat(min)));
    }
    for (duration, below, above) in [
        ("1s", "999ms", "1001ms"),
        ("1h", "59m", "61m"),
        ("8760h", "8759h", "8760h1ms"),
    ] {
        if rules(schema).contains(&format!("duration('{duration}')")) {
            let values = [("below", below), ("at", duration), ("above", above)];
            changes.extend(values.map(|(kind, value)| set(kind, value.to_owned())));
        }
    }
    changes
}

/// Returns the CEL rules of `schema`.
fn rules(schema: &Value) -> String {
    let rules = schema["x-kubernetes-validations"].as_array();
    let texts = rules.into_iter().flatten();
    texts
        .filter_map(|rule| rule["rule"].as_str())
        .collect::<Vec<_>>()
        .join("\n")
}

fn integers(schema: &Value) -> Vec<(&'static str, Change)> {
    let set = |kind, value: Value| (kind, Change::Set(value));
    let mut changes = vec![
        set("zero", json!(0)),
        set("negative", json!(-1)),
        set("at the minimum of the type", json!(i32::MIN)),
        set("at the maximum of the type", json!(i32::MAX)),
        set(
            "above the maximum of the type",
            json!(i64::from(i32::MAX) + 1),
        ),
        set("at the maximum of 64 bits", json!(i64::MAX)),
        set("fraction", json!(1.5)),
        set("wrong type", json!("1")),
    ];
    let rules = rules(schema);
    let bounds = rules
        .split_whitespace()
        .filter_map(|word| word.parse::<i64>().ok());
    for bound in bounds {
        changes.extend([
            set("below", json!(bound - 1)),
            set("at", json!(bound)),
            set("above", json!(bound + 1)),
        ]);
    }
    changes
}

fn quantities() -> Vec<(&'static str, Change)> {
    let values = [
        ("zero", json!(0)),
        ("zero", json!("")),
        ("negative", json!("-1")),
        ("valid", json!("1Gi")),
        ("valid", json!(2)),
        ("large", json!("9".repeat(400))),
        ("large", json!("9999999999E")),
        ("malformed", json!("1 Gi")),
        ("malformed", json!("1Gb")),
        ("wrong type", json!(true)),
    ];
    values
        .map(|(kind, value)| (kind, Change::Set(value)))
        .into()
}

fn lists(node: &Node) -> Vec<(&'static str, Change)> {
    let item = sample(&node.schema["items"], &format!("{}[]", node.path));
    let repeated = |count: usize| Change::Set(vec![item.clone(); count].into());
    let mut changes = vec![
        ("zero", Change::Set(json!([]))),
        ("wrong type", Change::Set(json!({"a": 1}))),
        ("null item", Change::Set(json!([null]))),
        ("duplicated", Change::Repeat),
    ];
    let max = node.schema["maxItems"].as_u64().unwrap_or(2_000);
    let max = usize::try_from(max).unwrap();
    changes.push(("at the maximum", repeated(max)));
    changes.push(("above the maximum", repeated(max + 1)));
    changes
}

fn maps(node: &Node) -> Vec<(&'static str, Change)> {
    let entry = sample(
        &node.schema["additionalProperties"],
        &format!("{}{{}}", node.path),
    );
    let one = |key: &str| Change::Set(json!({key: entry}));
    let many = |count: usize| {
        let entries = (0..count).map(|index| (format!("{ENTRY}{index}"), entry.clone()));
        Change::Set(entries.collect::<Map<_, _>>().into())
    };
    let max = node.schema["maxProperties"].as_u64().unwrap_or(2_000);
    let max = usize::try_from(max).unwrap();
    vec![
        ("zero", Change::Set(json!({}))),
        ("wrong type", Change::Set(json!(["a"]))),
        ("empty key", one("")),
        ("odd key", one("../a b\u{7}")),
        ("long key", one(&"k".repeat(LONG))),
        ("duplicated", Change::Repeat),
        ("at the maximum", many(max)),
        ("above the maximum", many(max + 1)),
    ]
}

fn anything() -> Vec<(&'static str, Change)> {
    let deep = (0..60).fold(json!(1), |value, _| json!({"a": value}));
    let values = [
        ("zero", json!("")),
        ("zero", json!(0)),
        ("zero", json!({})),
        ("large number", json!(i64::MAX)),
        ("fraction", json!(0.1)),
        ("list", json!([1, "a", null, {"b": []}])),
        ("deep", deep),
        ("long", json!("a".repeat(LONG))),
        ("many values", json!(vec![1; 11_000])),
        ("unicode", json!(UNICODE)),
        ("control characters", json!(CONTROL)),
        ("expression", json!("${path.module} %{ for a in b }")),
    ];
    values
        .map(|(kind, value)| (kind, Change::Set(value)))
        .into()
}
