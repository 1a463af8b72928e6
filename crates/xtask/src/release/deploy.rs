//! Creates a copy of `deploy/` in which the digests of a release replace image tags and placeholder digests.

use std::path::Path;

use alustan_api::EngineName;
use anyhow::{Context, Result, ensure};

use super::file_io::{self, read};
use super::images::Images;
use super::package::VERSION;

/// Placeholder digest of `overlays/prod` in the repository.
const ZEROS: &str = "sha256:0000000000000000000000000000000000000000000000000000000000000000";

/// Kustomize overlay from which `hack/release/bundle` builds `install.yaml`.
const OVERLAY: &str = "kustomize/release/kustomization.yaml";

/// Copies the installation files into `folder`, with the digests of `images` in `registry`.
pub(super) fn write(root: &Path, folder: &Path, registry: &str, images: &Images) -> Result<()> {
    for part in ["crd", "kustomize", "helm"] {
        copy(&root.join("deploy").join(part), &folder.join(part))?;
    }
    let controller = &images
        .get("controller")
        .context("the release has no image `controller`")?
        .digest;
    let engines = images
        .iter()
        .filter_map(|(name, image)| Some((name, image, image.engine.as_ref()?)));
    // Default base image of runner images: the first engine of `EngineName` for which the release has an image.
    let base = EngineName::VARIANTS.iter().find_map(|engine| {
        let mut images = engines.clone();
        images.find(|(name, _, _)| *name == engine.as_str())
    });
    let (base, image, _) = base.context("the release has no image with an engine")?;
    let base = format!("{registry}/{base}@{}", image.digest);
    let catalogue: Vec<String> = engines
        .map(|(name, image, version)| {
            format!("'{name}:{version}={registry}/{name}@{}'", image.digest)
        })
        .collect();

    edit(
        &folder.join("helm/alustan/values.yaml"),
        &[
            (
                "  repository: docker.io/alustan/controller\n",
                &format!("  repository: {registry}/controller\n"),
            ),
            ("  digest: \"\"\n", &format!("  digest: {controller}\n")),
            (
                &format!("\nbaseImage: docker.io/alustan/terraform:{VERSION}\n"),
                &format!("\nbaseImage: {base}\n"),
            ),
            (
                "\nengines: []\n",
                &format!("\nengines: [{}]\n", catalogue.join(", ")),
            ),
        ],
    )?;
    let repository = (
        "registry.example.com/alustan/controller\n",
        &*format!("{registry}/controller\n"),
    );
    let base_image = (
        &*format!("registry.example.com/alustan/terraform@{ZEROS}"),
        &*base,
    );
    edit(
        &folder.join("kustomize/overlays/prod/kustomization.yaml"),
        &[repository, (ZEROS, controller)],
    )?;
    edit(
        &folder.join("kustomize/overlays/prod/controller.yaml"),
        &[base_image],
    )?;
    edit(
        &folder.join("kustomize/overlays/prod/allowed.yaml"),
        &[(
            "    registry.example.com/alustan\n",
            &format!("    {registry}\n"),
        )],
    )?;
    edit(
        &folder.join("helm/values/prod.yaml"),
        &[
            repository,
            base_image,
            (ZEROS, controller),
            (
                ", registry.example.com/alustan]\n",
                &format!(", {registry}]\n"),
            ),
        ],
    )?;
    file_io::write(
        &folder.join(OVERLAY),
        overlay(
            registry,
            controller,
            &base,
            &catalogue.join(",").replace('\'', ""),
        ),
    )
}

fn overlay(registry: &str, controller: &str, base: &str, catalogue: &str) -> String {
    format!(
        "# Alustan {VERSION}. The images are pinned by digest.\n\
         apiVersion: kustomize.config.k8s.io/v1beta1\n\
         kind: Kustomization\n\
         resources: [../base]\n\
         images:\n\
         \x20 - {{name: docker.io/alustan/controller, newName: {registry}/controller, digest: \"{controller}\"}}\n\
         patches:\n\
         \x20 - patch: |-\n\
         \x20     apiVersion: apps/v1\n\
         \x20     kind: Deployment\n\
         \x20     metadata: {{name: alustan-controller, namespace: alustan-system}}\n\
         \x20     spec:\n\
         \x20       template:\n\
         \x20         spec:\n\
         \x20           containers:\n\
         \x20             - name: controller\n\
         \x20               env:\n\
         \x20                 - {{name: ALUSTAN_BASE_IMAGE, value: \"{base}\"}}\n\
         \x20                 - {{name: ALUSTAN_ENGINES, value: \"{catalogue}\"}}\n\
         \x20                 - {{name: ALUSTAN_OPERATOR_IMAGE, value: \"{registry}/controller@{controller}\"}}\n"
    )
}

/// Replaces texts in a file. `changes` contains pairs of old and new text. Fails unless each old text occurs exactly
/// once.
fn edit(path: &Path, changes: &[(&str, &str)]) -> Result<()> {
    let mut text = read(path)?;
    for (old, new) in changes {
        let count = text.matches(old).count();
        ensure!(
            count == 1,
            "{} contains {old:?} {count} times; expected once",
            path.display()
        );
        text = text.replacen(old, new, 1);
    }
    file_io::write(path, text)
}

fn copy(from: &Path, to: &Path) -> Result<()> {
    for entry in std::fs::read_dir(from).with_context(|| format!("read {}", from.display()))? {
        let entry = entry?;
        let target = to.join(entry.file_name());
        if entry.file_type()?.is_dir() {
            copy(&entry.path(), &target)?;
        } else {
            file_io::write(&target, std::fs::read(entry.path())?)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::super::images::Image;
    use super::*;

    fn image(digest: char, engine: Option<&str>) -> Image {
        Image {
            digest: format!("sha256:{}", digest.to_string().repeat(64)),
            architectures: BTreeMap::new(),
            engine: engine.map(str::to_owned),
        }
    }

    /// Uses `deploy/` of this checkout, so that the test fails if an image reference moves to another file.
    #[test]
    fn all_image_references_get_the_digests() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let folder = tempfile::tempdir().unwrap();
        let images = Images::from([
            ("controller".to_owned(), image('a', None)),
            ("opentofu".to_owned(), image('b', Some("1.12.6"))),
            ("terraform".to_owned(), image('c', Some("1.11.4"))),
        ]);
        write(&root, folder.path(), "registry.test/alustan", &images).unwrap();
        for (path, digests) in [
            ("helm/alustan/values.yaml", "abc"),
            ("helm/values/prod.yaml", "ac"),
            (OVERLAY, "abc"),
            ("kustomize/overlays/prod/kustomization.yaml", "a"),
            ("kustomize/overlays/prod/controller.yaml", "c"),
            ("kustomize/overlays/prod/allowed.yaml", ""),
        ] {
            let text = read(&folder.path().join(path)).unwrap();
            assert!(!text.contains(ZEROS), "{path}");
            assert!(text.contains("registry.test/alustan"), "{path}");
            for digest in "abc".chars() {
                let is_pinned = text.contains(&digest.to_string().repeat(64));
                assert_eq!(is_pinned, digests.contains(digest), "{path}: {digest}");
            }
        }
    }

    #[test]
    fn opentofu_is_the_base_image_without_terraform() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let folder = tempfile::tempdir().unwrap();
        let mut images = Images::from([("opentofu".to_owned(), image('b', Some("1.12.6")))]);
        assert!(write(&root, folder.path(), "registry.test", &images).is_err());
        images.insert("controller".to_owned(), image('a', None));
        write(&root, folder.path(), "registry.test", &images).unwrap();
        for path in [
            "helm/alustan/values.yaml",
            "helm/values/prod.yaml",
            "kustomize/overlays/prod/controller.yaml",
        ] {
            let text = read(&folder.path().join(path)).unwrap();
            assert!(text.contains("registry.test/opentofu@sha256:bbb"), "{path}");
        }
    }
}
