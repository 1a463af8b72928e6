//! Format of a context in a registry, an OCI artifact with one layer, and of artifacts of modules that other programs push. Performs no I/O. See
//! <https://github.com/opencontainers/image-spec/blob/main/manifest.md#guidelines-for-artifact-usage>.

use std::fs::File;

use serde::Deserialize;
use serde_json::json;

use crate::{error::Error, image::OCI_MANIFEST, reference::Digest};

/// `artifactType` of a context.
pub const ARTIFACT_TYPE: &str = "application/vnd.alustan.context.v1";
/// Media type of the layer of a context.
pub const LAYER_TYPE: &str = "application/vnd.alustan.context.v1.tar+gzip";
/// Media type of the manifest of a context.
pub(crate) const MANIFEST_TYPE: &str = OCI_MANIFEST;
/// Config blob of an OCI artifact that has no config.
pub(crate) const EMPTY: &[u8] = b"{}";
const EMPTY_TYPE: &str = "application/vnd.oci.empty.v1+json";

/// Maximum size of the artifact of a module before it is unpacked, in bytes.
pub(crate) const MODULE_BYTES: usize = 16 << 20;
/// Media type of the layer that `flux push artifact` writes: <https://fluxcd.io/flux/components/source/ocirepositories/>.
const FLUX_LAYER: &str = "application/vnd.cncf.flux.content.v1.tar+gzip";
/// Media type of the layer of a module package: <https://opentofu.org/docs/cli/oci_registries/module-package/>.
const OPENTOFU_LAYER: &str = "archive/zip";

/// Format of the content of the artifact of a module.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ModuleFormat {
    /// tar.gz, as written by `flux push artifact`.
    TarGzip,
    /// zip, as in a module package of OpenTofu.
    Zip,
}

/// Content of the artifact of a module.
#[derive(Debug)]
pub struct ModuleArtifact {
    /// Format of the content.
    pub format: ModuleFormat,
    /// Content, verified against its digest, in a temporary file at its start.
    pub content: File,
}

/// Returns the tag of a context: `context-` and the first 16 digits of its digest.
pub fn context_tag(context: &Digest) -> String {
    let digits = context
        .as_str()
        .split_once(':')
        .map_or("", |(_, digits)| digits);
    format!("context-{}", digits.get(..16).unwrap_or(digits))
}

/// Returns the manifest digest of a context of `size` bytes. The digest is the same in every registry.
pub fn artifact_digest(context: &Digest, size: u64) -> Digest {
    Digest::of(&manifest(context, size))
}

/// Returns the bytes of the manifest. The same context always gives the same bytes.
pub(crate) fn manifest(context: &Digest, size: u64) -> Vec<u8> {
    let manifest = json!({
        "artifactType": ARTIFACT_TYPE,
        "config": { "digest": Digest::of(EMPTY).as_str(), "mediaType": EMPTY_TYPE, "size": EMPTY.len() },
        "layers": [{ "digest": context.as_str(), "mediaType": LAYER_TYPE, "size": size }],
        "mediaType": MANIFEST_TYPE,
        "schemaVersion": 2,
    });
    manifest.to_string().into_bytes()
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct ArtifactManifest {
    artifact_type: Option<String>,
    #[serde(default)]
    layers: Vec<ArtifactLayer>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct ArtifactLayer {
    media_type: String,
    digest: String,
    size: i64,
}

/// Reads the manifest of a context. Returns the digest of its only layer. `most`: maximum size of the layer, in bytes.
///
/// # Errors [`Error::NotAContext`] if the manifest is not the manifest of a context. The message names `subject`, the reference of the
/// artifact.
pub(crate) fn layer(subject: &str, manifest: &[u8], most: usize) -> Result<Digest, Error> {
    let refuse = |why: String| Error::NotAContext {
        subject: subject.to_owned(),
        why,
    };
    let manifest: ArtifactManifest = serde_json::from_slice(manifest)
        .map_err(|error| refuse(format!("invalid manifest: {error}")))?;
    if manifest.artifact_type.as_deref() != Some(ARTIFACT_TYPE) {
        return Err(refuse(format!(
            "the artifact type is not `{ARTIFACT_TYPE}`"
        )));
    }
    let [layer] = manifest.layers.as_slice() else {
        return Err(refuse(format!(
            "the manifest has {} layers instead of one",
            manifest.layers.len()
        )));
    };
    if layer.media_type != LAYER_TYPE {
        return Err(refuse(format!("the layer is not of type `{LAYER_TYPE}`")));
    }
    if !usize::try_from(layer.size).is_ok_and(|size| size <= most) {
        return Err(refuse(format!(
            "the layer has {} bytes, more than the limit of {most} bytes",
            layer.size
        )));
    }
    Digest::parse(&layer.digest).map_err(|_| refuse("the digest of the layer is invalid".into()))
}

/// Reads the manifest of the artifact of a module. Returns format and digest of its only layer with a known media type.
///
/// # Errors
/// [`Error::InvalidArtifact`] if no layer or several layers have a known media type, or if the layer exceeds [`MODULE_BYTES`].
pub(crate) fn module_layer(
    subject: &str,
    manifest: &[u8],
) -> Result<(ModuleFormat, Digest), Error> {
    let refuse = |why: String| Error::InvalidArtifact {
        subject: subject.to_owned(),
        why,
    };
    let manifest: ArtifactManifest = serde_json::from_slice(manifest)
        .map_err(|error| refuse(format!("invalid manifest: {error}")))?;
    let mut known = manifest.layers.iter().filter_map(|layer| {
        let format = match layer.media_type.as_str() {
            FLUX_LAYER => ModuleFormat::TarGzip,
            OPENTOFU_LAYER => ModuleFormat::Zip,
            _ => return None,
        };
        Some((format, layer))
    });
    let (Some((format, layer)), None) = (known.next(), known.next()) else {
        return Err(refuse(format!(
            "the manifest must have one layer of type `{FLUX_LAYER}` (flux push artifact) or \
             `{OPENTOFU_LAYER}` (module package of OpenTofu)"
        )));
    };
    if !usize::try_from(layer.size).is_ok_and(|size| size <= MODULE_BYTES) {
        return Err(refuse(format!(
            "the layer has {} bytes, more than the limit of {MODULE_BYTES} bytes",
            layer.size
        )));
    }
    let digest = Digest::parse(&layer.digest);
    let digest = digest.map_err(|_| refuse("the digest of the layer is invalid".into()))?;
    Ok((format, digest))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn module_artifact_has_one_layer_of_a_known_type() {
        let digest = Digest::of(b"x").to_string();
        let layer =
            |kind: &str, size: usize| json!({"mediaType": kind, "digest": digest, "size": size});
        let read = |layers: &[serde_json::Value]| {
            let manifest = json!({"schemaVersion": 2, "layers": layers}).to_string();
            module_layer("x", manifest.as_bytes())
        };
        let other = layer("application/octet-stream", 1);
        let (format, found) = read(&[layer(FLUX_LAYER, MODULE_BYTES), other.clone()]).unwrap();
        assert_eq!((format, found), (ModuleFormat::TarGzip, Digest::of(b"x")));
        let (format, _) = read(&[layer(OPENTOFU_LAYER, 1)]).unwrap();
        assert_eq!(format, ModuleFormat::Zip);
        for layers in [
            vec![],
            vec![other],
            vec![layer(FLUX_LAYER, 1), layer(OPENTOFU_LAYER, 1)],
            vec![layer(FLUX_LAYER, MODULE_BYTES + 1)],
            vec![json!({"mediaType": FLUX_LAYER, "digest": "sha256:0", "size": 1})],
            vec![json!({"mediaType": FLUX_LAYER, "digest": digest, "size": -1})],
        ] {
            let error = read(&layers).unwrap_err();
            assert_eq!(error.reason().as_str(), "ArtifactInvalid", "{error}");
        }
        assert!(module_layer("x", b"[]").is_err());
    }

    fn read(bytes: &[u8], most: usize) -> Result<Digest, Error> {
        layer("x", bytes, most)
    }

    #[test]
    fn context_manifest_has_a_fixed_digest() {
        let context = Digest::of(b"context");
        let bytes = manifest(&context, 7);
        assert_eq!(
            Digest::of(&bytes).as_str(),
            "sha256:79f624168963e32c50c3ac3ed596db9450f4018396f66cc30ac19dd966deeeb4"
        );
        assert_eq!(read(&bytes, 7).unwrap(), context);
        assert_eq!(
            context_tag(&context),
            format!("context-{}", &context.as_str()[7..23])
        );
    }

    #[test]
    fn manifest_of_another_artifact_is_refused() {
        let text = String::from_utf8(manifest(&Digest::of(b"x"), 7)).unwrap();
        assert!(
            read(text.as_bytes(), 6)
                .unwrap_err()
                .to_string()
                .contains("more than the limit of 6")
        );
        for (from, to) in [
            (ARTIFACT_TYPE, "other"),
            (LAYER_TYPE, "other/x"),
            ("\"size\":7", "\"size\":-1"),
        ] {
            let error = read(text.replace(from, to).as_bytes(), 7).unwrap_err();
            assert_eq!(error.reason().as_str(), "ContextDamaged");
        }
    }
}
