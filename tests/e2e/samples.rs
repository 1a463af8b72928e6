//! Sample resources of `deploy/examples`. The tests change only the namespace and the credentials. In the dev cluster, the names of
//! github.com, Docker Hub and AWS resolve to local servers.

use alustan_tests::{Scene, around, scene};
use kube::api::DeleteParams;
use serde_json::{Value, json};

const NAME: &str = "example-terraformconfig";
/// Value of `AWS_SECRET_ACCESS_KEY`. The AWS emulator accepts any value.
const KEY: &str = "x7-marker-of-a-backend-key-9q";
const MODULE: &str = r#"
variable "var1" {}
variable "var2" {}
resource "terraform_data" "a" { input = "${var.var1}, ${var.var2}" }
output "both" { value = terraform_data.a.output }
"#;

/// Returns the objects of an example, with the test's namespace and the credentials for the local servers.
async fn example(scene: &Scene, name: &str) -> Vec<Value> {
    let file = format!("deploy/examples/{name}/resource.yaml");
    let text = scene
        .cluster
        .run(
            "kubectl",
            &["create", "--dry-run=client", "-o", "json", "-f", &file],
        )
        .await;
    let stream = serde_json::Deserializer::from_str(&text).into_iter::<Value>();
    let mut objects = Vec::new();
    for object in stream {
        let mut object = object.unwrap();
        object["metadata"]["namespace"] = json!(scene.namespace);
        if object["kind"] == "Terraform" {
            object["spec"]["backend"]["secretRef"] = json!({"name": "aws"});
        }
        objects.push(object);
    }
    scene.aws("s3-store", "db-table").await;
    let aws = [
        ("AWS_ACCESS_KEY_ID", "test"),
        ("AWS_SECRET_ACCESS_KEY", KEY),
    ];
    scene.secret("aws", "Opaque", &aws).await;
    let hub = scene.docker_config("https://index.docker.io/v1/", "alustan", "alustan-test");
    scene
        .secret("my-dockerhub-secret", "Opaque", &[("dockerhub-cred", &hub)])
        .await;
    let (key, known) = (scene.ssh_file("id_ed25519"), scene.ssh_file("known_hosts"));
    let ssh = [("ssh-privatekey", key.as_str()), ("known_hosts", &known)];
    scene
        .secret("my-ssh-secret", "kubernetes.io/ssh-auth", &ssh)
        .await;
    scene
        .commit_with("example/terraform-repo", |folder| {
            std::fs::create_dir(folder.join("terraform")).unwrap();
            std::fs::write(folder.join("terraform/main.tf"), MODULE).unwrap();
        })
        .await;
    objects
}

async fn apply(scene: &Scene, objects: &[Value]) {
    for object in objects {
        let (good, output) = scene
            .cluster
            .output("kubectl", &["apply", "-f", "-"], Some(&object.to_string()))
            .await;
        assert!(good, "{output}");
    }
}

#[tokio::test]
async fn samples_apply_unchanged_and_keep_their_state_in_s3() {
    scene("samples", |scene| async move {
        let objects = example(&scene, "basic-configmap").await;
        apply(&scene, &objects).await;
        scene.ready(NAME).await;
        scene
            .log(&format!("{NAME}-apply-1"), "This is the apply script")
            .await;
        let pod = scene.pod_of(&format!("{NAME}-apply-1")).await;
        let pulls = pod.spec.unwrap().image_pull_secrets.unwrap();
        assert_eq!(pulls[0].name, format!("{NAME}-registry"));

        // The sample `basic-inline` has the same name, repository and image as `basic-configmap`.
        let objects = example(&scene, "basic-inline").await;
        apply(&scene, &objects).await;
        let status = scene.ready(NAME).await.status.unwrap();
        let key = format!("{}/{NAME}.tfstate", scene.namespace);
        assert_eq!(status.state_address, Some(format!("s3://s3-store/{key}")));
        assert_eq!(
            scene.data(&format!("{NAME}-outputs")).await["both"],
            "value1, value2"
        );
        // The number of runs varies: the AWS SDK may repeat the lock request of a run, and then the run fails because of its own lock.
        let run = scene.run_number(NAME).await;
        scene
            .log(&format!("{NAME}-apply-{run}"), "Apply complete!")
            .await;
        let state = scene.s3("s3-store", &key).await;
        assert!(state.contains("terraform_data"), "{state}");
        let all = scene.all_that_can_be_read().await;
        assert!(!all.contains(KEY), "{}", around(&all, KEY));
        scene.delete(NAME, &DeleteParams::foreground()).await;
        let state = scene.s3("s3-store", &key).await;
        assert!(state.contains("\"resources\": []"), "{state}");
        scene.nothing_left().await;
    })
    .await;
}
