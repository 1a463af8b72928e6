//! Modules in OCI artifacts (`spec.source.oci`).

use std::sync::Arc;
use std::time::Duration;

use alustan_api::report::{Failure, FailureClass};
use alustan_api::{OciArtifact, Reason, Terraform, revision};
use alustan_core::observed::SourceSeen;
use alustan_registry::{
    Access, Digest, DockerConfig, ImageName, ImageRef, ModuleArtifact, ModuleFormat, Registry,
    VersionRange,
};
use alustan_source::{
    ArtifactFormat, Context, ContextSpec, FairSemaphore, TempPath, artifact_files, pack_files,
};
use kube::ResourceExt;

use crate::remote::context_store::ContextStore;
use crate::remote::failure::{at_digest, chain, registry};
use crate::remote::packing::{revision_moved, run_blocking};
use crate::remote::polled_cache::PollInterval;
use crate::remote::queries::{access_without_identity, identity, requested, store_and_describe};

/// Maximum number of artifacts that are pulled concurrently, at most half of them for one namespace. A pulled artifact takes up to 16 MiB of
/// the volume of the git cache.
const MAX_CONCURRENT_PULLS: usize = 8;

/// Limits on concurrent work on artifacts. All namespaces have equal shares of the limits.
pub(crate) struct ArtifactLimits {
    pulls: Arc<FairSemaphore>,
    /// One permit: the paths of an artifact take up to 42 MiB of memory, and its files up to 64 MiB of the volume of the git cache.
    unpacking: Arc<FairSemaphore>,
}

impl Default for ArtifactLimits {
    fn default() -> Self {
        Self {
            pulls: FairSemaphore::half_per_tenant(MAX_CONCURRENT_PULLS),
            unpacking: FairSemaphore::new(1),
        }
    }
}

const FIELD: &str = "spec.source.oci";

/// Selected artifact of a repository.
#[derive(Clone, Debug)]
enum Reference {
    Tag(String),
    Range(VersionRange),
    Digest(Digest),
}

/// Artifact that contains a module.
#[derive(Clone)]
pub(crate) struct Artifact {
    name: ImageName,
    reference: Reference,
    access: Access,
    /// Identifies repository, reference and access. Contains a digest of the credentials instead of secret values.
    identity: String,
    spec: ContextSpec,
    pub(crate) tenant: String,
}

impl Artifact {
    /// Returns the artifact `spec` of `tf`. `docker`: credentials of the registry.
    ///
    /// # Errors
    /// If a field of `spec.source.oci` is invalid.
    pub(crate) fn of(
        tf: &Terraform,
        spec: &OciArtifact,
        docker: Option<&DockerConfig>,
    ) -> Result<Self, Failure> {
        let name = repository(&spec.url)?;
        let reference = reference(spec)?;
        // The cloud identity of the operator may have access to artifacts of other users. The default credentials are those of another
        // purpose: artifacts in other registries are usually public.
        let secret = spec.secret_ref.as_ref();
        let field = secret.map(|_| "spec.source.oci.secretRef");
        let access = access_without_identity(tf, &name, docker, field)?;
        let identity = format!(
            "{name} {reference:?} with access {}",
            identity(&access, docker)
        );
        Ok(Self {
            name,
            reference,
            access,
            identity,
            spec: ContextSpec {
                path: spec.path.clone(),
                // The whole artifact.
                include: vec![String::new()],
                var_files: tf.spec.var_files.clone(),
                submodules: false,
                wrapper: tf.spec.wrapper(),
            },
            tenant: tf.namespace().unwrap_or_default(),
        })
    }

    pub(crate) fn revision_query(&self) -> String {
        format!("revision of artifact {}", self.identity)
    }

    /// Returns the poll interval of the revision. `None` for an artifact that is selected by digest.
    pub(crate) fn poll_interval(&self, interval: Duration) -> Option<PollInterval> {
        let is_fixed = matches!(self.reference, Reference::Digest(_));
        (!is_fixed).then(|| PollInterval::new(interval, &self.identity))
    }

    pub(crate) fn module_identity(&self) -> String {
        format!(
            "artifact {} {:?} {:?} {:?}",
            self.identity, self.spec.path, self.spec.var_files, self.spec.wrapper
        )
    }

    /// Returns the revision: the digits of the digest of the manifest.
    pub(crate) async fn revision(&self, client: &Registry) -> Result<String, Failure> {
        let digest = match &self.reference {
            Reference::Digest(digest) => digest.clone(),
            Reference::Tag(tag) => self.digest_of(client, tag).await?,
            Reference::Range(range) => {
                let tags = client.tags(&self.name, &self.access).await;
                let tags = tags.map_err(|error| registry(FIELD, &error))?;
                let tag = range.newest(&tags).ok_or_else(|| {
                    not_found(&format!(
                        "no tag of oci://{} has a version in the range of spec.source.oci.semver",
                        self.name
                    ))
                })?;
                self.digest_of(client, tag).await?
            }
        };
        let digits = digest.as_str().strip_prefix(revision::DIGEST_PREFIX);
        digits.map(str::to_owned).ok_or_else(|| {
            Failure::user(
                Reason::ArtifactInvalid,
                format!("{FIELD}: the registry returned {digest} instead of a sha256 digest"),
            )
        })
    }

    async fn digest_of(&self, client: &Registry, tag: &str) -> Result<Digest, Failure> {
        let image = ImageRef::tagged(self.name.clone(), tag).map_err(|error| invalid(&error))?;
        let digest = client.digest_of(&image, &self.access).await;
        let digest = digest.map_err(|error| registry(FIELD, &error))?;
        digest.ok_or_else(|| not_found(&format!("oci://{image} does not exist")))
    }

    /// Pulls the artifact with the digest `digits`, packs the files of the module and stores the context for the push.
    pub(crate) async fn seen(
        &self,
        digits: &str,
        client: &Registry,
        limits: &ArtifactLimits,
        contexts: &ContextStore,
    ) -> Result<SourceSeen, Failure> {
        let context = self.packed(digits, client, limits, contexts).await?;
        let revision = revision::of_digest(digits);
        store_and_describe(revision, context, contexts)
    }

    /// Pulls and packs the artifact of `seen` again.
    ///
    /// # Errors
    /// If the artifact cannot be pulled, or if the context is not that of `seen`.
    pub(crate) async fn fetch_again(
        &self,
        seen: &SourceSeen,
        client: &Registry,
        limits: &ArtifactLimits,
        contexts: &ContextStore,
    ) -> Result<(TempPath, u64), Failure> {
        let context = self
            .packed(revision::digits(&seen.revision), client, limits, contexts)
            .await?;
        requested(context, seen).ok_or_else(revision_moved)
    }

    /// Pulls the artifact with the digest `digits`, and packs the files of the module.
    async fn packed(
        &self,
        digits: &str,
        client: &Registry,
        limits: &ArtifactLimits,
        contexts: &ContextStore,
    ) -> Result<Context, Failure> {
        let digest =
            Digest::parse(&revision::of_digest(digits)).map_err(|error| invalid(&error))?;
        let tenant = self.tenant.as_str().into();
        let _pull = limits.pulls.acquire(&tenant).await;
        let folder = contexts.folder().to_owned();
        let pulled = client
            .pull_module(&self.name, &digest, &self.access, &folder)
            .await;
        let ModuleArtifact { format, content } = pulled.map_err(|error| registry(FIELD, &error))?;
        let format = match format {
            ModuleFormat::TarGzip => ArtifactFormat::TarGzip,
            ModuleFormat::Zip => ArtifactFormat::Zip,
        };
        let unpacking = limits.unpacking.acquire(&tenant).await;
        let (spec, digits) = (self.spec.clone(), digits.to_owned());
        run_blocking(move || {
            let _permit = unpacking;
            artifact_files(format, &content, &folder)
                .and_then(|files| pack_files(&files, &spec, &folder))
                .map_err(|error| at_digest(FIELD, &digits, &error))
        })
        .await
    }
}

fn repository(url: &str) -> Result<ImageName, Failure> {
    let field = "spec.source.oci.url";
    let name = url.strip_prefix("oci://").unwrap_or_default();
    let host = name.split_once('/').map_or("", |(host, _)| host);
    if host != "localhost" && !host.contains(['.', ':']) {
        return Err(Failure::user(
            Reason::InvalidSource,
            format!("{field}: must be oci://HOST/REPOSITORY with the host name of the registry"),
        ));
    }
    ImageName::parse(name)
        .map_err(|error| Failure::user(Reason::InvalidSource, chain(field, &error)))
}

fn reference(spec: &OciArtifact) -> Result<Reference, Failure> {
    let digest = |text: &String| {
        Digest::parse(text)
            .map(Reference::Digest)
            .map_err(|error| invalid(&error))
    };
    match (&spec.tag, &spec.semver, &spec.digest) {
        (None, None, Some(text)) => digest(text),
        (None, Some(range), None) => VersionRange::parse(range)
            .map(Reference::Range)
            .map_err(|error| invalid(&error)),
        (tag, None, None) => {
            let tag = tag.clone().unwrap_or_else(|| "latest".to_owned());
            Ok(Reference::Tag(tag))
        }
        _ => Err(Failure::user(
            Reason::InvalidSource,
            format!("{FIELD}: at most one of tag, semver and digest may be set"),
        )),
    }
}

fn invalid(error: &alustan_registry::Error) -> Failure {
    Failure {
        class: FailureClass::User,
        ..registry(FIELD, error)
    }
}

fn not_found(what: &str) -> Failure {
    Failure::user(
        Reason::ArtifactNotFound,
        format!("{FIELD}: {what}; push the artifact, or correct url, tag or semver"),
    )
}
