//! Proxy that can be closed, as in a network failure.

use std::net::SocketAddr;

use tokio::io::copy_bidirectional;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

use crate::addresses::host;

/// Forwards connections to a server while open.
pub struct Gate {
    /// `host:port`, as reached by pods.
    pub address: String,
    open: watch::Sender<bool>,
}

impl Gate {
    /// Starts an open gate to `server`.
    pub async fn to(server: SocketAddr) -> Self {
        let listener = TcpListener::bind((host(), 0))
            .await
            .expect("an address of the dev cluster's link");
        let address = listener.local_addr().expect("an address").to_string();
        let (open, state) = watch::channel(true);
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(pass(stream, server, state.clone()));
            }
        });
        Self { address, open }
    }

    /// Closes all open connections, and closes each new connection immediately.
    pub fn close(&self) {
        self.open.send_replace(false);
    }

    /// Accepts connections again.
    pub fn open(&self) {
        self.open.send_replace(true);
    }
}

async fn pass(mut stream: TcpStream, server: SocketAddr, mut state: watch::Receiver<bool>) {
    if !*state.borrow() {
        return;
    }
    let Ok(mut server) = TcpStream::connect(server).await else {
        return;
    };
    // Ends when the connection ends or when the gate closes.
    tokio::select! {
        _ = copy_bidirectional(&mut stream, &mut server) => {}
        _ = state.wait_for(|open| !open) => {}
    }
}
