//! Tests of `alustan-controller evaluate`, the child process in which the operator evaluates one CEL expression.

#![expect(clippy::unwrap_used, reason = "a test may fail where it stands")]

use std::io::Write as _;
use std::os::unix::process::ExitStatusExt as _;
use std::process::{Command, Output, Stdio};

use serde_json::{Value, json};

/// Runs a child process that evaluates `expression` for a Deployment. Returns its exit status and standard output.
fn evaluate(expression: &str) -> Output {
    let object = json!({
        "apiVersion": "apps/v1", "kind": "Deployment",
        "metadata": {"name": "web", "generation": 2},
        "spec": {"replicas": 3},
    });
    evaluate_for(expression, &object)
}

fn evaluate_for(expression: &str, object: &Value) -> Output {
    let mut child = Command::new(env!("CARGO_BIN_EXE_alustan-controller"))
        .arg("evaluate")
        .env_clear()
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let request = serde_json::to_vec(&(expression, object)).unwrap();
    child.stdin.take().unwrap().write_all(&request).unwrap();
    child.wait_with_output().unwrap()
}

#[test]
fn child_process_writes_the_result_of_an_expression() {
    let result = |expression: &str| -> Value {
        let output = evaluate(expression);
        assert!(output.status.success(), "{expression}: {}", output.status);
        serde_json::from_slice(&output.stdout).unwrap()
    };
    for (expression, wanted) in [
        ("object.spec.replicas", json!(3)),
        ("object.metadata.generation + 1", json!(3)),
        (
            "object.kind + '/' + object.metadata.name",
            json!("Deployment/web"),
        ),
    ] {
        assert_eq!(result(expression), json!({"Ok": wanted}), "{expression}");
    }
    let missing = result("object.status.replicas");
    assert!(missing["Err"]["Missing"].is_string(), "{missing}");
    let invalid = result("object.");
    assert!(invalid["Err"]["Invalid"].is_string(), "{invalid}");
}

#[test]
fn expression_over_memory_limit_ends_its_process() {
    let doubled = format!("['xxxxxxxx']{}", ".map(x,x+x)".repeat(30));
    let output = evaluate(&doubled);
    assert!(output.status.signal().is_some(), "{}", output.status);
    assert!(output.stdout.is_empty());
}

#[test]
fn object_of_1_5_mib_can_be_evaluated() {
    let condition = json!({
        "type": "Ready", "status": "True", "reason": "Available",
        "lastTransitionTime": "2026-01-01T00:00:00Z", "message": "",
    });
    let count = (3 << 19) / condition.to_string().len();
    let object = json!({
        "apiVersion": "example.com/v1", "kind": "Large", "metadata": {"name": "large"},
        "status": {"conditions": vec![condition; count]},
    });
    let output = evaluate_for("object.status.conditions.size()", &object);
    assert!(output.status.success(), "{}", output.status);
    let result: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(result, json!({"Ok": count}));
}
