//! Values that the API server defaults, keeps and prunes.

use alustan_api::Terraform;
use serde_json::{Value, json};

use crate::space::{Space, resource, with, with_all};

#[tokio::test]
async fn minimal_resource_gets_all_defaults() {
    let space = Space::new().await;
    let stored = space.apply(&resource("web")).await.unwrap();
    let hour = "3600s";
    assert_eq!(
        stored["spec"],
        json!({
            "gitRepo": {"url": "https://127.0.0.1:1/team/infra", "interval": "60s"},
            "containerRegistry": {
                "imageName": "127.0.0.1:1/team/infra", "insecure": false, "provider": "generic",
            },
            "driftDetection": {"mode": "Correct", "interval": hour},
            "retry": {"limit": 5, "minBackoff": "10s", "maxBackoff": "600s"},
            "history": {"runs": 10, "values": "Full"},
            "timeouts": {"plan": "1800s", "apply": hour, "destroy": hour},
            "approval": {"mode": "Auto", "destroy": "Auto", "emptying": "Ask"},
            "deletionPolicy": "Destroy",
            "deletionProtection": false,
            "suspend": false,
            "mode": "Apply",
            "cache": {"size": "5Gi"},
        })
    );
    assert_eq!(stored.get("status"), None);
}

#[tokio::test]
async fn given_values_are_kept_beside_defaults() {
    let space = Space::new().await;
    let web = with_all(
        resource("web"),
        json!({"/retry/limit": 2, "/cache/enabled": false}),
    );
    let stored = space.apply(&web).await.unwrap();
    assert_eq!(
        stored["spec"]["retry"],
        json!({"limit": 2, "minBackoff": "10s", "maxBackoff": "600s"})
    );
    assert_eq!(
        stored["spec"]["cache"],
        json!({"enabled": false, "size": "5Gi"})
    );
}

/// Arguments alone must not select an engine from the catalogue of the operator.
#[tokio::test]
async fn engine_arguments_set_no_engine_name() {
    let space = Space::new().await;
    let web = with(resource("web"), "/engine", Some(json!({"parallelism": 3})));
    let stored = space.apply(&web).await.unwrap();
    assert_eq!(
        stored["spec"]["engine"],
        json!({"parallelism": 3, "allowSwitch": false, "refresh": true})
    );
}

#[tokio::test]
async fn defaults_of_crd_and_program_are_equal() {
    let space = Space::new().await;
    let written = resource("web");
    let stored = space.apply(&written).await.unwrap();
    let read: Terraform = serde_json::from_value(written).unwrap();
    let filled: Terraform = serde_json::from_value(stored).unwrap();
    assert_eq!(read.spec, filled.spec);
}

#[tokio::test]
async fn variables_of_any_type_are_kept() {
    let space = Space::new().await;
    let variables = json!({
        "text": "value", "empty": "", "number": 3, "fraction": 1.5, "negative": -1,
        "large": 9_007_199_254_740_993_i64, "yes": true, "nothing": null,
        "list": [1, "two", null, {"three": 3}], "no_list": [],
        "map": {"a": {"b": [null, {"c": null}]}}, "no_map": {}, "TF_VAR_region": "us-east-1",
    });
    let web = with(resource("web"), "/variables", Some(variables.clone()));
    let stored = space.apply(&web).await.unwrap();
    assert_eq!(stored["spec"]["variables"], variables);
    let tf: Terraform = serde_json::from_value(stored).unwrap();
    assert_eq!(serde_json::to_value(tf.spec.variables).unwrap(), variables);
}

/// Helm templates may render `null` for a missing value.
#[tokio::test]
async fn null_equals_an_absent_field() {
    let space = Space::new().await;
    for field in [
        "/backend",
        "/workspace",
        "/engine",
        "/scripts",
        "/scripts/apply",
        "/outputs",
        "/outputs/secretName",
        "/runner",
        "/cache/size",
        "/cache/storageClassName",
        "/driftDetection",
        "/driftDetection/interval",
        "/retry",
        "/timeouts/plan",
        "/gitRepo/branch",
        "/gitRepo/tag",
        "/gitRepo/commit",
        "/gitRepo/submodules",
        "/gitRepo/caBundle",
        "/gitRepo/sshKeySecret",
        "/gitRepo/interval",
        "/containerRegistry/secretRef",
        "/containerRegistry/insecure",
        "/containerRegistry/builder",
        "/runner/pod",
        "/runner/pod/resources",
        "/runner/pod/affinity",
        "/containerRegistry/builder/pod",
        "/containerRegistry/provider",
        "/containerRegistry/prune",
        "/containerRegistry/dockerfile",
    ] {
        let web = with(resource("web"), field, Some(Value::Null));
        let stored = space
            .try_create(&web)
            .await
            .unwrap_or_else(|error| panic!("{field}: {error}"));
        let tf: Terraform =
            serde_json::from_value(stored).unwrap_or_else(|error| panic!("{field}: {error}"));
        let bare: Terraform = serde_json::from_value(resource("web")).unwrap();
        let mut spec = tf.spec;
        if field == "/scripts/apply" {
            spec.scripts = None;
        }
        if field.starts_with("/outputs/") {
            spec.outputs = None;
        }
        if field.starts_with("/runner/") {
            spec.runner = None;
        }
        if field.starts_with("/containerRegistry/builder/") {
            spec.container_registry.builder = None;
        }
        assert_eq!(spec, bare.spec, "{field}");
    }
}

#[tokio::test]
async fn unknown_field_is_refused_if_strict_and_otherwise_pruned() {
    let space = Space::new().await;
    let web = with(resource("web"), "/gitRepo/brunch", Some(json!("main")));
    let refused = space.apply(&web).await.unwrap_err();
    assert!(refused.contains(".spec.gitRepo.brunch"), "{refused}");
    let stored = space.try_create(&web).await.unwrap();
    assert_eq!(stored["spec"]["gitRepo"].get("brunch"), None);

    let file = space.server.folder().join("unknown.yaml");
    std::fs::write(&file, web.to_string()).unwrap();
    let create = |how: &str| {
        let file = file.to_str().unwrap();
        let namespace = space.namespace.as_str();
        let arguments = [
            "create",
            "--dry-run=server",
            "-n",
            namespace,
            "-f",
            file,
            how,
        ];
        space.server.kubectl_with_stderr(&arguments)
    };
    let unknown = "unknown field \"spec.gitRepo.brunch\"";
    let (made, warning) = create("--validate=warn").unwrap();
    assert!(made.contains("web created"), "{made}");
    assert!(warning.contains(unknown), "{warning}");
    let refused = create("--validate=strict").unwrap_err();
    assert!(refused.contains(unknown), "{refused}");
}
