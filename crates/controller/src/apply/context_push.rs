//! Pushes contexts to registries.

use std::io;
use std::sync::Arc;

use alustan_api::Reason;
use alustan_api::report::Failure;
use alustan_core::observed::allow_list::Allowed;
use alustan_registry::Digest;

use crate::context::Context;
use crate::remote::context_store::{ContextStore, HeldContext};
use crate::remote::failure::registry;
use crate::remote::module_files::Fetchers;
use crate::remote::polled_cache::SendQuery;
use crate::remote::push_request::PushRequest;
use crate::resource::Ref;

/// Starts the push `request` for `resource`. The result is the answer of the query `request.key`.
pub(super) fn start(ctx: &Context, resource: &Ref, request: &PushRequest) {
    let send = sender(ctx, request);
    let artifacts = &ctx.answers.artifacts;
    artifacts.get(&request.key, resource, None, send);
}

/// Returns the query that executes the push `request`.
pub(crate) fn sender(ctx: &Context, request: &PushRequest) -> SendQuery<String> {
    let push = Arc::new(ContextPush {
        request: request.clone(),
        fetchers: ctx.fetchers(),
        allowed: ctx.allowed.now(),
    });
    Box::new(move || {
        let push = push.clone();
        Box::pin(async move { push.run().await })
    })
}

/// Push of a context.
struct ContextPush {
    request: PushRequest,
    fetchers: Fetchers,
    allowed: Arc<Allowed>,
}

impl ContextPush {
    /// Pushes the context and returns its reference, by digest. A context that is no longer stored is fetched again before the push waits for its
    /// permit.
    async fn run(&self) -> Result<String, Failure> {
        let PushRequest {
            name,
            access,
            files,
            source,
            ..
        } = &self.request;
        let tenant = files.tenant();
        let contexts = &self.fetchers.contexts;
        let HeldContext {
            bytes,
            permit: _permit,
        } = if let Ok(held) = contexts.hold(tenant, &source.context).await {
            held
        } else {
            let bytes = files
                .fetch_again(&self.fetchers, source, &self.allowed)
                .await?;
            store_and_hold(contexts, tenant, &source.context, bytes).await?
        };
        let digest =
            Digest::parse(&source.context).map_err(|error| registry("the context", &error))?;
        let pushed = self
            .fetchers
            .registry
            .push_context(name, &digest, bytes.into(), access)
            .await
            .map_err(|error| registry("spec.containerRegistry", &error))?;
        Ok(format!("{name}@{}", pushed.as_str()))
    }
}

/// Stores a context of `tenant` and reads it for its push.
async fn store_and_hold(
    contexts: &ContextStore,
    tenant: &str,
    context: &str,
    bytes: Vec<u8>,
) -> Result<HeldContext, Failure> {
    contexts
        .put(context, &bytes)
        .map_err(|error| not_stored(&error))?;
    drop(bytes);
    contexts
        .hold(tenant, context)
        .await
        .map_err(|error| not_stored(&error))
}

fn not_stored(error: &io::Error) -> Failure {
    Failure::transient(
        Reason::GitCacheUnusable,
        format!(
            "failed to store the context in the cache directory: {error}; free space on the volume of \
             --cache-dir, or make it writable; the push is retried automatically"
        ),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn unusable_cache_directory_is_reported_with_its_cause() {
        let folder = tempfile::tempdir().unwrap();
        let contexts = ContextStore::open(folder.path().join("contexts")).unwrap();
        std::fs::remove_dir(folder.path().join("contexts")).unwrap();
        let stored = store_and_hold(&contexts, "team", "sha256:a", Vec::new()).await;
        let failure = stored.err().unwrap();
        assert_eq!(failure.reason, "GitCacheUnusable");
        for part in [
            "No such file or directory",
            "free space on the volume of --cache-dir, or make it writable",
        ] {
            assert!(failure.message.contains(part), "{failure:?}");
        }
    }
}
