//! Tests that push and pull contexts with a real registry.

use std::fs;

use alustan_registry::{
    ARTIFACT_TYPE, Access, Digest, ImageName, ImageRef, LAYER_TYPE, Options, Registry, context_tag,
};
use bytes::Bytes;
use rstest::rstest;
use serde_json::json;

use crate::prune::push;
use crate::support::{
    DockerRegistry, FakeRegistry, Fault, PASSWORD, Setting, USER, assert_failure, basic, client,
    file, name, plain, tag,
};

const CONTEXT: &[u8] = b"the bytes of a context";

/// Pushes [`CONTEXT`] without credentials. Returns the digest of its manifest.
async fn push_context(client: &Registry, name: &ImageName) -> Digest {
    client
        .push_context(name, &Digest::of(CONTEXT), &file(CONTEXT), &plain(None))
        .await
        .unwrap()
}

#[tokio::test]
async fn context_is_pushed_and_pulled_unchanged() {
    let server = DockerRegistry::start(Setting::default());
    let client = client(Options::default());
    let (name, access) = (name(&server.host()), plain(None));
    let context = Digest::of(CONTEXT);
    let manifest = push_context(&client, &name).await;
    let by_tag = client
        .digest_of(&tag(&server.host(), &context_tag(&context)), &access)
        .await
        .unwrap();
    assert_eq!(
        by_tag.as_ref(),
        Some(&manifest),
        "the registry has it under the tag"
    );
    let by_digest = ImageRef::by_digest(name.clone(), manifest.clone());
    assert_eq!(
        client
            .digest_of(&by_digest, &access)
            .await
            .unwrap()
            .as_ref(),
        Some(&manifest)
    );
    assert_eq!(
        client
            .pull_context(&name, &manifest, &access)
            .await
            .unwrap(),
        CONTEXT
    );
    let stored = fs::read_to_string(server.blob(manifest.as_str())).unwrap();
    assert!(
        stored.contains("\"artifactType\":\"application/vnd.alustan.context.v1\""),
        "{stored}"
    );
}

#[tokio::test]
async fn existing_context_is_not_pushed_again() {
    let server = DockerRegistry::start(Setting::default());
    let client = client(Options::default());
    let name = name(&server.host());
    let first = push_context(&client, &name).await;
    let (posts, puts) = (server.requests("POST"), server.requests("PUT"));
    assert_eq!((posts, puts), (2, 3), "two blobs and a manifest");
    let second = push_context(&client, &name).await;
    assert_eq!(
        (first, posts, puts),
        (second, server.requests("POST"), server.requests("PUT"))
    );
}

#[tokio::test]
async fn tag_of_another_manifest_is_corrected() {
    let server = DockerRegistry::start(Setting::default());
    let client = client(Options::default());
    let (name, access, context) = (name(&server.host()), plain(None), Digest::of(CONTEXT));
    let manifest = push_context(&client, &name).await;
    push(&server.host(), &context_tag(&context), json!({})).await;
    let image = tag(&server.host(), &context_tag(&context));
    assert_ne!(
        client.digest_of(&image, &access).await.unwrap().as_ref(),
        Some(&manifest)
    );
    push_context(&client, &name).await;
    assert_eq!(
        client.digest_of(&image, &access).await.unwrap().as_ref(),
        Some(&manifest)
    );
}

#[tokio::test]
async fn large_context_is_pushed_and_pulled_unchanged() {
    let server = DockerRegistry::start(Setting::default());
    let client = client(Options::default());
    let (name, access) = (name(&server.host()), plain(None));
    let bytes: Bytes = (0..12_000_000_u32)
        .map(|n| (n.wrapping_mul(2_654_435_761) >> 24) as u8)
        .collect();
    let manifest = client
        .push_context(&name, &Digest::of(&bytes), &file(&bytes), &access)
        .await
        .unwrap();
    assert!(
        client
            .pull_context(&name, &manifest, &access)
            .await
            .unwrap()
            == bytes
    );
}

#[tokio::test]
async fn bytes_of_another_digest_are_not_pushed() {
    let client = client(Options::default());
    let context = Digest::of(b"other");
    let error = client
        .push_context(&name("127.0.0.1:1"), &context, &file(CONTEXT), &plain(None))
        .await
        .unwrap_err();
    assert_failure(&error, "ContextDamaged", false, &["does not match sha256:"]);
}

#[tokio::test]
async fn pull_of_missing_or_other_artifact_is_an_error() {
    let server = DockerRegistry::start(Setting::default());
    let client = client(Options::default());
    let (name, access) = (name(&server.host()), plain(None));
    let error = client
        .pull_context(&name, &Digest::of(b"nothing"), &access)
        .await
        .unwrap_err();
    assert_failure(
        &error,
        "ImageNotFound",
        false,
        &["pull the context 127.0.0.1"],
    );
    let image = push(&server.host(), "image", json!({})).await;
    let error = client
        .pull_context(&name, &image, &access)
        .await
        .unwrap_err();
    assert_failure(&error, "ContextDamaged", false, &["artifact type"]);
}

#[tokio::test]
async fn damaged_context_in_the_registry_is_detected() {
    let server = DockerRegistry::start(Setting::default());
    let client = client(Options::default());
    let (name, access, context) = (name(&server.host()), plain(None), Digest::of(CONTEXT));
    let manifest = push_context(&client, &name).await;
    fs::write(server.blob(context.as_str()), vec![b'x'; CONTEXT.len()]).unwrap();
    let error = client
        .pull_context(&name, &manifest, &access)
        .await
        .unwrap_err();
    assert_failure(&error, "ContextDamaged", false, &["does not match sha256:"]);
}

#[tokio::test]
async fn credentials_open_a_private_registry_with_tls() {
    let server = DockerRegistry::start(Setting {
        htpasswd: true,
        tls: true,
        ..Setting::default()
    });
    let client = client(Options {
        ca_pem: vec![server.ca.clone().unwrap()],
        ..Options::default()
    });
    let access = Access::with(Some(basic(USER, PASSWORD)));
    let host = server.host().replace("127.0.0.1", "localhost");
    for host in [server.host(), host] {
        let name = ImageName::parse(&format!("{host}/team/x")).unwrap();
        let manifest = client
            .push_context(&name, &Digest::of(CONTEXT), &file(CONTEXT), &access)
            .await
            .unwrap();
        assert_eq!(
            client
                .pull_context(&name, &manifest, &access)
                .await
                .unwrap(),
            CONTEXT
        );
    }
}

/// Starts a fake registry without support for `HEAD`. The registry answers a `GET` with an endless body if the requested path contains
/// `path`.
async fn endless(path: &'static str) -> FakeRegistry {
    FakeRegistry::start("", move |seen, _| {
        let is_read = seen.path.contains(path);
        match seen.method.as_str() {
            "HEAD" => Some(Fault::Status(405)),
            "GET" if is_read => Some(Fault::Endless),
            _ => None,
        }
    })
    .await
}

#[tokio::test]
async fn endless_manifest_response_is_refused() {
    let server = endless("/manifests/").await;
    let client = client(Options::default());
    let image = tag(&server.host, "image");
    let error = client.digest_of(&image, &plain(None)).await.unwrap_err();
    assert_failure(&error, "RegistryError", false, &["larger than"]);
}

#[rstest]
#[case("/manifests/")]
#[case("/blobs/")]
#[tokio::test]
async fn endless_context_is_not_pulled(#[case] path: &'static str) {
    let server = endless(path).await;
    let repository = server.name("team/x");
    let layer = server.add_blob("team/x", CONTEXT);
    server.add_blob("team/x", b"{}");
    let manifest = json!({
        "schemaVersion": 2, "artifactType": ARTIFACT_TYPE, "config": {"digest": Digest::of(b"{}").as_str()},
        "layers": [{"mediaType": LAYER_TYPE, "digest": layer.as_str(), "size": CONTEXT.len()}],
    });
    let image = server.add_manifest("team/x", &manifest);
    let client = client(Options {
        context_bytes: 1 << 20,
        ..Options::default()
    });
    let access = plain(None);
    let error = client
        .pull_context(&repository, image.digest().unwrap(), &access)
        .await
        .unwrap_err();
    assert_failure(&error, "RegistryError", false, &["larger than"]);
}
