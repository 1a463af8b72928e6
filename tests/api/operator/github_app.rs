//! Repositories that only the tokens of a GitHub App can read.

use k8s_openapi::api::core::v1::{ConfigMap, Pod};
use serde::Serialize;

use super::*;
use crate::fake_github::{APP, FakeGitHub, INSTALLATION, rsa_key};
use crate::outside::Outside;
use crate::space::complete_job;

/// Lifetime of tokens. The operator does not use a token in its last five minutes, so it requests a new token every three seconds.
const LIFETIME: Duration = Duration::from_secs(303);

/// Returns a resource whose repository is that of `github`, and whose runner image does not exist.
fn web(github: &FakeGitHub) -> Value {
    let registry = &github.outside().address;
    let images = json!({
        "imageName": format!("{registry}/team/web"), "baseImage": format!("{registry}/base:1"),
        "insecure": true,
    });
    with_all(
        resource("web"),
        json!({
            "/gitRepo/url": format!("{}/team/infra", github.url),
            "/gitRepo/interval": "1s",
            "/gitRepo/caBundle": github.certificate,
            "/gitRepo/githubApp": {"secretRef": {"name": "app"}},
            "/containerRegistry": images,
        }),
    )
}

async fn set_key(space: &Space, key: &str) {
    let secret = json!({
        "apiVersion": "v1", "kind": "Secret", "metadata": {"name": "app"},
        "stringData": {
            "githubAppID": APP, "githubAppInstallationID": INSTALLATION, "githubAppPrivateKey": key,
        },
    });
    let parameters = PatchParams::apply("user").force();
    let secrets = space.api::<Secret>();
    secrets
        .patch("app", &parameters, &Patch::Apply(&secret))
        .await
        .unwrap();
}

/// Returns the objects of `namespace` and the logs of the operator that contain one of `texts`, in clear text or as base64 in a Secret.
async fn places(operator: &Operator, space: &Space, texts: &[String]) -> Vec<String> {
    fn json_of<K: Serialize + ResourceExt<DynamicType = ()>>(object: &K) -> (String, String) {
        let kind = K::kind(&()).into_owned();
        let text = serde_json::to_string(object).unwrap();
        (format!("{kind} {}", object.name_any()), text)
    }
    let mut searched = vec![("log".to_owned(), operator.log())];
    for secret in space.list::<Secret>().await {
        let values = secret.data.iter().flatten();
        let values = values.map(|(_, value)| String::from_utf8_lossy(&value.0).into_owned());
        let text = values.collect::<Vec<_>>().join("\n");
        searched.push((format!("Secret {}", secret.name_any()), text));
        searched.push(json_of(&Secret {
            data: None,
            ..secret
        }));
    }
    searched.extend(space.list::<Job>().await.iter().map(json_of));
    searched.extend(space.list::<Pod>().await.iter().map(json_of));
    searched.extend(space.list::<Event>().await.iter().map(json_of));
    searched.extend(space.list::<ConfigMap>().await.iter().map(json_of));
    searched.extend(space.list::<Terraform>().await.iter().map(json_of));
    let found = searched
        .into_iter()
        .filter(|(_, text)| texts.iter().any(|wanted| text.contains(wanted)));
    let mut places: Vec<String> = found.map(|(place, _)| place).collect();
    places.dedup();
    places
}

#[tokio::test]
async fn github_app_reads_the_repository_and_build_gets_its_token() {
    let operator = Operator::shared().await;
    let (space, folder) = (operator.space().await, tempfile::tempdir().unwrap());
    let github = FakeGitHub::start(Outside::start(folder.path()).await, LIFETIME).await;
    set_key(&space, &github.key).await;
    space.apply(&web(&github)).await.unwrap();
    let api = space.api::<Terraform>();
    wait(&api, "web", "the commit", reason("SourceReady", "Fetched")).await;

    // The build Secret has a token, and no other object contains it or the key.
    let secrets = space.api::<Secret>();
    let (job, build_secret) = until("a build with a token", async || {
        let job = space.list::<Job>().await.pop().ok_or("no build")?;
        let build_secret = secrets.get_opt(&job.name_any()).await.unwrap();
        build_secret
            .map(|build_secret| (job, build_secret))
            .ok_or_else(|| "no token".to_owned())
    })
    .await;
    let data = build_secret.data.unwrap();
    assert_eq!(data["username"].0, b"x-access-token");
    let token = String::from_utf8(data["password"].0.clone()).unwrap();
    assert!(github.tokens().contains(&token));
    let in_secret = format!("Secret {}", job.name_any());
    assert_eq!(
        places(operator, &space, &github.tokens()).await,
        [in_secret]
    );
    let line = github.key.lines().nth(2).unwrap().to_owned();
    assert_eq!(places(operator, &space, &[line]).await, ["Secret app"]);
    complete_job(&space.api::<Job>(), &job.name_any()).await;
    until("the end of the token", async || {
        let build_secret = secrets.get_opt(&job.name_any()).await.unwrap();
        build_secret
            .is_none()
            .then_some(())
            .ok_or_else(|| "there".to_owned())
    })
    .await;

    // New tokens replace the first one, and the operator follows the branch.
    until("new tokens", async || {
        let count = github.tokens().len();
        (count > 2).then_some(()).ok_or_else(|| format!("{count}"))
    })
    .await;
    let pushed = github
        .outside()
        .commit("output \"a\" { value = 2 }\n")
        .await;
    let revision = |tf: &Terraform| Some(tf.status.as_ref()?.source.as_ref()?.revision.clone());
    wait(&api, "web", "the pushed commit", |tf| {
        revision(tf).as_ref() == Some(&pushed)
    })
    .await;
    assert_eq!(github.refused(), 0);

    // A key that is not one of the App.
    set_key(&space, &rsa_key()).await;
    let refused = reason("SourceReady", "GitAuthenticationFailed");
    let tf = wait(&api, "web", "a refusal", refused).await;
    let (status, _, message) = condition(&tf, "SourceReady");
    assert_eq!(status, "False");
    for wanted in [
        "spec.gitRepo.githubApp: failed to create a token of installation 34 of GitHub App 12 at",
        "/api/v3: status 401 (A JSON web token could not be decoded)",
        "check githubAppID and githubAppPrivateKey in Secret app",
    ] {
        assert!(message.contains(wanted), "{message}");
    }
    wait(&api, "web", "Stalled", |tf| {
        condition(tf, "Stalled").0 == "True"
    })
    .await;
    set_key(&space, "no key").await;
    let invalid = reason("SourceReady", "InvalidGitHubApp");
    wait(&api, "web", "an invalid key", invalid).await;

    // The changed Secret takes effect at once.
    set_key(&space, &github.key).await;
    wait(&api, "web", "the commit", reason("SourceReady", "Fetched")).await;
    operator.keeps_to_its_role();
}
