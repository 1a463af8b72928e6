//! Repositories: revisions, credentials, submodules and rewritten history.

use alustan_api::Terraform;
use alustan_tests::{Scene, condition, scene};
use kube::api::DeleteParams;
use serde_json::{Value, json};

const OLD: &str = "output \"version\" { value = \"old\" }";
const NEW: &str = "output \"version\" { value = \"new\" }";

/// Returns a resource for the test's repository `repository`. `git` replaces the branch in `spec.gitRepo`.
fn resource(scene: &Scene, name: &str, repository: &str, git: &Value) -> Value {
    let mut resource = scene.resource_of(name, repository);
    let fields = resource["spec"]["gitRepo"].as_object_mut().unwrap();
    fields.remove("branch");
    fields.extend(git.as_object().unwrap().clone());
    resource
}

fn source_reason(tf: &Terraform) -> Option<&str> {
    condition(tf, "SourceReady").map(|condition| condition.reason.as_str())
}

async fn version(scene: &Scene, name: &str) -> String {
    scene.data(&format!("{name}-outputs")).await["version"].clone()
}

#[tokio::test]
async fn git_tag_is_followed_and_commit_is_pinned() {
    scene("git-tag", |scene| async move {
        let first = scene.commit("web", &[("main.tf", OLD)]).await;
        let annotated = ["tag", "--annotate", "--message=one", "v1", first.as_str()];
        scene.git("web", &annotated).await;
        let second = scene.commit("web", &[("main.tf", NEW)]).await;
        scene
            .apply(&resource(&scene, "tag", "web", &json!({"tag": "v1"})))
            .await;
        scene
            .apply(&resource(&scene, "fixed", "web", &json!({"commit": first})))
            .await;
        for name in ["tag", "fixed"] {
            let tf = scene.ready(name).await;
            assert_eq!(tf.status.unwrap().source.unwrap().revision, first);
            assert_eq!(version(&scene, name).await, "old");
        }
        assert_eq!(scene.jobs("build").await.len(), 1, "one content, one build");
        let moved = [
            "tag",
            "--force",
            "--annotate",
            "--message=two",
            "v1",
            second.as_str(),
        ];
        scene.git("web", &moved).await;
        scene.ready_after_run("tag", 2).await;
        assert_eq!(version(&scene, "tag").await, "new");
        assert_eq!(version(&scene, "fixed").await, "old");
        scene.git("web", &["tag", "--delete", "v1"]).await;
        scene
            .wait("tag", "a word about the tag", |tf| {
                source_reason(tf) == Some("TagNotFound")
            })
            .await;
        // A commit that no branch contains any more is still fetched by its id.
        scene
            .git("web", &["update-ref", "-d", "refs/heads/main"])
            .await;
        let orphan = resource(&scene, "orphan", "web", &json!({"commit": second}));
        scene.apply(&orphan).await;
        scene.ready("orphan").await;
        assert_eq!(version(&scene, "orphan").await, "new");
        let never = "0".repeat(39) + "1";
        scene
            .apply(&resource(&scene, "never", "web", &json!({"commit": never})))
            .await;
        let message = scene.reason("never", "CommitNotFound").await;
        assert!(message.contains(&never), "{message}");
    })
    .await;
}

#[tokio::test]
async fn git_ssh_keys_of_all_types_work_without_a_passphrase() {
    scene("git-keys", |scene| async move {
        scene.commit("web", &[("main.tf", OLD)]).await;
        let known = scene.ssh_file("known_hosts");
        let file = scene.cluster.folder.join("ssh/authorized_keys");
        let kinds: [(&str, &[&str]); 4] = [
            ("ed25519", &["-t", "ed25519", "-N", ""]),
            ("rsa", &["-t", "rsa", "-b", "2048", "-N", ""]),
            ("ecdsa", &["-t", "ecdsa", "-b", "256", "-N", ""]),
            ("locked", &["-t", "ed25519", "-N", "hunter22"]),
        ];
        let mut public_keys = Vec::new();
        for (name, how) in kinds {
            let (private, public) = scene.ssh_key(how).await;
            let mut text = std::fs::read_to_string(&file).unwrap();
            text.push_str(&public);
            std::fs::write(&file, text).unwrap();
            public_keys.push(public);
            let data = [("id", private.as_str()), ("known_hosts", known.as_str())];
            scene.secret(name, "Opaque", &data).await;
            let url = format!("git@git.alustan.test:{}/web.git", scene.namespace);
            let git = json!({"url": url, "sshKeySecret": {"name": name, "key": "id"}});
            scene.apply(&resource(&scene, name, "web", &git)).await;
        }
        for name in ["ed25519", "rsa", "ecdsa"] {
            scene.ready(name).await;
        }
        let message = scene.reason("locked", "SshKeyEncrypted").await;
        assert!(message.contains("passphrase"), "{message}");
        let text = std::fs::read_to_string(&file).unwrap();
        let others: Vec<&str> = text
            .lines()
            .filter(|line| {
                !public_keys
                    .iter()
                    .any(|guest| guest.trim_end() == line.trim_end())
            })
            .collect();
        std::fs::write(&file, others.join("\n") + "\n").unwrap();
    })
    .await;
}

/// The engine fetches the private modules over ssh and HTTPS during the image build.
#[tokio::test]
async fn git_credentials_reach_private_modules_and_not_the_image() {
    scene("git-modules", |scene| async move {
        let owner = scene.namespace.clone();
        let module = |value: &str| format!("output \"value\" {{ value = \"{value}\" }}");
        scene.commit("by-ssh", &[("x/main.tf", &module("ssh"))]).await;
        let private = format!("private/{owner}/by-https");
        scene
            .commit_with(&private, |folder| {
                std::fs::write(folder.join("main.tf"), module("https")).unwrap();
            })
            .await;
        let main = format!(
            "module \"a\" {{ source = \"git::ssh://git@git.alustan.test/{owner}/by-ssh.git//x?ref=main\" }}\n\
             module \"b\" {{ source = \"git::https://git.alustan.test/{private}.git\" }}\n\
             output \"both\" {{ value = \"${{module.a.value}} ${{module.b.value}}\" }}\n"
        );
        scene.commit("web", &[("main.tf", &main)]).await;
        let (key, known) = (scene.ssh_file("id_ed25519"), scene.ssh_file("known_hosts"));
        let data = [("id", key.as_str()), ("known_hosts", known.as_str())];
        scene.secret("ssh", "Opaque", &data).await;
        let login = [("username", "alustan"), ("password", "alustan-test")];
        scene.secret("login", "Opaque", &login).await;
        let git = json!({
            "sshKeySecret": {"name": "ssh", "key": "id"}, "credentialsSecret": {"name": "login"},
        });

        let mut without = resource(&scene, "without", "web", &json!({}));
        without["spec"]["containerRegistry"]["imageName"] =
            json!(format!("registry.alustan.test:5000/{owner}/without"));
        scene.apply(&without).await;
        let message = scene.reason("without", "ModulesUnavailable").await;
        assert!(message.contains("sshKeySecret"), "{message}");
        scene.annotate("without", alustan_api::ABANDON, "true").await;
        scene.delete("without", &DeleteParams::background()).await;

        scene.apply(&resource(&scene, "web", "web", &git)).await;
        let tf = scene.ready("web").await;
        assert_eq!(scene.data("web-outputs").await["both"], "ssh https");
        let image = tf.status.unwrap().image.unwrap();
        let files = scene.image_text("web", &image.digest.unwrap()).await;
        assert!(files.contains("module.a.value"), "the module is in the image");
        let line = key.lines().nth(1).unwrap();
        for secret in ["alustan-test", line, "git-credentials", "known_hosts"] {
            assert!(!files.contains(secret), "{secret} is in the image");
        }
    })
    .await;
}

#[tokio::test]
async fn git_submodules_are_fetched_only_if_enabled() {
    scene("git-submodule", |scene| async move {
        let value = "output \"value\" { value = \"from a submodule\" }";
        let shared = scene.commit("shared", &[("x/main.tf", value)]).await;
        let names = "[submodule \"modules\"]\n\tpath = modules\n\turl = ../shared.git\n";
        let main =
            "module \"x\" { source = \"./modules/x\" }\noutput \"a\" { value = module.x.value }\n";
        scene
            .commit("web", &[("main.tf", main), (".gitmodules", names)])
            .await;
        // Creates the commit that `git submodule add` would create.
        let tree = scene.git("web", &["ls-tree", "main"]).await;
        let file = tempfile::tempdir().unwrap();
        let file = file.path().join("index").display().to_string();
        let entry = format!("160000,{shared},modules");
        let script = "export GIT_INDEX_FILE=$1; git -C $2 -c safe.directory=* read-tree main \
                      && git -C $2 -c safe.directory=* update-index --add --cacheinfo $3 \
                      && git -C $2 -c safe.directory=* write-tree";
        let folder = scene
            .cluster
            .folder
            .join("git")
            .join(&scene.namespace)
            .join("web.git")
            .display()
            .to_string();
        let made = ["-c", script, "sh", &file, &folder, &entry];
        let made = scene.cluster.run("sh", &made).await;
        assert!(!tree.contains("160000"), "{tree}");
        let commit = ["commit-tree", made.trim(), "-p", "main", "-m", "submodule"];
        let commit = scene.git("web", &commit).await;
        scene
            .git("web", &["update-ref", "refs/heads/main", &commit])
            .await;

        scene
            .apply(&resource(&scene, "web", "web", &json!({})))
            .await;
        let message = scene.reason("web", "ModuleNotFound").await;
        assert!(message.contains("gitRepo.submodules: true"), "{message}");
        scene
            .apply(&resource(
                &scene,
                "web",
                "web",
                &json!({"submodules": true}),
            ))
            .await;
        scene.ready("web").await;
        assert_eq!(scene.data("web-outputs").await["a"], "from a submodule");
    })
    .await;
}

#[tokio::test]
async fn git_rewritten_branch_is_applied_and_missing_one_reported() {
    scene("git-branches", |scene| async move {
        // The operator reports a repository as empty after the deletion of its only branch.
        scene.commit("web", &[("main.tf", OLD)]).await;
        let tree = scene.git("web", &["rev-parse", "main^{tree}"]).await;
        scene
            .git("web", &["update-ref", "-d", "refs/heads/main"])
            .await;
        let web = resource(&scene, "web", "web", &json!({"branch": "main"}));
        scene.apply(&web).await;
        let message = scene.reason("web", "RepositoryEmpty").await;
        assert!(message.contains("push a commit"), "{message}");
        let first = scene
            .git("web", &["commit-tree", &tree, "-m", "first"])
            .await;
        scene
            .git("web", &["update-ref", "refs/heads/main", &first])
            .await;
        scene.ready("web").await;
        assert_eq!(version(&scene, "web").await, "old");

        // Rewrites the branch: the old and the new history have no common commit.
        scene
            .git("web", &["update-ref", "-d", "refs/heads/main"])
            .await;
        let second = scene.commit("web", &[("main.tf", NEW)]).await;
        let parents = scene
            .git("web", &["log", "--format=%P", "-1", &second])
            .await;
        assert_eq!(parents, "", "no common history");
        let applied = scene.ready_at("web", &second).await;
        assert_eq!(version(&scene, "web").await, "new");
        let run = applied.status.unwrap().run;

        // A resource whose branch was deleted starts no run and can still be destroyed.
        scene
            .git("web", &["update-ref", "refs/heads/other", &second])
            .await;
        scene
            .git("web", &["symbolic-ref", "HEAD", "refs/heads/other"])
            .await;
        scene
            .git("web", &["update-ref", "-d", "refs/heads/main"])
            .await;
        let tf = scene
            .wait("web", "a word about the branch", |tf| {
                source_reason(tf) == Some("BranchNotFound")
            })
            .await;
        let message = &condition(&tf, "SourceReady").unwrap().message;
        assert!(message.contains("its default branch is other"), "{message}");
        assert_eq!(tf.status.unwrap().run, run);
        scene.delete("web", &DeleteParams::foreground()).await;
        scene.nothing_left().await;
    })
    .await;
}
