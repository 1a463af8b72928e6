//! What asks a run to stop, and the duties of PID 1.

use std::sync::Arc;
use std::time::Instant;

use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::watch;

use crate::processes::Processes;

/// Tells whether the run was asked to stop, and when. Cheap to clone.
#[derive(Clone)]
pub struct Stop {
    asked: watch::Receiver<Option<Instant>>,
}

impl Stop {
    /// A way to ask, and what listens to it.
    pub fn channel() -> (watch::Sender<Option<Instant>>, Self) {
        let (sender, asked) = watch::channel(None);
        (sender, Self { asked })
    }

    /// When the run was asked to stop, if it was.
    pub fn asked_at(&self) -> Option<Instant> {
        *self.asked.borrow()
    }

    /// Waits until the run is asked to stop.
    pub async fn asked(&self) -> Instant {
        let mut asked = self.asked.clone();
        let at = match asked.wait_for(Option::is_some).await {
            Ok(at) => *at,
            Err(_) => None,
        };
        match at {
            Some(at) => at,
            None => std::future::pending().await,
        }
    }
}

/// Listens to SIGTERM and SIGINT.
pub fn listen() -> std::io::Result<Stop> {
    let (sender, stop) = Stop::channel();
    let terminate = signal(SignalKind::terminate())?;
    let interrupt = signal(SignalKind::interrupt())?;
    tokio::spawn(pass_on(terminate, interrupt, sender));
    Ok(stop)
}

/// Reaps orphans whenever a child ends. Children that [`Processes::start`] has not started are taken for orphans, so
/// that nothing else can wait for a child of its own.
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
        sender.send_if_modified(|asked| {
            let first = asked.is_none();
            if first {
                *asked = Some(Instant::now());
                crate::say!("asked to stop");
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
