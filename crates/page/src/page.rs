//! The page: its parts, and the router.

use std::sync::Arc;

use k8s_openapi::api::authentication::v1::SelfSubjectReview;
use kube::api::PostParams;
use kube::{Api, Client};
use tokio::sync::Semaphore;

use crate::access::{Access, AccessReview, Viewer};
use crate::error::PageError;
use crate::guard::{Hosts, Limits};
use crate::kube_call::call;
use crate::overview::Overview;
use crate::sign_in::{LocalSignIn, SignIn};

/// Maximum number of concurrent pages that read records of runs, or all resources of a namespace. Limits the memory of the process.
const MAX_LARGE_READS: usize = 8;

/// Settings of a page.
pub struct Settings {
    /// How users sign in.
    pub sign_in: SignIn,
    /// Client for the watch of resources.
    pub client: Client,
    /// Namespace of the resources. `None`: all namespaces.
    pub namespace: Option<String>,
    /// Hosts under which the page is served.
    pub hosts: Hosts,
}

/// A page about the resources of a cluster.
#[derive(Clone)]
pub struct Page(pub(crate) Arc<Parts>);

pub(crate) struct Parts {
    pub(crate) sign_in: SignIn,
    pub(crate) hosts: Hosts,
    pub(crate) limits: Limits,
    /// Permits of pages that read many or large objects.
    pub(crate) large_reads: Semaphore,
    pub(crate) overview: Overview,
    client: Client,
    namespace: Option<String>,
}

impl Page {
    /// Creates a page. Sends no request.
    pub fn new(settings: Settings) -> Self {
        Self(Arc::new(Parts {
            sign_in: settings.sign_in,
            hosts: settings.hosts,
            limits: Limits::default(),
            large_reads: Semaphore::new(MAX_LARGE_READS),
            overview: Overview::default(),
            client: settings.client,
            namespace: settings.namespace,
        }))
    }

    /// Creates the page of `kubectl alustan ui`: for the user of `client`, on a loopback address with port `port`. Shows all namespaces, or
    /// `namespace` if the user may not list the resources of all namespaces. Returns the page, and the URL that signs in.
    ///
    /// # Errors
    /// If the API server does not answer, or refuses the credentials.
    pub async fn local(
        client: Client,
        namespace: &str,
        port: u16,
    ) -> Result<(Self, String), PageError> {
        let api: Api<SelfSubjectReview> = Api::all(client.clone());
        let (parameters, review) = (PostParams::default(), SelfSubjectReview::default());
        let review = call("read the user name", api.create(&parameters, &review)).await?;
        let user = review.status.and_then(|status| status.user_info?.username);
        let viewer = Viewer::new(user.unwrap_or_default(), Access::Own(client.clone()));
        let lists_all = viewer
            .may(&AccessReview::terraforms("list", None, None))
            .await?;
        let sign_in = LocalSignIn::new(viewer, port)
            .map_err(|error| PageError::Unavailable(error.to_string()))?;
        let url = sign_in.url();
        let hosts = [
            sign_in.host().to_owned(),
            format!("127.0.0.1:{port}"),
            format!("localhost:{port}"),
        ];
        let page = Self::new(Settings {
            sign_in: SignIn::Local(sign_in),
            client,
            namespace: (!lists_all).then(|| namespace.to_owned()),
            hosts: Hosts::new(hosts),
        });
        Ok((page, url))
    }

    /// Namespace of the resources that the page shows. `None`: all namespaces.
    pub fn namespace(&self) -> Option<&str> {
        self.0.namespace.as_deref()
    }

    /// Watches the resources. Does not return.
    pub async fn follow(&self) {
        let Parts {
            client,
            namespace,
            overview,
            ..
        } = &*self.0;
        overview.watch(client.clone(), namespace.as_deref()).await;
    }

    /// Whether all resources are known.
    pub fn is_ready(&self) -> bool {
        self.0.overview.is_complete()
    }
}
