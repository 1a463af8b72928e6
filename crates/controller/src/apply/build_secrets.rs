//! Build Secrets: copies of credentials for builds in the build namespace, and tokens of GitHub Apps for builds and runs. They exist while the
//! Job is active.

use alustan_api::labels::{self};
use alustan_core::observed::BuildSecretSeen;
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::Secret;
use kube::api::{Api, ListParams, PostParams};
use kube::{Resource, ResourceExt};
use tracing::{info, warn};

use crate::apply::delete::{delete_job, delete_with_uid};
use crate::call::{StatusKind, call, has_status};
use crate::context::Context;
use crate::error::Error;
use crate::resource::{Ref, to_key};
use crate::watch::keys::JobKey;
use crate::watch::mapping::{is_build_secret, is_build_secret_of, owner};

/// Creates the build Secret for the Job of the same name. Does nothing if the Job has finished or does not exist.
///
/// # Errors
/// [`Error::NameTaken`] if a Secret with this name exists that is not a build Secret. [`Error::Conflict`] if the build Secret of an earlier Job
/// has this name: deletes that Secret, and the next reconcile creates the new one.
pub(super) async fn create(ctx: &Context, secret: &Secret) -> Result<(), Error> {
    let name = secret.name_any();
    let namespace = secret.namespace().unwrap_or_default();
    let job = ctx.mirrors.jobs.get(&namespace, &name);
    let Some(job) = job.filter(|job| job.finished.is_none()) else {
        return Ok(());
    };
    let mut secret = secret.clone();
    secret.metadata.owner_references = job.owner_ref(&()).map(|owner| vec![owner]);
    let api: Api<Secret> = Api::namespaced(ctx.client.clone(), &namespace);
    let operation = format!("create build Secret {name}");
    match call(&operation, api.create(&PostParams::default(), &secret)).await {
        Ok(mut created) => {
            info!(job = name, namespace, "created a build Secret");
            created.data = None;
            ctx.mirrors.secrets.record_write(created);
            Ok(())
        }
        Err(Error::Call { source, .. }) if has_status(&source, StatusKind::AlreadyExists) => {
            let operation = format!("read Secret {name}");
            let Some(existing) = call(&operation, api.get_metadata_opt(&name)).await? else {
                return Err(Error::Conflict);
            };
            if is_build_secret_of(&existing, &job.uid().unwrap_or_default()) {
                return Ok(());
            }
            if !is_build_secret(&existing) {
                let kind = Secret::kind(&()).into_owned();
                return Err(Error::NameTaken { kind, name });
            }
            // `existing` is the build Secret of an earlier Job with the same name.
            delete_with_uid(&api, &name, &existing.uid().unwrap_or_default()).await?;
            Err(Error::Conflict)
        }
        Err(error) => Err(error),
    }
}

/// Deletes a build Secret that no active build uses.
pub(super) async fn delete(ctx: &Context, build_secret: &BuildSecretSeen) -> Result<(), Error> {
    ctx.mirrors
        .secrets
        .forget(&build_secret.namespace, &build_secret.name);
    let api: Api<Secret> = Api::namespaced(ctx.client.clone(), &build_secret.namespace);
    delete_with_uid(&api, &build_secret.name, &build_secret.uid).await?;
    info!(
        job = build_secret.name,
        namespace = build_secret.namespace,
        "deleted a build Secret"
    );
    Ok(())
}

/// Deletes the builds and build Secrets of a resource from the build namespace. Kubernetes does not delete them together with the resource or its
/// namespace, because the build namespace is another namespace.
pub(crate) async fn delete_builds(ctx: &Context, resource: &Ref) -> Result<(), Error> {
    let (Some(namespace), Some(resource_namespace)) =
        (&ctx.settings.build_namespace, &resource.namespace)
    else {
        return Ok(());
    };
    let selector = format!(
        "{}={},{}={resource_namespace},{}={}",
        labels::MANAGED_BY,
        labels::MANAGER,
        labels::NAMESPACE,
        labels::NAME,
        resource.name
    );
    let parameters = ListParams::default().labels(&selector);
    let api: Api<Secret> = Api::namespaced(ctx.client.clone(), namespace);
    for secret in call("list build Secrets", api.list_metadata(&parameters)).await? {
        let name = secret.name_any();
        ctx.mirrors.secrets.forget(namespace, &name);
        delete_with_uid(&api, &name, &secret.uid().unwrap_or_default()).await?;
    }
    let api: Api<Job> = Api::namespaced(ctx.client.clone(), namespace);
    for job in call("list builds", api.list_metadata(&parameters)).await? {
        let uid = job.uid().unwrap_or_default();
        delete_job(ctx, namespace, &job.name_any(), &uid).await?;
    }
    Ok(())
}

/// Deletes the builds of a resource that was deleted without a reconcile, for example because its finalizer was removed by hand. Calls the
/// API server only if the watch cache has a build of the resource.
pub(crate) async fn delete_builds_of_deleted(ctx: &Context, resource: &Ref) {
    let builds = ctx.mirrors.jobs.with(&JobKey::BuildOf(to_key(resource)));
    let mut owners = builds.iter().map(|job| owner(&ctx.settings, &**job));
    if !ctx.leader.leads() || owners.all(|owner| owner.as_ref() != Some(resource)) {
        return;
    }
    match delete_builds(ctx, resource).await {
        Ok(()) => info!(resource = %resource, "deleted the builds of a deleted resource"),
        Err(error) => warn!(
            resource = %resource,
            error = error.chain(),
            "failed to delete the builds of a deleted resource"
        ),
    }
}
