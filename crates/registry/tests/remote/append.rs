//! Tests that append layers to base images.

use std::{
    collections::BTreeMap,
    fs,
    sync::atomic::{AtomicBool, Ordering},
    time::Duration,
};

use alustan_registry::{
    Access, Credential, Digest, Error, ImageConfig, ImageRef, Layer, Options, Registry,
};
use rstest::rstest;
use serde_json::json;
use tempfile::TempDir;

use crate::support::{
    DockerRegistry, FakeRegistry, Fault, OCI_INDEX, OCI_LAYER, PASSWORD, Seen, Setting, USER,
    assert_failure, basic, client, plain,
};

const PROVIDERS: &[u8] = &[b'p'; 300_000];
const MODULE: &[u8] = b"the module";
const BASE: [&[u8]; 2] = [b"base 1", b"base 2"];
/// Value of the `Authorization` header for [`USER`] and [`PASSWORD`].
const BASIC: &str = "Basic bWU6aHVudGVyMg==";
const UPLOADS: &str = "/v2/team/app/blobs/uploads/";
const BLOB_UNKNOWN: &str = r#"{"errors":[{"code":"MANIFEST_BLOB_UNKNOWN","message":"gone"}]}"#;

/// Layers in files of a temporary folder.
struct Layers {
    folder: TempDir,
    layers: Vec<Layer>,
}

fn layers(contents: &[&[u8]]) -> Layers {
    let folder = tempfile::tempdir().unwrap();
    let layer = |(at, content): (usize, &&[u8])| {
        let file = folder.path().join(at.to_string());
        fs::write(&file, content).unwrap();
        Layer {
            file,
            digest: Digest::of(content),
            diff_id: Digest::of(&[content, &b".tar"[..]].concat()),
            size: content.len() as u64,
            created_by: format!("layer {at}"),
        }
    };
    let layers = contents.iter().enumerate().map(layer).collect();
    Layers { folder, layers }
}

fn config() -> ImageConfig {
    ImageConfig {
        user: "65532:65532".into(),
        entrypoint: vec!["/runner".into()],
        labels: BTreeMap::from([("io.alustan.namespace".into(), "uid".into())]),
        created: "2024-05-06T07:08:09Z".into(),
        architecture: "amd64".into(),
        os: "linux".into(),
    }
}

/// Returns a client with a retry delay of 1 ms.
fn eager() -> Registry {
    client(Options {
        retry_delay: Duration::from_millis(1),
        ..Options::default()
    })
}

fn target(server: &FakeRegistry) -> ImageRef {
    ImageRef::tagged(server.name("team/app"), "new").unwrap()
}

/// Appends [`PROVIDERS`] and [`MODULE`] to `base` and pushes the image to `server`, without credentials.
async fn append(base: &ImageRef, server: &FakeRegistry) -> Result<Digest, Error> {
    append_with(base, &plain(None), server, &plain(None)).await
}

async fn append_with(
    base: &ImageRef,
    base_access: &Access,
    server: &FakeRegistry,
    access: &Access,
) -> Result<Digest, Error> {
    append_by(&eager(), base, base_access, server, access).await
}

async fn append_by(
    client: &Registry,
    base: &ImageRef,
    base_access: &Access,
    server: &FakeRegistry,
    access: &Access,
) -> Result<Digest, Error> {
    let layers = layers(&[PROVIDERS, MODULE]);
    let target = target(server);
    let config = config();
    let append = client.append(base, base_access, &target, access, &layers.layers, &config);
    is_send(append).await
}

/// Returns `future`. Compiles only if `future` is `Send`, because callers of the crate must be able to spawn the future.
fn is_send<T: Send>(future: T) -> T {
    future
}

/// Starts a fake registry with the base image.
async fn with_base(
    faults: impl Fn(&Seen, usize) -> Option<Fault> + Send + Sync + 'static,
) -> (FakeRegistry, ImageRef) {
    let server = FakeRegistry::start("", faults).await;
    let base = server.add_image("team/base", "amd64", &BASE);
    (server, base)
}

/// Asserts that the pushed image has all layers, and that the registry has the content of each layer.
fn is_complete(server: &FakeRegistry, digest: &Digest) {
    let manifest = server.manifest("team/app", "new").expect("no tag");
    let bytes = manifest.to_string();
    assert_eq!(Digest::of(bytes.as_bytes()), *digest);
    let layers = manifest["layers"].as_array().unwrap();
    let contents = BASE.into_iter().chain([PROVIDERS, MODULE]);
    assert_eq!(layers.len(), 4);
    for (layer, content) in layers.iter().zip(contents) {
        let digest = layer["digest"].as_str().unwrap();
        assert_eq!(layer["mediaType"], OCI_LAYER);
        assert_eq!(server.blob("team/app", digest).as_deref(), Some(content));
    }
}

fn is_not_pushed(server: &FakeRegistry) {
    assert!(server.manifest("team/app", "new").is_none());
    assert!(server.requests("PUT", "/manifests/").is_empty());
}

fn is_put(seen: &Seen) -> bool {
    seen.method == "PUT" && seen.path.starts_with(UPLOADS)
}

fn is_manifest_put(seen: &Seen) -> bool {
    seen.method == "PUT" && seen.path.contains("/manifests/")
}

/// Returns the digest of the image that [`append`] pushes to a registry without faults. The digest does not depend on the registry.
async fn predicted() -> Digest {
    let (server, base) = with_base(|_, _| None).await;
    append(&base, &server).await.unwrap()
}

#[tokio::test]
async fn base_layers_of_the_same_registry_are_mounted() {
    let (server, base) = with_base(|_, _| None).await;
    let digest = append(&base, &server).await.unwrap();
    is_complete(&server, &digest);
    assert_eq!(server.requests("POST", "from=team%2Fbase").len(), 2);
    for layer in BASE {
        let path = format!("/v2/team/base/blobs/{}", Digest::of(layer));
        assert!(server.requests("GET", &path).is_empty(), "mounted");
    }
    let config = server.manifest("team/app", "new").unwrap()["config"]["digest"].clone();
    let config = server.blob("team/app", config.as_str().unwrap()).unwrap();
    let config: serde_json::Value = serde_json::from_slice(&config).unwrap();
    assert_eq!(config["config"]["Entrypoint"], json!(["/runner"]));
    assert_eq!(config["history"].as_array().unwrap().len(), 4);
}

#[tokio::test]
async fn same_input_gives_the_same_digest_in_any_registry() {
    let mut digests = Vec::new();
    for _ in 0..2 {
        let (server, base) = with_base(|_, _| None).await;
        digests.push(append(&base, &server).await.unwrap());
    }
    assert_eq!(digests[0], digests[1]);
}

#[tokio::test]
async fn upload_session_from_a_mount_response_is_used() {
    let (server, base) = with_base(|seen, _| {
        let place = vec![("Location", "mounted/7?x=y".to_owned())];
        let is_mount = seen.fields.contains("mount=");
        is_mount.then(|| Fault::Answer(202, place, String::new()))
    })
    .await;
    let digest = append(&base, &server).await.unwrap();
    is_complete(&server, &digest);
    let place = format!("{UPLOADS}mounted/7?x=y&digest=");
    assert_eq!(server.requests("PUT", &place).len(), BASE.len());
}

#[rstest]
#[tokio::test]
async fn refused_mount_is_copied(#[values(401, 403, 404, 405, 400, 500, 503)] status: u16) {
    let (server, base) = with_base(move |seen, _| {
        let is_mount = seen.fields.contains("mount=");
        is_mount.then_some(Fault::Status(status))
    })
    .await;
    let digest = append(&base, &server).await.unwrap();
    is_complete(&server, &digest);
    assert!(!server.requests("POST", "mount=").is_empty());
}

#[tokio::test]
async fn refused_mount_token_is_replaced_before_layers_are_copied() {
    let is_first = AtomicBool::new(true);
    let server = FakeRegistry::start("Bearer", move |seen, _| {
        let is_mount = seen.fields.contains("mount=");
        let is_refused = is_mount && is_first.swap(false, Ordering::Relaxed);
        is_refused.then_some(Fault::Status(401))
    })
    .await;
    let base = server.add_image("team/base", "amd64", &BASE);
    let digest = append(&base, &server).await.unwrap();
    is_complete(&server, &digest);
    assert_eq!(server.requests("POST", "mount=").len(), BASE.len() + 1);
    for layer in BASE {
        let path = format!("/v2/team/base/blobs/{}", Digest::of(layer));
        assert!(server.requests("GET", &path).is_empty(), "mounted");
    }
}

#[tokio::test]
async fn refused_mount_scope_is_requested_once_then_copied() {
    let server = FakeRegistry::start("Bearer", |seen, _| {
        let both = seen.path == "/token" && seen.fields.contains("base%3Apull");
        let both = both && seen.fields.contains("app%3Apull%2Cpush");
        both.then_some(Fault::Status(403))
    })
    .await;
    let layers: Vec<Vec<u8>> = (0..9_u8).map(|at| vec![at; 9]).collect();
    let layers: Vec<&[u8]> = layers.iter().map(Vec::as_slice).collect();
    let base = server.add_image("team/base", "amd64", &layers);
    append(&base, &server).await.unwrap();
    assert!(server.requests("POST", "mount=").is_empty());
    let requests = server.requests(
        "GET",
        "app%3Apull%2Cpush&scope=repository%3Ateam%2Fbase%3Apull",
    );
    assert_eq!(requests.len(), 1, "{requests:?}");
    let read = server.requests("GET", "/blobs/");
    assert_eq!(read.len(), layers.len() + 1, "layers and config: {read:?}");
}

#[tokio::test]
async fn mount_uses_a_token_for_both_repositories() {
    let server = FakeRegistry::start("Bearer", |_, _| None).await;
    let base = server.add_image("team/base", "amd64", &BASE);
    let access = plain(basic(USER, PASSWORD));
    let digest = append_with(&base, &plain(None), &server, &access).await;
    is_complete(&server, &digest.unwrap());
    let both = "scope=repository%3Ateam%2Fapp%3Apull%2Cpush&scope=repository%3Ateam%2Fbase%3Apull";
    let requests = server.requests("GET", both);
    assert_eq!(requests.len(), 1);
    assert_eq!(requests[0].authorization, BASIC, "the target's credentials");
    let read = server.requests("GET", "?scope=repository%3Ateam%2Fbase%3Apull&");
    assert_eq!(read.len(), 1);
    assert_eq!(read[0].authorization, "", "the base's credentials");
}

#[tokio::test]
async fn refresh_token_is_exchanged_for_both_repositories() {
    let server = FakeRegistry::start("Bearer", |_, _| None).await;
    let base = server.add_image("team/base", "amd64", &BASE);
    let access = plain(Credential::Identity("refresh-me".into()));
    let digest = append_with(&base, &plain(None), &server, &access).await;
    is_complete(&server, &digest.unwrap());
    let both = "scope=repository%3Ateam%2Fapp%3Apull%2Cpush+repository%3Ateam%2Fbase%3Apull&";
    assert_eq!(server.requests("POST", both).len(), 1);
    assert_eq!(server.requests("POST", "mount=").len(), BASE.len());
}

#[tokio::test]
async fn base_of_another_registry_is_copied_with_its_own_credentials() {
    let other = FakeRegistry::start("Basic dTpw", |_, _| None).await;
    let server = FakeRegistry::start(BASIC, |_, _| None).await;
    let base = other.add_image("team/base", "amd64", &BASE);
    let read = plain(basic("u", "p"));
    let push = plain(basic(USER, PASSWORD));
    let digest = append_with(&base, &read, &server, &push).await.unwrap();
    is_complete(&server, &digest);
    assert!(server.requests("POST", "mount=").is_empty());
    let sent_to = |server: &FakeRegistry, authorization: &str| {
        let mut sent = server.seen().into_iter().map(|seen| seen.authorization);
        sent.all(|sent| sent.is_empty() || sent == authorization)
    };
    assert!(sent_to(&other, "Basic dTpw") && sent_to(&server, BASIC));
}

#[tokio::test]
async fn repository_with_the_base_needs_neither_mount_nor_copy() {
    let server = FakeRegistry::honest().await;
    let base = server.add_image("team/app", "amd64", &BASE);
    let digest = append(&base, &server).await.unwrap();
    is_complete(&server, &digest);
    assert_eq!(server.requests("POST", UPLOADS).len(), 3);
    assert!(server.requests("POST", "mount=").is_empty());
}

#[tokio::test]
async fn module_change_pushes_one_layer_config_and_manifest() {
    let (server, base) = with_base(|_, _| None).await;
    append(&base, &server).await.unwrap();
    let before = server.seen().len();
    let changed = layers(&[PROVIDERS, b"another module"]);
    let config = config();
    let image = ImageRef::tagged(server.name("team/app"), "second").unwrap();
    let access = plain(None);
    eager()
        .append(&base, &access, &image, &access, &changed.layers, &config)
        .await
        .unwrap();
    let after = server.seen().split_off(before);
    let sent: Vec<&Seen> = after
        .iter()
        .filter(|seen| ["POST", "PUT", "PATCH"].contains(&seen.method.as_str()))
        .collect();
    let methods: Vec<&str> = sent.iter().map(|seen| seen.method.as_str()).collect();
    assert_eq!(methods, ["POST", "PUT", "POST", "PUT", "PUT"]);
    assert_eq!(sent[1].bytes, "another module".len());
    let bytes: usize = sent.iter().map(|seen| seen.bytes).sum();
    assert!(bytes < 3000, "{bytes}");
}

#[tokio::test]
async fn existing_tag_wins() {
    let (server, base) = with_base(|_, _| None).await;
    let existing = server.add_image("team/app", "amd64", &[b"other"]);
    server.tag(&existing, "new");
    let digest = append(&base, &server).await.unwrap();
    assert_eq!(Some(&digest), existing.digest());
    assert!(server.requests("POST", "").is_empty());
    assert!(server.requests("PUT", "").is_empty());
    assert!(server.requests("GET", "team/base").is_empty());
}

#[tokio::test]
async fn tag_created_during_the_push_wins() {
    let (server, base) = with_base(|seen, before| {
        let is_tag = seen.path == "/v2/team/app/manifests/new";
        (is_tag && seen.method != "PUT" && before == 0).then_some(Fault::Status(404))
    })
    .await;
    let other = server.add_image("team/app", "amd64", &[b"other"]);
    server.tag(&other, "new");
    let digest = append(&base, &server).await.unwrap();
    assert_eq!(Some(&digest), other.digest());
    assert!(server.requests("PUT", "/manifests/").is_empty());
    assert!(!server.requests("PUT", UPLOADS).is_empty());
}

#[rstest]
#[case(400, "TAG_INVALID")]
#[case(403, "DENIED")]
#[case(409, "UNKNOWN")]
#[case(412, "PRECONDITION")]
#[tokio::test]
async fn tag_created_concurrently_wins_if_it_is_immutable(#[case] status: u16, #[case] code: &str) {
    let body = format!(r#"{{"errors":[{{"code":"{code}","message":"immutable"}}]}}"#);
    let (server, base) = with_base(move |seen, before| {
        let tag = seen.path == "/v2/team/app/manifests/new";
        match seen.method.as_str() {
            "HEAD" | "GET" if tag && before < 2 => Some(Fault::Status(404)),
            "PUT" if tag => Some(Fault::Answer(status, Vec::new(), body.clone())),
            _ => None,
        }
    })
    .await;
    let other = server.add_image("team/app", "amd64", &[b"other"]);
    server.tag(&other, "new");
    let digest = append(&base, &server).await.unwrap();
    assert_eq!(Some(&digest), other.digest());
}

#[tokio::test]
async fn refused_manifest_without_a_tag_is_an_error() {
    let (server, base) = with_base(|seen, _| {
        let is_put = seen.method == "PUT" && seen.path.contains("/manifests/");
        is_put.then_some(Fault::Status(412))
    })
    .await;
    let error = append(&base, &server).await.unwrap_err();
    assert_failure(&error, "RegistryError", false, &["push the image", "412"]);
}

#[tokio::test]
async fn unexpected_manifest_digest_is_an_error() {
    let wrong = Digest::of(b"wrong").to_string();
    let (server, base) = with_base(move |seen, _| {
        let is_put = seen.method == "PUT" && seen.path.contains("/manifests/");
        let headers = vec![("Docker-Content-Digest", wrong.clone())];
        is_put.then(|| Fault::Answer(201, headers, String::new()))
    })
    .await;
    let error = append(&base, &server).await.unwrap_err();
    let wrong = Digest::of(b"wrong").to_string();
    assert_failure(&error, "RegistryError", false, &[&wrong]);
}

#[rstest]
#[case(200)]
#[case(202)]
#[case(204)]
#[tokio::test]
async fn manifest_accepted_without_digest_is_an_error(#[case] status: u16) {
    let (server, base) =
        with_base(move |seen, _| is_manifest_put(seen).then_some(Fault::Status(status))).await;
    let error = append(&base, &server).await.unwrap_err();
    assert_failure(&error, "RegistryError", false, &[&status.to_string()]);
}

#[rstest]
#[case(200)]
#[case(202)]
#[tokio::test]
async fn accepted_manifest_with_its_digest_is_stored(#[case] status: u16) {
    let expected = predicted().await;
    let headers = vec![("Docker-Content-Digest", expected.to_string())];
    let (server, base) = with_base(move |seen, _| {
        let answer = Fault::Answer(status, headers.clone(), String::new());
        is_manifest_put(seen).then_some(answer)
    })
    .await;
    assert_eq!(append(&base, &server).await.unwrap(), expected);
}

#[rstest]
#[case::stored(false)]
#[case::not_stored(true)]
#[tokio::test]
async fn manifest_put_without_a_digest_is_verified(#[case] is_lost: bool) {
    let expected = predicted().await;
    let headers = vec![("Docker-Content-Digest", expected.to_string())];
    let (server, base) = with_base(move |seen, before| {
        let is_tag = seen.path.ends_with("/manifests/new");
        match seen.method.as_str() {
            "PUT" if is_tag => Some(Fault::Status(201)),
            "HEAD" if is_tag && before == 2 && !is_lost => {
                Some(Fault::Answer(200, headers.clone(), String::new()))
            }
            _ => None,
        }
    })
    .await;
    let result = append(&base, &server).await;
    if is_lost {
        assert_failure(
            &result.unwrap_err(),
            "RegistryError",
            false,
            &["did not store"],
        );
    } else {
        assert_eq!(result.unwrap(), expected);
    }
}

#[rstest]
#[tokio::test]
async fn redirect_of_a_write_to_another_host_is_not_followed(
    #[values(
        "POST /v2/team/app/blobs",
        "PUT /v2/team/app/blobs",
        "PUT /v2/team/app/manifests"
    )]
    write: &'static str,
    #[values(301, 302, 303, 307, 308)] status: u16,
) {
    let other = FakeRegistry::start("", |_, _| Some(Fault::Status(201))).await;
    let host = other.host.clone();
    let (server, base) = with_base(move |seen, _| {
        let place = vec![("Location", format!("http://{host}{}", seen.path))];
        let is_write = format!("{} {}", seen.method, seen.path).starts_with(write);
        is_write.then(|| Fault::Answer(status, place, String::new()))
    })
    .await;
    let error = append(&base, &server).await.unwrap_err();
    assert_failure(&error, "RegistryError", false, &["redirect"]);
    assert!(other.seen().is_empty(), "{:?}", other.seen());
}

#[tokio::test]
async fn redirect_of_an_upload_is_an_error() {
    let (server, base) = with_base(|seen, before| {
        let place = vec![("Location", seen.path.clone())];
        let is_first = is_put(seen) && before == 0;
        is_first.then(|| Fault::Answer(307, place, String::new()))
    })
    .await;
    let error = append(&base, &server).await.unwrap_err();
    assert_failure(&error, "RegistryError", false, &["redirect"]);
    is_not_pushed(&server);
}

#[tokio::test]
async fn redirect_of_a_deletion_to_another_host_is_not_followed() {
    let other = FakeRegistry::honest().await;
    let place = format!("http://{}/", other.host);
    let (_server, base) = with_base(move |seen, _| {
        let answer = Fault::Answer(307, vec![("Location", place.clone())], String::new());
        (seen.method == "DELETE").then_some(answer)
    })
    .await;
    let error = eager()
        .delete(base.name(), base.digest().unwrap(), &plain(None))
        .await
        .unwrap_err();
    assert_failure(&error, "RegistryError", false, &["redirect"]);
    assert!(other.seen().is_empty());
}

#[rstest]
#[case(303, false)]
#[case(307, true)]
#[tokio::test]
async fn redirect_of_a_write_in_the_registry_keeps_the_method(
    #[case] status: u16,
    #[case] is_followed: bool,
) {
    let (server, base) = with_base(move |seen, before| {
        let place = vec![("Location", seen.path.clone())];
        let is_first = is_manifest_put(seen) && before == 0;
        is_first.then(|| Fault::Answer(status, place, String::new()))
    })
    .await;
    let result = append(&base, &server).await;
    if is_followed {
        is_complete(&server, &result.unwrap());
    } else {
        assert_failure(&result.unwrap_err(), "RegistryError", false, &["redirect"]);
    }
}

#[rstest]
#[case(404, "")]
#[case(404, "BLOB_UPLOAD_UNKNOWN")]
#[case(400, "BLOB_UPLOAD_INVALID")]
#[case(400, "DIGEST_INVALID")]
#[case(416, "")]
#[case(204, "")]
#[tokio::test]
async fn lost_upload_session_is_replaced(#[case] status: u16, #[case] code: &str) {
    let body = format!(r#"{{"errors":[{{"code":"{code}","message":"lost"}}]}}"#);
    let (server, base) = with_base(move |seen, before| {
        let is_first = is_put(seen) && before == 0;
        is_first.then(|| Fault::Answer(status, Vec::new(), body.clone()))
    })
    .await;
    let digest = append(&base, &server).await.unwrap();
    is_complete(&server, &digest);
    let begun = server.requests("POST", UPLOADS).len() - server.requests("POST", "mount=").len();
    assert_eq!(begun, 4, "two layers and the config, one of them twice");
}

#[tokio::test]
async fn upload_session_that_is_always_lost_is_an_error() {
    let (server, base) = with_base(|seen, _| is_put(seen).then_some(Fault::Status(404))).await;
    let error = append(&base, &server).await.unwrap_err();
    assert_failure(&error, "RegistryError", true, &["upload session"]);
    assert!(server.requests("PUT", UPLOADS).len() <= 2 * 4);
    is_not_pushed(&server);
}

#[rstest]
#[case(400)]
#[case(404)]
#[tokio::test]
async fn manifest_with_an_unknown_blob_is_pushed_again(#[case] status: u16) {
    let (server, base) = with_base(move |seen, before| {
        let is_first = is_manifest_put(seen) && before == 0;
        is_first.then(|| Fault::Answer(status, Vec::new(), BLOB_UNKNOWN.into()))
    })
    .await;
    let digest = append(&base, &server).await.unwrap();
    is_complete(&server, &digest);
    assert_eq!(server.requests("PUT", UPLOADS).len(), 2 * 3);
    assert_eq!(server.requests("POST", "mount=").len(), 2 * BASE.len());
}

#[tokio::test]
async fn manifest_with_a_blob_that_stays_unknown_is_an_error() {
    let (server, base) = with_base(|seen, _| {
        let answer = Fault::Answer(404, Vec::new(), BLOB_UNKNOWN.into());
        is_manifest_put(seen).then_some(answer)
    })
    .await;
    let error = append(&base, &server).await.unwrap_err();
    assert_failure(&error, "RegistryError", false, &["lost a pushed blob"]);
    assert_eq!(server.requests("PUT", "/manifests/").len(), 2);
}

#[rstest]
#[case::broken_connection(|| Fault::Break)]
#[case::server_error(|| Fault::Status(500))]
#[case::rate_limit(|| Fault::Status(429))]
#[tokio::test]
async fn failed_upload_is_retried(#[case] fault: fn() -> Fault) {
    let (server, base) =
        with_base(move |seen, before| (is_put(seen) && before < 3).then(fault)).await;
    let digest = append(&base, &server).await.unwrap();
    is_complete(&server, &digest);
}

#[tokio::test]
async fn upload_without_a_response_is_retried() {
    let (server, base) =
        with_base(|seen, before| (is_put(seen) && before < 2).then_some(Fault::Hang)).await;
    let client = client(Options {
        timeout: Duration::from_secs(1),
        transfer_timeout: Duration::from_secs(1),
        ..Options::default()
    });
    let digest = append_by(&client, &base, &plain(None), &server, &plain(None)).await;
    is_complete(&server, &digest.unwrap());
}

#[tokio::test]
async fn upload_that_fails_every_time_is_an_error() {
    let (server, base) = with_base(|seen, _| is_put(seen).then_some(Fault::Status(503))).await;
    let error = append(&base, &server).await.unwrap_err();
    assert_failure(
        &error,
        "RegistryUnreachable",
        true,
        &["push the image", "503"],
    );
    is_not_pushed(&server);
}

#[tokio::test]
async fn refused_upload_is_not_retried() {
    let (server, base) = with_base(|seen, _| {
        (seen.method == "POST" && seen.fields.is_empty()).then_some(Fault::Status(403))
    })
    .await;
    let error = append(&base, &server).await.unwrap_err();
    assert_failure(&error, "RegistryForbidden", false, &["push the image"]);
    assert!(server.requests("POST", "").len() <= 2 * 2);
}

#[tokio::test]
async fn copy_with_a_broken_download_is_retried() {
    let other = FakeRegistry::start("", |seen, before| {
        let is_layer = seen.path.ends_with(Digest::of(BASE[0]).as_str());
        (is_layer && before == 0).then(|| Fault::Cut(b"ba".to_vec()))
    })
    .await;
    let server = FakeRegistry::honest().await;
    let base = other.add_image("team/base", "amd64", &BASE);
    let digest = append(&base, &server).await.unwrap();
    is_complete(&server, &digest);
}

#[rstest]
#[case::other_bytes(b"bAse 1")]
#[case::fewer_bytes(b"base")]
#[case::more_bytes(b"base 1 and more")]
#[tokio::test]
async fn base_layer_with_other_content_is_not_pushed(#[case] content: &[u8]) {
    let other = FakeRegistry::honest().await;
    let server = FakeRegistry::honest().await;
    let base = other.add_image("team/base", "amd64", &BASE);
    let layer = Digest::of(BASE[0]);
    other.set_blob("team/base", &layer, content);
    let error = append(&base, &server).await.unwrap_err();
    let words = ["does not match", layer.as_str(), &base.to_string()];
    assert_failure(&error, "BaseImageUnsupported", false, &words);
    is_not_pushed(&server);
    assert!(server.blob("team/app", layer.as_str()).is_none());
}

#[tokio::test]
async fn base_config_with_other_content_is_refused() {
    let (server, base) = with_base(|_, _| None).await;
    let manifest = server.manifest("team/base", base.digest().unwrap().as_str());
    let config = Digest::parse(manifest.unwrap()["config"]["digest"].as_str().unwrap()).unwrap();
    server.set_blob("team/base", &config, b"{}");
    let error = append(&base, &server).await.unwrap_err();
    assert_failure(&error, "BaseImageUnsupported", false, &[config.as_str()]);
    is_not_pushed(&server);
}

#[tokio::test]
async fn base_manifest_with_other_content_is_refused() {
    let (server, base) = with_base(|seen, _| {
        let is_base = seen.path.starts_with("/v2/team/base/manifests/");
        is_base.then(|| Fault::Answer(200, Vec::new(), r#"{"schemaVersion":2}"#.into()))
    })
    .await;
    let error = append(&base, &server).await.unwrap_err();
    assert_failure(&error, "BaseImageUnsupported", false, &["does not match"]);
}

#[rstest]
#[case("/v2/team/base/manifests/")]
#[case("/v2/team/base/blobs/")]
#[tokio::test]
async fn endless_response_is_an_error(#[case] path: &'static str) {
    let (server, base) = with_base(move |seen, _| {
        let is_read = seen.method == "GET" && seen.path.starts_with(path);
        is_read.then_some(Fault::Endless)
    })
    .await;
    let error = append(&base, &server).await.unwrap_err();
    assert_failure(&error, "RegistryError", false, &["larger than"]);
    is_not_pushed(&server);
}

#[tokio::test]
async fn base_manifest_larger_than_1_mib_is_refused() {
    let server = FakeRegistry::honest().await;
    let manifest = json!({"schemaVersion": 2, "x": "x".repeat(1 << 20)});
    let base = server.add_manifest("team/base", &manifest);
    let error = append(&base, &server).await.unwrap_err();
    assert_failure(&error, "RegistryError", false, &["larger than 1048576"]);
    is_not_pushed(&server);
}

#[tokio::test]
async fn base_config_larger_than_1_mib_is_refused() {
    let (server, base) = with_base(|_, _| None).await;
    let manifest = server.manifest("team/base", base.digest().unwrap().as_str());
    let config = Digest::parse(manifest.unwrap()["config"]["digest"].as_str().unwrap()).unwrap();
    let content = " ".repeat((1 << 20) + 1);
    server.set_blob("team/base", &config, content.as_bytes());
    let error = append(&base, &server).await.unwrap_err();
    assert_failure(&error, "RegistryError", false, &["larger than 1048576"]);
    is_not_pushed(&server);
}

#[tokio::test]
async fn missing_base_is_an_error() {
    let server = FakeRegistry::honest().await;
    let base = ImageRef::by_digest(server.name("team/base"), Digest::of(b"none"));
    let error = append(&base, &server).await.unwrap_err();
    assert_failure(
        &error,
        "BaseImageNotFound",
        false,
        &[
            "containerRegistry.baseImage",
            "--base-image",
            &base.to_string(),
        ],
    );
}

#[tokio::test]
async fn missing_base_layer_is_a_missing_base() {
    let other = FakeRegistry::start("", |seen, _| {
        let is_layer = seen.path.ends_with(Digest::of(BASE[0]).as_str());
        is_layer.then_some(Fault::Status(404))
    })
    .await;
    let server = FakeRegistry::honest().await;
    let base = other.add_image("team/base", "amd64", &BASE);
    let error = append(&base, &server).await.unwrap_err();
    assert_failure(&error, "BaseImageNotFound", false, &[&base.to_string()]);
    is_not_pushed(&server);
}

#[tokio::test]
async fn index_gives_the_image_of_the_platform() {
    let server = FakeRegistry::honest().await;
    let amd64 = server.add_image("team/base", "amd64", &BASE);
    let arm64 = server.add_image("team/base", "arm64", &[b"arm"]);
    let entry = |image: &ImageRef, architecture: &str| {
        let digest = image.digest().unwrap().as_str();
        json!({"digest": digest, "platform": {"os": "linux", "architecture": architecture}})
    };
    let index = |entries: &[serde_json::Value]| {
        let index = json!({"schemaVersion": 2, "mediaType": OCI_INDEX, "manifests": entries});
        server.add_manifest("team/base", &index)
    };
    let base = index(&[entry(&arm64, "arm64"), entry(&amd64, "amd64")]);
    let only_arm = index(&[entry(&arm64, "arm64")]);
    let nested = index(&[entry(&base, "amd64")]);
    let error = append(&only_arm, &server).await.unwrap_err();
    assert_failure(
        &error,
        "BaseImageUnsupported",
        false,
        &["linux/amd64", "linux/arm64"],
    );
    let error = append(&nested, &server).await.unwrap_err();
    assert_failure(
        &error,
        "BaseImageUnsupported",
        false,
        &["another image index"],
    );
    let error = append(&arm64, &server).await.unwrap_err();
    assert_failure(&error, "BaseImageUnsupported", false, &["arm64", "amd64"]);
    let digest = append(&base, &server).await.unwrap();
    is_complete(&server, &digest);
}

#[tokio::test]
async fn foreign_layer_is_listed_and_not_copied() {
    let server = FakeRegistry::honest().await;
    let image = server.add_image("team/other", "amd64", &BASE);
    let digest = image.digest().unwrap().as_str();
    let mut manifest = server.manifest("team/other", digest).unwrap();
    let config = manifest["config"]["digest"].as_str().unwrap();
    let config = server.blob("team/other", config).unwrap();
    server.add_blob("team/base", &config);
    server.add_blob("team/base", BASE[1]);
    manifest["layers"][0]["urls"] = json!(["https://example.com/layer"]);
    let foreign = manifest["layers"][0].clone();
    let base = server.add_manifest("team/base", &manifest);
    append(&base, &server).await.unwrap();
    let pushed = server.manifest("team/app", "new").unwrap();
    assert_eq!(pushed["layers"][0], foreign);
    let digest = foreign["digest"].as_str().unwrap();
    assert!(server.requests("", digest).is_empty());
    assert!(server.blob("team/app", digest).is_none());
}

#[rstest]
#[case::base(basic(USER, "wrong"), basic(USER, PASSWORD), "base image")]
#[case::target(basic(USER, PASSWORD), basic(USER, "wrong"), "team/app")]
#[tokio::test]
async fn wrong_credentials_are_unauthorized(
    #[case] read: Credential,
    #[case] push: Credential,
    #[case] word: &str,
) {
    let server = FakeRegistry::start(BASIC, |_, _| None).await;
    let base = server.add_image("team/base", "amd64", &BASE);
    let error = append_with(&base, &plain(read), &server, &plain(push)).await;
    assert_failure(&error.unwrap_err(), "RegistryUnauthorized", false, &[word]);
    is_not_pushed(&server);
}

#[tokio::test]
async fn refused_token_is_replaced_once() {
    let server = FakeRegistry::start("Bearer", |seen, before| {
        (is_put(seen) && before == 0).then_some(Fault::Status(401))
    })
    .await;
    let base = server.add_image("team/base", "amd64", &BASE);
    let digest = append(&base, &server).await.unwrap();
    is_complete(&server, &digest);
    let push = "?scope=repository%3Ateam%2Fapp%3Apull%2Cpush&service=s";
    assert_eq!(server.requests("GET", push).len(), 2);
    let server = FakeRegistry::start("Bearer", |seen, _| {
        is_put(seen).then_some(Fault::Status(401))
    })
    .await;
    let base = server.add_image("team/base", "amd64", &BASE);
    let error = append(&base, &server).await.unwrap_err();
    assert_failure(&error, "RegistryUnauthorized", false, &["push the image"]);
}

#[tokio::test]
async fn upload_to_another_host_has_no_credentials() {
    let storage = FakeRegistry::start("", |seen, _| {
        (seen.method == "PUT").then_some(Fault::Status(201))
    })
    .await;
    let place = format!("http://{}/v2/storage/blobs/uploads/1", storage.host);
    let server = FakeRegistry::start(BASIC, move |seen, _| {
        let is_upload = seen.method == "POST" && seen.fields.is_empty();
        let headers = vec![("Location", place.clone())];
        is_upload.then(|| Fault::Answer(202, headers, String::new()))
    })
    .await;
    let base = server.add_image("team/base", "amd64", &BASE);
    let access = plain(basic(USER, PASSWORD));
    let refused = append_with(&base, &access, &server, &access).await;
    let words = ["lost a pushed blob"];
    assert_failure(&refused.unwrap_err(), "RegistryError", false, &words);
    let seen = storage.seen();
    assert_eq!(seen.len(), 2 * 3, "two layers and the config, twice");
    assert!(
        seen.iter().all(|seen| seen.authorization.is_empty()),
        "{seen:?}"
    );
}

#[tokio::test]
async fn blob_redirected_to_storage_is_read_without_credentials() {
    let storage = FakeRegistry::honest().await;
    storage.add_image("team/base", "amd64", &BASE);
    let host = storage.host.clone();
    let other = FakeRegistry::start(BASIC, move |seen, _| {
        let place = vec![("Location", format!("http://{host}{}", seen.path))];
        let is_blob = seen.path.starts_with("/v2/team/base/blobs/");
        is_blob.then(|| Fault::Answer(307, place, String::new()))
    })
    .await;
    let server = FakeRegistry::honest().await;
    let base = other.add_image("team/base", "amd64", &BASE);
    let access = plain(basic(USER, PASSWORD));
    let digest = append_with(&base, &access, &server, &plain(None)).await;
    is_complete(&server, &digest.unwrap());
    let seen = storage.seen();
    assert!(
        seen.iter().all(|seen| seen.authorization.is_empty()),
        "{seen:?}"
    );
}

#[tokio::test]
async fn blob_is_redirected_five_times_at_most() {
    let (server, base) = with_base(|seen, _| {
        let place = vec![("Location", seen.path.clone())];
        let is_blob = seen.method == "GET" && seen.path.starts_with("/v2/team/base/blobs/");
        is_blob.then(|| Fault::Answer(307, place, String::new()))
    })
    .await;
    let error = append(&base, &server).await.unwrap_err();
    let words = ["the redirect is not followed"];
    assert_failure(&error, "RegistryError", false, &words);
    assert_eq!(server.requests("GET", "/v2/team/base/blobs/").len(), 6);
}

#[tokio::test]
async fn response_of_a_redirect_target_is_not_quoted() {
    let inside = FakeRegistry::start("", |_, _| {
        Some(Fault::Answer(403, Vec::new(), "inside".into()))
    })
    .await;
    let place = format!("http://{}/", inside.host);
    let (server, base) = with_base(move |seen, _| {
        let is_base = seen.path.starts_with("/v2/team/base/manifests/");
        is_base.then(|| Fault::Answer(307, vec![("Location", place.clone())], String::new()))
    })
    .await;
    let error = append(&base, &server).await.unwrap_err();
    assert_failure(&error, "RegistryForbidden", false, &["403"]);
    assert!(!format!("{error} {error:?}").contains("inside"));
}

#[tokio::test]
async fn response_of_another_upload_host_is_not_quoted() {
    let inside = FakeRegistry::start("", |_, _| {
        Some(Fault::Answer(403, Vec::new(), "inside".into()))
    })
    .await;
    let place = format!("http://{}/", inside.host);
    let (server, base) = with_base(move |seen, _| {
        let is_upload = seen.method == "POST" && seen.fields.is_empty();
        let headers = vec![("Location", place.clone())];
        is_upload.then(|| Fault::Answer(202, headers, String::new()))
    })
    .await;
    let error = append(&base, &server).await.unwrap_err();
    assert_failure(&error, "RegistryForbidden", false, &["403"]);
    assert!(!format!("{error} {error:?}").contains("inside"));
    assert!(!inside.requests("PUT", "").is_empty());
}

#[tokio::test]
async fn unreadable_layer_is_an_error() {
    let server = FakeRegistry::honest().await;
    let base = server.add_image("team/app", "amd64", &BASE);
    let before = server.blobs("team/app");
    let layers = layers(&[MODULE]);
    let access = plain(None);
    let config = config();
    let image = target(&server);
    let mut shorter = layers.layers.clone();
    shorter[0].size -= 1;
    let mut missing = layers.layers.clone();
    missing[0].file = layers.folder.path().join("missing");
    let client = eager();
    for (layers, word) in [(shorter, "10 bytes, not 9"), (missing, "missing")] {
        let pushed = client.append(&base, &access, &image, &access, &layers, &config);
        assert_failure(&pushed.await.unwrap_err(), "PrepareFailed", false, &[word]);
    }
    is_not_pushed(&server);
    assert_eq!(server.blobs("team/app"), before);
}

#[tokio::test]
async fn references_without_digest_or_tag_are_refused() {
    let (server, base) = with_base(|_, _| None).await;
    let image = target(&server);
    let config = config();
    let access = plain(None);
    let client = eager();
    for (base, image) in [(&image, &image), (&base, &base)] {
        let pushed = client.append(base, &access, image, &access, &[], &config);
        assert_failure(&pushed.await.unwrap_err(), "InvalidImageName", false, &[]);
    }
    assert!(server.seen().is_empty());
}

#[tokio::test]
async fn docker_registry_accepts_the_image() {
    let server = DockerRegistry::start(Setting::default());
    // `client` installs the crypto provider that the HTTP client in `push` needs.
    let client = client(Options::default());
    let empty = crate::prune::push(&server.host(), "empty", json!({})).await;
    let empty = ImageRef::by_digest(crate::support::name(&server.host()), empty);
    let access = plain(None);
    let config = config();
    let layers = layers(&[PROVIDERS, MODULE]);
    let (first, second) = layers.layers.split_at(1);
    let image = |name: &str| ImageRef::parse(&format!("{}/{name}:new", server.host())).unwrap();
    let base = image("team/base");
    let app = image("team/app");
    let digest = client
        .append(&empty, &access, &base, &access, first, &config)
        .await
        .unwrap();
    let by_digest = ImageRef::by_digest(base.name().clone(), digest);
    let posts = server.requests("POST");
    let digest = client
        .append(&by_digest, &access, &app, &access, second, &config)
        .await
        .unwrap();
    assert_eq!(server.requests("POST") - posts, 3, "mount, layer, config");
    let digest_of_tag = client.digest_of(&app, &access).await.unwrap();
    assert_eq!(digest_of_tag, Some(digest));
    let stored = fs::read(server.blob(layers.layers[1].digest.as_str())).unwrap();
    assert_eq!(stored, MODULE);
}
