use proptest::prelude::*;
use serde_json::json;

use super::*;

/// A request as sent by metacontroller v4.17.2.
fn request() -> Value {
    json!({
        "controller": {
            "kind": "CompositeController",
            "apiVersion": "metacontroller.k8s.io/v1alpha1",
            "metadata": {"name": "alustan", "uid": "c", "resourceVersion": "1", "generation": 1},
            "spec": {
                "parentResource": {"apiVersion": "alustan.io/v1alpha1", "resource": "terraforms"},
                "hooks": {"sync": {"version": "v2", "webhook": {"url": "http://operator/sync"}}},
                "generateSelector": true,
            },
            "status": {},
        },
        "parent": {
            "apiVersion": "alustan.io/v1alpha1",
            "kind": "Terraform",
            "metadata": {"name": "web", "namespace": "team", "uid": "u", "generation": 3},
            "spec": {"anything": true},
            "status": {"state": "Success", "observedGeneration": 3},
        },
        "children": {},
        "related": {},
        "finalizing": false,
    })
}

/// Returns the request in which `value` replaces the value at JSON pointer `pointer`. `None` removes the value.
fn with(pointer: &str, value: Option<Value>) -> Value {
    let mut request = request();
    let (parent, field) = pointer.rsplit_once('/').unwrap();
    let object = request
        .pointer_mut(parent)
        .unwrap()
        .as_object_mut()
        .unwrap();
    match value {
        Some(value) => drop(object.insert(field.to_owned(), value)),
        None => drop(object.remove(field)),
    }
    request
}

fn parse(request: &Value) -> Result<HookRequest, Refusal> {
    read(request.to_string().as_bytes())
}

#[test]
fn sync_request_is_parsed() {
    let web = HookRequest {
        namespace: "team".to_owned(),
        name: "web".to_owned(),
        uid: "u".to_owned(),
        status: json!({"state": "Success", "observedGeneration": 3}),
        finalizing: false,
    };
    assert_eq!(parse(&request()), Ok(web.clone()));
    let equivalent = [
        with("/controller/spec/hooks/sync/version", Some(json!("v1"))),
        with("/controller/spec/hooks/sync/version", None),
        with("/controller/kind", None),
        with("/controller/spec/hooks", None),
        with("/children", Some(json!({"Job.batch/v1": {}}))),
        with("/related", Some(json!({"ConfigMap.v1": {"team/a": {}}}))),
        with("/children", Some(Value::Null)),
    ];
    for request in &equivalent {
        assert_eq!(parse(request), Ok(web.clone()), "{request}");
    }
    let finalizing = HookRequest {
        finalizing: true,
        ..web.clone()
    };
    assert_eq!(
        parse(&with("/finalizing", Some(json!(true)))),
        Ok(finalizing)
    );
    let without_status = HookRequest {
        status: Value::Null,
        ..web
    };
    assert_eq!(parse(&with("/parent/status", None)), Ok(without_status));
}

#[test]
fn unsupported_request_is_refused_with_reason() {
    let jobs = json!({"Job.batch/v1": {"team/web-apply-1": {}}});
    let refused = [
        (with("/controller", None), 400, "InvalidRequest"),
        (with("/parent", None), 400, "InvalidRequest"),
        (with("/parent", Some(Value::Null)), 400, "InvalidRequest"),
        (
            with("/parent/metadata/name", Some(json!(""))),
            400,
            "InvalidRequest",
        ),
        (
            with("/parent/metadata/namespace", None),
            400,
            "InvalidRequest",
        ),
        (with("/parent/metadata/uid", None), 400, "InvalidRequest"),
        (with("/children", Some(json!([]))), 400, "InvalidRequest"),
        (
            with("/finalizing", Some(json!("yes"))),
            400,
            "InvalidRequest",
        ),
        // A DecoratorController sends these fields.
        (with("/object", Some(json!({}))), 400, "InvalidRequest"),
        (with("/attachments", Some(json!({}))), 400, "InvalidRequest"),
        (with("/parent/kind", Some(json!("Pod"))), 422, "UnknownKind"),
        (
            with("/parent/apiVersion", Some(json!("alustan.io/v2"))),
            422,
            "UnknownKind",
        ),
        (
            with("/controller/kind", Some(json!("DecoratorController"))),
            422,
            "UnknownController",
        ),
        (
            with("/controller/spec/hooks/sync/version", Some(json!("v3"))),
            422,
            "UnknownHookVersion",
        ),
        (with("/children", Some(jobs)), 422, "ChildrenClaimed"),
        (
            with("/related", Some(json!({"Secret.v1": {}}))),
            422,
            "SecretsShown",
        ),
    ];
    for (request, status, reason) in refused {
        let refusal = parse(&request).unwrap_err();
        assert_eq!(
            (refusal.status, refusal.reason),
            (status, reason),
            "{request}"
        );
        let body: Value = serde_json::from_str(&refusal.body()).unwrap();
        assert_eq!(body["reason"], reason);
        assert!(!body["message"].as_str().unwrap().is_empty());
    }
    let unknown_field = parse(&with("/customized", Some(json!(1)))).unwrap_err();
    assert!(
        unknown_field.message.contains("`customized`"),
        "{}",
        unknown_field.message
    );
    let claimed = with(
        "/children",
        Some(json!({"Job.batch/v1": {"a": {}, "b": {}}})),
    );
    let claimed = parse(&claimed).unwrap_err().message;
    assert!(claimed.contains("2 objects of Job.batch/v1"), "{claimed}");
    assert!(claimed.contains("spec.childResources"), "{claimed}");
}

#[test]
fn invalid_name_or_namespace_is_refused() {
    let long = "a".repeat(254);
    let request_with = |field: &str, name: &str| {
        let pointer = format!("/parent/metadata/{field}");
        parse(&with(&pointer, Some(json!(name))))
    };
    for (field, name) in [
        ("namespace", "../x"),
        ("namespace", "a.b"),
        ("namespace", "Team"),
        ("namespace", "-a"),
        ("namespace", &long[..64]),
        ("name", "../x"),
        ("name", "a/b"),
        ("name", "a%2fb"),
        ("name", "a..b"),
        ("name", "a-"),
        ("name", &long),
    ] {
        let refusal = request_with(field, name).unwrap_err();
        assert_eq!(
            (refusal.status, refusal.reason),
            (400, "InvalidRequest"),
            "{field}: {name}"
        );
    }
    for (field, name) in [
        ("namespace", &long[..63]),
        ("name", &long[..253]),
        ("name", "0.a-b"),
    ] {
        assert!(request_with(field, name).is_ok(), "{field}: {name}");
    }
}

#[test]
fn version_of_the_called_hook_is_checked() {
    let mut request = with("/finalizing", Some(json!(true)));
    request["controller"]["spec"]["hooks"]["sync"]["version"] = json!("v3");
    request["controller"]["spec"]["hooks"]["finalize"] = json!({"version": "v1"});
    assert!(parse(&request).is_ok());
    request["controller"]["spec"]["hooks"]["finalize"] = json!({"version": "v9"});
    assert_eq!(parse(&request).unwrap_err().reason, "UnknownHookVersion");
}

#[test]
fn response_has_only_fields_of_hook_version_2() {
    let answer = HookResponse::unchanged(&parse(&request()).unwrap());
    let status = TerraformStatus {
        message: "applied".to_owned(),
        observed_generation: Some(3),
        ..TerraformStatus::default()
    };
    let body: Value = serde_json::from_str(&answer.with_status(&status).body()).unwrap();
    let fields: Vec<_> = body.as_object().unwrap().keys().collect();
    assert_eq!(
        fields,
        ["children", "finalized", "resyncAfterSeconds", "status"]
    );
    assert_eq!(body["children"], json!([]));
    assert_eq!(body["status"]["message"], "applied");
    assert_eq!(body["status"]["observedGeneration"], 3);
}

#[test]
fn entity_tag_matches_weak_tags_and_lists() {
    let tag = entity_tag("{}");
    assert_ne!(tag, entity_tag("{ }"));
    for matching in [tag.clone(), format!("W/{tag}"), format!("\"a\", {tag}")] {
        assert!(is_known(&matching, &tag), "{matching}");
    }
    for different in ["", "*", "\"a\"", tag.trim_matches('"')] {
        assert!(!is_known(different, &tag), "{different}");
    }
}

#[test]
fn resync_interval_is_rounded_to_fixed_steps() {
    let at_rest = |seconds| Pace::AtRest(SignedDuration::from_secs(seconds)).seconds();
    assert_eq!(
        [3_600, 30, 29, 10, 9, 0, -5].map(at_rest),
        [30, 30, 10, 10, 2, 2, 2]
    );
    assert_eq!(Pace::AtWork.seconds(), 2);
    assert_eq!(Pace::UntilChanged.seconds(), 0);
}

fn anything() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        "[a-zA-Z0-9/ ]{0,8}".prop_map(Value::from),
    ];
    leaf.prop_recursive(4, 24, 4, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            prop::collection::btree_map("[a-zA-Z]{0,10}", inner, 0..4)
                .prop_map(|map| Value::Object(map.into_iter().collect())),
        ]
    })
}

/// JSON pointers to the fields of a request that `any_value_in_any_field_is_read_or_refused` replaces by arbitrary values.
const POINTERS: [&str; 10] = [
    "/controller",
    "/controller/spec/hooks",
    "/controller/spec/hooks/sync",
    "/parent",
    "/parent/kind",
    "/parent/metadata",
    "/parent/status",
    "/children",
    "/related",
    "/finalizing",
];

proptest! {
    #[test]
    fn any_bytes_are_read_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..512)) {
        let refusal = read(&bytes).unwrap_err();
        prop_assert_eq!(refusal.status, 400);
    }

    #[test]
    fn any_value_in_any_field_is_read_or_refused(index in 0..POINTERS.len(), value in anything()) {
        let request = with(POINTERS[index], Some(value));
        match parse(&request) {
            Ok(parsed) => prop_assert!(!parsed.name.is_empty() && !parsed.namespace.is_empty()),
            Err(refusal) => prop_assert!(matches!(refusal.status, 400 | 422), "{:?}", refusal),
        }
    }
}
