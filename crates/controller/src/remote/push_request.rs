//! Request to push a context to a registry. Its result is the cached answer of a query.

use alustan_api::Terraform;
use alustan_api::report::Failure;
use alustan_core::observed::SourceSeen;
use alustan_core::settings::Settings;
use alustan_registry::{Access, DockerConfig, ImageName};

use crate::remote::module_files::ModuleFiles;
use crate::remote::queries::{access, identity, image_name};

/// Push of the context of a module to the registry repository of a resource.
#[derive(Clone)]
pub(crate) struct PushRequest {
    /// Key of the query in [`Answers::artifacts`](crate::remote::answers::Answers::artifacts).
    pub(crate) key: String,
    pub(crate) name: ImageName,
    pub(crate) access: Access,
    pub(crate) files: ModuleFiles,
    /// Revision and digest of the context.
    pub(crate) source: SourceSeen,
}

impl PushRequest {
    /// Returns the push of the context of `source`, from `files` to the registry repository of `tf`.
    ///
    /// # Errors
    /// If the name of the registry repository or its credentials are invalid.
    pub(crate) fn new(
        settings: &Settings,
        tf: &Terraform,
        source: &SourceSeen,
        files: ModuleFiles,
        docker: Option<&DockerConfig>,
    ) -> Result<Self, Failure> {
        let name = image_name(tf)?;
        let access = access(settings, tf, &name, docker)?;
        let key = format!(
            "push of context {} to {name} with access {}",
            source.context,
            identity(&access, docker)
        );
        Ok(Self {
            key,
            name,
            access,
            files,
            source: source.clone(),
        })
    }
}
