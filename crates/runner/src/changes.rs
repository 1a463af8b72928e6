//! The change set of a plan: what the engine is about to do, normalised and counted.

use alustan_api::report::{ChangeSet, MAX_CHANGES, ResourceChange};
use ring::hmac;
use serde::Deserialize;
use serde_json::{Value, json};

/// The part of `show -json PLAN` that matters.
#[derive(Deserialize)]
struct Plan {
    #[serde(default)]
    resource_changes: Vec<Planned>,
    #[serde(default)]
    output_changes: serde_json::Map<String, Value>,
}

#[derive(Deserialize)]
struct Planned {
    address: String,
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

/// The change set in the output of `show -json PLAN`; its digest is keyed with `key`, so values
/// cannot be guessed from it.
pub fn change_set(show: &[u8], key: &[u8]) -> Result<ChangeSet, serde_json::Error> {
    let plan: Plan = serde_json::from_slice(show)?;
    let mut changes: Vec<(&'static str, &Planned)> = plan
        .resource_changes
        .iter()
        .filter_map(|it| Some((action(&it.change)?, it)))
        .collect();
    changes.sort_by(|(a, x), (b, y)| (rank(a), &x.address).cmp(&(rank(b), &y.address)));
    let count = |wanted: &[&str]| {
        let count = changes
            .iter()
            .filter(|(action, _)| wanted.contains(action))
            .count();
        i64::try_from(count).unwrap_or(i64::MAX)
    };
    Ok(ChangeSet {
        add: count(&["create", "replace"]),
        change: count(&["update"]),
        destroy: count(&["delete", "replace"]),
        resources: changes
            .iter()
            .take(MAX_CHANGES)
            .map(|(action, it)| named(action, it))
            .collect(),
        digest: digest(&changes, &plan.output_changes, key),
        shape: String::new(),
    })
}

fn named(action: &str, planned: &Planned) -> ResourceChange {
    ResourceChange {
        address: planned.address.clone(),
        action: action.to_owned(),
    }
}

/// The word for a list of actions; `None` for what changes nothing.
fn action(change: &Change) -> Option<&'static str> {
    let has = |action: &str| change.actions.iter().any(|it| it == action);
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

/// Dangerous ones first.
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
    changes: &[(&'static str, &Planned)],
    outputs: &serde_json::Map<String, Value>,
    key: &[u8],
) -> String {
    let changes: Vec<Value> = changes
        .iter()
        .map(|(action, it)| {
            json!([
                it.address,
                action,
                it.change.before,
                it.change.after,
                it.change.after_unknown
            ])
        })
        .collect();
    let outputs: Vec<Value> = outputs
        .iter()
        .filter(|(_, change)| change.get("actions") != Some(&json!(["no-op"])))
        .map(|(name, change)| json!([name, change.get("before"), change.get("after")]))
        .collect();
    let text = json!([changes, outputs]).to_string();
    let key = hmac::Key::new(hmac::HMAC_SHA256, key);
    hex::encode(hmac::sign(&key, text.as_bytes()).as_ref())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn planned(address: &str, actions: &[&str], after: &str) -> Value {
        json!({"address": address, "change": {"actions": actions, "before": null, "after": {"v": after}}})
    }

    fn set(changes: &[Value]) -> ChangeSet {
        let plan = json!({"resource_changes": changes, "format_version": "1.2"});
        change_set(plan.to_string().as_bytes(), b"key").unwrap()
    }

    #[test]
    fn changes_are_counted_and_the_dangerous_ones_named_first() {
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
            .map(|it| format!("{} {}", it.action, it.address))
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
    fn the_digest_depends_on_values_but_not_on_order_or_noise() {
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
    fn many_changes_are_cut_but_all_are_counted() {
        let many: Vec<Value> = (0..50)
            .map(|n| planned(&format!("a.a[{n}]"), &["create"], "secret"))
            .collect();
        let set = set(&many);
        assert_eq!((set.add, set.resources.len()), (50, MAX_CHANGES));
        assert!(!format!("{set:?}").contains("secret"));
    }
}
