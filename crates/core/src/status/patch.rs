//! Merge patches that remove status fields of other field managers. With `--driver=metacontroller`, metacontroller writes the whole status.
//! After a switch to `--driver=native`, metacontroller still owns the fields of the status, and server-side apply of the operator does not
//! remove a field that another manager owns: <https://kubernetes.io/docs/reference/using-api/server-side-apply/>.

use serde_json::{Map, Value};

/// Returns the merge patch that removes from the stored status `written` the fields that the new status `rendered` does not have; `None` if
/// there are no such fields. Lists are not patched, because they may contain conditions of other controllers.
pub fn removed_fields(written: &Value, rendered: &Value) -> Option<Value> {
    let (Value::Object(written), Value::Object(rendered)) = (written, rendered) else {
        return None;
    };
    let patch: Map<String, Value> = written
        .iter()
        .filter_map(|(name, value)| {
            let change = match rendered.get(name) {
                None => Value::Null,
                Some(rendered) => removed_fields(value, rendered)?,
            };
            Some((name.clone(), change))
        })
        .collect();
    (!patch.is_empty()).then_some(Value::Object(patch))
}

/// Returns the merge patch that changes the status `written` to `rendered`, regardless of field owners.
pub fn replacing(written: &Value, rendered: &Value) -> Value {
    let mut patch = rendered.clone();
    if let Some(removals) = removed_fields(written, rendered) {
        add(&mut patch, removals);
    }
    patch
}

fn add(target: &mut Value, patch: Value) {
    match (target, patch) {
        (Value::Object(target), Value::Object(patch)) => {
            for (name, patch) in patch {
                add(target.entry(name).or_insert(Value::Null), patch);
            }
        }
        (target, patch) => *target = patch,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn leftovers_removes_outdated_fields_but_not_list_items() {
        let rendered = json!({"state": "Success", "plan": {"add": 1}, "conditions": []});
        assert_eq!(removed_fields(&rendered, &rendered), None);
        let written = json!({
            "state": "Success", "queue": {"position": 2},
            "plan": {"add": 1, "pendingApproval": true},
            "conditions": [{"type": "of.somebody/Else"}],
        });
        let patch = json!({"queue": null, "plan": {"pendingApproval": null}});
        assert_eq!(removed_fields(&written, &rendered), Some(patch));
    }

    #[test]
    fn replacing_sets_changed_fields_and_removes_outdated_ones() {
        let rendered = json!({"state": "Destroying", "plan": {"add": 1}});
        let written = json!({
            "state": "Success", "lastApplied": {"revision": "a"}, "plan": {"add": 1, "id": "b"},
        });
        let patch =
            json!({"state": "Destroying", "lastApplied": null, "plan": {"add": 1, "id": null}});
        assert_eq!(replacing(&written, &rendered), patch);
    }

    #[test]
    fn leftovers_ignores_fields_of_another_type() {
        assert_eq!(removed_fields(&json!("a"), &json!({})), None);
        assert_eq!(removed_fields(&json!({"a": 1}), &json!({"a": {}})), None);
    }
}
