//! Commits that start a build and a run, and commits that start neither because they change no file of the module.

use alustan_api::{Terraform, run::RunKind};
use alustan_tests::scene;
use serde_json::json;

fn revision(tf: &Terraform) -> Option<&str> {
    Some(&tf.status.as_ref()?.source.as_ref()?.revision)
}

const STACK: &str = r#"
module "x" { source = "../../modules/x" }
output "x" { value = "${module.x.value} ${trimspace(file("${path.module}/../../shared/policy"))}" }
"#;

const X: &str = r#"
module "y" { source = "../y" }
output "value" { value = module.y.value }
"#;

#[tokio::test]
async fn only_commits_to_used_files_start_a_run() {
    scene("commits", |scene| async move {
        let mut files = vec![
            ("stacks/web/main.tf", STACK),
            ("modules/x/main.tf", X),
            ("modules/y/main.tf", "output \"value\" { value = 1 }"),
            ("stacks/other/main.tf", "this is no module"),
            ("shared/policy", "strict"),
            ("README.md", "one"),
        ];
        scene.commit("web", &files).await;
        let mut web = scene.resource("web");
        web["spec"]["gitRepo"]["url"] = json!(format!("{}//stacks", scene.https("web")));
        web["spec"]["gitRepo"]["path"] = json!("web");
        web["spec"]["gitRepo"]["include"] = json!(["shared/policy"]);
        scene.apply(&web).await;
        scene.ready("web").await;
        assert_eq!(scene.data("web-outputs").await["x"], "1 strict");

        files[3] = ("stacks/other/main.tf", "nor is this");
        files[5] = ("README.md", "two");
        let outside = scene.commit("web", &files).await;
        let tf = scene
            .wait("web", "the new commit", |tf| revision(tf) == Some(&outside))
            .await;
        let status = tf.status.unwrap();
        assert_eq!(
            (status.run, status.runs.len()),
            (Some(1), 1),
            "{:?}",
            status.runs
        );
        assert_eq!(scene.jobs("build").await.len(), 1);
        assert_eq!(scene.jobs("run").await.len(), 1);

        files[2] = ("modules/y/main.tf", "output \"value\" { value = 2 }");
        let local = scene.commit("web", &files).await;
        scene.ready_after_run("web", 2).await;
        assert_eq!(scene.data("web-outputs").await["x"], "2 strict");

        files[4] = ("shared/policy", "lax");
        let included = scene.commit("web", &files).await;
        let status = scene.ready_after_run("web", 3).await.status.unwrap();
        assert_eq!(scene.data("web-outputs").await["x"], "2 lax");
        assert_eq!(scene.jobs("build").await.len(), 3);
        let short = |commit: &str| commit[..7].to_owned();
        let triggers: Vec<_> = status
            .runs
            .iter()
            .map(|run| (run.kind, run.trigger.clone()))
            .collect();
        assert_eq!(
            triggers,
            [
                (
                    RunKind::Apply,
                    format!("commit {}..{}", short(&local), short(&included))
                ),
                (RunKind::Apply, triggers[1].1.clone()),
                (RunKind::Apply, "created".to_owned()),
            ]
        );
        assert!(triggers[1].1.ends_with(&short(&local)), "{triggers:?}");
    })
    .await;
}
