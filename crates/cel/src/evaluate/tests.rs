use rstest::rstest;
use serde_json::{Value, json};

use super::*;
use crate::OBJECT;

fn ingress() -> Value {
    json!({
        "metadata": {"name": "web", "labels": {"app.kubernetes.io/name": "web"}},
        "spec": {"replicas": 3, "rules": [{"host": "a"}, {"host": "b"}]},
        "status": {
            "ready": true, "load": 0.5, "replicas": 3,
            "loadBalancer": {"ingress": [{"hostname": "lb.example.com"}]},
        },
    })
}

#[rstest]
#[case("object.status.loadBalancer.ingress[0].hostname", json!("lb.example.com"))]
#[case("object.spec.replicas", json!(3))]
#[case("object.spec.replicas == object.status.replicas", json!(true))]
#[case("object.spec.replicas == 3 && object.spec.replicas > 2", json!(true))]
#[case("object.status.load", json!(0.5))]
#[case("object.spec.rules.map(r, r.host)", json!(["a", "b"]))]
#[case("object.metadata.labels['app.kubernetes.io/name']", json!("web"))]
#[case("{'n': object.spec.replicas}", json!({"n": 3}))]
#[case("has(object.status.gone) ? 'yes' : 'no'", json!("no"))]
#[case("object.status.load > 0.1 && object.spec.replicas > 1", json!(true))]
fn values_keep_their_types(#[case] expression: &str, #[case] wanted: Value) {
    assert_eq!(
        evaluate(expression, OBJECT, &ingress()),
        Ok(wanted),
        "{expression}"
    );
}

#[rstest]
#[case("object.status.gone")]
#[case("object.gone.status")]
#[case("object.status.loadBalancer.ingress[1].hostname")]
fn absent_field_is_reported_as_missing(#[case] expression: &str) {
    let nothing = evaluate(expression, OBJECT, &ingress()).unwrap_err();
    assert!(matches!(nothing, Nothing::Missing(_)), "{nothing:?}");
}

#[rstest]
#[case("object.status.", "invalid CEL expression: ")]
#[case(
    "objects.status",
    r#"undeclared reference "objects"; available: "object""#
)]
#[case("b'x'", "the result has type bytes, which JSON does not support")]
#[case("object.spec.rules + 1", "")]
#[case(
    "object.spec.rules.all(a, object.spec.rules.all(b, true))",
    "loops are nested more than 1 levels deep"
)]
fn expression_with_a_permanent_error_is_invalid(#[case] expression: &str, #[case] wanted: &str) {
    let nothing = evaluate(expression, OBJECT, &ingress()).unwrap_err();
    assert!(matches!(&nothing, Nothing::Invalid(_)), "{nothing:?}");
    assert!(nothing.to_string().contains(wanted), "{nothing}");
}

#[rstest]
#[case("'yes'")]
#[case("1")]
#[case("object")]
#[case("[object.status.ready]")]
fn non_boolean_expression_fails_the_check(#[case] expression: &str) {
    let wrong = check(expression, OBJECT).unwrap_err();
    let wanted = "the result must be a boolean, for example `object.status.ready == true`";
    assert_eq!(wrong.to_string(), wanted);
    assert_eq!(check("object.status.ready", OBJECT), Ok(()));
}

#[test]
fn expression_and_result_sizes_are_limited() {
    let long = format!("object.spec.replicas{}", " + 1".repeat(400));
    let wrong = evaluate(&long, OBJECT, &ingress()).unwrap_err();
    assert_eq!(
        wrong.to_string(),
        "the expression is longer than 1000 bytes"
    );
    // These expressions need little CPU time and have a large result, so that the size limit applies before the time limit, even on a busy
    // machine.
    let many = json!({"items": (0..30).collect::<Vec<_>>(), "text": "x".repeat(10_000)});
    let texts = "object.items.map(i, object)";
    let keys = "object.items.map(i, {object.text: i})";
    for expression in [texts, keys] {
        let wrong = evaluate(expression, OBJECT, &many).unwrap_err();
        assert_eq!(wrong.to_string(), "the result exceeds 262144 bytes");
    }
}

#[test]
fn error_message_contains_no_value() {
    let secret = json!({"data": {"password": "correct horse"}, "n": [1]});
    for expression in [
        "object.data.password + 1",
        "object.data < object.n",
        "object.data.password[object.n]",
        "-object.data.password",
    ] {
        let wrong = evaluate(expression, OBJECT, &secret).unwrap_err();
        assert!(!wrong.to_string().contains("horse"), "{wrong}");
    }
}

#[test]
fn slow_expression_is_aborted() {
    let many = json!({"items": (0..20_000).collect::<Vec<_>>()});
    let slow = "size(object.items.filter(i, !(i in object.items)))";
    assert_eq!(evaluate(slow, OBJECT, &many), Err(Nothing::TooSlow));
    let fast = "size(object.items.filter(i, i > 10))";
    assert_eq!(evaluate(fast, OBJECT, &many), Ok(json!(19_989)));
}
