//! Deletion of single objects with a uid precondition.

use k8s_openapi::api::batch::v1::Job;
use kube::Resource;
use kube::api::{Api, DeleteParams, Preconditions};
use serde::de::DeserializeOwned;

use crate::call::{StatusKind, call, has_status, ignore_not_found};
use crate::context::Context;
use crate::error::Error;

/// Deletes a Job with its pods: without a propagation policy the API server would orphan the pods. Keeps a Job with the same name and
/// another uid.
pub(super) async fn delete_job(
    ctx: &Context,
    namespace: &str,
    name: &str,
    uid: &str,
) -> Result<(), Error> {
    ctx.mirrors.jobs.forget(namespace, name);
    let api: Api<Job> = Api::namespaced(ctx.client.clone(), namespace);
    delete_with_uid(&api, name, uid).await
}

/// Deletes the object `name` if it has this uid. Succeeds if it does not exist or has another uid.
pub(super) async fn delete_with_uid<K>(api: &Api<K>, name: &str, uid: &str) -> Result<(), Error>
where
    K: Resource<DynamicType = ()> + DeserializeOwned + Clone + std::fmt::Debug,
{
    let parameters = DeleteParams {
        preconditions: Some(Preconditions {
            uid: Some(uid.to_owned()),
            resource_version: None,
        }),
        ..DeleteParams::background()
    };
    let operation = format!("delete {} {name}", K::kind(&()));
    match call(&operation, api.delete(name, &parameters)).await {
        Err(Error::Call { source, .. }) if has_status(&source, StatusKind::Conflict) => Ok(()),
        other => ignore_not_found(other),
    }
}
