//! Push of a small image in place of a build.

use reqwest::Client;
use reqwest::header::{CONTENT_TYPE, LOCATION};
use serde_json::json;

use crate::node;
use crate::runner_stand_in::Refused;

/// Name of the registry in references of images.
const REGISTRY: &str = "registry.alustan.test:5000/";
const CONFIG: &str = "application/vnd.oci.image.config.v1+json";
const MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";

/// Pushes an image without layers as `image`, for the namespace with uid `namespace`.
pub(super) async fn push(client: &Client, image: &str, namespace: &str) -> Result<(), Refused> {
    let name = image
        .strip_prefix(REGISTRY)
        .ok_or("an image of another registry")?;
    let (repository, tag) = name.rsplit_once(':').ok_or("an image without a tag")?;
    let address = format!("http://{}", node(5000));
    let config = json!({
        "architecture": "amd64", "os": "linux", "rootfs": {"type": "layers", "diff_ids": []},
        "config": {"Labels": {alustan_api::labels::image::NAMESPACE: namespace, "image": tag}},
    })
    .to_string();
    let digest = ring::digest::digest(&ring::digest::SHA256, config.as_bytes());
    let digest = format!("sha256:{}", hex::encode(digest));
    let uploads = format!("{address}/v2/{repository}/blobs/uploads/");
    let upload = client.post(uploads).send().await?.error_for_status()?;
    let place = upload
        .headers()
        .get(LOCATION)
        .ok_or("no upload")?
        .to_str()?;
    let place = place.strip_prefix(&address).unwrap_or(place);
    let separator = if place.contains('?') { '&' } else { '?' };
    let size = config.len();
    client
        .put(format!("{address}{place}{separator}digest={digest}"))
        .header(CONTENT_TYPE, "application/octet-stream")
        .body(config)
        .send()
        .await?
        .error_for_status()?;
    let manifest = json!({
        "schemaVersion": 2, "mediaType": MANIFEST,
        "config": {"mediaType": CONFIG, "digest": digest, "size": size}, "layers": [],
    });
    client
        .put(format!("{address}/v2/{repository}/manifests/{tag}"))
        .header(CONTENT_TYPE, MANIFEST)
        .body(manifest.to_string())
        .send()
        .await?
        .error_for_status()?;
    Ok(())
}
