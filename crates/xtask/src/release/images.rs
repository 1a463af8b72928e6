//! Merges images of single architectures into multi-architecture images, as OCI image layouts
//! (<https://github.com/opencontainers/image-spec/blob/v1.1.1/image-layout.md>).

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::file_io::{read, sha256, write};
use super::package::VERSION;

const INDEX: &str = "application/vnd.oci.image.index.v1+json";

/// An image of a release.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Image {
    /// Digest of the image index with all architectures: `sha256:…`.
    pub(crate) digest: String,
    /// Digests of the image manifests, by architecture.
    pub(crate) architectures: BTreeMap<String, String>,
    /// Version of the engine in the image, if any.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) engine: Option<String>,
}

/// Images of a release, by name.
pub(crate) type Images = BTreeMap<String, Image>;

/// Merges the images in `folder`/ARCHITECTURE/NAME into `folder`/NAME, and removes the folders of the architectures.
pub(super) fn merge(folder: &Path) -> Result<Images> {
    let mut parts: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for architecture in names(folder)? {
        for name in names(&folder.join(&architecture))? {
            parts.entry(name).or_default().push(architecture.clone());
        }
    }
    ensure!(
        !parts.is_empty(),
        "no image in {}: run hack/release/build",
        folder.display()
    );
    let mut images = Images::new();
    for (name, architectures) in &parts {
        let image =
            merge_image(folder, name, architectures).with_context(|| format!("image {name}"))?;
        images.insert(name.clone(), image);
    }
    for architecture in parts.into_values().flatten() {
        match std::fs::remove_dir_all(folder.join(architecture)) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(error.into()),
            _ => {}
        }
    }
    Ok(images)
}

fn merge_image(folder: &Path, name: &str, architectures: &[String]) -> Result<Image> {
    let blobs = folder.join(name).join("blobs/sha256");
    std::fs::create_dir_all(&blobs)?;
    let mut manifests = Vec::new();
    let mut engine = None;
    let mut digests = BTreeMap::new();
    for architecture in architectures {
        let part = folder.join(architecture).join(name);
        for blob in names(&part.join("blobs/sha256"))? {
            std::fs::rename(part.join("blobs/sha256").join(&blob), blobs.join(&blob))?;
        }
        let index: Value = serde_json::from_str(&read(&part.join("index.json"))?)?;
        let manifest = index
            .pointer("/manifests/0")
            .context("index.json names no manifest")?;
        let word = |key: &str| manifest.get(key).cloned().unwrap_or_default();
        let digest = word("digest");
        let digest = digest.as_str().context("index.json contains no digest")?;
        digests.insert(architecture.clone(), digest.to_owned());
        manifests.push(json!({
            "mediaType": word("mediaType"), "digest": digest, "size": word("size"),
            "platform": {"architecture": architecture, "os": "linux"},
        }));
        let version = std::fs::read_to_string(part.join("engine")).ok();
        let version = version.map(|version| version.trim().to_owned());
        ensure!(
            engine.is_none() || engine == version,
            "the engine versions of the architectures {architectures:?} differ"
        );
        engine = version;
    }
    let index = json!({"schemaVersion": 2, "mediaType": INDEX, "manifests": manifests});
    let index = serde_json::to_vec(&index)?;
    let digest = sha256(&index);
    write(&blobs.join(&digest), &index)?;
    let digest = format!("sha256:{digest}");
    let outer = json!({
        "schemaVersion": 2, "mediaType": INDEX,
        "manifests": [{
            "mediaType": INDEX, "digest": digest, "size": index.len(),
            "annotations": {"org.opencontainers.image.ref.name": VERSION},
        }],
    });
    let layout = folder.join(name);
    write(&layout.join("index.json"), outer.to_string())?;
    let version = json!({"imageLayoutVersion": "1.0.0"});
    write(&layout.join("oci-layout"), version.to_string())?;
    Ok(Image {
        digest,
        architectures: digests,
        engine,
    })
}

/// Returns the names of the entries of a folder, sorted.
fn names(folder: &Path) -> Result<Vec<String>> {
    let entries =
        std::fs::read_dir(folder).with_context(|| format!("read {}", folder.display()))?;
    let mut names = Vec::new();
    for entry in entries {
        names.push(entry?.file_name().to_string_lossy().into_owned());
    }
    names.sort_unstable();
    Ok(names)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn layout(folder: &Path, manifest: &str, engine: Option<&str>) -> String {
        let digest = sha256(manifest.as_bytes());
        write(&folder.join("blobs/sha256").join(&digest), manifest).unwrap();
        let index = json!({"schemaVersion": 2, "manifests": [{
            "mediaType": "application/vnd.oci.image.manifest.v1+json",
            "digest": format!("sha256:{digest}"), "size": manifest.len(),
        }]});
        write(&folder.join("index.json"), index.to_string()).unwrap();
        if let Some(engine) = engine {
            write(&folder.join("engine"), format!("{engine}\n")).unwrap();
        }
        format!("sha256:{digest}")
    }

    #[test]
    fn multi_architecture_image_lists_each_digest() {
        let folder = tempfile::tempdir().unwrap();
        let of = |path: &str, manifest: &str, engine| {
            layout(&folder.path().join(path), manifest, engine)
        };
        let amd64 = of("amd64/controller", "{\"a\":1}", None);
        let arm64 = of("arm64/controller", "{\"a\":2}", None);
        let engine = of("amd64/opentofu", "{\"a\":3}", Some("1.12.6"));
        let images = merge(folder.path()).unwrap();
        let controller = &images["controller"];
        assert_eq!(controller.architectures["amd64"], amd64);
        assert_eq!(controller.architectures["arm64"], arm64);
        assert_eq!(images["opentofu"].engine.as_deref(), Some("1.12.6"));
        assert_eq!(images["opentofu"].architectures["amd64"], engine);
        assert_eq!(names(folder.path()).unwrap(), ["controller", "opentofu"]);

        let hex = controller.digest.strip_prefix("sha256:").unwrap();
        let blobs = folder.path().join("controller/blobs/sha256");
        let index = std::fs::read(blobs.join(hex)).unwrap();
        assert_eq!(sha256(&index), hex);
        let index: Value = serde_json::from_slice(&index).unwrap();
        assert_eq!(index["manifests"][1]["digest"], arm64);
        let platform = json!({"architecture": "arm64", "os": "linux"});
        assert_eq!(index["manifests"][1]["platform"], platform);
    }

    #[test]
    fn merge_refuses_different_engine_versions() {
        let folder = tempfile::tempdir().unwrap();
        layout(&folder.path().join("amd64/opentofu"), "{}", Some("1.12.6"));
        layout(&folder.path().join("arm64/opentofu"), "{ }", Some("1.12.5"));
        assert!(merge(folder.path()).is_err());
    }

    #[test]
    fn merge_fails_without_images() {
        let folder = tempfile::tempdir().unwrap();
        assert!(merge(folder.path()).is_err());
    }
}
