//! Limits the number of open connections and the time for the headers of a request.

use std::collections::BTreeMap;
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use axum::Router;
use axum::body::{Body, HttpBody as _};
use axum::extract::Request;
use axum::middleware::{Next, from_fn};
use axum::serve::Listener;
use futures::{StreamExt as _, stream};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto::Builder;
use hyper_util::service::TowerToHyperService;
use parking_lot::{Mutex, MutexGuard};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore, watch};
use tokio::time::{sleep, timeout};
use tracing::debug;

/// Time limit for the headers of a request, and for the wait until the next request of a connection. Metacontroller sends the next request after 2,
/// 10 or 30 s. The limit differs from these intervals, so that no request reaches a connection that is being closed.
const HEADER_TIMEOUT: Duration = Duration::from_secs(20);

/// Time after which a connection accepts no further request.
const MAX_CONNECTION_AGE: Duration = Duration::from_mins(9);

/// Time limit for the last response of a connection, in case its peer does not read it. A response of `/sync` takes less time. An event stream of the page
/// ends at this limit, and the browser opens it again.
const LAST_RESPONSE_TIMEOUT: Duration = Duration::from_mins(1);

/// Maximum number of open connections of a listener. A further connection closes the connection that has been in [`IdleConnections`] for the longest
/// time, so that the server still responds to probes of the kubelet. A connection whose response is being sent counts as idle, for example one with an
/// event stream.
const MAX_CONNECTIONS: usize = 512;

/// Connections without a complete request: idle, or with a request whose body has not arrived completely.
#[derive(Default)]
struct IdleConnections(Mutex<IdleQueue>);

/// Queue of idle connections, in the order in which they became idle. Has one [`Notify`] for each connection, which closes the connection.
#[derive(Default)]
struct IdleQueue {
    next: u64,
    close: BTreeMap<u64, Arc<Notify>>,
}

/// Entry of a connection in [`IdleConnections`]. The connection has no entry in the queue while a request is served.
struct IdleEntry {
    idle: Arc<IdleConnections>,
    number: Mutex<Option<u64>>,
    close: Arc<Notify>,
}

impl IdleConnections {
    fn queue(&self) -> MutexGuard<'_, IdleQueue> {
        self.0.lock()
    }

    fn close_first(&self) {
        let first = self.queue().close.pop_first();
        if let Some((_, close)) = first {
            close.notify_one();
        }
    }
}

impl IdleEntry {
    fn new(idle: Arc<IdleConnections>) -> Self {
        let entry = Self {
            idle,
            number: Mutex::default(),
            close: Arc::default(),
        };
        entry.enter();
        entry
    }

    fn enter(&self) {
        self.leave();
        let mut queue = self.idle.queue();
        let number = queue.next;
        queue.next += 1;
        queue.close.insert(number, self.close.clone());
        drop(queue);
        *self.number() = Some(number);
    }

    fn leave(&self) {
        if let Some(number) = self.number().take() {
            self.idle.queue().close.remove(&number);
        }
    }

    fn number(&self) -> MutexGuard<'_, Option<u64>> {
        self.number.lock()
    }
}

impl Drop for IdleEntry {
    fn drop(&mut self) {
        self.leave();
    }
}

/// Serves `router` at `listener` until `stop` completes. After that, waits until the active requests are answered.
pub(crate) async fn listen<L: Listener>(
    listener: L,
    router: Router,
    stop: impl Future<Output = ()>,
) {
    listen_with(listener, |_| router.clone(), stop).await;
}

/// Serves a connection at `listener` with the routes that `router_of` returns for it, until `stop` completes. After that, waits until the active
/// requests are answered.
pub(crate) async fn listen_with<L: Listener>(
    mut listener: L,
    router_of: impl Fn(&L::Io) -> Router,
    stop: impl Future<Output = ()>,
) {
    let permits = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    let idle = Arc::new(IdleConnections::default());
    let (stopping, _) = watch::channel(());
    let accepting = async {
        loop {
            let (io, _) = listener.accept().await;
            if permits.available_permits() == 0 {
                idle.close_first();
            }
            let Ok(permit) = permits.clone().acquire_owned().await else {
                return;
            };
            let entry = Arc::new(IdleEntry::new(idle.clone()));
            let stopping = stopping.subscribe();
            let router = router_of(&io);
            tokio::spawn(serve(io, router, stopping, entry, permit));
        }
    };
    tokio::select! {
        () = stop => {}
        () = accepting => {}
    }
    drop(listener);
    stopping.send_replace(());
    // Wait until all connections are closed: each connection holds a receiver of `stopping`.
    stopping.closed().await;
}

/// Serves one connection until it is closed. When `stopping` changes, or after [`MAX_CONNECTION_AGE`], closes the connection after its current
/// request. Closes an idle connection immediately if a new connection exceeds [`MAX_CONNECTIONS`].
async fn serve(
    io: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    router: Router,
    mut stopping: watch::Receiver<()>,
    entry: Arc<IdleEntry>,
    _permit: OwnedSemaphorePermit,
) {
    let mut builder = Builder::new(TokioExecutor::new()).http1_only();
    builder
        .http1()
        .timer(TokioTimer::new())
        .header_read_timeout(HEADER_TIMEOUT);
    let middleware_entry = entry.clone();
    let middleware = move |request: Request, next: Next| {
        let entry = middleware_entry.clone();
        async move {
            let request = request.map(|body| leave_idle_after(body, entry.clone()));
            let response = next.run(request).await;
            entry.enter();
            response
        }
    };
    let service = TowerToHyperService::new(router.layer(from_fn(middleware)));
    let mut connection = pin!(builder.serve_connection(TokioIo::new(io), service));
    let serving = async {
        tokio::select! {
            result = connection.as_mut() => return Some(result),
            () = sleep(MAX_CONNECTION_AGE) => {}
            _ = stopping.changed() => {}
        }
        connection.as_mut().graceful_shutdown();
        timeout(LAST_RESPONSE_TIMEOUT, connection.as_mut())
            .await
            .ok()
    };
    let result = tokio::select! {
        result = serving => result,
        () = entry.close.notified() => return,
    };
    if let Some(Err(error)) = result {
        debug!(%error, "connection closed with an error");
    }
}

/// Wraps `body`, so that the end of the body removes `entry` from [`IdleConnections`].
fn leave_idle_after(body: Body, entry: Arc<IdleEntry>) -> Body {
    if body.is_end_stream() {
        entry.leave();
        return body;
    }
    let end = stream::poll_fn(move |_| {
        entry.leave();
        Poll::Ready(None)
    });
    Body::from_stream(body.into_data_stream().chain(end))
}

#[cfg(test)]
mod tests {
    use std::io;

    use axum::body::Bytes;
    use axum::routing::get;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream, duplex};
    use tokio::sync::{mpsc, oneshot};
    use tokio::task::JoinHandle;
    use tokio::time::{Instant, sleep_until};

    use super::*;

    const REQUEST: &[u8] = b"GET / HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n";
    const UPLOAD: &[u8] =
        b"POST / HTTP/1.1\r\nhost: a\r\nconnection: close\r\ncontent-length: 4\r\n\r\nbody";
    /// Request whose body lacks the last byte.
    const INCOMPLETE: &[u8] = b"POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 5\r\n\r\nbody";
    /// Time that the server takes to respond.
    const WORK: Duration = Duration::from_secs(1);

    /// Listener whose connections come from a channel instead of a socket.
    struct FakeListener(mpsc::UnboundedReceiver<DuplexStream>);

    impl Listener for FakeListener {
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
        connections: mpsc::UnboundedSender<DuplexStream>,
        stop: oneshot::Sender<()>,
        task: JoinHandle<()>,
    }

    impl Server {
        fn new() -> Self {
            let (connections, receiver) = mpsc::unbounded_channel();
            let (stop, stopped) = oneshot::channel();
            let respond = || async {
                sleep(WORK).await;
                "hello"
            };
            let upload = move |_: Bytes| respond();
            let router = Router::new().route("/", get(respond).post(upload));
            let stopped = async move {
                let _ = stopped.await;
            };
            let task = tokio::spawn(listen(FakeListener(receiver), router, stopped));
            Self {
                connections,
                stop,
                task,
            }
        }

        /// Opens a connection and sends `bytes`.
        async fn call(&self, bytes: &[u8]) -> DuplexStream {
            let (mut caller, io) = duplex(1024);
            self.connections.send(io).unwrap();
            caller.write_all(bytes).await.unwrap();
            caller
        }
    }

    /// Reads the response until the connection is closed.
    async fn read_response(caller: &mut DuplexStream) -> String {
        let mut text = String::new();
        caller.read_to_string(&mut text).await.unwrap();
        text
    }

    #[tokio::test(start_paused = true)]
    async fn connection_with_incomplete_head_is_closed() {
        let server = Server::new();
        for sent in [&b""[..], b"GET / HTTP/1.1\r\nhost: a"] {
            let began = Instant::now();
            let mut caller = server.call(sent).await;
            let response = timeout(HEADER_TIMEOUT * 2, read_response(&mut caller)).await;
            assert_eq!(response.as_deref(), Ok(""));
            assert!(began.elapsed() >= HEADER_TIMEOUT, "{:?}", began.elapsed());
        }
    }

    #[tokio::test(start_paused = true)]
    async fn idle_connections_make_room_for_another() {
        let server = Server::new();
        let mut busy = [server.call(REQUEST).await, server.call(UPLOAD).await];
        let mut silent = Vec::new();
        for _ in busy.len()..MAX_CONNECTIONS {
            silent.push(server.call(b"").await);
        }
        sleep(WORK / 2).await;
        let mut late = server.call(REQUEST).await;
        for caller in busy.iter_mut().chain([&mut late]) {
            let response = timeout(WORK * 2, read_response(caller)).await;
            assert!(response.is_ok_and(|text| text.ends_with("hello")));
        }
        let closed = timeout(WORK, read_response(&mut silent[0])).await;
        assert_eq!(closed.as_deref(), Ok(""), "the oldest is closed");
        let open = timeout(WORK, read_response(&mut silent[1])).await;
        assert!(open.is_err(), "{open:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn connections_with_incomplete_bodies_make_room() {
        for age in [WORK / 2, MAX_CONNECTION_AGE + WORK] {
            let server = Server::new();
            let mut slow = Vec::new();
            for _ in 0..MAX_CONNECTIONS {
                slow.push(server.call(INCOMPLETE).await);
            }
            sleep(age).await;
            let mut late = server.call(REQUEST).await;
            let response = timeout(WORK * 2, read_response(&mut late)).await;
            assert!(response.is_ok_and(|text| text.ends_with("hello")));
            let closed = timeout(WORK, read_response(&mut slow[0])).await;
            assert_eq!(closed.as_deref(), Ok(""), "the oldest is closed");
            let open = timeout(WORK, read_response(&mut slow[1])).await;
            assert!(open.is_err(), "{open:?}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn connection_whose_peer_reads_nothing_is_closed() {
        let server = Server::new();
        let requests = b"GET / HTTP/1.1\r\nhost: a\r\n\r\n".repeat(100);
        let (mut caller, io) = duplex(64);
        server.connections.send(io).unwrap();
        let limit = Duration::from_mins(11);
        let sent = timeout(limit, caller.write_all(&requests)).await;
        assert!(sent.is_ok_and(|sent| sent.is_err()), "it is still open");
    }

    #[tokio::test(start_paused = true)]
    async fn event_stream_ends_with_its_connection() {
        let interval = Duration::from_secs(15);
        let events = move || async move {
            Body::from_stream(stream::unfold((), move |()| async move {
                sleep(interval).await;
                Some((Ok::<_, io::Error>("data: a\n\n"), ()))
            }))
        };
        let router = Router::new().route("/", get(events));
        let (connections, receiver) = mpsc::unbounded_channel();
        tokio::spawn(listen(
            FakeListener(receiver),
            router,
            std::future::pending(),
        ));
        let (mut caller, io) = duplex(1024);
        connections.send(io).unwrap();
        caller
            .write_all(b"GET / HTTP/1.1\r\nhost: a\r\n\r\n")
            .await
            .unwrap();
        let (began, mut last) = (Instant::now(), Instant::now());
        let mut events = [0; 1024];
        while caller.read(&mut events).await.unwrap() > 0 {
            assert!(last.elapsed() <= interval);
            last = Instant::now();
        }
        let limit = MAX_CONNECTION_AGE + LAST_RESPONSE_TIMEOUT;
        assert!(began.elapsed() >= limit, "{:?}", began.elapsed());
        assert!(began.elapsed() < limit + interval, "{:?}", began.elapsed());
    }

    #[tokio::test(start_paused = true)]
    async fn request_at_the_end_of_a_connection_is_answered() {
        const NEXT: &[u8] = b"GET / HTTP/1.1\r\nhost: a\r\n\r\n";
        let server = Server::new();
        let last = Instant::now() + MAX_CONNECTION_AGE.saturating_sub(WORK / 2);
        let mut caller = server.call(NEXT).await;
        let mut response = [0; 1024];
        while Instant::now() + HEADER_TIMEOUT < last {
            assert!(caller.read(&mut response).await.unwrap() > 0);
            sleep(HEADER_TIMEOUT / 2).await;
            caller.write_all(NEXT).await.unwrap();
        }
        assert!(caller.read(&mut response).await.unwrap() > 0);
        sleep_until(last).await;
        caller.write_all(NEXT).await.unwrap();
        assert!(read_response(&mut caller).await.ends_with("hello"));
    }

    #[tokio::test(start_paused = true)]
    async fn shutdown_waits_for_requests_in_progress() {
        let server = Server::new();
        let mut caller = server.call(REQUEST).await;
        sleep(WORK / 2).await;
        server.stop.send(()).unwrap();
        let response = timeout(WORK * 2, read_response(&mut caller)).await;
        assert!(response.is_ok_and(|text| text.ends_with("hello")));
        server.task.await.unwrap();
    }
}
