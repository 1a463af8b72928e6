//! Deletion of single objects with preconditions.

use k8s_openapi::api::batch::v1::Job;
use kube::api::{Api, DeleteParams, Preconditions};
use kube::{Resource, ResourceExt};
use serde::de::DeserializeOwned;

use crate::call::{StatusKind, call, has_status};
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
    let preconditions = Preconditions {
        uid: Some(uid.to_owned()),
        resource_version: None,
    };
    delete_if(api, name, preconditions).await.map(drop)
}

/// Deletes `object` if it exists and has not changed. Returns whether it deleted the object.
pub(super) async fn delete_version<K>(api: &Api<K>, object: &K) -> Result<bool, Error>
where
    K: Resource<DynamicType = ()> + DeserializeOwned + Clone + std::fmt::Debug,
{
    let preconditions = Preconditions {
        uid: object.uid(),
        resource_version: object.resource_version(),
    };
    delete_if(api, &object.name_any(), preconditions).await
}

async fn delete_if<K>(api: &Api<K>, name: &str, preconditions: Preconditions) -> Result<bool, Error>
where
    K: Resource<DynamicType = ()> + DeserializeOwned + Clone + std::fmt::Debug,
{
    let parameters = DeleteParams {
        preconditions: Some(preconditions),
        ..DeleteParams::background()
    };
    let operation = format!("delete {} {name}", K::kind(&()));
    match call(&operation, api.delete(name, &parameters)).await {
        Ok(_) => Ok(true),
        Err(Error::Call { source, .. })
            if has_status(&source, StatusKind::Conflict)
                || has_status(&source, StatusKind::NotFound) =>
        {
            Ok(false)
        }
        Err(error) => Err(error),
    }
}
