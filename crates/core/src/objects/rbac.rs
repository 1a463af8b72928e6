//! Permissions of a runner (rule 12): read the run record; read and patch the run report, the state Secrets and the plan Secret. The Role
//! lists these Secrets by name.

use alustan_api::labels::Component;
use alustan_api::run::RunInputs;
use alustan_api::{Terraform, names};
use k8s_openapi::api::core::v1::ServiceAccount;
use k8s_openapi::api::rbac::v1::{PolicyRule, Role, RoleBinding, RoleRef, Subject};
use kube_core::ResourceExt;

use super::meta;

/// Returns the ServiceAccount of the runner. Its token is mounted only into pods that set `automountServiceAccountToken`.
pub fn account(tf: &Terraform) -> ServiceAccount {
    ServiceAccount {
        metadata: meta(tf, names::runner(&tf.name_any()), Component::Run),
        automount_service_account_token: Some(false),
        ..ServiceAccount::default()
    }
}

/// Returns the Role of a run with `inputs`.
pub fn role(tf: &Terraform, inputs: &RunInputs) -> Role {
    let name = tf.name_any();
    let mut secrets = vec![names::report(&name)];
    secrets.extend(inputs.plan_secret.clone());
    let migration_source = inputs
        .migrate
        .as_ref()
        .and_then(|backend| backend.managed.as_ref());
    if let Some(state) = inputs.backend.managed.as_ref().or(migration_source) {
        secrets.push(state.pointer.clone());
        secrets.extend(state.slots.iter().cloned());
    }
    Role {
        metadata: meta(tf, names::runner(&name), Component::Run),
        rules: Some(vec![
            rule(vec![names::record(&name)], &["get"]),
            rule(secrets, &["get", "patch"]),
        ]),
    }
}

fn rule(secrets: Vec<String>, verbs: &[&str]) -> PolicyRule {
    PolicyRule {
        api_groups: Some(vec![String::new()]),
        resources: Some(vec!["secrets".to_owned()]),
        resource_names: Some(secrets),
        verbs: verbs.iter().map(|verb| (*verb).to_owned()).collect(),
        ..PolicyRule::default()
    }
}

/// Returns the RoleBinding that grants the Role to the ServiceAccount of a run with `inputs`.
pub fn binding(tf: &Terraform, inputs: &RunInputs) -> RoleBinding {
    let name = names::runner(&tf.name_any());
    let account = inputs.service_account.clone();
    RoleBinding {
        metadata: meta(tf, name.clone(), Component::Run),
        role_ref: RoleRef {
            api_group: "rbac.authorization.k8s.io".to_owned(),
            kind: "Role".to_owned(),
            name: name.clone(),
        },
        subjects: Some(vec![Subject {
            api_group: None,
            kind: "ServiceAccount".to_owned(),
            name: account.unwrap_or(name),
            namespace: tf.namespace(),
        }]),
    }
}
