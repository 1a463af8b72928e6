//! Validation of the details of a run. Module code can write any bytes into the run report.

use alustan_api::change_set::{
    AttributeChange, ChangeSet, CheckResult, MAX_DETAILS_BYTES, MAX_VALUE_BYTES, OutputChange,
    ResourceChange, ValueChange,
};
use alustan_api::run::RunDetails;
use alustan_api::{MAX_LOG_HEAD_BYTES, MAX_LOG_TAIL_BYTES, MAX_PLAN_BYTES, RecordedValues, RunLog};

use serde::Serialize;

use crate::model::progress::{ACTIONS, json_size, truncate};

/// Size of the names and brackets of the lists of a change set, in bytes.
const LIST_NAMES: usize = 64;

/// Maximum length of a path, a name or an address, in bytes.
const MAX_NAME_BYTES: usize = 1024;

/// Validates details: truncates texts, replaces control characters, removes changes with unknown actions, and limits the size of the change
/// set to [`MAX_DETAILS_BYTES`]. With `values: Names`, removes values, text of the plan, and log.
pub(crate) fn details(mut reported: RunDetails, values: RecordedValues) -> RunDetails {
    if values == RecordedValues::Names {
        reported.changes.iter_mut().for_each(remove_values);
        (reported.plan, reported.log) = (None, RunLog::default());
    }
    RunDetails {
        number: reported.number,
        changes: reported.changes.map(changes),
        plan: reported.plan.map(|plan| truncate(&plan, MAX_PLAN_BYTES)),
        log: RunLog {
            head: truncate(&reported.log.head, MAX_LOG_HEAD_BYTES),
            tail: truncate(&reported.log.tail, MAX_LOG_TAIL_BYTES),
            omitted_bytes: reported.log.omitted_bytes.max(0),
        },
    }
}

fn remove_values(changes: &mut ChangeSet) {
    let attributes = changes
        .resources
        .iter_mut()
        .flat_map(|resource| &mut resource.attributes)
        .map(|attribute| &mut attribute.values);
    let outputs = changes.outputs.iter_mut().map(|output| &mut output.values);
    for values in attributes.chain(outputs) {
        (values.before, values.after) = (None, None);
    }
    changes
        .checks
        .iter_mut()
        .for_each(|check| check.messages.clear());
}

fn changes(mut reported: ChangeSet) -> ChangeSet {
    let listed = reported.resources.len() + reported.outputs.len() + reported.checks.len();
    reported
        .resources
        .retain(|resource| ACTIONS.contains(&resource.action.as_str()));
    reported.resources.iter_mut().for_each(bound_resource);
    reported.outputs.iter_mut().for_each(bound_output);
    reported.checks.iter_mut().for_each(bound_check);
    bound(&mut reported.digest);
    bound(&mut reported.shape);
    let lists = (
        std::mem::take(&mut reported.resources),
        std::mem::take(&mut reported.outputs),
        std::mem::take(&mut reported.checks),
    );
    let mut space =
        MAX_DETAILS_BYTES.saturating_sub(json_size(&reported).saturating_add(LIST_NAMES));
    reported.resources = fitting(lists.0, &mut space);
    reported.outputs = fitting(lists.1, &mut space);
    reported.checks = fitting(lists.2, &mut space);
    let kept = reported.resources.len() + reported.outputs.len() + reported.checks.len();
    let removed = i64::try_from(listed - kept).unwrap_or(i64::MAX);
    ChangeSet {
        add: reported.add.max(0),
        change: reported.change.max(0),
        destroy: reported.destroy.max(0),
        omitted: reported.omitted.max(0).saturating_add(removed),
        ..reported
    }
}

/// Returns the first of `items` that fit into `space`, in bytes of JSON. Reduces `space` by their size.
fn fitting<T: Serialize>(items: Vec<T>, space: &mut usize) -> Vec<T> {
    items
        .into_iter()
        .map_while(|item| {
            // A comma follows each item.
            *space = space.checked_sub(json_size(&item).saturating_add(1))?;
            Some(item)
        })
        .collect()
}

fn bound_resource(resource: &mut ResourceChange) {
    bound(&mut resource.address);
    for text in [
        &mut resource.module,
        &mut resource.provider,
        &mut resource.reason,
    ] {
        text.iter_mut().for_each(bound);
    }
    for AttributeChange { path, values, .. } in &mut resource.attributes {
        bound(path);
        bound_values(values);
    }
    resource.omitted_attributes = resource.omitted_attributes.max(0);
}

fn bound_output(output: &mut OutputChange) {
    bound(&mut output.name);
    bound_values(&mut output.values);
}

fn bound_check(check: &mut CheckResult) {
    bound(&mut check.address);
    bound(&mut check.status);
    check.messages.iter_mut().for_each(bound);
}

fn bound_values(values: &mut ValueChange) {
    if values.sensitive {
        (values.before, values.after) = (None, None);
    }
    for value in [&mut values.before, &mut values.after] {
        *value = value
            .as_deref()
            .map(|value| truncate(value, MAX_VALUE_BYTES));
    }
}

fn bound(text: &mut String) {
    *text = truncate(text, MAX_NAME_BYTES);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn forged_details_are_bounded() {
        let resource = |action: &str| ResourceChange {
            address: "a".repeat(5_000),
            action: action.to_owned(),
            attributes: vec![
                AttributeChange {
                    values: ValueChange {
                        before: Some("\u{1b}".repeat(5_000)),
                        ..ValueChange::default()
                    },
                    ..AttributeChange::default()
                };
                10
            ],
            ..ResourceChange::default()
        };
        let mut resources = vec![resource("create"); 20];
        resources.push(resource("explode"));
        let reported = RunDetails {
            number: 7,
            changes: Some(ChangeSet {
                add: -1,
                resources,
                omitted: -1,
                ..ChangeSet::default()
            }),
            plan: Some("é\0".repeat(MAX_PLAN_BYTES)),
            log: RunLog {
                head: "a".repeat(MAX_LOG_HEAD_BYTES + 1),
                tail: "a".repeat(MAX_LOG_TAIL_BYTES + 1),
                omitted_bytes: -1,
            },
        };
        let details = details(reported, RecordedValues::Full);
        let changes = details.changes.as_ref().unwrap();
        assert_eq!((changes.add, changes.resources.len()), (0, 3));
        assert_eq!(changes.omitted, 18);
        assert_eq!(changes.resources[0].address.len(), MAX_NAME_BYTES);
        let before = changes.resources[0].attributes[0].values.before.as_ref();
        assert_eq!(before.unwrap(), &" ".repeat(MAX_VALUE_BYTES));
        assert!(json_size(changes) <= MAX_DETAILS_BYTES);
        assert!(details.plan.unwrap().len() <= MAX_PLAN_BYTES);
        let log = details.log;
        assert_eq!(
            (log.head.len(), log.tail.len(), log.omitted_bytes),
            (MAX_LOG_HEAD_BYTES, MAX_LOG_TAIL_BYTES, 0)
        );
    }

    #[test]
    fn records_with_names_contain_no_values() {
        let values = ValueChange {
            before: Some("\"marker\"".to_owned()),
            after: Some("\"marker\"".to_owned()),
            ..ValueChange::default()
        };
        let reported = RunDetails {
            number: 7,
            changes: Some(ChangeSet {
                resources: vec![ResourceChange {
                    address: "a.b".to_owned(),
                    action: "update".to_owned(),
                    attributes: vec![AttributeChange {
                        path: "size".to_owned(),
                        values: values.clone(),
                        ..AttributeChange::default()
                    }],
                    ..ResourceChange::default()
                }],
                outputs: vec![OutputChange {
                    name: "out".to_owned(),
                    values,
                }],
                checks: vec![CheckResult {
                    messages: vec!["marker".to_owned()],
                    ..CheckResult::default()
                }],
                ..ChangeSet::default()
            }),
            plan: Some("marker".to_owned()),
            log: RunLog {
                head: "marker".to_owned(),
                ..RunLog::default()
            },
        };
        let text = |values| {
            let details = details(reported.clone(), values);
            serde_json::to_string(&details).unwrap()
        };
        assert_eq!(text(RecordedValues::Full).matches("marker").count(), 7);
        let names = text(RecordedValues::Names);
        assert!(
            !names.contains("marker") && names.contains("size"),
            "{names}"
        );
    }

    #[test]
    fn sensitive_values_of_forged_details_are_removed() {
        let mut values = ValueChange {
            before: Some("\"secret\"".to_owned()),
            after: Some("\"secret\"".to_owned()),
            sensitive: true,
            ..ValueChange::default()
        };
        bound_values(&mut values);
        assert_eq!((values.before, values.after), (None, None));
    }
}
