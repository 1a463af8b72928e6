//! Contexts to and from a real registry.

use std::fs;

use alustan_registry::{Access, Digest, ImageName, ImageRef, Options, context_tag};
use bytes::Bytes;

use crate::support::{
    DockerRegistry, PASSWORD, Setting, USER, basic, client, name, plain, tag, told,
};

const CONTEXT: &[u8] = b"the bytes of a context";

#[tokio::test]
async fn a_context_goes_there_and_back() {
    let (server, client) = (
        DockerRegistry::start(Setting::default()),
        client(Options::default()),
    );
    let (name, access) = (name(&server.host()), plain(None));
    let context = Digest::of(CONTEXT);
    let manifest = client
        .push_context(&name, &context, CONTEXT.into(), &access)
        .await
        .unwrap();
    let found = client
        .digest_of(&tag(&server.host(), &context_tag(&context)), &access)
        .await
        .unwrap();
    assert_eq!(
        found.as_ref(),
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
async fn what_is_there_is_not_pushed_again() {
    let (server, client) = (
        DockerRegistry::start(Setting::default()),
        client(Options::default()),
    );
    let (name, access, context) = (name(&server.host()), plain(None), Digest::of(CONTEXT));
    let first = client
        .push_context(&name, &context, CONTEXT.into(), &access)
        .await
        .unwrap();
    let (posts, puts) = (server.requests("POST"), server.requests("PUT"));
    assert_eq!((posts, puts), (2, 3), "two blobs and a manifest");
    let second = client
        .push_context(&name, &context, CONTEXT.into(), &access)
        .await
        .unwrap();
    assert_eq!(
        (first, posts, puts),
        (second, server.requests("POST"), server.requests("PUT"))
    );
}

#[tokio::test]
async fn a_tag_that_points_elsewhere_is_set_right() {
    let (server, client) = (
        DockerRegistry::start(Setting::default()),
        client(Options::default()),
    );
    let (name, access, context) = (name(&server.host()), plain(None), Digest::of(CONTEXT));
    let manifest = client
        .push_context(&name, &context, CONTEXT.into(), &access)
        .await
        .unwrap();
    push_image(&server, &context_tag(&context)).await;
    let image = tag(&server.host(), &context_tag(&context));
    assert_ne!(
        client.digest_of(&image, &access).await.unwrap().as_ref(),
        Some(&manifest)
    );
    client
        .push_context(&name, &context, CONTEXT.into(), &access)
        .await
        .unwrap();
    assert_eq!(
        client.digest_of(&image, &access).await.unwrap().as_ref(),
        Some(&manifest)
    );
}

#[tokio::test]
async fn a_large_context_goes_there_and_back() {
    let (server, client) = (
        DockerRegistry::start(Setting::default()),
        client(Options::default()),
    );
    let (name, access) = (name(&server.host()), plain(None));
    let bytes: Bytes = (0..12_000_000_u32)
        .map(|n| (n.wrapping_mul(2_654_435_761) >> 24) as u8)
        .collect();
    let manifest = client
        .push_context(&name, &Digest::of(&bytes), bytes.clone(), &access)
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
        .push_context(&name("127.0.0.1:1"), &context, CONTEXT.into(), &plain(None))
        .await
        .unwrap_err();
    told(&error, "ContextDamaged", false, &["not those of sha256:"]);
}

#[tokio::test]
async fn what_is_no_context_or_not_there_is_told() {
    let (server, client) = (
        DockerRegistry::start(Setting::default()),
        client(Options::default()),
    );
    let (name, access) = (name(&server.host()), plain(None));
    let error = client
        .pull_context(&name, &Digest::of(b"nothing"), &access)
        .await
        .unwrap_err();
    told(
        &error,
        "ImageNotFound",
        false,
        &["pull the context 127.0.0.1"],
    );
    let image = push_image(&server, "image").await;
    let error = client
        .pull_context(&name, &image, &access)
        .await
        .unwrap_err();
    told(&error, "ContextDamaged", false, &["artifact type"]);
}

#[tokio::test]
async fn damage_in_the_registry_is_noticed() {
    let (server, client) = (
        DockerRegistry::start(Setting::default()),
        client(Options::default()),
    );
    let (name, access, context) = (name(&server.host()), plain(None), Digest::of(CONTEXT));
    let manifest = client
        .push_context(&name, &context, CONTEXT.into(), &access)
        .await
        .unwrap();
    fs::write(server.blob(context.as_str()), vec![b'x'; CONTEXT.len()]).unwrap();
    let error = client
        .pull_context(&name, &manifest, &access)
        .await
        .unwrap_err();
    told(
        &error,
        "ContextDamaged",
        false,
        &["not those of its digest"],
    );
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
            .push_context(&name, &Digest::of(CONTEXT), CONTEXT.into(), &access)
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

/// Pushes something that is an image and no context.
async fn push_image(server: &DockerRegistry, tag: &str) -> Digest {
    use oci_client::{client as oci, secrets::RegistryAuth};
    let config = oci::ClientConfig {
        protocol: oci::ClientProtocol::Http,
        ..oci::ClientConfig::default()
    };
    let client = oci_client::Client::new(config);
    let layer = oci::ImageLayer::oci_v1(&b"layer"[..], None);
    let config = oci::Config::oci_v1(&b"{}"[..], None);
    let image = oci_client::Reference::with_tag(server.host(), "team/x".into(), tag.into());
    client
        .push(&image, &[layer], config, &RegistryAuth::Anonymous, None)
        .await
        .unwrap();
    let digest = client
        .fetch_manifest_digest(&image, &RegistryAuth::Anonymous)
        .await
        .unwrap();
    Digest::parse(&digest).unwrap()
}
