//! A proxy of the dev cluster's registry without TLS, at an address that the operator does not know.

use std::path::PathBuf;

use tokio::io::copy_bidirectional;
use tokio::net::{TcpListener, TcpStream};

use crate::Cluster;
use crate::counter::HOST;

/// The dev cluster's registry.
const REGISTRY: &str = "10.99.1.2:5000";

/// Speaks plain http; the node pulls from it, too. It ends with this.
pub struct RegistryFront {
    /// `host:port` as pods and the operator reach it.
    pub address: String,
    node: PathBuf,
    server: tokio::task::JoinHandle<()>,
}

impl RegistryFront {
    /// Starts the registry.
    ///
    /// # Panics
    /// Without the dev cluster.
    pub async fn start(cluster: &Cluster) -> Self {
        let listener = TcpListener::bind((HOST, 0))
            .await
            .expect("an address of the dev cluster's link");
        let address = listener.local_addr().expect("an address").to_string();
        let server = tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(pass(stream));
            }
        });
        let node = cluster.folder.join("containerd/certs.d").join(&address);
        std::fs::create_dir_all(&node).expect("a folder");
        let hosts = format!("server = \"http://{address}\"\n[host]\n");
        std::fs::write(node.join("hosts.toml"), hosts).expect("a file");
        Self {
            address,
            node,
            server,
        }
    }
}

impl Drop for RegistryFront {
    fn drop(&mut self) {
        self.server.abort();
        // Another cluster has none.
        let _ = std::fs::remove_dir_all(&self.node);
    }
}

/// Handles one connection.
async fn pass(mut stream: TcpStream) -> std::io::Result<()> {
    let mut server = TcpStream::connect(REGISTRY).await?;
    copy_bidirectional(&mut stream, &mut server).await?;
    Ok(())
}
