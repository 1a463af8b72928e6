//! Connection between the containers `build` and `prepare` of a build by `Append`, which start together: a container start takes longer than
//! most steps of a build. `build` pulls the context and tells `prepare`; `prepare` executes `init` and returns its result.
//!
//! `prepare` connects before it executes files from the git repository, and `build` accepts one connection, so the module cannot connect. A
//! module that takes over `prepare` can only return a wrong result about itself: `build` reads the prepared folders in any case without
//! following links.

use std::fs;
use std::io::{self, ErrorKind};
use std::path::PathBuf;
use std::time::Duration;

use alustan_api::report::Failure;
use alustan_api::{Reason, paths};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{UnixListener, UnixStream};
use tokio::time::sleep;

use super::place::unwritten;
use crate::failure::module;
use crate::layout::Layout;
use crate::record::to_json;

/// Delay between attempts to connect while the container `build` starts.
const TICK: Duration = Duration::from_millis(20);
/// Byte that tells `prepare` that the context is unpacked.
const UNPACKED: u8 = b'u';
/// Maximum size of the result, in bytes.
const LARGEST: u64 = 64 << 10;

fn socket(layout: &Layout) -> PathBuf {
    layout.build.join(paths::HANDOVER).join("socket")
}

/// The side of the container `build`.
pub(super) struct Builder(UnixListener);

impl Builder {
    /// Waits for `prepare` to connect, without blocking the caller.
    pub(super) fn listen(layout: &Layout) -> Result<Self, Failure> {
        let socket = socket(layout);
        let new = socket.with_extension("new");
        let listening = fs::create_dir_all(layout.build.join(paths::HANDOVER))
            .and_then(|()| UnixListener::bind(&new))
            .and_then(|listener| {
                // A socket file that exists accepts connections, unless the builder has ended.
                fs::rename(new, socket)?;
                Ok(listener)
            });
        listening.map(Self).map_err(unwritten)
    }

    /// Tells `prepare` that the context is unpacked, and returns its result.
    pub(super) async fn prepared(self) -> Result<(), Failure> {
        let mut result = Vec::new();
        let received = async {
            let (mut stream, _) = self.0.accept().await?;
            drop(self.0);
            stream.write_all(&[UNPACKED]).await?;
            stream.take(LARGEST).read_to_end(&mut result).await
        };
        let received = received.await.ok();
        received
            .and_then(|_| serde_json::from_slice(&result).ok())
            .unwrap_or_else(|| {
                let message =
                    "the container prepare ended without a result: read its exit code and its log";
                Err(module(Reason::PrepareFailed, message))
            })
    }
}

/// The side of the container `prepare`.
pub(super) struct Preparation(UnixStream);

impl Preparation {
    /// Connects to the builder, and waits until the context is unpacked. Returns `None` if the builder has ended.
    pub(super) async fn start(layout: &Layout) -> io::Result<Option<Self>> {
        let socket = socket(layout);
        let mut stream = loop {
            let connected = UnixStream::connect(&socket).await;
            match connected.as_ref().map_err(io::Error::kind) {
                Err(ErrorKind::NotFound) => sleep(TICK).await,
                Err(ErrorKind::ConnectionRefused | ErrorKind::ConnectionReset) => return Ok(None),
                _ => break connected?,
            }
        };
        let told = stream.read_u8().await;
        Ok(told
            .is_ok_and(|byte| byte == UNPACKED)
            .then_some(Self(stream)))
    }

    /// Sends the result to the builder.
    pub(super) async fn end(mut self, result: &Result<(), Failure>) {
        if let Err(error) = self.0.write_all(&to_json(result)).await {
            crate::say!("failed to send the result to the builder: {error}");
        }
    }
}

#[cfg(test)]
mod tests {
    use tempfile::TempDir;

    use super::*;
    use crate::failure::user;
    use crate::layout::Vars;

    fn layout(folder: &TempDir) -> Layout {
        let mut layout = Layout::from_vars(&Vars::new());
        layout.build = folder.path().to_owned();
        layout
    }

    #[tokio::test]
    async fn builder_gets_the_result_whichever_container_starts_first() {
        let failure = user(Reason::ModuleInvalid, "no such module");
        for result in [Ok(()), Err(failure)] {
            for is_builder_first in [true, false] {
                let folder = TempDir::new().unwrap();
                let layout = layout(&folder);
                let builder = async {
                    if !is_builder_first {
                        sleep(2 * TICK).await;
                    }
                    Builder::listen(&layout).unwrap().prepared().await
                };
                let prepare = async {
                    let preparation = Preparation::start(&layout).await.unwrap();
                    preparation.unwrap().end(&result).await;
                };
                let (received, ()) = tokio::join!(builder, prepare);
                assert_eq!(received, result);
            }
        }
    }

    #[tokio::test]
    async fn prepare_does_not_start_after_the_builder_has_ended() {
        let folder = TempDir::new().unwrap();
        let layout = layout(&folder);
        let builder = Builder::listen(&layout).unwrap();
        let ended = async { drop(builder) };
        let (started, ()) = tokio::join!(Preparation::start(&layout), ended);
        assert!(started.unwrap().is_none());
        assert!(Preparation::start(&layout).await.unwrap().is_none());
    }

    #[tokio::test]
    async fn missing_or_oversized_result_is_a_failure() {
        let oversized = vec![b' '; usize::try_from(LARGEST).unwrap() + 1];
        for result in [Vec::new(), b"{".to_vec(), oversized] {
            let folder = TempDir::new().unwrap();
            let layout = layout(&folder);
            let builder = Builder::listen(&layout).unwrap();
            let prepare = async {
                let preparation = Preparation::start(&layout).await.unwrap();
                let _ = preparation.unwrap().0.write_all(&result).await;
            };
            let (received, ()) = tokio::join!(builder.prepared(), prepare);
            assert_eq!(received.unwrap_err().reason, "PrepareFailed");
        }
    }
}
