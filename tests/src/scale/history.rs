//! History of runs: the run records of the bulk get the entries, and the `TerraformRun`s, that ten applies leave.

use std::collections::BTreeMap;

use alustan_api::labels::NAME;
use alustan_api::report::RunReport;
use alustan_api::run::{History, RecordedRun, RunProgress, RunRecord, key};
use alustan_api::{TerraformRun, names, run_name};
use alustan_core::signature;
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::{Api, ListParams, Patch, PatchParams, PostParams};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::json;

use super::size::Member;
use super::{SYSTEM, Scale};
use crate::audit::OPERATOR;

/// Number of entries in a history.
const ENTRIES: i32 = 10;
/// Secret of the operator with the key that signs run records.
const SIGNING_KEY: &str = "alustan-signing-key";

type Data = BTreeMap<String, ByteString>;

impl Scale {
    /// Completes the history of each resource to ten entries and ten `TerraformRun`s, see [`write_history`] and [`write_runs`].
    pub(super) async fn write_histories(&self, members: &[Member]) {
        let secrets: Api<Secret> = Api::namespaced(self.cluster.client.clone(), SYSTEM);
        let key = secrets.get(SIGNING_KEY).await.expect("the signing key");
        let key = key.data.and_then(|mut data| data.remove("key"));
        let signing_key = &key.expect("a signing key").0;
        let operator = self.cluster.client_as(OPERATOR);
        self.each(members, async |resources, member| {
            let runs = Api::namespaced(operator.clone(), &member.namespace());
            write_runs(&runs, &member.name()).await;
            let secrets = Api::namespaced(resources.into_client(), &member.namespace());
            write_history(&secrets, &member.name(), signing_key).await;
        })
        .await;
    }
}

/// Completes the history of the resource `name` to ten entries: copies of the report of its last apply. Signs the run record with
/// `signing_key`, the key of the operator, which must not run.
pub async fn write_history(secrets: &Api<Secret>, name: &str, signing_key: &[u8]) {
    let record_name = names::record(name);
    let secret = secrets.get(&record_name).await.expect("a run record");
    let uid = secret.metadata.labels.as_ref().expect("labels")[alustan_api::labels::UID].clone();
    let data = secret.data.expect("a run record");
    let mut record: RunRecord = parsed(&data, key::RECORD);
    let mut history: History = parsed(&data, key::HISTORY);
    let last = history.reports.first().expect("a report").clone();
    let is_known = |number: &i64| history.report(*number).is_some();
    let missing: Vec<RunReport> = (1..=i64::from(ENTRIES))
        .filter(|number| !is_known(number))
        .map(|number| RunReport {
            number,
            ..last.clone()
        })
        .collect();
    history.reports.extend(missing);
    history.reports.sort_by_key(|report| -report.number);
    let numbers = history.reports.iter().map(|report| report.number);
    history.records = numbers
        .map(|number| RecordedRun { number, count: 1 })
        .collect();
    record.number = record.number.max(ENTRIES.into());
    record.attempted = record.number;
    record.begun = record.number;
    let pods = (0..ENTRIES).map(|number| format!("{name}-apply-{number}-abcde"));
    record.earlier_pods = pods.collect();
    let mut changes = Data::new();
    for (entry, content) in [
        (key::RECORD, encoded(&record)),
        (key::HISTORY, encoded(&history)),
    ] {
        let signed = signature::of(signing_key, &uid, entry, &content.0);
        changes.insert(key::signature(entry), ByteString(signed.into_bytes()));
        changes.insert(entry.to_owned(), content);
    }
    patch(secrets, &record_name, &changes).await;

    let report_name = names::report(name);
    let secret = secrets.get(&report_name).await.expect("a run report");
    let data = secret.data.expect("a run report");
    let mut progress: RunProgress = parsed(&data, key::PROGRESS);
    progress.number = record.number;
    let mut changes = Data::from([(key::PROGRESS.to_owned(), encoded(&progress))]);
    if data.contains_key(key::REPORT) {
        let report = RunReport {
            number: record.number,
            ..parsed(&data, key::REPORT)
        };
        changes.insert(key::REPORT.to_owned(), encoded(&report));
    }
    patch(secrets, &report_name, &changes).await;
}

/// Completes the `TerraformRun`s of the resource `name` to ten: copies of the last one. Only the operator may write them, so `runs` impersonates
/// it.
async fn write_runs(runs: &Api<TerraformRun>, name: &str) {
    let parameters = ListParams::default().labels(&format!("{NAME}={name}"));
    let known = runs.list(&parameters).await.expect("TerraformRuns").items;
    let number = |run: &TerraformRun| run.spec.number;
    let last = known.iter().max_by_key(|run| number(run));
    let last = last.expect("a TerraformRun").clone();
    let is_missing = |wanted: &i64| known.iter().all(|run| number(run) != *wanted);
    for missing in (1..=i64::from(ENTRIES)).filter(is_missing) {
        let mut run = last.clone();
        run.metadata = ObjectMeta {
            name: Some(run_name(name, &last.spec.terraform.uid, missing)),
            labels: last.metadata.labels.clone(),
            annotations: last.metadata.annotations.clone(),
            ..ObjectMeta::default()
        };
        run.spec.number = missing;
        if let Some(status) = &mut run.status {
            status.last_number = missing;
        }
        let created = runs.create(&PostParams::default(), &run).await;
        created.expect("create a TerraformRun");
    }
}

async fn patch(secrets: &Api<Secret>, name: &str, changes: &Data) {
    let change = json!({ "data": changes });
    let (parameters, change) = (PatchParams::default(), Patch::Merge(&change));
    let written = secrets.patch_metadata(name, &parameters, &change).await;
    written.expect("write the history");
}

fn parsed<T: DeserializeOwned>(data: &Data, entry: &str) -> T {
    serde_json::from_slice(&data[entry].0).expect("JSON")
}

fn encoded<T: Serialize>(value: &T) -> ByteString {
    ByteString(serde_json::to_vec(value).expect("JSON"))
}
