//! The source of the module of a resource, of any kind.

use kube_core::Duration;

use crate::spec::{GitHubApp, GitRepo, InlineModule, OciArtifact, RemoteModule, TerraformSpec};

/// Kind of the source of a module.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ModuleSource<'a> {
    /// `spec.gitRepo`.
    Git(&'a GitRepo),
    /// `spec.source.module`.
    Module(&'a RemoteModule),
    /// `spec.source.inline`.
    Inline(&'a InlineModule),
    /// `spec.source.oci`.
    Oci(&'a OciArtifact),
}

impl<'a> ModuleSource<'a> {
    /// Returns the field of the source, for messages.
    pub fn field(&self) -> &'static str {
        match self {
            Self::Git(_) => "spec.gitRepo",
            Self::Module(_) => "spec.source.module",
            Self::Inline(_) => "spec.source.inline",
            Self::Oci(_) => "spec.source.oci",
        }
    }

    /// Returns the value that the allow-list `repositories` must contain, and its field.
    pub fn origin(&self) -> (&'static str, &'a str) {
        match self {
            Self::Git(repository) => ("spec.gitRepo.url", &repository.url),
            Self::Module(module) => ("spec.source.module.source", &module.source),
            Self::Inline(_) => ("spec.source.inline", "inline"),
            Self::Oci(artifact) => ("spec.source.oci.url", &artifact.url),
        }
    }

    /// Returns the folder in which a user can call the engine on the module, for messages.
    pub fn working_copy(&self) -> String {
        let folder = |path: &Option<String>| path.clone().unwrap_or_else(|| ".".to_owned());
        match self {
            Self::Git(repository) => format!(
                "a checkout of {}, folder {}",
                repository.url,
                folder(&repository.path)
            ),
            Self::Module(module) => {
                format!("a folder with a root module that calls {}", module.source)
            }
            Self::Inline(_) => "a folder with the files of spec.source.inline".to_owned(),
            Self::Oci(artifact) => format!(
                "a copy of the files in {}, folder {}",
                artifact.url,
                folder(&artifact.path)
            ),
        }
    }

    /// Returns the interval at which the operator checks the source for a new revision. `None` if the source is part of the spec.
    pub fn interval(&self) -> Option<Duration> {
        match self {
            Self::Git(repository) => Some(repository.interval),
            Self::Oci(artifact) => Some(artifact.interval),
            Self::Module(_) | Self::Inline(_) => None,
        }
    }
}

impl TerraformSpec {
    /// Returns the source of the module. `None` unless exactly one source is set: CEL rules refuse such a spec, but resources that are older
    /// than the rules may have it.
    pub fn module_source(&self) -> Option<ModuleSource<'_>> {
        let other = self.source.as_ref();
        let module = other.and_then(|other| other.module.as_ref());
        let inline = other.and_then(|other| other.inline.as_ref());
        let oci = other.and_then(|other| other.oci.as_ref());
        let mut sources = [
            self.git_repo.as_ref().map(ModuleSource::Git),
            module.map(ModuleSource::Module),
            inline.map(ModuleSource::Inline),
            oci.map(ModuleSource::Oci),
        ]
        .into_iter()
        .flatten();
        let source = sources.next()?;
        sources.next().is_none().then_some(source)
    }

    /// Whether requests to the git repository use credentials.
    pub fn has_git_credentials(&self) -> bool {
        self.git_repo.as_ref().is_some_and(GitRepo::has_credentials)
    }

    /// Returns the GitHub App whose tokens requests to the git repository use.
    pub fn github_app(&self) -> Option<&GitHubApp> {
        self.git_repo.as_ref()?.github_app.as_ref()
    }
}
