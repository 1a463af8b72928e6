//! Categories of failed git commands.

use std::fmt;

use alustan_api::Reason;

/// Category of a failed git command, from the output of git and ssh.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum GitFailure {
    /// The ssh host key differs from the key in `known_hosts`.
    HostKeyMismatch,
    /// `known_hosts` contains no key of the ssh host.
    HostKeyUnknown,
    /// ssh cannot read the private key.
    SshKeyUnreadable,
    /// The host requires credentials, or rejects the credentials of the request.
    Authentication,
    /// The repository does not exist, or the credentials have no access to it.
    NotFound,
    /// The certificate of the host is not trusted.
    Tls,
    /// Git cannot read the file with the trusted CA certificates.
    AuthorityUnreadable,
    /// The rate limit of the host is exceeded.
    RateLimited,
    /// The host is unreachable, the connection broke, or the host has an internal error.
    Unreachable,
    /// The host does not serve commits by id.
    CommitRefused,
    /// The reference does not exist.
    ReferenceMissing,
    /// A file of the repository needs more memory than git may use.
    OutOfMemory,
    /// Any other failure.
    Other,
}

impl GitFailure {
    /// Returns the reason for conditions, events and metrics.
    pub fn reason(self) -> Reason {
        match self {
            Self::HostKeyMismatch => Reason::HostKeyMismatch,
            Self::HostKeyUnknown => Reason::HostKeyUnknown,
            Self::SshKeyUnreadable => Reason::SshKeyInvalid,
            Self::Authentication => Reason::GitAuthenticationFailed,
            Self::NotFound => Reason::RepositoryNotFound,
            Self::Tls => Reason::GitTlsFailed,
            Self::AuthorityUnreadable => Reason::GitAuthorityUnreadable,
            Self::RateLimited => Reason::GitRateLimited,
            Self::Unreachable => Reason::RepositoryUnreachable,
            Self::CommitRefused => Reason::RevisionMoved,
            Self::ReferenceMissing => Reason::BranchNotFound,
            Self::OutOfMemory => Reason::RepositoryTooLarge,
            Self::Other => Reason::GitFailed,
        }
    }

    /// Whether the failure is transient (rule 10).
    pub fn is_transient(self) -> bool {
        match self {
            Self::RateLimited | Self::Unreachable | Self::CommitRefused => true,
            Self::HostKeyMismatch
            | Self::HostKeyUnknown
            | Self::SshKeyUnreadable
            | Self::Authentication
            | Self::NotFound
            | Self::Tls
            | Self::AuthorityUnreadable
            | Self::ReferenceMissing
            | Self::OutOfMemory
            | Self::Other => false,
        }
    }

    /// Returns the remedy for error messages.
    pub(crate) fn advice(self, remote: &str) -> &'static str {
        let http = remote.starts_with("http");
        match self {
            Self::HostKeyMismatch => {
                "the connection may be intercepted; if the host changed its key, set the new host \
                 key under `known_hosts` of the Secret of spec.gitRepo.sshKeySecret"
            }
            Self::HostKeyUnknown => {
                "compare the fingerprint of the host key with the published one, and add the output of \
                 `ssh-keyscan` to key `known_hosts` of the Secret of spec.gitRepo.sshKeySecret"
            }
            Self::SshKeyUnreadable => {
                "set an unencrypted OpenSSH private key in the Secret of spec.gitRepo.sshKeySecret"
            }
            Self::Authentication if http => {
                "the repository is private or does not exist: check user name and token in the \
                 Secret of `gitRepo.credentialsSecret`, or the permissions of the GitHub App of \
                 `gitRepo.githubApp`"
            }
            Self::Authentication => {
                "check that the key of `gitRepo.sshKeySecret` is a deploy key of the repository"
            }
            Self::NotFound => "check `gitRepo.url` and the read permission of the credentials",
            Self::Tls => {
                "check the certificate of the host, or set its certificate authority in \
                 `gitRepo.caBundle` or under `ca.crt` of the Secret of `gitRepo.credentialsSecret`"
            }
            Self::AuthorityUnreadable => {
                "use complete PEM certificates in `gitRepo.caBundle`, under `ca.crt` of the Secret \
                 of `gitRepo.credentialsSecret`, and in `--ca-file` of the operator"
            }
            Self::RateLimited | Self::Unreachable => "retried automatically",
            Self::CommitRefused => "the reference is resolved again automatically",
            Self::ReferenceMissing => "check `gitRepo.branch` or `gitRepo.tag`",
            Self::OutOfMemory => {
                "remove large files that change from the repository: git stores them as deltas, \
                 and a delta requires memory of several times the size of the file"
            }
            Self::Other => "see the message of git",
        }
    }
}

impl fmt::Display for GitFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::HostKeyMismatch => "the host key differs from the key in `known_hosts`",
            Self::HostKeyUnknown => "`known_hosts` has no key of the host",
            Self::SshKeyUnreadable => "ssh cannot read the private key",
            Self::Authentication => "the host refuses the credentials",
            Self::NotFound => "the repository does not exist on the host",
            Self::Tls => "the certificate of the host is not trusted",
            Self::AuthorityUnreadable => "git cannot read the CA certificates",
            Self::RateLimited => "the host rate-limits requests",
            Self::Unreachable => "the host is unreachable",
            Self::CommitRefused => "the host does not serve the commit",
            Self::OutOfMemory => "a file exceeds the memory limit of git",
            Self::ReferenceMissing => "the reference does not exist",
            Self::Other => "git failed",
        })
    }
}
