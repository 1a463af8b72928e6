//! First step of a build: pulls the context, and writes the files for the builder that the module must not change. The container of this
//! step has the registry credentials, so it must not execute files from the git repository.

use alustan_api::Reason;
use alustan_api::report::Failure;
use alustan_registry::ImageRef;
use alustan_source::{UnpackLimits, unpack};

use super::build_folders::{BuildFolders, unwritten};
use super::dockerfile;
use super::finish::write_builder_files;
use super::registry_access::{access, of_registry, registry};
use super::request::ContextRequest;
use crate::failure::{chain, module};
use crate::paths::{Paths, Vars};

/// Pulls the context by its digest.
pub(super) async fn pull(
    request: &ContextRequest,
    vars: &Vars,
) -> Result<impl AsRef<[u8]> + use<>, Failure> {
    crate::log!("pulling the context {}", request.context);
    let image = ImageRef::parse(&request.context).map_err(|error| of_registry(&error))?;
    let digest = image.digest().cloned().ok_or_else(|| {
        module(
            Reason::PrepareFailed,
            format!("{} has no digest", request.context),
        )
    })?;
    registry(vars)?
        .pull_context(
            image.name(),
            &digest,
            &access(&image, image.name().registry(), vars)?,
        )
        .await
        .map_err(|error| of_registry(&error))
}

/// Unpacks `context`, and writes the Dockerfile and the other files for the builder.
pub fn unpack_context(
    paths: &Paths,
    vars: &Vars,
    request: &ContextRequest,
    context: &impl AsRef<[u8]>,
) -> Result<(), Failure> {
    let folders = BuildFolders::new(paths);
    folders.make().map_err(unwritten)?;
    unpack(context.as_ref(), &folders.module, &UnpackLimits::default())
        .map_err(|error| module(error.reason(), chain(&error)))?;
    let before = request.before.as_deref();
    let before = before.map(|path| dockerfile::read(&folders.module, path));
    let dockerfile = match before.transpose()? {
        Some(before) => format!("{}\n{}", before.trim_end(), request.dockerfile),
        None => request.dockerfile.clone(),
    };
    write_builder_files(&folders, request, &dockerfile, vars).map_err(unwritten)
}
