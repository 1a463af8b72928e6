//! Builder kind Append: pushes the prepared folders as layers on top of the base image. Needs neither kaniko nor root.

use std::collections::BTreeMap;
use std::path::Path;

use alustan_api::labels::image::{CONTEXT, NAMESPACE};
use alustan_api::paths::{self, LAYERS, RUNNER_LAYER};
use alustan_api::report::Failure;
use alustan_api::{Architecture, Reason};
use alustan_registry::{Digest, ImageConfig, ImageRef, Layer};

use super::build_folders::{BuildFolders, unwritten};
use super::layer::{self, LayerContent, LayerError};
use super::registry_access::{access, of_registry, registry};
use crate::failure::{module, transient, user};
use crate::paths::{Paths, Vars};

/// Topmost folder for which each layer contains an entry (see [`LayerContent::made_from`]).
const MADE: &str = "/alustan";

/// Image to build, from the environment.
pub(super) struct Image {
    base: ImageRef,
    target: ImageRef,
    config: ImageConfig,
}

impl Image {
    /// Reads references and labels of the image from environment variables.
    pub(super) fn from_vars(vars: &Vars) -> Result<Self, Failure> {
        let text = |name: &str| {
            let value = vars.get(name).cloned();
            value.ok_or_else(|| module(Reason::PrepareFailed, format!("{name} is not set")))
        };
        let image = |name: &str| ImageRef::parse(&text(name)?).map_err(|error| of_registry(&error));
        let user = format!("{0}:{0}", paths::USER);
        Ok(Self {
            base: image("ALUSTAN_BASE")?,
            target: image("ALUSTAN_IMAGE")?,
            config: ImageConfig {
                user,
                entrypoint: vec![paths::RUNNER.to_owned()],
                labels: BTreeMap::from([
                    (NAMESPACE.to_owned(), text("ALUSTAN_NAMESPACE_UID")?),
                    (CONTEXT.to_owned(), text("ALUSTAN_CONTEXT")?),
                ]),
                created: text("ALUSTAN_CREATED")?,
                architecture: Architecture::own().to_string(),
                os: "linux".to_owned(),
            },
        })
    }

    /// Writes the prepared folders as layers and pushes the image. Returns the digest of its manifest.
    pub(super) async fn push(&self, paths: &Paths, vars: &Vars) -> Result<Digest, Failure> {
        let layers = layers(&BuildFolders::new(paths))?;
        crate::log!("pushing image {}", self.target);
        let own = self.target.name().registry();
        registry(vars)?
            .append(
                &self.base,
                &access(&self.base, own, vars)?,
                &self.target,
                &access(&self.target, own, vars)?,
                &layers,
                &self.config,
            )
            .await
            .map_err(|error| of_registry(&error))
    }
}

/// Writes each of `folders` as a layer to a file. Returns the layers.
fn layers(folders: &BuildFolders) -> Result<Vec<Layer>, Failure> {
    let layer = |kind: &paths::Layer| {
        let folder = folders.source(kind);
        let content = LayerContent {
            folder: &folder,
            target: Path::new(kind.target),
            made_from: Path::new(MADE),
            owner: kind.owner.unsigned_abs(),
        };
        let file = folders.root.join(kind.source).with_extension("layer");
        let written = layer::write(content, &file).map_err(refused)?;
        Ok(Layer {
            file,
            digest: written.digest,
            diff_id: written.diff_id,
            size: written.size,
            created_by: format!("alustan: {}", kind.target),
        })
    };
    let runner = Some(&RUNNER_LAYER).filter(|kind| folders.source(kind).exists());
    runner.into_iter().chain(&LAYERS).map(layer).collect()
}

fn refused(error: LayerError) -> Failure {
    match error {
        LayerError::Write(error) => unwritten(error),
        LayerError::Read(..) => transient(
            Reason::PrepareFailed,
            format!("failed to read a file for the image: {error}"),
        ),
        LayerError::Whiteout(_) | LayerError::Special(_) => user(
            Reason::FileUnsupported,
            format!("a file of the module cannot be stored in the image: {error}"),
        ),
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn link_in_place_of_the_module_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let mut paths = Paths::from_vars(&Vars::new());
        paths.build = folder.path().join("build");
        let folders = BuildFolders::new(&paths);
        folders.make().unwrap();
        assert_eq!(layers(&folders).unwrap().len(), 2);
        fs::remove_dir(&folders.module).unwrap();
        symlink(folder.path(), &folders.module).unwrap();
        let failure = layers(&folders).unwrap_err();
        let message = failure.message;
        assert!(message.contains("src/module: Not a directory"), "{message}");
    }
}
