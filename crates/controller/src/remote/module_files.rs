//! The files of a module, from a source of any kind. Other modules do not depend on the kind.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use alustan_api::report::Failure;
use alustan_api::{ModuleSource, Reason, Terraform};
use alustan_core::observed::SourceSeen;
use alustan_core::observed::allow_list::Allowed;
use alustan_registry::{DockerConfig, Registry};
use alustan_source::{CommitId, GitCache, Revision, TempPath, inline_files, root_module_files};

use crate::remote::artifact::{Artifact, ArtifactLimits};
use crate::remote::context_store::ContextStore;
use crate::remote::failure::source;
use crate::remote::git_refs::{Login, References};
use crate::remote::polled_cache::{PollInterval, SendQuery, SendQueryWith};
use crate::remote::queries::{Repository, image_name};
use crate::remote::written_files::WrittenFiles;

/// Clients and caches for fetching the files of modules.
#[derive(Clone)]
pub(crate) struct Fetchers {
    pub(crate) references: Arc<References>,
    pub(crate) git: Arc<GitCache>,
    pub(crate) registry: Registry,
    pub(crate) contexts: Arc<ContextStore>,
    pub(crate) artifacts: Arc<ArtifactLimits>,
}

/// Credentials of a source.
#[derive(Clone, Copy)]
pub(crate) struct SourceCredentials<'a> {
    pub(crate) git: &'a Login,
    /// Credentials for an OCI artifact. `None`: anonymous access.
    pub(crate) artifact: Option<&'a DockerConfig>,
}

/// Source of the files of a module.
///
/// A revision is the commit of a git repository, or the digest of another source. The type [`Revision`] has both, because a digest has the form
/// of a commit id with SHA-256.
#[derive(Clone)]
pub(crate) enum ModuleFiles {
    Git(Repository),
    Written(WrittenFiles),
    Artifact(Artifact),
}

impl ModuleFiles {
    /// Returns the source of the files of `tf`. `variables`: names of the variables that the root module of `spec.source.module` has.
    ///
    /// # Errors
    /// If the source is invalid.
    pub(crate) fn of(
        tf: &Terraform,
        credentials: SourceCredentials<'_>,
        variables: impl FnOnce() -> BTreeSet<String>,
    ) -> Result<Self, Failure> {
        let kind = tf.spec.module_source().ok_or_else(|| {
            Failure::user(
                Reason::InvalidSource,
                "exactly one of spec.gitRepo, spec.source.module, spec.source.inline and \
                 spec.source.oci must be set",
            )
        })?;
        let invalid =
            |error: alustan_source::Error| Failure::user(error.reason(), error.to_string());
        match kind {
            ModuleSource::Git(repo) => Repository::of(tf, repo, credentials.git).map(Self::Git),
            ModuleSource::Module(module) => {
                let files = root_module_files(module, &variables()).map_err(invalid)?;
                Ok(Self::Written(WrittenFiles::new(tf, kind.field(), files)))
            }
            ModuleSource::Inline(module) => {
                let files = inline_files(module).map_err(invalid)?;
                Ok(Self::Written(WrittenFiles::new(tf, kind.field(), files)))
            }
            ModuleSource::Oci(artifact) => {
                Artifact::of(tf, artifact, credentials.artifact).map(Self::Artifact)
            }
        }
    }

    /// Returns the namespace of the resource that uses the source.
    pub(crate) fn tenant(&self) -> &str {
        match self {
            Self::Git(repository) => repository.tenant(),
            Self::Written(files) => &files.tenant,
            Self::Artifact(artifact) => &artifact.tenant,
        }
    }

    /// Returns the key of the query that resolves the reference to a revision. Resources with the same key share the query.
    pub(crate) fn revision_query(&self) -> String {
        match self {
            Self::Git(repository) => repository.revision_query(),
            Self::Written(files) => files.revision_query(),
            Self::Artifact(artifact) => artifact.revision_query(),
        }
    }

    /// Returns the poll interval of the revision. `None` if the revision cannot change.
    pub(crate) fn poll_interval(&self, interval: Duration) -> Option<PollInterval> {
        match self {
            Self::Git(repository) => Some(repository.poll_interval(interval)),
            Self::Written(_) => None,
            Self::Artifact(artifact) => artifact.poll_interval(interval),
        }
    }

    /// Returns a text that identifies the module, independent of the commit or artifact.
    pub(crate) fn module_identity(&self) -> String {
        match self {
            Self::Git(repository) => repository.module_identity(),
            Self::Written(files) => files.module_identity(),
            Self::Artifact(artifact) => artifact.module_identity(),
        }
    }

    /// Returns the key of the query for the context of the module. The revision is the argument of the query, not a part of the key.
    pub(crate) fn module_query(&self, allowed: &Allowed) -> String {
        match self {
            Self::Git(repository) => repository.module_query(allowed),
            Self::Written(_) | Self::Artifact(_) => format!("module {}", self.module_identity()),
        }
    }

    /// Returns the request for the revision of the reference.
    pub(crate) fn revision_sender(&self, fetchers: &Fetchers) -> SendQuery<Revision> {
        match self {
            Self::Git(repository) => repository.revision_sender(fetchers.references.clone()),
            Self::Written(files) => {
                let revision = digest_revision(files.digest());
                Box::new(move || {
                    let revision = revision.clone();
                    Box::pin(async move { revision })
                })
            }
            Self::Artifact(artifact) => {
                let (artifact, client) = (artifact.clone(), fetchers.registry.clone());
                Box::new(move || {
                    let (artifact, client) = (artifact.clone(), client.clone());
                    Box::pin(async move { digest_revision(&artifact.revision(&client).await?) })
                })
            }
        }
    }

    /// Returns the request for the context of the module at the newest revision.
    pub(crate) fn module_sender(
        &self,
        fetchers: &Fetchers,
        allowed: Arc<Allowed>,
    ) -> SendQueryWith<SourceSeen, Revision> {
        let fetchers = fetchers.clone();
        match self {
            Self::Git(repository) => {
                repository.module_sender(fetchers.git, fetchers.contexts, allowed)
            }
            Self::Written(files) => {
                let files = files.clone();
                Box::new(move |revisions| {
                    let (files, contexts) = (files.clone(), fetchers.contexts.clone());
                    Box::pin(async move {
                        let revision = revisions.borrow().clone();
                        (revision, files.seen(&contexts).await)
                    })
                })
            }
            Self::Artifact(artifact) => {
                let artifact = artifact.clone();
                Box::new(move |revisions| {
                    let (artifact, fetchers) = (artifact.clone(), fetchers.clone());
                    Box::pin(async move {
                        let revision = revisions.borrow().clone();
                        let Fetchers {
                            registry,
                            artifacts,
                            contexts,
                            ..
                        } = &fetchers;
                        let digits = revision.commit.as_str();
                        let seen = artifact.seen(digits, registry, artifacts, contexts).await;
                        (revision, seen)
                    })
                })
            }
        }
    }

    /// Fetches the context of `seen` again. Returns its file and its size in bytes.
    ///
    /// # Errors
    /// If the context cannot be fetched, or if the source has moved to another revision.
    pub(crate) async fn fetch_again(
        &self,
        fetchers: &Fetchers,
        seen: &SourceSeen,
        allowed: &Allowed,
    ) -> Result<(TempPath, u64), Failure> {
        match self {
            Self::Git(repository) => repository.fetch_again(&fetchers.git, seen, allowed).await,
            Self::Written(files) => files.fetch_again(seen, &fetchers.contexts).await,
            Self::Artifact(artifact) => {
                let Fetchers {
                    registry,
                    artifacts,
                    contexts,
                    ..
                } = fetchers;
                artifact
                    .fetch_again(seen, registry, artifacts, contexts)
                    .await
            }
        }
    }
}

/// Returns the revision of a source other than git. `digits`: 64 hexadecimal digits of its digest.
fn digest_revision(digits: &str) -> Result<Revision, Failure> {
    let commit = CommitId::parse(digits).map_err(|error| source(&error))?;
    Ok(Revision::of_commit(&commit))
}

/// Checks the fields of the spec that CRD schema and CEL rules cannot check completely.
pub(crate) fn check(tf: &Terraform) -> Result<(), Failure> {
    image_name(tf)?;
    let credentials = SourceCredentials {
        git: &Login::default(),
        artifact: None,
    };
    ModuleFiles::of(tf, credentials, BTreeSet::new).map(drop)
}
