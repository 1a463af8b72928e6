//! Input that is wrong: each has its own reason, names its field, and harms nobody else.

use std::os::unix::fs::symlink;
use std::time::Duration;

use alustan_tests::{Scene, condition, scene};
use kube::api::DeleteParams;
use serde_json::{Value, json};

/// A bad resource, and what is said about it.
struct Bad {
    resource: Value,
    reason: &'static str,
    parts: Vec<&'static str>,
}

/// A resource for the repository `web` that differs from a good one in `change`.
fn bad(
    scene: &Scene,
    name: &str,
    change: impl FnOnce(&mut Value),
    reason: &'static str,
    parts: &[&'static str],
) -> Bad {
    let mut resource = scene.resource_of(name, "web");
    resource["spec"]["gitRepo"]["interval"] = json!("1m");
    resource["spec"]["gitRepo"]["path"] = json!("good");
    change(&mut resource["spec"]);
    Bad {
        resource,
        reason,
        parts: parts.to_vec(),
    }
}

/// Applies all of `bad` next to a good one; all reasons come, the good one gets Ready, and then
/// it is quiet.
async fn each_has_its_reason(scene: &Scene, good: &Value, bad: &[Bad]) {
    for Bad { resource, .. } in bad {
        scene.apply(resource).await;
    }
    scene.apply(good).await;
    for Bad {
        resource,
        reason,
        parts,
    } in bad
    {
        let name = resource["metadata"]["name"].as_str().unwrap();
        let message = scene.reason(name, reason).await;
        for part in parts {
            assert!(message.contains(part), "{name}: no {part:?} in {message:?}");
        }
        scene.event(name, reason).await;
    }
    scene.ready("web").await;
    let window = Duration::from_secs(10);
    let writes = scene.writes_during(window).await;
    let busy: Vec<_> = writes.iter().filter(|(_, count)| **count > 3).collect();
    assert!(busy.is_empty(), "in {window:?}: {busy:?} of {writes:?}");
    for Bad { resource, .. } in bad {
        let name = resource["metadata"]["name"].as_str().unwrap();
        scene.delete(name, &DeleteParams::background()).await;
    }
    let tf = scene.ready("web").await;
    assert_eq!(condition(&tf, "Ready").unwrap().reason, "Applied");
}

#[tokio::test]
async fn a_bad_source_has_its_own_reason_and_harms_nobody() {
    scene("source", |scene| async move {
        let repository = format!("{}/web", scene.namespace);
        scene
            .commit_with(&repository, |folder| {
                let write = |path: &str, text: &str| {
                    let file = folder.join(path);
                    std::fs::create_dir_all(file.parent().unwrap()).unwrap();
                    std::fs::write(file, text).unwrap();
                };
                write("good/main.tf", "output \"a\" { value = 1 }");
                write("broken/main.tf", "resource \"a\" {\n  b = [\n}\n");
                write(
                    "climbs/main.tf",
                    "module \"m\" { source = \"../../elsewhere\" }",
                );
                write("linked/main.tf", "");
                symlink("/etc/passwd", folder.join("linked/secrets.txt")).unwrap();
            })
            .await;
        let other_key = scene.new_ssh_key().await;
        let (key, known) = (scene.ssh_file("id_ed25519"), scene.ssh_file("known_hosts"));
        let other_known = format!("git.alustan.test {}", other_key.1);
        let secret =
            async |name: &str, data: &[(&str, &str)]| scene.secret(name, "Opaque", data).await;
        secret("good-key", &[("key", &key), ("known_hosts", &known)]).await;
        secret(
            "other-key",
            &[("key", &other_key.0), ("known_hosts", &known)],
        )
        .await;
        secret(
            "other-host",
            &[("key", &key), ("known_hosts", &other_known)],
        )
        .await;
        secret("no-host", &[("key", &key)]).await;
        secret(
            "no-key",
            &[("key", "this is no key"), ("known_hosts", &known)],
        )
        .await;
        let ssh = format!("git@git.alustan.test:{}/web.git", scene.namespace);
        let with_key = |name: &'static str, key: &'static str| {
            let ssh = ssh.clone();
            move |spec: &mut Value| {
                spec["gitRepo"]["url"] = json!(ssh);
                spec["gitRepo"]["sshKeySecret"] = json!({"name": name, "key": key});
            }
        };
        let git = |field: &'static str, value: &str| {
            let value = value.to_owned();
            move |spec: &mut Value| spec["gitRepo"][field] = json!(value)
        };
        let repo = "spec.gitRepo";
        let bads = [
            bad(
                &scene,
                "branch",
                git("branch", "nope"),
                "BranchNotFound",
                &[repo, "nope"],
            ),
            bad(
                &scene,
                "no-repo",
                git("url", "https://git.alustan.test/no/repo"),
                "RepositoryNotFound",
                &[repo, "no/repo"],
            ),
            bad(
                &scene,
                "closed",
                git("url", "https://10.99.1.2:1/a/b"),
                "RepositoryUnreachable",
                &[repo, "10.99.1.2:1"],
            ),
            bad(
                &scene,
                "scheme",
                git("url", "file:///etc"),
                "InvalidGitUrl",
                &["spec.gitRepo.url"],
            ),
            bad(
                &scene,
                "leaves",
                git("path", "../../etc"),
                "InvalidPath",
                &["spec.gitRepo"],
            ),
            bad(
                &scene,
                "nowhere",
                git("path", "no/folder"),
                "PathNotFound",
                &["spec.gitRepo", "no/folder"],
            ),
            bad(
                &scene,
                "broken",
                git("path", "broken"),
                "ModuleInvalid",
                &["main.tf line 3"],
            ),
            bad(
                &scene,
                "climbs",
                git("path", "climbs"),
                "PathLeavesRepository",
                &["climbs/main.tf:1", "../../elsewhere"],
            ),
            bad(
                &scene,
                "linked",
                git("path", "linked"),
                "SymlinkLeavesContext",
                &["linked/secrets.txt", "/etc/passwd"],
            ),
            bad(
                &scene,
                "no-secret",
                with_key("nope", "key"),
                "SecretNotFound",
                &["spec.gitRepo.sshKeySecret", "nope"],
            ),
            bad(
                &scene,
                "no-entry",
                with_key("good-key", "nope"),
                "SecretKeyNotFound",
                &["spec.gitRepo.sshKeySecret", "nope"],
            ),
            bad(
                &scene,
                "wrong-key",
                with_key("other-key", "key"),
                "GitAuthenticationFailed",
                &[repo],
            ),
            bad(
                &scene,
                "wrong-host",
                with_key("other-host", "key"),
                "HostKeyMismatch",
                &[repo],
            ),
            bad(
                &scene,
                "new-host",
                with_key("no-host", "key"),
                "HostKeyUnknown",
                &[repo, "known_hosts"],
            ),
            bad(
                &scene,
                "text-key",
                with_key("no-key", "key"),
                "SshKeyInvalid",
                &[repo],
            ),
            bad(
                &scene,
                "no-map",
                |spec: &mut Value| {
                    spec["scripts"]["apply"]["configMapRef"] = json!({"name": "nope", "key": "x"});
                },
                "ConfigMapNotFound",
                &["spec.scripts.apply.configMapRef", "nope"],
            ),
        ];
        let mut good = scene.resource("web");
        good["spec"]["gitRepo"]["path"] = json!("good");
        Box::pin(each_has_its_reason(&scene, &good, &bads)).await;
    })
    .await;
}

#[tokio::test]
async fn a_bad_registry_has_its_own_reason_and_harms_nobody() {
    scene("registry", |scene| async move {
        scene
            .commit("web", &[("good/main.tf", "output \"a\" { value = 1 }")])
            .await;
        let private = "private-registry.alustan.test";
        let wrong = scene.docker_config(private, "alustan", "wrong");
        let kind = "kubernetes.io/dockerconfigjson";
        scene
            .secret("wrong", kind, &[(".dockerconfigjson", &wrong)])
            .await;
        scene
            .secret("text", "Opaque", &[("key", "user:the-password-of-nobody")])
            .await;
        let image = |name: &str, secret: Option<(&'static str, &'static str)>| {
            let name = name.to_owned();
            move |spec: &mut Value| {
                let registry = &mut spec["containerRegistry"];
                registry["imageName"] = json!(name);
                if let Some((name, key)) = secret {
                    registry["secretRef"] = json!({"name": name, "key": key});
                }
            }
        };
        let seed = "docker.io/alustan/terrform (image name to be built and push by the controller)";
        let base = |name: &'static str| {
            move |spec: &mut Value| spec["containerRegistry"]["baseImage"] = json!(name)
        };
        let (name, secret) = (
            "spec.containerRegistry.imageName",
            "spec.containerRegistry.secretRef",
        );
        let in_private = format!("{private}/{}/web", scene.namespace);
        let bads = [
            bad(
                &scene,
                "no-name",
                image(seed, None),
                "InvalidImageName",
                &[name, "(image name"],
            ),
            bad(
                &scene,
                "tagged",
                image("docker.io/alustan/x:1", None),
                "InvalidImageName",
                &[name, "tag"],
            ),
            bad(
                &scene,
                "closed",
                image("10.99.1.2:1/a/b", None),
                "RegistryUnreachable",
                &["spec.containerRegistry", "10.99.1.2:1"],
            ),
            bad(
                &scene,
                "anonymous",
                image(&in_private, None),
                "RegistryUnauthorized",
                &["spec.containerRegistry", private],
            ),
            bad(
                &scene,
                "wrong",
                image(&in_private, Some(("wrong", ".dockerconfigjson"))),
                "RegistryUnauthorized",
                &["spec.containerRegistry", private],
            ),
            bad(
                &scene,
                "no-secret",
                image(&in_private, Some(("nope", "x"))),
                "SecretNotFound",
                &[secret, "nope"],
            ),
            bad(
                &scene,
                "no-key",
                image(&in_private, Some(("text", "x"))),
                "SecretKeyNotFound",
                &[secret, "x"],
            ),
            bad(
                &scene,
                "no-json",
                image(&in_private, Some(("text", "key"))),
                "InvalidRegistryCredentials",
                &[secret, "key"],
            ),
            bad(
                &scene,
                "no-base",
                base("registry.alustan.test:5000/no/such-base:1"),
                "BaseImageNotFound",
                &["spec.containerRegistry.baseImage", "no/such-base:1"],
            ),
            bad(
                &scene,
                "odd-base",
                base("registry.alustan.test:5000/No Such"),
                "InvalidImageName",
                &["spec.containerRegistry.baseImage"],
            ),
        ];
        let mut good = scene.resource("web");
        good["spec"]["gitRepo"]["path"] = json!("good");
        Box::pin(each_has_its_reason(&scene, &good, &bads)).await;
        let said = scene.kubectl(&["get", "tf,events", "-o", "yaml"]).await;
        assert!(
            !said.contains("user:the-password-of-nobody"),
            "a Secret's text is repeated"
        );
    })
    .await;
}

#[tokio::test]
async fn what_the_schema_can_tell_is_refused_at_once() {
    scene("refused", |scene| async move {
        let long = format!("n{}", "o".repeat(50));
        let script = |value: Value| json!({"apply": value});
        let map = json!({"name": "a", "key": "b"});
        for (name, path, value, wanted) in [
            (
                "both",
                "scripts",
                script(json!({"inline": "x", "configMapRef": map})),
                "exactly one of inline and configMapRef must be given",
            ),
            (
                "neither",
                "scripts",
                script(json!({})),
                "exactly one of inline and configMapRef must be given",
            ),
            (
                "bucket",
                "backend",
                json!({"provider": "aws", "region": "x"}),
                "provider aws needs s3: the name of the bucket",
            ),
            (
                "region",
                "backend",
                json!({"provider": "aws", "s3": "x"}),
                "provider aws needs region",
            ),
            (
                "duration",
                "timeouts",
                json!({"plan": "soon"}),
                "such as 30s, 5m or 1h",
            ),
            (
                "retries",
                "retry",
                json!({"limit": 0}),
                "must be between 1 and 100",
            ),
            (
                "size",
                "cache",
                json!({"size": "big"}),
                "must be a quantity such as 5Gi",
            ),
            (
                &long,
                "variables",
                json!({}),
                "metadata.name: at most 50 characters",
            ),
        ] {
            let mut resource = scene.resource_of(name, "web");
            resource["spec"][path] = value;
            let refusal = scene
                .try_apply(&resource)
                .await
                .expect_err(name)
                .to_string();
            assert!(
                refusal.contains(wanted),
                "{name}: no {wanted:?} in {refusal}"
            );
        }
    })
    .await;
}

#[tokio::test]
async fn a_module_that_means_nothing_is_told_by_file_and_line_and_not_tried_again() {
    scene("meaning", |scene| async move {
        let module = "locals { a = 1 }\n\noutput \"a\" { value = var.nowhere }\n";
        scene.commit("web", &[("main.tf", module)]).await;
        scene.apply(&scene.resource("web")).await;
        let (reason, message) = scene.stalled("web").await;
        assert_eq!(reason, "ModuleInvalid", "{message}");
        for part in ["main.tf line 3", "nowhere", "no retry would help"] {
            assert!(message.contains(part), "no {part:?} in {message}");
        }
        scene.event("web", "ModuleInvalid").await;
        let window = Duration::from_secs(5);
        let writes = scene.writes_during(window).await;
        assert!(writes.is_empty(), "in {window:?}: {writes:?}");
        assert_eq!(scene.jobs("run").await, ["web-apply-1"]);

        let mended = module.replace("var.nowhere", "local.a");
        scene.commit("web", &[("main.tf", &mended)]).await;
        scene.ready_after_run("web", 2).await;
    })
    .await;
}
