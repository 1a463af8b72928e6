//! TLS listener with optional verification of client certificates.

use std::fmt;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use axum::serve::Listener;
use parking_lot::Mutex;
use rustls::RootCertStore;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::{ServerConfig, WebPkiClientVerifier};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, mpsc};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;
use tracing::{debug, warn};

use crate::args::SyncFlags;
use crate::error::with_causes;

/// Maximum age of loaded certificates. Older certificates are reloaded for the next connection.
const RELOAD_INTERVAL: Duration = Duration::from_secs(10);
/// Time limit of a handshake.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(5);
/// Maximum number of concurrent handshakes.
const MAX_HANDSHAKES: usize = 64;
/// Delay after a failed accept, for example for lack of file descriptors.
const ACCEPT_RETRY_DELAY: Duration = Duration::from_millis(500);

/// Certificate and key of the server, and the CA of client certificates.
pub(super) struct Identity {
    folder: PathBuf,
    client_ca: Option<PathBuf>,
    loaded: Mutex<Loaded>,
}

struct Loaded {
    config: Arc<ServerConfig>,
    at: Instant,
}

impl Identity {
    /// Reads the certificates that the flags name.
    ///
    /// # Errors
    /// If a file cannot be read or is invalid.
    pub(super) fn of(flags: &SyncFlags) -> Result<Self> {
        let folder = flags.tls_dir.clone().unwrap_or_default();
        let client_ca = flags.client_ca_file.clone();
        let config = config(&folder, client_ca.as_deref())?;
        Ok(Self {
            folder,
            client_ca,
            loaded: Mutex::new(Loaded {
                config,
                at: Instant::now(),
            }),
        })
    }

    /// Returns an acceptor with the current certificates. If the files have become unreadable, logs a warning and keeps the previous
    /// certificates.
    fn acceptor(&self) -> TlsAcceptor {
        let mut loaded = self.loaded.lock();
        if loaded.at.elapsed() >= RELOAD_INTERVAL {
            loaded.at = Instant::now();
            match config(&self.folder, self.client_ca.as_deref()) {
                Ok(config) => loaded.config = config,
                Err(error) => warn!(
                    error = with_causes(&*error),
                    "failed to reload the certificates of /sync; keeping the current ones"
                ),
            }
        }
        TlsAcceptor::from(loaded.config.clone())
    }
}

fn config(folder: &Path, client_ca: Option<&Path>) -> Result<Arc<ServerConfig>> {
    let path_of = |name: &str| folder.join(name);
    let (certificates, key) = (path_of("tls.crt"), path_of("tls.key"));
    let read_error = |path: &Path| format!("--sync-tls-dir: failed to read {}", path.display());
    let chain = certificates_in(&certificates).with_context(|| read_error(&certificates))?;
    let secret = PrivateKeyDer::from_pem_file(&key).with_context(|| read_error(&key))?;
    let builder = ServerConfig::builder();
    let builder = match client_ca {
        None => builder.with_no_client_auth(),
        Some(file) => {
            let read_error = || format!("--sync-client-ca-file: failed to read {}", file.display());
            let mut roots = RootCertStore::empty();
            for certificate in certificates_in(file).with_context(read_error)? {
                roots.add(certificate).with_context(read_error)?;
            }
            let verifier = WebPkiClientVerifier::builder(Arc::new(roots)).build();
            builder.with_client_cert_verifier(verifier.with_context(read_error)?)
        }
    };
    let config = builder.with_single_cert(chain, secret);
    Ok(Arc::new(config.with_context(|| read_error(&key))?))
}

fn certificates_in(file: &Path) -> Result<Vec<CertificateDer<'static>>> {
    let certificates = CertificateDer::pem_file_iter(file)?.collect::<Result<Vec<_>, _>>()?;
    anyhow::ensure!(!certificates.is_empty(), "the file contains no certificate");
    Ok(certificates)
}

type Connection = (TlsStream<TcpStream>, SocketAddr);

/// Listener that returns connections after their handshake.
pub(super) struct TlsListener {
    address: SocketAddr,
    accepted: mpsc::Receiver<Connection>,
}

impl TlsListener {
    /// Accepts connections at `listener` until the returned [`TlsListener`] is dropped. A slow handshake delays no other connection.
    pub(super) fn new(listener: TcpListener, identity: Identity) -> Result<Self> {
        let address = listener.local_addr().context("--sync-listen")?;
        let (accept, accepted) = mpsc::channel(MAX_HANDSHAKES);
        tokio::spawn(accept_all(listener, identity, accept));
        Ok(Self { address, accepted })
    }
}

impl fmt::Debug for TlsListener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TlsListener")
            .field("address", &self.address)
            .finish_non_exhaustive()
    }
}

async fn accept_all(listener: TcpListener, identity: Identity, accept: mpsc::Sender<Connection>) {
    let permits = Arc::new(Semaphore::new(MAX_HANDSHAKES));
    while let Ok(permit) = permits.clone().acquire_owned().await {
        let (stream, peer) = tokio::select! {
            () = accept.closed() => return,
            accepted = listener.accept() => match accepted {
                Ok(accepted) => accepted,
                Err(error) => {
                    warn!(%error, "failed to accept a connection at --sync-listen");
                    tokio::time::sleep(ACCEPT_RETRY_DELAY).await;
                    continue;
                }
            },
        };
        let (acceptor, accept) = (identity.acceptor(), accept.clone());
        tokio::spawn(async move {
            match tokio::time::timeout(HANDSHAKE_TIMEOUT, acceptor.accept(stream)).await {
                // `send` fails only after the server has ended.
                Ok(Ok(stream)) => drop(accept.send((stream, peer)).await),
                Ok(Err(error)) => debug!(from = %peer, %error, "TLS handshake failed"),
                Err(_) => debug!(from = %peer, "TLS handshake timed out"),
            }
            drop(permit);
        });
    }
}

impl Listener for TlsListener {
    type Io = TlsStream<TcpStream>;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (Self::Io, Self::Addr) {
        match self.accepted.recv().await {
            Some(connection) => connection,
            // The accepting task has ended, because the process exits.
            None => std::future::pending().await,
        }
    }

    fn local_addr(&self) -> std::io::Result<Self::Addr> {
        Ok(self.address)
    }
}

#[cfg(test)]
mod tests;
