//! Errors of names, credentials and registries. Performs no I/O.

pub(crate) mod response;

use std::{fmt, path::PathBuf, time::Duration};

use alustan_api::Reason;

/// Error of a name, a credential or a registry.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A name, tag or digest is invalid.
    #[error("invalid image name `{name}`: {why}")]
    InvalidImageName {
        /// Invalid text, escaped.
        name: String,
        /// Reason for which the text is invalid.
        why: String,
    },
    /// The credentials of a Secret are invalid.
    #[error("invalid registry credentials: {why}")]
    InvalidCredentials {
        /// Reason for which the credentials are invalid. Contains no content of the Secret except names of registries and credential
        /// helpers.
        why: String,
    },
    /// A credential helper returned no credentials.
    #[error(
        "the credential helper `{program}` returned no credentials for {registry}: {why}; {}",
        advice_of_helper(*missing)
    )]
    Helper {
        /// Path or name of the credential helper.
        program: String,
        /// Registry whose credentials were requested.
        registry: String,
        /// Message of the program or of the operating system.
        why: String,
        /// Whether the credential helper does not exist.
        missing: bool,
    },
    /// The HTTP clients cannot be created.
    #[error("failed to create the registry client: {why}")]
    Setup {
        /// Reason for which the client cannot be created.
        why: String,
    },
    /// A request to a registry failed.
    #[error("failed to {action} {subject}: {failure}{}; {}", detail_of(detail), failure.advice())]
    Request {
        /// Action, as a verb phrase, for example `pull the context`.
        action: &'static str,
        /// Object of the action: an image or a repository.
        subject: String,
        /// Category of the failure.
        failure: Failure,
        /// Message of the registry.
        detail: String,
    },
    /// A registry did not respond in time.
    #[error(
        "failed to {action} {subject}: no response within {} s; retried automatically",
        after.as_secs()
    )]
    Timeout {
        /// Action, as a verb phrase.
        action: &'static str,
        /// Object of the action: an image or a repository.
        subject: String,
        /// Timeout of the action.
        after: Duration,
    },
    /// The pulled artifact is not a context.
    #[error("{subject} is not a context: {why}")]
    NotAContext {
        /// Reference of the artifact.
        subject: String,
        /// Reason for which the artifact is not a context.
        why: String,
    },
    /// The artifact of a module cannot be used.
    #[error("{subject} is not the artifact of a module: {why}")]
    InvalidArtifact {
        /// Reference of the artifact.
        subject: String,
        /// Reason for which the artifact cannot be used.
        why: String,
    },
    /// A range of versions is invalid.
    #[error("invalid range of versions `{range}`: {why}")]
    InvalidRange {
        /// Invalid text, escaped.
        range: String,
        /// Reason for which the text is invalid.
        why: String,
    },
    /// A base image, or one of its manifests or blobs, does not exist in the registry.
    #[error(
        "failed to read the base image {subject}: the image does not exist in the registry{}; \
         check `containerRegistry.baseImage`, or `--base-image` of the operator",
        detail_of(detail)
    )]
    BaseImageNotFound {
        /// Reference of the base image.
        subject: String,
        /// Message of the registry.
        detail: String,
    },
    /// Layers cannot be appended to a base image.
    #[error("failed to append layers to the base image {subject}: {why}")]
    InvalidBaseImage {
        /// Reference of the base image.
        subject: String,
        /// Reason for which the base image cannot be used.
        why: String,
    },
    /// The file of a layer or of a context cannot be read.
    #[error("failed to read the file {} for the upload: {why}", file.display())]
    UploadFile {
        /// Path of the file.
        file: PathBuf,
        /// Error of the operating system, or how the file differs from the [`Layer`](crate::Layer).
        why: String,
    },
    /// The folder for downloads cannot be written.
    #[error("failed to write a download in {}: {why}; retried automatically", folder.display())]
    DownloadFolder {
        /// Path of the folder.
        folder: PathBuf,
        /// Error of the operating system.
        why: String,
    },
}

/// Category of a failed request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Failure {
    /// The registry requires credentials, or rejects the credentials of the request.
    Unauthorized,
    /// The credentials do not permit the operation.
    Forbidden,
    /// The image or repository does not exist.
    NotFound,
    /// The rate limit is exceeded.
    RateLimited,
    /// The registry is unreachable, the connection was closed, or the registry has an internal error.
    Unreachable,
    /// The registry does not support the operation.
    Unsupported,
    /// The certificate is not trusted, or the registry does not support TLS.
    Tls,
    /// The registry does not know the upload session of the request. The client can start a new session.
    UploadLost,
    /// A manifest was pushed that refers to a blob, and the registry does not have the blob.
    BlobMissing,
    /// A failure that no other variant describes.
    Other,
}

impl Error {
    /// Returns the reason for conditions, events and metrics.
    pub fn reason(&self) -> Reason {
        match self {
            Self::InvalidImageName { .. } => Reason::InvalidImageName,
            Self::InvalidCredentials { .. } => Reason::InvalidRegistryCredentials,
            Self::Helper { missing: true, .. } => Reason::CredentialHelperMissing,
            Self::Helper { missing: false, .. } => Reason::CredentialHelperFailed,
            Self::Setup { .. } => Reason::RegistryClientUnusable,
            Self::Request { failure, .. } => failure.reason(),
            Self::Timeout { .. } => Reason::RegistryUnreachable,
            Self::NotAContext { .. } => Reason::ContextDamaged,
            Self::InvalidArtifact { .. } => Reason::ArtifactInvalid,
            Self::InvalidRange { .. } => Reason::InvalidSource,
            Self::BaseImageNotFound { .. } => Reason::BaseImageNotFound,
            Self::InvalidBaseImage { .. } => Reason::BaseImageUnsupported,
            Self::UploadFile { .. } => Reason::PrepareFailed,
            Self::DownloadFolder { .. } => Reason::GitCacheUnusable,
        }
    }

    /// Whether the failure is transient and does not use the retry budget (rule 10).
    pub fn is_transient(&self) -> bool {
        match self {
            Self::InvalidImageName { .. }
            | Self::InvalidCredentials { .. }
            | Self::Helper { .. }
            | Self::NotAContext { .. }
            | Self::InvalidArtifact { .. }
            | Self::InvalidRange { .. }
            | Self::BaseImageNotFound { .. }
            | Self::InvalidBaseImage { .. }
            | Self::UploadFile { .. } => false,
            Self::Setup { .. } | Self::Timeout { .. } | Self::DownloadFolder { .. } => true,
            Self::Request { failure, .. } => failure.is_transient(),
        }
    }

    pub(crate) fn is_not_found(&self) -> bool {
        matches!(
            self,
            Self::Request {
                failure: Failure::NotFound,
                ..
            }
        )
    }

    pub(crate) fn is_blob_missing(&self) -> bool {
        matches!(
            self,
            Self::Request {
                failure: Failure::BlobMissing,
                ..
            }
        )
    }

    /// Whether the registry may have refused the request because of the tag, so that a push by digest may succeed.
    pub(crate) fn may_be_the_tag(&self) -> bool {
        matches!(
            self,
            Self::Request {
                failure: Failure::Forbidden | Failure::Unsupported | Failure::Other,
                ..
            }
        )
    }

    /// Whether the registry refused the authorization of the request, so that the token may have expired.
    pub(crate) fn may_be_the_token(&self) -> bool {
        matches!(
            self,
            Self::Request {
                failure: Failure::Unauthorized,
                ..
            }
        )
    }

    pub(crate) fn is_unauthorized(&self) -> bool {
        matches!(
            self,
            Self::Request {
                failure: Failure::Unauthorized | Failure::Forbidden,
                ..
            }
        )
    }
}

fn advice_of_helper(missing: bool) -> &'static str {
    if missing {
        "use an operator image that contains this credential helper"
    } else {
        "check the cloud identity of the ServiceAccount and its permissions for the registry"
    }
}

impl Failure {
    /// Returns the reason for conditions, events and metrics.
    pub fn reason(self) -> Reason {
        match self {
            Self::Unauthorized => Reason::RegistryUnauthorized,
            Self::Forbidden => Reason::RegistryForbidden,
            Self::NotFound => Reason::ImageNotFound,
            Self::RateLimited => Reason::RegistryRateLimited,
            Self::Unreachable => Reason::RegistryUnreachable,
            Self::Unsupported => Reason::RegistryUnsupported,
            Self::Tls => Reason::RegistryTls,
            Self::UploadLost | Self::BlobMissing | Self::Other => Reason::RegistryError,
        }
    }

    /// Whether the failure is transient (rule 10).
    pub fn is_transient(self) -> bool {
        match self {
            Self::RateLimited | Self::Unreachable | Self::UploadLost => true,
            Self::Unauthorized
            | Self::Forbidden
            | Self::NotFound
            | Self::Unsupported
            | Self::Tls
            | Self::BlobMissing
            | Self::Other => false,
        }
    }

    fn advice(self) -> &'static str {
        match self {
            Self::Unauthorized => {
                "check that the Secret of `containerRegistry.secretRef`, or of `source.oci.secretRef` for \
                 an artifact, contains valid credentials for this registry"
            }
            Self::Forbidden => {
                "grant these credentials permission to pull from and push to this repository"
            }
            Self::NotFound => {
                "check `containerRegistry.imageName`; some registries require that the repository \
                 is created first"
            }
            Self::RateLimited | Self::Unreachable | Self::UploadLost => "retried automatically",
            Self::Tls => {
                "add the certificate authority to `--ca-file` of the operator, or set \
                 `containerRegistry.insecure` for plain http"
            }
            Self::Unsupported => {
                "use a registry that supports the OCI distribution API; if it only refuses deletions, remove \
                 `containerRegistry.prune` and set retention rules in the registry"
            }
            Self::BlobMissing => "check the storage and the garbage collection of the registry",
            Self::Other => "if the message does not show the cause, check the log of the registry",
        }
    }

    /// Maps an HTTP status to a failure.
    pub(crate) fn of_status(status: u16) -> Self {
        match status {
            401 => Self::Unauthorized,
            403 => Self::Forbidden,
            404 => Self::NotFound,
            405 | 501 => Self::Unsupported,
            429 => Self::RateLimited,
            408 | 500.. => Self::Unreachable,
            _ => Self::Other,
        }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Unauthorized => "the registry requires valid credentials",
            Self::Forbidden => "the credentials do not permit this operation in the registry",
            Self::NotFound => "the image does not exist in the registry",
            Self::RateLimited => "the registry rate-limits requests",
            Self::Unreachable => "the registry is unreachable",
            Self::Unsupported => "the registry does not support the operation",
            Self::Tls => "the TLS certificate is not trusted, or the registry does not support TLS",
            Self::UploadLost => "the registry lost the upload session",
            Self::BlobMissing => "the registry lost a pushed blob",
            Self::Other => "the registry returned an error",
        })
    }
}

/// Returns `text` as one line of at most 300 bytes.
pub(crate) fn short(text: &str) -> String {
    let line = text.split_whitespace().collect::<Vec<_>>().join(" ");
    let end = line
        .char_indices()
        .map(|(at, c)| at + c.len_utf8())
        .take_while(|end| *end <= 300)
        .last();
    line.get(..end.unwrap_or(0)).unwrap_or_default().to_owned()
}

fn detail_of(detail: &str) -> String {
    if detail.is_empty() {
        String::new()
    } else {
        format!(" ({detail})")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_responses_are_truncated_at_a_character_boundary() {
        assert!(short(&"ü".repeat(1000)).len() <= 300);
        assert_eq!(short(" a\n b "), "a b");
    }
}
