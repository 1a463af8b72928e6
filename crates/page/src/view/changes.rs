//! View model of a change set.

use alustan_api::change_set::{
    AttributeChange, ChangeSet, CheckResult, OutputChange, ResourceChange,
};
use serde::Serialize;

/// Actions in the order of the groups: deletions and replacements first.
const ACTIONS: [&str; 6] = ["delete", "replace", "forget", "update", "create", "import"];

/// Changed resource.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct ResourceChangeView {
    /// Address of the resource in the module.
    pub(crate) address: String,
    /// Source address of the provider.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) provider: Option<String>,
    /// Reason of the action, as a sentence.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) reason: Option<String>,
    /// Changed attributes.
    pub(crate) attributes: Vec<AttributeChange>,
    /// Number of changed attributes that are not listed.
    pub(crate) omitted_attributes: i64,
}

/// Changed resources with the same action.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct ChangeGroup {
    /// Action: `create`, `update`, `replace`, `delete`, `forget` or `import`.
    pub(crate) action: String,
    /// Changed resources.
    pub(crate) resources: Vec<ResourceChangeView>,
}

/// View model of a change set.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct ChangesView {
    /// Number of objects to create, including replaced objects.
    pub(crate) add: i64,
    /// Number of objects to update in place.
    pub(crate) change: i64,
    /// Number of objects to destroy, including replaced objects.
    pub(crate) destroy: i64,
    /// Changed resources by action, deletions and replacements first.
    pub(crate) groups: Vec<ChangeGroup>,
    /// Number of changed resources, outputs and checks that are not listed.
    pub(crate) omitted: i64,
    /// Changed outputs.
    pub(crate) outputs: Vec<OutputChange>,
    /// Checks that failed, or whose result is not known before the apply.
    pub(crate) checks: Vec<CheckResult>,
}

impl ChangesView {
    /// Builds the view model of `changes`.
    pub(crate) fn new(changes: &ChangeSet) -> Self {
        let known = ACTIONS.into_iter().map(|action| {
            let resources = changes.resources.iter();
            group(action, resources.filter(|change| change.action == action))
        });
        let others = changes.resources.iter();
        let others = group(
            "other",
            others.filter(|change| !ACTIONS.contains(&change.action.as_str())),
        );
        Self {
            add: changes.add,
            change: changes.change,
            destroy: changes.destroy,
            groups: known
                .chain([others])
                .filter(|group| !group.resources.is_empty())
                .collect(),
            omitted: changes.omitted,
            outputs: changes.outputs.clone(),
            checks: changes.checks.clone(),
        }
    }
}

fn group<'a>(action: &str, changes: impl Iterator<Item = &'a ResourceChange>) -> ChangeGroup {
    let resources = changes.map(|change| ResourceChangeView {
        address: change.address.clone(),
        provider: change.provider.clone(),
        reason: change.reason.as_deref().map(reason_text),
        attributes: change.attributes.clone(),
        omitted_attributes: change.omitted_attributes,
    });
    ChangeGroup {
        action: action.to_owned(),
        resources: resources.collect(),
    }
}

/// Returns a reason of the engine as text, see
/// <https://developer.hashicorp.com/terraform/internals/json-format#change-representation>.
fn reason_text(reason: &str) -> String {
    let text = match reason {
        "replace_because_tainted" => "the object is tainted",
        "replace_because_cannot_update" => {
            "the provider cannot update a changed attribute in place"
        }
        "replace_by_request" => "replacement was requested",
        "replace_by_triggers" => "replace_triggered_by refers to a changed object",
        "delete_because_no_resource_config" => "the module has no such resource block",
        "delete_because_no_module" => "the module call was removed",
        "delete_because_wrong_repetition" => "the instance key does not match count or for_each",
        "delete_because_count_index" => "the index exceeds count",
        "delete_because_each_key" => "for_each does not contain the key",
        "delete_because_no_move_target" => "the target of the moved block is not in the module",
        other => return other.replace('_', " "),
    };
    text.to_owned()
}
