//! TLS for the servers of tests.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use axum::serve::Listener;
use rustls::ServerConfig;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

/// Certificate and private key of a server, in PEM.
pub struct Certificate {
    /// Certificate.
    pub certificate: String,
    /// Private key.
    pub key: String,
}

impl Certificate {
    /// Creates a certificate for `host`, which signs itself.
    pub fn self_signed(host: &str) -> Self {
        let made = rcgen::generate_simple_self_signed(vec![host.to_owned()]).unwrap();
        Self {
            certificate: made.cert.pem(),
            key: made.signing_key.serialize_pem(),
        }
    }
}

/// Accepts TLS connections. Ignores failed handshakes.
pub struct TlsListener {
    listener: TcpListener,
    acceptor: TlsAcceptor,
}

impl TlsListener {
    /// Listens on a free port of `host`.
    pub async fn bind(host: &str, own: &Certificate) -> Self {
        let certificate = CertificateDer::from_pem_slice(own.certificate.as_bytes()).unwrap();
        let key = PrivateKeyDer::from_pem_slice(own.key.as_bytes()).unwrap();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(vec![certificate], key)
            .unwrap();
        Self {
            acceptor: TlsAcceptor::from(Arc::new(config)),
            listener: TcpListener::bind((host, 0)).await.unwrap(),
        }
    }

    /// Returns the address as `host:port`.
    pub fn address(&self) -> String {
        self.listener.local_addr().unwrap().to_string()
    }
}

impl Listener for TlsListener {
    type Io = TlsStream<TcpStream>;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (Self::Io, Self::Addr) {
        loop {
            let (stream, address) = Listener::accept(&mut self.listener).await;
            if let Ok(stream) = self.acceptor.accept(stream).await {
                return (stream, address);
            }
        }
    }

    fn local_addr(&self) -> io::Result<Self::Addr> {
        self.listener.local_addr()
    }
}
