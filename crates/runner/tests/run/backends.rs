//! Backends that need a service outside of the tests. `init` fails to connect, but the engine accepts the rendered configuration.

use std::os::unix::fs::PermissionsExt;

use alustan_api::BackendSpec;
use alustan_api::report::FailureClass;
use alustan_api::run::{ManagedState, RunKind};
use alustan_backends::Owner;
use rstest::rstest;
use serde_json::{Value, json};

use crate::world::{Ran, World};

const MODULE: &str = "output \"x\" { value = 1 }\n";

/// Executes a run with the backend `spec`. `secret`: data of the Secret of the backend.
fn run(spec: Value, secret: &[(&str, &str)]) -> (World, Ran) {
    let mut world = World::new(MODULE);
    let spec: BackendSpec = serde_json::from_value(spec).unwrap();
    let owner = Owner {
        namespace: "team",
        name: "web",
    };
    let secret = secret
        .iter()
        .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
    let managed = ManagedState {
        pointer: "web-state".to_owned(),
        slots: Vec::new(),
    };
    let inputs =
        alustan_backends::inputs(Some(&spec), None, owner, secret.collect(), &managed).unwrap();
    world.inputs.backend = inputs;
    let ran = world.run(RunKind::Apply);
    (world, ran)
}

/// `init` cannot reach the service. Its error names the address that the engine derived from the rendered configuration.
#[rstest]
#[case::azure(
    json!({"provider": "azure", "storageAccount": "account", "container": "states"}),
    &[("ARM_ACCESS_KEY", "aGlkZGVu")],
    "https://account.blob.core.windows.net/states?comp=list&prefix=team%2Fweb.tfstate"
)]
#[case::oss(
    json!({
        "provider": "generic", "type": "oss",
        "config": {"bucket": "states", "key": "web", "region": "cn-beijing"},
    }),
    &[("ALICLOUD_ACCESS_KEY", "aGlkZGVu"), ("ALICLOUD_SECRET_KEY", "aGlkZGVu")],
    "https://states.oss-cn-beijing.aliyuncs.com/"
)]
#[case::consul(
    json!({
        "provider": "generic", "type": "consul",
        "config": {"path": "states/web", "address": "127.0.0.1:1"},
    }),
    &[("access_token", "aGlkZGVu")],
    "http://127.0.0.1:1/v1/kv/states/web"
)]
#[case::s3_compatible(
    json!({
        "provider": "aws", "s3": "states", "region": "any", "endpoint": "http://127.0.0.1:1",
    }),
    &[("access_key", "aGlkZGVu"), ("secret_key", "aGlkZGVu"), ("AWS_MAX_ATTEMPTS", "1")],
    "http://127.0.0.1:1/states?list-type=2"
)]
#[case::database(
    json!({"provider": "pg", "config": {"skip_schema_creation": true}}),
    &[("conn_str", "postgres://user:aGlkZGVu@127.0.0.1:1/states?sslmode=disable")],
    "127.0.0.1:1"
)]
fn rendered_backend_config_is_accepted_by_the_engine(
    #[case] spec: Value,
    #[case] secret: &[(&str, &str)],
    #[case] call: &str,
) {
    let (world, ran) = run(spec, secret);
    let report = ran.report.as_ref().unwrap();
    let failure = report.failure.as_ref().unwrap();
    assert_eq!(failure.reason, "InitFailed", "{}", ran.logs());
    assert!(failure.message.contains(call), "{}", failure.message);
    for refused in ["Extraneous JSON", "not expected here", "Invalid backend"] {
        assert!(!failure.message.contains(refused), "{}", failure.message);
    }
    let everything = format!("{}{}", ran.logs(), serde_json::to_string(report).unwrap());
    assert!(!everything.contains("aGlkZGVu"), "{everything}");
    let file = world.path("work/backend-config.json");
    let mode = std::fs::metadata(file).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
}

/// The operator passes unknown arguments in `spec.backend.config` unchanged, so the engine reports the error.
#[test]
fn unknown_backend_argument_is_refused_by_the_engine() {
    let (_, ran) = run(
        json!({"provider": "gcp", "gcs": "b", "config": {"nonsense": 1}}),
        &[],
    );
    let report = ran.report.as_ref().unwrap();
    let failure = report.failure.as_ref().unwrap();
    assert!(
        failure.message.contains("\"nonsense\""),
        "{}",
        failure.message
    );
    assert_ne!(failure.class, FailureClass::Transient);
}
