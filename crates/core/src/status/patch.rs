//! Merge patches that remove status fields of other field managers. Server-side apply does not remove a field that another manager owns
//! (<https://kubernetes.io/docs/reference/using-api/server-side-apply/>). Metacontroller writes the whole status, and still owns its fields
//! after the operator was switched to another driver.

use serde_json::{Map, Value};

/// Returns the merge patch that removes the fields that the stored status `written` has and the new status `said` does not have; `None` if
/// there are none. Lists are skipped: they may contain conditions of other controllers.
pub fn leftovers(written: &Value, said: &Value) -> Option<Value> {
    let (Value::Object(written), Value::Object(said)) = (written, said) else {
        return None;
    };
    let patch: Map<String, Value> = written
        .iter()
        .filter_map(|(name, left)| {
            let change = match said.get(name) {
                None => Value::Null,
                Some(said) => leftovers(left, said)?,
            };
            Some((name.clone(), change))
        })
        .collect();
    (!patch.is_empty()).then_some(Value::Object(patch))
}

/// Returns the merge patch that changes the status `written` to `said`, regardless of field owners.
pub fn replacing(written: &Value, said: &Value) -> Value {
    let mut patch = said.clone();
    if let Some(left) = leftovers(written, said) {
        add(&mut patch, left);
    }
    patch
}

fn add(to: &mut Value, left: Value) {
    match (to, left) {
        (Value::Object(to), Value::Object(left)) => {
            for (name, left) in left {
                add(to.entry(name).or_insert(Value::Null), left);
            }
        }
        (to, left) => *to = left,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn leftovers_removes_outdated_fields_but_not_list_items() {
        let said = json!({"state": "Success", "plan": {"add": 1}, "conditions": []});
        assert_eq!(leftovers(&said, &said), None);
        let written = json!({
            "state": "Success", "queue": {"position": 2},
            "plan": {"add": 1, "pendingApproval": true},
            "conditions": [{"type": "of.somebody/Else"}],
        });
        let patch = json!({"queue": null, "plan": {"pendingApproval": null}});
        assert_eq!(leftovers(&written, &said), Some(patch));
    }

    #[test]
    fn replacing_sets_changed_fields_and_removes_outdated_ones() {
        let said = json!({"state": "Destroying", "plan": {"add": 1}});
        let written = json!({
            "state": "Success", "lastApplied": {"revision": "a"}, "plan": {"add": 1, "id": "b"},
        });
        let patch =
            json!({"state": "Destroying", "lastApplied": null, "plan": {"add": 1, "id": null}});
        assert_eq!(replacing(&written, &said), patch);
    }

    #[test]
    fn leftovers_ignores_fields_of_another_type() {
        assert_eq!(leftovers(&json!("a"), &json!({})), None);
        assert_eq!(leftovers(&json!({"a": 1}), &json!({"a": {}})), None);
    }
}
