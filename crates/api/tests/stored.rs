//! Resources, run records, run reports and pins that earlier versions of the operator stored are readable.
//!
//! `stored/COMMIT/FILE.json` contains a resource and the data of its Secrets `NAME-run`, `NAME-report` and `NAME-pin`, as the operator of
//! COMMIT wrote them in a cluster. There are four files: `applied`, `inflight` (during an apply), `pending` (a plan waits for approval) and
//! `failed` (with a log). After a release, add a folder with the objects that the release writes.

#![expect(
    clippy::indexing_slicing,
    clippy::unwrap_used,
    reason = "these are tests"
)]

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use alustan_api::run::{History, Pin, RunInputs, RunPhase, RunProgress, RunRecord, key};
use alustan_api::{State, Terraform};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

/// Objects of one resource.
struct Stored {
    resource: Value,
    /// Data of the Secrets `NAME-run`, `NAME-report` and `NAME-pin`, by suffix of the Secret name.
    secrets: BTreeMap<String, BTreeMap<String, String>>,
}

impl Stored {
    fn read(path: &Path) -> Self {
        let file: Value = serde_json::from_slice(&fs::read(path).unwrap()).unwrap();
        Self {
            resource: file["resource"].clone(),
            secrets: serde_json::from_value(file["secrets"].clone()).unwrap(),
        }
    }

    fn named(name: &str) -> Self {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/stored/5e455a4");
        Self::read(&folder.join(name).with_extension("json"))
    }

    fn entry<T: Serialize + DeserializeOwned>(&self, secret: &str, key: &str) -> Option<T> {
        let stored = self.secrets[secret].get(key)?;
        Some(same(&serde_json::from_str(stored).unwrap(), key))
    }

    fn record(&self) -> RunRecord {
        self.entry("run", key::RECORD).unwrap()
    }

    fn resource(&self) -> Terraform {
        serde_json::from_value(self.resource.clone()).unwrap()
    }
}

/// Parses `stored`, and asserts that the parsed value keeps all of its fields.
fn same<T: Serialize + DeserializeOwned>(stored: &Value, path: &str) -> T {
    let parsed = T::deserialize(stored).unwrap();
    assert_kept(stored, &serde_json::to_value(&parsed).unwrap(), path);
    parsed
}

/// Asserts that `now` contains the fields of `stored` with their values. Fields with null may be missing.
fn assert_kept(stored: &Value, now: &Value, path: &str) {
    match stored {
        Value::Object(fields) => {
            for (name, value) in fields.iter().filter(|(_, value)| !value.is_null()) {
                assert_kept(value, &now[name], &format!("{path}.{name}"));
            }
        }
        Value::Array(values) => {
            for (index, value) in values.iter().enumerate() {
                assert_kept(value, &now[index], &format!("{path}[{index}]"));
            }
        }
        value => assert_eq!(value, now, "{path}"),
    }
}

#[test]
fn objects_of_each_earlier_version_are_readable() {
    let versions =
        fs::read_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/stored")).unwrap();
    let mut count = 0;
    for version in versions {
        for file in fs::read_dir(version.unwrap().path()).unwrap() {
            let stored = Stored::read(&file.unwrap().path());
            stored.resource();
            stored.record();
            stored.entry::<History>("run", key::HISTORY).unwrap();
            stored.entry::<RunInputs>("run", key::INPUTS);
            stored
                .entry::<RunProgress>("report", key::PROGRESS)
                .unwrap();
            stored.entry::<Pin>("pin", "pin").unwrap();
            count += 1;
        }
    }
    assert!(count >= 4, "{count}");
}

#[test]
fn apply_in_progress_of_an_earlier_version_is_recognised() {
    let stored = Stored::named("inflight");
    let progress: RunProgress = stored.entry("report", key::PROGRESS).unwrap();
    assert_eq!((progress.number, progress.phase), (1, RunPhase::Applying));
    assert_eq!(stored.record().number, progress.number);
    let inputs: RunInputs = stored.entry("run", key::INPUTS).unwrap();
    assert_eq!(inputs.timeouts.apply, 1200);
    assert_eq!(stored.resource().status.unwrap().state, State::Applying);
}
