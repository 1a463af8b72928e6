//! Change set of a plan: its changes, normalised and counted.

use std::collections::BTreeSet;

use alustan_api::report::{ChangeSet, MAX_CHANGES, ResourceChange};
use alustan_cel::approval;
use ring::hmac;
use serde::Deserialize;
use serde_json::{Value, json};

/// Fields of the output of `show -json PLAN` that the runner reads.
#[derive(Deserialize)]
struct PlanJson {
    #[serde(default)]
    resource_changes: Vec<PlannedChange>,
    #[serde(default)]
    output_changes: serde_json::Map<String, Value>,
}

#[derive(Deserialize)]
struct PlannedChange {
    address: String,
    #[serde(default, rename = "type")]
    kind: String,
    #[serde(default)]
    name: String,
    #[serde(default)]
    module_address: String,
    /// `managed` for an object that the engine manages, `data` for a data source.
    #[serde(default)]
    mode: String,
    /// Key of a deposed object: an old object that the engine has replaced, but not deleted yet.
    deposed: Option<String>,
    change: Change,
}

#[derive(Deserialize)]
struct Change {
    actions: Vec<String>,
    #[serde(default)]
    before: Value,
    #[serde(default)]
    after: Value,
    #[serde(default)]
    after_unknown: Value,
    #[serde(default)]
    importing: Value,
}

/// Summary of a plan, for the run report and for approval rules.
pub struct PlanSummary {
    /// Change set for the run report.
    pub set: ChangeSet,
    /// Plan in the form that approval rules evaluate.
    pub plan: approval::Plan,
    /// Whether the plan deletes or forgets every managed object of the state and replaces none.
    pub empties: bool,
}

/// Parses the output of `show -json PLAN`. The digests in the result are HMACs with `key`, so that attribute values cannot be guessed from
/// a digest.
pub fn summary(json: &[u8], key: &[u8]) -> Result<PlanSummary, serde_json::Error> {
    let plan: PlanJson = serde_json::from_slice(json)?;
    let mut changes: Vec<(&'static str, &PlannedChange)> = plan
        .resource_changes
        .iter()
        .filter_map(|planned| Some((action(&planned.change)?, planned)))
        .collect();
    changes.sort_by(|(a, x), (b, y)| (rank(a), &x.address).cmp(&(rank(b), &y.address)));
    let count = |wanted: &[&str]| {
        let count = changes
            .iter()
            .filter(|(action, _)| wanted.contains(action))
            .count();
        i64::try_from(count).unwrap_or(i64::MAX)
    };
    let set = ChangeSet {
        add: count(&["create", "replace"]),
        change: count(&["update"]),
        destroy: count(&["delete", "replace"]),
        resources: changes
            .iter()
            .take(MAX_CHANGES)
            .map(|(action, planned)| named(action, planned))
            .collect(),
        digest: digest(&changes, &plan.output_changes, key),
        shape: shape(&changes, &plan.output_changes, key),
    };
    let seen_by_rules = approval::Plan {
        add: set.add,
        change: set.change,
        destroy: set.destroy,
        resources: changes
            .iter()
            .map(|(action, planned)| seen(action, planned))
            .collect(),
    };
    Ok(PlanSummary {
        set,
        plan: seen_by_rules,
        empties: empties(&plan.resource_changes),
    })
}

/// Converts a planned change to the form that approval rules evaluate.
fn seen(action: &str, planned: &PlannedChange) -> approval::Resource {
    approval::Resource {
        address: planned.address.clone(),
        kind: planned.kind.clone(),
        name: planned.name.clone(),
        module: planned.module_address.clone(),
        action: action.to_owned(),
    }
}

fn named(action: &str, planned: &PlannedChange) -> ResourceChange {
    ResourceChange {
        address: planned.address.clone(),
        action: action.to_owned(),
    }
}

/// Returns the action of a change; `None` if it changes nothing.
fn action(change: &Change) -> Option<&'static str> {
    let has = |action: &str| change.actions.iter().any(|name| name == action);
    match (has("create"), has("delete") || has("forget")) {
        (true, true) => Some("replace"),
        (true, false) => Some("create"),
        (false, true) if has("delete") => Some("delete"),
        (false, true) => Some("forget"),
        (false, false) if has("update") => Some("update"),
        (false, false) if !change.importing.is_null() => Some("import"),
        (false, false) => None,
    }
}

/// Whether the plan deletes or forgets every managed object of the state. Ignores deposed objects, and objects that the plan creates or
/// imports.
fn empties(changes: &[PlannedChange]) -> bool {
    let is_managed =
        |planned: &&PlannedChange| planned.mode == "managed" && planned.deposed.is_none();
    let is_new = |change: &Change| change.actions == ["create"] || !change.importing.is_null();
    let mut existing = changes
        .iter()
        .filter(is_managed)
        .filter(|planned| !is_new(&planned.change))
        .map(|planned| matches!(action(&planned.change), Some("delete" | "forget")))
        .peekable();
    existing.peek().is_some() && existing.all(|removed| removed)
}

/// Returns the sort order of an action in the change set: destructive actions first.
fn rank(action: &str) -> u8 {
    match action {
        "delete" => 0,
        "replace" => 1,
        "forget" => 2,
        "update" => 3,
        _ => 4,
    }
}

fn digest(
    changes: &[(&'static str, &PlannedChange)],
    outputs: &serde_json::Map<String, Value>,
    key: &[u8],
) -> String {
    let changes: Vec<Value> = changes
        .iter()
        .map(|(action, planned)| {
            json!([
                planned.address,
                action,
                planned.change.before,
                planned.change.after,
                planned.change.after_unknown
            ])
        })
        .collect();
    let outputs: Vec<Value> = changed(outputs)
        .map(|(name, change)| json!([name, change.get("before"), change.get("after")]))
        .collect();
    keyed(key, &json!([changes, outputs]))
}

/// Returns an HMAC over address, action and names of the changed attributes of each change, and over the names of the changed outputs. Does
/// not include the values of attributes and outputs.
fn shape(
    changes: &[(&'static str, &PlannedChange)],
    outputs: &serde_json::Map<String, Value>,
    key: &[u8],
) -> String {
    let changes: Vec<Value> = changes
        .iter()
        .map(|(action, planned)| json!([planned.address, action, attributes(&planned.change)]))
        .collect();
    let outputs: Vec<&String> = changed(outputs).map(|(name, _)| name).collect();
    keyed(key, &json!([changes, outputs]))
}

/// Returns the outputs that change.
fn changed(outputs: &serde_json::Map<String, Value>) -> impl Iterator<Item = (&String, &Value)> {
    let unchanged = json!(["no-op"]);
    outputs
        .iter()
        .filter(move |(_, change)| change.get("actions") != Some(&unchanged))
}

/// Returns the names of attributes that change or whose new value is unknown.
fn attributes(change: &Change) -> BTreeSet<&String> {
    let all = [&change.before, &change.after, &change.after_unknown];
    let names = all.into_iter().filter_map(Value::as_object);
    let differs = |name: &&String| {
        let unknown = change.after_unknown.get(name.as_str());
        unknown.is_some_and(is_unknown)
            || change.before.get(name.as_str()) != change.after.get(name.as_str())
    };
    names
        .flat_map(serde_json::Map::keys)
        .filter(differs)
        .collect()
}

/// Whether `mark`, the `after_unknown` entry of an attribute, marks any part of the attribute as unknown.
fn is_unknown(mark: &Value) -> bool {
    match mark {
        Value::Bool(unknown) => *unknown,
        Value::Array(items) => items.iter().any(is_unknown),
        Value::Object(fields) => fields.values().any(is_unknown),
        Value::Null | Value::Number(_) | Value::String(_) => false,
    }
}

fn keyed(key: &[u8], value: &Value) -> String {
    let key = hmac::Key::new(hmac::HMAC_SHA256, key);
    hex::encode(hmac::sign(&key, value.to_string().as_bytes()).as_ref())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn planned(address: &str, actions: &[&str], after: &str) -> Value {
        json!({"address": address, "change": {"actions": actions, "before": null, "after": {"v": after}}})
    }

    fn summed_up(changes: &[Value], outputs: &Value) -> PlanSummary {
        let plan = json!({"resource_changes": changes, "output_changes": outputs, "format_version": "1.2"});
        summary(plan.to_string().as_bytes(), b"key").unwrap()
    }

    fn set(changes: &[Value]) -> ChangeSet {
        summed_up(changes, &json!({})).set
    }

    #[test]
    fn changes_are_counted_and_destructive_ones_listed_first() {
        let set = set(&[
            planned("b.new", &["create"], "1"),
            planned("a.same", &["no-op"], "1"),
            planned("data.x", &["read"], "1"),
            planned("a.other", &["update"], "1"),
            planned("a.again", &["delete", "create"], "1"),
            planned("z.gone", &["delete"], "1"),
        ]);
        assert_eq!((set.add, set.change, set.destroy), (2, 1, 2));
        let names: Vec<_> = set
            .resources
            .iter()
            .map(|change| format!("{} {}", change.action, change.address))
            .collect();
        assert_eq!(
            names,
            [
                "delete z.gone",
                "replace a.again",
                "update a.other",
                "create b.new"
            ]
        );
    }

    #[test]
    fn change_set_digest_depends_on_values_not_on_order() {
        let (a, b) = (
            planned("a.a", &["create"], "1"),
            planned("a.b", &["create"], "1"),
        );
        let noise = planned("a.c", &["no-op"], "2");
        let digest = set(&[a.clone(), b.clone()]).digest;
        assert_eq!(set(&[b.clone(), noise, a]).digest, digest);
        assert_ne!(set(&[planned("a.a", &["create"], "2"), b]).digest, digest);
        assert_eq!(digest.len(), 64);
    }

    #[test]
    fn long_change_list_is_truncated_but_fully_counted() {
        let many: Vec<Value> = (0..50)
            .map(|n| planned(&format!("a.a[{n}]"), &["create"], "secret"))
            .collect();
        let set = set(&many);
        assert_eq!((set.add, set.resources.len()), (50, MAX_CHANGES));
        assert!(!format!("{set:?}").contains("secret"));
    }

    #[test]
    fn approval_rules_receive_all_changes_with_their_type() {
        let mut change = planned("module.db.aws_db_instance.main[0]", &["delete"], "secret");
        change["type"] = json!("aws_db_instance");
        change["name"] = json!("main");
        change["module_address"] = json!("module.db");
        let mut many: Vec<Value> = (0..50)
            .map(|n| planned(&format!("a.a[{n}]"), &["create"], "secret"))
            .collect();
        many.push(change);
        let plan = summed_up(&many, &json!({})).plan;
        assert_eq!((plan.add, plan.destroy, plan.resources.len()), (50, 1, 51));
        let resource = &plan.resources[0];
        let fields = [
            &resource.kind,
            &resource.name,
            &resource.module,
            &resource.action,
        ]
        .map(String::as_str);
        assert_eq!(fields, ["aws_db_instance", "main", "module.db", "delete"]);
        assert!(!format!("{plan:?}").contains("secret"));
    }

    fn update(before: &Value, after: &Value, unknown: &Value) -> Value {
        json!({"address": "a.a", "change": {"actions": ["update"],
            "before": before, "after": after, "after_unknown": unknown}})
    }

    #[test]
    fn recurring_diff_with_other_values_has_the_same_shape() {
        let at = |before: &str, after: &str| {
            set(&[update(
                &json!({"at": before, "name": "n"}),
                &json!({"at": after, "name": "n"}),
                &json!({"name": false}),
            )])
        };
        let (first, second) = (at("1", "2"), at("2", "3"));
        assert_ne!(first.digest, second.digest);
        assert_eq!(first.shape, second.shape);
    }

    #[test]
    fn shape_depends_on_address_action_and_attributes() {
        let known = json!({"a": 1, "b": 1, "c": {"d": 1}});
        let shape = |after: &Value, unknown: &Value| set(&[update(&known, after, unknown)]).shape;
        let shapes = [
            shape(&json!({"a": 2, "b": 1, "c": {"d": 1}}), &json!({})),
            shape(&json!({"a": 1, "b": 2, "c": {"d": 1}}), &json!({})),
            shape(&json!({"a": 2, "b": 2, "c": {"d": 1}}), &json!({})),
            shape(&json!({"a": 1, "b": 1}), &json!({"c": {"d": true}})),
            set(&[planned("a.a", &["create"], "x")]).shape,
            set(&[planned("a.b", &["create"], "x")]).shape,
            set(&[planned("a.b", &["delete"], "x")]).shape,
            set(&[]).shape,
        ];
        let different: BTreeSet<_> = shapes.iter().collect();
        assert_eq!(different.len(), shapes.len());
        let gone = shape(&json!({"a": 1, "b": 1}), &json!({}));
        let unknown = shape(&json!({"a": 1, "b": 1}), &json!({"c": true}));
        assert_eq!(gone, unknown, "the same attribute changes");
    }

    #[test]
    fn changed_outputs_affect_digest_and_shape() {
        let change_set = |outputs: Value| summed_up(&[], &outputs).set;
        let at =
            |value: &str| json!({"at": {"actions": ["update"], "before": "0", "after": value}});
        let (first, second) = (change_set(at("1")), change_set(at("2")));
        assert_ne!(first.digest, second.digest);
        assert_eq!(first.shape, second.shape);
        let none = change_set(json!({"at": {"actions": ["no-op"], "before": "0", "after": "0"}}));
        assert_ne!(first.shape, none.shape);
        assert_eq!(none.shape, set(&[]).shape);
    }

    fn any_json() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            any::<i64>().prop_map(Value::from),
            "(create|delete|update|read|no-op|a.b|[a-z]{0,4})".prop_map(Value::from),
        ];
        leaf.prop_recursive(4, 32, 4, |inner| {
            let names = "(resource_changes|output_changes|change|actions|address|before|after|after_unknown|[a-z])";
            prop_oneof![
                proptest::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
                proptest::collection::btree_map(names, inner, 0..5)
                    .prop_map(|map| Value::Object(map.into_iter().collect())),
            ]
        })
    }

    proptest! {
        #[test]
        fn any_plan_is_summarised_or_refused(
            before in any_json(), after in any_json(), unknown in any_json(), outputs in any_json(),
            actions in proptest::collection::vec("(create|delete|update|read|no-op|forget|x)", 0..3),
        ) {
            let plan = json!({
                "resource_changes": [{"address": "a.b", "change": {
                    "actions": actions, "before": before, "after": after, "after_unknown": unknown,
                }}],
                "output_changes": outputs,
            });
            let text = plan.to_string();
            if let Ok(summary) = summary(text.as_bytes(), b"key") {
                prop_assert_eq!(summary.set.digest.len(), 64);
                prop_assert!(summary.set.add + summary.set.change + summary.set.destroy <= 2);
            }
            let cut = text.len() / 2;
            let _ = summary_of_damaged(&text.as_bytes()[..cut]);
        }

        #[test]
        fn any_json_is_a_plan_or_refused(plan in any_json()) {
            let _ = summary_of_damaged(plan.to_string().as_bytes());
        }
    }

    fn summary_of_damaged(bytes: &[u8]) -> bool {
        summary(bytes, b"key").is_ok()
    }
}
