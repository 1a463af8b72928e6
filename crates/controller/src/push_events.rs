//! Polls the repositories of affected resources immediately after a push.

use std::collections::HashSet;
use std::sync::Arc;

use alustan_api::GitRepo;
use alustan_source::RepositoryUrl;
use tokio::sync::mpsc;
use tracing::info;

use crate::context::Context;
use crate::http::{Push, PushRequest};
use crate::remote::queries;
use crate::resource::{Ref, ref_of};
use crate::watch::keys::ResourceKey;

/// Handles pushes until all senders are dropped.
pub(crate) async fn poll_after_pushes(ctx: Arc<Context>, mut pushes: mpsc::Receiver<PushRequest>) {
    while let Some((push, reply)) = pushes.recv().await {
        let resources = affected(&ctx, &push);
        ctx.answers.revisions.poll_now(&resources);
        info!(
            repository = push.repositories.first().map(RepositoryUrl::remote),
            reference = push.reference,
            resources = resources.len(),
            "a push"
        );
        // `send` fails if the HTTP request of the push has timed out.
        let _ = reply.send(resources.len());
    }
}

fn affected(ctx: &Context, push: &Push) -> HashSet<Ref> {
    let keys = push.repositories.iter().map(RepositoryUrl::repository_key);
    let resources = keys.flat_map(|key| ctx.resources.with(&ResourceKey::Repository(key)));
    let affected = resources.filter(|resource| {
        let tf = resource.0.as_ref();
        let repo = tf.ok().and_then(|tf| tf.spec.git_repo.as_ref());
        repo.is_some_and(|repo| is_affected(repo, push))
    });
    affected.map(|resource| ref_of(&*resource)).collect()
}

fn is_affected(repo: &GitRepo, push: &Push) -> bool {
    let url = RepositoryUrl::parse(&repo.url).ok();
    let reference = queries::reference(repo).ok();
    let url_and_reference = url.zip(reference);
    url_and_reference.is_some_and(|(url, reference)| push.affects(&url, &reference))
}
