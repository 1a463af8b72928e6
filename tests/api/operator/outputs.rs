//! Outputs that a run reports. The tests simulate the runner.

use alustan_api::report::{RunReport, RunResult};
use alustan_api::run::{
    Output, Outputs, PROTOCOL, RunPhase, RunProgress, RunRecord, RunSpec, Trigger, key,
};
use alustan_api::{ABANDON, Architecture, Mode, OutputValue, RunStatus};
use alustan_core::objects::secrets;
use alustan_core::signature;
use futures::FutureExt as _;
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::ConfigMap;
use k8s_openapi::jiff::Timestamp;
use serde::Serialize;

use super::*;
use crate::pinned::signing_key;

fn json_of(value: &impl Serialize) -> ByteString {
    ByteString(serde_json::to_vec(value).unwrap())
}

/// Run record of a run that has succeeded, and the Secret with its run report.
struct FinishedRun {
    record: Value,
    report: Secret,
}

/// Returns a value with the types that an API server may store in another form.
fn nested() -> Value {
    json!({
        "ü\u{1F600}": [1, 2.5, 3.0, null, true], "empty": {}, "null": null, "max": u64::MAX,
        "min": i64::MIN, "text": "<&>\u{0}\n",
    })
}

fn finished_run(tf: &Terraform, number: i64, signing_key: &[u8]) -> FinishedRun {
    let run = RunSpec {
        kind: RunKind::Apply,
        trigger: Trigger::Created,
        job: format!("web-apply-{number}"),
        revision: None,
        commit: None,
        context: None,
        artifact: None,
        cache: false,
        cache_claim: None,
        unpack: false,
        image: "127.0.0.1:1/team/infra@sha256:0".to_owned(),
        architecture: Architecture::own(),
        tag: "0".to_owned(),
        config_hash: "hash".to_owned(),
        own_hash: String::new(),
        found: std::collections::BTreeMap::new(),
        judged_by: String::new(),
        pod: String::new(),
        destroys: false,
        mode: Mode::Apply,
        engine: None,
        trace_id: String::new(),
        protocol: PROTOCOL,
        started_at: Timestamp::now(),
    };
    let record = RunRecord {
        number,
        run: Some(run),
        ..RunRecord::default()
    };
    let report = RunReport {
        inventory: Some(12),
        ..RunReport::new(
            number,
            RunKind::Apply,
            RunResult::Done,
            Timestamp::now(),
            Timestamp::now(),
        )
    };
    let outputs: Outputs = [
        ("endpoint", json!("https://api.test"), false),
        ("nested", nested(), false),
        ("large", json!("x".repeat(20_000)), false),
        ("token", json!("hush"), true),
    ]
    .into_iter()
    .map(|(name, value, sensitive)| (name.to_owned(), Output { value, sensitive }))
    .collect();
    let progress = RunProgress {
        phase: RunPhase::Reported,
        began: true,
        ..RunProgress::of(&record)
    };
    let mut secret = secrets::report(tf, &progress);
    let data = secret.data.get_or_insert_default();
    data.insert(key::REPORT.to_owned(), json_of(&report));
    data.insert(key::OUTPUTS.to_owned(), json_of(&outputs));
    let record = json_of(&record);
    let uid = tf.uid().unwrap();
    let signature = signature::of(signing_key, &uid, key::RECORD, &record.0);
    let signature = ByteString(signature.into_bytes());
    FinishedRun {
        record: json!({"data": {key::RECORD: record, key::signature(key::RECORD): signature}}),
        report: secret,
    }
}

/// Simulates run `number` with `map` as `spec.outputs.configMapName`. Returns the status of the run.
async fn run(space: &Space, number: i64, map: &str) -> RunStatus {
    let web = with(resource("web"), "/outputs/configMapName", Some(map.into()));
    run_of(space, number, &web).boxed_local().await
}

/// Simulates run `number` without a `ConfigMap` for the outputs. Returns the status of the run.
async fn run_without_map(space: &Space, number: i64) -> RunStatus {
    run_of(space, number, &resource("web")).boxed_local().await
}

async fn run_of(space: &Space, number: i64, web: &Value) -> RunStatus {
    space.apply(web).await.unwrap();
    let tfs = space.api::<Terraform>();
    let kept = space.api::<Secret>();
    let name = names::record("web");
    until("a record", async || {
        kept.get_opt(&name)
            .await
            .unwrap()
            .ok_or_else(|| "there is none".to_owned())
    })
    .await;
    wait(&tfs, "web", "the spec to be seen", |tf| {
        let observed = tf
            .status
            .as_ref()
            .and_then(|status| status.observed_generation);
        observed == tf.metadata.generation
    })
    .await;
    let signing_key = signing_key(&space.client).await;
    let finished = finished_run(&tfs.get("web").await.unwrap(), number, &signing_key);
    let record = Patch::Merge(&finished.record);
    let edit = PatchParams::default();
    kept.patch(&name, &edit, &record).await.unwrap();
    let report = Patch::Apply(&finished.report);
    let apply = PatchParams::apply("runner").force();
    let name = names::report("web");
    kept.patch(&name, &apply, &report).await.unwrap();
    let last = |tf: &Terraform| tf.status.as_ref()?.runs.first().cloned();
    let tf = wait(&tfs, "web", "the run to be recorded", |tf| {
        last(tf).is_some_and(|run| run.number == number)
    });
    last(&tf.await).unwrap()
}

#[tokio::test]
async fn outputs_use_only_own_objects_and_deletion_removes_them() {
    let operator = Operator::shared().await;
    let space = operator.space().await;
    let maps = space.api::<ConfigMap>();
    let theirs: ConfigMap = space
        .create(json!({"metadata": {"name": "theirs"}, "data": {"endpoint": "mine"}}))
        .await;
    let refused = run(&space, 1, "theirs").await;
    assert_eq!(refused.reason.as_deref(), Some("OutputsOwnershipConflict"));
    let secrets = space.api::<Secret>();
    assert!(secrets.get_opt("web-outputs").await.unwrap().is_none());

    let result = run(&space, 2, "told").await;
    assert_eq!((result.result.as_str(), result.error), ("Done", None));
    let data = maps.get("told").await.unwrap().data.unwrap();
    assert_eq!(data["endpoint"], "https://api.test");
    secrets.get("web-outputs").await.unwrap();

    let renamed = run(&space, 3, "told-2").await;
    assert_eq!(renamed.result, "Done");
    assert!(maps.get_opt("told").await.unwrap().is_none());
    maps.get("told-2").await.unwrap();

    let tfs = space.api::<Terraform>();
    let abandon = json!({"metadata": {"annotations": {ABANDON: "true"}}});
    let merge = PatchParams::default();
    tfs.patch("web", &merge, &Patch::Merge(&abandon))
        .await
        .unwrap();
    tfs.delete("web", &DeleteParams::default()).await.unwrap();
    until("the resource to go", async || {
        let tf = tfs.get_opt("web").await.unwrap();
        tf.map_or(Ok(()), |tf| Err(format!("{:?}", tf.status)))
    })
    .await;
    for name in ["told-2", "web-outputs"] {
        assert!(maps.get_opt(name).await.unwrap().is_none(), "{name}");
        assert!(secrets.get_opt(name).await.unwrap().is_none(), "{name}");
    }
    let config_map = maps.get("theirs").await.unwrap();
    assert_eq!(config_map.data, theirs.data);
    operator.keeps_to_its_role();
}

#[tokio::test]
async fn outputs_never_replace_a_foreign_secret() {
    let operator = Operator::shared().await;
    let space = operator.space().await;
    let secrets = space.api::<Secret>();
    let theirs: Secret = space
        .create(json!({"metadata": {"name": "web-outputs"}, "stringData": {"endpoint": "mine"}}))
        .await;
    let refused = run_without_map(&space, 1).await;
    assert_eq!(refused.reason.as_deref(), Some("OutputsOwnershipConflict"));
    assert_eq!(secrets.get("web-outputs").await.unwrap(), theirs);

    let delete = DeleteParams::default();
    secrets.delete("web-outputs", &delete).await.unwrap();
    let result = run_without_map(&space, 2).await;
    assert_eq!((result.result.as_str(), result.error), ("Done", None));
    let data = secrets.get("web-outputs").await.unwrap().data.unwrap();
    assert_eq!(data["endpoint"].0, b"https://api.test");
    operator.keeps_to_its_role();
}

#[tokio::test]
async fn selected_outputs_are_stored_in_the_status() {
    let operator = Operator::shared().await;
    let space = operator.space().await;
    let selecting = |names: Value| with(resource("web"), "/outputs/status", Some(names));
    let web = selecting(json!(["nested", "endpoint", "token", "large", "typo"]));
    let run = run_of(&space, 1, &web).boxed_local().await;
    assert_eq!((run.result.as_str(), run.error), ("Done", None));
    let raw = space.raw().get("web").await.unwrap();
    let outputs = &raw.data["status"]["outputs"];
    let mut stored = nested();
    // The API server stores an integer beyond 64 bits with sign as a floating-point number.
    stored["max"] = json!(18_446_744_073_709_552_000.0);
    stored["ü\u{1F600}"][2] = json!(3);
    let wanted = json!({"endpoint": "https://api.test", "nested": stored});
    assert_eq!(outputs["values"], wanted);
    let omitted = json!([
        {"name": "token", "reason": "OutputSensitive"},
        {"name": "large", "reason": "OutputsTooLarge"},
        {"name": "typo", "reason": "OutputNotFound"},
    ]);
    assert_eq!(outputs["omitted"], omitted);
    assert_eq!(
        raw.data["status"]["inventory"],
        json!({"count": 12, "run": 1})
    );
    let status = raw.data["status"].to_string();
    assert!(!status.contains("hush") && !status.contains("xxxx"));

    // The status that is read equals the status that was written: otherwise each reconcile would write it again.
    let tfs = space.api::<Terraform>();
    let read = tfs.get("web").await.unwrap().status.unwrap().outputs;
    assert_eq!(read.unwrap().values["nested"], OutputValue::from(nested()));

    space.apply(&selecting(json!(["endpoint"]))).await.unwrap();
    wait(
        &tfs,
        "web",
        "the outputs to be removed from the status",
        |tf| {
            let outputs = tf
                .status
                .as_ref()
                .and_then(|status| status.outputs.as_ref());
            outputs.is_some_and(|outputs| outputs.values.len() == 1 && outputs.omitted.is_empty())
        },
    )
    .await;
    operator.keeps_to_its_role();
}

#[tokio::test]
async fn invalid_selection_of_outputs_is_refused() {
    let space = Operator::shared().await.space().await;
    let many: Vec<_> = (0..65).map(|number| format!("o{number}")).collect();
    for names in [
        json!(many),
        json!(["a", "a"]),
        json!([""]),
        json!(["x".repeat(254)]),
    ] {
        let web = with(resource("web"), "/outputs/status", Some(names));
        space.try_apply(&web).await.unwrap_err();
    }
}
