use super::*;
use rstest::rstest;
use serde_json::{Value, json};

const OWNER: Owner<'_> = Owner {
    namespace: "team",
    name: "web",
};

fn managed_secrets() -> ManagedState {
    ManagedState {
        pointer: "web-state".to_owned(),
        slots: vec!["web-state-slot-0".to_owned()],
    }
}

fn spec(fields: Value) -> BackendSpec {
    serde_json::from_value(fields).unwrap()
}

/// Returns a `spec.backend` in the format of the first API version: bucket, lock table and region.
fn seed() -> Value {
    json!({ "provider": "aws", "s3": "s3-store", "dynamoDB": "db-table", "region": "us-east-1" })
}

fn resolve(spec: Option<&BackendSpec>, module: Option<&str>) -> Result<BackendInputs, Error> {
    inputs(spec, module, OWNER, Environment::new(), &managed_secrets())
}

#[test]
fn missing_backend_spec_selects_managed_backend() {
    let inputs = resolve(None, None).unwrap();
    assert_eq!(inputs.kind.as_deref(), Some("http"));
    assert!(inputs.write_block);
    assert_eq!(inputs.managed, Some(managed_secrets()));
    assert_eq!(address_of(&inputs), None);
}

#[test]
fn backend_block_of_the_module_is_kept() {
    let inputs = resolve(None, Some("gcs")).unwrap();
    assert_eq!(
        (inputs.kind, inputs.write_block, inputs.managed),
        (None, false, None)
    );
    assert!(inputs.config.is_empty());
}

#[test]
fn backend_without_provider_equals_missing_backend() {
    let spec = spec(json!({ "adopt": true }));
    for module in [None, Some("gcs"), Some("s3"), Some("local")] {
        let (given, none) = (resolve(Some(&spec), module), resolve(None, module));
        assert!(given.ok() == none.ok(), "{module:?}");
        assert_eq!(is_managed(Some(&spec), module), is_managed(None, module));
    }
}

#[test]
fn local_backend_of_the_module_alone_is_refused() {
    let error = resolve(None, Some("local")).err().unwrap();
    assert_eq!(
        (error.reason(), &error),
        (Reason::InvalidBackend, &Error::Lost)
    );
    let local = spec(json!({ "provider": "local" }));
    assert!(!resolve(Some(&local), Some("local")).unwrap().write_block);
}

#[rstest]
#[case::seed(seed(), "s3", json!({
    "bucket": "s3-store", "key": "team/web.tfstate", "region": "us-east-1",
    "dynamodb_table": "db-table", "encrypt": true,
}), "s3://s3-store/team/web.tfstate")]
#[case::lock_file(json!({"provider": "aws", "s3": "b", "region": "r", "key": "a/b"}), "s3", json!({
    "bucket": "b", "key": "a/b", "region": "r", "use_lockfile": true, "encrypt": true,
}), "s3://b/a/b")]
#[case::both_locks(
    json!({"provider": "aws", "s3": "b", "region": "r", "key": "k", "dynamoDB": "t", "lockFile": true}),
    "s3",
    json!({
        "bucket": "b", "key": "k", "region": "r", "dynamodb_table": "t", "use_lockfile": true,
        "encrypt": true,
    }),
    "s3://b/k"
)]
#[case::s3_compatible(
    json!({
        "provider": "aws", "s3": "b", "region": "r", "key": "k", "endpoint": "https://minio:9000/",
        "config": {"encrypt": false, "workspace_key_prefix": "w"},
    }),
    "s3",
    json!({
        "bucket": "b", "key": "k", "region": "r", "use_lockfile": true, "encrypt": false,
        "endpoints": {"s3": "https://minio:9000/"}, "workspace_key_prefix": "w",
        "use_path_style": true, "skip_credentials_validation": true,
        "skip_metadata_api_check": true, "skip_region_validation": true,
        "skip_requesting_account_id": true, "skip_s3_checksum": true,
    }),
    "s3://minio:9000/b/k"
)]
#[case::gcp(json!({"provider": "gcp", "gcs": "b"}), "gcs", json!({"bucket": "b", "prefix": "team/web"}), "gcs://b/team/web")]
#[case::azure(
    json!({"provider": "azure", "storageAccount": "a", "container": "c", "resourceGroup": "g"}),
    "azurerm",
    json!({
        "storage_account_name": "a", "container_name": "c", "resource_group_name": "g",
        "key": "team/web.tfstate",
    }),
    "azurerm://a/c/team/web.tfstate"
)]
#[case::kubernetes(json!({"provider": "kubernetes"}), "kubernetes", json!({
    "namespace": "team", "secret_suffix": "web-state", "in_cluster_config": true,
}), "kubernetes://team/web-state")]
#[case::pg(json!({"provider": "pg"}), "pg", json!({"schema_name": "team_web"}), "pg://")]
#[case::http(
    json!({"provider": "http", "address": "https://h/x", "lockAddress": "https://h/x/lock"}),
    "http",
    json!({"address": "https://h/x", "lock_address": "https://h/x/lock", "unlock_address": "https://h/x/lock"}),
    "http://h/x"
)]
#[case::local(json!({"provider": "local"}), "local", json!({
    "path": "/var/lib/alustan/state/terraform.tfstate",
}), "local:///var/lib/alustan/state/terraform.tfstate")]
#[case::generic(
    json!({"provider": "generic", "type": "oss", "config": {"bucket": "b", "key": "k"}}),
    "oss",
    json!({"bucket": "b", "key": "k"}),
    "oss://b/k"
)]
fn each_provider_maps_to_an_engine_backend(
    #[case] fields: Value,
    #[case] kind: &str,
    #[case] config: Value,
    #[case] address: &str,
) {
    let spec = spec(fields);
    let inputs = resolve(Some(&spec), None).unwrap();
    assert_eq!(
        (inputs.kind.as_deref(), inputs.write_block),
        (Some(kind), true)
    );
    assert_eq!(serde_json::to_value(&inputs.config).unwrap(), config);
    assert_eq!(address_of(&inputs).as_deref(), Some(address));
    let address = Some(address.to_owned()).filter(|address| !address.ends_with("://"));
    assert_eq!(address_of_spec(&spec, OWNER, None), address);
    // If the module has a `backend` block of the same type, the arguments are the same, and the runner writes no second block.
    let partial = resolve(Some(&spec), Some(kind)).unwrap();
    assert!(!partial.write_block && partial.config == inputs.config);
    let conflict = resolve(Some(&spec), Some("consul")).err().unwrap();
    assert_eq!(conflict.reason(), Reason::BackendConflict);
    assert!(conflict.to_string().contains("`backend \"consul\"` block"));
}

#[rstest]
#[case::argument_set_twice(json!({"provider": "aws", "s3": "b", "config": {"bucket": "c"}}), "config.bucket", "set spec.backend.s3 instead")]
#[case::missing_provider(json!({"config": {"a": 1}}), "config", "set another provider")]
#[case::path_of_local(json!({"provider": "local", "config": {"path": "/x"}}), "config", "managed and local")]
#[case::generic_s3(json!({"provider": "generic", "type": "s3"}), "type", "use provider: aws")]
#[case::no_lock(json!({"provider": "aws", "s3": "b", "lockFile": false}), "lockFile", "concurrent runs")]
#[case::long(json!({"provider": "pg", "schemaName": "é".repeat(32)}), "schemaName", "63 bytes")]
#[case::invalid_argument_name(json!({"provider": "gcp", "gcs": "b", "config": {"a-b": 1}}), "config.a-b", "lower case")]
#[case::password(json!({"provider": "generic", "type": "x", "config": {"password": "p"}}), "config.password", "secretRef")]
#[case::secret_key(json!({"provider": "aws", "s3": "b", "config": {"secret_key": "k"}}), "config.secret_key", "secretRef")]
#[case::nested_secret(
    json!({"provider": "azure", "config": {"a": [{"client_secret": "k"}]}}),
    "config.a.client_secret",
    "secretRef"
)]
#[case::client_key(json!({"provider": "kubernetes", "config": {"client_key": "k"}}), "config.client_key", "secretRef")]
#[case::endpoints(json!({"provider": "aws", "s3": "b", "config": {"endpoints": {"s3": "https://h"}}}), "config.endpoints", "spec.backend.endpoint")]
#[case::bootstrap_with_assume_role(
    json!({"provider": "aws", "s3": "b", "bootstrap": true, "config": {"assume_role": {"role_arn": "r"}}}),
    "config.assume_role",
    "cannot be combined with bootstrap"
)]
#[case::password_in_url(json!({"provider": "generic", "type": "consul", "config": {"address": "http://u:p@h"}}), "config.address", "secretRef")]
fn invalid_backend_is_refused_with_its_field(
    #[case] fields: Value,
    #[case] field: &str,
    #[case] why: &str,
) {
    let error = resolve(Some(&spec(fields)), None).err().unwrap();
    let text = error.to_string();
    assert_eq!(error.reason(), Reason::InvalidBackend);
    assert!(
        text.starts_with(&format!("spec.backend.{field}: ")),
        "{text}"
    );
    assert!(text.contains(why), "{text}");
}

#[rstest]
#[case(json!({"provider": "aws", "s3": "b"}), "key", "spec.backend.key")]
#[case(json!({"provider": "pg", "config": {"table_name": "t"}}), "table_name", "spec.backend.config.table_name")]
fn secret_key_of_a_spec_field_is_refused(
    #[case] fields: Value,
    #[case] key: &str,
    #[case] field: &str,
) {
    let data = Environment::from([(key.to_owned(), "x".to_owned())]);
    let text = inputs(Some(&spec(fields)), None, OWNER, data, &managed_secrets())
        .err()
        .unwrap()
        .to_string();
    assert!(text.starts_with("spec.backend.secretRef: "), "{text}");
    assert!(text.contains(key) && text.contains(field), "{text}");
}

#[rstest]
#[case::s3_endpoint("s3", json!({"bucket": "b", "key": "k"}), &[("AWS_ENDPOINT_URL_S3", "http://h:1")], "s3://h:1/b/k")]
#[case::gcs_endpoint("gcs", json!({"bucket": "b", "storage_custom_endpoint": "https://h/v1/b"}), &[], "gcs://h/b")]
#[case::kubernetes_host("kubernetes", json!({"secret_suffix": "s", "host": "https://h"}), &[], "kubernetes://h/default/s")]
#[case::consul_address("consul", json!({"path": "p", "address": "h:1"}), &[], "consul://h:1/p")]
#[case::pg_key_value_pairs("pg", json!({"conn_str": "user=u password='p' host=h port=1 dbname=d", "schema_name": "s"}), &[], "pg://h:1/d/s")]
#[case::pg_database_and_host_variable("pg", json!({"conn_str": "dbname=d", "schema_name": "s"}), &[("PGHOST", "h")], "pg://h/d/s")]
#[case::pg_environment("pg", json!({"schema_name": "s"}), &[("PGHOST", "h"), ("PGDATABASE", "d")], "pg://h/d/s")]
#[case::unknown_location("remote", json!({"organization": "o"}), &[], "remote://")]
fn state_address_includes_the_server(
    #[case] kind: &str,
    #[case] config: Value,
    #[case] environment: &[(&str, &str)],
    #[case] wanted: &str,
) {
    let config = serde_json::from_value(config).unwrap();
    let environment = environment
        .iter()
        .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
    assert_eq!(address(kind, &config, &environment.collect(), None), wanted);
}

#[test]
fn config_key_that_only_resembles_a_secret_is_accepted() {
    let config = json!({
        "skip_credentials_validation": true, "shared_credentials_files": ["/x"], "kms_key_id": "k", "kms_encryption_key": "projects/p/k",
        "assume_role_with_web_identity": {"web_identity_token_file": "/t"}, "endpoint_url": "https://h",
    });
    let spec = spec(json!({"provider": "aws", "s3": "b", "region": "r", "config": config}));
    assert!(resolve(Some(&spec), None).is_ok());
}

#[test]
fn secret_data_sets_environment_or_backend_config() {
    let data = ["AWS_ACCESS_KEY_ID", "conn_str", "https_proxy", "no-name"]
        .map(|name| (name.to_owned(), "x".to_owned()))
        .into();
    let inputs = inputs(None, None, OWNER, data, &managed_secrets()).unwrap();
    let names: Vec<_> = inputs.environment.into_keys().collect();
    assert_eq!(names, ["AWS_ACCESS_KEY_ID", "https_proxy", "no-name"]);
    assert_eq!(
        inputs.secret_config.into_keys().collect::<Vec<_>>(),
        ["conn_str"]
    );
}

#[test]
fn pg_state_address_comes_from_the_connection_string() {
    let spec = spec(json!({"provider": "pg"}));
    let url = "postgres://user:hidden@db:5432/states?sslmode=require".to_owned();
    for name in ["conn_str", "PG_CONN_STR"] {
        let data = Environment::from([(name.to_owned(), url.clone())]);
        let inputs = inputs(Some(&spec), None, OWNER, data, &managed_secrets()).unwrap();
        let address = address_of(&inputs);
        assert_eq!(address.as_deref(), Some("pg://db:5432/states/team_web"));
    }
}

#[rstest]
#[case::bucket("s3://b/k", true)]
#[case::database("pg://db/states/team_web", true)]
#[case::database_without_host("pg://", false)]
#[case::server("http://h/x", true)]
#[case::loopback_server("http://localhost:8080/x", false)]
#[case::local_volume("local:///var/lib/alustan/state/terraform.tfstate", false)]
#[case::consul_without_host("consul://x", false)]
#[case::managed_secret("secret://team/web-state", false)]
#[case::empty("", false)]
fn only_addresses_valid_in_every_pod_are_shared(#[case] address: &str, #[case] shared: bool) {
    assert_eq!(is_shared(address), shared);
}

#[test]
fn bucket_is_created_only_with_bootstrap() {
    assert_eq!(resolve(Some(&spec(seed())), None).unwrap().bootstrap, None);
    let mut config = seed();
    config["bootstrap"] = json!(true);
    let bootstrap = resolve(Some(&spec(config)), None)
        .unwrap()
        .bootstrap
        .unwrap();
    assert_eq!(
        (bootstrap.bucket.as_str(), bootstrap.table.as_deref()),
        ("s3-store", Some("db-table"))
    );
}

#[test]
fn only_local_backend_keeps_state_on_the_cache_volume() {
    assert!(is_on_the_volume(
        "local:///var/lib/alustan/state/terraform.tfstate"
    ));
    assert!(!is_on_the_volume("local://terraform.tfstate"));
    assert!(!is_on_the_volume("s3://var/lib/alustan"));
}

#[rstest]
#[case::bucket(
    json!({"provider": "aws", "s3": "b", "region": "r", "key": "web"}),
    "s3://b/env:/staging/web"
)]
#[case::bucket_with_prefix(
    json!({"provider": "aws", "s3": "b", "region": "r", "key": "web", "config": {"workspace_key_prefix": "ws"}}),
    "s3://b/ws/staging/web"
)]
#[case::bucket_with_parent_folders(
    json!({"provider": "aws", "s3": "b", "region": "r", "key": "../../a/./web"}),
    "s3://b/a/web"
)]
#[case::bucket_with_double_slash(
    json!({"provider": "aws", "s3": "b", "region": "r", "key": "a//web"}),
    "s3://b/env:/staging/a/web"
)]
#[case::gcs(json!({"provider": "gcp", "gcs": "b", "prefix": "web"}), "gcs://b/web#staging")]
#[case::azure(
    json!({"provider": "azure", "storageAccount": "a", "container": "c", "key": "web"}),
    "azurerm://a/c/webenv:staging"
)]
#[case::kubernetes(
    json!({"provider": "kubernetes", "secretSuffix": "web"}),
    "kubernetes://team/#staging-web"
)]
#[case::generic(
    json!({"provider": "generic", "type": "oss", "config": {"bucket": "b", "key": "web"}}),
    "oss://b/web#staging"
)]
fn workspace_is_part_of_the_state_address(#[case] fields: Value, #[case] address: &str) {
    let spec = spec(fields);
    let mut inputs = resolve(Some(&spec), None).unwrap();
    inputs.workspace = Some("staging".to_owned());
    assert_eq!(address_of(&inputs).as_deref(), Some(address));
    let of_spec = address_of_spec(&spec, OWNER, Some("staging"));
    assert_eq!(of_spec.as_deref(), Some(address));
    assert_ne!(address_of_spec(&spec, OWNER, None), of_spec);
}

#[test]
fn secrets_of_kubernetes_workspaces_have_one_address_each() {
    let address = |suffix: &str, workspace| {
        let spec = spec(json!({"provider": "kubernetes", "secretSuffix": suffix}));
        address_of_spec(&spec, OWNER, workspace)
    };
    assert_eq!(address("c", Some("a-b")), address("b-c", Some("a")));
    assert_eq!(address("y", Some("default-x")), address("x-y", None));
    assert_ne!(address("b", Some("a")), address("a-b", None));
}

#[rstest]
#[case::default_backend(json!({}), None, Some("managed"))]
#[case::managed(json!({"provider": "managed"}), None, Some("managed"))]
#[case::http(json!({"provider": "http", "address": "https://h/x"}), None, Some("http"))]
#[case::local(json!({"provider": "local"}), None, Some("local"))]
#[case::http_in_the_module(json!({}), Some("http"), Some("http"))]
#[case::bucket(json!({"provider": "aws", "s3": "b", "region": "r"}), None, None)]
#[case::bucket_in_the_module(json!({}), Some("s3"), None)]
#[case::cloud_in_the_module(json!({}), Some("cloud"), None)]
fn backend_with_one_workspace_refuses_others(
    #[case] fields: Value,
    #[case] module: Option<&str>,
    #[case] refused: Option<&str>,
) {
    let spec = spec(fields);
    let check = |workspace, variable| check_workspace(Some(&spec), module, workspace, variable);
    let refused = refused.map(str::to_owned);
    let error = check(Some("staging"), None).err();
    assert_eq!(error, refused.clone().map(Error::Workspace));
    let error = check(None, Some("staging")).err();
    assert_eq!(error, refused.map(Error::WorkspaceVariable));
    for variable in [None, Some(""), Some("default")] {
        assert_eq!(check(None, variable), Ok(()));
        assert_eq!(check(Some("default"), variable), Ok(()));
    }
}

#[test]
fn workspace_default_refuses_a_variable_with_another_one() {
    let spec = spec(json!({"provider": "gcp", "gcs": "b"}));
    let check = |workspace| check_workspace(Some(&spec), None, workspace, Some("staging"));
    assert_eq!(check(Some("default")), Err(Error::WorkspaceConflict));
    assert_eq!(check(Some("production")), Ok(()));
    assert_eq!(check(None), Ok(()));
}
