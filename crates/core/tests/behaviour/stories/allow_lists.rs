//! Allow lists of the administrator, and the annotation of `ServiceAccounts` that permits runs. If they forbid a resource, the operator
//! starts no build and no run for it, except a destroy of its real objects.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use alustan_api::run::RunKind;
use alustan_api::{State, Terraform};
use alustan_core::model::allow_lists::refusal;
use alustan_core::observed::AccountSeen;
use alustan_core::observed::allow_list::{Allowed, KEYS};
use alustan_core::step::Object;
use k8s_openapi::api::batch::v1::Job;
use kube_core::ResourceExt;
use rstest::rstest;
use serde_json::{Value, json};

use super::objects::CreatedObjects;
use crate::fixtures::{Edit as _, terraform};
use crate::world::World;

/// Test cases that the tests of the admission policy (`tests/api/policies.rs`) also use, because the operator and the policy must give the
/// same results.
const TABLE: &str = include_str!("../../../../../tests/tables/allowed.json");

const RUNNER: &str = "/runner/serviceAccountName";

fn lists(data: &[(&str, &str)]) -> Arc<Allowed> {
    let data = data
        .iter()
        .map(|(key, text)| ((*key).to_owned(), (*text).to_owned()));
    Arc::new(Allowed::read(&data.collect()))
}

/// Returns a simulated cluster with resource `tf` and ServiceAccount `cloud`. `cloud`: whether this ServiceAccount exists and has the
/// annotation that permits runs to use it.
fn world(tf: Terraform, cloud: AccountSeen) -> World {
    let mut world = World::with(tf);
    world.accounts = BTreeMap::from([("cloud".to_owned(), cloud)]);
    world
}

#[test]
fn allow_lists_permit_only_listed_values() {
    let table: Value = serde_json::from_str(&TABLE.replace("NAMESPACE", "team")).expect("a table");
    let data: BTreeMap<String, String> = serde_json::from_value(table["lists"].clone()).unwrap();
    let (all_keys, keys): (BTreeSet<_>, BTreeSet<_>) =
        (KEYS.into(), data.keys().map(String::as_str).collect());
    assert_eq!(keys, all_keys, "the table has every list");
    let allowed = Allowed::read(&data);
    let mut tf = terraform();
    tf.spec = serde_json::from_value(table["spec"].clone()).unwrap();
    assert_eq!(refusal(&tf, &allowed, &BTreeMap::new()), None);
    for case in table["cases"].as_array().unwrap() {
        let field = case["field"].as_str().unwrap();
        for (key, wanted) in [("allowed", true), ("refused", false)] {
            for value in case[key].as_array().unwrap() {
                let mut tf = tf.clone().with(field, value.clone());
                if field.starts_with("/source") {
                    tf.spec.git_repo = None;
                }
                let violation = refusal(&tf, &allowed, &BTreeMap::new());
                assert_eq!(
                    violation.is_none(),
                    wanted,
                    "{field} {value}: {violation:?}"
                );
                let Some(violation) = violation else { continue };
                let path = format!("spec{}", field.replace('/', "."));
                let value = value.as_str().map(|text| match text {
                    "Auto" => "Manual",
                    text => text,
                });
                for part in [path.as_str()].into_iter().chain(value) {
                    let message = &violation.message;
                    assert!(message.contains(part), "no {part} in {message}");
                }
                let free = refusal(&tf, &Allowed::default(), &open(&tf));
                assert_eq!(free, None, "without lists");
            }
        }
    }
}

/// Returns all `ServiceAccounts` that `tf` names, each with the annotation that permits runs to use it.
fn open(tf: &Terraform) -> BTreeMap<String, AccountSeen> {
    let names = alustan_core::model::allow_lists::accounts(tf).map(|(_, name)| name.to_owned());
    names.map(|name| (name, AccountSeen::Open)).collect()
}

#[test]
fn an_empty_list_allows_nothing() {
    for key in ["registries", "repositories"] {
        let violation = refusal(&terraform(), &lists(&[(key, " \n")]), &BTreeMap::new());
        assert_eq!(violation.unwrap().reason, "NotAllowed", "{key}");
    }
    let none = lists(&[("builders", ""), ("serviceAccounts", "")]);
    assert_eq!(refusal(&terraform(), &none, &BTreeMap::new()), None);
}

#[test]
fn inline_module_must_be_in_the_list_of_repositories() {
    let files = json!({"files": {"main.tf": ""}});
    let mut tf = terraform().with("/source/inline", files);
    tf.spec.git_repo = None;
    for (repositories, is_allowed) in [
        ("https://git.test", false),
        ("https://git.test/inline", false),
        ("https://git.test\ninline", true),
        ("*", true),
    ] {
        let violation = refusal(
            &tf,
            &lists(&[("repositories", repositories)]),
            &BTreeMap::new(),
        );
        assert_eq!(violation.is_none(), is_allowed, "{violation:?}");
    }
}

#[test]
fn forbidden_resource_stalls_without_query_and_build() {
    let mut world = World::new();
    world.allow_lists = lists(&[("registries", "registry.other")]);
    world.settle();
    assert!(world.memory.has_no_query());
    assert!(world.builds.is_empty() && world.jobs.is_empty());
    let status = world.status();
    assert_eq!(
        (status.state, world.reason().as_str()),
        (State::Stalled, "NotAllowed")
    );
    for part in [
        "registry.other",
        "registry.test/team/web",
        "alustan-allowed",
    ] {
        assert!(status.message.contains(part), "{}", status.message);
    }
    world.allow_lists = lists(&[("registries", "registry.test/team")]);
    world.settle();
    assert!(world.is_ready());
}

#[test]
fn forbidden_applied_resource_starts_only_destroy() {
    let mut world = World::applied();
    world.allow_lists = lists(&[("repositories", "https://other.test")]);
    world.edit(|tf| tf.with_variable("size", 1)).settle();
    assert_eq!(world.reason(), "NotAllowed");
    assert_eq!(world.run_number(), 1);
    world.delete().settle();
    assert!(world.tf.is_none() && world.real.is_empty());
}

#[test]
fn required_approval_exempts_destroy_scripts_and_trims_modes() {
    for (mode, requires_approval) in [
        ("Manual", true),
        ("Manual\n", true),
        ("manual", true),
        ("Auto", false),
        (" \n", false),
    ] {
        let lists = lists(&[("destroy", mode), ("approval", mode)]);
        let tf = terraform().with("/approval/mode", "Manual");
        let violation = refusal(&tf, &lists, &BTreeMap::new());
        assert_eq!(violation.is_some(), requires_approval, "{mode:?}");
        let with_destroy_script = tf.with("/scripts/destroy/inline", "terraform destroy");
        assert_eq!(
            refusal(&with_destroy_script, &lists, &BTreeMap::new()),
            None
        );
        assert_eq!(
            refusal(&terraform(), &lists, &BTreeMap::new()).is_some(),
            requires_approval,
            "{mode:?}"
        );
    }
}

#[test]
fn required_approval_refuses_auto_mode_and_covers_destroy() {
    let mut world = World::applied();
    world.allow_lists = lists(&[("destroy", "Manual")]);
    world.settle();
    assert_eq!(world.reason(), "NotAllowed");
    world.delete().settle();
    world.is_destroyed_once_approved();

    let mut world = World::new();
    world.allow_lists = lists(&[("approval", "Manual")]);
    world.settle();
    assert_eq!(
        (world.reason().as_str(), world.run_number()),
        ("NotAllowed", 0)
    );
    world
        .edit(|tf| tf.with("/approval/mode", "Manual"))
        .settle();
    assert_eq!(world.status().state, State::AwaitingApproval);
}

#[rstest]
#[case::of_runs(RUNNER)]
#[case::of_builds("/containerRegistry/serviceAccountName")]
fn service_account_is_usable_once_it_is_annotated(#[case] field: &str) {
    let tf = terraform().with(field, "cloud");
    let mut world = world(tf, AccountSeen::Absent);
    for (account, state, reason) in [
        (
            AccountSeen::Absent,
            State::Pending,
            "ServiceAccountNotFound",
        ),
        (
            AccountSeen::Closed,
            State::Stalled,
            "ServiceAccountNotAllowed",
        ),
    ] {
        world.accounts.insert("cloud".to_owned(), account);
        assert!(world.settle().is_some(), "it looks again by itself");
        let status = world.status();
        assert_eq!((status.state, world.reason().as_str()), (state, reason));
        assert!(world.builds.is_empty() && world.jobs.is_empty());
    }
    let command = "kubectl annotate serviceaccount cloud -n team alustan.io/allow-runs=true";
    let message = world.status().message;
    assert!(message.contains(command), "{message}");
    world.accounts.insert("cloud".to_owned(), AccountSeen::Open);
    world.settle();
    assert!(world.is_ready());
}

#[test]
fn service_account_list_overrides_annotation() {
    for (list, account, wanted) in [
        ("other", AccountSeen::Open, "ServiceAccountNotAllowed"),
        ("", AccountSeen::Open, "ServiceAccountNotAllowed"),
        ("team/cloud", AccountSeen::Closed, "Applied"),
        ("*", AccountSeen::Closed, "Applied"),
    ] {
        let mut world = world(terraform().with(RUNNER, "cloud"), account);
        world.allow_lists = lists(&[("serviceAccounts", list)]);
        world.settle();
        assert_eq!(world.reason(), wanted, "{list:?}");
    }
}

fn account(job: &Job) -> String {
    let pod = job.spec.clone().unwrap().template.spec.unwrap();
    pod.service_account_name.unwrap()
}

#[test]
fn runs_use_named_service_account_with_tokens_and_role() {
    let tokens = json!([{"name": "aws", "audience": "sts.amazonaws.com"}]);
    let tf = terraform()
        .with(RUNNER, "cloud")
        .with("/runner/tokens", tokens);
    let created = CreatedObjects::in_world(world(tf, AccountSeen::Open));
    let jobs: Vec<_> = ["web-apply-1", "web-drift-2"]
        .into_iter()
        .map(|name| {
            created
                .jobs
                .iter()
                .find(|job| job.name_any() == name)
                .unwrap()
        })
        .collect();
    for job in jobs {
        assert_eq!(account(job), "cloud");
        let template = &job.spec.as_ref().unwrap().template;
        let labels = template.metadata.as_ref().unwrap().labels.as_ref().unwrap();
        assert_eq!(labels["azure.workload.identity/use"], "true");
        let pod = serde_json::to_value(template.spec.as_ref().unwrap()).unwrap();
        let volumes = pod["volumes"].as_array().unwrap();
        let volume = volumes
            .iter()
            .find(|volume| volume["name"] == "tokens")
            .unwrap();
        let token =
            json!({"audience": "sts.amazonaws.com", "expirationSeconds": 3600, "path": "aws"});
        assert_eq!(
            volume["projected"]["sources"],
            json!([{ "serviceAccountToken": token }])
        );
        let mounts = pod["containers"][0]["volumeMounts"].as_array().unwrap();
        let mount = mounts
            .iter()
            .find(|mount| mount["name"] == "tokens")
            .unwrap();
        assert_eq!(mount["mountPath"], "/var/run/secrets/alustan.io/tokens");
        assert_eq!(mount["readOnly"], true);
    }
    let made_account = created
        .objects
        .iter()
        .any(|object| matches!(object, Object::Account(_)));
    assert!(!made_account, "it has the user's");
    let subjects = created.objects.iter().find_map(|object| match object {
        Object::Binding(binding) => binding.subjects.clone(),
        _ => None,
    });
    let subject = &subjects.unwrap()[0];
    assert_eq!(subject.name, "cloud");
    assert_eq!(subject.namespace.as_deref(), Some("team"));
}

#[test]
fn changed_service_account_starts_an_apply() {
    let mut world = world(terraform(), AccountSeen::Open);
    world.settle();
    world.edit(|tf| tf.with(RUNNER, "cloud")).settle();
    let (kind, trigger) = world.last_run();
    assert_eq!((kind, trigger.as_str()), (RunKind::Apply, "spec"));
}

/// A user edits the ServiceAccount in the spec and then deletes the resource. The destroy run must not use a ServiceAccount that is not
/// annotated for runs.
#[rstest]
#[case::same("cloud", AccountSeen::Open, "cloud")]
#[case::no_longer_allowed("cloud", AccountSeen::Closed, "cloud")]
#[case::other("other", AccountSeen::Closed, "cloud")]
#[case::other_and_allowed("other", AccountSeen::Open, "other")]
fn destroy_uses_service_account_of_apply_or_an_allowed_one(
    #[case] account_name: &str,
    #[case] account_seen: AccountSeen,
    #[case] expected: &str,
) {
    let mut world = world(terraform().with(RUNNER, "cloud"), AccountSeen::Open);
    world.settle();
    assert!(world.is_ready());
    world.accounts.insert(account_name.to_owned(), account_seen);
    world.edit(|tf| tf.with(RUNNER, account_name)).delete();
    let created = CreatedObjects::by_destroying(world);
    assert_eq!(account(created.jobs.last().unwrap()), expected);
}
