//! A way to a server that can be closed, as where a network fails.

use tokio::io::copy_bidirectional;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

use crate::counter::HOST;

/// Hands connections on to a server, as long as it is open.
pub struct Gate {
    /// `host:port` as pods reach it.
    pub address: String,
    open: watch::Sender<bool>,
}

impl Gate {
    /// An open gate to `server`.
    pub async fn to(server: &'static str) -> Self {
        let listener = TcpListener::bind((HOST, 0))
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

    /// Cuts all connections; new ones are cut at once.
    pub fn close(&self) {
        self.open.send_replace(false);
    }

    /// Lets connections through again.
    pub fn open(&self) {
        self.open.send_replace(true);
    }
}

async fn pass(mut stream: TcpStream, server: &str, mut state: watch::Receiver<bool>) {
    if !*state.borrow() {
        return;
    }
    let Ok(mut server) = TcpStream::connect(server).await else {
        return;
    };
    // Whichever ends first: what was said by then was said.
    tokio::select! {
        _ = copy_bidirectional(&mut stream, &mut server) => {}
        _ = state.wait_for(|open| !open) => {}
    }
}
