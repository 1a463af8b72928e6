//! `ServiceAccount`s that the spec refers to, read from the API server.

use std::collections::BTreeMap;

use alustan_api::Terraform;
use alustan_api::labels::ALLOW_RUNS;
use alustan_core::decide::allow_lists;
use alustan_core::observed::AccountSeen;
use k8s_openapi::api::core::v1::ServiceAccount;
use kube::ResourceExt;
use kube::api::Api;

use crate::call::call;
use crate::context::Context;
use crate::error::Error;

/// Returns the `ServiceAccount`s that `tf` refers to, by name. All are in the namespace of `tf`.
pub(super) async fn see(
    ctx: &Context,
    tf: &Terraform,
) -> Result<BTreeMap<String, AccountSeen>, Error> {
    let namespace = tf.namespace().unwrap_or_default();
    let api: Api<ServiceAccount> = Api::namespaced(ctx.client.clone(), &namespace);
    let mut accounts = BTreeMap::new();
    for (_, name) in allow_lists::accounts(tf) {
        let what = format!("read ServiceAccount {name}");
        let found = call(&what, api.get_metadata_opt(name)).await?;
        let seen = found.map_or(AccountSeen::Absent, |account| {
            let says = account.annotations().get(ALLOW_RUNS);
            let open = says.is_some_and(|says| says == "true");
            if open {
                AccountSeen::Open
            } else {
                AccountSeen::Closed
            }
        });
        accounts.insert(name.to_owned(), seen);
    }
    Ok(accounts)
}
