//! `ui`: serves the page about resources and runs on a loopback address, with the user's kubeconfig.

use std::net::{Ipv4Addr, SocketAddr};

use alustan_page::{Page, router};
use clap::Args;
use tokio::net::TcpListener;

use crate::cluster::Cluster;
use crate::error::Error;
use crate::print;

/// Show resources, runs, plans and logs in a browser, and approve plans there. The page has the permissions of your kubeconfig and is only reachable
/// from this computer, with the URL that the command prints. Ends with Ctrl-C.
#[derive(Debug, Args)]
pub(crate) struct Ui {
    /// Port on 127.0.0.1. Default: a free port.
    #[arg(long, default_value_t = 0)]
    port: u16,
}

impl Ui {
    /// Serves the page until the process is interrupted.
    pub(crate) async fn run(&self, cluster: &Cluster) -> Result<(), Error> {
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, self.port));
        let failed = |error: std::io::Error| {
            Error::Refused(format!(
                "cannot listen on {address}: {error}; choose another --port"
            ))
        };
        let listener = TcpListener::bind(address).await.map_err(failed)?;
        let port = listener.local_addr().map_err(failed)?.port();
        let (page, url) = Page::local(cluster.client.clone(), &cluster.namespace, port)
            .await
            .map_err(|error| Error::Refused(error.to_string()))?;
        if let Some(namespace) = page.namespace() {
            print::note(&format!(
                "you may not list the Terraform resources of all namespaces; the page shows namespace {namespace}"
            ));
        }
        print::line(&url)?;
        print::note(
            "open this URL in a browser; it gives access with your permissions, so do not share it; Ctrl-C ends the page",
        );
        tokio::select! {
            served = axum::serve(listener, router(page.clone())) => served.map_err(failed),
            () = page.follow() => Ok(()),
        }
    }
}
