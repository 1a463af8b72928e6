//! Change set of a plan: its changes, normalised and counted.

use std::collections::{BTreeMap, BTreeSet};

use alustan_api::change_set::{
    ChangeSet, CheckResult, MAX_DETAILS_BYTES, OutputChange, ResourceChange,
};
use alustan_cel::approval;
use ring::hmac;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::plan::values::{PlannedValue, has_mark};
use crate::secrets::redact::Redactor;

/// Maximum size of the listed changes as JSON, in bytes: [`MAX_DETAILS_BYTES`] without counts and digests.
const BUDGET: usize = MAX_DETAILS_BYTES - 1024;

/// Maximum number of messages of a check.
const MAX_CHECK_MESSAGES: usize = 5;

/// Maximum length of an address, a name or a message in a change set, in bytes.
const MAX_TEXT_BYTES: usize = 1024;

/// Fields of the output of `show -json PLAN` that the runner reads.
#[derive(Deserialize)]
struct PlanJson {
    #[serde(default)]
    resource_changes: Vec<PlannedChange>,
    #[serde(default)]
    output_changes: BTreeMap<String, OutputChangeJson>,
    #[serde(default)]
    checks: Vec<CheckJson>,
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
    #[serde(default)]
    provider_name: String,
    /// `managed` for an object that the engine manages, `data` for a data source.
    #[serde(default)]
    mode: String,
    /// Key of a deposed object: an old object that the engine has replaced, but not deleted yet.
    deposed: Option<String>,
    #[serde(default)]
    action_reason: String,
    change: Change,
}

#[derive(Deserialize)]
struct Change {
    actions: Vec<String>,
    #[serde(flatten)]
    value: PlannedValue,
    #[serde(default)]
    importing: Value,
    #[serde(default)]
    replace_paths: Vec<Vec<Value>>,
}

#[derive(Deserialize)]
struct OutputChangeJson {
    #[serde(default)]
    actions: Vec<String>,
    #[serde(flatten)]
    value: PlannedValue,
}

/// Result of a check, or of one of its instances.
#[derive(Deserialize)]
struct CheckJson {
    address: CheckAddress,
    #[serde(default)]
    status: String,
    #[serde(default)]
    problems: Vec<Problem>,
    #[serde(default)]
    instances: Vec<Self>,
}

#[derive(Deserialize)]
struct CheckAddress {
    #[serde(default)]
    to_display: String,
}

#[derive(Deserialize)]
struct Problem {
    #[serde(default)]
    message: String,
}

/// Summary of a plan, for the run report and for approval rules.
pub struct PlanSummary {
    /// Change set with details.
    pub set: ChangeSet,
    /// Plan in the form that approval rules evaluate.
    pub plan: approval::Plan,
    /// Whether the plan deletes or forgets every managed object of the state and replaces none.
    pub empties: bool,
    /// Texts and numbers that the plan marks as sensitive.
    pub sensitive: Vec<String>,
}

/// Parses the output of `show -json PLAN`. The digests in the result are HMACs with `key`, so that attribute values cannot be guessed from
/// a digest. The change set contains neither values that the plan marks as sensitive nor secret values of `redactor`.
///
/// # Errors
/// The JSON is not a plan.
pub fn summary(
    json: &[u8],
    key: &[u8],
    redactor: &Redactor,
) -> Result<PlanSummary, serde_json::Error> {
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
    let sensitive = sensitive_values(&plan);
    let redactor = redactor.with(&sensitive);
    let set = Details::new(&redactor).list(
        ChangeSet {
            add: count(&["create", "replace"]),
            change: count(&["update"]),
            destroy: count(&["delete", "replace"]),
            digest: digest(&changes, &plan.output_changes, key),
            shape: shape(&changes, &plan.output_changes, key),
            ..ChangeSet::default()
        },
        &changes,
        &plan,
    );
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
        sensitive,
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

/// Returns the values that the plan marks as sensitive.
fn sensitive_values(plan: &PlanJson) -> Vec<String> {
    let mut values = Vec::new();
    for planned in &plan.resource_changes {
        planned.change.value.add_sensitive(&mut values);
    }
    for output in plan.output_changes.values() {
        output.value.add_sensitive(&mut values);
    }
    values
}

/// Lists the changes of a plan until the list has [`BUDGET`] bytes.
struct Details<'a> {
    redactor: &'a Redactor,
    /// Size of the listed changes as JSON, in bytes.
    size: usize,
    /// Number of changes that are not listed.
    omitted: i64,
}

impl<'a> Details<'a> {
    fn new(redactor: &'a Redactor) -> Self {
        Self {
            redactor,
            size: 0,
            omitted: 0,
        }
    }

    /// Adds failed checks, changed resources and changed outputs to `set`.
    fn list(
        mut self,
        set: ChangeSet,
        changes: &[(&'static str, &PlannedChange)],
        plan: &PlanJson,
    ) -> ChangeSet {
        let mut checks = Vec::new();
        for check in plan.checks.iter().filter(|check| check.status != "pass") {
            checks.extend(self.fit(self.check(check)));
        }
        let (mut resources, mut is_full) = (Vec::new(), false);
        for (action, planned) in changes {
            if is_full {
                self.omitted += 1;
                continue;
            }
            let with_attributes = self.resource(action, planned);
            let listed = i64::try_from(with_attributes.attributes.len()).unwrap_or(i64::MAX);
            let without_attributes = ResourceChange {
                attributes: Vec::new(),
                omitted_attributes: with_attributes.omitted_attributes.saturating_add(listed),
                ..with_attributes.clone()
            };
            let fitting = self
                .add(with_attributes)
                .or_else(|| self.add(without_attributes));
            is_full = fitting.is_none();
            self.omitted += i64::from(is_full);
            resources.extend(fitting);
        }
        let mut outputs = Vec::new();
        for (name, output) in changed(&plan.output_changes) {
            outputs.extend(self.fit(self.output(name, output)));
        }
        ChangeSet {
            resources,
            outputs,
            checks,
            omitted: self.omitted,
            ..set
        }
    }

    /// Returns `item` if the list has space for it; otherwise counts it as omitted.
    fn fit<T: Serialize>(&mut self, item: T) -> Option<T> {
        let fitting = self.add(item);
        self.omitted += i64::from(fitting.is_none());
        fitting
    }

    /// Returns `item` if the list has space for it.
    fn add<T: Serialize>(&mut self, item: T) -> Option<T> {
        let size = serde_json::to_vec(&item).map_or(usize::MAX, |json| json.len() + 1);
        let total = self.size.saturating_add(size);
        (total <= BUDGET).then(|| {
            self.size = total;
            item
        })
    }

    fn resource(&self, action: &str, planned: &PlannedChange) -> ResourceChange {
        let optional = |text: &str| (!text.is_empty()).then(|| self.text(text));
        let change = &planned.change;
        let (attributes, omitted_attributes) = change
            .value
            .attributes(&change.replace_paths, self.redactor);
        ResourceChange {
            address: self.text(&planned.address),
            action: action.to_owned(),
            module: optional(&planned.module_address),
            provider: optional(&planned.provider_name),
            reason: optional(&planned.action_reason),
            attributes,
            omitted_attributes,
        }
    }

    fn output(&self, name: &str, output: &OutputChangeJson) -> OutputChange {
        OutputChange {
            name: self.text(name),
            values: output.value.change(self.redactor),
        }
    }

    fn check(&self, check: &CheckJson) -> CheckResult {
        let instances = check
            .instances
            .iter()
            .flat_map(|instance| &instance.problems);
        let messages = check.problems.iter().chain(instances);
        CheckResult {
            address: self.text(&check.address.to_display),
            status: self.text(&check.status),
            messages: messages
                .take(MAX_CHECK_MESSAGES)
                .map(|problem| self.text(&problem.message))
                .collect(),
        }
    }

    /// Masks secret values in `text`, and truncates it.
    fn text(&self, text: &str) -> String {
        self.redactor.beginning(text, MAX_TEXT_BYTES)
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
    outputs: &BTreeMap<String, OutputChangeJson>,
    key: &[u8],
) -> String {
    let changes: Vec<Value> = changes
        .iter()
        .map(|(action, planned)| {
            json!([
                planned.address,
                action,
                planned.change.value.before,
                planned.change.value.after,
                planned.change.value.after_unknown
            ])
        })
        .collect();
    let outputs: Vec<Value> = changed(outputs)
        .map(|(name, output)| json!([name, output.value.before, output.value.after]))
        .collect();
    keyed(key, &json!([changes, outputs]))
}

/// Returns an HMAC over address, action and names of the changed attributes of each change, and over the names of the changed outputs. Does
/// not include the values of attributes and outputs.
fn shape(
    changes: &[(&'static str, &PlannedChange)],
    outputs: &BTreeMap<String, OutputChangeJson>,
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
fn changed(
    outputs: &BTreeMap<String, OutputChangeJson>,
) -> impl Iterator<Item = (&String, &OutputChangeJson)> {
    outputs
        .iter()
        .filter(|(_, output)| output.actions != ["no-op"])
}

/// Returns the names of attributes that change or whose new value is unknown.
fn attributes(change: &Change) -> BTreeSet<&String> {
    let value = &change.value;
    let all = [&value.before, &value.after, &value.after_unknown];
    let names = all.into_iter().filter_map(Value::as_object);
    let differs = |name: &&String| {
        let unknown = value.after_unknown.get(name.as_str());
        unknown.is_some_and(has_mark)
            || value.before.get(name.as_str()) != value.after.get(name.as_str())
    };
    names
        .flat_map(serde_json::Map::keys)
        .filter(differs)
        .collect()
}

fn keyed(key: &[u8], value: &Value) -> String {
    let key = hmac::Key::new(hmac::HMAC_SHA256, key);
    hex::encode(hmac::sign(&key, value.to_string().as_bytes()).as_ref())
}

#[cfg(test)]
mod tests {
    use alustan_api::change_set::MAX_CHANGES;
    use proptest::prelude::*;

    use super::*;

    fn planned(address: &str, actions: &[&str], after: &str) -> Value {
        json!({"address": address, "change": {"actions": actions, "before": null, "after": {"v": after}}})
    }

    fn summed_up(changes: &[Value], outputs: &Value) -> PlanSummary {
        let plan = json!({"resource_changes": changes, "output_changes": outputs, "format_version": "1.2"});
        summary(plan.to_string().as_bytes(), b"key", &Redactor::default()).unwrap()
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
        let many: Vec<Value> = (0..5_000)
            .map(|n| planned(&format!("a.a[{n}]"), &["create"], "value"))
            .collect();
        let set = set(&many);
        let listed = i64::try_from(set.resources.len()).unwrap();
        assert_eq!((set.add, listed + set.omitted), (5_000, 5_000));
        assert!(listed > 100, "{listed} changes are listed");
        let size = serde_json::to_vec(&set).unwrap().len();
        assert!(size <= MAX_DETAILS_BYTES + 1024, "{size} bytes");
        let summary = set.summary();
        assert_eq!((summary.add, summary.resources.len()), (5_000, MAX_CHANGES));
        assert!(!format!("{summary:?}").contains("value"));
    }

    #[test]
    fn resource_with_many_attributes_is_listed_without_them() {
        let large = json!({"address": "a.large", "change": {"actions": ["create"], "before": null,
            "after": (0..100).map(|n| (format!("a{n}"), json!("x".repeat(900)))).collect::<Value>()}});
        let set = set(&[large, planned("a.small", &["create"], "1")]);
        let listed: Vec<_> = set
            .resources
            .iter()
            .map(|change| {
                (
                    change.address.as_str(),
                    change.attributes.len(),
                    change.omitted_attributes,
                )
            })
            .collect();
        assert_eq!(listed, [("a.large", 0, 100), ("a.small", 1, 0)]);
        assert_eq!(set.omitted, 0);
    }

    #[test]
    fn sensitive_values_appear_nowhere_in_the_change_set() {
        let change = json!({"address": "a.a[\"marker-1\"]", "action_reason": "replace_because_cannot_update",
            "provider_name": "registry.terraform.io/hashicorp/a", "module_address": "module.m",
            "change": {"actions": ["delete", "create"], "before": {"secret": "marker-1", "copy": "a marker-1"},
                "after": {"secret": "marker-2", "copy": "marker-2"},
                "before_sensitive": {"secret": true}, "after_sensitive": {"secret": true},
                "replace_paths": [["copy"]]}});
        let outputs = json!({
            "hidden": {"actions": ["create"], "before": null, "after": "marker-3", "after_sensitive": true},
            "shown": {"actions": ["update"], "before": "x", "after": "marker-3 y"},
            "same": {"actions": ["no-op"], "before": 1, "after": 1},
        });
        let set = summed_up(&[change], &outputs).set;
        let text = serde_json::to_string(&set).unwrap();
        assert!(!text.contains("marker"), "{text}");
        let resource = &set.resources[0];
        assert_eq!(resource.address, "a.a[\"(redacted)\"]");
        assert_eq!(resource.module.as_deref(), Some("module.m"));
        assert_eq!(
            resource.reason.as_deref(),
            Some("replace_because_cannot_update")
        );
        let names: Vec<_> = set
            .outputs
            .iter()
            .map(|output| output.name.as_str())
            .collect();
        assert_eq!(names, ["hidden", "shown"]);
        assert!(set.outputs[0].values.sensitive);
        assert_eq!(
            set.outputs[1].values.after.as_deref(),
            Some("\"(redacted) y\"")
        );
    }

    #[test]
    fn failed_checks_are_listed_with_their_messages() {
        let plan = json!({"checks": [
            {"address": {"to_display": "check.ok"}, "status": "pass"},
            {"address": {"to_display": "check.health"}, "status": "fail", "instances": [
                {"address": {"to_display": "check.health"}, "status": "fail", "problems": [{"message": "HTTP 503"}]},
            ]},
        ]});
        let json = plan.to_string();
        let set = summary(json.as_bytes(), b"key", &Redactor::default())
            .unwrap()
            .set;
        let [check] = set.checks.as_slice() else {
            panic!("{:?}", set.checks);
        };
        assert_eq!(
            (check.address.as_str(), check.status.as_str()),
            ("check.health", "fail")
        );
        assert_eq!(check.messages, ["HTTP 503"]);
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
            if let Ok(summary) = summary(text.as_bytes(), b"key", &Redactor::default()) {
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
        summary(bytes, b"key", &Redactor::default()).is_ok()
    }
}
