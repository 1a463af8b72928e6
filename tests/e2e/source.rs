//! Where modules come from.

use alustan_tests::scene;
use serde_json::{Value, json};

#[tokio::test]
async fn a_module_is_found_by_every_form_of_address() {
    scene("forms", |scene| async move {
        let owner = scene.namespace.clone();
        scene
            .commit(
                "repo",
                &[
                    ("stack/main.tf", "output \"a\" { value = \"found\" }"),
                    ("README.md", ""),
                ],
            )
            .await;
        let (key, known) = (scene.ssh_file("id_ed25519"), scene.ssh_file("known_hosts"));
        scene
            .secret(
                "ssh",
                "kubernetes.io/ssh-auth",
                &[("ssh-privatekey", &key), ("known_hosts", &known)],
            )
            .await;
        scene
            .secret("ca", "Opaque", &[("ca.crt", &scene.authority())])
            .await;
        let ssh = json!({"sshKeySecret": {"name": "ssh", "key": "ssh-privatekey"}});
        let ca = json!({"credentialsSecret": {"name": "ca"}});
        let forms: Vec<(&str, String, Option<&str>, Value)> = vec![
            (
                "https",
                format!("https://git.alustan.test/{owner}/repo"),
                Some("stack"),
                json!({}),
            ),
            (
                "dot-git",
                format!("https://git.alustan.test/{owner}/repo.git//stack"),
                None,
                json!({}),
            ),
            (
                "scp",
                format!("git@git.alustan.test:{owner}/repo.git"),
                Some("stack"),
                ssh.clone(),
            ),
            (
                "ssh",
                format!("ssh://git@git.alustan.test/{owner}/repo//stack"),
                None,
                ssh.clone(),
            ),
            (
                "seed-ssh",
                format!("git@github.com:{owner}/repo/stack"),
                None,
                ssh,
            ),
            (
                "seed-https",
                format!("https://github.com/{owner}/repo/stack"),
                None,
                ca,
            ),
        ];
        for (name, url, path, more) in &forms {
            let mut resource = scene.resource_of(name, "repo");
            let git = resource["spec"]["gitRepo"].as_object_mut().unwrap();
            git.insert("url".to_owned(), json!(url));
            git.extend(path.map(|path| ("path".to_owned(), json!(path))));
            git.extend(more.as_object().unwrap().clone());
            scene.apply(&resource).await;
        }
        for (name, ..) in &forms {
            scene.ready(name).await;
            assert_eq!(scene.data(&format!("{name}-outputs")).await["a"], "found");
        }
        assert_eq!(scene.jobs("build").await.len(), 1, "one content, one build");
    })
    .await;
}

#[tokio::test]
async fn a_private_repository_is_read_with_user_and_password_once_they_are_right() {
    scene("private", |scene| async move {
        let repository = format!("private/{}", scene.namespace);
        scene
            .commit_with(&repository, |folder| {
                std::fs::write(folder.join("main.tf"), "").unwrap();
            })
            .await;
        scene
            .secret(
                "login",
                "Opaque",
                &[("username", "alustan"), ("password", "wrong")],
            )
            .await;
        let mut web = scene.resource("web");
        web["spec"]["gitRepo"]["url"] = json!(format!("https://git.alustan.test/{repository}"));
        web["spec"]["gitRepo"]["credentialsSecret"] = json!({"name": "login"});
        scene.apply(&web).await;
        let message = scene.reason("web", "GitAuthenticationFailed").await;
        assert!(!message.contains("wrong"), "{message}");
        scene
            .secret(
                "login",
                "Opaque",
                &[("username", "alustan"), ("password", "alustan-test")],
            )
            .await;
        scene.ready("web").await;
    })
    .await;
}
