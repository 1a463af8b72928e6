//! Errors of commands.

use std::io;
use std::path::PathBuf;

use alustan_state::secrets::StoreError;
use alustan_state::store::StateError;
use kube::config::{InferConfigError, KubeconfigError};

/// Error of a command.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    /// The kubeconfig cannot be read.
    #[error("cannot read the kubeconfig; see `kubectl config view` and KUBECONFIG")]
    Kubeconfig(#[source] Box<KubeconfigError>),
    /// No kubeconfig exists, and the command does not run in a pod with an in-cluster configuration.
    #[error("no cluster configuration found; see `kubectl config view` and KUBECONFIG")]
    NoCluster(#[source] Box<InferConfigError>),
    /// The client cannot be created.
    #[error("cannot create a client for the cluster")]
    Client(#[source] Box<kube::Error>),
    /// A call to the API server failed.
    #[error("cannot {what}")]
    Call {
        /// Operation, as a verb phrase after `cannot`.
        what: String,
        #[source]
        source: Box<kube::Error>,
    },
    /// The API server did not answer in time.
    #[error(
        "cannot {what}: the API server did not respond within {seconds} s; check that it is \
         reachable"
    )]
    Timeout {
        /// Operation, as a verb phrase after `cannot`.
        what: String,
        /// Timeout, in seconds.
        seconds: u64,
    },
    /// The resource does not exist.
    #[error(
        "Terraform {name} not found in namespace {namespace}; `kubectl get tf -A` lists all \
         resources"
    )]
    NoResource { name: String, namespace: String },
    /// The command cannot continue. Contains the message for the user.
    #[error("{0}")]
    Refused(String),
    /// A file cannot be read.
    #[error("cannot read {}", path.display())]
    File {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    /// The run record cannot be read or written.
    #[error("cannot {what}")]
    Record {
        /// Operation, as a verb phrase after `cannot`.
        what: String,
        #[source]
        source: StoreError,
    },
    /// The state cannot be read or written.
    #[error("cannot {what}")]
    State {
        /// Operation, as a verb phrase after `cannot`.
        what: String,
        #[source]
        source: StateError,
    },
    /// A write to standard output failed.
    #[error("cannot write to standard output")]
    Print(#[source] io::Error),
}

impl Error {
    /// Formats the error and the chain of its sources, separated by colons. For an error response of the API server, formats only the message of the
    /// response after the error.
    pub(crate) fn chain(&self) -> String {
        match self {
            Self::Call { source, .. } if let kube::Error::Api(status) = &**source => {
                format!("{self}: {}", status.message)
            }
            _ => alustan_state::error_text::chain(self),
        }
    }

    /// Whether the user has no permission for a call to the API server.
    pub(crate) fn is_forbidden(&self) -> bool {
        match self {
            Self::Call { source, .. } => {
                matches!(&**source, kube::Error::Api(status) if status.is_forbidden())
            }
            _ => false,
        }
    }

    /// Whether the write to standard output failed because the reader closed the pipe.
    pub(crate) fn is_closed_pipe(&self) -> bool {
        matches!(self, Self::Print(error) if error.kind() == io::ErrorKind::BrokenPipe)
    }
}
