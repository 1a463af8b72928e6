//! Which commits count, and how often a content is built.

use alustan_api::{Terraform, run::RunKind};
use alustan_tests::scene;
use serde_json::json;

fn revision(tf: &Terraform) -> Option<&str> {
    Some(&tf.status.as_ref()?.source.as_ref()?.revision)
}

const STACK: &str = r#"
module "x" { source = "../../modules/x" }
output "x" { value = module.x.value }
"#;

#[tokio::test]
async fn only_a_commit_to_the_module_or_what_it_uses_counts() {
    scene("commits", |scene| async move {
        let mut files = vec![
            ("stacks/web/main.tf", STACK),
            ("modules/x/main.tf", "output \"value\" { value = 1 }"),
            ("modules/y/main.tf", "output \"value\" { value = 1 }"),
            ("README.md", "one"),
        ];
        scene.commit("web", &files).await;
        let mut web = scene.resource("web");
        web["spec"]["gitRepo"]["path"] = json!("stacks/web");
        scene.apply(&web).await;
        scene.ready("web").await;
        assert_eq!(scene.data("web-outputs").await["x"], "1");

        files[2] = ("modules/y/main.tf", "output \"value\" { value = 2 }");
        files[3] = ("README.md", "two");
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

        files[1] = ("modules/x/main.tf", "output \"value\" { value = 2 }");
        let local = scene.commit("web", &files).await;
        scene.ready_after_run("web", 2).await;
        assert_eq!(scene.data("web-outputs").await["x"], "2");

        files.push(("stacks/web/more.tf", "output \"more\" { value = 3 }"));
        let inside = scene.commit("web", &files).await;
        let status = scene.ready_after_run("web", 3).await.status.unwrap();
        assert_eq!(scene.data("web-outputs").await["more"], "3");
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
                    format!("commit {}..{}", short(&local), short(&inside))
                ),
                (RunKind::Apply, triggers[1].1.clone()),
                (RunKind::Apply, "created".to_owned()),
            ]
        );
        assert!(triggers[1].1.ends_with(&short(&local)), "{triggers:?}");
    })
    .await;
}

#[tokio::test]
async fn two_resources_with_one_content_build_once() {
    scene("once", |scene| async move {
        scene
            .commit(
                "shared",
                &[(
                    "main.tf",
                    "variable \"v\" {}\noutput \"v\" { value = var.v }",
                )],
            )
            .await;
        for name in ["one", "two"] {
            let mut resource = scene.resource_of(name, "shared");
            resource["spec"]["variables"] = json!({"v": name});
            scene.apply(&resource).await;
        }
        for name in ["one", "two"] {
            scene.ready(name).await;
            assert_eq!(scene.data(&format!("{name}-outputs")).await["v"], name);
        }
        assert_eq!(scene.jobs("build").await.len(), 1);
        // The one that made the build goes: what the other one needs stays.
        for name in ["one", "two"] {
            scene
                .delete(name, &kube::api::DeleteParams::foreground())
                .await;
        }
        scene.nothing_left().await;
    })
    .await;
}
