//! Names of the steps of a reconcile, and of the objects that they write, for logs and messages.

use alustan_core::step::{Object, OutputsObject, Step};

/// Returns kind and name of an object, such as `Secret web-run`.
pub(crate) fn object_name(object: &Object) -> String {
    let (kind, meta) = match object {
        Object::Secret(secret) => ("Secret", &secret.metadata),
        Object::ConfigMap(map) => ("ConfigMap", &map.metadata),
        Object::Claim(claim) => ("PersistentVolumeClaim", &claim.metadata),
        Object::Account(account) => ("ServiceAccount", &account.metadata),
        Object::Role(role) => ("Role", &role.metadata),
        Object::Binding(binding) => ("RoleBinding", &binding.metadata),
        Object::Budget(budget) => ("PodDisruptionBudget", &budget.metadata),
        Object::Namespace(namespace) => ("Namespace", &namespace.metadata),
    };
    format!("{kind} {}", meta.name.as_deref().unwrap_or_default())
}

/// Returns a step as a verb phrase, such as `create the run record`.
pub(crate) fn name(step: &Step) -> String {
    match step {
        Step::AddFinalizer => "add the finalizer".to_owned(),
        Step::CreateRecord(_) => "create the run record".to_owned(),
        Step::TakeOver(_) => "restore the run record".to_owned(),
        Step::SwapRecord(_) => "update the run record".to_owned(),
        Step::CheckRecord(_) => "check the run record".to_owned(),
        Step::SwapReport(_) => "update the run report".to_owned(),
        Step::Ensure(object) => format!("apply {}", crate::step_name::object_name(object)),
        Step::PushContext => "push the context".to_owned(),
        Step::PruneImages => "prune the registry repository".to_owned(),
        Step::CreateJob(job) | Step::EmptyCache(job) => {
            format!(
                "create Job {}",
                job.metadata.name.as_deref().unwrap_or_default()
            )
        }
        Step::DeleteJob { name, .. } => format!("delete Job {name}"),
        Step::CreateBuildSecret(secret) => {
            let name = secret.metadata.name.as_deref().unwrap_or_default();
            format!("create build Secret {name}")
        }
        Step::DeleteBuildSecret(build_secret) => {
            format!("delete build Secret {}", build_secret.name)
        }
        Step::DeleteOutputs(OutputsObject::Secret(name)) => {
            format!("delete the outputs in Secret {name}")
        }
        Step::DeleteOutputs(OutputsObject::ConfigMap(name)) => {
            format!("delete the outputs in ConfigMap {name}")
        }
        Step::RecordRun(run) => {
            let name = run.metadata.name.as_deref().unwrap_or_default();
            format!("write TerraformRun {name}")
        }
        Step::DeleteRun(name) => format!("delete TerraformRun {name}"),
        Step::DeleteClaim => "delete the PersistentVolumeClaim of the cache volume".to_owned(),
        Step::ReleaseClaim(claim) => {
            format!("delete finished Jobs that use PersistentVolumeClaim {claim}")
        }
        Step::CleanUp { .. } => "clean up".to_owned(),
        Step::RemoveFinalizer => "remove the finalizer".to_owned(),
    }
}
