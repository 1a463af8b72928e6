//! Tests that pull artifacts of modules.

use std::env::temp_dir;
use std::io::Read as _;
use std::path::Path;

use alustan_registry::{Digest, ImageRef, ModuleFormat, Options};
use serde_json::json;

use crate::support::{FakeRegistry, Fault, assert_failure, client, plain};

const FLUX_LAYER: &str = "application/vnd.cncf.flux.content.v1.tar+gzip";
const CONTENT: &[u8] = b"the files of a module";

/// Adds an artifact as `flux push artifact` writes it. `size`: size of the layer according to the manifest.
fn add_artifact(server: &FakeRegistry, content: &[u8], size: usize) -> ImageRef {
    let layer = server.add_blob("modules/net", content);
    let config = server.add_blob("modules/net", b"{}");
    server.add_manifest(
        "modules/net",
        &json!({
            "schemaVersion": 2,
            "mediaType": "application/vnd.oci.image.manifest.v1+json",
            "config": {
                "mediaType": "application/vnd.cncf.flux.config.v1+json", "digest": config.as_str(), "size": 2,
            },
            "layers": [{"mediaType": FLUX_LAYER, "digest": layer.as_str(), "size": size}],
        }),
    )
}

#[tokio::test]
async fn artifact_of_flux_is_pulled_by_the_digest_of_its_tag() {
    let server = FakeRegistry::honest().await;
    let image = add_artifact(&server, CONTENT, CONTENT.len());
    server.tag(&image, "1.2.0");
    let (client, access) = (client(Options::default()), plain(None));
    let tagged = ImageRef::tagged(image.name().clone(), "1.2.0").unwrap();
    let digest = client.digest_of(&tagged, &access).await.unwrap().unwrap();
    let pulled = client
        .pull_module(image.name(), &digest, &access, &temp_dir())
        .await
        .unwrap();
    assert_eq!(pulled.format, ModuleFormat::TarGzip);
    let mut content = Vec::new();
    let mut file = pulled.content;
    file.read_to_end(&mut content).unwrap();
    assert_eq!(content, CONTENT);
}

#[tokio::test]
async fn content_with_another_digest_is_refused() {
    let server = FakeRegistry::honest().await;
    let image = add_artifact(&server, CONTENT, CONTENT.len());
    server.set_blob("modules/net", &Digest::of(CONTENT), b"other files");
    let client = client(Options::default());
    let digest = image.digest().unwrap();
    let error = client
        .pull_module(image.name(), digest, &plain(None), &temp_dir())
        .await
        .unwrap_err();
    assert_eq!(error.reason().as_str(), "ArtifactInvalid", "{error}");
}

#[tokio::test]
async fn download_of_an_artifact_stops_at_the_limit() {
    let server = FakeRegistry::start("", |seen, _| {
        seen.path.contains("/blobs/").then_some(Fault::Endless)
    })
    .await;
    let image = add_artifact(&server, CONTENT, CONTENT.len());
    let client = client(Options::default());
    let digest = image.digest().unwrap();
    let error = client
        .pull_module(image.name(), digest, &plain(None), &temp_dir())
        .await
        .unwrap_err();
    assert!(error.to_string().contains("16777216"), "{error}");
}

#[tokio::test]
async fn folder_that_cannot_be_written_is_an_error_of_the_cache() {
    let server = FakeRegistry::honest().await;
    let image = add_artifact(&server, CONTENT, CONTENT.len());
    let digest = image.digest().unwrap();
    let missing = Path::new("/nonexistent");
    let error = client(Options::default())
        .pull_module(image.name(), digest, &plain(None), missing)
        .await
        .unwrap_err();
    assert_failure(&error, "GitCacheUnusable", true, &["/nonexistent"]);
}
