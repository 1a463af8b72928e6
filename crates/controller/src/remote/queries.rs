//! Queries to git repositories, registries and the API server.

use std::sync::Arc;
use std::time::Duration;

use alustan_api::report::{Failure, FailureClass};
use alustan_api::{Commit, GitRepo, Reason, Terraform};
use alustan_core::digest as hash;
use alustan_core::model::progress;
use alustan_core::observed::allow_list::Allowed;
use alustan_core::observed::{GitToken, SourceSeen};
use alustan_core::settings::Settings;
use alustan_registry::{Access, DockerConfig, ImageName, ImageRef, Registry};
use alustan_source::{
    CommitInfo, ContextSpec, GitCache, Reference, RepositoryUrl, Revision, TempPath,
};
use k8s_openapi::api::core::v1::{Namespace, Pod};
use k8s_openapi::jiff::{SignedDuration, Timestamp};
use kube::api::{Api, LogParams};
use kube::{Client, ResourceExt};

use crate::call::call;
use crate::error::Error;
use crate::github_app::BUILD_LEFT;
use crate::remote::context_store::ContextStore;
use crate::remote::failure::at_commit;
use crate::remote::failure::registry;
use crate::remote::failure::source;
use crate::remote::git_refs::{Login, References, Remote};
use crate::remote::polled_cache::{PollInterval, SendQuery, SendQueryWith};

/// Retry delay of a query that cannot be sent, for example because its Secret is invalid. After the Secret has been corrected, the next attempt uses
/// the corrected Secret.
pub(crate) const RETRY_DELAY: SignedDuration = SignedDuration::from_secs(30);

/// Maximum number of lines and bytes to read from the log of a failed build.
const MAX_LOG_LINES: i64 = 200;
const MAX_LOG_BYTES: i64 = 1 << 20;

/// Git repository, reference and path of a module, with credentials.
#[derive(Clone)]
pub(crate) struct Repository {
    remote: Remote,
    reference: Reference,
    spec: ContextSpec,
}

impl Repository {
    /// Returns the repository `repo` of `tf`.
    ///
    /// # Errors
    /// If a field of `spec.gitRepo` is invalid.
    pub(crate) fn of(tf: &Terraform, repo: &GitRepo, login: &Login) -> Result<Self, Failure> {
        if repo.github_app.is_some() && repo.credentials_secret.is_some() {
            let message = "spec.gitRepo: at most one of githubApp and credentialsSecret may be set";
            return Err(Failure::user(Reason::InvalidGitHubApp, message));
        }
        let credentials = &login.credentials;
        let wrong = |field: &str, error: &alustan_source::Error| {
            Failure::user(error.reason(), format!("spec.gitRepo.{field}: {error}"))
        };
        let url = RepositoryUrl::parse(&repo.url).map_err(|error| wrong("url", &error))?;
        let reference = reference(repo).map_err(|(field, error)| wrong(field, &error))?;
        let mut include = repo.include.clone();
        include.extend(tf.spec.container_registry.dockerfile.clone());
        let spec = ContextSpec {
            path: repo.path.clone(),
            include,
            var_files: tf.spec.var_files.clone(),
            submodules: repo.submodules,
            wrapper: tf.spec.wrapper(),
        };
        let secrets = hash::plain(&(
            credentials.fingerprint(b"question"),
            &credentials.known_hosts,
            &credentials.ca_bundle,
        ));
        let remote = Remote {
            identity: format!("{} as {secrets}", url.remote()),
            url,
            login: login.clone(),
            tenant: tf.namespace().unwrap_or_default(),
        };
        Ok(Self {
            remote,
            reference,
            spec,
        })
    }

    /// Returns the key of the query that resolves the reference to a revision: repository, reference and digest of the credentials.
    /// Resources with the same key share the query.
    pub(crate) fn revision_query(&self) -> String {
        format!(
            "revision of {:?} in repository {}",
            self.reference, self.remote.identity
        )
    }

    /// Returns the poll interval of the revision.
    pub(crate) fn poll_interval(&self, interval: Duration) -> PollInterval {
        PollInterval::new(interval, &self.remote.identity)
    }

    /// Returns a text that identifies the module, independent of the commit: repository, reference, credentials, path,
    /// included files, variable files and wrapper.
    pub(crate) fn module_identity(&self) -> String {
        format!(
            "{} {:?} {:?} {:?} {} {:?}",
            self.revision_query(),
            self.spec.path,
            self.spec.include,
            self.spec.var_files,
            self.spec.submodules,
            self.spec.wrapper
        )
    }

    /// Returns the key of the query for the context of the module. The commit is the argument of the query, not a part of the key.
    pub(crate) fn module_query(&self, allowed: &Allowed) -> String {
        let module = format!("module {}", self.module_identity());
        if self.spec.submodules {
            format!("{module} allowing {:?}", allowed.repositories())
        } else {
            module
        }
    }

    /// Returns the request for the revision of the reference.
    pub(crate) fn revision_sender(&self, references: Arc<References>) -> SendQuery<Revision> {
        let repository = self.clone();
        Box::new(move || {
            let (references, repository) = (references.clone(), repository.clone());
            Box::pin(async move {
                let listing = references
                    .list(&repository.remote, &repository.reference)
                    .await?;
                listing
                    .find(&repository.reference)
                    .map_err(|error| source(&error))
            })
        })
    }

    /// Returns the request for the context of the module at the newest revision.
    pub(crate) fn module_sender(
        &self,
        git: Arc<GitCache>,
        contexts: Arc<ContextStore>,
        allowed: Arc<Allowed>,
    ) -> SendQueryWith<SourceSeen, Revision> {
        let repository = self.clone();
        Box::new(move |revisions| {
            let (git, contexts, repository) = (git.clone(), contexts.clone(), repository.clone());
            let allowed = allowed.clone();
            Box::pin(async move {
                let git = git.of_tenant(&repository.remote.tenant);
                let newest = || revisions.borrow().clone();
                let allows = |url: &RepositoryUrl| allowed.has_repository(url.remote());
                let credentials = match repository.remote.credentials().await {
                    Ok(credentials) => credentials,
                    Err(failure) => return (newest(), Err(failure)),
                };
                let url = &repository.remote.url;
                let (revision, result) = git
                    .find_context(url, &newest, &repository.spec, &credentials, &allows)
                    .await;
                let seen = result
                    .map_err(|error| at_commit(&revision, &error))
                    .and_then(|context| {
                        let commit = revision.commit.to_string();
                        store_and_describe(commit, context, &contexts)
                    });
                if let Err(failure) = &seen {
                    repository.remote.failed(failure).await;
                }
                (revision, seen)
            })
        })
    }
}

impl Repository {
    /// Returns the key of the query for a token of the GitHub App.
    pub(crate) fn token_query(&self) -> String {
        format!("token for repository {}", self.remote.identity)
    }

    /// Returns the request for a token of the GitHub App for a build.
    pub(crate) fn token_sender(&self) -> SendQuery<GitToken> {
        let remote = self.remote.clone();
        Box::new(move || {
            let remote = remote.clone();
            Box::pin(async move {
                let token = remote.token(BUILD_LEFT).await?;
                token.ok_or_else(|| {
                    let message = "spec.gitRepo.githubApp: the field is not set";
                    Failure::user(Reason::InvalidGitHubApp, message)
                })
            })
        })
    }
}

/// Stores a newly packed context for the push. Returns the description of revision and context that reconciles use.
pub(crate) fn store_and_describe(
    revision: String,
    context: alustan_source::Context,
    contexts: &ContextStore,
) -> Result<SourceSeen, Failure> {
    if let Some(file) = context.archive {
        contexts.put(context.digest.as_str(), file, context.size);
    }
    let digest = alustan_registry::Digest::parse(context.digest.as_str())
        .map_err(|error| registry("the context", &error))?;
    let artifact = alustan_registry::artifact_digest(&digest, context.size);
    let CommitInfo {
        committed_at,
        author,
        subject,
    } = context.commit;
    let commit = Commit { subject, author };
    Ok(SourceSeen {
        revision,
        context: context.digest.as_str().to_owned(),
        artifact: artifact.as_str().to_owned(),
        path: context.module_path,
        backend: context.module_backend,
        committed_at: Timestamp::from_second(committed_at).unwrap_or(Timestamp::UNIX_EPOCH),
        commit: (commit != Commit::default()).then_some(commit),
    })
}

/// Returns the git reference in `repo`: tag, commit or branch.
///
/// # Errors
/// The invalid field and the cause.
pub(crate) fn reference(
    repo: &GitRepo,
) -> Result<Reference, (&'static str, alustan_source::Error)> {
    match (&repo.tag, &repo.commit) {
        (Some(tag), _) => Reference::tag(tag).map_err(|error| ("tag", error)),
        (None, Some(commit)) => Reference::commit(commit).map_err(|error| ("commit", error)),
        (None, None) => {
            Reference::branch(repo.branch.as_deref()).map_err(|error| ("branch", error))
        }
    }
}

/// Query for the digest of an image in a registry.
pub(crate) struct DigestQuery {
    pub(crate) key: String,
    pub(crate) send: SendQuery<Option<String>>,
}

/// Returns the query of the digest of image `reference`, which `client` sends. `pushed_by` is the build Job that pushed the image. If `pushed_by` is set, the query is
/// retried until the registry has the image.
pub(crate) fn digest(
    client: &Registry,
    settings: &Settings,
    tf: &Terraform,
    reference: &str,
    pushed_by: Option<&str>,
    docker: Option<&DockerConfig>,
) -> Result<DigestQuery, Failure> {
    image_name(tf)?;
    let image = ImageRef::parse(reference).map_err(|error| Failure {
        class: FailureClass::User,
        ..registry("spec.containerRegistry.baseImage", &error)
    })?;
    let access = access(settings, tf, image.name(), docker)?;
    let query = format!(
        "digest of {reference}, pushed by {pushed_by:?}, with access {}",
        identity(&access, docker)
    );
    let client = client.clone();
    let missing = pushed_by.map(|job| {
        Failure::transient(
            Reason::ImageMissing,
            format!(
                "spec.containerRegistry: the registry does not have {reference}, which build {job} \
             pushed"
            ),
        )
    });
    let send: SendQuery<Option<String>> = Box::new(move || {
        let (client, image, access) = (client.clone(), image.clone(), access.clone());
        let missing = missing.clone();
        Box::pin(async move {
            let digest = client
                .digest_of(&image, &access)
                .await
                .map_err(|error| registry("spec.containerRegistry", &error))?;
            match (digest, missing) {
                (None, Some(missing)) => Err(missing),
                (digest, _) => Ok(digest.map(|digest| digest.as_str().to_owned())),
            }
        })
    });
    Ok(DigestQuery { key: query, send })
}

/// Returns the registry repository of the images of `tf`.
pub(crate) fn image_name(tf: &Terraform) -> Result<ImageName, Failure> {
    ImageName::parse(&tf.spec.container_registry.image_name).map_err(|error| Failure {
        class: FailureClass::User,
        ..registry("spec.containerRegistry.imageName", &error)
    })
}

/// Returns how `tf` accesses the registry of `name`: credential, cloud identity, and whether over plain HTTP.
pub(crate) fn access(
    settings: &Settings,
    tf: &Terraform,
    name: &ImageName,
    docker: Option<&DockerConfig>,
) -> Result<Access, Failure> {
    let own = &tf.spec.container_registry;
    let identity = own.provider.identity();
    let identity = identity.filter(|_| settings.allows_identity_for(&name.to_string()));
    // Without a credential, base images in other registries are usually public, and the cloud identity may have access.
    let is_required = is_own_registry(tf, name) && identity.is_none();
    let field = is_required.then_some("spec.containerRegistry.secretRef");
    Ok(Access {
        helper: identity.map(|identity| identity.helper.to_owned()),
        ..access_without_identity(tf, name, docker, field)?
    })
}

/// Returns how `tf` accesses the registry of `name` without a cloud identity. `field`: field with the Secret of `docker`, if its credential is
/// required; otherwise an invalid credential is ignored.
pub(crate) fn access_without_identity(
    tf: &Terraform,
    name: &ImageName,
    docker: Option<&DockerConfig>,
    field: Option<&str>,
) -> Result<Access, Failure> {
    let credential = docker.map(|docker| docker.open(name)).transpose();
    let credential = match (credential, field) {
        (Err(error), Some(field)) => return Err(registry(field, &error)),
        (Err(_), None) => None,
        (Ok(credential), _) => credential.flatten(),
    };
    Ok(Access {
        credential: credential.cloned(),
        insecure: tf.spec.container_registry.insecure && is_own_registry(tf, name),
        helper: None,
    })
}

/// Whether `name` is in the registry of `spec.containerRegistry.imageName`.
fn is_own_registry(tf: &Terraform, name: &ImageName) -> bool {
    let own = ImageName::parse(&tf.spec.container_registry.image_name);
    own.is_ok_and(|own| own.registry() == name.registry())
}

/// Returns a text that identifies `access` in query keys. Contains a digest of the docker configuration instead of secret values.
pub(crate) fn identity(access: &Access, docker: Option<&DockerConfig>) -> String {
    let docker = docker.map(|docker| hash::plain(&docker.to_dockerconfigjson()));
    format!("{docker:?} {} {:?}", access.insecure, access.helper)
}

impl Repository {
    /// Returns the namespace of the resource that uses the repository.
    pub(crate) fn tenant(&self) -> &str {
        &self.remote.tenant
    }

    /// Fetches the context of `seen` again.
    ///
    /// # Errors
    /// If the repository or the context cannot be fetched, or if the reference has moved to another commit.
    pub(crate) async fn fetch_again(
        &self,
        git: &GitCache,
        seen: &SourceSeen,
        allowed: &Allowed,
    ) -> Result<(TempPath, u64), Failure> {
        let git = git.of_tenant(&self.remote.tenant);
        let credentials = self.remote.credentials().await?;
        let revision = git
            .resolve(&self.remote.url, &self.reference, &credentials)
            .await
            .map_err(|error| source(&error))?;
        let context = git
            .fetch_context(
                &self.remote.url,
                &revision,
                &self.spec,
                &credentials,
                &|url| allowed.has_repository(url.remote()),
            )
            .await
            .map_err(|error| source(&error))?;
        requested(context, seen).ok_or_else(|| {
            Failure::transient(
                Reason::RevisionMoved,
                "the git reference moved to another commit before the context was pushed; the \
                 push is retried automatically",
            )
        })
    }
}

/// Returns file and size of `context`, if it is the context of `seen`.
pub(crate) fn requested(
    context: alustan_source::Context,
    seen: &SourceSeen,
) -> Option<(TempPath, u64)> {
    let file = context.archive?;
    (context.digest.as_str() == seen.context).then_some((file, context.size))
}

/// Returns `reference` with `digest` instead of its tag.
pub(crate) fn by_digest(reference: &str, digest: &str) -> String {
    ImageRef::parse(reference).map_or_else(
        |_| format!("{reference}@{digest}"),
        |image| format!("{}@{digest}", image.name()),
    )
}

/// Returns the request for the uid of a namespace.
pub(crate) fn namespace_uid(client: Client, namespace: String) -> SendQuery<String> {
    Box::new(move || {
        let api: Api<Namespace> = Api::all(client.clone());
        let namespace = namespace.clone();
        Box::pin(async move {
            let namespace_metadata = call("read the namespace", api.get_metadata(&namespace)).await;
            let namespace_metadata = namespace_metadata.map_err(|error| api_failure(&error))?;
            Ok(namespace_metadata.uid().unwrap_or_default())
        })
    })
}

/// Returns the request for the last lines of the log of a build.
pub(crate) fn log(client: Client, namespace: String, pod: String) -> SendQuery<String> {
    Box::new(move || {
        let api: Api<Pod> = Api::namespaced(client.clone(), &namespace);
        let pod = pod.clone();
        Box::pin(async move {
            let parameters = LogParams {
                container: Some("build".to_owned()),
                tail_lines: Some(MAX_LOG_LINES),
                limit_bytes: Some(MAX_LOG_BYTES),
                ..LogParams::default()
            };
            let log = call("read the log of the build", api.logs(&pod, &parameters)).await;
            log.map_err(|error| api_failure(&error))
        })
    })
}

fn api_failure(error: &Error) -> Failure {
    Failure::transient(
        Reason::ApiUnavailable,
        format!("the API server: {}", error.chain()),
    )
}

/// Adds a line of `log` as the cause to the failure of a build: the last line of the form `error …` or `Error: …`, because kaniko may print its usage
/// after that line. Without such a line, adds the last line that is not empty. Does not change transient failures.
pub(crate) fn explain(failure: &Failure, log: &str) -> Failure {
    let is_error = |line: &&str| line.starts_with("error ") || line.starts_with("Error: ");
    let line = log
        .lines()
        .rev()
        .find(is_error)
        .or_else(|| log.lines().rev().find(|line| !line.is_empty()));
    let Some(line) = line.filter(|_| failure.class != FailureClass::Transient) else {
        return failure.clone();
    };
    let (class, reason) = classify(line);
    let message = format!("{}: {line}", failure.message);
    progress::failure(Failure::new(class, reason, message))
}

fn classify(line: &str) -> (FailureClass, Reason) {
    let contains_any = |words: &[&str]| words.iter().any(|word| line.contains(word));
    if contains_any(&[
        "UNAUTHORIZED",
        "401 Unauthorized",
        "authentication required",
        "DENIED",
    ]) {
        (FailureClass::User, Reason::RegistryUnauthorized)
    } else if contains_any(&["MANIFEST_UNKNOWN", "NAME_UNKNOWN"]) {
        (FailureClass::Module, Reason::BaseImageNotFound)
    } else if contains_any(&[
        "connection refused",
        "no such host",
        "i/o timeout",
        "TOOMANYREQUESTS",
        "EOF",
    ]) {
        (FailureClass::Transient, Reason::RegistryUnreachable)
    } else if contains_any(&["x509:", "server gave HTTP response"]) {
        (FailureClass::Module, Reason::RegistryTls)
    } else {
        (FailureClass::Module, Reason::BuildFailed)
    }
}

#[cfg(test)]
mod tests {
    use alustan_source::{CommitId, ContextDigest};
    use serde_json::json;

    use super::*;
    use crate::fake_api;

    #[test]
    fn invalid_commit_date_becomes_1970() {
        let folder = tempfile::tempdir().unwrap();
        let contexts = ContextStore::new(folder.path());
        let revision = Revision::of_commit(&CommitId::parse(&"a".repeat(40)).unwrap());
        let date = |committed_at: i64| {
            let context = alustan_source::Context {
                digest: ContextDigest::of(b""),
                size: 0,
                archive: None,
                module_path: String::new(),
                module_backend: None,
                commit: CommitInfo {
                    committed_at,
                    ..CommitInfo::default()
                },
                files: 0,
                uncompressed: 0,
                submodules: Vec::new(),
            };
            store_and_describe(revision.commit.to_string(), context, &contexts)
                .unwrap()
                .committed_at
        };
        assert_eq!(date(1_700_000_000).as_second(), 1_700_000_000);
        // The first second of the year 10000, which `Timestamp` cannot represent.
        assert_eq!(date(253_402_300_800), Timestamp::UNIX_EPOCH);
        assert_eq!(date(i64::MIN), Timestamp::UNIX_EPOCH);
    }

    #[test]
    fn log_line_in_a_message_has_a_size_limit() {
        let failure = Failure {
            class: FailureClass::Module,
            reason: "BuildFailed".to_owned(),
            message: "the builder failed with exit code 1 (Error)".to_owned(),
        };
        let log = format!("ok\nerror \u{1b}[31m{}\n", "x".repeat(100_000));
        let explained = explain(&failure, &log);
        let begin = "the builder failed with exit code 1 (Error): error  [31mxxx";
        assert!(explained.message.starts_with(begin), "{explained:?}");
        assert!(explained.message.len() <= 8_000);
    }

    #[tokio::test]
    async fn at_most_200_lines_and_1_mib_of_a_build_log_are_read() {
        let (client, requests) = fake_api::serve(|_| (200, json!("error"))).await;
        let send = log(client, "team".to_owned(), "web-build".to_owned());
        send().await.unwrap();
        let uri = requests.lock()[0].uri.clone();
        for bound in ["tailLines=200", "limitBytes=1048576"] {
            assert!(uri.contains(bound), "{uri}");
        }
    }
}
