//! The thread of the leader election.

use std::thread;

use alustan_core::leader_election;
use anyhow::{Context as _, Result, bail};
use tokio::runtime;
use tokio::sync::oneshot;

use crate::leader::election::Election;

/// Takes part in the `election` until `controller` ends, then releases the Lease. The election has a separate thread: reconciles that
/// occupy all workers of the runtime must not delay a renewal of the Lease.
///
/// # Errors
/// If another replica takes the Lease: the process exits at once, because its in-memory state may be stale.
pub(crate) async fn run_with_election(
    election: impl Future<Output = Result<Election>> + Send + 'static,
    controller: impl Future<Output = Result<()>>,
) -> Result<()> {
    let (resign, resigned) = oneshot::channel::<()>();
    let (end, mut ended) = oneshot::channel::<Result<Option<String>>>();
    let participation = async move {
        let mut election = election
            .await
            .context("failed to connect to the API server")?;
        tokio::select! {
            by = election.run() => Ok(by),
            _ = resigned => {
                election.resign().await;
                Ok(None)
            }
        }
    };
    thread::Builder::new()
        .name("election".to_owned())
        .spawn(move || {
            let runtime = runtime::Builder::new_current_thread().enable_all().build();
            end.send(match runtime {
                Ok(runtime) => runtime.block_on(participation),
                Err(error) => Err(error.into()),
            })
        })
        .context("failed to start the thread of the leader election")?;
    tokio::select! {
        election_result = &mut ended => {
            let by = election_result.context("the leader election failed")??;
            match by.as_deref().map(leader_election::pod) {
                Some(by) => bail!("lost leadership to {by}; restarting"),
                None => bail!("lost leadership: the Lease has no holder; restarting"),
            }
        }
        result = controller => {
            drop(resign);
            ended.await.context("failed to release the Lease")??;
            result
        }
    }
}
