//! Connections of callers, who may be anybody: how many are open, and how long one may take to ask.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::serve::Listener;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto::Builder;
use hyper_util::service::TowerToHyperService;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tracing::debug;

/// Time limit for the head of a request. A connection on which no further request comes is closed after
/// it, too: metacontroller asks again after 10 or 30 s, and must not meet one that is just being closed.
const HEAD_LIMIT: Duration = Duration::from_secs(20);

/// Maximum number of open connections of a listener. Further ones wait to be accepted.
const CONNECTIONS: usize = 512;

/// Serves `router` at `listener` until `stop` ends; then requests that were begun are answered.
pub(super) async fn listen<L: Listener>(
    mut listener: L,
    router: Router,
    stop: impl Future<Output = ()>,
) {
    let room = Arc::new(Semaphore::new(CONNECTIONS));
    let (stopping, _) = watch::channel(());
    let accepting = async {
        while let Ok(place) = room.clone().acquire_owned().await {
            let (io, _) = listener.accept().await;
            tokio::spawn(serve(io, router.clone(), stopping.subscribe(), place));
        }
    };
    tokio::select! {
        () = stop => {}
        () = accepting => {}
    }
    drop(listener);
    stopping.send_replace(());
    // Each connection holds a receiver.
    stopping.closed().await;
}

/// Answers on one connection until it is closed. It is closed after the present request once `stopping`
/// changes.
async fn serve(
    io: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    router: Router,
    mut stopping: watch::Receiver<()>,
    _place: OwnedSemaphorePermit,
) {
    let mut builder = Builder::new(TokioExecutor::new()).http1_only();
    builder
        .http1()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_LIMIT);
    let service = TowerToHyperService::new(router);
    let mut connection = pin!(builder.serve_connection(TokioIo::new(io), service));
    let ended = tokio::select! {
        ended = connection.as_mut() => ended,
        _ = stopping.changed() => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
    if let Err(error) = ended {
        debug!(%error, "a connection ended");
    }
}

#[cfg(test)]
mod tests {
    use std::io;

    use axum::routing::get;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream, duplex};
    use tokio::sync::{mpsc, oneshot};
    use tokio::task::JoinHandle;
    use tokio::time::{Instant, sleep, timeout};

    use super::*;

    const REQUEST: &[u8] = b"GET / HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n";
    /// How long an answer takes.
    const WORK: Duration = Duration::from_secs(1);

    /// A listener whose callers are in the same process.
    struct Calls(mpsc::UnboundedReceiver<DuplexStream>);

    impl Listener for Calls {
        type Io = DuplexStream;
        type Addr = ();

        async fn accept(&mut self) -> (Self::Io, Self::Addr) {
            match self.0.recv().await {
                Some(io) => (io, ()),
                None => std::future::pending().await,
            }
        }

        fn local_addr(&self) -> io::Result<Self::Addr> {
            Ok(())
        }
    }

    struct Server {
        calls: mpsc::UnboundedSender<DuplexStream>,
        stop: oneshot::Sender<()>,
        task: JoinHandle<()>,
    }

    impl Server {
        fn new() -> Self {
            let (calls, called) = mpsc::unbounded_channel();
            let (stop, stopped) = oneshot::channel();
            let answer = || async {
                sleep(WORK).await;
                "hello"
            };
            let router = Router::new().route("/", get(answer));
            let stopped = async move {
                let _ = stopped.await;
            };
            let task = tokio::spawn(listen(Calls(called), router, stopped));
            Self { calls, stop, task }
        }

        /// A connection on which `begun` was said.
        async fn call(&self, begun: &[u8]) -> DuplexStream {
            let (mut caller, io) = duplex(1024);
            self.calls.send(io).unwrap();
            caller.write_all(begun).await.unwrap();
            caller
        }
    }

    /// What is answered on a connection until it is closed.
    async fn answer(caller: &mut DuplexStream) -> String {
        let mut text = String::new();
        caller.read_to_string(&mut text).await.unwrap();
        text
    }

    #[tokio::test(start_paused = true)]
    async fn who_does_not_end_the_head_of_a_request_is_let_go() {
        let server = Server::new();
        for begun in [&b""[..], b"GET / HTTP/1.1\r\nhost: a"] {
            let began = Instant::now();
            let mut caller = server.call(begun).await;
            let said = timeout(HEAD_LIMIT * 2, answer(&mut caller)).await;
            assert_eq!(said.as_deref(), Ok(""));
            assert!(began.elapsed() >= HEAD_LIMIT, "{:?}", began.elapsed());
        }
    }

    #[tokio::test(start_paused = true)]
    async fn connections_have_a_bound_and_one_that_ends_makes_room() {
        let server = Server::new();
        let mut silent = Vec::new();
        for _ in 0..CONNECTIONS {
            silent.push(server.call(b"").await);
        }
        let mut late = server.call(REQUEST).await;
        let answered = timeout(WORK * 2, answer(&mut late)).await;
        assert!(answered.is_err(), "{answered:?}");
        drop(silent.pop());
        let answered = timeout(WORK * 2, answer(&mut late)).await;
        assert!(answered.is_ok_and(|text| text.ends_with("hello")));
    }

    #[tokio::test(start_paused = true)]
    async fn a_request_that_was_begun_is_answered_before_the_server_ends() {
        let server = Server::new();
        let mut caller = server.call(REQUEST).await;
        sleep(WORK / 2).await;
        server.stop.send(()).unwrap();
        let answered = timeout(WORK * 2, answer(&mut caller)).await;
        assert!(answered.is_ok_and(|text| text.ends_with("hello")));
        server.task.await.unwrap();
    }
}
