//! The dev cluster.

use std::path::PathBuf;
use std::process::Stdio;

use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};
use tokio::process::Command;

/// The dev cluster of `make cluster-up`, with the operator in it.
#[derive(Clone)]
pub struct Cluster {
    /// A client with all rights.
    pub client: Client,
    /// Its folder.
    pub folder: PathBuf,
}

impl Cluster {
    /// Connects.
    pub async fn connect() -> Self {
        // A second test of one process installs it in vain.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let folder = PathBuf::from(
            std::env::var("ALUSTAN_DEV_DIR").unwrap_or_else(|_| "/var/tmp/alustan-dev".to_owned()),
        );
        let file = folder.join("kubeconfig");
        let kubeconfig = Kubeconfig::read_from(&file)
            .unwrap_or_else(|error| panic!("{}: {error}; run `make e2e`", file.display()));
        let config = Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default())
            .await
            .expect("a kubeconfig of the dev cluster");
        Self {
            client: Client::try_from(config).expect("a client"),
            folder,
        }
    }

    /// The root of the checkout.
    pub fn root() -> PathBuf {
        PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("..")
    }

    /// Runs a program with the cluster's kubeconfig; its standard output.
    pub async fn run(&self, program: &str, arguments: &[&str]) -> String {
        let output = Command::new(program)
            .args(arguments)
            .current_dir(Self::root())
            .env("KUBECONFIG", self.folder.join("kubeconfig"))
            .stdin(Stdio::null())
            .output()
            .await
            .unwrap_or_else(|error| panic!("{program}: {error}"));
        assert!(
            output.status.success(),
            "{program} {arguments:?}: {}{}",
            String::from_utf8_lossy(&output.stdout),
            String::from_utf8_lossy(&output.stderr)
        );
        String::from_utf8(output.stdout).expect("text")
    }
}
