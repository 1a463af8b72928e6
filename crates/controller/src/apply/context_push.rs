//! Pushes contexts to registries.

use std::sync::Arc;

use alustan_api::Reason;
use alustan_api::report::Failure;
use alustan_core::observed::allow_list::Allowed;
use alustan_registry::{Digest, Error};

use crate::context::Context;
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
        let held = if let Some(held) = contexts.hold(tenant, &source.context).await {
            held
        } else {
            let refetch = contexts.refetch(tenant).await;
            let (file, size) = files
                .fetch_again(&self.fetchers, source, &self.allowed)
                .await?;
            contexts
                .put_and_hold(refetch, tenant, &source.context, file, size)
                .await
        };
        let digest =
            Digest::parse(&source.context).map_err(|error| registry("the context", &error))?;
        let pushed = self
            .fetchers
            .registry
            .push_context(name, &digest, &held.context.file, access)
            .await
            .map_err(|error| match error {
                Error::UploadFile { .. } => {
                    contexts.discard(&source.context);
                    unreadable(&error)
                }
                Error::NotAContext { .. } => {
                    contexts.discard(&source.context);
                    registry("the context", &error)
                }
                error => registry("spec.containerRegistry", &error),
            })?;
        Ok(format!("{name}@{}", pushed.as_str()))
    }
}

/// Returns the failure of a push whose context cannot be read from the cache directory.
fn unreadable(error: &Error) -> Failure {
    Failure::transient(
        Reason::GitCacheUnusable,
        format!(
            "the cache directory: {error}; check the volume of --cache-dir; the push is retried automatically"
        ),
    )
}
