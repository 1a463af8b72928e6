//! Build Secrets: copies of credentials for builds in the build namespace. They exist while a build is active.

use alustan_api::labels::{self};
use alustan_core::observed::LentSeen;
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::Secret;
use kube::api::{Api, ListParams, PostParams};
use kube::{Resource, ResourceExt};
use tracing::{info, warn};

use crate::apply::delete::{delete_job, delete_this};
use crate::call::{StatusKind, call, is};
use crate::context::Context;
use crate::error::Error;
use crate::observe::jobs;
use crate::resource::Ref;
use crate::watch::mapping::{is_lent, is_lent_to, owner};

/// Creates the build Secret for the build Job of the same name. Does nothing if the Job has finished or does not exist.
///
/// # Errors
/// [`Error::NameTaken`] if the name belongs to a Secret that is not a build Secret. [`Error::Conflict`] if the name belonged to the build
/// Secret of an earlier Job: this Secret is deleted, and the next reconcile creates the new one.
pub(super) async fn lend(ctx: &Context, secret: &Secret) -> Result<(), Error> {
    let name = secret.name_any();
    let namespace = secret.namespace().unwrap_or_default();
    let job = ctx.mirrors.jobs.get(&namespace, &name);
    let Some(job) = job.filter(|job| !jobs::finished(job)) else {
        return Ok(());
    };
    let mut secret = secret.clone();
    secret.metadata.owner_references = job.owner_ref(&()).map(|owner| vec![owner]);
    let api: Api<Secret> = Api::namespaced(ctx.client.clone(), &namespace);
    let what = format!("create build Secret {name}");
    match call(&what, api.create(&PostParams::default(), &secret)).await {
        Ok(mut made) => {
            info!(job = name, namespace, "created a build Secret");
            made.data = None;
            ctx.mirrors.secrets.wrote(made);
            Ok(())
        }
        Err(Error::Call { source, .. }) if is(&source, StatusKind::AlreadyExists) => {
            let what = format!("read Secret {name}");
            let Some(old) = call(&what, api.get_metadata_opt(&name)).await? else {
                return Err(Error::Conflict);
            };
            if is_lent_to(&old, &job.uid().unwrap_or_default()) {
                return Ok(());
            }
            if !is_lent(&old) {
                let kind = Secret::kind(&()).into_owned();
                return Err(Error::NameTaken { kind, name });
            }
            // `old` is the build Secret of an earlier Job with the same name.
            delete_this(&api, &name, &old.uid().unwrap_or_default()).await?;
            Err(Error::Conflict)
        }
        Err(error) => Err(error),
    }
}

/// Deletes a build Secret that no active build uses.
pub(super) async fn take_back(ctx: &Context, lent: &LentSeen) -> Result<(), Error> {
    ctx.mirrors.secrets.forget(&lent.namespace, &lent.name);
    let api: Api<Secret> = Api::namespaced(ctx.client.clone(), &lent.namespace);
    delete_this(&api, &lent.name, &lent.uid).await?;
    info!(
        job = lent.name,
        namespace = lent.namespace,
        "deleted a build Secret"
    );
    Ok(())
}

/// Deletes the builds and build Secrets of a resource from the build namespace. Neither garbage collection nor the deletion of the
/// resource's namespace removes them.
pub(crate) async fn sweep(ctx: &Context, resource: &Ref) -> Result<(), Error> {
    let (Some(namespace), Some(own)) = (&ctx.settings.build_namespace, &resource.namespace) else {
        return Ok(());
    };
    let ours = format!(
        "{}={},{}={own},{}={}",
        labels::MANAGED_BY,
        labels::MANAGER,
        labels::NAMESPACE,
        labels::NAME,
        resource.name
    );
    let list = ListParams::default().labels(&ours);
    let api: Api<Secret> = Api::namespaced(ctx.client.clone(), namespace);
    for secret in call("list build Secrets", api.list_metadata(&list)).await? {
        let name = secret.name_any();
        ctx.mirrors.secrets.forget(namespace, &name);
        delete_this(&api, &name, &secret.uid().unwrap_or_default()).await?;
    }
    let api: Api<Job> = Api::namespaced(ctx.client.clone(), namespace);
    for job in call("list builds", api.list_metadata(&list)).await? {
        let uid = job.uid().unwrap_or_default();
        delete_job(ctx, namespace, &job.name_any(), &uid).await?;
    }
    Ok(())
}

/// Deletes the builds of a resource that was deleted without a reconcile, for example because its finalizer was removed by hand. Calls the
/// API server only if the watch cache has a build of the resource.
pub(crate) async fn sweep_after(ctx: &Context, resource: &Ref) {
    let builds = |object: &Job| {
        object.labels().contains_key(labels::NAMESPACE)
            && owner(&ctx.settings, object).as_ref() == Some(resource)
    };
    if !ctx.leader.leads() || ctx.mirrors.jobs.filter(builds).is_empty() {
        return;
    }
    match sweep(ctx, resource).await {
        Ok(()) => info!(resource = %resource, "deleted the builds of a deleted resource"),
        Err(error) => warn!(
            resource = %resource,
            error = error.chain(),
            "failed to delete the builds of a deleted resource"
        ),
    }
}
