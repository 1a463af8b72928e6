//! Polls the repositories of affected resources immediately after a push.

use std::collections::HashSet;
use std::sync::Arc;

use alustan_api::GitRepo;
use alustan_source::RepositoryUrl;
use kube::runtime::reflector::ObjectRef;
use tokio::sync::mpsc;
use tracing::info;

use crate::context::Context;
use crate::http::{Push, Pushed};
use crate::remote::queries;
use crate::resource::Ref;

/// Handles pushes until all senders are dropped.
pub(crate) async fn follow(ctx: Arc<Context>, mut pushes: mpsc::Receiver<Pushed>) {
    while let Some((push, told)) = pushes.recv().await {
        let resources = concerned(&ctx, &push);
        ctx.answers.revisions.poll_now(&resources);
        info!(
            repository = push.repositories.first().map(RepositoryUrl::remote),
            reference = push.reference,
            resources = resources.len(),
            "a push"
        );
        // `send` fails if the HTTP request of the push has timed out.
        let _ = told.send(resources.len());
    }
}

fn concerned(ctx: &Context, push: &Push) -> HashSet<Ref> {
    let all = ctx.resources.state();
    let concerned = all.iter().filter(|resource| {
        let tf = resource.0.as_ref();
        tf.is_ok_and(|tf| is_concerned(&tf.spec.git_repo, push))
    });
    concerned
        .map(|resource| ObjectRef::from_obj(&**resource))
        .collect()
}

fn is_concerned(repo: &GitRepo, push: &Push) -> bool {
    let url = RepositoryUrl::parse(&repo.url).ok();
    let reference = queries::reference(repo).ok();
    let both = url.zip(reference);
    both.is_some_and(|(url, reference)| push.concerns(&url, &reference))
}
