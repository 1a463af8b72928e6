//! Modules from sources other than git repositories.

use alustan_api::Terraform;
use alustan_api::labels::IMAGE_TAG;
use k8s_openapi::api::batch::v1::Job;
use kube::ResourceExt;
use kube::api::{Patch, PatchParams};
use serde_json::{Value, json};

use super::{Operator, condition, reason, wait};
use crate::outside::Outside;
use crate::server::until;
use crate::space::{Space, resource, with, with_all};

const MODULE: &str = "output \"a\" { value = 1 }\n";
const NEXT: &str = "output \"a\" { value = 2 }\n";

/// Returns a resource whose image must be built from `source`.
fn web(outside: &Outside, name: &str, source: &Value) -> Value {
    let address = &outside.address;
    let web = with_all(
        resource(name),
        json!({
            "/source": source,
            "/containerRegistry/imageName": format!("{address}/team/{name}"),
            "/containerRegistry/baseImage": format!("{address}/base:1"),
            "/containerRegistry/insecure": true,
        }),
    );
    with(web, "/gitRepo", None)
}

fn revision(tf: &Terraform) -> Option<&str> {
    let source = tf.status.as_ref()?.source.as_ref()?;
    Some(&source.revision)
}

/// Waits until there are `number` builds.
async fn wait_for_builds(space: &Space, number: usize) {
    until("the builds", async || {
        let jobs = space.list::<Job>().await;
        let builds = jobs
            .iter()
            .filter(|job| job.labels().contains_key(IMAGE_TAG));
        let tags: Vec<_> = builds.map(|job| &job.labels()[IMAGE_TAG]).collect();
        (tags.len() == number)
            .then_some(())
            .ok_or_else(|| format!("{tags:?}"))
    })
    .await;
}

#[tokio::test]
async fn changed_inline_file_is_a_new_revision_that_is_built() {
    let operator = Operator::shared().await;
    let (space, folder) = (operator.space().await, tempfile::tempdir().unwrap());
    let outside = Outside::start(folder.path()).await;
    let inline = |text: &str| json!({"inline": {"files": {"main.tf": text}}});
    space
        .apply(&web(&outside, "inline", &inline(MODULE)))
        .await
        .unwrap();
    let api = space.api::<Terraform>();
    wait_for_builds(&space, 1).await;
    let first = wait(&api, "inline", "a revision", |tf| revision(tf).is_some()).await;
    let first = revision(&first).unwrap();
    assert!(first.starts_with("sha256:"), "{first}");
    let changed = json!({"spec": {"source": inline(NEXT)}});
    let edit = PatchParams::default();
    api.patch("inline", &edit, &Patch::Merge(&changed))
        .await
        .unwrap();
    wait(&api, "inline", "another revision", |tf| {
        revision(tf).is_some_and(|next| next != first)
    })
    .await;
    wait_for_builds(&space, 2).await;
}

#[tokio::test]
async fn moved_tag_of_an_artifact_is_a_new_revision_that_is_built() {
    let operator = Operator::shared().await;
    let (space, folder) = (operator.space().await, tempfile::tempdir().unwrap());
    let outside = Outside::start(folder.path()).await;
    let address = &outside.address;
    let first = outside.push_artifact("modules/net", "main", MODULE).await;
    let oci = json!({"oci": {
        "url": format!("oci://{address}/modules/net"), "tag": "main", "interval": "1s",
    }});
    space.apply(&web(&outside, "oci", &oci)).await.unwrap();
    let api = space.api::<Terraform>();
    wait(&api, "oci", "the artifact", |tf| {
        revision(tf) == Some(&first)
    })
    .await;
    wait_for_builds(&space, 1).await;
    let next = outside.push_artifact("modules/net", "main", NEXT).await;
    wait(&api, "oci", "the next artifact", |tf| {
        revision(tf) == Some(&next)
    })
    .await;
    wait_for_builds(&space, 2).await;
}

#[tokio::test]
async fn unusable_sources_have_a_reason_and_name_their_field() {
    let operator = Operator::shared().await;
    let (space, folder) = (operator.space().await, tempfile::tempdir().unwrap());
    let outside = Outside::start(folder.path()).await;
    let address = &outside.address;
    let oci = |repository: &str, field: &str, value: &str| json!({"oci": {"url": format!("oci://{address}/{repository}"), field: value, "interval": "1s"}});
    let outside_module = "module \"a\" {\n  source = \"../a\"\n}\n";
    let login = json!({"name": "gone", "key": "k"});
    let mut private = oci("modules/net", "tag", "main");
    private["oci"]["secretRef"] = login;
    let cases = [
        (
            "leaves",
            json!({"inline": {"files": {"main.tf": outside_module}}}),
            "PathLeavesRepository",
            "spec.source.inline",
        ),
        (
            "no-artifact",
            oci("modules/gone", "tag", "main"),
            "ArtifactNotFound",
            "spec.source.oci",
        ),
        (
            "image",
            oci("base", "tag", "1"),
            "ArtifactInvalid",
            "spec.source.oci",
        ),
        (
            "range",
            oci("modules/net", "semver", "1.0 || 2.0"),
            "InvalidSource",
            "spec.source.oci",
        ),
        (
            "no-secret",
            private,
            "SecretNotFound",
            "spec.source.oci.secretRef",
        ),
    ];
    for (name, source, ..) in &cases {
        space.apply(&web(&outside, name, source)).await.unwrap();
    }
    let api = space.api::<Terraform>();
    for (name, _, wanted, field) in cases {
        let tf = wait(&api, name, wanted, reason("Ready", wanted)).await;
        let message = condition(&tf, "Ready").2;
        assert!(message.contains(field), "{name}: {message}");
    }
}
