//! Output of `kubectl explain` and `kubectl get`.

use kube::api::{Patch, PatchParams};
use serde_json::json;

use crate::server::{Server, until};
use crate::space::{Space, resource};

/// Returns the output of `kubectl explain`. Retries, because the API server publishes the schema shortly after it serves the CRD.
async fn explain(server: &Server, field: &str) -> String {
    until(field, async || server.kubectl(&["explain", field])).await
}

#[tokio::test]
async fn explain_describes_fields() {
    let server = Server::shared().await;
    for (field, words) in [
        (
            "terraform",
            vec![
                "builds an immutable runner image",
                "spec <Object> -required-",
            ],
        ),
        (
            "tf.spec.gitRepo",
            vec![
                "url <string> -required-",
                "git@host:owner/repo.git",
                "branch <string>",
                "Default: the default branch of the repository",
                "known_hosts",
            ],
        ),
        (
            "tf.spec.variables",
            vec!["Any JSON value is allowed", "TF_VAR_"],
        ),
        (
            "tf.spec.backend.provider",
            vec!["ENUM: managed aws gcp azure kubernetes pg http local generic"],
        ),
        ("tf.spec.driftDetection.interval", vec!["Default: 1h"]),
        (
            "tf.status.state",
            vec!["ENUM: Pending Building Planning AwaitingApproval Applying"],
        ),
    ] {
        let text = explain(&server, field)
            .await
            .split_whitespace()
            .collect::<Vec<_>>()
            .join(" ");
        for word in words {
            assert!(text.contains(word), "{field}: `{word}` is not in:\n{text}");
        }
    }
}

fn words(line: &str) -> Vec<&str> {
    line.split("  ")
        .map(str::trim)
        .filter(|word| !word.is_empty())
        .collect()
}

#[tokio::test]
async fn get_prints_the_columns_of_a_resource() {
    let space = Space::new().await;
    space.apply(&resource("web")).await.unwrap();
    let get = |arguments: &[&str]| {
        let all = [&["-n", &space.namespace, "get"], arguments].concat();
        space.server.kubectl(&all).unwrap()
    };
    let fresh = get(&["tf"]);
    let header = ["NAME", "STATE", "READY", "REASON", "PLAN", "RUN", "AGE"];
    assert_eq!(words(fresh.lines().next().unwrap()), header, "{fresh}");

    let status = json!({
        "apiVersion": "alustan.io/v1alpha1", "kind": "Terraform", "metadata": {"name": "web"},
        "status": {
            "state": "Success", "message": "Terraform applied successfully", "run": 3,
            "conditions": [{
                "type": "Ready", "status": "True", "reason": "Applied", "message": "",
                "lastTransitionTime": "2026-01-01T00:00:00Z",
            }],
            "source": {"revision": "4f6a95f"},
            "plan": {"summary": "+2 ~1 -0", "add": 2, "change": 1, "destroy": 0},
        },
    });
    let parameters = PatchParams::apply("tests").validation_strict();
    let raw = space.raw();
    raw.patch_status("web", &parameters, &Patch::Apply(&status))
        .await
        .unwrap();
    let row = get(&["terraforms"]);
    let row = words(row.lines().nth(1).unwrap()).join("|");
    assert!(
        row.starts_with("web|Success|True|Applied|+2 ~1 -0|3|"),
        "{row}"
    );

    let wide = get(&["tf", "-o", "wide"]);
    let mut lines = wide.lines();
    let columns = [&header[..], &["OBJECTS", "REVISION", "MESSAGE"]].concat();
    assert_eq!(words(lines.next().unwrap()), columns);
    let row = words(lines.next().unwrap()).join("|");
    assert!(
        row.ends_with("|4f6a95f|Terraform applied successfully"),
        "{row}"
    );
    assert!(get(&["alustan"]).contains("web"), "the category lists it");
}
