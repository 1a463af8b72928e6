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

/// File, and the flag that names it, for errors.
#[derive(Clone, Debug)]
pub(crate) struct FlagFile {
    pub(crate) flag: &'static str,
    pub(crate) path: PathBuf,
}

impl FlagFile {
    fn read_error(&self) -> String {
        format!("{}: failed to read {}", self.flag, self.path.display())
    }
}

/// Whether a listener with a client CA accepts connections without a client certificate. A certificate of another CA is always refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ClientCertificates {
    Required,
    Optional,
}

/// Files of a TLS listener.
#[derive(Clone, Debug)]
pub(crate) struct TlsFiles {
    /// Flag with the address of the listener, for errors.
    pub(crate) listen_flag: &'static str,
    /// Certificate chain of the server (PEM).
    pub(crate) certificate: FlagFile,
    /// Key of the server (PEM).
    pub(crate) key: FlagFile,
    /// CA certificates of clients (PEM).
    pub(crate) client_ca: Option<(FlagFile, ClientCertificates)>,
}

impl TlsFiles {
    /// Returns the files that the flags of `/sync` name.
    fn of_sync(flags: &SyncFlags) -> Self {
        let folder = flags.tls_dir.clone().unwrap_or_default();
        let file = |name: &str| FlagFile {
            flag: "--sync-tls-dir",
            path: folder.join(name),
        };
        Self {
            listen_flag: "--sync-listen",
            certificate: file("tls.crt"),
            key: file("tls.key"),
            client_ca: flags.client_ca_file.clone().map(|path| {
                let flag = "--sync-client-ca-file";
                (FlagFile { flag, path }, ClientCertificates::Required)
            }),
        }
    }

    /// Reads the files.
    fn config(&self) -> Result<Arc<ServerConfig>> {
        let Self {
            certificate, key, ..
        } = self;
        let chain = certificates_in(&certificate.path).with_context(|| certificate.read_error())?;
        let secret = PrivateKeyDer::from_pem_file(&key.path).with_context(|| key.read_error())?;
        let builder = ServerConfig::builder();
        let builder = match &self.client_ca {
            None => builder.with_no_client_auth(),
            Some((file, certificates)) => {
                let mut roots = RootCertStore::empty();
                for certificate in certificates_in(&file.path).with_context(|| file.read_error())? {
                    roots.add(certificate).with_context(|| file.read_error())?;
                }
                let verifier = WebPkiClientVerifier::builder(Arc::new(roots));
                let verifier = match certificates {
                    ClientCertificates::Required => verifier,
                    ClientCertificates::Optional => verifier.allow_unauthenticated(),
                };
                let verifier = verifier.build().with_context(|| file.read_error())?;
                builder.with_client_cert_verifier(verifier)
            }
        };
        let config = builder.with_single_cert(chain, secret);
        Ok(Arc::new(config.with_context(|| key.read_error())?))
    }
}

/// Whether the client of this connection has presented a certificate, which the listener has verified.
pub(crate) fn has_client_certificate(stream: &TlsStream<TcpStream>) -> bool {
    let (_, connection) = stream.get_ref();
    connection
        .peer_certificates()
        .is_some_and(|certificates| !certificates.is_empty())
}

/// Certificate and key of the server, and the CA of client certificates.
pub(crate) struct Identity {
    files: TlsFiles,
    loaded: Mutex<Loaded>,
}

struct Loaded {
    config: Arc<ServerConfig>,
    at: Instant,
}

impl Identity {
    /// Reads the certificates that the flags of `/sync` name.
    ///
    /// # Errors
    /// If a file cannot be read or is invalid.
    pub(super) fn of(flags: &SyncFlags) -> Result<Self> {
        Self::new(TlsFiles::of_sync(flags))
    }

    /// Reads the certificates.
    ///
    /// # Errors
    /// If a file cannot be read or is invalid.
    pub(crate) fn new(files: TlsFiles) -> Result<Self> {
        let config = files.config()?;
        Ok(Self {
            files,
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
            match self.files.config() {
                Ok(config) => loaded.config = config,
                Err(error) => warn!(
                    error = with_causes(&*error),
                    listener = self.files.listen_flag,
                    "failed to reload the certificates; keeping the current ones"
                ),
            }
        }
        TlsAcceptor::from(loaded.config.clone())
    }
}

fn certificates_in(file: &Path) -> Result<Vec<CertificateDer<'static>>> {
    let certificates = CertificateDer::pem_file_iter(file)?.collect::<Result<Vec<_>, _>>()?;
    anyhow::ensure!(!certificates.is_empty(), "the file contains no certificate");
    Ok(certificates)
}

type Connection = (TlsStream<TcpStream>, SocketAddr);

/// Listener that returns connections after their handshake.
pub(crate) struct TlsListener {
    address: SocketAddr,
    accepted: mpsc::Receiver<Connection>,
}

impl TlsListener {
    /// Accepts connections at `listener` until the returned [`TlsListener`] is dropped. A slow handshake delays no other connection.
    pub(crate) fn new(listener: TcpListener, identity: Identity) -> Result<Self> {
        let address = listener.local_addr().context(identity.files.listen_flag)?;
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
                    warn!(%error, listener = identity.files.listen_flag, "failed to accept a connection");
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
