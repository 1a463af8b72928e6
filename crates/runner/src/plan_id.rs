//! The id of a plan (rule 6): what a person approves.

use std::collections::BTreeMap;

use alustan_api::run::ScriptTexts;
use k8s_openapi::jiff::Timestamp;
use ring::hmac;
use serde_json::{Value, json};

use crate::lineage::StateHead;

/// How many characters an id has.
const LENGTH: usize = 16;

/// What makes one plan another than the one before.
#[derive(Clone, Copy)]
pub struct Plan<'a> {
    /// The digest of its changes.
    pub digest: &'a str,
    /// The context that it was made of.
    pub context: Option<&'a str>,
    /// The values of its variables.
    pub variables: &'a BTreeMap<String, Value>,
    /// The scripts that make and apply it.
    pub scripts: &'a ScriptTexts,
    /// The state that it starts from.
    pub state: &'a StateHead,
    /// The last run that began to change things.
    pub begun: i64,
    /// When the resource was restored from a backup, after which the number in `begun` is used again.
    pub restored: Option<Timestamp>,
}

/// The id of `plan`, keyed with the resource's `key`: nobody can guess values from it.
pub fn plan_id(plan: Plan<'_>, key: &[u8]) -> String {
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
    fn whatever_differs_makes_another_id() {
        let (none, some) = (
            BTreeMap::new(),
            BTreeMap::from([("size".to_owned(), json!(1))]),
        );
        let state = |lineage: &str, serial| StateHead {
            lineage: Some(lineage.to_owned()),
            serial: Some(serial),
            things: 1,
        };
        let (first, later, other) = (state("l", 1), state("l", 2), state("m", 1));
        let (built_in, script) = (
            ScriptTexts::default(),
            ScriptTexts {
                apply: Some("rm -rf /".to_owned()),
                ..ScriptTexts::default()
            },
        );
        let plan = Plan {
            digest: "d",
            context: Some("c"),
            variables: &none,
            scripts: &built_in,
            state: &first,
            begun: 1,
            restored: None,
        };
        let plans = [
            plan,
            Plan {
                digest: "e",
                ..plan
            },
            Plan {
                context: None,
                ..plan
            },
            Plan {
                context: Some("d"),
                ..plan
            },
            Plan {
                scripts: &script,
                ..plan
            },
            Plan {
                variables: &some,
                ..plan
            },
            Plan {
                state: &later,
                ..plan
            },
            Plan {
                state: &other,
                ..plan
            },
            Plan { begun: 2, ..plan },
            Plan {
                restored: Some(Timestamp::UNIX_EPOCH),
                ..plan
            },
            Plan {
                restored: Some(Timestamp::MAX),
                ..plan
            },
        ];
        let mut ids: BTreeSet<String> = plans.map(|it| plan_id(it, b"key")).into();
        ids.insert(plan_id(plan, b"another"));
        assert_eq!(ids.len(), plans.len() + 1);
        assert!(ids.iter().all(|id| id.len() == LENGTH));
        assert_eq!(plan_id(plan, b"key"), plan_id(plan, b"key"));
    }
}
