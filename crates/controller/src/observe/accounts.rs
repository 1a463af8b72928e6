//! `ServiceAccount`s that the spec refers to, read from the API server.

use std::collections::BTreeMap;

use alustan_api::Terraform;
use alustan_api::labels::ALLOW_RUNS;
use alustan_core::model::allow_lists;
use alustan_core::observed::AccountSeen;
use k8s_openapi::api::core::v1::ServiceAccount;
use kube::ResourceExt;
use kube::api::Api;

use crate::call::call;
use crate::context::Context;
use crate::error::Error;

/// Returns the `ServiceAccount`s that `tf` refers to, by name. All are in the namespace of `tf`.
pub(super) async fn observe(
    ctx: &Context,
    tf: &Terraform,
) -> Result<BTreeMap<String, AccountSeen>, Error> {
    let namespace = tf.namespace().unwrap_or_default();
    let api: Api<ServiceAccount> = Api::namespaced(ctx.client.clone(), &namespace);
    let mut accounts = BTreeMap::new();
    for (_, name) in allow_lists::accounts(tf) {
        let operation = format!("read ServiceAccount {name}");
        let account = call(&operation, api.get_metadata_opt(name)).await?;
        let account_seen = account.map_or(AccountSeen::Absent, |account| {
            let annotation = account.annotations().get(ALLOW_RUNS);
            let is_open = annotation.is_some_and(|annotation| annotation == "true");
            if is_open {
                AccountSeen::Open
            } else {
                AccountSeen::Closed
            }
        });
        accounts.insert(name.to_owned(), account_seen);
    }
    Ok(accounts)
}
