//! What went wrong, for people.

use std::io;
use std::path::PathBuf;

use alustan_state::secrets::StoreError;
use alustan_state::store::StateError;
use kube::config::{InferConfigError, KubeconfigError};

/// Why a command failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    /// There is no way to the cluster.
    #[error("cannot read the kubeconfig; see `kubectl config view` and KUBECONFIG")]
    Kubeconfig(#[source] Box<KubeconfigError>),
    /// Neither a kubeconfig nor a cluster around us.
    #[error("no cluster is known; see `kubectl config view` and KUBECONFIG")]
    NoCluster(#[source] Box<InferConfigError>),
    /// The cluster cannot be spoken to.
    #[error("cannot make a client of the cluster")]
    Client(#[source] Box<kube::Error>),
    /// A call of the API server failed.
    #[error("cannot {what}")]
    Call {
        /// What was tried.
        what: String,
        /// What came of it.
        #[source]
        source: Box<kube::Error>,
    },
    /// The API server did not answer.
    #[error("cannot {what}: no answer within {seconds} s; is the cluster up?")]
    Timeout {
        /// What was tried.
        what: String,
        /// How long it was waited for.
        seconds: u64,
    },
    /// There is no such resource.
    #[error(
        "there is no Terraform resource {name} in namespace {namespace}; `kubectl get tf -A` lists \
         all there are"
    )]
    NoResource {
        /// Its name.
        name: String,
        /// Its namespace.
        namespace: String,
    },
    /// What was asked for is not done, and why.
    #[error("{0}")]
    Refused(String),
    /// A file cannot be read.
    #[error("cannot read {}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// The run record cannot be read or written.
    #[error("cannot {what}")]
    Record {
        /// What was tried.
        what: String,
        /// Why.
        #[source]
        source: StoreError,
    },
    /// The state cannot be read or written.
    #[error("cannot {what}")]
    State {
        /// What was tried.
        what: String,
        /// Why.
        #[source]
        source: StateError,
    },
    /// Standard output does not take what we print.
    #[error("cannot write to standard output")]
    Print(#[source] io::Error),
}

impl Error {
    /// It with all its causes. What the API server refuses it says in words.
    pub(crate) fn chain(&self) -> String {
        match self {
            Self::Call { source, .. } if let kube::Error::Api(status) = &**source => {
                format!("{self}: {}", status.message)
            }
            _ => alustan_state::error_text::chain(self),
        }
    }

    /// Whether nobody reads what we print any more.
    pub(crate) fn is_closed_pipe(&self) -> bool {
        matches!(self, Self::Print(error) if error.kind() == io::ErrorKind::BrokenPipe)
    }
}
