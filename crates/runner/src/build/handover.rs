//! Connection between the containers `build` and `prepare` of a build with builder kind Append. Both containers start together, because a
//! container start takes longer than most steps of a build. `build` pulls the context and notifies `prepare`; `prepare` executes `init` and
//! returns its result.
//!
//! `prepare` connects before it executes files from the git repository, and `build` accepts one connection, so the module cannot connect.
//! `build` reads the prepared folders without following symbolic links, so a malicious module that controls `prepare` can change only its
//! own image.

use std::fs;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::time::Duration;

use alustan_api::report::Failure;
use alustan_api::{Reason, paths};
use alustan_state::secrets::to_json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{UnixListener, UnixStream};
use tokio::time::{sleep, timeout};

use super::build_folders::unwritten;
use crate::failure::module;
use crate::paths::Paths;

/// Delay between attempts to connect while the container `build` starts.
const TICK: Duration = Duration::from_millis(20);
/// Maximum time that `build` and `prepare` wait for each other. Both containers use the same image and start within seconds.
const PATIENCE: Duration = Duration::from_mins(5);
/// Byte that `build` sends to `prepare` after it has unpacked the context.
const UNPACKED: u8 = b'u';
/// Maximum size of the result of `prepare`, in bytes.
const MAX_BYTES: u64 = 64 << 10;

fn socket(paths: &Paths) -> PathBuf {
    paths.build.join(paths::HANDOVER).join("socket")
}

/// Side of the connection in the container `build`.
pub(super) struct HandoverListener(UnixListener);

impl HandoverListener {
    /// Waits until the kubelet has created the folders that `prepare` mounts, and then creates the socket to which `prepare` connects. The
    /// kubelet fails if another process creates one of the folders at the same time
    /// (<https://github.com/kubernetes/kubernetes/issues/94198>).
    pub(super) async fn listen(paths: &Paths) -> Result<Self, Failure> {
        let folder = paths.build.join(paths::HANDOVER);
        let created = timeout(PATIENCE, async {
            while !folder.exists() {
                sleep(TICK).await;
            }
        });
        created.await.map_err(|_| not_started("prepare"))?;
        let socket = socket(paths);
        let new = socket.with_extension("new");
        let listening = UnixListener::bind(&new).and_then(|listener| {
            // Gives the socket its final name after `bind`. If a client finds the socket but cannot connect, `build` has therefore ended.
            fs::rename(new, socket)?;
            Ok(listener)
        });
        listening.map(Self).map_err(unwritten)
    }

    /// Notifies `prepare` that the context is unpacked, and returns the result of `prepare`.
    pub(super) async fn prepared(self) -> Result<(), Failure> {
        let accepted = timeout(PATIENCE, self.0.accept()).await;
        let accepted = accepted.map_err(|_| not_started("prepare"))?;
        drop(self.0);
        let mut result = Vec::new();
        let received = async {
            let (mut stream, _) = accepted?;
            stream.write_all(&[UNPACKED]).await?;
            stream.take(MAX_BYTES).read_to_end(&mut result).await
        };
        let received = received.await.ok();
        let parsed = received.and_then(|_| serde_json::from_slice(&result).ok());
        parsed.unwrap_or_else(|| {
            let message =
                "the container prepare ended without a result: read its exit code and its log";
            Err(module(Reason::PrepareFailed, message))
        })
    }
}

/// Side of the connection in the container `prepare`.
pub(super) struct Connection(UnixStream);

impl Connection {
    /// Connects to `build`, and waits until `build` has unpacked the context. Returns `None` if `build` has ended.
    pub(super) async fn open(paths: &Paths) -> Result<Option<Self>, Failure> {
        let connected = timeout(PATIENCE, connect(&socket(paths))).await;
        let connected = connected.map_err(|_| not_started("build"))?;
        let Some(mut stream) = connected.map_err(unwritten)? else {
            return Ok(None);
        };
        match stream.read_u8().await {
            Ok(UNPACKED) => Ok(Some(Self(stream))),
            Ok(_) => {
                let message =
                    "the containers build and prepare use different versions of the runner";
                Err(module(Reason::PrepareFailed, message))
            }
            Err(_) => Ok(None),
        }
    }

    /// Waits until `build` has ended. After [`UNPACKED`], `build` sends nothing, so the read returns at the end of the connection.
    pub(super) async fn closed(&mut self) {
        let _ = self.0.read_u8().await;
    }

    /// Sends the result of `prepare` to `build`.
    pub(super) async fn send(mut self, result: &Result<(), Failure>) {
        if let Err(error) = self.0.write_all(&to_json(result)).await {
            crate::log!("failed to send the result to the builder: {error}");
        }
    }
}

/// Waits until `socket` exists and connects to it. Returns `None` if the listening process has ended.
async fn connect(socket: &Path) -> io::Result<Option<UnixStream>> {
    loop {
        let connected = UnixStream::connect(socket).await;
        match connected.as_ref().map_err(io::Error::kind) {
            Err(ErrorKind::NotFound) => sleep(TICK).await,
            Err(ErrorKind::ConnectionRefused | ErrorKind::ConnectionReset) => return Ok(None),
            _ => return connected.map(Some),
        }
    }
}

fn not_started(container: &str) -> Failure {
    let seconds = PATIENCE.as_secs();
    let message = format!(
        "the container {container} of the build pod did not connect within {seconds} seconds"
    );
    module(Reason::PrepareFailed, message)
}

#[cfg(test)]
mod tests {
    use tempfile::TempDir;

    use super::*;
    use crate::failure::user;
    use crate::paths::Vars;

    fn paths(folder: &TempDir) -> Paths {
        let mut paths = Paths::from_vars(&Vars::new());
        paths.build = folder.path().to_owned();
        fs::create_dir(paths.build.join(paths::HANDOVER)).unwrap();
        paths
    }

    #[tokio::test]
    async fn builder_gets_the_result_whichever_container_starts_first() {
        let failure = user(Reason::ModuleInvalid, "no such module");
        for result in [Ok(()), Err(failure)] {
            for is_builder_first in [true, false] {
                let folder = TempDir::new().unwrap();
                let paths = paths(&folder);
                let builder = async {
                    if !is_builder_first {
                        sleep(2 * TICK).await;
                    }
                    HandoverListener::listen(&paths)
                        .await
                        .unwrap()
                        .prepared()
                        .await
                };
                let prepare = async {
                    let connection = Connection::open(&paths).await.unwrap();
                    connection.unwrap().send(&result).await;
                };
                let (received, ()) = tokio::join!(builder, prepare);
                assert_eq!(received, result);
            }
        }
    }

    #[tokio::test]
    async fn prepare_does_not_start_after_the_builder_has_ended() {
        let folder = TempDir::new().unwrap();
        let paths = paths(&folder);
        let listener = HandoverListener::listen(&paths).await.unwrap();
        let ended = async { drop(listener) };
        let (connected, ()) = tokio::join!(Connection::open(&paths), ended);
        assert!(connected.unwrap().is_none());
        assert!(Connection::open(&paths).await.unwrap().is_none());
    }

    #[tokio::test]
    async fn prepare_notices_the_end_of_the_builder() {
        let folder = TempDir::new().unwrap();
        let paths = paths(&folder);
        let builder = tokio::spawn(HandoverListener::listen(&paths).await.unwrap().prepared());
        let mut connection = Connection::open(&paths).await.unwrap().unwrap();
        builder.abort();
        connection.closed().await;
    }

    #[tokio::test(start_paused = true)]
    async fn container_that_does_not_start_is_named() {
        let folder = TempDir::new().unwrap();
        let paths = paths(&folder);
        let failure = Connection::open(&paths).await.err().unwrap();
        assert!(
            failure.message.contains("container build"),
            "{}",
            failure.message
        );
        let listener = HandoverListener::listen(&paths).await.unwrap();
        let failure = listener.prepared().await.unwrap_err();
        assert!(
            failure.message.contains("container prepare"),
            "{}",
            failure.message
        );
    }

    #[tokio::test]
    async fn missing_or_oversized_result_is_a_failure() {
        let oversized = vec![b' '; usize::try_from(MAX_BYTES).unwrap() + 1];
        for result in [Vec::new(), b"{".to_vec(), oversized] {
            let folder = TempDir::new().unwrap();
            let paths = paths(&folder);
            let listener = HandoverListener::listen(&paths).await.unwrap();
            let prepare = async {
                let connection = Connection::open(&paths).await.unwrap();
                let _ = connection.unwrap().0.write_all(&result).await;
            };
            let (received, ()) = tokio::join!(listener.prepared(), prepare);
            assert_eq!(received.unwrap_err().reason, "PrepareFailed");
        }
    }
}
