//! Format of a context in a registry: an OCI artifact with one layer. Performs no I/O. See
//! <https://github.com/opencontainers/image-spec/blob/main/manifest.md#guidelines-for-artifact-usage>.

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

/// Returns the tag of a context: `context-` and the first 16 digits of its digest.
pub fn context_tag(context: &Digest) -> String {
    let digits = context
        .as_str()
        .split_once(':')
        .map_or("", |(_, digits)| digits);
    format!("context-{}", digits.get(..16).unwrap_or(digits))
}

/// Returns the manifest digest of a context of `size` bytes. The digest is the same in every registry.
pub fn artifact_digest(context: &Digest, size: usize) -> Digest {
    Digest::of(&manifest(context, size))
}

/// Returns the bytes of the manifest. The same context always gives the same bytes.
pub(crate) fn manifest(context: &Digest, size: usize) -> Vec<u8> {
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

#[cfg(test)]
mod tests {
    use super::*;

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
