//! Deletion of single objects with a uid precondition.

use k8s_openapi::api::batch::v1::Job;
use kube::Resource;
use kube::api::{Api, DeleteParams, Preconditions};
use serde::de::DeserializeOwned;

use crate::call::{StatusKind, call, gone, is};
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
    delete_this(&api, name, uid).await
}

/// Deletes the object `name` if it has this uid. Succeeds if it does not exist or has another uid.
pub(super) async fn delete_this<K>(api: &Api<K>, name: &str, uid: &str) -> Result<(), Error>
where
    K: Resource<DynamicType = ()> + DeserializeOwned + Clone + std::fmt::Debug,
{
    let this = DeleteParams {
        preconditions: Some(Preconditions {
            uid: Some(uid.to_owned()),
            resource_version: None,
        }),
        ..DeleteParams::background()
    };
    let what = format!("delete {} {name}", K::kind(&()));
    match call(&what, api.delete(name, &this)).await {
        Err(Error::Call { source, .. }) if is(&source, StatusKind::Conflict) => Ok(()),
        other => gone(other),
    }
}
