//! Reads manifest and config of a base image, and composes manifest and config of the image with appended layers. Performs no I/O. See
//! <https://github.com/opencontainers/image-spec/blob/main/manifest.md>, <https://github.com/opencontainers/image-spec/blob/main/config.md>
//! and <https://distribution.github.io/distribution/spec/manifest-v2-2/>.

use std::{collections::BTreeMap, path::PathBuf};

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use crate::reference::Digest;

/// Media type of OCI image manifests.
pub(crate) const OCI_MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";
/// Media type of Docker image manifests.
pub(crate) const DOCKER_MANIFEST: &str = "application/vnd.docker.distribution.manifest.v2+json";
/// Media type of OCI indexes.
pub(crate) const OCI_INDEX: &str = "application/vnd.oci.image.index.v1+json";
/// Media type of Docker manifest lists.
pub(crate) const DOCKER_LIST: &str = "application/vnd.docker.distribution.manifest.list.v2+json";
const OCI_CONFIG: &str = "application/vnd.oci.image.config.v1+json";
const DOCKER_CONFIG: &str = "application/vnd.docker.container.image.v1+json";
const OCI_LAYER: &str = "application/vnd.oci.image.layer.v1.tar+gzip";
const DOCKER_LAYER: &str = "application/vnd.docker.image.rootfs.diff.tar.gzip";
/// Maximum number of layers that Docker can mount.
const MAX_LAYERS: usize = 127;
/// Maximum number of platforms that an error message lists.
const MAX_PLATFORMS: usize = 8;

/// A layer to append to an image: a tar archive, compressed with gzip.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Layer {
    /// Path of the compressed archive.
    pub file: PathBuf,
    /// Digest of the compressed archive.
    pub digest: Digest,
    /// Digest of the uncompressed archive.
    pub diff_id: Digest,
    /// Size of the compressed archive, in bytes.
    pub size: u64,
    /// `created_by` of the layer's entry in the image history.
    pub created_by: String,
}

/// Settings that replace or extend the settings of a base image.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ImageConfig {
    /// User of the container, `uid[:gid]`. If it is empty, the image keeps the user of the base image.
    pub user: String,
    /// Entrypoint of the container. If it is empty, the image keeps entrypoint and command of the base image. If it is not empty, the
    /// command of the base image is removed.
    pub entrypoint: Vec<String>,
    /// Labels to add. An added label replaces a label of the base image with the same key.
    pub labels: BTreeMap<String, String>,
    /// Creation time, RFC 3339.
    pub created: String,
    /// CPU architecture as in `GOARCH`, for example `amd64`.
    pub architecture: String,
    /// Operating system as in `GOOS`, for example `linux`.
    pub os: String,
}

/// Format of a manifest. It determines the media type of appended layers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Format {
    /// Docker image manifest, version 2, schema 2.
    Docker,
    /// OCI image manifest.
    Oci,
}

impl Format {
    /// Returns the media type of a manifest in this format.
    pub(crate) fn manifest_type(self) -> &'static str {
        match self {
            Self::Docker => DOCKER_MANIFEST,
            Self::Oci => OCI_MANIFEST,
        }
    }

    fn layer_type(self) -> &'static str {
        match self {
            Self::Docker => DOCKER_LAYER,
            Self::Oci => OCI_LAYER,
        }
    }
}

/// Digest and size of a blob.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Blob {
    pub(crate) digest: Digest,
    /// Size of the blob, in bytes.
    pub(crate) size: u64,
}

impl Blob {
    /// Returns digest and size of `bytes`.
    pub(crate) fn of(bytes: &[u8]) -> Self {
        Self {
            digest: Digest::of(bytes),
            size: bytes.len() as u64,
        }
    }
}

/// Content of a manifest in a registry: an image manifest or an index.
#[derive(Debug)]
pub(crate) enum Document {
    /// Manifest of one image.
    Image(BaseManifest),
    /// Index of images for several platforms.
    Index(Index),
}

/// Manifest of an image.
#[derive(Debug)]
pub(crate) struct BaseManifest {
    pub(crate) format: Format,
    pub(crate) config: Blob,
    config_type: String,
    pub(crate) layers: Vec<BaseLayer>,
}

/// Layer of a base image.
#[derive(Debug)]
pub(crate) struct BaseLayer {
    pub(crate) blob: Blob,
    /// Whether the layer is non-distributable: clients download it from URLs in its descriptor, and must not push it to a registry.
    pub(crate) foreign: bool,
    /// Unchanged descriptor from the manifest of the base image.
    descriptor: Value,
}

/// Index of images for several platforms.
#[derive(Debug)]
pub(crate) struct Index(Vec<IndexEntry>);

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct IndexEntry {
    media_type: Option<String>,
    digest: String,
    platform: Option<Platform>,
}

#[derive(Debug, Deserialize)]
struct Platform {
    os: Option<String>,
    architecture: Option<String>,
    variant: Option<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct RawDocument {
    schema_version: u64,
    media_type: Option<String>,
    config: Option<Descriptor>,
    layers: Option<Vec<Value>>,
    manifests: Option<Vec<IndexEntry>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Descriptor {
    media_type: String,
    digest: String,
    size: u64,
    urls: Option<Vec<String>>,
}

/// Reads a manifest or an index.
///
/// # Errors
/// Returns the reason why `bytes` is neither an image manifest nor an index.
pub(crate) fn read(bytes: &[u8]) -> Result<Document, String> {
    let document: RawDocument = serde_json::from_slice(bytes).map_err(not_a_manifest)?;
    if document.schema_version != 2 {
        return Err(format!(
            "manifest schema {} is not supported; push the image again with a current client",
            document.schema_version
        ));
    }
    match (document.config, document.layers, document.manifests) {
        (None, None, Some(entries)) => {
            media_type_is(document.media_type.as_deref(), [OCI_INDEX, DOCKER_LIST])?;
            Ok(Document::Index(Index(entries)))
        }
        (Some(config), Some(layers), None) => {
            read_image(document.media_type.as_deref(), config, layers).map(Document::Image)
        }
        _ => Err("the manifest is neither an image manifest nor an image index".into()),
    }
}

#[expect(clippy::needless_pass_by_value, reason = "for map_err")]
fn not_a_manifest(error: serde_json::Error) -> String {
    format!("the manifest is invalid: {error}")
}

fn media_type_is(media_type: Option<&str>, allowed: [&str; 2]) -> Result<(), String> {
    match media_type {
        Some(other) if !allowed.contains(&other) => {
            Err(format!("the media type {other:?} is not supported"))
        }
        _ => Ok(()),
    }
}

fn read_image(
    media_type: Option<&str>,
    config: Descriptor,
    layers: Vec<Value>,
) -> Result<BaseManifest, String> {
    media_type_is(media_type, [OCI_MANIFEST, DOCKER_MANIFEST])?;
    media_type_is(Some(&config.media_type), [OCI_CONFIG, DOCKER_CONFIG])?;
    // OCI manifests may omit the media type, Docker manifests may not. A manifest without a media type is therefore an OCI manifest.
    let format = match media_type {
        Some(DOCKER_MANIFEST) => Format::Docker,
        _ => Format::Oci,
    };
    Ok(BaseManifest {
        format,
        config: config.blob()?,
        config_type: config.media_type,
        layers: layers
            .into_iter()
            .map(read_layer)
            .collect::<Result<_, _>>()?,
    })
}

fn read_layer(value: Value) -> Result<BaseLayer, String> {
    let descriptor = Descriptor::deserialize(&value).map_err(not_a_manifest)?;
    Ok(BaseLayer {
        blob: descriptor.blob()?,
        foreign: descriptor.is_foreign(),
        descriptor: value,
    })
}

impl Descriptor {
    fn blob(&self) -> Result<Blob, String> {
        Ok(Blob {
            digest: read_digest(&self.digest)?,
            size: self.size,
        })
    }

    fn is_foreign(&self) -> bool {
        let has_urls = self.urls.as_ref().is_some_and(|urls| !urls.is_empty());
        let marks = ["nondistributable", ".foreign."];
        has_urls || marks.iter().any(|mark| self.media_type.contains(mark))
    }
}

fn read_digest(text: &str) -> Result<Digest, String> {
    Digest::parse(text).map_err(|_| format!("the manifest contains the invalid digest {text:?}"))
}

impl Index {
    /// Returns the digest of the image for a platform. Considers only images without a CPU variant, or with the default variant (`v8` for
    /// `arm64`).
    ///
    /// # Errors
    /// Returns a message with the platforms of the index if the index has no image for the platform, or the reason why the entry for the
    /// platform is invalid.
    pub(crate) fn choose(&self, os: &str, architecture: &str) -> Result<Digest, String> {
        let entry = self
            .0
            .iter()
            .find(|entry| entry.is_for(os, architecture))
            .ok_or_else(|| {
                format!(
                    "the index has no image for {os}/{architecture}, only for {}",
                    self.platforms()
                )
            })?;
        media_type_is(entry.media_type.as_deref(), [OCI_MANIFEST, DOCKER_MANIFEST])?;
        read_digest(&entry.digest)
    }

    fn platforms(&self) -> String {
        let names: Vec<String> = self
            .0
            .iter()
            .filter_map(|entry| entry.platform.as_ref())
            .take(MAX_PLATFORMS)
            .map(Platform::name)
            .collect();
        if names.is_empty() {
            return "unnamed platforms".into();
        }
        names.join(", ")
    }
}

impl IndexEntry {
    fn is_for(&self, os: &str, architecture: &str) -> bool {
        self.platform
            .as_ref()
            .is_some_and(|platform| platform.is(os, architecture))
    }
}

impl Platform {
    fn is(&self, os: &str, architecture: &str) -> bool {
        let variant = self.variant.as_deref().unwrap_or_default();
        let default = matches!((architecture, variant), (_, "") | ("arm64", "v8"));
        self.os.as_deref() == Some(os)
            && self.architecture.as_deref() == Some(architecture)
            && default
    }

    fn name(&self) -> String {
        [&self.os, &self.architecture, &self.variant]
            .into_iter()
            .flatten()
            .map(String::as_str)
            .collect::<Vec<_>>()
            .join("/")
    }
}

/// Config and manifest of an image, as bytes to push.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Image {
    pub(crate) config: Vec<u8>,
    pub(crate) manifest: Vec<u8>,
}

/// Config of an image. `other` has the fields that [`compose`] copies unchanged.
#[derive(Deserialize, Serialize)]
struct ConfigFile {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    created: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    architecture: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    os: Option<String>,
    #[serde(default)]
    config: Option<ContainerConfig>,
    #[serde(default)]
    rootfs: Option<RootFs>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    history: Option<Vec<Value>>,
    #[serde(flatten)]
    other: Map<String, Value>,
}

#[derive(Default, Deserialize, Serialize)]
#[serde(rename_all = "PascalCase")]
struct ContainerConfig {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    user: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    entrypoint: Option<Value>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    cmd: Option<Value>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    labels: Option<BTreeMap<String, String>>,
    #[serde(flatten)]
    other: Map<String, Value>,
}

#[derive(Deserialize, Serialize)]
struct RootFs {
    #[serde(rename = "type")]
    kind: String,
    diff_ids: Vec<String>,
}

/// Composes config and manifest of the base image with `layers` appended. The same input gives the same bytes.
///
/// # Errors
/// Returns the reason why layers cannot be appended to the base image.
pub(crate) fn compose(
    base: &BaseManifest,
    base_config: &[u8],
    layers: &[Layer],
    settings: &ImageConfig,
) -> Result<Image, String> {
    let count = base.layers.len() + layers.len();
    if count > MAX_LAYERS {
        return Err(format!(
            "the image would have {count} layers, more than the limit of {MAX_LAYERS}"
        ));
    }
    let config = serde_json::to_vec(&extend(base, base_config, layers, settings)?)
        .map_err(|error| error.to_string())?;
    let own = layers.iter().map(|layer| {
        json!({
            "mediaType": base.format.layer_type(),
            "digest": layer.digest.as_str(),
            "size": layer.size,
        })
    });
    let inherited = base.layers.iter().map(|layer| layer.descriptor.clone());
    let manifest = json!({
        "schemaVersion": 2,
        "mediaType": base.format.manifest_type(),
        "config": {
            "mediaType": base.config_type,
            "digest": Digest::of(&config).as_str(),
            "size": config.len(),
        },
        "layers": inherited.chain(own).collect::<Vec<_>>(),
    });
    Ok(Image {
        config,
        manifest: manifest.to_string().into_bytes(),
    })
}

fn extend(
    base: &BaseManifest,
    base_config: &[u8],
    layers: &[Layer],
    settings: &ImageConfig,
) -> Result<ConfigFile, String> {
    let mut config: ConfigFile = serde_json::from_slice(base_config)
        .map_err(|error| format!("the image config is invalid: {error}"))?;
    config.set_platform(settings)?;
    config.append_diff_ids(base.layers.len(), layers)?;
    config.append_history(base.layers.is_empty(), layers, settings);
    config.created = Some(settings.created.clone());
    config.config.get_or_insert_default().apply(settings);
    Ok(config)
}

impl ConfigFile {
    fn set_platform(&mut self, settings: &ImageConfig) -> Result<(), String> {
        let fields = [
            (&mut self.os, &settings.os),
            (&mut self.architecture, &settings.architecture),
        ];
        for (field, wanted) in fields {
            match field.as_ref().filter(|value| !value.is_empty()) {
                Some(value) if value != wanted => {
                    return Err(format!("the image is for {value}, not for {wanted}"));
                }
                _ => *field = Some(wanted.clone()),
            }
        }
        Ok(())
    }

    fn append_diff_ids(&mut self, base_layers: usize, layers: &[Layer]) -> Result<(), String> {
        let rootfs = self.rootfs.get_or_insert_with(|| RootFs {
            kind: "layers".into(),
            diff_ids: Vec::new(),
        });
        if rootfs.kind != "layers" || rootfs.diff_ids.len() != base_layers {
            return Err(format!(
                "the image config lists {} layers, but the manifest lists {base_layers}",
                rootfs.diff_ids.len()
            ));
        }
        rootfs
            .diff_ids
            .extend(layers.iter().map(|layer| layer.diff_id.to_string()));
        Ok(())
    }

    /// Appends a history entry for each layer. Appends no entry if the base image has layers but no history: clients assign the first entry
    /// to the first layer, so the new entries would describe layers of the base image.
    fn append_history(&mut self, empty_base: bool, layers: &[Layer], settings: &ImageConfig) {
        let has_history = self
            .history
            .as_ref()
            .is_some_and(|entries| !entries.is_empty());
        if empty_base || has_history {
            self.history
                .get_or_insert_default()
                .extend(layers.iter().map(
                    |layer| json!({ "created": settings.created, "created_by": layer.created_by }),
                ));
        }
    }
}

impl ContainerConfig {
    fn apply(&mut self, settings: &ImageConfig) {
        if !settings.user.is_empty() {
            self.user = Some(settings.user.clone());
        }
        if !settings.entrypoint.is_empty() {
            self.entrypoint = Some(json!(settings.entrypoint));
            self.cmd = None;
        }
        self.labels
            .get_or_insert_default()
            .extend(settings.labels.clone());
    }
}

#[cfg(test)]
mod tests;
