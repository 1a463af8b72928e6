//! Id of a plan (rule 6), to which an approval refers.

use std::collections::BTreeMap;

use alustan_api::run::ScriptTexts;
use k8s_openapi::jiff::Timestamp;
use ring::hmac;
use serde_json::{Value, json};

use crate::state::lineage::StateHead;

/// Length of an id, in characters.
const LENGTH: usize = 16;

/// Inputs of the id of a plan.
#[derive(Clone, Copy)]
pub struct PlanIdInputs<'a> {
    /// Digest of the change set.
    pub digest: &'a str,
    /// Address of the state, because a plan for one state must not be applied to another one. `None` for the managed state, of which each
    /// resource has one: then ids are the same as those of versions without this input, and plans that wait during an upgrade stay approvable.
    pub address: Option<&'a str>,
    /// Context of the planned module.
    pub context: Option<&'a str>,
    /// Values of the variables.
    pub variables: &'a BTreeMap<String, Value>,
    /// Scripts that create and apply the plan.
    pub scripts: &'a ScriptTexts,
    /// State for which the plan was created. Only its lineage and serial are inputs of the id.
    pub state: &'a StateHead,
    /// Number of the last run that started to change objects.
    pub begun: i64,
    /// Time at which the resource was restored from a backup. Makes the ids of plans unique after a restore, because `begun` then repeats
    /// earlier values.
    pub restored: Option<Timestamp>,
    /// Id of the last discarded plan. Makes the id of a new plan with the same changes differ from it.
    pub discarded: Option<&'a str>,
}

/// Returns the id of `plan`, an HMAC with the `key` of the resource, so that values cannot be guessed from the id.
pub fn plan_id(plan: PlanIdInputs<'_>, key: &[u8]) -> String {
    let mut parts = vec![
        json!("plan"),
        json!(plan.digest),
        json!(plan.context),
        json!(plan.variables),
        json!(plan.scripts),
        json!(plan.state.lineage),
        json!(plan.state.serial),
        json!(plan.begun),
    ];
    parts.extend(plan.restored.map(|at| json!(at)));
    parts.extend(plan.discarded.map(|id| json!({ "discarded": id })));
    parts.extend(plan.address.map(|address| json!({ "address": address })));
    let text = Value::Array(parts).to_string();
    let key = hmac::Key::new(hmac::HMAC_SHA256, key);
    let mut id = hex::encode(hmac::sign(&key, text.as_bytes()).as_ref());
    id.truncate(LENGTH);
    id
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn plan_id_differs_for_every_changed_input() {
        let (none, some) = (
            BTreeMap::new(),
            BTreeMap::from([("size".to_owned(), json!(1))]),
        );
        let state = |lineage: &str, serial| StateHead {
            lineage: Some(lineage.to_owned()),
            serial: Some(serial),
            item_count: 1,
        };
        let (first, later, other) = (state("l", 1), state("l", 2), state("m", 1));
        let (built_in, script) = (
            ScriptTexts::default(),
            ScriptTexts {
                apply: Some("rm -rf /".to_owned()),
                ..ScriptTexts::default()
            },
        );
        let plan = PlanIdInputs {
            digest: "d",
            address: None,
            context: Some("c"),
            variables: &none,
            scripts: &built_in,
            state: &first,
            begun: 1,
            restored: None,
            discarded: None,
        };
        let plans = [
            plan,
            PlanIdInputs {
                digest: "e",
                ..plan
            },
            PlanIdInputs {
                address: Some("s3://bucket/env:/staging/web"),
                ..plan
            },
            PlanIdInputs {
                address: Some("s3://bucket/env:/production/web"),
                ..plan
            },
            PlanIdInputs {
                context: None,
                ..plan
            },
            PlanIdInputs {
                context: Some("d"),
                ..plan
            },
            PlanIdInputs {
                scripts: &script,
                ..plan
            },
            PlanIdInputs {
                variables: &some,
                ..plan
            },
            PlanIdInputs {
                state: &later,
                ..plan
            },
            PlanIdInputs {
                state: &other,
                ..plan
            },
            PlanIdInputs { begun: 2, ..plan },
            PlanIdInputs {
                restored: Some(Timestamp::UNIX_EPOCH),
                ..plan
            },
            PlanIdInputs {
                restored: Some(Timestamp::MAX),
                ..plan
            },
            PlanIdInputs {
                discarded: Some("0f3c9a51b2e4d870"),
                ..plan
            },
            PlanIdInputs {
                discarded: Some("1f3c9a51b2e4d870"),
                ..plan
            },
        ];
        let mut ids: BTreeSet<String> = plans.map(|plan| plan_id(plan, b"key")).into();
        ids.insert(plan_id(plan, b"another"));
        assert_eq!(ids.len(), plans.len() + 1);
        assert!(ids.iter().all(|id| id.len() == LENGTH));
        assert_eq!(plan_id(plan, b"key"), plan_id(plan, b"key"));
    }
}
