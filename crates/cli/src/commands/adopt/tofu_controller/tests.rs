use rstest::rstest;

use alustan_api::Terraform;

use super::super::fields::{Handling, table};
use super::*;

/// An object as the API server returns it, with the defaults of the CRD.
fn object(spec: &Value) -> Value {
    let mut object = json!({
        "apiVersion": "infra.contrib.fluxcd.io/v1alpha2", "kind": "Terraform",
        "metadata": {"name": "web", "namespace": "team"},
        "spec": {
            "interval": "10m0s", "path": "./stacks/web", "approvePlan": "auto", "workspace": "default",
            "sourceRef": {"kind": "GitRepository", "name": "infra", "namespace": "flux-system"},
            "force": false, "disableDriftDetection": false, "destroyResourcesOnDeletion": false,
            "serviceAccountName": "tf-runner", "alwaysCleanupRunnerPod": true,
            "runnerTerminationGracePeriodSeconds": 30, "upgradeOnInit": true, "refreshBeforeApply": false,
            "parallelism": 0, "storeReadablePlan": "none", "retryStrategy": "StaticInterval",
            "runnerPodTemplate": {"metadata": {}, "spec": {}},
        },
    });
    for (name, value) in spec.as_object().unwrap() {
        object["spec"][name] = value.clone();
    }
    object
}

fn source() -> Value {
    json!({
        "metadata": {"name": "infra", "namespace": "flux-system"},
        "spec": {"url": "https://git.test/team/infra", "interval": "1m0s", "ref": {"branch": "main"}},
    })
}

fn mapped(spec: &Value) -> Adoption {
    map(&object(spec), Some(&source()), None, &Options::of_test()).unwrap()
}

/// Returns the fields in `notes`.
fn noted(adoption: &Adoption) -> Vec<(Handling, &str)> {
    let notes = adoption.notes.iter();
    notes.map(|note| (note.handling, &*note.path)).collect()
}

#[test]
fn documentation_has_every_field_of_the_crd() {
    table::assert_documented("migration-tofu-controller.md", ROWS);
}

#[test]
fn object_with_defaults_is_mapped() {
    let adoption = mapped(&json!({}));
    let wanted = json!({
        "apiVersion": "alustan.io/v1alpha1", "kind": "Terraform",
        "metadata": {"name": "web", "namespace": "team"},
        "spec": {
            "suspend": true,
            "gitRepo": {
                "url": "https://git.test/team/infra", "branch": "main", "path": "stacks/web",
                "interval": "1m0s",
            },
            "containerRegistry": {"imageName": "registry.test/web"},
            "backend": {"provider": "kubernetes", "secretSuffix": "web", "adopt": true},
            "approval": {"mode": "Manual"},
            "deletionPolicy": "Orphan",
            "driftDetection": {"interval": "10m0s"},
            "runner": {"serviceAccountName": "tf-runner"},
        },
    });
    assert_eq!(adoption.manifest(), wanted);
    let wanted = [(Handling::Differs, "spec.serviceAccountName")];
    assert_eq!(noted(&adoption), wanted);
    assert_eq!(
        adoption.stop.unwrap().patch,
        json!({"spec": {"suspend": true}})
    );
    let automatic = &adoption.cleanup[0].commands[0];
    assert!(automatic.contains(r#"{"mode":"Auto"}"#), "{automatic}");
}

#[test]
fn fields_with_an_equivalent_are_mapped() {
    let adoption = mapped(&json!({
        "approvePlan": "", "disableDriftDetection": true, "destroyResourcesOnDeletion": true,
        "backendConfig": {"secretSuffix": "network", "inClusterConfig": true, "labels": {"a": "b"}},
        "vars": [{"name": "region", "value": "eu"}, {"name": "zones", "value": ["a", 1]}, {"name": "pw", "value": "x"}],
        "varsFrom": [
            {"kind": "Secret", "name": "db", "varsKeys": ["host", "password:pw"], "optional": true},
            {"kind": "ConfigMap", "name": "settings"},
        ],
        "values": {"size": 3},
        "retryInterval": "30s", "remediation": {"retries": 7},
        "dependsOn": [{"name": "base"}, {"name": "dns", "namespace": "infra"}],
        "writeOutputsToSecret": {"name": "out", "labels": {"l": "v"}, "outputs": ["vpc_id", "subnet_ids:subnets"]},
        "serviceAccountName": "deployer",
        "runnerPodTemplate": {"spec": {"envFrom": [{"secretRef": {"name": "aws"}}]}},
    }));
    let spec = &adoption.manifest()["spec"];
    let wanted = json!({
        "backend": {
            "provider": "kubernetes", "secretSuffix": "network", "adopt": true,
            "config": {"labels": {"a": "b"}},
        },
        "approval": {"mode": "Manual"},
        "driftDetection": {"mode": "Ignore", "interval": "10m0s"},
        "deletionPolicy": "Destroy",
        "variables": {"region": "eu", "zones": ["a", 1], "values": {"size": 3}},
        "variablesFrom": [
            {"secretRef": {"name": "db", "keys": {"host": "host", "pw": "password"}, "optional": true}},
            {"configMapRef": {"name": "settings"}},
        ],
        "retry": {"minBackoff": "30s", "maxBackoff": "30s", "limit": 7},
        "dependsOn": [{"name": "base"}, {"name": "dns", "namespace": "infra"}],
        "outputs": {
            "secretName": "out", "labels": {"l": "v"},
            "keys": {"vpc_id": "vpc_id", "subnets": "subnet_ids"},
        },
        "runner": {"serviceAccountName": "deployer", "envFromSecrets": [{"name": "aws"}]},
    });
    for (field, value) in wanted.as_object().unwrap() {
        assert_eq!(&spec[field], value, "{field}");
    }
    assert_eq!(adoption.cleanup.len(), 1);
}

#[rstest]
#[case::plan_only(json!({"planOnly": true, "approvePlan": "auto"}))]
#[case::approval_disabled(json!({"approvePlan": "disable"}))]
fn object_that_never_applies_is_plan_only(#[case] spec: Value) {
    let adoption = mapped(&spec);
    let spec = &adoption.manifest()["spec"];
    assert_eq!(spec["mode"], "PlanOnly");
    assert_eq!(spec["approval"], json!({"mode": "Manual"}));
    assert_eq!(spec["driftDetection"]["mode"], Value::Null);
    assert!(adoption.cleanup.iter().all(|step| {
        let mut commands = step.commands.iter();
        !commands.any(|command| command.contains("Auto"))
    }));
}

/// Returns a spec that sets exactly the field `path`.
fn spec_with(path: &str) -> Value {
    let mut value = match path {
        _ if path.ends_with("optional") => json!(true),
        _ if path.ends_with("url") => json!("https://git.test/a/b"),
        _ => json!("x3-value"),
    };
    for part in path.rsplit('.') {
        value = match part.strip_suffix("[]") {
            Some(list) => json!({ list: [value] }),
            None => json!({ part: value }),
        };
    }
    value
}

/// Each field of the CRD is mapped, or the report contains it.
#[test]
fn every_field_without_an_equivalent_is_reported() {
    for row in ROWS {
        let notes = notes(ROWS, "spec.", &spec_with(row.path));
        let path = format!("spec.{}", row.path);
        let is_noted = notes.iter().any(|note| note.path == path);
        assert_eq!(is_noted, row.handling != Handling::Has, "{path}");
    }
}

#[rstest]
#[case::name_is_the_suffix(json!({}), Some("tfstate-default-web"))]
#[case::suffix(json!({"backendConfig": {"secretSuffix": "s"}}), Some("tfstate-default-s"))]
#[case::workspace(json!({"workspace": "dev"}), Some("tfstate-dev-web"))]
#[case::disabled(json!({"backendConfig": {"disable": true}}), None)]
#[case::custom(json!({"backendConfig": {"customConfiguration": "backend \"s3\" {}"}}), None)]
#[case::cloud(json!({"cloud": {"organization": "o"}}), None)]
#[case::other_cluster(json!({"backendConfig": {"configPath": "/c"}}), None)]
fn state_secret_is_that_of_the_kubernetes_backend(
    #[case] spec: Value,
    #[case] wanted: Option<&str>,
) {
    assert_eq!(place(&object(&spec)).unwrap().secret().as_deref(), wanted);
}

#[rstest]
#[case::workspace(json!({"workspace": "-dev"}))]
#[case::number(json!({"backendConfig": {"secretSuffix": "web-1"}}))]
#[case::digits(json!({"backendConfig": {"secretSuffix": "1"}}))]
#[case::long(json!({"backendConfig": {"secretSuffix": "s".repeat(64)}}))]
#[case::cloud(json!({"cloud": {"organization": "o", "token": "x3-secret"}}))]
#[case::other_cluster(json!({"backendConfig": {"configPath": "/c"}}))]
#[case::workspace_of_a_block(json!({"backendConfig": {"disable": true}, "workspace": ".dev"}))]
fn state_without_equivalent_is_pushed_to_the_managed_state(#[case] spec: Value) {
    let adoption = mapped(&spec);
    let backend = json!({"provider": "managed", "adopt": true});
    assert_eq!(adoption.get("backend"), Some(&backend));
    let commands = adoption.steps.iter().flat_map(|step| &step.commands);
    let commands: Vec<&String> = commands.collect();
    let push = "kubectl alustan state push web web.tfstate -n team";
    assert!(
        commands.iter().any(|command| *command == push),
        "{commands:?}"
    );
    assert!(!format!("{adoption:?}").contains("x3-secret"));
}

#[rstest]
#[case::secret(json!({}), json!({"provider": "kubernetes", "secretSuffix": "web", "adopt": true}))]
#[case::block(json!({"backendConfig": {"disable": true}}), json!({"adopt": true}))]
fn workspace_keeps_its_state(#[case] mut spec: Value, #[case] backend: Value) {
    spec["workspace"] = json!("dev");
    let adoption = mapped(&spec);
    assert_eq!(adoption.get("workspace"), Some(&json!("dev")));
    assert_eq!(adoption.get("backend"), Some(&backend));
}

#[test]
fn var_files_and_engine_arguments_are_mapped() {
    let adoption = mapped(&json!({
        "tfVarsFiles": ["stacks/common.tfvars", "./stacks/web/prod.tfvars", "../x.tfvars", "a.txt"],
        "parallelism": 20, "tfstate": {"lockTimeout": "5m"},
    }));
    let files = json!(["../common.tfvars", "prod.tfvars"]);
    assert_eq!(adoption.get("varFiles"), Some(&files));
    let engine = json!({"parallelism": 20, "lockTimeout": "5m"});
    assert_eq!(adoption.get("engine"), Some(&engine));
    assert!(noted(&adoption).contains(&(Handling::Lacks, "spec.tfVarsFiles[]")));
}

#[test]
fn block_of_the_module_keeps_its_backend() {
    let adoption = mapped(&json!({"backendConfig": {"disable": true}}));
    assert_eq!(adoption.get("backend"), Some(&json!({"adopt": true})));
}

#[test]
fn custom_backend_with_credentials_is_mapped() {
    let adoption = mapped(&json!({
        "backendConfig": {"customConfiguration": "backend \"pg\" {\n schema_name = \"web\"\n}"},
        "backendConfigsFrom": [{"kind": "Secret", "name": "pg"}],
    }));
    let backend = json!({
        "provider": "pg", "schemaName": "web", "adopt": true, "secretRef": {"name": "pg"},
    });
    assert_eq!(adoption.get("backend"), Some(&backend));
}

#[rstest]
#[case(json!({"destroy": true}), "destroys its infrastructure")]
#[case(json!({"backendConfig": {"customConfiguration": "cloud {}"}}), "customConfiguration")]
#[case(json!({"backendConfig": {"customConfiguration": "backend \"local\" {}"}}), "not reachable")]
#[case(json!({"backendConfig": {"secretSuffix": "../x"}}), "name of a Secret")]
fn object_that_cannot_be_adopted_is_refused(#[case] spec: Value, #[case] why: &str) {
    let error = map(&object(&spec), Some(&source()), None, &Options::of_test()).unwrap_err();
    assert!(error.contains(why), "{error}");
}

#[test]
fn source_other_than_git_needs_a_url() {
    let error = map(&object(&json!({})), None, None, &Options::of_test()).unwrap_err();
    assert!(error.contains("--url"), "{error}");
    let options = Options {
        url: Some("https://git.test/x/y".into()),
        ..Options::of_test()
    };
    let adoption = map(&object(&json!({})), None, None, &options).unwrap();
    let wanted = json!({"url": "https://git.test/x/y", "path": "stacks/web"});
    assert_eq!(adoption.get("gitRepo"), Some(&wanted));
}

#[test]
fn deleted_object_is_refused() {
    let mut object = object(&json!({}));
    object["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
    let error = map(&object, Some(&source()), None, &Options::of_test()).unwrap_err();
    assert!(error.contains("being deleted"), "{error}");
}

#[test]
fn invalid_values_are_not_copied_and_reported() {
    let adoption = mapped(&json!({
        "path": "../x", "interval": "5d", "serviceAccountName": "A B",
        "vars": [{"name": "a b", "value": "x"}],
        "varsFrom": [{"kind": "Secret", "name": "../x"}, {"kind": "Pod", "name": "x"}],
        "values": {"a": "${{ .x }}"},
        "dependsOn": [{"name": "A"}],
        "writeOutputsToSecret": {"name": "out", "outputs": ["a b"]},
        "remediation": {"retries": -1},
    }));
    let spec = adoption.manifest()["spec"].clone();
    for field in [
        "variables",
        "variablesFrom",
        "dependsOn",
        "runner",
        "retry",
        "driftDetection",
    ] {
        assert_eq!(spec.get(field), None, "{field}");
    }
    let paths: Vec<&str> = noted(&adoption).into_iter().map(|(_, path)| path).collect();
    for path in [
        "spec.path",
        "spec.interval",
        "spec.serviceAccountName",
        "spec.vars[]",
        "spec.varsFrom[]",
        "spec.values",
        "spec.dependsOn[]",
        "spec.writeOutputsToSecret.outputs[]",
        "spec.remediation.retries",
    ] {
        assert!(paths.contains(&path), "{path}: {paths:?}");
    }
}

#[test]
fn state_of_opentofu_selects_the_engine() {
    let state = Summary {
        is_opentofu: true,
        ..Summary::default()
    };
    let adoption = map(
        &object(&json!({})),
        Some(&source()),
        Some(&state),
        &Options::of_test(),
    )
    .unwrap();
    assert_eq!(adoption.get("engine"), Some(&json!({"name": "opentofu"})));
}

/// The CRD accepts the structure of the resource.
#[test]
fn manifest_is_a_terraform_resource() {
    let manifest = mapped(&json!({"vars": [{"name": "a", "value": {"b": null}}]})).manifest();
    let tf: Terraform = serde_json::from_value(manifest.clone()).unwrap();
    let again = serde_json::to_value(&tf).unwrap();
    let fields = manifest["spec"].as_object().unwrap();
    assert!(
        fields
            .keys()
            .all(|field| again["spec"].get(field).is_some())
    );
}
