//! Stand-in for the runner in tests without an engine: claims a run, writes the state and reports a result, with the library of the runner.

use std::sync::Arc;
use std::time::Duration;

use alustan_api::names;
use alustan_api::report::RunReport;
use alustan_api::run::{Lineage, Outputs, RunDetails, RunInputs, RunKind, RunPhase};
use alustan_runner::claim::{Claimed, claim};
use alustan_runner::record::{Identity, RecordError, RecordHandle, Update};
use alustan_runner::report::{self, ReportExtras};
use alustan_runner::state::server::SlotsOfRecord;
use alustan_runner::state::{inventory, outputs};
use alustan_state::retry::Patience;
use alustan_state::secrets::{Changes, KubeSecrets, Secrets};
use alustan_state::store::StateStore;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::jiff::Timestamp;
use kube::{Client, ResourceExt};
use serde_json::{Value, json};

/// Maximum duration of the retries of one write.
const PATIENCE: Duration = Duration::from_mins(1);
/// Number of objects in the state that [`RunnerStandIn::execute`] writes: a state of about 6 kB.
const OBJECTS: usize = 20;

/// Stand-in for the runner in one pod.
pub struct RunnerStandIn {
    secrets: Arc<dyn Secrets>,
    record: RecordHandle,
}

/// Error of a run or of a build that was not executed.
pub(crate) type Refused = Box<dyn std::error::Error + Send + Sync>;

impl RunnerStandIn {
    /// Creates the stand-in for pod `pod` of run `number` of the resource `name`. `client` needs access to the Secrets of the run.
    pub fn of_run(client: Client, namespace: &str, name: &str, number: i64, pod: &str) -> Self {
        let identity = Identity {
            namespace: namespace.to_owned(),
            record: names::record(name),
            number,
            decision: None,
            pod_uid: pod.to_owned(),
            pod: pod.to_owned(),
        };
        Self::new(Arc::new(KubeSecrets::new(client, namespace)), identity)
    }

    /// Creates the stand-in for `pod`. `client` needs access to the Secrets of the run.
    ///
    /// # Errors
    /// The pod is not that of a run.
    pub fn of_pod(client: Client, pod: &Pod) -> Result<Self, Refused> {
        let identity = identity(pod)?;
        let secrets = KubeSecrets::new(client, &identity.namespace);
        Ok(Self::new(Arc::new(secrets), identity))
    }

    /// Returns the name of the resource.
    pub fn resource(&self) -> String {
        self.record.identity().resource().to_owned()
    }

    /// Creates the stand-in for the pod and the run of `identity`.
    fn new(secrets: Arc<dyn Secrets>, identity: Identity) -> Self {
        Self {
            record: RecordHandle::new(secrets.clone(), identity),
            secrets,
        }
    }

    /// Claims the run.
    ///
    /// # Errors
    /// The pod must not execute the run, or the run record or the run report cannot be read or written.
    pub async fn claim(&self) -> Result<Claimed, RecordError> {
        claim(&self.record, Timestamp::now()).await
    }

    /// Reports the start of changes.
    ///
    /// # Errors
    /// The pod does not hold the claim, the run is cancelled, or the run report cannot be written.
    pub async fn begin(&self) -> Result<(), RecordError> {
        let patience = Patience::lasting(PATIENCE);
        self.record
            .update_ours(patience, |progress, _| {
                if progress.cancel {
                    return Err(RecordError::NotOurs("the run is cancelled".to_owned()));
                }
                progress.phase = RunPhase::Applying;
                progress.began = true;
                if progress.lineage == Lineage::Unknown {
                    progress.lineage = Lineage::New;
                }
                Ok(Update::Write((), Changes::new()))
            })
            .await
    }

    /// Reports a run of `kind` that succeeded; an apply with `outputs`. The result of a plan and of a drift check is `NoChanges`.
    ///
    /// # Errors
    /// The pod does not hold the claim, or the run report cannot be written.
    pub async fn report(&self, kind: RunKind, outputs: &Outputs) -> Result<(), RecordError> {
        let extras = ReportExtras {
            outputs: (kind == RunKind::Apply).then_some(outputs),
            ..ReportExtras::default()
        };
        self.write_report(kind, None, extras).await
    }

    async fn write_report(
        &self,
        kind: RunKind,
        lineage: Option<String>,
        extras: ReportExtras<'_>,
    ) -> Result<(), RecordError> {
        let report = self.report_of(
            kind,
            lineage.as_deref(),
            extras.inventory.map(|all| all.count),
        );
        report::record(&self.record, &report, extras, Patience::lasting(PATIENCE))
            .await
            .map(drop)
    }

    fn report_of(&self, kind: RunKind, lineage: Option<&str>, inventory: Option<i64>) -> RunReport {
        let now = Timestamp::now();
        let number = self.record.identity().number;
        let changes = kind.changes().then(|| {
            json!({
                "add": 0, "change": 1, "destroy": 0, "digest": "0".repeat(64), "shape": "0".repeat(64),
                "resources": [{"address": "terraform_data.object[0]", "action": "update"}],
            })
        });
        let report = json!({
            "number": number, "kind": kind,
            "result": if kind.changes() { "Done" } else { "NoChanges" },
            "changes": changes, "lineage": lineage, "inventory": inventory, "recovered": true,
            "took": {"init": 200, "plan": 900, "apply": 1_500}, "startedAt": now, "finishedAt": now,
        });
        serde_json::from_value(report).expect("a run report")
    }

    /// Executes the run from claim to report with the requests of the runner: an apply writes a new version of the managed state. Awaits
    /// `hold` before the report of an apply.
    ///
    /// # Errors
    /// The pod must not execute the run, or a Secret of the run cannot be read or written.
    pub async fn execute(&self, hold: impl Future<Output = ()>) -> Result<RunKind, Refused> {
        let claimed = self.claim().await?;
        let kind = claimed.run.kind;
        let store = self.open_state(&claimed.inputs).await?;
        if !kind.changes() {
            let lineage = store.version().await.and_then(|version| version.lineage);
            self.write_report(kind, lineage, ReportExtras::default())
                .await?;
            return Ok(kind);
        }
        let number = self.record.identity().number;
        if number > 1 {
            store.begin().await?;
        }
        self.begin().await?;
        let lineage = match &claimed.record.lineage {
            Lineage::Of(lineage) => lineage.clone(),
            Lineage::Unknown | Lineage::Lost | Lineage::New => {
                self.record.identity().pod_uid.clone()
            }
        };
        let state = state(&lineage, number, kind == RunKind::Destroy)
            .to_string()
            .into_bytes();
        let outputs = outputs::from_state(&state)?;
        let inventory = inventory::read(&state, number)?;
        store.put(state).await?;
        hold.await;
        let details = details(number);
        let extras = ReportExtras {
            outputs: Some(&outputs),
            inventory: inventory.as_ref(),
            details: Some(&details),
            ..ReportExtras::default()
        };
        self.write_report(kind, Some(lineage), extras).await?;
        Ok(kind)
    }

    async fn open_state(&self, inputs: &RunInputs) -> Result<StateStore, Refused> {
        let managed = inputs
            .backend
            .managed
            .as_ref()
            .ok_or("the stand-in for the runner supports the managed backend only")?;
        let slots = Arc::new(SlotsOfRecord(self.record.clone()));
        let writer = self.record.identity().pod_uid.clone();
        let (pointer, names) = (managed.pointer.clone(), managed.slots.clone());
        Ok(StateStore::open(self.secrets.clone(), pointer, names, slots, writer).await?)
    }
}

/// Returns the details of an apply that changes [`OBJECTS`] objects: changes, text of the plan and log, about 10 kB.
fn details(number: i64) -> RunDetails {
    let (before, after) = (number - 1, number);
    let resources: Vec<_> = (0..OBJECTS)
        .map(|index| {
            json!({
                "address": format!("terraform_data.object[{index}]"), "action": "update",
                "provider": "terraform.io/builtin/terraform",
                "attributes": [
                    {"path": "input", "before": format!("\"value {index} of run {before}\""), "after": format!("\"value {index} of run {after}\"")},
                    {"path": "output", "before": format!("\"value {index} of run {before}\""), "unknown": true},
                ],
            })
        })
        .collect();
    let lines: Vec<_> = (0..OBJECTS)
        .map(|index| {
            format!(
                "  # terraform_data.object[{index}] will be updated in-place\n  ~ resource \"terraform_data\" \"object\" {{\n      \
                 ~ input  = \"value {index} of run {before}\" -> \"value {index} of run {after}\"\n    }}\n"
            )
        })
        .collect();
    let plan = lines.concat();
    let details = json!({
        "number": number, "plan": plan, "log": {"head": format!("Initializing the backend...\n{plan}Apply complete!\n"), "omittedBytes": 0},
        "changes": {
            "add": 0, "change": OBJECTS, "destroy": 0, "digest": "0".repeat(64), "shape": "0".repeat(64),
            "resources": resources,
        },
    });
    serde_json::from_value(details).expect("details of a run")
}

/// Returns a state as the engine writes it.
fn state(lineage: &str, serial: i64, is_empty: bool) -> Value {
    let count = if is_empty { 0 } else { OBJECTS };
    let objects: Vec<_> = (0..count)
        .map(|index| {
            json!({
                "index_key": index, "schema_version": 0,
                "attributes": {
                    "id": format!("{lineage}-{index}"), "triggers_replace": null,
                    "input": {"type": "string", "value": format!("value {index} of run {serial}")},
                    "output": {"type": "string", "value": format!("value {index} of run {serial}")},
                },
            })
        })
        .collect();
    json!({
        "version": 4, "terraform_version": "1.11.4", "serial": serial, "lineage": lineage,
        "outputs": {"result": {"value": format!("run {serial}"), "type": "string"}},
        "resources": [{
            "mode": "managed", "type": "terraform_data", "name": "object",
            "provider": "provider[\"terraform.io/builtin/terraform\"]", "instances": objects,
        }],
    })
}

/// Returns the identity that the runner reads from the environment of its pod.
fn identity(pod: &Pod) -> Result<Identity, Refused> {
    let get = |name: &str| variable(pod, name).ok_or_else(|| format!("{name} is not set"));
    Ok(Identity {
        namespace: pod.namespace().unwrap_or_default(),
        record: get("ALUSTAN_RECORD")?,
        number: get("ALUSTAN_RUN")?.parse()?,
        decision: variable(pod, "ALUSTAN_DECISION"),
        pod_uid: pod.uid().unwrap_or_default(),
        pod: pod.name_any(),
    })
}

/// Returns the value of an environment variable of a container of `pod`.
pub(crate) fn variable(pod: &Pod, name: &str) -> Option<String> {
    let containers = pod.spec.iter().flat_map(|spec| &spec.containers);
    let mut variables = containers
        .filter_map(|container| container.env.as_ref())
        .flatten();
    variables
        .find(|variable| variable.name == name)?
        .value
        .clone()
}
