//! Stop requests, and reaping of orphaned processes by the runner as PID 1.

use std::sync::Arc;
use std::time::Instant;

use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::watch;

use crate::engine::processes::Processes;

/// Stop request of a run, with the time of the request. Cheap to clone.
#[derive(Clone)]
pub struct Stop {
    receiver: watch::Receiver<Option<Instant>>,
}

impl Stop {
    /// Creates a stop request and its sender. The sender sends the time of the request.
    pub fn channel() -> (watch::Sender<Option<Instant>>, Self) {
        let (sender, receiver) = watch::channel(None);
        (sender, Self { receiver })
    }

    /// Returns the time of the stop request, if any.
    pub fn requested_at(&self) -> Option<Instant> {
        *self.receiver.borrow()
    }

    /// Waits for the stop request. Returns the time of the request.
    pub async fn requested(&self) -> Instant {
        let mut receiver = self.receiver.clone();
        let at = match receiver.wait_for(Option::is_some).await {
            Ok(at) => *at,
            Err(_) => None,
        };
        match at {
            Some(at) => at,
            None => std::future::pending().await,
        }
    }
}

/// Converts SIGTERM and SIGINT to a stop request.
pub fn listen() -> std::io::Result<Stop> {
    let (sender, stop) = Stop::channel();
    let terminate = signal(SignalKind::terminate())?;
    let interrupt = signal(SignalKind::interrupt())?;
    tokio::spawn(pass_on(terminate, interrupt, sender));
    Ok(stop)
}

/// Reaps orphaned processes whenever a child process ends. Treats every child process that [`Processes::start`] did not start as orphaned. Other
/// code must therefore not wait for child processes that it starts itself.
pub fn reap_orphans(processes: Arc<Processes>) -> std::io::Result<()> {
    tokio::spawn(reap_on(signal(SignalKind::child())?, processes));
    Ok(())
}

async fn pass_on(
    mut terminate: Signal,
    mut interrupt: Signal,
    sender: watch::Sender<Option<Instant>>,
) {
    loop {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
        sender.send_if_modified(|requested_at| {
            let first = requested_at.is_none();
            if first {
                *requested_at = Some(Instant::now());
                crate::log!("received SIGTERM or SIGINT; stopping");
            }
            first
        });
    }
}

async fn reap_on(mut child: Signal, processes: Arc<Processes>) {
    while child.recv().await.is_some() {
        processes.reap();
    }
}
