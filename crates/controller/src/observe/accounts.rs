//! `ServiceAccount`s that the spec refers to, read from the API server, or, in the first reconcile of a resource, reused if another reconcile read them in the
//! last seconds.

use std::collections::BTreeMap;

use alustan_api::labels::ALLOW_RUNS;
use alustan_core::model::allow_lists;
use alustan_core::observed::AccountSeen;
use k8s_openapi::api::core::v1::ServiceAccount;
use kube::ResourceExt;
use kube::api::{Api, PartialObjectMeta};

use crate::call::call;
use crate::error::Error;
use crate::observe::observer::Observer;
use crate::resource::Ref;

/// Returns the `ServiceAccount`s that the resource of the `observer` refers to, by name. All are in the namespace of the resource.
pub(super) async fn observe(
    observer: &Observer<'_>,
) -> Result<BTreeMap<String, AccountSeen>, Error> {
    let Observer { ctx, tf, .. } = *observer;
    let namespace = tf.namespace().unwrap_or_default();
    let mut accounts = BTreeMap::new();
    for (_, name) in allow_lists::accounts(tf) {
        let request = || {
            let api: Api<ServiceAccount> = Api::namespaced(ctx.client.clone(), &namespace);
            let name = name.to_owned();
            async move {
                let operation = format!("read ServiceAccount {name}");
                let account = call(&operation, api.get_metadata_opt(&name)).await?;
                Ok(account.as_ref().map(seen))
            }
        };
        let key = Ref::new(name).within(&namespace);
        let account = observer.read(&ctx.inputs.accounts, &key, request).await?;
        accounts.insert(name.to_owned(), account.unwrap_or(AccountSeen::Absent));
    }
    Ok(accounts)
}

fn seen(account: &PartialObjectMeta<ServiceAccount>) -> AccountSeen {
    let annotation = account.annotations().get(ALLOW_RUNS);
    if annotation.is_some_and(|annotation| annotation == "true") {
        AccountSeen::Open
    } else {
        AccountSeen::Closed
    }
}
