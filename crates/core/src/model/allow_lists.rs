//! Checks resources against the allow lists in ConfigMap `alustan-allowed`. The admission policy `alustan-allowed`
//! (`deploy/kustomize/components/allow-lists/policy.yaml`) enforces the same rules. This check also covers resources that are older than
//! the policy or bypassed it.

use std::collections::BTreeMap;

use alustan_api::labels::ALLOW_RUNS;
use alustan_api::report::Failure;
use alustan_api::{ApprovalMode, Reason, Terraform};
use kube_core::ResourceExt;

use crate::observed::AccountSeen;
use crate::observed::allow_list::{Allowed, contains_name, is_in_registry, is_in_repository};

/// Returns each field that references a ServiceAccount, with its value.
pub fn accounts(tf: &Terraform) -> impl Iterator<Item = (&'static str, &str)> {
    let registry = &tf.spec.container_registry;
    let runner = tf.spec.runner.as_ref();
    let runner = runner.and_then(|runner| runner.service_account_name.as_deref());
    let build = registry.service_account_name.as_deref();
    let fields = [
        ("spec.containerRegistry.serviceAccountName", build),
        ("spec.runner.serviceAccountName", runner),
    ];
    fields
        .into_iter()
        .filter_map(|(field, name)| Some((field, name?)))
}

/// Returns the violation of the allow lists that prevents builds and runs of `tf`. `accounts`: observed `ServiceAccount`s, by name.
pub fn refusal(
    tf: &Terraform,
    allowed: &Allowed,
    accounts: &BTreeMap<String, AccountSeen>,
) -> Option<Failure> {
    list_violation(tf, allowed)
        .map(|message| failure(Reason::NotAllowed, &message))
        .or_else(|| {
            self::accounts(tf)
                .find_map(|(field, name)| account_violation(tf, (field, name), allowed, accounts))
        })
}

/// Returns the failure if runs of `tf` must not use the ServiceAccount in `spec.runner.serviceAccountName`.
pub(crate) fn runner_account_violation(
    tf: &Terraform,
    allowed: &Allowed,
    accounts: &BTreeMap<String, AccountSeen>,
) -> Option<Failure> {
    let name = tf.spec.runner.as_ref()?.service_account_name.as_deref()?;
    let field = ("spec.runner.serviceAccountName", name);
    account_violation(tf, field, allowed, accounts)
}

/// Returns a copy of the deleted `tf` with `approval.destroy: Manual` if the allow lists require this value and the spec has another one;
/// otherwise `None`.
pub(crate) fn with_manual_destroy(tf: &Terraform, allowed: &Allowed) -> Option<Terraform> {
    let is_deleted = tf.metadata.deletion_timestamp.is_some();
    (is_deleted && lacks_manual_destroy(tf, allowed)).then(|| {
        let mut tf = tf.clone();
        tf.spec.approval.destroy = ApprovalMode::Manual;
        tf
    })
}

/// Whether the allow lists require `approval.destroy: Manual` and the spec of `tf` has another value. A resource with a destroy script is
/// exempt, because no plan contains the changes of a script.
fn lacks_manual_destroy(tf: &Terraform, allowed: &Allowed) -> bool {
    let scripts = tf.spec.scripts.as_ref();
    let has_destroy_script = scripts.is_some_and(|scripts| scripts.destroy.is_some());
    allowed.destroy && !has_destroy_script && tf.spec.approval.destroy != ApprovalMode::Manual
}

fn list_violation(tf: &Terraform, allowed: &Allowed) -> Option<String> {
    let registry = &tf.spec.container_registry;
    let builder = registry.builder.as_ref();
    let images = [
        ("imageName", Some(&registry.image_name)),
        ("baseImage", registry.base_image.as_ref()),
        (
            "builder.cacheRepository",
            builder.and_then(|builder| builder.cache_repository.as_ref()),
        ),
    ];
    let mut images = images
        .into_iter()
        .filter_map(|(field, image)| Some((field, image?)));
    if let Some((field, image)) = images.find(|(_, image)| !is_in_registry(allowed, image)) {
        return Some(format!(
            "spec.containerRegistry.{field}: {image} is not in an allowed registry; allowed: {}; \
             the name must include the registry, for example docker.io/…",
            join_or(&allowed.registries, "none")
        ));
    }
    let origin = tf.spec.module_source().map(|source| source.origin());
    if let Some((field, origin)) = origin.filter(|(_, origin)| !is_in_repository(allowed, origin)) {
        return Some(format!(
            "{field}: {origin} is not in an allowed repository; allowed prefixes: {}; the value \
             must not contain .. or %",
            join_or(&allowed.repositories, "none")
        ));
    }
    let image = builder.and_then(|builder| builder.image.as_ref());
    if let Some(image) = image.filter(|image| !contains_name(&allowed.builders, image)) {
        return Some(format!(
            "spec.containerRegistry.builder.image: {image} is not allowed; allowed: {}",
            join_or(&allowed.builders, "none (remove the field)")
        ));
    }
    let approval = &tf.spec.approval;
    if allowed.approval && approval.mode != ApprovalMode::Manual {
        return Some("spec.approval.mode must be Manual".to_owned());
    }
    if lacks_manual_destroy(tf, allowed) {
        return Some("spec.approval.destroy must be Manual".to_owned());
    }
    None
}

fn account_violation(
    tf: &Terraform,
    (field, name): (&str, &str),
    allowed: &Allowed,
    accounts: &BTreeMap<String, AccountSeen>,
) -> Option<Failure> {
    let namespace = tf.namespace().unwrap_or_default();
    if let Some(list) = &allowed.accounts {
        let qualified = format!("{namespace}/{name}");
        let is_listed = contains_name(list, name) || list.contains(&qualified);
        return (!is_listed).then(|| {
            let message = format!(
                "{field}: ServiceAccount {name} is not allowed in namespace {namespace}; allowed: \
                 {}",
                join_or(list, "none (remove the field)")
            );
            failure(Reason::ServiceAccountNotAllowed, &message)
        });
    }
    match accounts.get(name).unwrap_or(&AccountSeen::Absent) {
        AccountSeen::Open => None,
        AccountSeen::Closed => Some(Failure::user(
            Reason::ServiceAccountNotAllowed,
            format!(
                "{field}: ServiceAccount {name} does not allow runs; its owner can allow them: \
                 kubectl annotate serviceaccount {name} -n {namespace} {ALLOW_RUNS}=true"
            ),
        )),
        AccountSeen::Absent => Some(Failure::transient(
            Reason::ServiceAccountNotFound,
            format!(
                "{field}: ServiceAccount {name} does not exist in namespace {namespace}; \
                 reconciliation resumes automatically once it exists with annotation {ALLOW_RUNS}: \
                 \"true\""
            ),
        )),
    }
}

fn failure(reason: Reason, message: &str) -> Failure {
    Failure::user(
        reason,
        format!(
            "{message}; the allow lists are in ConfigMap alustan-allowed in the namespace of the \
             operator"
        ),
    )
}

fn join_or(list: &[String], empty_text: &str) -> String {
    if list.is_empty() {
        empty_text.to_owned()
    } else {
        list.join(", ")
    }
}
