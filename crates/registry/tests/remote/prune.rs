//! Tests of the inventory of repositories and of the deletion of manifests.

use alustan_registry::{
    Access, Digest, Error, Failure, ImageName, Options, Registry, TaggedImage, context_tag,
};
use reqwest::{Client, StatusCode};
use serde_json::json;

use crate::support::{
    DockerRegistry, Fake, Setting, assert_failure, client, file, name, plain, tag,
};

const IMAGE: &str = "application/vnd.oci.image.manifest.v1+json";

fn registry() -> (DockerRegistry, Registry, ImageName, Access) {
    let server = DockerRegistry::start(Setting {
        delete: true,
        ..Setting::default()
    });
    let name = name(&server.host());
    (server, client(Options::default()), name, plain(None))
}

/// Pushes an image with `labels` as `tag`. Returns the digest of its manifest.
pub(crate) async fn push(host: &str, tag: &str, labels: serde_json::Value) -> Digest {
    let base = format!("http://{host}/v2/team/x");
    let config =
        json!({"created": "2020-01-02T03:04:05Z", "config": {"Labels": labels}}).to_string();
    let digest = Digest::of(config.as_bytes());
    let http = Client::new();
    let begun = http
        .post(format!("{base}/blobs/uploads/"))
        .send()
        .await
        .unwrap();
    let place = begun.headers().get("Location").unwrap().to_str().unwrap();
    let put = http
        .put(format!("{place}&digest={digest}"))
        .body(config.clone());
    assert_eq!(put.send().await.unwrap().status(), StatusCode::CREATED);
    let manifest = json!({
        "schemaVersion": 2, "mediaType": IMAGE, "layers": [],
        "config": {"mediaType": "application/vnd.oci.image.config.v1+json", "digest": digest.as_str(), "size": config.len()},
    })
    .to_string();
    let put = http
        .put(format!("{base}/manifests/{tag}"))
        .header("Content-Type", IMAGE)
        .body(manifest.clone())
        .send()
        .await
        .unwrap();
    assert_eq!(
        put.status(),
        StatusCode::CREATED,
        "{}",
        put.text().await.unwrap()
    );
    Digest::of(manifest.as_bytes())
}

fn by_tag<'a>(images: &'a [TaggedImage], tag: &str) -> &'a TaggedImage {
    images.iter().find(|image| image.tag == tag).unwrap()
}

#[tokio::test]
async fn inventory_lists_owned_images_and_other_tags() {
    let (server, client, name, access) = registry();
    assert_eq!(
        client.inventory(&name, &access).await.unwrap(),
        [],
        "of a repository that is not there"
    );
    let (ours, other, layer) = ("a".repeat(40), "b".repeat(40), "c".repeat(64));
    let context = client
        .push_context(&name, &Digest::of(b"x"), &file(b"x"), &access)
        .await
        .unwrap();
    let labels =
        json!({"io.alustan.namespace": "uid", "io.alustan.context": format!("{name}@{context}")});
    let digest = push(&server.host(), &ours, labels).await;
    push(&server.host(), &other, json!(null)).await;
    push(&server.host(), &layer, json!({"layer": "1"})).await;
    push(&server.host(), "v1", json!({"io.alustan.namespace": "uid"})).await;
    let images = client.inventory(&name, &access).await.unwrap();
    let tags: Vec<&str> = images.iter().map(|image| image.tag.as_str()).collect();
    assert_eq!(
        tags,
        [ours.as_str(), other.as_str(), "v1"],
        "contexts and layers are not listed"
    );
    assert_eq!(by_tag(&images, &ours).digest, digest);
    let labels = by_tag(&images, &ours).runner_image.clone().unwrap();
    assert_eq!(
        (labels.namespace.as_str(), labels.context),
        ("uid", Some(context))
    );
    assert_eq!(labels.created.to_string(), "2020-01-02T03:04:05Z");
    assert_eq!(
        (
            &by_tag(&images, &other).runner_image,
            &by_tag(&images, "v1").runner_image
        ),
        (&None, &None)
    );
}

#[tokio::test]
async fn deleted_manifest_is_removed_with_its_tag() {
    let (server, client, name, access) = registry();
    let context = Digest::of(b"x");
    let manifest = client
        .push_context(&name, &context, &file(b"x"), &access)
        .await
        .unwrap();
    for _ in 0..2 {
        client.delete(&name, &manifest, &access).await.unwrap();
    }
    let tag = tag(&server.host(), &context_tag(&context));
    assert_eq!(client.digest_of(&tag, &access).await.unwrap(), None);
}

#[tokio::test]
async fn registry_without_deletion_support_is_an_error() {
    let server = DockerRegistry::start(Setting::default());
    let (client, name) = (client(Options::default()), name(&server.host()));
    let manifest = client
        .push_context(&name, &Digest::of(b"x"), &file(b"x"), &plain(None))
        .await
        .unwrap();
    let error = client
        .delete(&name, &manifest, &plain(None))
        .await
        .unwrap_err();
    assert_failure(
        &error,
        "RegistryUnsupported",
        false,
        &["remove", "the registry does not support the operation"],
    );
    assert_eq!(Failure::Unsupported.reason(), error.reason());
}

/// Returns the inventory of the repository on `server`.
async fn inventory(server: &Fake) -> Result<Vec<TaggedImage>, Error> {
    let client = client(Options::default());
    client.inventory(&name(&server.host), &plain(None)).await
}

/// Asserts that the inventory is empty after two list requests.
async fn assert_empty_after_two_requests(server: &Fake) {
    assert_eq!(inventory(server).await.unwrap(), []);
    assert_eq!(server.seen("/v2/team/x/tags/list").len(), 2);
}

#[tokio::test]
async fn tag_list_is_read_in_pages() {
    let server = Fake::start(|_, seen| {
        let page = |from: usize| -> Vec<String> {
            (from..(from + 500).min(700))
                .map(|number| format!("context-{number:016x}"))
                .collect()
        };
        let last = format!("last=context-{:016x}", 499);
        match seen.path.as_str() {
            "/v2/" => (200, None, "{}".to_owned()),
            "/v2/team/x/tags/list" if seen.fields.contains(&last) => (
                200,
                None,
                json!({"name": "x", "tags": page(500)}).to_string(),
            ),
            "/v2/team/x/tags/list" => {
                (200, None, json!({"name": "x", "tags": page(0)}).to_string())
            }
            _ => (500, None, String::new()),
        }
    })
    .await;
    assert_empty_after_two_requests(&server).await;
}

#[tokio::test]
async fn next_page_begins_after_the_last_valid_tag() {
    let server = Fake::start(|_, seen| match seen.path.as_str() {
        "/v2/team/x/tags/list" if seen.fields.contains("last=") => {
            (200, None, json!({"name": "x", "tags": []}).to_string())
        }
        "/v2/team/x/tags/list" => {
            let tags: Vec<String> = (0..499)
                .map(|number| format!("context-{number:016x}"))
                .chain(["../x".to_owned()])
                .collect();
            (200, None, json!({"name": "x", "tags": tags}).to_string())
        }
        _ => (200, None, "{}".to_owned()),
    })
    .await;
    assert_empty_after_two_requests(&server).await;
    let requests = server.seen("/v2/team/x/tags/list");
    assert_eq!(
        requests[1].fields,
        format!("n=500&last=context-{:016x}", 498)
    );
}

#[tokio::test]
async fn registry_without_pagination_is_queried_twice_at_most() {
    let tags: Vec<String> = (0..600)
        .rev()
        .map(|number| format!("context-{number:016x}"))
        .collect();
    let list = json!({"name": "x", "tags": tags}).to_string();
    let server = Fake::start(move |_, _| (200, None, list.clone())).await;
    assert_empty_after_two_requests(&server).await;
}

#[tokio::test]
async fn endless_tag_list_is_an_error() {
    // Each page starts after the last tag of the previous page, so the list never ends.
    let server = Fake::start(|_, seen| match seen.path.as_str() {
        "/v2/team/x/tags/list" => {
            let last = seen.fields.split("last=context-").nth(1);
            let from = last
                .and_then(|digits| u64::from_str_radix(digits.get(..16)?, 16).ok())
                .map_or(0, |last| last + 1);
            let tags: Vec<String> = (from..from + 40_000)
                .map(|number| format!("context-{number:016x}"))
                .collect();
            (200, None, json!({"name": "x", "tags": tags}).to_string())
        }
        _ => (200, None, "{}".to_owned()),
    })
    .await;
    let listed = inventory(&server).await;
    assert_failure(
        &listed.unwrap_err(),
        "RegistryError",
        false,
        &["the registry lists more than 100000 tags"],
    );
    assert_eq!(server.seen("/v2/team/x/tags/list").len(), 3);
}

#[tokio::test]
async fn manifests_of_invalid_tags_are_not_requested() {
    let server = Fake::start(|_, seen| match seen.path.as_str() {
        "/v2/" => (200, None, "{}".to_owned()),
        "/v2/team/x/tags/list" => {
            let tags = [
                "../../other/manifests/x",
                "a b",
                "?n=1",
                "",
                &"a".repeat(129),
            ];
            (200, None, json!({"name": "x", "tags": tags}).to_string())
        }
        path => panic!("{path}"),
    })
    .await;
    let listed = inventory(&server).await;
    assert_eq!(listed.unwrap(), []);
}

/// Starts a fake registry that returns `list` as its list of tags. Asserts that the inventory fails with a message that contains `words`.
/// Returns the registry.
async fn is_refused(list: String, words: &str) -> Fake {
    let server = Fake::start(move |_, seen| match seen.path.as_str() {
        "/v2/team/x/tags/list" => (200, None, list.clone()),
        _ => (200, None, "{}".to_owned()),
    })
    .await;
    let listed = inventory(&server).await;
    assert_failure(&listed.unwrap_err(), "RegistryError", false, &[words]);
    server
}

#[tokio::test]
async fn page_of_more_than_100000_tags_is_an_error() {
    let others = r#","""#.repeat(100_000);
    let list = format!(r#"{{"tags":["v1"{others}]}}"#);
    let server = is_refused(list, "the registry lists more than 100000 tags").await;
    assert_eq!(server.seen("/v2/team/x/tags/list").len(), 1);
}

#[tokio::test]
async fn invalid_list_of_tags_is_an_error() {
    for list in [
        "",
        "[]",
        "<html>",
        r#"{"tags":["v1""#,
        r#"{"tags":["v1",2]}"#,
        r#"{"tags":"hunter2"}"#,
    ] {
        is_refused(list.to_owned(), "the list of tags is invalid (line").await;
    }
}

#[tokio::test]
async fn unknown_fields_of_registry_responses_are_skipped() {
    // serde_json fails if a parsed value has more than 128 nested levels, but skips unknown fields of any depth.
    let deep = format!("{}{}", "[".repeat(1_000), "]".repeat(1_000));
    let other = format!("[{}{deep}]", r#"{"":0},"#.repeat(15_000));
    let (tag, digest) = ("a".repeat(40), Digest::of(b"config"));
    let list = format!(r#"{{"x":{other},"tags":["{tag}"]}}"#);
    let manifest = format!(r#"{{"layers":{other},"config":{{"x":{other},"digest":"{digest}"}}}}"#);
    let labels = format!(r#"{{"x":{other},"io.alustan.namespace":"uid"}}"#);
    let created = "2020-01-02T03:04:05Z";
    let config = format!(r#"{{"created":"{created}","config":{{"Labels":{labels}}}}}"#);
    let server = Fake::start(move |_, seen| {
        let body = match seen.path.strip_prefix("/v2/team/x/") {
            Some("tags/list") => list.clone(),
            Some(path) if path.starts_with("manifests/") => manifest.clone(),
            Some(path) if path.starts_with("blobs/") => config.clone(),
            _ => "{}".to_owned(),
        };
        (200, None, body)
    })
    .await;
    let images = inventory(&server).await.unwrap();
    assert_eq!(images.len(), 1);
    let ours = by_tag(&images, &tag).runner_image.as_ref().unwrap();
    assert_eq!(ours.namespace, "uid");
}

#[tokio::test]
async fn manifests_larger_than_4_mib_are_not_read_for_pruning() {
    let manifest = " ".repeat((4 << 20) + 1);
    let server = Fake::start(move |_, seen| match seen.path.as_str() {
        "/v2/team/x/tags/list" => (200, None, json!({"name": "x", "tags": ["v1"]}).to_string()),
        "/v2/team/x/manifests/v1" => (200, None, manifest.clone()),
        _ => (200, None, "{}".to_owned()),
    })
    .await;
    let listed = inventory(&server).await;
    assert_failure(
        &listed.unwrap_err(),
        "RegistryError",
        false,
        &["larger than 4194304"],
    );
}

/// Starts a fake registry with immutable tags. `taken_by`: manifest that already has the tag of the context; empty if the tag does not
/// exist.
async fn immutable(taken_by: &'static str) -> Fake {
    Fake::start(move |_, seen| {
        let tagged = seen.path.starts_with("/v2/team/x/manifests/context-");
        let refusal = r#"{"errors":[{"code":"TAG_INVALID","message":"the tag is immutable"}]}"#;
        match (seen.method.as_str(), tagged) {
            ("HEAD" | "GET", true) if taken_by.is_empty() => (404, None, String::new()),
            ("HEAD" | "GET", true) => (200, None, taken_by.to_owned()),
            ("PUT", true) => (400, None, refusal.to_owned()),
            ("PUT", false) => (201, None, String::new()),
            _ => (200, None, "{}".to_owned()),
        }
    })
    .await
}

#[tokio::test]
async fn context_is_pushed_by_digest_if_its_tag_is_immutable() {
    for taken_by in ["", r#"{"schemaVersion":2,"other":true}"#] {
        let server = immutable(taken_by).await;
        let (client, name) = (client(Options::default()), name(&server.host));
        let (digest, access) = (Digest::of(b"x"), plain(None));
        let digest = client
            .push_context(&name, &digest, &file(b"x"), &access)
            .await
            .unwrap();
        let by_digest = server.seen(&format!("/v2/team/x/manifests/{digest}"));
        assert_eq!(by_digest.len(), 1);
        assert_eq!(by_digest[0].method, "PUT");
    }
}

#[tokio::test]
async fn failed_context_push_reports_the_first_error() {
    let server = Fake::start(|_, seen| match seen.method.as_str() {
        "PUT" if seen.path.contains("sha256") => (500, None, String::new()),
        "PUT" => (
            400,
            None,
            r#"{"errors":[{"code":"TAG_INVALID","message":"no such tags here"}]}"#.to_owned(),
        ),
        "HEAD" if seen.path.contains("context-") => (404, None, String::new()),
        _ => (200, None, "{}".to_owned()),
    })
    .await;
    let (client, name) = (client(Options::default()), name(&server.host));
    let (digest, access) = (Digest::of(b"x"), plain(None));
    let content = file(b"x");
    let pushed = client.push_context(&name, &digest, &content, &access);
    assert_failure(
        &pushed.await.unwrap_err(),
        "RegistryError",
        false,
        &["no such tags here"],
    );
}
