//! Health that Argo CD (with `deploy/argocd/health.lua`) and kstatus report for a resource in each `status.state`.

use std::collections::BTreeMap;

use alustan_api::report::FailureClass;
use alustan_api::{State, Terraform};
use mlua::serde::SerializeOptions;
use mlua::{Lua, LuaSerdeExt};
use serde::Deserialize;

use crate::fixtures::{self, Edit as _};
use crate::world::{Stage, World};

const SCRIPT: &str = include_str!("../../../../../deploy/argocd/health.lua");
const README: &str = include_str!("../../../../../deploy/argocd/README.md");

#[derive(Debug, Deserialize)]
struct Health {
    status: String,
    message: String,
}

/// Returns the health that Argo CD determines. Argo CD executes the script in Lua 5.1 with the object in `obj`
/// (<https://argo-cd.readthedocs.io/en/stable/operator-manual/health/#custom-health-checks>).
fn argo(tf: &Terraform) -> Health {
    let lua = Lua::new();
    let options = SerializeOptions::new()
        .serialize_none_to_null(false)
        .serialize_unit_to_null(false);
    let object = lua
        .to_value_with(&serde_json::to_value(tf).unwrap(), options)
        .unwrap();
    lua.globals().set("obj", object).unwrap();
    let health = lua.load(SCRIPT).eval().unwrap();
    lua.from_value(health).unwrap()
}

/// Returns the status that kstatus determines, by the rules of `checkGenericProperties` and `checkReadyCondition` in
/// <https://github.com/kubernetes-sigs/cli-utils/blob/master/pkg/kstatus/status/generic.go>.
fn kstatus(tf: &Terraform) -> &'static str {
    if tf.metadata.deletion_timestamp.is_some() {
        return "Terminating";
    }
    let status = tf.status.as_ref();
    let observed = status.and_then(|status| status.observed_generation);
    if observed.is_some_and(|observed| Some(observed) != tf.metadata.generation) {
        return "InProgress";
    }
    let conditions = status.map(|status| status.conditions.as_slice());
    let is = |kind: &str, wanted: &str| {
        let mut remaining = conditions.unwrap_or_default().iter();
        remaining.any(|condition| condition.type_ == kind && condition.status == wanted)
    };
    for condition in conditions.unwrap_or_default() {
        match (condition.type_.as_str(), condition.status.as_str()) {
            ("Reconciling", "True") => return "InProgress",
            ("Stalled", "True") => return "Failed",
            _ => {}
        }
    }
    if is("Ready", "False") || is("Ready", "Unknown") {
        return "InProgress";
    }
    "Current"
}

/// Returns resources with the status that the operator sets in different situations, each with a description of the situation.
fn fixtures() -> Vec<(&'static str, Terraform)> {
    let mut cases: Vec<(&'static str, Terraform)> = Vec::new();
    let mut keep = |description, world: &World| cases.push((description, world.tf().clone()));

    keep("not reconciled yet", &World::new());
    let mut world = World::new();
    world.git_up = false;
    world.settle();
    keep("the repository does not answer", &world);
    keep(
        "the image is being built",
        &World::until(|world| world.status().state == State::Building),
    );
    let mut world = World::new();
    world.run_to(Stage::Planning);
    keep("planning", &world);
    world.run_to(Stage::Applying).reconcile();
    keep("applying", &world);
    keep("applied", &World::applied());
    keep("a plan waits for approval", &World::awaiting());

    let mut world = World::applied();
    world.edit(|tf| tf.with_variable("size", 7));
    keep("the spec changed a moment ago", &world);
    world.run_to(Stage::Applying).reconcile();
    keep("a changed spec is being applied", &world);

    let mut world = World::new();
    world.fail_at(Stage::Applying, FailureClass::Module);
    keep("failed, will be retried", &world);
    let mut world = World::new();
    world.fail_at(Stage::Applying, FailureClass::User);
    keep("failed, not retried", &world);

    let mut world = World::with_mode("Report");
    world.real.drifted = true;
    world.start_drift_check();
    world.settle();
    keep("drift is reported", &world);

    let mut world = World::with(fixtures::terraform().with("/suspend", true));
    world.settle();
    keep("suspended before the first apply", &world);
    let mut world = World::applied();
    world.edit(|tf| tf.with("/suspend", true)).settle();
    keep("suspended, and applied", &world);

    let mut world = World::applied();
    world.delete().run_to(Stage::Applying);
    keep("being destroyed", &world);
    let mut world = World::applied();
    world.delete();
    world.fail_at(Stage::Applying, FailureClass::User);
    keep("the destroy failed, not retried", &world);
    cases
}

fn state(tf: &Terraform) -> String {
    let state = tf
        .status
        .as_ref()
        .map(|status| status.state)
        .unwrap_or_default();
    serde_json::to_value(state)
        .unwrap()
        .as_str()
        .unwrap()
        .to_owned()
}

fn ready(tf: &Terraform) -> String {
    let conditions = tf.status.iter().flat_map(|status| &status.conditions);
    let mut ready = conditions.filter(|condition| condition.type_ == "Ready");
    ready
        .next()
        .map_or_else(|| "–".to_owned(), |condition| condition.status.clone())
}

#[test]
fn argo_cd_table_matches_the_script_and_kstatus() {
    let mut rows = Vec::new();
    for (description, tf) in fixtures() {
        let (argo, kstatus) = (argo(&tf).status, kstatus(&tf));
        let (state, ready) = (state(&tf), ready(&tf));
        rows.push(format!(
            "| {description} | {state} | {ready} | {argo} | {kstatus} |\n"
        ));
    }
    let table = rows.concat();
    assert!(
        README.contains(&table),
        "deploy/argocd/README.md should have:\n{table}"
    );
}

#[test]
fn argo_cd_and_kstatus_agree_unless_suspended() {
    let mut states = BTreeMap::new();
    for (description, tf) in fixtures() {
        let health = argo(&tf);
        let agreed = match health.status.as_str() {
            "Healthy" => ["Current", "Current"],
            "Progressing" => ["InProgress", "Terminating"],
            "Degraded" => ["Failed", "Terminating"],
            "Suspended" => continue,
            health => panic!("{description}: {health} is no health of Argo CD"),
        };
        // kstatus reports Current for every object without status, so such an object is not compared.
        let looked_at = tf.status.is_some();
        assert!(
            !looked_at || agreed.contains(&kstatus(&tf)),
            "{description}: {health:?}"
        );
        assert!(!health.message.is_empty(), "{description}");
        states.insert(state(&tf), description);
    }
    let expected_states = [
        "Pending",
        "Building",
        "Planning",
        "Applying",
        "Success",
        "Drifted",
        "Failed",
        "Stalled",
        "Destroying",
    ];
    for wanted in expected_states {
        assert!(states.contains_key(wanted), "no fixture of {wanted}");
    }
}
